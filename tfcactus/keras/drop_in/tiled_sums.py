"""Clipped sums of gradients that are held a few examples at a time."""

from __future__ import annotations

from typing import Any
from typing import Callable
from typing import List
from typing import Sequence
from typing import Tuple

import tensorflow as tf

from tfcactus.keras.gradients import clipping

Sums = Tuple[List[tf.Tensor], tf.Tensor]
"""One for each variable, and whether all gradients in them were finite."""


def of_tile(rows: Sequence[tf.Tensor], var_list: Sequence[tf.Variable],
            l2_norm_clip: tf.Tensor) -> Sums:
  """Sums of clipped rows, and whether all were finite.

  Args:
    rows: For each variable, a row for each of some examples.
    var_list: Variables.
    l2_norm_clip: The bound on the norm over all variables together.
  """
  rows = [tf.ensure_shape(each, [*each.shape[:1], *var.shape])
          for each, var in zip(rows, var_list)]
  finite = [tf.reduce_all(tf.math.is_finite(each)) for each in rows]
  return (clipping.clipped_sums(rows, l2_norm_clip),
          tf.reduce_all(tf.stack(finite)))


def of_tiles(tile: Callable[[tf.Tensor], List[tf.Tensor]], size: int, batch: tf.Tensor,
             var_list: Sequence[tf.Variable], l2_norm_clip: tf.Tensor
            ) -> Sums:
  """The same of all tiles of a batch, in a graph.

  Args:
    tile: The rows of the examples from a start on, zeros past the batch.
    size: How many rows a tile has.
    batch: How many examples there are.
    var_list: Variables.
    l2_norm_clip: The bound on the norm over all variables together.
  """
  def body(start: tf.Tensor, sums: List[tf.Tensor], finite: tf.Tensor) -> Any:
    more, fine = of_tile(tile(start), var_list, l2_norm_clip)
    return (start + size, [a + b for a, b in zip(sums, more)],
            tf.logical_and(finite, fine))

  zeros = [tf.zeros(var.shape, var.dtype) for var in var_list]
  _, sums, finite = tf.while_loop(
      lambda start, *_: start < batch, body,
      (0, zeros, tf.constant(True)), parallel_iterations=1)
  return sums, finite
