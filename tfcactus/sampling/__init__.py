"""Sampling schemes: how the batches of steps are drawn, and their privacy cost.

Each file has one scheme, in NumPy; `tfcactus.keras.data.batches` feeds Keras from them.
"""

from __future__ import annotations

from tfcactus.sampling.base import SamplingScheme
from tfcactus.sampling.cyclic import CyclicAllocationSampling, CyclicPoissonSampling
from tfcactus.sampling.fixed_size import FixedSizeSampling
from tfcactus.sampling.one_pass import OnePassSampling
from tfcactus.sampling.poisson import PoissonSampling
from tfcactus.sampling.random_allocation import RandomAllocationSampling

SCHEMES: tuple[type[SamplingScheme], ...] = (
    PoissonSampling,
    FixedSizeSampling,
    OnePassSampling,
    RandomAllocationSampling,
    CyclicPoissonSampling,
    CyclicAllocationSampling,
)
"""All schemes with a privacy account; a scheme that is not listed has no epsilon."""


def of_code(code: int) -> type[SamplingScheme] | None:
  """Returns the scheme listed under a code, or None."""
  return next((scheme for scheme in SCHEMES if scheme.code == code), None)


def suitable(sampling: type[SamplingScheme] | None, bands: int | None
             ) -> type[SamplingScheme]:
  """Returns the given scheme; for None Poisson, or cyclic allocation with `bands`.

  `bands` is the number of steps over which noise is correlated, None for plans without
  a correlation. Raises ValueError if `sampling` is no scheme, or is not cyclic where
  `bands` exceeds one.
  """
  if sampling is not None and not (
      isinstance(sampling, type) and issubclass(sampling, SamplingScheme)):
    raise ValueError(
        'Expected sampling to be a scheme of tfcactus.sampling, such as '
        f'CyclicAllocationSampling, got {sampling!r}.')
  if sampling is None:
    return PoissonSampling if bands is None else CyclicAllocationSampling
  if bands is not None and bands > 1 and not sampling.cyclic:
    raise ValueError(
        'Expected sampling by CyclicAllocationSampling or CyclicPoissonSampling with a '
        'correlation, whose proof needs each example to take part at most once in any '
        f'{bands} steps, its number of bands, got {sampling.__name__}.')
  return sampling


__all__ = ['CyclicAllocationSampling', 'CyclicPoissonSampling', 'FixedSizeSampling',
           'OnePassSampling', 'PoissonSampling', 'RandomAllocationSampling',
           'SamplingScheme', 'SCHEMES', 'of_code', 'suitable']
