"""Rule for PReLU: trainable slopes of negative inputs."""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf

from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.layers import base


class PReLURule(base.LayerRule):
  """Rule for PReLU: gradients are min(input, 0) times the output gradients."""

  layer_types = (keras.layers.PReLU,)

  def forward(self, layer: keras.layers.Layer, call: Callable[..., Any],
              capture: base.Capture, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Captures the outputs and saves the inputs."""
    return capture(inputs, call(inputs, *args, **kwargs))

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    """Returns gradients of the slopes, summed over axes that share one slope."""
    slopes = call.layer.alpha
    values = (tf.minimum(base.layer_inputs(call, slopes), 0) *
              base.in_stored_dtype(call.gradient, slopes))
    shared = [axis for axis, size in enumerate(slopes.shape, 1) if size == 1]
    return [(slopes, forms.Dense(
        tf.reduce_sum(values, shared, keepdims=True), slopes.shape))]
