"""Sinh-normal noise: a Gaussian whose tails are lighter, doubly exponentially."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from scipy import special

from tfcactus import _checks
from tfcactus.noise import closed_form


@dataclasses.dataclass(frozen=True)
class SinhNormal:
  """bend * arsinh(sigma N(0, 1) / bend), for a scalar query.

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

  name = 'sinh-normal'
  dim: int = dataclasses.field(default=1, init=False, repr=False)

  def __post_init__(self):
    for name in ('sigma', 'bend'):
      object.__setattr__(
          self, name, _checks.noise_scale(name, getattr(self, name)))

  @property
  def digest(self) -> str:
    """16 hex digits naming the distribution."""
    return closed_form.digest(self.name, self.sigma, self.bend)

  @property
  def monotone(self) -> bool:
    """Whether the density never increases with |z|."""
    return self.bend >= self.sigma

  @property
  def std(self) -> float:
    """Standard deviation in units of sensitivity."""
    # E X^2 over the normal inside; the trapezoidal rule is exact to rounding.
    y = np.linspace(-39, 39, 4001)
    weight = np.exp(-0.5 * y * y)
    return float(np.sqrt(np.sum(weight * self._bent(y)**2) / np.sum(weight)))

  @property
  def noise_multiplier(self) -> float:
    """Standard deviation over sensitivity."""
    return self.std

  def _bent(self, normal: np.ndarray) -> np.ndarray:
    return self.bend * np.arcsinh(self.sigma / self.bend * normal)

  def _straight(self, z: Any) -> np.ndarray:
    """The standard normal that is bent to z; infinite where it overflows."""
    with np.errstate(over='ignore'):
      return self.bend / self.sigma * np.sinh(
          np.asarray(z, dtype=np.float64) / self.bend)

  def sample(self, rng: np.random.Generator, size: Any) -> np.ndarray:
    """Draws of shape `size`, in units of sensitivity."""
    return self._bent(rng.standard_normal(size))

  def cdf(self, z: Any) -> np.ndarray:
    """P(Z <= z)."""
    return special.ndtr(self._straight(z))

  def quantile(self, u: Any) -> np.ndarray:
    """The inverse of `cdf`."""
    return self._bent(special.ndtri(np.asarray(u)))

  def log_density_at(self, z: Any) -> np.ndarray:
    """Log density at `z`; -inf where it is below the least float."""
    z = np.abs(np.asarray(z, dtype=np.float64)) / self.bend
    log_cosh = z + np.log1p(np.exp(-2 * z)) - math.log(2)
    straight = self._straight(z * self.bend)
    with np.errstate(over='ignore'):
      return (log_cosh - 0.5 * straight * straight -
              math.log(self.sigma * math.sqrt(2 * math.pi)))
