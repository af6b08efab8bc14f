"""Rule for Dense layers, on vectors or along the last axis of larger inputs."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.layers import base


class DenseRule(base.LayerRule):
  """Rule for Dense layers; a vector's kernel gradient stays an outer product.

  Source: Goodfellow, "Efficient Per-Example Gradient Computations" (2015).
  """

  layer_types = (keras.layers.Dense,)

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    layer = call.layer
    inputs = base.layer_inputs(call, layer.kernel)
    outputs = base.in_stored_dtype(call.gradient, layer.kernel)
    kernel: forms.GradientForm
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
    found: base.Gradients = [(layer.kernel, kernel)]
    if layer.use_bias:
      found.append((layer.bias, forms.Dense(bias, layer.bias.shape)))
    return found

  def numbers_per_example(self, layer: keras.layers.Layer,
                          output_shapes: Sequence[list[int]]) -> int:
    if all(len(shape) == 1 for shape in output_shapes):
      return 0
    return super().numbers_per_example(layer, output_shapes)
