"""Whether weights are what counted steps left, or something else assigned them."""

from __future__ import annotations

import array
import math
from typing import Iterable

import tensorflow as tf

from tfcactus.keras.compat import models
from tfcactus.keras.compat import training
from tfcactus.keras.compat.versions import keras


def digest(variables: Iterable[tf.Variable]) -> tf.Tensor:
  """64 bits of the values of variables, whatever the order of these.

  A pass over memory, about 1 ns a weight: noise takes some thirty.

  Args:
    variables: Those of a model.

  Returns:
    int64 scalar.
  """
  prints = [tf.raw_ops.Fingerprint(
      data=tf.reshape(models.tf_variable(v), [1, -1]), method='farmhash64')
            for v in variables if math.prod(v.shape)]
  # A sum, which wraps around, is the same in any order.
  return tf.reduce_sum(tf.bitcast(tf.concat(prints, 0), tf.int64))


class Watch:
  """Which weights an account knows: those given, and those that steps left.

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
    return self._knows(int(digest(model.weights)), training.number(self.left))

  def keep(self, model: keras.Model) -> None:
    """Makes the weights of a model known, if it has any yet."""
    if not model.built:
      return
    weights = int(digest(model.weights))
    if not self._knows(weights, training.number(self.left)):
      self._known.append(weights)
