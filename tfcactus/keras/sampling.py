"""How the batches of released steps were chosen, and what that is worth."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any
from typing import Optional
from typing import Tuple

import tensorflow as tf


class Sampling(enum.IntEnum):
  """Where the batches of all steps released so far came from."""

  NONE = 0
  POISSON = 1
  FIXED_SIZE = 2
  EACH_EXAMPLE_ONCE = 3
  # Nothing is known about the steps from here on.
  UNKNOWN = 4
  MIXED = 5


class Source:
  """What the next steps will be recorded as; not saved with any weights.

  A plain object, so that Keras does not track the variable: weights saved
  during `fit` must not vouch for steps taken after they are loaded.

  Attributes:
    kind: int64 variable, a `Sampling`.
  """

  def __init__(self):
    self.kind = tf.Variable(int(Sampling.UNKNOWN), dtype=tf.int64,
                            trainable=False, name='source')


def combine(seen: tf.Tensor, current: tf.Tensor) -> tf.Tensor:
  """The kind of all steps, after a step of kind `current` (int64 scalars)."""
  worst = tf.maximum(seen, current)
  mixed = tf.where(worst >= Sampling.UNKNOWN, worst,
                   tf.constant(Sampling.MIXED, tf.int64))
  unseen = tf.equal(tf.minimum(seen, current), Sampling.NONE)
  same = tf.equal(seen, current)
  return tf.where(tf.logical_or(unseen, same), worst, mixed)


@dataclasses.dataclass(frozen=True)
class Ledger:
  """What was released so far.

  Attributes:
    sampling: How the batches were chosen.
    steps: Noisy updates released.
    epochs: Passes over the data begun, for EACH_EXAMPLE_ONCE.
    note: Why the sampling is unknown, if it is.
  """

  sampling: Sampling
  steps: int
  epochs: int = 0
  note: str = ''

  def steps_within(self, plan: Any, epsilon: float) -> Optional[int]:
    """How many such steps a budget allows; None if it counts no steps."""
    if self.sampling == Sampling.POISSON:
      return plan.steps_within(epsilon)
    if self.sampling == Sampling.FIXED_SIZE:
      return plan.steps_within(epsilon, fixed_size=True)
    return None

  def guarantee(self, plan: Any) -> Tuple[Optional[Any], str]:
    """The guarantee of everything released, or None and the reason in words.

    Args:
      plan: A `PrivacyPlan`.

    Returns:
      (Guarantee, '') or (None, reason).
    """
    if self.steps == 0:
      return None, 'No step was released yet.'
    if self.sampling == Sampling.POISSON:
      return plan.guarantee(self.steps), ''
    if self.sampling == Sampling.FIXED_SIZE:
      return plan.guarantee_fixed_size(self.steps), ''
    if self.sampling == Sampling.EACH_EXAMPLE_ONCE:
      return plan.guarantee_each_example_once(max(self.epochs, 1)), ''
    return None, self.note or _REASONS[self.sampling]


_REMEDY = (' Train a fresh model with fit(PoissonBatches(x, y, sampling_prob)) '
           'to have one.')

_REASONS = {
    Sampling.NONE: 'No epsilon: steps were released, but nothing recorded how '
                   'their batches were chosen.' + _REMEDY,
    Sampling.UNKNOWN: 'No epsilon: batches came from a source whose sampling '
                      'is unknown, and epsilon depends on it.' + _REMEDY,
    Sampling.MIXED: 'No epsilon: some steps chose their batches in one way and '
                    'some in another (Poisson samples, samples of fixed size, '
                    'passes over all examples), and no account of them '
                    'together is kept.' + _REMEDY,
}
