"""How each kind of layer gives its gradients per example from one pass.

A rule runs its layer on a whole batch, shows the tensor whose gradient it needs
to a tap (its pre-activation, say), and later turns that gradient into one
`Part` for each variable. To teach the engine another layer, write a rule and
put it into `RULES`; only exact types are looked up, as a subclass may override
`call`.
"""

from __future__ import annotations

import contextlib
from typing import Any
from typing import Callable
from typing import Dict
from typing import Iterator
from typing import List
from typing import NamedTuple
from typing import Tuple

import tensorflow as tf

from tfcactus.keras.compat import versions
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients import im2col

Tap = Callable[[Any, tf.Tensor], tf.Tensor]
Gradients = List[Tuple[tf.Variable, forms.Part]]


class Site(NamedTuple):
  """One call of a layer.

  Attributes:
    layer: The layer.
    inputs: What its rule remembered of the call.
    gradient: Of the weighted losses, by the tensor the rule tapped.
  """

  layer: Any
  inputs: Any
  gradient: tf.Tensor


class Rule:
  """How one kind of layer is run and differentiated."""

  def unfit(self, layer: Any) -> str:
    """Why the rule does not hold for this layer, or ''."""
    del layer
    return ''

  def run(self, layer: Any, call: Callable[..., Any], tap: Tap, inputs: Any,
          *args: Any, **kwargs: Any) -> Any:
    """Calls the layer, passing what needs a gradient through `tap`.

    Args:
      layer: The layer.
      call: Its own `call`.
      tap: (what to remember, tensor) -> the tensor to go on with.
      inputs: First argument of the call.
      *args: The others.
      **kwargs: Likewise.
    """
    activation = layer.activation

    def watched(outputs):
      return activation(tap(inputs, outputs))

    with replaced(layer, activation=watched):
      return call(inputs, *args, **kwargs)

  def gradients(self, site: Site) -> Gradients:
    """The gradients of the layer's variables at one call."""
    raise NotImplementedError


@contextlib.contextmanager
def replaced(layer: Any, **attributes: Any) -> Iterator[None]:
  """Replaces attributes of a layer for a while, unseen by Keras."""
  kept = {k: layer.__dict__[k] for k in attributes if k in layer.__dict__}
  layer.__dict__.update(attributes)
  try:
    yield
  finally:
    for name in attributes:
      del layer.__dict__[name]
    layer.__dict__.update(kept)


