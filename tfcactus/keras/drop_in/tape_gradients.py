"""Clipped sums of per-example gradients from a tape.

Keras 2 hands its optimizers the tape, so that each example's gradient can be
asked of it, clipped and summed. Keras 3 does not: see `graph_gradients`.
"""

from __future__ import annotations

from typing import Callable
from typing import List
from typing import Sequence
from typing import Tuple

import tensorflow as tf

from tfcactus.keras.compat import converters
from tfcactus.keras.drop_in import tiled_sums

ROWS = 16
"""Backward passes at once: enough to keep the cores busy, while memory stays
at this many batches of activations instead of batch-size many."""


def clipped_sums(losses: tf.Tensor, var_list: Sequence[tf.Variable],
                 tape: tf.GradientTape, l2_norm_clip: tf.Tensor
                ) -> Tuple[List[tf.Tensor], tf.Tensor]:
  """Sums of clipped gradients of each loss, and whether all were finite.

  Not by tape.jacobian(parallel_iterations=...): a tape that is not persistent,
  as Keras' are, gives it zeros for all but the first tile, silently.

  Args:
    losses: Shape (batch,).
    var_list: Variables.
    tape: Recorded the losses.
    l2_norm_clip: The bound on the norm over all variables together.
  """
  batch = tf.shape(losses)[0]

  def row(index: tf.Tensor) -> List[tf.Tensor]:
    # Rows past the batch are zeros, and so are their gradients.
    picked = tape.gradient(
        losses, var_list, tf.one_hot(index, batch, dtype=losses.dtype),
        unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return [tf.convert_to_tensor(each) for each in picked]

  return sums_of_rows(row, batch, var_list, l2_norm_clip)


def sums_of_rows(row: Callable[[tf.Tensor], List[tf.Tensor]], batch: tf.Tensor,
                 var_list: Sequence[tf.Variable], l2_norm_clip: tf.Tensor
                ) -> Tuple[List[tf.Tensor], tf.Tensor]:
  """As `clipped_sums`, of gradients that are held a few examples at a time.

  Args:
    row: The gradients of the example of an index, zeros past the batch.
    batch: How many examples there are.
    var_list: Variables.
    l2_norm_clip: The bound on the norm over all variables together.
  """
  def rows(indices: tf.Tensor) -> List[tf.Tensor]:
    return converters.vectorized_map(row, indices)

  if tf.executing_eagerly():
    # A second tile would ask the tape again.
    return tiled_sums.of_tile(
        rows(tf.range(tf.maximum(batch, 1))), var_list, l2_norm_clip)
  return tiled_sums.of_tiles(lambda start: rows(start + tf.range(ROWS)), ROWS, batch,
                             var_list, l2_norm_clip)
