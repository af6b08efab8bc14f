"""Poisson sampling: each example enters each batch independently."""

from __future__ import annotations

import dataclasses

import dp_accounting
import numpy as np

from tfcactus import _checks, _format
from tfcactus.randomness import KeyStream
from tfcactus.sampling import base


@dataclasses.dataclass(frozen=True)
class PoissonSampling(base.SamplingScheme):
  """Poisson sampling: each example enters each batch independently with probability q.

  Batch sizes vary. An empty batch is a step like any other.

  Attributes:
    num_examples: Size of the training set (public).
    sampling_prob: The probability q, in (0, 1].
  """

  code = 1
  name = 'poisson'
  independent = True
  rows_alike = True

  num_examples: int
  sampling_prob: float

  def __post_init__(self) -> None:
    object.__setattr__(self, 'num_examples', _checks.integer(
        'num_examples', self.num_examples, 1))
    object.__setattr__(self, 'sampling_prob', _checks.sampling_prob(self.sampling_prob))

  @classmethod
  def of_plan(cls, plan: base.PlannedNumbers) -> PoissonSampling:
    return cls(plan.num_examples, plan.sampling_prob)

  @property
  def batches_per_epoch(self) -> int:
    """1 / q rounded, 2^53 at most: an epoch uses each example about once on average."""
    return max(round(min(1 / self.sampling_prob, 2.0**53)), 1)

  def of_part(self, size: int) -> PoissonSampling:
    """Returns the scheme for `size` examples, which enter with the same probability."""
    return dataclasses.replace(self, num_examples=size)

  def draw(self, stream: KeyStream) -> list[np.ndarray]:
    return [np.flatnonzero(stream.below(self.sampling_prob, self.num_examples))]

  def event(self, noise_event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    return dp_accounting.PoissonSampledDpEvent(self.sampling_prob, noise_event)

  def released(self, count: int) -> str:
    return (f'{count} noisy sums, each example taken with probability '
            f'{_format.upper(self.sampling_prob)} per step')

  def check_plan(self, plan: base.PlannedNumbers) -> None:
    self._check_examples(plan)
    if self.sampling_prob != plan.sampling_prob:
      raise ValueError(
          f'Expected batches with sampling_prob={plan.sampling_prob!r} as in the plan, '
          f'got sampling_prob={self.sampling_prob!r}; make both from the same numbers.')
