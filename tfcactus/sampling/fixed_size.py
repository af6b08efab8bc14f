"""Batches of fixed size, drawn without replacement for each step."""

from __future__ import annotations

import dataclasses
import math

import dp_accounting
import numpy as np

from tfcactus.randomness import KeyStream
from tfcactus.sampling import base


@dataclasses.dataclass(frozen=True)
class FixedSizeSampling(base.SizedSampling):
  """Sampling without replacement: uniformly random subsets of a fixed size.

  An example that enters displaces another one, so that a sum changes by up to twice
  the clipping norm. Zero-out costs more than under Poisson sampling too: batches
  without the zeroed example have another one in its place.

  Attributes:
    num_examples: Size of the training set (public).
    batch_size: Examples per batch.
  """

  code = 2
  name = 'fixed_size'
  rows_alike = True

  @classmethod
  def of_plan(cls, plan: base.PlannedNumbers) -> FixedSizeSampling:
    """Returns the scheme of sampling_prob * num_examples; ValueError if not whole."""
    expected = plan.sampling_prob * plan.num_examples
    size = round(expected)
    if not math.isclose(size, expected, rel_tol=1e-9):
      raise ValueError(
          'Expected sampling_prob * num_examples to be a whole number for '
          f'batches of fixed size, got {expected!r}; take '
          f'sampling_prob={max(size, 1)} / {plan.num_examples}.')
    return cls(plan.num_examples, size)

  def beside(self, count: int) -> FixedSizeSampling:
    # Rounded down, so that the rate is no higher.
    size = self.batch_size * count // self.num_examples
    if not size:
      raise ValueError(
          f'Expected at least {-(-self.num_examples // self.batch_size)} canaries, so '
          f'that a step with {self.batch_size} of {self.num_examples} examples draws '
          f'one of them, got {count}; take more canaries.')
    return FixedSizeSampling(count, size)

  @property
  def batches_per_epoch(self) -> int:
    """num_examples / batch_size rounded: an epoch uses examples about once each."""
    return round(self.num_examples / self.batch_size)

  def draw(self, stream: KeyStream) -> list[np.ndarray]:
    return [stream.subset(self.batch_size, self.num_examples)]

  def event(self, noise_event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    return dp_accounting.SampledWithoutReplacementDpEvent(
        self.num_examples, self.batch_size, noise_event)

  def released(self, count: int) -> str:
    return (f'{count} noisy sums, each over {self.batch_size} of '
            f'{self.num_examples} examples drawn without replacement')

  def check_plan(self, plan: base.PlannedNumbers) -> None:
    self._check_examples(plan)
    planned = self.of_plan(plan).batch_size
    if self.batch_size != planned:
      raise ValueError(
          f'Expected batches with batch_size={planned}, the plan\'s '
          f'sampling_prob * num_examples, got batch_size={self.batch_size}.')
