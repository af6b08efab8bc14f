"""Clipped sums of per-example gradients that are held a few examples at a time.

Norms and sums are computed from the same float64 numbers: the error of a float32 sum
grows with the number of terms, beyond the clipping margin. `by_tape` and `by_graph`
need no rule for any operation: each example takes a backward pass through the whole
batch. Keras 2 gives its optimizers the tape, Keras 3 the losses, whose graph is then
differentiated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import tensorflow as tf

from tfcactus.keras.compat import converters, graphs
from tfcactus.keras.gradients import clipping

ROWS = 16
"""Number of backward passes that run at once. This many keep the cores busy; each takes
memory for the activations of a batch."""

Sums = tuple[list[tf.Tensor], tf.Tensor]
"""float64 sums, one for each variable; and whether all gradients were finite."""


def of_tile(rows: Sequence[tf.Tensor], var_list: Sequence[tf.Variable],
            l2_norm_clip: tf.Tensor) -> Sums:
  """Returns sums of clipped gradients of a few examples, and whether all were finite.

  `rows` has the gradients for each variable, shape (examples, *variable.shape). Each
  example's gradient is clipped in norm over all variables together.
  """
  clipping.check_dtypes(rows)
  rows = [tf.cast(tf.ensure_shape(each, [*each.shape[:1], *var.shape]), tf.float64)
          for each, var in zip(rows, var_list)]
  finite = [tf.reduce_all(tf.math.is_finite(each)) for each in rows]
  return clipping.clipped_sums(rows, l2_norm_clip), tf.reduce_all(tf.stack(finite))


def of_tiles(tile: Callable[[tf.Tensor], list[tf.Tensor]], size: int, batch: tf.Tensor,
             var_list: Sequence[tf.Variable], l2_norm_clip: tf.Tensor) -> Sums:
  """Returns sums of clipped gradients over a batch, and whether all were finite.

  Holds gradients of `size` examples at a time, in a loop; must be called in a graph.
  `tile` maps the index of an example to the per-example gradients of that example and
  the `size` - 1 after it, zeros past the batch. `batch` is the number of examples.
  """
  def body(start: tf.Tensor, sums: list[tf.Tensor], finite: tf.Tensor) -> Any:
    """Adds the tile of the `size` examples from `start` on."""
    more, more_finite = of_tile(tile(start), var_list, l2_norm_clip)
    return (start + size, [a + b for a, b in zip(sums, more)],
            tf.logical_and(finite, more_finite))

  sums, finite = of_none(var_list)
  _, sums, finite = tf.while_loop(
      lambda start, *_: start < batch, body, (0, sums, finite), parallel_iterations=1)
  return sums, finite


def of_none(var_list: Sequence[tf.Variable]) -> Sums:
  """Returns the sums over no examples: zeros, and True."""
  return [tf.zeros(var.shape, tf.float64) for var in var_list], tf.constant(True)


def by_tape(losses: tf.Tensor, var_list: Sequence[tf.Variable],
            tape: tf.GradientTape, l2_norm_clip: tf.Tensor) -> Sums:
  """Returns `of_tile` of the gradients of losses (batch,), from the losses' tape."""
  # tape.jacobian(parallel_iterations=...) is no alternative: from a tape that is not
  # persistent, such as Keras', it silently returns zeros for all but the first tile.

  def gradients(upstream: tf.Tensor) -> list[tf.Tensor]:
    """Returns the gradient with respect to each variable, for upstream weights."""
    return [tf.convert_to_tensor(each) for each in tape.gradient(
        losses, var_list, upstream,
        unconnected_gradients=tf.UnconnectedGradients.ZERO)]

  return _of_rows(gradients, losses, var_list, l2_norm_clip)


def by_graph(losses: tf.Tensor, var_list: Sequence[tf.Variable],
             l2_norm_clip: tf.Tensor) -> Sums:
  """Returns `of_tile` of the gradients of losses (batch,), from the losses' graph."""
  graph = losses.graph  # Not the current graph if this runs in a branch.
  handles = [graph.capture(var.handle) for var in var_list]

  def gradients(upstream: tf.Tensor) -> list[tf.Tensor]:
    """Returns the gradient with respect to each variable, for upstream weights."""
    found = graphs.gradients(graph, losses, handles, upstream)
    return [tf.zeros(var.shape, var.dtype) if each is None else
            tf.ensure_shape(tf.convert_to_tensor(each), var.shape)
            for each, var in zip(found, var_list)]

  return _of_rows(gradients, losses, var_list, l2_norm_clip)


def _of_rows(gradients: Callable[[tf.Tensor], list[tf.Tensor]], losses: tf.Tensor,
             var_list: Sequence[tf.Variable], l2_norm_clip: tf.Tensor) -> Sums:
  """Returns sums of clipped gradients, `ROWS` examples at a time; eagerly all at once.

  `gradients` maps upstream weights (batch,) of the losses to gradients.
  """
  batch = tf.shape(losses)[0]

  def rows(indices: tf.Tensor) -> list[tf.Tensor]:
    """Returns the gradients of several examples, shape (examples, *variable.shape)."""
    # Past the batch, upstream weights are zeros, and so are gradients.
    return converters.vectorized_map(lambda index: gradients(
        tf.one_hot(index, batch, dtype=losses.dtype)), indices)

  if tf.executing_eagerly():
    # One tile: the tape may give gradients only once. An empty batch has one row of
    # zeros, since a tile may not be empty.
    return of_tile(rows(tf.range(tf.maximum(batch, 1))), var_list, l2_norm_clip)
  return of_tiles(lambda start: rows(start + tf.range(ROWS)), ROWS, batch, var_list,
                  l2_norm_clip)
