"""How the batches of released steps were chosen, and what that is worth."""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Any
from typing import Dict
from typing import Optional
from typing import Tuple

from tfcactus import relations


class Sampling(enum.IntEnum):
  """Where the batches of all steps released so far came from."""

  NONE = 0
  POISSON = 1
  FIXED_SIZE = 2
  EACH_EXAMPLE_ONCE = 3
  # Nothing is known about the steps from here on.
  UNKNOWN = 4
  MIXED = 5


class Seeded(enum.IntFlag):
  """What of the randomness came from a seed, so that it can be repeated."""

  NOTHING = 0
  NOISE = 1
  BATCHES = 2

  def words(self) -> str:
    """Such as 'noise and batches'; '' for nothing."""
    return ' and '.join(
        part.name.lower() for part in (Seeded.NOISE, Seeded.BATCHES)
        if part in self)


def combine(seen: int, current: int) -> Sampling:
  """The kind of all steps, after a step of kind `current`."""
  worst = Sampling(max(seen, current))
  if seen == current or Sampling.NONE in (seen, current) or (
      worst >= Sampling.UNKNOWN):
    return worst
  return Sampling.MIXED


@dataclasses.dataclass(frozen=True)
class Ledger:
  """What was released so far.

  Attributes:
    sampling: How the batches were chosen.
    steps: Noisy updates released.
    epochs: Passes over the data begun, for EACH_EXAMPLE_ONCE.
    note: Why the sampling is unknown, if it is.
    seeded: What of the randomness of these steps can be repeated.
    condition: What the guarantee rests on besides, in sentences, or ''.
  """

  sampling: Sampling
  steps: int
  epochs: int = 0
  note: str = ''
  seeded: Seeded = Seeded.NOTHING
  condition: str = ''

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
      return self._in_words(cost()), ''
    try:
      return self._in_words(cost(
          neighboring_relation=relations.check(neighboring_relation))), ''
    except ValueError as error:
      return None, f'No epsilon: {error}'

  def _in_words(self, guarantee: Any) -> Any:
    """The guarantee, with what it rests on in its statement."""
    if self.condition:
      guarantee = guarantee.given(self.condition)
    if not self.seeded:
      return guarantee
    said = _SEEDED.format(self.seeded.words())
    return dataclasses.replace(
        guarantee, seeded=True, statement=f'{guarantee.statement} {said}')


_SEEDED = (
    'SEEDED ({}): whoever knows the seed can repeat that randomness and '
    'subtract it, and against them nothing is protected; an experiment, not a '
    'private release.')

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
