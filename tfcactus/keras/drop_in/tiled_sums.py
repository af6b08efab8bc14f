"""Clipped sums of per-example gradients that are held a few examples at a time.

Norms and sums are taken of the same float64 numbers: a float32 sum would round by more
than the clipping margin allows, and by more the longer it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import tensorflow as tf

from tfcactus.keras.gradients import clipping

Sums = tuple[list[tf.Tensor], tf.Tensor]
"""float64 sums, one for each variable; and whether all summed gradients were finite."""


def of_tile(rows: Sequence[tf.Tensor], var_list: Sequence[tf.Variable],
            l2_norm_clip: tf.Tensor) -> Sums:
  """Returns clipped sums of some examples, and whether all gradients were finite.

  `rows` has a tensor of shape (examples, *variable.shape) for each variable. The bound
  is on the norm over all variables together.
  """
  clipping.check_dtypes(rows)
  rows = [tf.cast(tf.ensure_shape(each, [*each.shape[:1], *var.shape]), tf.float64)
          for each, var in zip(rows, var_list)]
  finite = [tf.reduce_all(tf.math.is_finite(each)) for each in rows]
  return (clipping.clipped_sums(rows, l2_norm_clip),
          tf.reduce_all(tf.stack(finite)))


def of_tiles(tile: Callable[[tf.Tensor], list[tf.Tensor]], size: int, batch: tf.Tensor,
             var_list: Sequence[tf.Variable], l2_norm_clip: tf.Tensor
            ) -> Sums:
  """Returns clipped sums over all tiles of a batch, in a graph; see `of_tile`.

  `tile` maps the index of an example to the gradients of `size` examples from there on,
  zeros past the batch.
  """
  def body(start: tf.Tensor, sums: list[tf.Tensor], finite: tf.Tensor) -> Any:
    more, fine = of_tile(tile(start), var_list, l2_norm_clip)
    return (start + size, [a + b for a, b in zip(sums, more)],
            tf.logical_and(finite, fine))

  sums, finite = of_none(var_list)
  _, sums, finite = tf.while_loop(
      lambda start, *_: start < batch, body, (0, sums, finite), parallel_iterations=1)
  return sums, finite


def of_none(var_list: Sequence[tf.Variable]) -> Sums:
  """Returns the sums over no examples."""
  return [tf.zeros(var.shape, tf.float64) for var in var_list], tf.constant(True)
