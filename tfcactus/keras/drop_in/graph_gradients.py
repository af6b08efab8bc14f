"""Clipped sums of per-example gradients from the graph of a loss.

Keras 3 gives its optimizers the loss first, gradients and variables later. So the
losses are kept, and the graph in which they were traced is differentiated.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfcactus.keras.compat import graphs
from tfcactus.keras.drop_in import tape_gradients, tiled_sums


def traced_sums(losses: tf.Tensor, var_list: Sequence[tf.Variable],
                l2_norm_clip: tf.Tensor) -> tiled_sums.Sums:
  """Returns sums of clipped gradients of each loss, and whether all were finite.

  `losses` has shape (batch,). The bound is on the norm over all variables together.
  """
  batch = tf.shape(losses)[0]
  graph = losses.graph  # A branch, where this may run, is another graph.
  handles = [graph.capture(var.handle) for var in var_list]

  def row(index: tf.Tensor) -> list[tf.Tensor]:
    # Past the batch, upstream weights are zeros, and so are gradients.
    found = graphs.gradients(graph, losses, handles,
                             tf.one_hot(index, batch, dtype=losses.dtype))
    return [tf.zeros(var.shape, var.dtype) if each is None else
            tf.ensure_shape(tf.convert_to_tensor(each), var.shape)
            for each, var in zip(found, var_list)]

  return tape_gradients.sums_of_rows(row, batch, var_list, l2_norm_clip)
