"""An example of a layer of one's own with its rule, in one file."""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf

from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.layers import base


class Scaling(tf.keras.layers.Layer):
  """Multiplies features by weights."""

  def build(self, shape: Any) -> None:
    self.scale = self.add_weight(name='scale', shape=(shape[-1],))

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    return inputs * tf.cast(self.scale, inputs.dtype)


class ScalingRule(base.LayerRule):
  """Multiplies inputs by gradients of outputs and sums over positions."""

  layer_types = (Scaling,)

  def forward(self, layer: Any, call: Callable[..., Any], capture: base.Capture,
              inputs: Any, *args: Any, **kwargs: Any) -> Any:
    return capture(inputs, call(inputs, *args, **kwargs))

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    scale = call.layer.scale
    products = (base.layer_inputs(call, scale) *
                base.in_stored_dtype(call.gradient, scale))
    positions = list(range(1, products.shape.rank - 1))
    return [(scale, forms.Dense(tf.reduce_sum(products, positions), scale.shape))]
