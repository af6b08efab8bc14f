"""Seeds of layers that draw, such as Dropout: one for each example.

Keras 3 asks the generators inside of a model once for a whole batch. Examples
that are vectorised would all see the same draw. Keras 2 has no such generators,
and its draws differ without that.
"""

from __future__ import annotations

import contextlib
from typing import Any
from typing import Iterator
from typing import List

import tensorflow as tf

from tfcactus.keras import _compat


def seed_variables(model: Any) -> List[tf.Variable]:
  """States of the random number generators inside a model."""
  return [generator.state.value for generator in _compat.generators(model)]


def row_seeds(model: Any, rows: int) -> List[tf.Tensor]:
  """Draws seeds for each of several examples, to be used by `seeded`.

  Args:
    model: A model.
    rows: How many examples there are.

  Returns:
    One tensor of shape (rows, 2) for each generator of the model.
  """
  return [tf.random.stateless_uniform(
      [rows, 2], tf.cast(generator.next(), tf.int32), maxval=2**31 - 1,
      dtype=tf.int32) for generator in _compat.generators(model)]


@contextlib.contextmanager
def seeded(model: Any, seeds: List[tf.Tensor]) -> Iterator[None]:
  """Has the generators of a model give the seeds of one example.

  Args:
    model: The model.
    seeds: One of shape (2,) for each generator.
  """
  generators = _compat.generators(model)

  def hand_out(generator: Any, seed: tf.Tensor) -> Any:
    calls = iter(range(2**31))
    dtype = generator.state.dtype

    def following(*args: Any, **kwargs: Any) -> tf.Tensor:
      del args, kwargs
      return tf.cast(seed + [0, next(calls)], dtype)

    return following

  for generator, seed in zip(generators, seeds):
    generator.__dict__['next'] = hand_out(generator, seed)
  try:
    yield
  finally:
    for generator, _ in zip(generators, seeds):
      del generator.__dict__['next']
