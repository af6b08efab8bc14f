"""Rules for layer, group and RMS normalization: scale and offset after normalizing."""

from __future__ import annotations

from typing import Any, Callable, ClassVar, Optional

import tensorflow as tf

from tfcactus.keras.compat import models, patches
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.layers import base

Factors = tuple[Optional[tf.Variable], Optional[tf.Variable]]
"""Scale and offset."""


class _NormalizationRule(base.LayerRule):
  """Rule that runs the layer without scale and offset, and applies both itself."""

  _UNSCALED: ClassVar[dict[str, Any]]
  """The attributes with which the layer only normalizes."""

  def unsupported(self, layer: keras.layers.Layer) -> str:
    """Returns a reason for layers that normalize over the batch axis, else ''."""
    return 'axis 0' if over_batch(layer) else ''

  def unscaled(self, layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns the attributes with which the layer only normalizes."""
    del layer
    return self._UNSCALED

  def factors(self, layer: keras.layers.Layer) -> Factors:
    """Returns scale and offset, None for each that the layer lacks."""
    # With rms_scaling there is no offset, even if `center` is True.
    return (layer.gamma if layer.scale else None,
            getattr(layer, 'beta', None) if layer.center else None)

  def forward(self, layer: keras.layers.Layer, call: Callable[..., Any],
              capture: base.Capture, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Captures the outputs and saves the normalized inputs."""
    gamma, beta = self.factors(layer)
    with patches.replaced(layer, **self.unscaled(layer)):
      normal = call(inputs, *args, **kwargs)
    rank = normal.shape.rank
    axes = {axis % rank for axis in _axes(layer)}
    shape = [normal.shape[i] if i in axes else 1 for i in range(rank)]
    outputs = normal
    if gamma is not None:
      outputs *= tf.cast(tf.reshape(gamma, shape), normal.dtype)
    if beta is not None:
      outputs += tf.cast(tf.reshape(beta, shape), normal.dtype)
    return capture(normal, outputs)

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    """Returns gradients of scale and offset, summed over the axes that these lack."""
    layer, rank = call.layer, call.gradient.shape.rank
    axes = {axis % rank for axis in _axes(layer)}
    summed = [i for i in range(1, rank) if i not in axes]
    gamma, beta = self.factors(layer)
    found = []
    if gamma is not None:
      values = (base.in_stored_dtype(call.gradient, gamma) *
                base.in_stored_dtype(call.saved, gamma))
      found.append((gamma, tf.reduce_sum(values, summed)))
    if beta is not None:
      found.append((beta, tf.reduce_sum(
          base.in_stored_dtype(call.gradient, beta), summed)))
    return [(v, forms.Dense(values, v.shape)) for v, values in found]


class LayerNormalizationRule(_NormalizationRule):
  """Rule for layer normalization over any axes but the batch axis."""

  layer_types = (keras.layers.LayerNormalization,)

  def unscaled(self, layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns no offset, and no scale or a scale of ones."""
    gamma = None
    if getattr(layer, 'rms_scaling', False):  # Keras up to 3.10 needs a tensor.
      gamma = tf.ones(layer.gamma.shape, layer.gamma.dtype)
    return {'gamma': gamma, 'beta': None}


class GroupNormalizationRule(_NormalizationRule):
  """Rule for group normalization along any axis but the batch axis."""

  layer_types = (keras.layers.GroupNormalization,)
  _UNSCALED = {'scale': False, 'center': False}


class RMSNormalizationRule(_NormalizationRule):
  """Rule for root mean square normalization of Keras 3, which has no offset."""

  layer_types = tuple(models.layer_classes(['RMSNormalization']))
  _UNSCALED = {'scale': 1.0}  # Keras 3.10 needs a number.

  def factors(self, layer: keras.layers.Layer) -> Factors:
    """Returns the scale, and None for the offset."""
    return layer.scale, None


def over_batch(layer: keras.layers.Layer) -> bool:
  """Returns whether a layer normalizes over the batch axis in any of its calls."""
  ranks = {len(shape) for shape in models.output_shapes(layer)}
  return any(axis == 0 or axis + rank == 0
             for axis in _axes(layer) for rank in ranks or {0})


def _axes(layer: keras.layers.Layer) -> list[int]:
  """Returns the layer's `axis` as a list."""
  return tf.nest.flatten(layer.axis)
