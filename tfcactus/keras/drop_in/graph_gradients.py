"""Clipped sums of per-example gradients from the graph of a loss.

Keras 3 hands its optimizers the loss, and later the gradients and variables. So
the losses are remembered, and the graph that both are traced in is asked.
"""

from __future__ import annotations

from typing import Any
from typing import Callable
from typing import List
from typing import Sequence
from typing import Tuple

import tensorflow as tf

from tfcactus.keras.compat import converters
from tfcactus.keras.compat import graphs
from tfcactus.keras.drop_in import tape_gradients
from tfcactus.keras.gradients import clipping


def traced_sums(losses: tf.Tensor, var_list: Sequence[tf.Variable],
                l2_norm_clip: tf.Tensor) -> Tuple[List[tf.Tensor], tf.Tensor]:
  """As `tape_gradients.clipped_sums`, from the graph that losses are traced in.

  Norms first, a few examples at a time; then one backward pass in which each
  loss weighs its clipping factor. Where anything is computed in float16 or
  bfloat16 that pass would round the sum over the batch, by more than the clip
  norm if the batch is large: there each example's gradient is clipped and added
  in the dtype of its variable.

  Args:
    losses: Shape (batch,).
    var_list: Variables.
    l2_norm_clip: The bound on the norm over all variables together.
  """
  batch = tf.shape(losses)[0]
  graph = losses.graph  # This may run in a branch of it.
  gradients = _weighted_gradients(graph, losses, var_list)

  def row(index: tf.Tensor) -> List[tf.Tensor]:
    # Rows past the batch are zeros, and so are their gradients.
    return gradients(tf.one_hot(index, batch, dtype=losses.dtype))

  if _computes_in_half(graph):
    return tape_gradients.sums_of_rows(row, batch, var_list, l2_norm_clip)
  factors, usable = clipping.clip_factors(_squared_norms(row, batch), l2_norm_clip)
  sums = gradients(tf.cast(factors, losses.dtype))
  clipping.check_dtypes(sums)
  # A factor of zero does not take an example out: 0 * NaN = NaN.
  clean = tf.reduce_all(tf.stack([
      tf.reduce_all(tf.math.is_finite(each)) for each in sums]))
  return ([tf.where(clean, each, tf.zeros_like(each)) for each in sums],
          tf.logical_and(tf.reduce_all(usable), clean))


def _weighted_gradients(graph: tf.Graph, losses: tf.Tensor,
                        var_list: Sequence[tf.Variable]
                       ) -> Callable[[tf.Tensor], List[tf.Tensor]]:
  """weights of shape (batch,) -> gradients of the weighted sum of losses."""
  handles = [graph.capture(var.handle) for var in var_list]

  def gradients(weights: tf.Tensor) -> List[tf.Tensor]:
    found = graphs.gradients(graph, losses, handles, weights)
    return [tf.zeros(var.shape, var.dtype) if each is None else
            tf.ensure_shape(tf.convert_to_tensor(each), var.shape)
            for each, var in zip(found, var_list)]

  return gradients


def _squared_norms(row: Callable[[tf.Tensor], List[tf.Tensor]], batch: tf.Tensor
                  ) -> tf.Tensor:
  """Squared norms in float64 of all rows, a few of them at a time."""
  size = tape_gradients.ROWS

  def squared_norm(index: tf.Tensor) -> tf.Tensor:
    return tf.add_n([tf.reduce_sum(tf.square(tf.cast(each, tf.float64)))
                     for each in row(index)])

  def body(start: tf.Tensor, norms: tf.TensorArray) -> Any:
    with converters.vectorizing():
      more = tf.vectorized_map(squared_norm, start + tf.range(size), warn=False)
    return start + size, norms.write(start // size, more)

  norms = tf.TensorArray(
      tf.float64, (batch + size - 1) // size, element_shape=[size])
  _, norms = tf.while_loop(
      lambda start, _: start < batch, body, (0, norms), parallel_iterations=1)
  return tf.reshape(norms.stack(), [-1])[:batch]


def _computes_in_half(graph: tf.Graph) -> bool:
  """Whether any operation traced so far is of float16 or bfloat16."""
  half = {tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum}
  return any(
      value.type in half or half.intersection(value.list.type)
      for node in graphs.nodes(graph)
      for value in node.attr.values())
