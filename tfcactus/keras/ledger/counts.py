"""What was released, as numbers that saves, checkpoints and journals hold."""

from __future__ import annotations

import enum
from typing import NamedTuple

from tfcactus import sampling as sampling_lib

NONE = 0
"""In place of a scheme's code: no step was counted by how its batch was chosen."""

UNKNOWN = 1000
"""In place of a scheme's code: some batches were chosen in ways not known."""

MIXED = 1001
"""In place of a scheme's code: batches were chosen by several schemes."""


class Seeded(enum.IntFlag):
  """What of the randomness came from a seed, so that it can be repeated."""

  NOTHING = 0
  NOISE = 1
  BATCHES = 2

  @classmethod
  def of(cls, noise: bool, batches: bool) -> Seeded:
    """What of the two came from a seed."""
    return ((cls.NOISE if noise else cls.NOTHING) |
            (cls.BATCHES if batches else cls.NOTHING))

  def words(self) -> str:
    """Such as 'noise and batches'; '' for nothing."""
    return ' and '.join(
        name for part, name in ((Seeded.NOISE, 'noise'), (Seeded.BATCHES, 'batches'))
        if part in self)


def is_sampling(code: int) -> bool:
  """Whether a number is one that `Counts.sampling` can be."""
  return code in (NONE, UNKNOWN, MIXED) or sampling_lib.of_code(code) is not None


def combined(seen: int, current: int) -> int:
  """The sampling of all steps, of those before and of others."""
  if NONE in (seen, current) or seen == current:
    return max(seen, current)
  return max(seen, current) if max(seen, current) >= UNKNOWN else MIXED


OTHER_PLANS = -1
"""In place of a plan's number: steps were released under several plans."""


class Counts(NamedTuple):
  """What was released from one set of variables.

  Attributes:
    released_steps: Noisy updates.
    epochs_begun: Epochs begun, of schemes that draw epochs.
    sampling: The code of the scheme that chose all batches, or `NONE`, `UNKNOWN`
      or `MIXED`.
    plan_number: Which plan the steps were released under, or `OTHER_PLANS`.
    seeded_parts: What could be repeated, a `Seeded`.
  """

  released_steps: int = 0
  epochs_begun: int = 0
  sampling: int = NONE
  plan_number: int = 0
  seeded_parts: int = 0

  def merged(self, other: Counts) -> Counts:
    """Counts no less than either, of releases that both may have seen."""
    number = self.plan_number
    if other.released_steps and other.plan_number != number:
      number = OTHER_PLANS if self.released_steps else other.plan_number
    return Counts(
        max(self.released_steps, other.released_steps),
        max(self.epochs_begun, other.epochs_begun),
        combined(self.sampling, other.sampling), number,
        self.seeded_parts | other.seeded_parts)

  def plus(self, other: Counts) -> Counts:
    """Counts both, of releases that none of the two shares with the other."""
    return self.merged(other)._replace(
        released_steps=self.released_steps + other.released_steps,
        epochs_begun=self.epochs_begun + other.epochs_begun)

  def stepped(self, sampling: int, epochs: int, seeded: Seeded) -> Counts:
    """After one step more.

    Args:
      sampling: How its batch was chosen.
      epochs: How many epochs begin with it.
      seeded: What of its randomness can be repeated.
    """
    return Counts(self.released_steps + 1, self.epochs_begun + epochs,
                  combined(self.sampling, sampling), self.plan_number,
                  self.seeded_parts | int(seeded))
