"""Depthwise convolutions: one sum over positions for each tap of the kernel."""

from __future__ import annotations

import tensorflow as tf

from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.layers import base
from tfcactus.keras.gradients.layers import conv
from tfcactus.keras.gradients.layers import im2col


class DepthwiseRule(base.LayerRule):
  """Depthwise convolutions of images."""

  layer_types = (keras.layers.DepthwiseConv2D,)

  def unsupported(self, layer: keras.layers.Layer) -> str:
    return '' if layer.data_format == 'channels_last' else 'channels_first'

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    layer = call.layer
    kernel = models.depthwise_kernel(layer)
    images, outputs, windows = conv.images_and_windows(call, kernel)
    batch, channels = images.shape[0], images.shape[3]
    bias = tf.reduce_sum(outputs, [1, 2])
    outputs = tf.reshape(outputs, [batch, -1, channels, kernel.shape[3]])
    values = tf.stack([
        tf.reduce_sum(tap[..., None] * outputs, 1)
        for tap in im2col.taps(images, windows)], 1)
    found: base.Gradients = [(kernel, forms.Dense(values, kernel.shape))]
    if layer.use_bias:
      found.append((layer.bias, forms.Dense(bias, layer.bias.shape)))
    return found
