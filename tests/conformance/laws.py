"""Examples of every law of noise; the conformance tests cover what is listed here."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tests.conformance.logistic import Logistic
from tests.noise.tables import (
  bounded_scalar,
  gaussian_radial,
  gaussian_scalar,
  wavy_scalar,
)
from tfcactus import noise

TOY_LAWS = (Logistic,)
"""Laws that only the tests define."""


class Example(NamedTuple):
  """A law of noise, and whether a guarantee is known for it."""

  law: noise.Noise
  accounted: bool = True

  @property
  def dim(self) -> int:
    """Returns a dimension that the law protects, if any."""
    return self.law.dim or 5

  @property
  def scalar(self) -> bool:
    """Returns whether the law protects a scalar query."""
    return self.accounted and isinstance(self.law, noise.ScalarNoise)


EXAMPLES = {
    'gaussian': Example(noise.Gaussian(0.8)),
    'laplace': Example(noise.Laplace(0.7)),
    'sinh-normal': Example(noise.SinhNormal(1.0, 1.5)),
    'sinh-normal of two peaks': Example(noise.SinhNormal(3.0, 2.0), False),
    'scalar table': Example(gaussian_scalar()),
    'scalar table that ends': Example(bounded_scalar(cells=60)),
    'scalar table, not monotone': Example(wavy_scalar()),
    'radial table': Example(gaussian_radial(dim=2, sigma=0.8, bins=20, shells=160)),
    'radial table, not monotone': Example(noise.RadialTable.normalized(
        2, 0.25, 0.25, [0.0, 0.1, -3.0], -1.0), False),
    'no noise': Example(noise.NoNoise(), False),
    'logistic': Example(Logistic(0.6)),
}

ACCOUNTED = [name for name, example in EXAMPLES.items() if example.accounted]
REFUSED = [name for name, example in EXAMPLES.items() if not example.accounted]
SCALAR = [name for name, example in EXAMPLES.items() if example.scalar]
DRAWN = [name for name in EXAMPLES if name != 'no noise']


def size(law: noise.Noise, draws: np.ndarray) -> np.ndarray:
  """Returns draws of a scalar law, or norms of draws of a radial law."""
  return draws if isinstance(law, noise.ScalarNoise) else np.linalg.norm(draws, axis=1)


def cdf(law: noise.Noise, value: np.ndarray) -> np.ndarray:
  """Returns the distribution function of `size`."""
  return law.cdf(value) if isinstance(law, noise.ScalarNoise) else (
      law.radius_cdf(value))


def line(law: noise.ScalarNoise) -> tuple[np.ndarray, float]:
  """Returns points of the line midway between edges of cells, and their distance."""
  step = 1 / (20 * getattr(law, 'bins', 20))
  reach = 45 * max(law.noise_multiplier, 1)
  half = math.ceil(reach / step)
  return (np.arange(-half, half) + 0.5) * step, step


def plane(law: noise.RadialTable) -> tuple[np.ndarray, float]:
  """Returns points of the plane, shape (points, 2), and the area of each."""
  x = np.arange(-7, 7, 0.01) + 0.005
  return np.stack(np.meshgrid(x, x), -1).reshape(-1, 2), 0.01**2
