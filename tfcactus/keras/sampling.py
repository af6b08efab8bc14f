"""How the batches of released steps were chosen, and what that is worth."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any
from typing import Optional
from typing import Tuple


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
      return self._in_words(plan.guarantee(self.steps)), ''
    if self.sampling == Sampling.FIXED_SIZE:
      return self._in_words(plan.guarantee_fixed_size(self.steps)), ''
    if self.sampling == Sampling.EACH_EXAMPLE_ONCE:
      return self._in_words(
          plan.guarantee_each_example_once(max(self.epochs, 1))), ''
    return None, self.note or _REASONS[self.sampling]

  def _in_words(self, guarantee: Any) -> Any:
    """The guarantee, with what it rests on in its statement."""
    words = [guarantee.statement, self.condition]
    if self.seeded:
      words.append(_SEEDED.format(self.seeded.words()))
    return dataclasses.replace(
        guarantee, seeded=bool(self.seeded),
        statement=' '.join(filter(None, words)))


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
