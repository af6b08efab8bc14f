"""Rule for separable convolutions: depthwise, then a matrix product per position."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any, Callable

import tensorflow as tf

from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.layers import base, conv, depthwise, im2col


class SeparableConvRule(conv.ChannelsLastRule):
  """Rule that runs both convolutions itself, to capture the tensor between them."""

  layer_types = (keras.layers.SeparableConv1D, keras.layers.SeparableConv2D)

  def forward(self, layer: keras.layers.Layer, call: Callable[..., Any],
              capture: base.Capture, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Captures the results of both convolutions; does not use `call`."""
    del call, args, kwargs
    inputs = tf.cast(inputs, layer.compute_dtype)
    between = capture(inputs, _depthwise(layer, inputs))
    kernel = tf.cast(layer.pointwise_kernel, between.dtype)
    outputs = tf.tensordot(between, tf.reshape(kernel, kernel.shape[-2:]), 1)
    outputs = tf.ensure_shape(outputs, between.shape[:-1] + kernel.shape[-1:])
    if layer.use_bias:
      outputs += tf.cast(layer.bias, outputs.dtype)
    outputs = capture(_Between(between), outputs)
    return outputs if layer.activation is None else layer.activation(outputs)

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    """Returns gradients of the convolution whose result was captured."""
    layer = call.layer
    if isinstance(call.saved, _Between):
      return _pointwise(call._replace(saved=call.saved.tensor))
    kernel = layer.depthwise_kernel
    images, outputs, windows = conv.images_and_windows(call, kernel)
    values = depthwise.kernel_gradients(images, outputs, windows)
    return [(kernel, forms.Dense(values, kernel.shape))]

  def numbers_per_example(self, layer: keras.layers.Layer,
                          output_shapes: Sequence[list[int]]) -> int:
    """Adds four times the numbers of the tensor between the convolutions."""
    width = layer.pointwise_kernel.shape[-2] if layer.built else 0
    positions = sum(math.prod(shape[:-1]) for shape in output_shapes)
    return super().numbers_per_example(layer, output_shapes) + 4 * width * positions


class _Between:
  """The input of the pointwise convolution, saved for the gradient of its kernel."""

  def __init__(self, tensor: tf.Tensor):
    self.tensor = tensor


def _depthwise(layer: keras.layers.Layer, inputs: tf.Tensor) -> tf.Tensor:
  """Runs the depthwise convolution as Keras does; a single axis gets height one."""
  kernel = tf.cast(layer.depthwise_kernel, inputs.dtype)
  strides, dilations, padding = layer.strides, layer.dilation_rate, layer.padding
  if padding == 'causal':
    before = dilations[0] * (layer.kernel_size[0] - 1)
    inputs, padding = tf.pad(inputs, [[0, 0], [before, 0], [0, 0]]), 'valid'
  single = len(strides) == 1
  if single:
    inputs, kernel = inputs[:, None], kernel[None]
    strides, dilations = strides * 2, (1, *dilations)
  outputs = tf.nn.depthwise_conv2d(
      inputs, kernel, [1, *strides, 1], padding.upper(), dilations=dilations)
  return outputs[:, 0] if single else outputs


def _pointwise(call: base.LayerCall) -> base.Gradients:
  """Returns gradients of the pointwise kernel and of the bias."""
  layer, kernel = call.layer, call.layer.pointwise_kernel
  outputs = base.in_stored_dtype(call.gradient, kernel)
  one = im2col.Window(1, 1, 1, 0, 1)
  rows = [outputs.shape[0], 1, -1]
  inputs = tf.reshape(base.layer_inputs(call, kernel), [*rows, kernel.shape[-2]])
  flat = tf.reshape(outputs, [*rows, outputs.shape[-1]])
  values = conv.kernel_gradients(
      inputs, flat, [one, one._replace(size=flat.shape[2])])
  return [(kernel, forms.Dense(values, kernel.shape, transposed=True)),
          *base.bias_gradients(layer, outputs)]
