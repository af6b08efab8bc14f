"""Depthwise convolutions: one sum over positions for each tap of the kernel."""

from __future__ import annotations

from typing import Sequence

import tensorflow as tf

from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.layers import base
from tfcactus.keras.gradients.layers import conv
from tfcactus.keras.gradients.layers import im2col


class DepthwiseRule(base.LayerRule):
  """Depthwise convolutions over one or two axes."""

  layer_types = (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)

  def unsupported(self, layer: keras.layers.Layer) -> str:
    return '' if layer.data_format == 'channels_last' else 'channels_first'

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    layer = call.layer
    kernel = models.depthwise_kernel(layer)
    images, outputs, windows = conv.images_and_windows(call, kernel)
    found: base.Gradients = [(kernel, forms.Dense(
        kernel_gradients(images, outputs, windows), kernel.shape))]
    if layer.use_bias:
      found.append((layer.bias, conv.bias_gradient(outputs, layer.bias)))
    return found


def kernel_gradients(images: tf.Tensor, outputs: tf.Tensor,
                     windows: Sequence[im2col.Window]) -> tf.Tensor:
  """Sums over positions of each channel times its output gradients.

  Args:
    images: Shape (batch, height, width, channels).
    outputs: Shape (batch, ..., channels times outputs of each).
    windows: Of height and of width.

  Returns:
    Shape (batch, taps, channels, outputs of each).
  """
  batch, channels = images.shape[0], images.shape[3]
  outputs = tf.reshape(
      outputs, [batch, -1, channels, outputs.shape[-1] // channels])
  return tf.stack([tf.reduce_sum(tap[..., None] * outputs, 1)
                   for tap in im2col.taps(images, windows)], 1)
