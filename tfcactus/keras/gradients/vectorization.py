"""Vectorising over examples: soundly, and without false alarms."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from typing import Any
from typing import Callable
from typing import Iterator

import tensorflow as tf
from tensorflow.python.ops import gen_stateless_random_ops as stateless
from tensorflow.python.ops.parallel_for.pfor import _pfor_converter_registry
from tensorflow.python.ops.parallel_for.pfor import wrap

from tfcactus.keras.gradients import example_seeds


@contextlib.contextmanager
def quiet_vectorization() -> Iterator[None]:
  """Vectorises soundly, without a note that sounds like an error and is none."""
  logger = tf.get_logger()

  def keep(record: logging.LogRecord) -> bool:
    return 'uses a while_loop' not in record.getMessage()

  logger.addFilter(keep)
  try:
    with _sound_matmuls(), _row_draws():
      yield
  finally:
    logger.removeFilter(keep)


_standing_in = threading.local()


@contextlib.contextmanager
def standing_in() -> Iterator[None]:
  """Has `over_rows` trace something of the same dependences for a while."""
  _standing_in.on = True
  try:
    yield
  finally:
    _standing_in.on = False


def is_standing_in() -> bool:
  """Whether `over_rows` only stands in."""
  return getattr(_standing_in, 'on', False)


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
  if not is_standing_in():
    return tf.vectorized_map(function, rows, warn=False)
  flat = tf.nest.flatten(rows)
  specs = tf.nest.map_structure(
      lambda part: tf.TensorSpec(part.shape[1:], part.dtype), rows)
  made = tf.function(function).get_concrete_function(specs).structured_outputs
  number = tf.add_n([
      tf.reduce_sum(tf.cast(part, tf.float32), list(range(1, part.shape.rank)))
      for part in flat])

  def like(part: tf.TensorSpec) -> tf.Tensor:
    shape = [flat[0].shape[0]] + [1] * part.shape.rank
    values = tf.broadcast_to(tf.reshape(number, shape), shape[:1] + part.shape)
    return tf.cast(values, part.dtype)

  return tf.nest.map_structure(like, made)


def _convert_matmul(pfor_input: Any) -> Any:
  """Vectorises a matrix product so that its kernel need not broadcast."""
  pfor_input.expanddim_inputs_for_broadcast()
  x, y = pfor_input.input(0)[0], pfor_input.input(1)[0]
  batch = tf.broadcast_dynamic_shape(tf.shape(x)[:-2], tf.shape(y)[:-2])
  x, y = (tf.broadcast_to(part, tf.concat([batch, tf.shape(part)[-2:]], 0))
          for part in (x, y))
  return wrap(tf.matmul(
      x, y, adjoint_a=pfor_input.get_attr('adj_x'),
      adjoint_b=pfor_input.get_attr('adj_y')), True)


@contextlib.contextmanager
def _sound_matmuls() -> Iterator[None]:
  """Has matrix products inside be vectorised without broadcasting.

  TensorFlow 2.16 to 2.21 with oneDNN write past the end of memory when a
  product broadcasts (8, 1, 5, 4) with (4, 3), which is what a product of one
  example and weights becomes.
  """
  converters = _pfor_converter_registry
  kept = converters['BatchMatMulV2']
  converters['BatchMatMulV2'] = _convert_matmul
  try:
    yield
  finally:
    converters['BatchMatMulV2'] = kept


_DRAWS = {
    'StatelessRandomUniform': stateless.stateless_random_uniform,
    'StatelessRandomUniformInt': stateless.stateless_random_uniform_int,
    'StatelessRandomNormal': stateless.stateless_random_normal,
    'StatelessTruncatedNormal': stateless.stateless_truncated_normal}


def _convert_draw(kept: Any, pfor_input: Any) -> Any:
  """Draws for all rows at once by the seed of the first.

  All seeds are fresh, so that rows are independent either way; TensorFlow would
  go through them one by one.
  """
  inputs = [pfor_input.input(i) for i in range(pfor_input.num_inputs)]
  only_seed = [part.is_stacked for part in inputs] == (
      [i == 1 for i in range(len(inputs))])
  if example_seeds.DRAW not in pfor_input.op.name or not only_seed:
    return kept(pfor_input)
  shape, seed, *bounds = (part.t for part in inputs)
  rows = tf.cast(pfor_input.pfor.loop_len_vector, shape.dtype)
  kwargs = {} if bounds else {'dtype': pfor_input.get_attr('dtype')}
  return wrap(_DRAWS[pfor_input.op_type](
      tf.concat([rows, shape], 0), seed[0], *bounds, **kwargs), True)


@contextlib.contextmanager
def _row_draws() -> Iterator[None]:
  """Has draws of `example_seeds.drawing` inside be vectorised."""
  converters = _pfor_converter_registry
  kept = {name: converters[name] for name in _DRAWS}
  for name, converter in kept.items():
    converters[name] = functools.partial(_convert_draw, converter)
  try:
    yield
  finally:
    converters.update(kept)
