"""Rule for depthwise convolutions, whose channels have separate kernels.

The channels of all examples are put side by side as the channels of one image. The
gradient of its kernel holds the gradients of all examples. TensorFlow computes it in
one operation.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.layers import base, conv, im2col


class DepthwiseRule(conv.ChannelsLastRule):
  """Rule for depthwise convolutions over one or two axes."""

  layer_types = (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    """Returns gradients of the kernel and the bias."""
    layer = call.layer
    kernel = models.depthwise_kernel(layer)
    images, outputs, windows = conv.images_and_windows(call, kernel)
    values = kernel_gradients(images, outputs, windows)
    return [(kernel, forms.Dense(values, kernel.shape)),
            *base.bias_gradients(layer, outputs)]


def kernel_gradients(images: tf.Tensor, outputs: tf.Tensor,
                     windows: Sequence[im2col.Window]) -> tf.Tensor:
  """Returns per-example kernel gradients: inputs times output gradients, summed.

  `images` is (batch, height, width, channels); `outputs`, the output gradients, is
  (batch, ..., channels * multiplier). The sum is over positions. The result is (batch,
  taps, channels, multiplier), where taps are the positions in the kernel.
  """
  strides = {w.stride for w in windows if w.size > 1}
  if len(strides) <= 1 and all(w.dilation == 1 for w in windows):
    return _side_by_side(images, outputs, windows, max(strides, default=1))
  batch, channels = images.shape[0], images.shape[3]
  outputs = tf.reshape(
      outputs, [batch, -1, channels, outputs.shape[-1] // channels])
  return tf.stack([tf.reduce_sum(tap[..., None] * outputs, 1)
                   for tap in im2col.taps(images, windows)], 1)


def _side_by_side(images: tf.Tensor, outputs: tf.Tensor,
                  windows: Sequence[im2col.Window], stride: int) -> tf.Tensor:
  """Computes `kernel_gradients` in one operation, for one stride and no dilation."""
  batch, channels = images.shape[0], images.shape[3]
  images = im2col.padded(images, windows)
  sizes = [(w.size - 1) * stride + w.kernel for w in windows]
  wide = _one_image(images[:, :sizes[0], :sizes[1]], sizes)
  narrow = _one_image(outputs, [w.size for w in windows])
  kernel = [*(w.kernel for w in windows), batch * channels,
            narrow.shape[3] // wide.shape[3]]
  found = tf.raw_ops.DepthwiseConv2dNativeBackpropFilter(
      input=wide, filter_sizes=kernel, out_backprop=narrow,
      strides=[1, stride, stride, 1], padding='VALID')
  taps = kernel[0] * kernel[1]
  return tf.transpose(tf.reshape(found, [taps, batch, channels, -1]), [1, 0, 2, 3])


def _one_image(images: tf.Tensor, sizes: Sequence[int]) -> tf.Tensor:
  """Reshapes (batch, ..., channels) to (1, height, width, batch * channels)."""
  batch, channels = images.shape[0], images.shape[-1]
  rows = tf.transpose(tf.reshape(images, [batch, *sizes, channels]), [1, 2, 0, 3])
  return tf.reshape(rows, [1, *sizes, batch * channels])
