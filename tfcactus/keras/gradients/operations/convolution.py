"""Kernel gradients of convolutions: image patches times output gradients.

Inputs and output gradients are (batch, ..., channels). Transposed convolutions exchange
both.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfcactus.keras.gradients.operations import im2col


def is_dense(windows: Sequence[im2col.Window], groups: int) -> bool:
  """Returns whether an image has a single window: a dense layer of its numbers."""
  return len(windows) == 2 and groups == 1 and all(w.size == 1 for w in windows)


def kernel_gradients(images: tf.Tensor, outputs: tf.Tensor,
                     windows: Sequence[im2col.Window], groups: int = 1) -> tf.Tensor:
  """Returns per-example kernel gradients: output gradients times patches of images.

  The products are summed over positions. `images` is (batch, ..., channels) with two or
  three spatial axes; `outputs`, the output gradients, is (batch, ..., filters) with one
  position per window. Filters see the channels of their own group. The result is
  (batch, filters, depth); depth runs over all axes of the kernel but the last, in
  row-major order.
  """
  batch, filters = outputs.shape[0], outputs.shape[-1]
  images, outputs = _apart(images, groups), _apart(outputs, groups)
  cut = [im2col.patches(images, windows)] if len(windows) == 2 else (
      im2col.volume_patches(images, windows))
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
