"""Patches of images that a convolution multiplies by its kernel (im2col).

Images are (batch, height, width, channels).
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


def window(padding: str, length: int, size: int, kernel: int, stride: int,
           dilation: int) -> Window:
  """Returns the `Window` of an axis of `length`, on which there are `size` windows.

  It is padded as by TensorFlow ('valid', 'same') or Keras ('causal').
  """
  span = dilation * (kernel - 1) + 1
  if padding == 'causal':
    before = span - 1
  elif padding == 'same':
    before = max((size - 1) * stride + span - length, 0) // 2
  else:
    before = 0
  return Window(kernel, stride, dilation, before, size)


def padded(images: tf.Tensor, windows: Sequence[Window]) -> tf.Tensor:
  """Pads and crops images: the first window starts at 0, sizes are whole strides."""
  padding, sizes = [[0, 0]], []
  for length, w in zip(images.shape[1:3], windows):
    needed = (w.size - 1) * w.stride + w.dilation * (w.kernel - 1) + 1
    needed = -(-needed // w.stride) * w.stride
    padding.append([w.before, max(needed - w.before - length, 0)])
    sizes.append(needed)
  padded = tf.pad(images, padding + [[0, 0]])
  return padded[:, :sizes[0], :sizes[1]]


def taps(images: tf.Tensor, windows: Sequence[Window]) -> list[tf.Tensor]:
  """Returns a tensor (batch, windows, channels) per tap, both in row-major order."""
  images = padded(images, windows)
  (rows, columns) = windows
  ends = [(w.size - 1) * w.stride + 1 for w in windows]
  out = []
  for i in range(0, rows.kernel * rows.dilation, rows.dilation):
    for j in range(0, columns.kernel * columns.dilation, columns.dilation):
      taken = images[:, i:i + ends[0]:rows.stride, j:j + ends[1]:columns.stride]
      out.append(tf.reshape(
          taken, [images.shape[0], rows.size * columns.size, images.shape[3]]))
  return out


def patches(images: tf.Tensor, windows: Sequence[Window]) -> tf.Tensor:
  """Returns patches (batch, windows, depth).

  Depth runs over rows, columns and channels, as in the flattened kernel.
  """
  rows, columns = windows
  channels = images.shape[3]
  depth = rows.kernel * columns.kernel * channels
  shape = [images.shape[0], rows.size * columns.size, depth]
  if depth == channels and rows.stride == columns.stride == 1:
    return tf.reshape(images, shape)
  images = padded(images, windows)
  dense = max(rows.dilation, columns.dilation) == 1
  if dense and depth <= _IDENTITY_MAX_DEPTH:
    return tf.reshape(_identity(images, windows), shape)
  wide = columns.kernel * channels
  # Few channels make short copies: windows along a row first become longer channels.
  if dense and channels < _SHORT_COPY and wide <= _IDENTITY_MAX_DEPTH:
    images = _identity(images, [Window(1, 1, 1, 0, images.shape[1]), columns])
    columns = Window(1, 1, 1, 0, columns.size)
  return tf.reshape(_gathered(images, [rows, columns]), shape)


def volume_patches(volumes: tf.Tensor, windows: Sequence[Window]) -> list[tf.Tensor]:
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
  cut = tf.reshape(cut, [batch, number, 1, cut.shape[1] * depth])
  found = taps(cut, [frames, Window(1, 1, 1, 0, 1)])
  return [tf.reshape(each, [batch, -1, depth]) for each in found]


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
  places = down[:, None, :, None] * width + right[None, :, None, :]
  flat = tf.reshape(images, [batch, height * width, channels])
  return tf.gather(flat, places.ravel().astype(np.int32), axis=1)
