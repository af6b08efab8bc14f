"""Layer and group normalization: scale and offset after normalizing."""

from __future__ import annotations

from typing import Any
from typing import Callable
from typing import ClassVar
from typing import Dict
from typing import List

import tensorflow as tf

from tfcactus.keras.compat import models
from tfcactus.keras.compat import patches
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.layers import base


class _NormalizationRule(base.LayerRule):
  """Runs the layer without scale and offset, and applies both by itself.

  Attributes:
    unscaled: The attributes under which the layer only normalizes.
  """

  unscaled: ClassVar[Dict[str, Any]]

  def unsupported(self, layer: keras.layers.Layer) -> str:
    return 'axis 0' if over_batch(layer) else ''

  def forward(self, layer: keras.layers.Layer, call: Callable[..., Any],
              capture: base.Capture, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    gamma = layer.gamma if layer.scale else None
    beta = layer.beta if layer.center else None
    with patches.replaced(layer, **self.unscaled):
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
    layer, rank = call.layer, call.gradient.shape.rank
    axes = {axis % rank for axis in _axes(layer)}
    summed = [i for i in range(1, rank) if i not in axes]
    found = []
    if layer.scale:
      values = (base.in_stored_dtype(call.gradient, layer.gamma) *
                base.in_stored_dtype(call.saved, layer.gamma))
      found.append((layer.gamma, tf.reduce_sum(values, summed)))
    if layer.center:
      found.append((layer.beta, tf.reduce_sum(
          base.in_stored_dtype(call.gradient, layer.beta), summed)))
    return [(v, forms.Dense(values, v.shape)) for v, values in found]


class LayerNormalizationRule(_NormalizationRule):
  """Layer normalization over any axes but that of the batch."""

  layer_types = (keras.layers.LayerNormalization,)
  unscaled = {'gamma': None, 'beta': None}


class GroupNormalizationRule(_NormalizationRule):
  """Group normalization along any axis but that of the batch."""

  layer_types = (keras.layers.GroupNormalization,)
  unscaled = {'scale': False, 'center': False}


def over_batch(layer: keras.layers.Layer) -> bool:
  """Whether the axis of a layer is that of the batch, at any of its places."""
  ranks = {len(shape) for shape in models.output_shapes(layer)}
  return any(axis == 0 or axis + rank == 0
             for axis in _axes(layer) for rank in ranks or {0})


def _axes(layer: keras.layers.Layer) -> List[int]:
  return tf.nest.flatten(layer.axis)
