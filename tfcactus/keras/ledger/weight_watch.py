"""Tells whether weights are what counted steps left, or were assigned otherwise."""

from __future__ import annotations

import array
import math
from typing import Any
from typing import Dict
from typing import List
from typing import Sequence
from typing import Tuple

import tensorflow as tf

from tfcactus.keras.compat import models
from tfcactus.keras.compat import training
from tfcactus.keras.compat.versions import keras


class Watch:
  """Knows the weights that an account began with, and those that its steps left.

  What was left by any earlier step is as good as the last: going back to it
  (BackupAndRestore, restore_best_weights) is a function of what was released.

  Attributes:
    left: int64 variable, the `digest` that the last step left.
  """

  def __init__(self):
    with tf.init_scope():
      self.left = tf.Variable(0, dtype=tf.int64, trainable=False)
    self._stepped = False
    self._known = array.array('q')
    # By the variables themselves: `model.weights` lists them in another order once a
    # layer is frozen, and so does a second model of the same layers.
    self._places: Dict[int, Tuple[int, Any]] = {}

  def digest(self, variables: Sequence[tf.Variable]) -> tf.Tensor:
    """Returns a 64-bit hash of the values of variables, whatever order they come in.

    Each value is hashed together with the place of its variable, a number that the
    variable gets when it is first seen here: exchanged values give another hash. The
    numbers are equal in all processes that list their variables alike at first. A
    change goes unnoticed with probability about 2^-64; farmhash is not secret, so that
    this shows mistakes, and stops nobody who looks for a collision. It is one pass
    over memory, about 1 ns a weight: noise takes some thirty.

    Args:
      variables: Those of a model.

    Returns:
      int64 scalar.
    """
    placed = {place: v for place, v in zip(self.place(variables), variables)
              if math.prod(v.shape)}
    prints = [tf.raw_ops.Fingerprint(
        data=tf.reshape(models.tf_variable(placed[place]), [1, -1]),
        method='farmhash64') for place in sorted(placed)]
    places = tf.bitcast(tf.constant(sorted(placed), tf.int64), tf.uint8)
    both = tf.concat([tf.concat(prints, 0), places], 1)
    return tf.bitcast(tf.raw_ops.Fingerprint(
        data=tf.reshape(both, [1, -1]), method='farmhash64'), tf.int64)[0]

  def place(self, variables: Sequence[tf.Variable]) -> List[int]:
    """Returns the numbers of variables; those not seen before get the next ones."""
    # A variable is kept, so that no other one gets its id.
    return [self._places.setdefault(id(v), (len(self._places), v))[0]
            for v in variables]

  @property
  def stepped(self) -> bool:
    """Whether any step was taken in this process."""
    return self._stepped

  def has_left(self, weights: int) -> bool:
    """Whether steps or methods of the private model left weights of this digest."""
    return weights in self._known or (
        self._stepped and weights == training.number(self.left))

  def shares(self, other: Watch) -> bool:
    """Whether both knew the same weights once, as copies of one model do."""
    return not set(self._known).isdisjoint(other._known)

  def step(self, weights: int, left: int) -> bool:
    """Whether a step begins from weights that are known.

    The first one does, whatever they are: they were given.

    Args:
      weights: Their `digest`.
      left: The value of `left`.
    """
    known = self._knows(weights, left)
    self._stepped = True
    return known

  def _knows(self, weights: int, left: int) -> bool:
    if self._stepped and (not self._known or self._known[-1] != left):
      self._known.append(left)
    if not self._known:
      self._known.append(weights)
    # The last one nearly always; eight bytes a step are kept for the others.
    return weights == self._known[-1] or weights in self._known

  def knows(self, model: keras.Model) -> bool:
    """Whether the weights of a model are known now; at first they are."""
    if not self._stepped and not self._known:
      return True
    return self._knows(int(self.digest(model.weights)), training.number(self.left))

  def keep(self, model: keras.Model) -> None:
    """Makes the weights of a model known, if it has any yet."""
    if not model.built:
      return
    weights = int(self.digest(model.weights))
    if not self._knows(weights, training.number(self.left)):
      self._known.append(weights)
