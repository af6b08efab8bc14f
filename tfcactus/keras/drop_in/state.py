"""State of a drop-in optimizer that Keras does not save, and its microbatches.

TensorFlow Privacy divides a noisy sum by num_microbatches, or by the size of the
current batch, which is public only if all batches have one size: `Batching` checks it.
If a microbatch holds several examples, its mean gradient is clipped. No bound is known
for the change by one example more or less, which moves all later examples to other
microbatches.
"""

from __future__ import annotations

from collections.abc import Sequence
import threading
from typing import NamedTuple

import tensorflow as tf

from tfcactus import _checks
from tfcactus.keras.distribution import replicas

_REMEDY = ('pass expected_batch_size=sampling_prob * num_examples, a public constant '
           'that the noisy sum is then divided by')


class Losses(NamedTuple):
  """Losses that a step differentiates."""

  of_examples: tf.Tensor  # Shape (batch,).
  of_microbatches: tf.Tensor  # `of_examples` itself if each is one example.


class Batching:
  """Microbatches and divisor of a drop-in optimizer.

  Attributes:
    expected: The expected batch size, or None.
    microbatches: Number of microbatches per batch; None, or `expected`, for one per
      example.
    size: Size of all batches, in examples; 0 before the first, or if it may vary.
    grouped: Whether any microbatch held several examples.
  """

  def __init__(self, expected_batch_size: float | None,
               num_microbatches: int | None, parts: int):
    """Checks the sizes; ValueError if one is invalid, or both are given and differ.

    `num_microbatches` is the number of microbatches in one batch, `parts` the number of
    batches in a logical batch, whose gradients an update accumulates, and
    `expected_batch_size` the expected number of examples in a logical batch.
    """
    self.microbatches = None if num_microbatches is None else (
        _checks.integer('num_microbatches', num_microbatches, 1))
    self.expected = None if expected_batch_size is None else (
        _checks.positive('expected_batch_size', expected_batch_size))
    if self.expected is not None and num_microbatches not in (None, self.expected):
      raise ValueError(
          'Expected either expected_batch_size or num_microbatches, got '
          f'expected_batch_size={expected_batch_size!r} and num_microbatches='
          f'{num_microbatches!r}. Leave out num_microbatches: then each example is '
          'its own microbatch. Or leave out expected_batch_size: then the sum is '
          'divided by num_microbatches. Microbatches of several examples have no '
          'bounded sensitivity under Poisson sampling, because adding or removing one '
          'example moves others to other microbatches.')
    self._parts = parts
    with tf.init_scope():
      self.size = tf.Variable(0, trainable=False, dtype=tf.int64)
      self.grouped = tf.Variable(False, trainable=False)

  def split(self, losses: tf.Tensor) -> Losses:
    """Returns the losses of examples and of microbatches; `losses` has shape (batch,).

    The loss of a microbatch is the mean over its examples. Without an expected batch
    size, all batches must have one size, a multiple of the number of microbatches.
    Raises ValueError for a known size that is no multiple; assertions in the graph
    check the rest.
    """
    if self.expected is not None:
      return Losses(losses, losses)
    if (losses.shape[0] or 0) % (self.microbatches or 1):
      raise ValueError(f'{self._multiples()} Got batches of {losses.shape[0]}.')
    size = tf.shape(losses, tf.int64)[0]
    count = size if self.microbatches is None else (
        tf.constant(self.microbatches, tf.int64))
    with tf.control_dependencies(self._asserts(size, count)):
      assigned = [self.size.assign(size),
                  self.grouped.assign(tf.logical_or(self.grouped, size > count))]
    with tf.control_dependencies(assigned):
      losses = tf.identity(losses)
    if self.microbatches is None:
      return Losses(losses, losses)
    # Hides the static shape. TensorFlow would use it to simplify the reshape, and fail
    # with its own message before the assertions run.
    of_any_size = tf.compat.v1.placeholder_with_default(losses, [None])
    return Losses(losses, tf.reduce_mean(
        tf.reshape(of_any_size, [self.microbatches, -1]), 1))

  def _asserts(self, size: tf.Tensor, count: tf.Tensor) -> list[tf.Operation]:
    """Returns assertions on a batch of `size` examples in `count` microbatches."""
    earlier = tf.where(self.size > 0, self.size, size)  # The size of earlier batches.
    asserts = [
        tf.debugging.assert_equal(
            size, earlier, 'Expected batches of one size from an optimizer without '
            'expected_batch_size: what the noisy sum is divided by must not tell '
            f'who was in the batch; {_REMEDY}, or leave out the last examples.'),
        tf.debugging.assert_greater(
            size, tf.zeros([], tf.int64), 'Expected batches that are not empty from '
            f'an optimizer without expected_batch_size; {_REMEDY}.'),
        tf.debugging.assert_equal(
            size % tf.maximum(count, 1), tf.zeros([], tf.int64), self._multiples())]
    return [each for each in asserts if each is not None]  # Eager asserts are None.

  def _multiples(self) -> str:
    """Returns the error message for a batch that microbatches do not divide."""
    return ('Expected batches of a whole multiple of num_microbatches='
            f'{self.microbatches} examples; leave out num_microbatches for one '
            f'example per microbatch, and {_REMEDY}.')

  def divided(self, total: tf.Tensor) -> tf.Tensor:
    """Returns the noisy sum of a logical batch, divided by its public size."""
    if self.expected is not None:
      return total / self.expected
    if self.microbatches is not None:
      return total / (self.microbatches * self._parts)
    return total / tf.cast(self.size * self._parts, total.dtype)


