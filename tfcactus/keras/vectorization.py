"""Functions of one example, run on each row of a batch by itself."""

from __future__ import annotations

import contextlib
import threading
from typing import Any
from typing import Callable
from typing import Iterator
from typing import List
from typing import Sequence
from typing import Tuple

import tensorflow as tf

from tfcactus.keras.compat import converters
from tfcactus.keras.compat import graphs

_standing_in = threading.local()


@contextlib.contextmanager
def standing_in() -> Iterator[List[tf.Graph]]:
  """Has `over_rows` trace something of the same dependences for a while.

  Yields:
    A list that grows with each function that is stood in for: its graph, without
    gradients.
  """
  _standing_in.graphs = []
  try:
    yield _standing_in.graphs
  finally:
    _standing_in.graphs = None


def is_standing_in() -> bool:
  """Whether `over_rows` only stands in."""
  return getattr(_standing_in, 'graphs', None) is not None


def over_rows(function: Callable[[Any], Any], rows: Any) -> Any:
  """Runs a function on each row by itself, vectorised.

  No row can depend on another, whatever the function does: it is traced on one.
  The vectorised operations do not show that. So, where a trace is only to be
  looked at, numbers stand in for them that depend on all of their own row.

  Args:
    function: Of one row.
    rows: A structure of tensors of shape (rows, ...).

  Returns:
    What the function returns, each tensor of shape (rows, ...).
  """
  as_written = graphs.as_written(lambda row: function(row))
  if not is_standing_in():
    return converters.vectorized_map(as_written, rows)
  flat = tf.nest.flatten(rows)
  specs = tf.nest.map_structure(
      lambda each: tf.TensorSpec(each.shape[1:], each.dtype), rows)
  made = tf.function(as_written).get_concrete_function(specs)
  _standing_in.graphs.append(made.graph)
  number = _with_captures(made.graph.captures, tf.add_n([
      tf.reduce_sum(tf.cast(each, tf.float32), list(range(1, each.shape.rank)))
      for each in flat]))

  def like(spec: tf.TensorSpec) -> tf.Tensor:
    shape = [flat[0].shape[0]] + [1] * spec.shape.rank
    values = tf.broadcast_to(tf.reshape(number, shape), shape[:1] + spec.shape)
    return tf.cast(values, spec.dtype)

  return tf.nest.map_structure(like, made.structured_outputs)


def _with_captures(captures: Sequence[Tuple[tf.Tensor, tf.Tensor]],
                   number: tf.Tensor) -> tf.Tensor:
  """The number again, depending on whatever else a function was made of."""
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
      # Of the whole batch, for all that is known.
      plain = tf.strings.length(outside) if outside.dtype == tf.string else outside
      number += tf.reduce_sum(tf.cast(plain, tf.float32))
  return tf.function(lambda number, *reached: tf.identity(number), autograph=False)(
      number, *resources) if resources else number
