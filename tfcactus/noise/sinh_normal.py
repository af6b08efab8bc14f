"""Sinh-normal noise: normal near zero, with doubly exponentially light tails."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt
from scipy import special

from tfcactus import _checks
from tfcactus.noise import base, sinh_normal_pairs
from tfcactus.pairs.dominating_pair import PairBounds
from tfcactus.randomness import Random, Size


@dataclasses.dataclass(frozen=True)
class SinhNormal(base.ScalarNoise):
  """Sinh-normal noise, bend * arsinh(sigma N(0, 1) / bend), for a scalar query.

  Near zero it is N(0, sigma^2); beyond `bend` it grows like the logarithm of a
  normal. The density has one peak, and is log-concave, if and only if
  bend >= sigma; only then is the closed form accounted.

  Attributes:
    sigma: Standard deviation of the normal inside, over the sensitivity.
    bend: Where the tails turn (A of the paper), in units of sensitivity.

  Raises:
    ValueError: if an argument is out of range.

  Source: section 4 of Bun, Dwork, Rothblum and Steinke, "Composable and
  Versatile Privacy via Truncated CDP" (STOC 2018).
  """

  sigma: float
  bend: float

  kind = 'sinh-normal'

  def __post_init__(self) -> None:
    for name in ('sigma', 'bend'):
      object.__setattr__(
          self, name, _checks.noise_scale(name, getattr(self, name)))

  @property
  def monotone(self) -> bool:
    """Whether the density never increases with |z|."""
    return self.bend >= self.sigma

  @property
  def log_concave(self) -> bool:
    """Whether the density is log-concave, which holds if it has one peak."""
    return self.monotone

  def check_accounted(self) -> None:
    """Checks that the full shift dominates every smaller one.

    Raises:
      ValueError: if bend < sigma, where the density has two peaks.
    """
    if not self.monotone:
      raise ValueError(
          'Expected sinh-normal noise with bend >= sigma, whose density has one '
          f'peak, got {self!r}: no shift of it dominates the others. Raise bend, '
          'or use the table of tfcactus.design.DiscretizedSinhNormal, which is '
          'accounted over all shifts.')

  @property
  def noise_multiplier(self) -> float:
    """Standard deviation over sensitivity."""
    # E X^2 over the normal inside; the trapezoidal rule is exact to rounding.
    y = np.linspace(-39, 39, 4001)
    weight = np.exp(-0.5 * y * y)
    return float(np.sqrt(np.sum(weight * self._bent(y)**2) / np.sum(weight)))

  def _bent(self, normal: np.ndarray) -> np.ndarray:
    return self.bend * np.arcsinh(self.sigma / self.bend * normal)

  def _straight(self, z: npt.ArrayLike) -> np.ndarray:
    """Returns the standard normal value that is bent to z; infinite on overflow."""
    with np.errstate(over='ignore'):
      return self.bend / self.sigma * np.sinh(
          np.asarray(z, dtype=np.float64) / self.bend)

  def sample(self, rng: Random, size: Size) -> np.ndarray:
    """Draws noise of shape `size`, in units of sensitivity."""
    return self._bent(rng.standard_normal(size))

  def cdf(self, z: npt.ArrayLike) -> np.ndarray:
    """Returns P(Z <= z)."""
    return special.ndtr(self._straight(z))

  def quantile(self, u: npt.ArrayLike) -> np.ndarray:
    """Returns the inverse of `cdf`."""
    return self._bent(special.ndtri(np.asarray(u)))

  def log_density_at(self, z: npt.ArrayLike) -> np.ndarray:
    """Returns the log density at `z`; -inf where it is below the least float."""
    z = np.abs(np.asarray(z, dtype=np.float64)) / self.bend
    log_cosh = z + np.log1p(np.exp(-2 * z)) - math.log(2)
    straight = self._straight(z * self.bend)
    with np.errstate(over='ignore'):
      return (log_cosh - 0.5 * straight * straight -
              math.log(self.sigma * math.sqrt(2 * math.pi)))

  def log_mgf(self, t: float) -> float:
    """Returns an upper bound on log E exp(t Z).

    The noise is an odd, 1-Lipschitz function of a normal of standard deviation sigma.
    """
    return 0.5 * (self.sigma * t)**2

  def dominating_pair(self, shift: int = 1) -> PairBounds:
    """Returns bounds from cells, with exact Renyi moments; needs bend >= sigma."""
    self.check_accounted()
    return sinh_normal_pairs.shifted(self, _checks.integer('shift', shift, 1))