class _OfReplica(threading.local):
  """State of one replica within a step."""

  ready: bool = False
  losses: Losses | None = None


class State:
  """Counts and sums that Keras does not track, so that no checkpoint can lower them.

  Attributes:
    batching: The `Batching`.
    released: Number of noisy updates. Checkpoints may lower `iterations` of Keras, but
      not this number.
    sound: Whether all gradients were finite.
    here: State of this replica within a step: whether the next gradients applied are
      clipped (`ready`), and the `losses` that `fit` is differentiating, or None.
    parts_seen: Number of batches seen, if gradients accumulate.
    saved: Values of slots (such as momenta) from a config, until the slots exist.
    loaded_steps: Number of released steps that a config reported.
    seeded: Whether noise of steps that a config reported came from a seed.
  """

  def __init__(self, batching: Batching) -> None:
    """Initialises the state of an optimizer that has made no update."""
    self.batching = batching
    with tf.init_scope():
      self.parts_seen = tf.Variable(0, trainable=False, dtype=tf.int64)
      self.sound = tf.Variable(True, trainable=False)
      self.released = tf.Variable(0, trainable=False, dtype=tf.int64)
    # Under a strategy each replica has a thread, and they take turns.
    self.here = _OfReplica()
    self.seeded = False
    self.loaded_steps = 0
    self.saved: str | None = None
    self._pending: list[tf.Variable] = []

  def note_finite(self, finite: tf.Tensor) -> None:
    """Sets `sound` to False if a gradient was not finite."""
    replicas.once(lambda found: self.sound.assign(tf.reduce_all(
        [tf.convert_to_tensor(self.sound), *found])), finite)

  def count(self, iterations: tf.Variable) -> None:
    """Sets `released` to one more than the larger of it and Keras' `iterations`."""
    replicas.once(lambda: self.released.assign(tf.maximum(
        tf.convert_to_tensor(self.released), tf.convert_to_tensor(iterations)) + 1))

  def add(self, sums: Sequence[tf.Tensor], var_list: Sequence[tf.Variable]
          ) -> list[tf.Tensor]:
    """Counts a batch, adds its `sums`; returns the logical batch's sums so far."""
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
