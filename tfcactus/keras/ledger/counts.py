"""Counts of released updates, as stored in saved models, checkpoints and journals."""

from __future__ import annotations

import enum
from typing import NamedTuple

from tfcactus import sampling as sampling_lib
from tfcactus.keras.data.batch_marks import UNKNOWN

NONE = 0
"""Instead of a scheme's code: the sampling of no batch was recorded."""

MIXED = 1001
"""Instead of a scheme's code: batches were drawn by several schemes."""


class Seeded(enum.IntFlag):
  """Which parts of the randomness came from a seed and are therefore reproducible."""

  NOTHING = 0
  NOISE = 1
  BATCHES = 2

  @classmethod
  def of(cls, noise: bool, batches: bool) -> Seeded:
    """Returns the flags for seeded noise and seeded batches."""
    return ((cls.NOISE if noise else cls.NOTHING) |
            (cls.BATCHES if batches else cls.NOTHING))

  def words(self) -> str:
    """Returns the parts in words, such as 'noise and batches'; '' for none."""
    return ' and '.join(
        name for part, name in ((Seeded.NOISE, 'noise'), (Seeded.BATCHES, 'batches'))
        if part in self)


def is_sampling(code: int) -> bool:
  """Returns whether `code` is a valid `Counts.sampling`."""
  return code in (NONE, UNKNOWN, MIXED) or sampling_lib.of_code(code) is not None


def combined(seen: int, current: int) -> int:
  """Returns the sampling of all steps from the samplings of two sets of steps."""
  if NONE in (seen, current) or seen == current:
    return max(seen, current)
  return max(seen, current) if max(seen, current) >= UNKNOWN else MIXED


OTHER_PLANS = -1
"""Instead of a plan's number: steps were released under several plans."""


class Counts(NamedTuple):
  """What was released from one set of variables.

  Attributes:
    released_steps: Noisy updates.
    epochs_begun: Epochs begun, for schemes that draw epochs.
    sampling: The code of the scheme that drew all batches, or `NONE`, `UNKNOWN` or
      `MIXED`.
    plan_number: `lineage.plan_number` of the steps' plan, or `OTHER_PLANS`.
    seeded_parts: A `Seeded`: which randomness is reproducible.
  """

  released_steps: int = 0
  epochs_begun: int = 0
  sampling: int = NONE
  plan_number: int = 0
  seeded_parts: int = 0

  def merged(self, other: Counts) -> Counts:
    """Returns the larger counts of two views of one sequence of releases."""
    number = self.plan_number
    if other.released_steps and other.plan_number != number:
      number = OTHER_PLANS if self.released_steps else other.plan_number
    return Counts(
        max(self.released_steps, other.released_steps),
        max(self.epochs_begun, other.epochs_begun),
        combined(self.sampling, other.sampling), number,
        self.seeded_parts | other.seeded_parts)

  def plus(self, other: Counts) -> Counts:
    """Returns the sum of two counts of disjoint releases."""
    return self.merged(other)._replace(
        released_steps=self.released_steps + other.released_steps,
        epochs_begun=self.epochs_begun + other.epochs_begun)

  def stepped(self, sampling: int, epochs: int, seeded: Seeded) -> Counts:
    """Returns the counts after one more step, with which `epochs` epochs begin."""
    return Counts(self.released_steps + 1, self.epochs_begun + epochs,
                  combined(self.sampling, sampling), self.plan_number,
                  self.seeded_parts | int(seeded))
