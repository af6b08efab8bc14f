"""Passes over all examples: each example is in one batch of a pass."""

from __future__ import annotations

import dataclasses

import dp_accounting
import numpy as np

from tfcactus import relations
from tfcactus.randomness import KeyStream
from tfcactus.sampling import base


@dataclasses.dataclass(frozen=True)
class OnePassSampling(base.SizedSampling):
  """Shuffling: each epoch uses each example exactly once, in a fresh random order.

  A shuffled Keras `fit` draws such batches. No amplification by shuffling is proved for
  training, so that the account holds for any order: a pass is one noisy sum that
  includes each example. A replaced example changes the sum by up to twice the clipping
  norm, a zeroed one by up to the clipping norm.

  Attributes:
    num_examples: Size of the training set (public).
    batch_size: Examples per batch; the last batch of a pass may be smaller.
  """

  code = 3
  name = 'one_pass'
  relations = (relations.REPLACE, relations.ZERO_OUT)
  unproved = ('one more example moves others to other batches of a pass over all '
              'examples, and no account of that is known')
  draws_epochs = True
  also_public = ('the sizes of the batches',)

  @classmethod
  def of_plan(cls, plan: base.PlannedNumbers) -> OnePassSampling:
    """Returns the scheme with batches of sampling_prob * num_examples, rounded."""
    # The cost of a pass does not depend on the size of its batches.
    return cls(plan.num_examples, max(round(plan.sampling_prob * plan.num_examples), 1))

  def beside(self, count: int) -> OnePassSampling:
    # The size is rounded up, so that there are no more batches than in a pass.
    return OnePassSampling(count, -(-count // self.batches_per_epoch))

  @property
  def batches_per_epoch(self) -> int:
    """num_examples / batch_size, rounded up."""
    return -(-self.num_examples // self.batch_size)

  def draw(self, stream: KeyStream) -> list[np.ndarray]:
    """Returns the batches of a pass, in a random order of the examples."""
    order = stream.permutation(self.num_examples)
    return [order[start:start + self.batch_size]
            for start in range(0, self.num_examples, self.batch_size)]

  def event(self, noise_event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    return noise_event

  def released(self, count: int) -> str:
    return (f'{count} passes in which each example was used exactly once, no '
            'amplification by sampling')

  def check_plan(self, plan: base.PlannedNumbers) -> None:
    self._check_examples(plan)
