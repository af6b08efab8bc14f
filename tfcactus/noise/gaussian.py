"""Gaussian noise: i.i.d. normal coordinates, for vectors of any dimension."""

from __future__ import annotations

import dataclasses

import dp_accounting
import numpy as np
import numpy.typing as npt
from scipy import special

from tfcactus import _checks
from tfcactus.noise import base, gaussian_pairs
from tfcactus.pairs.cells import CELLS
from tfcactus.pairs.dominating_pair import PairBounds
from tfcactus.randomness import Random, Size


@dataclasses.dataclass(frozen=True)
class Gaussian(base.ScalarNoise):
  """Gaussian noise: i.i.d. normal coordinates.

  Protects an l2-clipped vector of any dimension.

  Attributes:
    noise_multiplier: Standard deviation over sensitivity.
  """

  noise_multiplier: float

  kind = 'gaussian'
  dim = None
  event_type = dp_accounting.GaussianDpEvent
  monotone = True
  log_concave = True

  def __post_init__(self) -> None:
    object.__setattr__(
        self, 'noise_multiplier',
        _checks.noise_scale('noise_multiplier', self.noise_multiplier))

  @property
  def gaussian_std(self) -> float:
    """Standard deviation, which is the noise multiplier."""
    return self.noise_multiplier

  def sample(self, rng: Random, size: Size) -> np.ndarray:
    """Draws coordinates of shape `size`, in units of sensitivity."""
    noise = rng.standard_normal(size)
    noise *= self.noise_multiplier  # In place: a copy takes measurable time.
    return noise

  def cdf(self, z: npt.ArrayLike) -> np.ndarray:
    """Returns P(Z <= z) of one coordinate."""
    return special.ndtr(np.asarray(z, dtype=np.float64) / self.noise_multiplier)

  def quantile(self, u: npt.ArrayLike) -> np.ndarray:
    """Returns the inverse of `cdf`."""
    return self.noise_multiplier * special.ndtri(np.asarray(u))

  def log_density_at(self, z: npt.ArrayLike) -> np.ndarray:
    """Returns the log density of one coordinate at `z`."""
    z = np.asarray(z, dtype=np.float64) / self.noise_multiplier
    return -0.5 * z * z - np.log(self.noise_multiplier * np.sqrt(2 * np.pi))

  def log_mgf(self, t: float) -> float:
    """Returns log E exp(t Z), exactly."""
    return 0.5 * (self.noise_multiplier * t)**2

  def dominating_pair(self, shift: int = 1) -> PairBounds:
    """Returns bounds from cells of the line, in which the privacy loss is linear."""
    return gaussian_pairs.shifted(
        _checks.integer('shift', shift, 1) / self.noise_multiplier, CELLS)

  def replaced_pair(self, sampling_prob: float) -> PairBounds:
    """Returns bounds on the pair of a record of norm one replaced by its negative."""
    return gaussian_pairs.replaced(1 / self.noise_multiplier, sampling_prob)

  def zeroed_pair(self, sampling_prob: float) -> PairBounds:
    """Returns bounds on the pair of a zeroed record of norm one among its negatives."""
    return gaussian_pairs.zeroed(1 / self.noise_multiplier, sampling_prob)
