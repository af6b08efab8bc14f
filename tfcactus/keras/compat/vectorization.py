"""Runs a function of one example on each row of a batch, vectorised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import threading
from typing import Any, Callable

import tensorflow as tf

from tfcactus.keras.compat import converters, graphs

_standing_in = threading.local()
"""The list of graphs of `standing_in`, per thread."""


@contextlib.contextmanager
def standing_in() -> Iterator[list[tf.Graph]]:
  """Makes `over_rows` return stand-ins for its results, for the analysis of a trace.

  A stand-in is made of other numbers that depend on the same tensors as the result. An
  analysis cannot follow vectorised code, but follows stand-ins. Yields a list to which
  `over_rows` adds the graph, without gradients, of each function so replaced.
  """
  _standing_in.graphs = []
  try:
    yield _standing_in.graphs
  finally:
    _standing_in.graphs = None


def is_standing_in() -> bool:
  """Returns whether `over_rows` returns stand-ins in this thread."""
  return getattr(_standing_in, 'graphs', None) is not None


FAILURES = (NotImplementedError, TypeError, ValueError)
"""Exceptions that `over_rows` raises for a function that it cannot vectorise, or passes
on from the function."""


def own_words(error: BaseException) -> str:
  """Returns the message of this library's ValueError, `error` or behind it, or ''."""
  cause: BaseException | None = error
  while cause is not None:  # Keras wraps errors in others.
    if isinstance(cause, ValueError) and str(cause).startswith('Expected'):
      return str(cause)
    cause = cause.__context__
  return ''


def over_rows(function: Callable[[Any], Any], rows: Any) -> Any:
  """Runs a function on each row, vectorised.

  Tensors in `rows` and in the result have shape (rows, ...). No row can depend on
  another, because the function is traced on one row. Inside `standing_in`, each number
  of the result is replaced by one that depends on all of its own row.
  """
  plain = graphs.without_autograph(lambda row: function(row))
  if not is_standing_in():
    return converters.vectorized_map(plain, rows)
  flat = tf.nest.flatten(rows)
  specs = tf.nest.map_structure(
      lambda each: tf.TensorSpec(each.shape[1:], each.dtype), rows)
  traced = tf.function(plain).get_concrete_function(specs)
  _standing_in.graphs.append(traced.graph)
  sums = _with_captures(traced.graph.captures, tf.add_n([
      tf.reduce_sum(tf.cast(each, tf.float32), list(range(1, each.shape.rank)))
      for each in flat]))

  def like(spec: tf.TensorSpec) -> tf.Tensor:
    """Returns a stand-in: each row depends on all of its own row of `rows`."""
    shape = [flat[0].shape[0]] + [1] * spec.shape.rank
    values = tf.broadcast_to(tf.reshape(sums, shape), shape[:1] + spec.shape)
    return tf.cast(values, spec.dtype)

  return tf.nest.map_structure(like, traced.structured_outputs)


def _with_captures(captures: Sequence[tuple[tf.Tensor, tf.Tensor]],
                   sums: tf.Tensor) -> tf.Tensor:
  """Returns `sums`, (rows,), made to depend on all captured tensors.

  So the proof sees that a captured tensor reaches every row; the numbers do not matter.
  `captures` are pairs (tensor outside, placeholder). Raises ValueError for a captured
  list of tensors.
  """
  resources = []
  for outside, _ in captures:
    eager = isinstance(outside, tf.__internal__.EagerTensor)
    if outside.dtype == tf.resource:
      resources.append(outside)
    elif outside.dtype == tf.variant and not eager:
      raise ValueError(
          'Expected layers that take what they compute with as inputs, got one '
          f'that reaches for a list of tensors of the whole batch, {outside}; '
          "use privatize(..., engine='vectorized').")
    elif not eager:
      # The tensor may hold the whole batch: make each sum depend on all of it.
      plain = tf.strings.length(outside) if outside.dtype == tf.string else outside
      sums += tf.reduce_sum(tf.cast(plain, tf.float32))
  # A resource cannot be added. A call that takes it makes the sums depend on it.
  return tf.function(lambda sums, *reached: tf.identity(sums), autograph=False)(
      sums, *resources) if resources else sums
