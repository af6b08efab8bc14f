"""Rule for transposed convolutions: convolutions with inputs and outputs exchanged."""

from __future__ import annotations

from collections.abc import Sequence
import math

from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.layers import base, conv


class ConvTransposeRule(base.LayerRule):
  """Rule that cuts windows from output gradients; kernel (..., outputs, inputs)."""

  layer_types = (keras.layers.Conv1DTranspose, keras.layers.Conv2DTranspose,
                 keras.layers.Conv3DTranspose)

  def unsupported(self, layer: keras.layers.Layer) -> str:
    return '' if layer.data_format == 'channels_last' else 'channels_first'

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    layer = call.layer
    inputs = base.layer_inputs(call, layer.kernel)
    outputs = base.in_stored_dtype(call.gradient, layer.kernel)
    wide, narrow, windows = conv.as_images(
        outputs, inputs, conv.windows_of(layer, outputs, inputs))
    values = conv.kernel_gradients(wide, narrow, windows)
    found: base.Gradients = [(layer.kernel, forms.Dense(
        values, layer.kernel.shape, transposed=True))]
    if layer.use_bias:
      found.append((layer.bias, conv.bias_gradient(outputs, layer.bias)))
    return found

  def numbers_per_example(self, layer: keras.layers.Layer,
                          output_shapes: Sequence[list[int]]) -> int:
    depth = math.prod(layer.kernel.shape[:-1]) if layer.built else 0
    positions = sum(math.prod(shape[:-1]) for shape in output_shapes)
    # Outputs have at most as many positions as inputs times the strides.
    windows = -(-positions // math.prod(layer.strides))
    return super().numbers_per_example(layer, output_shapes) + depth * windows
