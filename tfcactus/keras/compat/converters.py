"""How `tf.vectorized_map` vectorises operations: TensorFlow's way, or another."""

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

from tfcactus.keras.compat import patches


def _convert_matmul(original: Any, value: Any, pfor_input: Any) -> Any:
  """Vectorises a matrix product so that its kernel need not broadcast.

  TensorFlow 2.16 to 2.21 with oneDNN write past the end of memory when a
  product broadcasts (8, 1, 5, 4) with (4, 3), which is what a product of one
  example and weights becomes.
  """
  del original, value
  pfor_input.expanddim_inputs_for_broadcast()
  x, y = pfor_input.input(0)[0], pfor_input.input(1)[0]
  batch = tf.broadcast_dynamic_shape(tf.shape(x)[:-2], tf.shape(y)[:-2])
  x, y = (tf.broadcast_to(factor, tf.concat([batch, tf.shape(factor)[-2:]], 0))
          for factor in (x, y))
  return wrap(tf.matmul(
      x, y, adjoint_a=pfor_input.get_attr('adj_x'),
      adjoint_b=pfor_input.get_attr('adj_y')), True)


def _convert_draw(draw: Callable[..., tf.Tensor], original: Any, value: Any,
                  pfor_input: Any) -> Any:
  """Draws for all rows at once by the seed of the first.

  All seeds are fresh, so that rows are independent either way; TensorFlow would
  go through them one by one.
  """
  del value
  inputs = [pfor_input.input(i) for i in range(pfor_input.num_inputs)]
  only_seed = [each.is_stacked for each in inputs] == (
      [i == 1 for i in range(len(inputs))])
  if patches.DRAW not in pfor_input.op.name or not only_seed:
    return original(pfor_input)
  shape, seed, *bounds = (each.t for each in inputs)
  rows = tf.cast(pfor_input.pfor.loop_len_vector, shape.dtype)
  kwargs = {} if bounds else {'dtype': pfor_input.get_attr('dtype')}
  return wrap(draw(tf.concat([rows, shape], 0), seed[0], *bounds, **kwargs), True)


_converters = patches.LibraryPatch([
    patches.Place(_pfor_converter_registry, 'BatchMatMulV2', _convert_matmul),
    *(patches.Place(
        _pfor_converter_registry, name, functools.partial(_convert_draw, draw))
      for name, draw in (
          ('StatelessRandomUniform', stateless.stateless_random_uniform),
          ('StatelessRandomUniformInt', stateless.stateless_random_uniform_int),
          ('StatelessRandomNormal', stateless.stateless_random_normal),
          ('StatelessTruncatedNormal', stateless.stateless_truncated_normal)))])
"""How `tf.vectorized_map` vectorises operations that it gets wrong, or slow."""


@contextlib.contextmanager
def vectorizing() -> Iterator[None]:
  """Has `tf.vectorized_map` inside be sound, fast in draws, and quiet.

  It notes as if it were an error, which it is not, that it uses a loop.
  """
  logger, thread = tf.get_logger(), threading.get_ident()

  def keep(record: logging.LogRecord) -> bool:
    return record.thread != thread or 'uses a while_loop' not in record.getMessage()

  logger.addFilter(keep)
  try:
    with _converters.inside(True):
      yield
  finally:
    logger.removeFilter(keep)