def _exact(value: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
  """In the variable's dtype: float32 under mixed precision."""
  return tf.cast(value, versions.stored_dtype(variable))


def _inputs(site: Site, variable: tf.Variable) -> tf.Tensor:
  """What the layer computed with: cast down first, if it computes in less."""
  return _exact(tf.cast(site.inputs, site.layer.compute_dtype), variable)


class _DenseRule(Rule):

  def gradients(self, site: Site) -> Gradients:
    layer = site.layer
    inputs = _inputs(site, layer.kernel)
    outputs = _exact(site.gradient, layer.kernel)
    if inputs.shape.rank == 2:
      kernel = forms.Outer(inputs, outputs)
      bias = outputs
    else:
      rows = [inputs.shape[0], -1]
      inputs = tf.reshape(inputs, rows + [inputs.shape[-1]])
      outputs = tf.reshape(outputs, rows + [outputs.shape[-1]])
      kernel = forms.Dense(tf.matmul(inputs, outputs, transpose_a=True),
                            layer.kernel.shape)
      bias = tf.reduce_sum(outputs, 1)
    found = [(layer.kernel, kernel)]
    if layer.use_bias:
      found.append((layer.bias, forms.Dense(bias, layer.bias.shape)))
    return found


class _ConvRule(Rule):

  def unfit(self, layer: Any) -> str:
    if layer.data_format != 'channels_last':
      return 'channels_first'
    return '' if layer.groups == 1 else f'groups={layer.groups}'

  def gradients(self, site: Site) -> Gradients:
    layer = site.layer
    images, outputs, windows = _images(site, layer.kernel)
    cut = im2col.patches(images, windows)
    outputs = tf.reshape(
        outputs, [cut.shape[0], cut.shape[1], outputs.shape[-1]])
    values = tf.matmul(outputs, cut, transpose_a=True)
    found = [(layer.kernel, forms.Dense(values, layer.kernel.shape,
                                         transposed=True))]
    if layer.use_bias:
      found.append((layer.bias, forms.Dense(tf.reduce_sum(outputs, 1),
                                             layer.bias.shape)))
    return found


def _images(site: Site, kernel: tf.Variable):
  """Inputs and output gradients as images, and the windows of both axes."""
  layer = site.layer
  images, outputs = _inputs(site, kernel), _exact(site.gradient, kernel)
  windows = [
      im2col.window(layer.padding, *sizes) for sizes in zip(
          images.shape[1:-1], outputs.shape[1:-1], layer.kernel_size,
          layer.strides, layer.dilation_rate)]
  if len(windows) == 1:
    images, outputs = images[:, None], outputs[:, None]
    windows.insert(0, im2col.Window(1, 1, 1, 0, 1))
  return images, outputs, windows


class _DepthwiseRule(Rule):

  def unfit(self, layer: Any) -> str:
    return '' if layer.data_format == 'channels_last' else 'channels_first'

  def gradients(self, site: Site) -> Gradients:
    layer = site.layer
    kernel = versions.depthwise_kernel(layer)
    images, outputs, windows = _images(site, kernel)
    batch, channels = images.shape[0], images.shape[3]
    bias = tf.reduce_sum(outputs, [1, 2])
    outputs = tf.reshape(outputs, [batch, -1, channels, kernel.shape[3]])
    values = tf.stack([
        tf.reduce_sum(tap[..., None] * outputs, 1)
        for tap in im2col.taps(images, windows)], 1)
    found = [(kernel, forms.Dense(values, kernel.shape))]
    if layer.use_bias:
      found.append((layer.bias, forms.Dense(bias, layer.bias.shape)))
    return found


class _EmbeddingRule(Rule):

  def unfit(self, layer: Any) -> str:
    return 'sparse=True' if getattr(layer, 'sparse', False) else ''

  def run(self, layer, call, tap, inputs, *args, **kwargs):
    return tap(inputs, call(inputs, *args, **kwargs))

  def gradients(self, site: Site) -> Gradients:
    table = site.layer.embeddings
    batch = site.inputs.shape[0]
    ids = tf.reshape(tf.cast(site.inputs, tf.int32), [batch, -1])
    values = tf.reshape(_exact(site.gradient, table),
                        [batch, ids.shape[1], table.shape[1]])
    return [(table, forms.Rows.merged(ids, values, table.shape[0]))]


class _NormalizationRule(Rule):
  """Layer and group normalization: scale and offset after normalizing."""

  def __init__(self, without: Dict[str, Any]):
    """Initialises the rule.

    Args:
      without: The attributes under which the layer only normalizes.
    """
    self._without = without

  def unfit(self, layer: Any) -> str:
    return 'axis 0' if over_batch(layer) else ''

  def run(self, layer, call, tap, inputs, *args, **kwargs):
    gamma = layer.gamma if layer.scale else None
    beta = layer.beta if layer.center else None
    with replaced(layer, **self._without):
      normal = call(inputs, *args, **kwargs)
    rank = normal.shape.rank
    axes = {axis % rank for axis in _axes(layer)}
    shape = [normal.shape[i] if i in axes else 1 for i in range(rank)]
    outputs = normal
    if gamma is not None:
      outputs *= tf.cast(tf.reshape(gamma, shape), normal.dtype)
    if beta is not None:
      outputs += tf.cast(tf.reshape(beta, shape), normal.dtype)
    return tap(normal, outputs)

  def gradients(self, site: Site) -> Gradients:
    layer, rank = site.layer, site.gradient.shape.rank
    axes = {axis % rank for axis in _axes(layer)}
    summed = [i for i in range(1, rank) if i not in axes]
    found = []
    if layer.scale:
      values = (_exact(site.gradient, layer.gamma) *
                _exact(site.inputs, layer.gamma))
      found.append((layer.gamma, tf.reduce_sum(values, summed)))
    if layer.center:
      found.append((layer.beta, tf.reduce_sum(
          _exact(site.gradient, layer.beta), summed)))
    return [(v, forms.Dense(values, v.shape)) for v, values in found]


def over_batch(layer: Any) -> bool:
  """Whether the axis of a layer is that of the batch, at any of its places."""
  ranks = {len(shape) for shape in versions.output_shapes(layer)}
  return any(axis == 0 or axis + rank == 0
             for axis in _axes(layer) for rank in ranks or {0})


def _axes(layer: Any) -> List[int]:
  return tf.nest.flatten(layer.axis)


_LAYERS = keras.layers
RULES: Dict[type, Rule] = {
    _LAYERS.Dense: _DenseRule(),
    _LAYERS.Conv1D: _ConvRule(),
    _LAYERS.Conv2D: _ConvRule(),
    _LAYERS.DepthwiseConv2D: _DepthwiseRule(),
    _LAYERS.Embedding: _EmbeddingRule(),
    _LAYERS.LayerNormalization: _NormalizationRule(
        {'gamma': None, 'beta': None}),
    _LAYERS.GroupNormalization: _NormalizationRule(
        {'scale': False, 'center': False}),
}
"""The layers whose gradients per example come out of one pass."""
