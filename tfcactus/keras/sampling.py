"""How the batches of released steps were chosen, and what that is worth."""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Any
from typing import Dict
from typing import Optional
from typing import Tuple

import tensorflow as tf

from tfcactus.privacy import relations


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

  def guarantees(self, plan: Any) -> Dict[str, Any]:
    """The guarantees of all neighbouring relations that have one, by label."""
    found = (self.guarantee(plan, relation)[0]
             for relation in relations.NAMES.values())
    return {guarantee.neighboring_relation: guarantee
            for guarantee in found if guarantee is not None}

  def steps_within(self, plan: Any, epsilon: float) -> Optional[int]:
    """How many such steps a budget allows; None if it counts no steps."""
    if self.sampling == Sampling.POISSON:
      return plan.steps_within(epsilon)
    if self.sampling == Sampling.FIXED_SIZE:
      return plan.steps_within(epsilon, fixed_size=True)
    return None

  def guarantee(self, plan: Any, neighboring_relation: Any = None
                ) -> Tuple[Optional[Any], str]:
    """The guarantee of everything released, or None and the reason in words.

    Args:
      plan: A `PrivacyPlan`.
      neighboring_relation: Whom it protects, as for `PrivacyPlan.guarantee`; None
        for add-or-remove, or replace for passes over all examples.

    Returns:
      (Guarantee, '') or (None, reason).
    """
    if self.steps == 0:
      return None, 'No step was released yet.'
    if self.sampling == Sampling.POISSON:
      cost = functools.partial(plan.guarantee, self.steps)
    elif self.sampling == Sampling.FIXED_SIZE:
      cost = functools.partial(plan.guarantee_fixed_size, self.steps)
    elif self.sampling == Sampling.EACH_EXAMPLE_ONCE:
      cost = functools.partial(
          plan.guarantee_each_example_once, max(self.epochs, 1))
    else:
      return None, self.note or _REASONS[self.sampling]
    if neighboring_relation is None:
      return cost(), ''
    try:
      return cost(neighboring_relation=relations.check(neighboring_relation)), ''
    except ValueError as error:
      return None, f'No epsilon: {error}'


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
