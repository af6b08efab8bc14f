"""What layers draw, such as Dropout's masks: from fresh keys, for each example.

A mask that followed an example's row from a known seed would tell of the rows
before it: one example more gives all later ones other masks, and changes the sum
by many clip norms. So whatever a model draws in a private step comes from keys
of the operating system, new ones for each physical batch, whatever
`set_random_seed` or a layer's `seed` says. The masks of examples are then
independent of each other and of all else. Given the masks, an example changes
the sum by one clip norm; averaged over them, by joint convexity of the
hockey-stick divergence, no more is told.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from typing import Any
from typing import Callable
from typing import Iterator
from typing import Optional

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_random_ops
from tensorflow.python.ops import gen_stateless_random_ops

from tfcactus.keras import random_bits
from tfcactus.keras.compat import versions
from tfcactus.randomness import KeyStream

DRAW = 'tfcactus_draw'
"""In the names of operations that draw by seeds from here."""

_ROW = 0x9E3779B97F4A7C15 - 2**64
"""Seeds of rows are so far apart."""

_active = threading.local()


class Keys:
  """Seeds for what layers draw, fresh ones whenever a step runs."""

  def __init__(self, seed: Optional[int]):
    """Initialises the source.

    Args:
      seed: For repeatable experiments; None takes the system's entropy.
    """
    self._stream = KeyStream(seed, 'layers')

  def __call__(self) -> tf.Tensor:
    """int64, shape (2,)."""
    return random_bits.drawn(
        lambda: self._stream.words(2).view(np.int64), 2, tf.int64)


def row_seeds(rows: int) -> tf.Tensor:
  """Seeds for each of several examples, to be used by `drawing`.

  Args:
    rows: How many examples there are.

  Returns:
    int64, shape (rows, 2).
  """
  index = tf.range(rows, dtype=tf.int64)
  return _active.next() + tf.stack([index * _ROW, tf.zeros_like(index)], 1)


@contextlib.contextmanager
def drawing(model: Any, make_seed: Callable[[], tf.Tensor]) -> Iterator[None]:
  """Has whatever is drawn inside, by this thread, come from given seeds.

  Args:
    model: The model or layer that draws.
    make_seed: Returns an int64 of shape (2,) for each draw.
  """
  _install()
  kept = getattr(_active, 'next', None)
  _active.next = make_seed
  generators = versions.generators(model)
  replaced = [g for g in generators if 'next' not in g.__dict__]
  for generator in replaced:
    generator.__dict__['next'] = functools.partial(_for_keras, generator)
  try:
    yield
  finally:
    _active.next = kept
    for generator in replaced:
      del generator.__dict__['next']


def counting(seed: tf.Tensor) -> Callable[[], tf.Tensor]:
  """Returns what makes of one seed others, for several draws."""
  calls = itertools.count()
  return lambda: seed + [0, next(calls)]


def _for_keras(generator: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
  """In place of `SeedGenerator.next` of Keras 3, whose seeds have 32 bits."""
  del args, kwargs
  bits = tf.bitwise.bitwise_and(_active.next(), 2**31 - 1)
  return tf.cast(bits, generator.state.dtype)


@functools.lru_cache
def _install() -> None:
  """Puts hooks where TensorFlow draws, which do nothing but in `drawing`."""
  stateless = gen_stateless_random_ops
  for name, draw in (
      ('random_uniform', stateless.stateless_random_uniform),
      ('random_standard_normal', stateless.stateless_random_normal),
      ('truncated_normal', stateless.stateless_truncated_normal)):
    _hook(gen_random_ops, name, functools.partial(_draw, draw))
  _hook(gen_random_ops, 'random_uniform_int', _draw_integers)
  _hook(tf.random.Generator, '_prepare_key_counter', _key_and_counter)


def _hook(place: Any, name: str, instead: Callable[..., Any]) -> None:
  original = getattr(place, name)

  @functools.wraps(original)
  def hooked(*args, **kwargs):
    if getattr(_active, 'next', None) is None:
      return original(*args, **kwargs)
    return instead(*args, **kwargs)

  setattr(place, name, hooked)


def _draw(stateless: Callable[..., tf.Tensor], shape: Any, dtype: tf.DType,
          seed: int = 0, seed2: int = 0, name: Any = None) -> tf.Tensor:
  del seed, seed2, name
  return stateless(shape, _active.next(), dtype=dtype, name=DRAW)


def _draw_integers(shape: Any, minval: Any, maxval: Any, seed: int = 0,
                   seed2: int = 0, name: Any = None) -> tf.Tensor:
  del seed, seed2, name
  return gen_stateless_random_ops.stateless_random_uniform_int(
      shape, _active.next(), minval, maxval, name=DRAW)


def _key_and_counter(generator: tf.random.Generator, shape: Any) -> Any:
  """In place of a key that is kept in a variable, and a counter of draws."""
  del shape
  seed = tf.bitcast(_active.next(), tf.uint64)
  size = int(generator.state.shape[0]) - 1
  return seed[:1], tf.concat([seed[1:], tf.zeros([size - 1], tf.uint64)], 0)
