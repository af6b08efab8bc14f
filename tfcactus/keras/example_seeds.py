"""What layers draw, such as Dropout's masks: from fresh keys, for each example.

A mask that followed an example's row from a known seed would tell of the rows
before it: one example more gives all later ones other masks, and changes the sum
by many clip norms. So whatever a model draws in a private step comes from keys
of the operating system, new ones for each physical batch, whatever
`set_random_seed` or a layer's `seed` says. The masks of examples are then
independent of each other and of all else. Given the masks, an example changes
the sum by one clip norm; averaged over them, by joint convexity of the
hockey-stick divergence, no more is told.

A stateless draw by a seed of the user's own stays what it is, a constant. The layer
then runs on one example at a time, and gives each example the same draw.
"""

from __future__ import annotations

import itertools
from typing import Callable
from typing import Optional

import numpy as np
import tensorflow as tf

from tfcactus.keras import random_bits
from tfcactus.keras import replicas
from tfcactus.keras import vectorization
from tfcactus.keras.compat import patches
from tfcactus.randomness import KeyStream


class Keys:
  """Seeds for what layers draw, fresh ones whenever a step runs."""

  def __init__(self, seed: Optional[int]):
    """Initialises the source.

    Args:
      seed: For repeatable experiments; None takes the system's entropy.
    """
    worker = replicas.worker()  # Each draws of its own, by a seed too.
    self._stream = KeyStream(seed, f'layers of {worker}' if worker else 'layers')

  def __call__(self) -> tf.Tensor:
    """int64, shape (2,)."""
    return random_bits.drawn(
        lambda: self._stream.words(2).view(np.int64), 2, tf.int64)


def row_seeds(rows: int) -> tf.Tensor:
  """Draws a seed for each of several examples, independent of each other.

  Drawn and not counted: whatever a layer makes of its seed, such as the last bit,
  is then independent of what it makes of another example's.

  Args:
    rows: How many examples there are.

  Returns:
    int64, shape (rows, 2).
  """
  if vectorization.is_standing_in():
    return tf.zeros([rows, 2], tf.int64)  # Alike, whatever rows hold, as seeds are.
  seed = patches.current_seed() if patches.is_drawing() else Keys(None)()
  return tf.random.stateless_uniform([rows, 2], seed, None, None, tf.int64)


def counting(seed: tf.Tensor) -> Callable[[], tf.Tensor]:
  """Returns what makes of one seed others, for several draws."""
  calls = itertools.count()
  return lambda: seed + [0, next(calls)]
