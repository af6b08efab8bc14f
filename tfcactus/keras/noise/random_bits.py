"""NumPy random draws inside TensorFlow graphs, and seeds of layers that draw.

If a mask, as of Dropout, depended on a row's place and a known seed, one example more
would change the masks of all later rows. So draws of a model in a private step use keys
of the operating system (of the seed of `privatize`, if any), new for each physical
batch, whatever `set_random_seed` or a layer's `seed` says (docs/soundness_step.md).
Stateless draws from a seed of the user stay constants: the same for every example.
"""

from __future__ import annotations

from collections.abc import Sequence
import itertools
from typing import Callable

import numpy as np
import tensorflow as tf

from tfcactus.keras.compat import models, patches, vectorization
from tfcactus.keras.distribution import replicas
from tfcactus.randomness import KeyStream


def drawn(draw: Callable[..., np.ndarray], size: int, dtype: tf.DType,
          *inputs: tf.Tensor) -> tf.Tensor:
  """Returns `draw(*inputs)`, shape (size,), drawn when the graph runs.

  Raises ValueError under XLA.
  """
  _check_outside_xla()
  return tf.ensure_shape(tf.numpy_function(draw, inputs, dtype), [size])


def changed(change: Callable[..., list[np.ndarray]], parts: Sequence[tf.Tensor],
            dtypes: Sequence[tf.DType], *inputs: tf.Tensor) -> list[tf.Tensor]:
  """Returns the arrays that `change` makes of `parts` whenever the graph runs.

  `change` takes the list of parts and then `inputs`, as arrays that it must not modify.
  It returns arrays of the parts' shapes and of `dtypes`. Raises ValueError under XLA.
  """
  _check_outside_xla()
  # A number: TensorFlow keeps the lambda, which would keep the graph of `inputs` too.
  count = len(inputs)
  found = tf.numpy_function(
      lambda *arrays: change(arrays[count:], *arrays[:count]), [*inputs, *parts],
      dtypes)
  # An eager call returns a single tensor without a list.
  return [tf.ensure_shape(each, part.shape)
          for each, part in zip(tf.nest.flatten(found), parts)]


def _check_outside_xla() -> None:
  """Raises ValueError in a function that XLA compiles."""
  if models.in_xla():
    raise ValueError(
        'Expected jit_compile=False, got a function that XLA compiles: bits '
        'are drawn outside of it. Compile the model with jit_compile=False. A '
        "NoiseSampler of randomness='device' takes key=sampler.key(), made outside.")


class Keys:
  """Source of seeds for the draws of layers; each run of a step gets fresh seeds."""

  def __init__(self, seed: int | None):
    """Initialises the source; seed None takes the system's entropy."""
    worker = replicas.worker()  # Workers differ in their draws, even with one seed.
    self._stream = KeyStream(seed, f'layers of {worker}' if worker else 'layers')

  def __call__(self) -> tf.Tensor:
    """Returns a fresh seed, int64, shape (2,)."""
    return drawn(lambda: self._stream.words(2).view(np.int64), 2, tf.int64)


def row_seeds(rows: int) -> tf.Tensor:
  """Returns independent random seeds of `rows` examples, int64, shape (rows, 2).

  Random seeds, unlike a counter, keep every function of a seed, such as its last bit,
  independent between examples.
  """
  if vectorization.is_standing_in():
    return tf.zeros([rows, 2], tf.int64)  # A constant: seeds do not depend on data.
  seed = (patches.seed_maker() or Keys(None))()
  return tf.random.stateless_uniform([rows, 2], seed, None, None, tf.int64)


def counting(seed: tf.Tensor) -> Callable[[], tf.Tensor]:
  """Returns a function that derives successive seeds from one seed."""
  calls = itertools.count()
  return lambda: seed + [0, next(calls)]
