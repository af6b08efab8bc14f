"""Random allocation (balls-in-bins): each example draws one batch of an epoch."""

from __future__ import annotations

import dataclasses

import dp_accounting
import numpy as np

from tfcactus.accounting import RandomAllocationDpEvent
from tfcactus.randomness import KeyStream
from tfcactus.sampling import base


@dataclasses.dataclass(frozen=True)
class RandomAllocationSampling(base.DealtSampling):
  """Random allocation (balls-in-bins): examples enter one batch of each epoch.

  The batch is drawn uniformly and independently, anew for each epoch. Batch sizes
  vary, and a batch may be empty. Accounts count an interrupted epoch as a whole one.

  Attributes:
    num_examples: Size of the training set (public).
    num_batches: Batches per epoch (public).
  """

  code = 4
  name = 'random_allocation'
  independent = True
  also_public = ('the number of batches',)

  @classmethod
  def of_plan(cls, plan: base.PlannedNumbers) -> RandomAllocationSampling:
    """Returns the scheme with 1 / sampling_prob batches; ValueError unless whole."""
    return cls(plan.num_examples, base.whole_batches(plan))

  @classmethod
  def prob_of_batch_size(cls, batch_size: int, num_examples: int, groups: int = 1
                         ) -> float:
    """Returns one over the number of batches: num_examples / batch_size rounded."""
    return 1 / max(round(1 / super().prob_of_batch_size(batch_size, num_examples)), 1)

  def draw(self, stream: KeyStream) -> list[np.ndarray]:
    return base.dealt(
        stream.integers(self.num_batches, self.num_examples), self.num_batches)

  def event(self, noise_event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    return RandomAllocationDpEvent(self.num_batches, noise_event)

  def released(self, count: int) -> str:
    return (f'{count} epochs of {self.num_batches} noisy sums, each example in one of '
            'them, drawn at random in each epoch')
