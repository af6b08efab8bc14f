"""Clipped sums of per-example gradients from a gradient tape.

Keras 2 gives its optimizers the tape; Keras 3 does not: see `graph_gradients`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

import tensorflow as tf

from tfcactus.keras.compat import converters
from tfcactus.keras.drop_in import tiled_sums

ROWS = 16
"""Backward passes at once: enough to keep the cores busy, with memory for this many
batches of activations instead of batch-size many."""


def clipped_sums(losses: tf.Tensor, var_list: Sequence[tf.Variable],
                 tape: tf.GradientTape, l2_norm_clip: tf.Tensor
                ) -> tuple[list[tf.Tensor], tf.Tensor]:
  """Returns sums of clipped gradients of each loss, and whether all were finite.

  `losses` has shape (batch,); the bound is on the norm over all variables together.
  tape.jacobian(parallel_iterations=...) is no alternative: from a tape that is not
  persistent, such as Keras', it silently returns zeros for all but the first tile.
  """
  batch = tf.shape(losses)[0]

  def row(index: tf.Tensor) -> list[tf.Tensor]:
    # Past the batch, upstream weights are zeros, and so are gradients.
    picked = tape.gradient(
        losses, var_list, tf.one_hot(index, batch, dtype=losses.dtype),
        unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return [tf.convert_to_tensor(each) for each in picked]

  return sums_of_rows(row, batch, var_list, l2_norm_clip)


def sums_of_rows(row: Callable[[tf.Tensor], list[tf.Tensor]], batch: tf.Tensor,
                 var_list: Sequence[tf.Variable], l2_norm_clip: tf.Tensor
                ) -> tuple[list[tf.Tensor], tf.Tensor]:
  """Returns sums of clipped gradients and whether all were finite, by tiles of `ROWS`.

  `row` maps the index of an example to its gradients, which are zeros past the batch.
  """
  def rows(indices: tf.Tensor) -> list[tf.Tensor]:
    return converters.vectorized_map(row, indices)

  if tf.executing_eagerly():
    # One tile: the tape may give gradients only once.
    return tiled_sums.of_tile(
        rows(tf.range(tf.maximum(batch, 1))), var_list, l2_norm_clip)
  return tiled_sums.of_tiles(lambda start: rows(start + tf.range(ROWS)), ROWS, batch,
                             var_list, l2_norm_clip)
