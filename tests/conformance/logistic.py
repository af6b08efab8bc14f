"""An example of a law of noise of one's own: logistic noise in one file."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt
from scipy import special

from tfcactus import _checks
from tfcactus.noise import base
from tfcactus.pairs import cells
from tfcactus.pairs.dominating_pair import PairBounds
from tfcactus.randomness import fine_uniform, Random, Size


@dataclasses.dataclass(frozen=True)
class Logistic(base.ScalarNoise):
  """Logistic noise for a scalar query.

  Attributes:
    scale: The scale in units of the sensitivity.
  """

  scale: float

  kind = 'logistic'
  log_concave = True

  def __post_init__(self) -> None:
    object.__setattr__(self, 'scale', _checks.noise_scale('scale', self.scale))

  @property
  def noise_multiplier(self) -> float:
    return self.scale * math.pi / math.sqrt(3)

  def sample(self, rng: Random, size: Size) -> np.ndarray:
    sign = np.where(rng.random(size) < 0.5, -1.0, 1.0)
    return sign * self.quantile(0.5 * fine_uniform(rng, size))

  def cdf(self, z: npt.ArrayLike) -> np.ndarray:
    return special.expit(np.asarray(z) / self.scale)

  def quantile(self, u: npt.ArrayLike) -> np.ndarray:
    return self.scale * special.logit(u)

  def log_density_at(self, z: npt.ArrayLike) -> np.ndarray:
    z = np.abs(np.asarray(z)) / self.scale
    return -z - 2 * np.log1p(np.exp(-z)) - math.log(self.scale)

  def dominating_pair(self, shift: int = 1) -> PairBounds:
    """Returns bounds from cells; the loss increases, as the law is log-concave."""
    end = 40 * self.scale
    x = np.linspace(-end - shift, end, cells.CELLS + 1)
    loss = np.maximum.accumulate(
        self.log_density_at(x) - self.log_density_at(x + shift))
    # 8 is the number of quadrature nodes of a cell; the last argument of `from_cells`
    # is the mass beyond each end.
    p, q = (cells.cell_masses(lambda y, by=by: np.exp(self.log_density_at(y + by)),
                              x[:-1], np.diff(x), 8) for by in (0, shift))
    return cells.from_cells(loss, p, q, float(self.cdf(-end)))
