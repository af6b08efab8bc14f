"""An example of a sampling scheme of one's own: this file and a line in `SCHEMES`."""

from __future__ import annotations

import dataclasses

import dp_accounting
import numpy as np

from tfcactus import relations
from tfcactus.randomness import KeyStream
from tfcactus.sampling.base import PlannedNumbers, SamplingScheme


@dataclasses.dataclass(frozen=True)
class ToySampling(SamplingScheme):
  """Puts each example into a random batch of its epoch.

  No amplification is claimed: each example is in one noisy sum of an epoch, and a
  zeroed one changes no other batch.
  """

  code = 999  # The number of the scheme in saved counts.
  name = 'toy'
  relations = (relations.ZERO_OUT, relations.REPLACE)
  unproved = 'the toy claims no more'  # Ends the error for other relations.
  draws_epochs = True
  also_public = ('the number of batches',)

  num_examples: int
  batches: int

  @classmethod
  def of_plan(cls, plan: PlannedNumbers) -> ToySampling:
    return cls(plan.num_examples, round(1 / plan.sampling_prob))

  @property
  def batches_per_epoch(self) -> int:
    return self.batches

  def draw(self, stream: KeyStream) -> list[np.ndarray]:
    # Each remaining example enters batch `index - 1` with probability `1 / index`,
    # so all batches are equally likely.
    bins = np.zeros(self.num_examples, np.int64)
    left = np.arange(self.num_examples)
    for index in range(self.batches, 1, -1):
      taken = stream.below(1 / index, left.size)
      bins[left[taken]] = index - 1
      left = left[~taken]
    return [np.flatnonzero(bins == index) for index in range(self.batches)]

  def event(self, noise_event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    return noise_event

  def released(self, count: int) -> str:
    return f'{count} epochs in which each example was in a random batch'

  def check_plan(self, plan: PlannedNumbers) -> None:
    self._check_examples(plan)
