"""What a drop-in optimizer keeps, beside what Keras saves of it."""

from __future__ import annotations

import threading
from typing import List
from typing import Optional
from typing import Sequence

import tensorflow as tf

from tfcactus.keras import replicas
from tfcactus.keras.drop_in.microbatches import Batching
from tfcactus.keras.drop_in.microbatches import Losses


class _OfReplica(threading.local):
  """What one replica is about to do."""

  ready: bool = False
  losses: Optional[Losses] = None


class State:
  """Counts and sums that no checkpoint may hold, so no trackable does.

  Attributes:
    batching: Its `Batching`.
    released: Noisy updates made; checkpoints restore `iterations`, also to
      fewer.
    sound: Whether all gradients were finite.
    parts_seen: Batches seen, when several make a logical one.
    saved: State from a config, for when the slots are there.
    loaded_steps: How many of the released steps a config told of.
    seeded: Whether noise of steps that a config tells of came from a seed.
  """

  def __init__(self, batching: Batching) -> None:
    self.batching = batching
    with tf.init_scope():
      self.parts_seen = tf.Variable(0, trainable=False, dtype=tf.int64)
      self.sound = tf.Variable(True, trainable=False)
      self.released = tf.Variable(0, trainable=False, dtype=tf.int64)
    # Of this thread's replica: under a strategy each has one, and they take turns.
    self._of_replica = _OfReplica()
    self.seeded = False
    self.loaded_steps = 0
    self.saved: Optional[str] = None
    self._pending: List[tf.Variable] = []

  @property
  def ready(self) -> bool:
    """Whether the next gradients applied are clipped."""
    return self._of_replica.ready

  @ready.setter
  def ready(self, ready: bool) -> None:
    self._of_replica.ready = ready

  @property
  def losses(self) -> Optional[Losses]:
    """Of which `fit` is taking the gradient, or None."""
    return self._of_replica.losses

  @losses.setter
  def losses(self, losses: Optional[Losses]) -> None:
    self._of_replica.losses = losses

  def note_finite(self, finite: tf.Tensor) -> None:
    """Remembers it if any gradient was not finite."""
    replicas.once(lambda found: self.sound.assign(tf.reduce_all(
        [tf.convert_to_tensor(self.sound), *found])), finite)

  def count(self, iterations: tf.Variable) -> None:
    """Counts an update, beside those that Keras counts and checkpoints restore."""
    replicas.once(lambda: self.released.assign(tf.maximum(
        tf.convert_to_tensor(self.released), tf.convert_to_tensor(iterations)) + 1))

  def add(self, sums: Sequence[tf.Tensor], var_list: Sequence[tf.Variable]
          ) -> List[tf.Tensor]:
    """Adds sums without noise to those before; returns the totals."""
    with tf.init_scope():
      if not self._pending:
        self._pending = [
            tf.Variable(tf.zeros(v.shape, tf.float64), trainable=False)
            for v in var_list]
    with tf.control_dependencies([self.parts_seen.assign_add(1)]):
      return [tf.convert_to_tensor(pending.assign_add(part))
              for pending, part in zip(self._pending, sums)]

  def clear(self) -> None:
    """Begins a logical batch anew."""
    for pending in self._pending:
      pending.assign(tf.zeros_like(pending))
