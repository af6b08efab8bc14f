"""State of a drop-in optimizer that Keras does not save."""

from __future__ import annotations

from collections.abc import Sequence
import threading

import tensorflow as tf

from tfcactus.keras.distribution import replicas
from tfcactus.keras.drop_in.microbatches import Batching, Losses


class _OfReplica(threading.local):
  """State of one replica within a step."""

  ready: bool = False
  losses: Losses | None = None


class State:
  """Counts and sums that no checkpoint may hold: Keras does not track this object.

  Attributes:
    batching: The `Batching`.
    released: Number of noisy updates. Checkpoints may lower `iterations` of Keras, but
      not this number.
    sound: Whether all gradients were finite.
    parts_seen: Number of batches seen, if gradients accumulate.
    saved: Values of slots from a config, until the slots exist.
    loaded_steps: Number of released steps that a config reported.
    seeded: Whether noise of steps that a config reported came from a seed.
  """

  def __init__(self, batching: Batching) -> None:
    self.batching = batching
    with tf.init_scope():
      self.parts_seen = tf.Variable(0, trainable=False, dtype=tf.int64)
      self.sound = tf.Variable(True, trainable=False)
      self.released = tf.Variable(0, trainable=False, dtype=tf.int64)
    # Under a strategy each replica has a thread, and they take turns.
    self._of_replica = _OfReplica()
    self.seeded = False
    self.loaded_steps = 0
    self.saved: str | None = None
    self._pending: list[tf.Variable] = []

  @property
  def ready(self) -> bool:
    """Returns whether the next gradients applied are clipped."""
    return self._of_replica.ready

  @ready.setter
  def ready(self, ready: bool) -> None:
    self._of_replica.ready = ready

  @property
  def losses(self) -> Losses | None:
    """Losses that `fit` is differentiating, or None."""
    return self._of_replica.losses

  @losses.setter
  def losses(self, losses: Losses | None) -> None:
    self._of_replica.losses = losses

  def note_finite(self, finite: tf.Tensor) -> None:
    """Sets `sound` to False if a gradient was not finite."""
    replicas.once(lambda found: self.sound.assign(tf.reduce_all(
        [tf.convert_to_tensor(self.sound), *found])), finite)

  def count(self, iterations: tf.Variable) -> None:
    """Counts an update: sets `released` to one more than it or Keras' `iterations`."""
    replicas.once(lambda: self.released.assign(tf.maximum(
        tf.convert_to_tensor(self.released), tf.convert_to_tensor(iterations)) + 1))

  def add(self, sums: Sequence[tf.Tensor], var_list: Sequence[tf.Variable]
          ) -> list[tf.Tensor]:
    """Counts a batch, adds its clipped sums; returns the logical batch's totals."""
    with tf.init_scope():
      if not self._pending:
        self._pending = [
            tf.Variable(tf.zeros(v.shape, tf.float64), trainable=False)
            for v in var_list]
    with tf.control_dependencies([self.parts_seen.assign_add(1)]):
      return [tf.convert_to_tensor(pending.assign_add(part))
              for pending, part in zip(self._pending, sums)]

  def clear(self) -> None:
    """Resets the pending sums, for the next logical batch."""
    for pending in self._pending:
      pending.assign(tf.zeros_like(pending))
