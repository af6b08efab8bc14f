"""Sampling schemes: how the batches of steps are chosen, and what that is worth.

One scheme a file, in NumPy; `tfcactus.keras.batches` feeds Keras by them.
"""

from __future__ import annotations

from typing import Optional
from typing import Tuple
from typing import Type

from tfcactus.sampling.base import SamplingScheme
from tfcactus.sampling.fixed_size import FixedSizeSampling
from tfcactus.sampling.one_pass import OnePassSampling
from tfcactus.sampling.poisson import PoissonSampling
from tfcactus.sampling.random_allocation import RandomAllocationSampling

SCHEMES: Tuple[Type[SamplingScheme], ...] = (
    PoissonSampling,
    FixedSizeSampling,
    OnePassSampling,
    RandomAllocationSampling,
)
"""All schemes that are accounted for; one that is not listed has no epsilon."""


def of_code(code: int) -> Optional[Type[SamplingScheme]]:
  """The scheme listed under a code, or None."""
  return next((scheme for scheme in SCHEMES if scheme.code == code), None)


__all__ = ['FixedSizeSampling', 'OnePassSampling', 'PoissonSampling',
           'RandomAllocationSampling', 'SamplingScheme', 'SCHEMES', 'of_code']
