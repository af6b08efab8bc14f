"""What a drop-in optimizer keeps, beside what Keras saves of it."""

from __future__ import annotations

from typing import List
from typing import Optional
from typing import Sequence

import tensorflow as tf

from tfcactus.keras.drop_in.microbatches import Batching


class State:
  """Counts and sums that no checkpoint may hold, so no trackable does.

  Attributes:
    batching: Its `Batching`.
    released: Noisy updates made; checkpoints restore `iterations`, also to
      fewer.
    sound: Whether all gradients were finite.
    parts_seen: Batches seen, when several make a logical one.
    ready: Whether the next gradients applied are clipped.
    losses: Of which `fit` is taking the gradient, or None.
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
    self.ready = False
    self.seeded = False
    self.loaded_steps = 0
    self.saved: Optional[str] = None
    self.losses: Optional[tf.Tensor] = None
    self._pending: List[tf.Variable] = []

  def note_finite(self, finite: tf.Tensor) -> None:
    """Remembers it if any gradient was not finite."""
    self.sound.assign(tf.logical_and(self.sound, finite))

  def add(self, sums: Sequence[tf.Tensor], var_list: Sequence[tf.Variable]
          ) -> List[tf.Tensor]:
    """Adds sums without noise to those before; returns the totals."""
    with tf.init_scope():
      if not self._pending:
        self._pending = [
            tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False)
            for v in var_list]
    with tf.control_dependencies([self.parts_seen.assign_add(1)]):
      return [tf.convert_to_tensor(pending.assign_add(part))
              for pending, part in zip(self._pending, sums)]

  def clear(self) -> None:
    """Begins a logical batch anew."""
    for pending in self._pending:
      pending.assign(tf.zeros_like(pending))
