"""Per-example kernel gradients of convolutions.

A kernel gradient is a product of image patches (im2col) and output gradients, or, for
depthwise convolutions, a convolution. Images and output gradients are (batch, height,
width, channels), or have three spatial axes. For transposed convolutions the caller
exchanges images and output gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

_IDENTITY_MAX_DEPTH = 64
"""Up to this patch length, a convolution with an identity kernel extracts patches
faster than copies do, although it multiplies by zeros."""

_SHORT_COPY = 8
"""Copies of fewer numbers cost more for the call than for the data."""


class Window(NamedTuple):
  """One spatial axis of a convolution, with `size` windows.

  `kernel` is the number of taps (positions of the kernel) in a window, `stride` the
  step between windows, `dilation` the step between taps, `before` the number of zeros
  padded before the axis.
  """

  kernel: int
  stride: int
  dilation: int
  before: int
  size: int

  @property
  def span(self) -> int:
    """Returns the length of the axis, with its padding, that all windows cover."""
    return (self.size - 1) * self.stride + self.dilation * (self.kernel - 1) + 1


def window(padding: bytes, length: int, size: int, kernel: int, stride: int,
           dilation: int) -> Window:
  """Returns the `Window` of an axis of `length`; padding is b'SAME' or b'VALID'."""
  result = Window(kernel, stride, dilation, 0, size)
  if padding == b'VALID':
    return result
  return result._replace(before=max(result.span - length, 0) // 2)


def kernel_gradients(images: tf.Tensor, outputs: tf.Tensor, windows: Sequence[Window],
                     groups: int = 1) -> tf.Tensor:
  """Returns sums over positions of output gradients times patches of images.

  `images` is (batch, ..., channels), `outputs`, the output gradients, (batch, ...,
  filters) with one position per window. Filters see the channels of their own group.
  The result is (batch, filters, depth); depth runs over all axes of the kernel but the
  last, in row-major order.
  """
  batch, filters = outputs.shape[0], outputs.shape[-1]
  images, outputs = _apart(images, groups), _apart(outputs, groups)
  cut = [patches(images, windows)] if len(windows) == 2 else (
      _volume_patches(images, windows))
  outputs = tf.reshape(outputs, [outputs.shape[0], -1, outputs.shape[-1]])
  values = [tf.matmul(outputs, each, transpose_a=True) for each in cut]
  return tf.reshape(tf.concat(values, 2), [batch, filters, -1])


def _apart(images: tf.Tensor, groups: int) -> tf.Tensor:
  """Makes each group of channels an image: (batch * groups, ..., channels / groups)."""
  if groups == 1:
    return images
  sizes, rank = images.shape[1:-1], images.shape.rank
  images = tf.reshape(images, [images.shape[0], *sizes, groups, -1])
  images = tf.transpose(images, [0, rank - 1, *range(1, rank - 1), rank])
  return tf.reshape(
      images, [images.shape[0] * groups, *sizes, images.shape[-1]])


def depthwise_gradients(images: tf.Tensor, outputs: tf.Tensor,
                        windows: Sequence[Window]) -> tf.Tensor:
  """Returns kernel gradients of a depthwise convolution, one kernel per channel.

  `images` is (batch, height, width, channels); `outputs`, the output gradients, is
  (batch, ..., channels * multiplier). The result is (batch, taps, channels,
  multiplier), where taps are the positions in the kernel.
  """
  # A channel's gradient is a convolution of its image with the gradient of its output:
  # the layer's strides are dilations there, and its dilations strides. All examples'
  # channels are channels of one image, since TensorFlow's own kernel gradients take
  # long on CPUs from five taps on (MobileNetV3: 710 of 770 ms).
  batch, channels = images.shape[0], images.shape[3]
  spans, sizes = [w.span for w in windows], [w.size for w in windows]
  images = _padded(images, windows)[:, :spans[0], :spans[1]]
  kernel = tf.reshape(_one_image(outputs, sizes), [*sizes, batch * channels, -1])
  # TensorFlow takes equal strides only; else all outputs are computed, and some kept.
  steps = [w.dilation for w in windows if w.kernel > 1] or [1]
  step = steps[0] if len(set(steps)) == 1 else 1
  values = tf.nn.depthwise_conv2d(
      _one_image(images, spans), kernel, [1, step, step, 1], 'VALID',
      dilations=[w.stride if w.size > 1 else 1 for w in windows])
  if step == 1:
    values = values[:, ::windows[0].dilation, ::windows[1].dilation]
  taps = windows[0].kernel * windows[1].kernel
  return tf.transpose(tf.reshape(values, [taps, batch, channels, -1]), [1, 0, 2, 3])


def _one_image(images: tf.Tensor, sizes: Sequence[int]) -> tf.Tensor:
  """Reshapes (batch, ..., channels) to (1, height, width, batch * channels)."""
  batch, channels = images.shape[0], images.shape[-1]
  rows = tf.transpose(tf.reshape(images, [batch, *sizes, channels]), [1, 2, 0, 3])
  return tf.reshape(rows, [1, *sizes, batch * channels])


def _padded(images: tf.Tensor, windows: Sequence[Window]) -> tf.Tensor:
  """Pads and crops images: the first window starts at 0, sizes are whole strides.

  The sizes are the least that hold all windows.
  """
  padding, sizes = [[0, 0]], []
  for length, w in zip(images.shape[1:3], windows):
    sizes.append(-(-w.span // w.stride) * w.stride)
    padding.append([w.before, max(sizes[-1] - w.before - length, 0)])
  return tf.pad(images, padding + [[0, 0]])[:, :sizes[0], :sizes[1]]


def patches(images: tf.Tensor, windows: Sequence[Window]) -> tf.Tensor:
  """Returns patches (batch, windows, depth) of (batch, height, width, channels).

  Depth runs over rows, columns and channels, as in the flattened kernel.
  """
  rows, columns = windows
  channels = images.shape[3]
  depth = rows.kernel * columns.kernel * channels
  shape = [images.shape[0], rows.size * columns.size, depth]
  if depth == channels and rows.stride == columns.stride == 1:
    return tf.reshape(images, shape)
  images = _padded(images, windows)
  dense = max(rows.dilation, columns.dilation) == 1
  if dense and depth <= _IDENTITY_MAX_DEPTH:
    return tf.reshape(_identity(images, windows), shape)
  wide = columns.kernel * channels
  # Few channels make short copies: windows along a row first become longer channels.
  # Window(1, 1, 1, 0, n) leaves an axis of n places as it is.
  if dense and channels < _SHORT_COPY and wide <= _IDENTITY_MAX_DEPTH:
    images = _identity(images, [Window(1, 1, 1, 0, images.shape[1]), columns])
    columns = Window(1, 1, 1, 0, columns.size)
  return tf.reshape(_gathered(images, [rows, columns]), shape)


def _volume_patches(volumes: tf.Tensor, windows: Sequence[Window]) -> list[tf.Tensor]:
  """Returns patches of (batch, frames, height, width, channels).

  There is one tensor (batch, positions, depth) per tap (position in the kernel) along
  the frames; depth is as in the flattened kernel at this tap.
  """
  frames, rows, columns = windows
  batch, number = volumes.shape[:2]
  # Each frame is cut once, however many taps use it.
  cut = patches(tf.reshape(volumes, [batch * number, *volumes.shape[2:]]),
                [rows, columns])
  depth = cut.shape[2]
  cut = _padded(tf.reshape(cut, [batch, number, 1, cut.shape[1] * depth]),
                [frames, Window(1, 1, 1, 0, 1)])
  end = (frames.size - 1) * frames.stride + 1
  return [tf.reshape(cut[:, i:i + end:frames.stride], [batch, -1, depth])
          for i in range(0, frames.kernel * frames.dilation, frames.dilation)]


def _identity(images: tf.Tensor, windows: Sequence[Window]) -> tf.Tensor:
  """Returns patches (batch, rows, columns, depth) of padded images, without dilation.

  A convolution with an identity kernel computes them.
  """
  sizes = [w.kernel for w in windows] + [images.shape[3]]
  depth = int(np.prod(sizes))
  eye = tf.reshape(tf.eye(depth, dtype=images.dtype), sizes + [depth])
  return tf.nn.conv2d(images, eye, [w.stride for w in windows], 'VALID')


def _gathered(images: tf.Tensor, windows: Sequence[Window]) -> tf.Tensor:
  """Returns patches (batch, windows * taps, channels), copied, of padded images."""
  batch, height, width, channels = images.shape
  down, right = (
      w.stride * np.arange(w.size)[:, None] +
      w.dilation * np.arange(w.kernel)[None, :] for w in windows)
  # Axes: row of windows, column of windows, tap down, tap to the right.
  places = down[:, None, :, None] * width + right[None, :, None, :]
  flat = tf.reshape(images, [batch, height * width, channels])
  return tf.gather(flat, places.ravel().astype(np.int32), axis=1)
