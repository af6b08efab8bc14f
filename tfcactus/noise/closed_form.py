"""Closed-form noise: the Gaussian in any dimension and the scalar Laplace."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any
from typing import Optional

import numpy as np
from scipy import special

from tfcactus import _checks


@dataclasses.dataclass(frozen=True)
class Gaussian:
  """i.i.d. normal coordinates: valid for an l2-clipped vector of any dimension.

  Attributes:
    noise_multiplier: Standard deviation over sensitivity.
  """

  noise_multiplier: float

  name = 'gaussian'
  monotone = True
  dim: Optional[int] = dataclasses.field(default=None, init=False, repr=False)

  def __post_init__(self):
    object.__setattr__(
        self, 'noise_multiplier',
        _checks.noise_scale('noise_multiplier', self.noise_multiplier))

  @property
  def digest(self) -> str:
    """16 hex digits naming the distribution."""
    return digest(self.name, self.noise_multiplier)

  @property
  def std(self) -> float:
    """Standard deviation of a coordinate in units of sensitivity."""
    return self.noise_multiplier

  def sample(self, rng: np.random.Generator, size: Any) -> np.ndarray:
    """Draws coordinates of shape `size`, in units of sensitivity."""
    return self.noise_multiplier * rng.standard_normal(size)

  def cdf(self, z: Any) -> np.ndarray:
    """P(Z <= z) of one coordinate."""
    return special.ndtr(np.asarray(z, dtype=np.float64) / self.noise_multiplier)

  def quantile(self, u: Any) -> np.ndarray:
    """The inverse of `cdf`."""
    return self.noise_multiplier * special.ndtri(np.asarray(u))

  def log_density_at(self, z: Any) -> np.ndarray:
    """Log density of one coordinate at `z`."""
    z = np.asarray(z, dtype=np.float64) / self.noise_multiplier
    return -0.5 * z * z - np.log(self.noise_multiplier * np.sqrt(2 * np.pi))


@dataclasses.dataclass(frozen=True)
class Laplace:
  """Laplace noise for a scalar query.

  Attributes:
    scale: The parameter b (standard deviation b sqrt 2) over sensitivity.
  """

  scale: float

  name = 'laplace'
  monotone = True
  dim: int = dataclasses.field(default=1, init=False, repr=False)

  def __post_init__(self):
    object.__setattr__(
        self, 'scale', _checks.noise_scale('scale', self.scale))

  @property
  def digest(self) -> str:
    """16 hex digits naming the distribution."""
    return digest(self.name, self.scale)

  @property
  def std(self) -> float:
    """Standard deviation in units of sensitivity."""
    return float(np.sqrt(2) * self.scale)

  @property
  def noise_multiplier(self) -> float:
    """Standard deviation over sensitivity."""
    return self.std

  def sample(self, rng: np.random.Generator, size: Any) -> np.ndarray:
    """Draws of shape `size`, in units of sensitivity."""
    return rng.laplace(scale=self.scale, size=size)

  def cdf(self, z: Any) -> np.ndarray:
    """P(Z <= z)."""
    z = np.asarray(z, dtype=np.float64) / self.scale
    return np.where(z < 0, 0.5 * np.exp(-np.abs(z)),
                    1 - 0.5 * np.exp(-np.abs(z)))

  def quantile(self, u: Any) -> np.ndarray:
    """The inverse of `cdf`."""
    u = np.asarray(u, dtype=np.float64)
    return np.where(u < 0.5, 1.0, -1.0) * self.scale * np.log(
        2 * np.minimum(u, 1 - u))

  def log_density_at(self, z: Any) -> np.ndarray:
    """Log density at `z`."""
    return -np.abs(np.asarray(z)) / self.scale - np.log(2 * self.scale)


def digest(name: str, *parameters: float) -> str:
  """16 hex digits naming a law by its name and parameters."""
  text = f'tfcactus/closed-form/{name}:' + ','.join(
      float(parameter).hex() for parameter in parameters)
  return hashlib.sha256(text.encode()).hexdigest()[:16]
