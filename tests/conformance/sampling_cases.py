"""Known facts about every sampling scheme, for the tests of all schemes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import dp_accounting
import numpy as np
import pytest

from tests.conformance.toy_sampling import ToySampling
from tfcactus import correlated, sampling
from tfcactus.accounting import RandomAllocationDpEvent
from tfcactus.randomness import KeyStream
from tfcactus.sampling import (
  CyclicAllocationSampling,
  CyclicPoissonSampling,
  FixedSizeSampling,
  OnePassSampling,
  PoissonSampling,
  RandomAllocationSampling,
  SamplingScheme,
)

_GAUSSIAN = dp_accounting.GaussianDpEvent(2.0)


@dataclasses.dataclass(frozen=True)
class Case:
  """A scheme on 40 examples and known facts about it.

  Attributes:
    scheme: A scheme that draws about ten of 40 examples a batch.
    inclusion: The probability that an example is in one batch.
    pair: The probability that two given examples are in one batch.
    sizes: Mean and variance of a batch's size.
    event: The privacy event of a draw with Gaussian noise of multiplier 2.
    words: A part of the text of `released(3)`.
    others: Schemes that a plan of sampling_prob=0.25 has to refuse.
    settings: Further arguments of a plan for this scheme.
    covers: Whether the batches of an epoch hold each example once.
  """

  scheme: SamplingScheme
  inclusion: float
  pair: float
  sizes: tuple[float, float]
  event: dp_accounting.DpEvent
  words: str
  others: tuple[SamplingScheme, ...] = ()
  settings: dict[str, Any] = dataclasses.field(default_factory=dict)
  covers: bool = True


_TWO_BANDS = {'correlation': correlated.BandedToeplitz([0.75, 0.6])}

CASES = (
    Case(PoissonSampling(40, 0.25), 0.25, 0.0625, (10.0, 7.5),
         dp_accounting.PoissonSampledDpEvent(0.25, _GAUSSIAN),
         'taken with probability 0.25 per step',
         (PoissonSampling(40, 0.24), PoissonSampling(41, 0.25))),
    Case(FixedSizeSampling(40, 10), 0.25, 0.25 * 9 / 39, (10.0, 0.0),
         dp_accounting.SampledWithoutReplacementDpEvent(40, 10, _GAUSSIAN),
         'each over 10 of 40 examples drawn without replacement',
         (FixedSizeSampling(40, 9), FixedSizeSampling(41, 10))),
    Case(OnePassSampling(40, 10), 0.25, 0.25 * 9 / 39, (10.0, 0.0), _GAUSSIAN,
         'passes in which each example was used exactly once',
         (OnePassSampling(41, 10),)),
    Case(RandomAllocationSampling(40, 4), 0.25, 0.0625, (10.0, 7.5),
         RandomAllocationDpEvent(4, _GAUSSIAN),
         '3 epochs of 4 noisy sums, each example in one of them',
         (RandomAllocationSampling(40, 5), RandomAllocationSampling(41, 4))),
    Case(CyclicPoissonSampling(40, 4, 2), 0.25, 0.0625, (10.0, 7.5),
         dp_accounting.SelfComposedDpEvent(
             dp_accounting.PoissonSampledDpEvent(0.5, _GAUSSIAN), 2),
         '3 epochs of 4 noisy sums over 2 fixed groups of examples in turn, each '
         'example of a group taken with probability 0.5',
         (CyclicPoissonSampling(40, 4, 4), CyclicPoissonSampling(40, 6, 2),
          PoissonSampling(40, 0.25)), _TWO_BANDS, covers=False),
    Case(CyclicAllocationSampling(40, 4, 2), 0.25, 0.0625, (10.0, 7.5),
         RandomAllocationDpEvent(2, _GAUSSIAN),
         '3 epochs of 4 noisy sums over 2 fixed groups of examples in turn, each '
         'example in one of the 2 of its group',
         (CyclicAllocationSampling(40, 4, 1), CyclicAllocationSampling(41, 4, 2),
          RandomAllocationSampling(40, 4)), _TWO_BANDS),
)
"""A case for each scheme of the library."""


def id_of(case: Case) -> str:
  """Returns the name of a case."""
  return case.scheme.name


TOY = Case(ToySampling(40, 4), 0.25, 0.0625, (10.0, 7.5), _GAUSSIAN,
           '3 epochs in which each example was in a random batch',
           (ToySampling(41, 4),))
"""A scheme that the library does not list; its tests list it while they run."""


@pytest.fixture(name='case', params=(*CASES, TOY), ids=id_of)
def each_case(request, monkeypatch):
  """Returns each case; a test module imports this fixture."""
  if request.param is TOY:
    monkeypatch.setattr(sampling, 'SCHEMES', (*sampling.SCHEMES, ToySampling))
  return request.param


def batches_of(scheme: SamplingScheme, stream: KeyStream, count: int
              ) -> list[np.ndarray]:
  """Returns the first batch of each of several independent draws."""
  return [scheme.draw(stream)[0] for _ in range(count)]


def far_from(case: Case, batches: list[np.ndarray], inclusion: float) -> float:
  """Returns the largest deviation of inclusions in standard deviations.

  Args:
    case: The case that drew the batches.
    batches: Batches of independent draws.
    inclusion: Assumed probability that an example is in a batch.
  """
  entered = np.zeros(case.scheme.num_examples)
  for batch in batches:
    entered[batch] += 1
  spread = math.sqrt(len(batches) * inclusion * (1 - inclusion))
  return float(np.max(np.abs(entered - len(batches) * inclusion)) / spread)


