"""Detects weights, or states of optimizers, that were assigned outside of steps."""

from __future__ import annotations

import array
from collections.abc import Mapping, Sequence
import hashlib
from typing import Any

import tensorflow as tf

from tfcactus.keras.compat import models, training


def unordered_digest(variables: Sequence[tf.Variable], beside: int = 0) -> int:
  """Returns a positive 56-bit hash of values, whichever variable has which.

  Processes agree on it, although they may list variables in another order. `beside` is
  as for `Watch.digest`.
  """
  digests = sorted(
      int(_digest({0: each})) for each in variables if 0 not in tuple(each.shape))
  text = repr((beside, digests)).encode()
  return int.from_bytes(hashlib.sha256(text).digest()[:7], 'big') + 1


def _digest(placed: Mapping[int, tf.Variable], beside: int = 0) -> tf.Tensor:
  """Returns the `Watch.digest` of {place: variable}."""
  row, method = tf.constant([1, -1]), tf.constant('farmhash64')
  # `Fingerprint` fails on empty variables, which hold nothing to hash.
  places = [each for each in sorted(placed) if 0 not in tuple(placed[each].shape)]
  prints = [tf.raw_ops.Fingerprint(
      data=tf.reshape(models.tf_variable(placed[each]), row), method=method)
            for each in places]
  numbers = tf.bitcast(tf.constant(places, tf.int64), tf.uint8)
  hashed = tf.reshape(tf.concat([tf.concat(prints, 0), numbers], 1), row)
  if beside:
    number = tf.bitcast(tf.constant([beside], tf.int64), tf.uint8)
    hashed = tf.concat([hashed, number], 1)
  return tf.bitcast(tf.raw_ops.Fingerprint(data=hashed, method=method), tf.int64)[0]


class Watch:
  """Digests of known weights: the first, those after steps, those set by methods.

  An optimizer's state (moments, averages of weights) has a watch of its own. It is a
  function of released values if it, and the weights, were known before each step.

  The weights after any earlier step are as good as the last ones: restoring them
  (BackupAndRestore, restore_best_weights) is post-processing of released values.

  Attributes:
    last: int64 variable, the `digest` of the weights after the last step.
    stepped: Whether any step was counted in this process.
    start: Digests of weights from before any step was released.
  """

  def __init__(self):
    """Initialises the watch, which knows no values yet."""
    with tf.init_scope():
      self.last = tf.Variable(0, dtype=tf.int64, trainable=False)
    self.stepped = False
    self.start: set[int] = set()
    self._known = array.array('q')
    # Keyed by variable: the order of `model.weights` changes once a layer is frozen,
    # and in a second model of the same layers.
    self._places: dict[int, tuple[int, Any]] = {}

  def digest(self, variables: Sequence[tf.Variable], beside: int = 0) -> tf.Tensor:
    """Returns a 64-bit hash of the values of variables, and of the int64 `beside`.

    Each value is hashed together with the number that its variable got when it was
    first seen, so that the order does not matter, and exchanged values change the hash.
    Processes agree on numbers if they first list their variables in one order. A change
    is missed with probability about 2^-64. The hash, farmhash, is not secret: it
    detects mistakes, not an adversary who computes collisions.
    """
    return _digest(dict(zip(self.place(variables), variables)), beside)

  def place(self, variables: Sequence[tf.Variable]) -> list[int]:
    """Returns the numbers of variables; new variables get the next ones."""
    # Keeps a reference to each variable, so that its id is not reused.
    return [self._places.setdefault(id(v), (len(self._places), v))[0]
            for v in variables]

  @property
  def shapes(self) -> list[str]:
    """The shapes of all variables, in words, sorted."""
    return sorted(str(each.shape) for _, each in self._places.values())

  @property
  def is_empty(self) -> bool:
    """Returns whether no values are known yet."""
    return not self.stepped and not self._known

  def is_known(self, weights: int) -> bool:
    """Returns whether weights of this digest are known, without recording anything."""
    return weights in self._known or (
        self.stepped and weights == training.number(self.last))

  def shares(self, other: Watch) -> bool:
    """Returns whether both knew equal weights once, as copies of one model do."""
    return not set(self._known).isdisjoint(other._known)

  def step(self, weights: int, last: int) -> bool:
    """Records a step; returns whether the weights before it are known, or the first.

    `weights` and `last` are digests of the weights before this step and after the last.
    """
    if self.is_empty:
      self.start.add(weights)
    known = self._add_last_and_find(weights, last)
    self.stepped = True
    return known

  def _add_last_and_find(self, weights: int, last: int) -> bool:
    """Returns whether the digest `weights` is known or first; a first one gets known.

    Also adds `last`, the digest after the last step, if any, to the known ones.
    """
    if self.stepped and (not self._known or self._known[-1] != last):
      self._known.append(last)
    if not self._known:
      self._known.append(weights)
    # Nearly always the last known digest, which saves a search of all.
    return weights == self._known[-1] or weights in self._known

  def knows(self, variables: Sequence[tf.Variable], beside: int = 0) -> bool:
    """Returns whether the values, as in `digest`, are known, or none were recorded."""
    return self.is_empty or self._add_last_and_find(
        int(self.digest(variables, beside)), training.number(self.last))

  def keep(self, variables: Sequence[tf.Variable], beside: int = 0) -> int:
    """Adds the values, as in `digest`, to the known ones; returns their digest."""
    weights = int(self.digest(variables, beside))
    if not self._add_last_and_find(weights, training.number(self.last)):
      self._known.append(weights)
    return weights
