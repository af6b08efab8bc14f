"""Convolutions: a product of patches and output gradients for each example."""

from __future__ import annotations

import math
from typing import List
from typing import Sequence
from typing import Tuple

import tensorflow as tf

from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.layers import base
from tfcactus.keras.gradients.layers import im2col


class ConvRule(base.LayerRule):
  """Convolutions over one or two axes."""

  layer_types = (keras.layers.Conv1D, keras.layers.Conv2D)

  def unsupported(self, layer: keras.layers.Layer) -> str:
    if layer.data_format != 'channels_last':
      return 'channels_first'
    return '' if layer.groups == 1 else f'groups={layer.groups}'

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    layer = call.layer
    images, outputs, windows = images_and_windows(call, layer.kernel)
    patches = im2col.patches(images, windows)
    outputs = tf.reshape(
        outputs, [patches.shape[0], patches.shape[1], outputs.shape[-1]])
    values = tf.matmul(outputs, patches, transpose_a=True)
    found: base.Gradients = [(layer.kernel, forms.Dense(
        values, layer.kernel.shape, transposed=True))]
    if layer.use_bias:
      found.append((layer.bias, forms.Dense(
          tf.reduce_sum(outputs, 1), layer.bias.shape)))
    return found

  def numbers_per_example(self, layer: keras.layers.Layer,
                          output_shapes: Sequence[List[int]]) -> int:
    depth = math.prod(layer.kernel.shape[:-1]) if layer.built else 0
    positions = sum(math.prod(shape[:-1]) for shape in output_shapes)
    return super().numbers_per_example(layer, output_shapes) + depth * positions


def images_and_windows(call: base.LayerCall, kernel: tf.Variable
                      ) -> Tuple[tf.Tensor, tf.Tensor, List[im2col.Window]]:
  """Inputs and output gradients as images, and the windows of both axes."""
  layer = call.layer
  images = base.layer_inputs(call, kernel)
  outputs = base.in_stored_dtype(call.gradient, kernel)
  windows = [
      im2col.window(layer.padding, *sizes) for sizes in zip(
          images.shape[1:-1], outputs.shape[1:-1], layer.kernel_size,
          layer.strides, layer.dilation_rate)]
  if len(windows) == 1:
    images, outputs = images[:, None], outputs[:, None]
    windows.insert(0, im2col.Window(1, 1, 1, 0, 1))
  return images, outputs, windows
