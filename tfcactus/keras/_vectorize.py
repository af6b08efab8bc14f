"""Vectorising over examples: soundly, and without false alarms."""

from __future__ import annotations

import contextlib
import logging
from typing import Any
from typing import Iterator

import tensorflow as tf
from tensorflow.python.ops.parallel_for.pfor import _pfor_converter_registry
from tensorflow.python.ops.parallel_for.pfor import wrap


@contextlib.contextmanager
def quiet_vectorization() -> Iterator[None]:
  """Vectorises soundly, without a note that sounds like an error and is none."""
  logger = tf.get_logger()

  def keep(record: logging.LogRecord) -> bool:
    return 'uses a while_loop' not in record.getMessage()

  logger.addFilter(keep)
  try:
    with _sound_matmuls():
      yield
  finally:
    logger.removeFilter(keep)


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
