"""Per-example gradients from the operations that read variables, in a traced graph.

One backward pass gives the gradient of the sum of all losses with respect to the output
of each such operation. If the graph is proved to treat each example separately, a row
of that gradient depends on one loss only. Rules of `gradients.operations` then compute
gradients of the variables for a few examples at a time. If a proof or rule is missing,
each example takes a backward pass through the whole batch instead.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Callable
import warnings

import tensorflow as tf

from tfcactus.keras.compat import graphs
from tfcactus.keras.drop_in import clipped_sums as sums_lib, state
from tfcactus.keras.gradients.operations import (
  gradients as gradients_lib,
  uses as uses_lib,
)
from tfcactus.keras.independence import dependence, graph_proof
from tfcactus.keras.independence.dependence import Dependence

_NUMBERS = 2**22
"""Limit of the numbers held at once, examples times weights: 34 MB in float64. One
example is held even if it has more."""

_MOST_ROWS = 64
"""Largest number of examples whose gradients are held at once."""


def clipped_sums(losses: state.Losses, var_list: Sequence[tf.Variable],
                 l2_norm_clip: tf.Tensor, otherwise: Callable[[], sums_lib.Sums],
                 tape: tf.GradientTape | None = None) -> sums_lib.Sums:
  """Returns the sums of clipped per-example gradients, and whether all were finite.

  The result is that of `otherwise`, which clips the gradients of microbatches, if a
  microbatch holds several examples; or, with a warning, if `differentiable` raises
  NoRule.
  """
  try:
    ruled = differentiable(losses.of_examples, var_list, tape)
  except uses_lib.NoRule as reason:
    warnings.warn(
        'Each example takes a backward pass through the whole batch, which is slow: '
        f'{reason}. tfcactus.keras.privatize is fast.', stacklevel=2)
    return otherwise()
  number = tf.shape(losses.of_examples)[0]
  with tf.control_dependencies([tf.debugging.assert_equal(
      tf.shape(tensor)[0], number, 'Expected tensors of a row for each loss.')
                                for tensor in _inputs_of(losses.of_examples)
                                if tensor.shape.rank]):
    number = tf.identity(number)
  rows = rows_at_once(var_list)

  def by_operations() -> sums_lib.Sums:
    """Returns the sums over a batch that may be empty."""
    # Some backward passes of TensorFlow end the process if a batch is empty.
    return tf.cond(number > 0, lambda: sums_lib.of_tiles(
        tiles(losses.of_examples, var_list, ruled, number, rows), rows, number,
        var_list, l2_norm_clip), lambda: sums_lib.of_none(var_list))

  if losses.of_microbatches is losses.of_examples:
    return by_operations()
  return tf.cond(tf.equal(number, tf.shape(losses.of_microbatches)[0]),
                 by_operations, otherwise)


def rows_at_once(var_list: Sequence[tf.Variable]) -> int:
  """Returns how many examples' gradients are held at once, from 1 to `_MOST_ROWS`."""
  weights = sum(math.prod(var.shape) for var in var_list)
  return max(1, min(_MOST_ROWS, _NUMBERS // max(weights, 1)))


def tiles(losses: tf.Tensor, var_list: Sequence[tf.Variable],
          ruled: Sequence[gradients_lib.Ruled], number: tf.Tensor, rows: int
         ) -> Callable[[tf.Tensor], list[tf.Tensor]]:
  """Returns a function that maps an example's index to gradients of some examples.

  The function returns a tensor for each variable, shape (rows, *variable.shape):
  gradients of that example and of the `rows` - 1 after it, zeros past the last.
  `ruled` is what `differentiable` returned for `losses`, of which there are `number`,
  at least one.
  """
  upstream = graphs.gradients(
      losses.graph, losses, [use.op.outputs[0] for use, _ in ruled])
  upstream = [None if each is None else tf.convert_to_tensor(each) for each in upstream]

  def tile(start: tf.Tensor) -> list[tf.Tensor]:
    """Returns the gradients of each variable, added up over its uses."""
    # Rows past the last example repeat it, and are then set to zero: not `inside`.
    indices = start + tf.range(rows)
    places = tf.minimum(indices, number - 1)
    inside = indices < number

    def rows_of(tensor: tf.Tensor, layout: uses_lib.Layout) -> tf.Tensor:
      """Returns a tensor's rows for the examples at `places`."""
      return tf.ensure_shape(tf.gather(layout.apart(tensor, number), places), [
          rows, *layout.shape(tensor)])

    found = gradients_lib.of_variables(
        ruled, upstream, rows_of, _handles(losses.graph, var_list),
        [var.dtype for var in var_list], [var.shape for var in var_list])
    return [tf.add_n([form.where(inside).dense() for index, form in found
                      if index == i] or [tf.zeros([rows, *var.shape], var.dtype)])
            for i, var in enumerate(var_list)]

  return tile


def differentiable(losses: tf.Tensor, var_list: Sequence[tf.Variable],
                   tape: tf.GradientTape | None = None
                  ) -> list[gradients_lib.Ruled]:
  """Returns the operations by which variables enter losses (batch,), and their rules.

  Raises NoRule if an operation has no rule, a given `tape` did not record it, a loss is
  not proved to depend on one example only, or there is no graph of known shapes.
  """
  if tf.executing_eagerly():
    raise uses_lib.NoRule('run_eagerly=True leaves no graph to look at')
  if losses.graph is not tf.compat.v1.get_default_graph():
    raise uses_lib.NoRule('the losses belong to another graph than the step')
  if any(None in tensor.shape[1:] for tensor in _inputs_of(losses)
         if tensor.shape.rank):
    raise uses_lib.NoRule(
        'the shapes of examples are not known, which Keras 2 forgets of a Sequence; '
        'pass fit(batches.dataset()) instead of fit(batches)')
  ruled = gradients_lib.with_rules(_uses(losses, var_list))
  if tape is not None and not _all_recorded(losses, var_list, tape):
    raise uses_lib.NoRule(
        'the tape did not record all operations that compute losses from variables, or '
        'another tape is recording too')
  return ruled


def _uses(losses: tf.Tensor, var_list: Sequence[tf.Variable]) -> list[uses_lib.Use]:
  """Returns the operations that use variables; NoRule if examples may mix."""
  graph = losses.graph
  for op in graph_proof.needed([losses], ()):
    if graphs.has_own_gradient(op) or op.type in graph_proof.CALLS:
      raise uses_lib.NoRule(
          f'{op.type} in {op.name!r} runs a function, or has a gradient of its own')
  # `clipped_sums` asserts that inputs, except scalars, have one row per loss.
  known = {}
  for tensor in _inputs_of(losses):
    if tensor.shape.rank is None:
      known[tensor.name] = dependence.Value(
          Dependence.UNKNOWN, why='a tensor of unknown rank')
    elif tensor.shape.rank == 0:
      known[tensor.name] = dependence.CONSTANT
    else:
      known[tensor.name] = dependence.ROW_WISE
  value, = graph_proof.analyse(graph, known, [losses])
  if value != dependence.ROW_WISE:
    why = value.why or 'losses that are not a row for each example'
    raise uses_lib.NoRule(
        f'losses are not shown to depend on one example each: {why}')
  return uses_lib.found(losses, _handles(graph, var_list),
                        [var.shape for var in var_list], known)


def _handles(graph: tf.Graph, var_list: Sequence[tf.Variable]) -> dict[str, int]:
  """Returns {name of a variable's handle in the graph: its index}."""
  return {graph.capture(var.handle).name: i for i, var in enumerate(var_list)}


def _all_recorded(losses: tf.Tensor, var_list: Sequence[tf.Variable],
                  tape: tf.GradientTape) -> bool:
  """Returns whether a stopped tape recorded all operations from variables to losses.

  Returns False while any tape is recording.
  """
  # Layers may have run while the tape did not record: their results are constants to
  # the tape, but not to the graph. The tape may give gradients only once: ask for none.
  if graphs.is_recording():  # Else `is_recorded` could be True for another tape only.
    return False
  dependent = {losses.graph.capture(var.handle).name for var in var_list}
  with tape:
    for op in graph_proof.needed([losses], ()):
      if not graphs.has_no_gradient(op) and any(
          tensor.name in dependent for tensor in op.inputs):
        outputs = [tensor for tensor in op.outputs
                   if graphs.is_differentiable(tensor.dtype)]
        if not all(map(graphs.is_recorded, outputs)):
          return False
        dependent.update(tensor.name for tensor in outputs)
  return True


def _inputs_of(losses: tf.Tensor) -> list[tf.Tensor]:
  """Returns the inputs of the graph from which losses are computed."""
  # Captured tensors are left out: they may depend on variables in the graph around.
  captured = {inside.name for _, inside in getattr(losses.graph, 'captures', ())}
  return [tensor for op in graph_proof.needed([losses], ())
          if op.type in ('IteratorGetNext', 'Placeholder') for tensor in op.outputs
          if tensor.name not in captured and (
              tensor.dtype not in (tf.resource, tf.variant))]
