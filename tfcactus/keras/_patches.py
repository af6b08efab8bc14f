"""The patches of a convolution: what its kernel is multiplied with."""

from __future__ import annotations

from typing import List
from typing import NamedTuple
from typing import Sequence
from typing import Tuple

import numpy as np
import tensorflow as tf

_IDENTITY_MAX_DEPTH = 64
"""Up to this patch length a convolution with the identity cuts patches faster
than slices do, though it multiplies by zeros."""


class Window(NamedTuple):
  """One spatial axis of a convolution.

  Attributes:
    kernel: Length of the kernel.
    stride: Step between windows.
    dilation: Step between the kernel's taps.
    before: Zeros padded before the axis.
    size: Number of windows.
  """

  kernel: int
  stride: int
  dilation: int
  before: int
  size: int


def window(padding: str, length: int, size: int, kernel: int, stride: int,
           dilation: int) -> Window:
  """Returns the window of an axis of `length` with `size` outputs.

  Args:
    padding: 'valid', 'same' or 'causal', as Keras has it.
    length: Of the input axis.
    size: Of the output axis.
    kernel: Length of the kernel.
    stride: Step between windows.
    dilation: Step between taps.
  """
  span = dilation * (kernel - 1) + 1
  if padding == 'causal':
    before = span - 1
  elif padding == 'same':
    before = max((size - 1) * stride + span - length, 0) // 2
  else:
    before = 0
  return Window(kernel, stride, dilation, before, size)


def _padded(images: tf.Tensor, windows: Sequence[Window]) -> tf.Tensor:
  """Pads and cuts, so that windows start at 0 and whole strides remain."""
  padding, sizes = [[0, 0]], []
  for length, w in zip(images.shape[1:3], windows):
    needed = (w.size - 1) * w.stride + w.dilation * (w.kernel - 1) + 1
    needed = -(-needed // w.stride) * w.stride
    padding.append([w.before, max(needed - w.before - length, 0)])
    sizes.append(needed)
  padded = tf.pad(images, padding + [[0, 0]])
  return padded[:, :sizes[0], :sizes[1]]


def taps(images: tf.Tensor, windows: Sequence[Window]) -> List[tf.Tensor]:
  """One slice for each tap of the kernel, in row-major order.

  Args:
    images: Shape (batch, height, width, channels).
    windows: Of height and of width.

  Returns:
    Tensors of shape (batch, positions, channels).
  """
  images = _padded(images, windows)
  (rows, columns) = windows
  ends = [(w.size - 1) * w.stride + 1 for w in windows]
  out = []
  for i in range(0, rows.kernel * rows.dilation, rows.dilation):
    for j in range(0, columns.kernel * columns.dilation, columns.dilation):
      part = images[:, i:i + ends[0]:rows.stride, j:j + ends[1]:columns.stride]
      out.append(tf.reshape(
          part, [images.shape[0], rows.size * columns.size, images.shape[3]]))
  return out


def patches(images: tf.Tensor, windows: Sequence[Window]
           ) -> Tuple[tf.Tensor, np.ndarray]:
  """Cuts the patches of all windows.

  Args:
    images: Shape (batch, height, width, channels).
    windows: Of height and of width.

  Returns:
    Patches of shape (batch, positions, depth), and for each row of the
    flattened kernel the place in the depth that it multiplies.
  """
  rows, columns = windows
  channels = images.shape[3]
  depth = rows.kernel * columns.kernel * channels
  order = np.arange(depth)
  positions = rows.size * columns.size
  if depth == channels and rows.stride == columns.stride == 1:
    return tf.reshape(images, [images.shape[0], positions, depth]), order
  if depth <= _IDENTITY_MAX_DEPTH and max(rows.dilation, columns.dilation) == 1:
    eye = tf.reshape(tf.eye(depth, dtype=images.dtype),
                     [rows.kernel, columns.kernel, channels, depth])
    cut = tf.nn.conv2d(_padded(images, windows), eye,
                       [rows.stride, columns.stride], 'VALID')
    cut = cut[:, :rows.size, :columns.size]
    return tf.reshape(cut, [images.shape[0], positions, depth]), order
  if max(rows.dilation, columns.dilation) == 1:
    return _by_blocks(_padded(images, windows), windows)
  return tf.concat(taps(images, windows), -1), order


def _by_blocks(images: tf.Tensor, windows: Sequence[Window]
              ) -> Tuple[tf.Tensor, np.ndarray]:
  """Patches by whole strides: few slices with long contiguous rows."""
  rows, columns = windows
  batch, height, width, channels = images.shape
  tall, wide = height // rows.stride, width // columns.stride
  phases = tf.reshape(images, [batch, tall, rows.stride, wide, columns.stride,
                               channels])
  phases = tf.transpose(phases, [0, 1, 3, 2, 4, 5])
  index = np.arange(rows.kernel * columns.kernel * channels).reshape(
      rows.kernel, columns.kernel, channels)
  cut, taken = [], []
  for i in range(0, rows.kernel, rows.stride):
    for j in range(0, columns.kernel, columns.stride):
      down = min(rows.stride, rows.kernel - i)
      right = min(columns.stride, columns.kernel - j)
      top, left = i // rows.stride, j // columns.stride
      block = phases[:, top:top + rows.size, left:left + columns.size,
                     :down, :right]
      cut.append(tf.reshape(block, [batch, rows.size * columns.size,
                                    down * right * channels]))
      taken.append(index[i:i + down, j:j + right].ravel())
  return tf.concat(cut, -1), np.argsort(np.concatenate(taken))
