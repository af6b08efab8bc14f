"""Passes over all examples, each of which is in one batch of a pass."""

from __future__ import annotations

import dataclasses
from typing import List

import dp_accounting
import numpy as np

from tfcactus import relations
from tfcactus.randomness import KeyStream
from tfcactus.sampling import base


@dataclasses.dataclass(frozen=True)
class OnePassSampling(base.SizedSampling):
  """Each example exactly once in an epoch, in a fresh random order.

  What a shuffled `fit` does. No amplification by shuffling is proved for training,
  so that a pass is accounted as what holds for any order: one noisy sum that each
  example takes part in. One that is replaced changes it by up to twice the clip
  norm, one that is zeroed by up to the clip norm.

  Attributes:
    num_examples: Size of the training set (public).
    batch_size: Examples to a batch; the last of a pass may be smaller.
  """

  code = 3
  name = 'one_pass'
  relations = (relations.REPLACE, relations.ZERO_OUT)
  unproved = ('in passes over all examples one more moves others to other batches, '
              'and no account of that is known')
  draws_epochs = True
  also_public = ('the sizes of the batches',)

  @classmethod
  def of_plan(cls, plan: base.PlannedNumbers) -> OnePassSampling:
    """Batches of about sampling_prob * num_examples; their size costs nothing."""
    return cls(plan.num_examples,
               max(round(plan.sampling_prob * plan.num_examples), 1))

  @property
  def batches_per_epoch(self) -> int:
    """num_examples / batch_size, rounded up."""
    return -(-self.num_examples // self.batch_size)

  def draw(self, stream: KeyStream) -> List[np.ndarray]:
    """The batches of a pass."""
    order = stream.permutation(self.num_examples)
    return [order[start:start + self.batch_size]
            for start in range(0, self.num_examples, self.batch_size)]

  def event(self, noise_event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    """One noisy sum, not amplified."""
    return noise_event

  def released(self, count: int) -> str:
    """As `SamplingScheme.released`."""
    return (f'{count} passes in which each example was used exactly once, no '
            'amplification by sampling')

  def check_plan(self, plan: base.PlannedNumbers) -> None:
    """Refuses a plan of another num_examples."""
    self._check_examples(plan)
