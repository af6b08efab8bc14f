"""Laplace noise for a scalar query."""

from __future__ import annotations

import dataclasses
import math

import dp_accounting
import numpy as np
import numpy.typing as npt

from tfcactus import _checks
from tfcactus._numerics import EPS
from tfcactus.noise import base
from tfcactus.pairs.cells import CELLS, counted, from_cells
from tfcactus.pairs.dominating_pair import DominatingPair, PairBounds
from tfcactus.randomness import fine_uniform, Random, Size


@dataclasses.dataclass(frozen=True)
class Laplace(base.ScalarNoise):
  """Laplace noise for a scalar query.

  Attributes:
    scale: The parameter b (standard deviation b sqrt 2) over sensitivity, from 1e-100
      to 1e100.

  Raises:
    ValueError: if the scale is out of range.
  """

  scale: float

  kind = 'laplace'
  event_type = dp_accounting.LaplaceDpEvent
  log_concave = True

  def __post_init__(self) -> None:
    object.__setattr__(self, 'scale', _checks.noise_scale('scale', self.scale))

  @property
  def noise_multiplier(self) -> float:
    """Standard deviation over sensitivity."""
    return math.sqrt(2) * self.scale

  def sample(self, rng: Random, size: Size) -> np.ndarray:
    sign = np.where(rng.random(size) < 0.5, -self.scale, self.scale)
    return sign * np.log(fine_uniform(rng, size))

  def cdf(self, z: npt.ArrayLike) -> np.ndarray:
    z = _checks.numbers_of('z', z) / self.scale
    return np.where(z < 0, 0.5 * np.exp(-np.abs(z)), 1 - 0.5 * np.exp(-np.abs(z)))

  def quantile(self, u: npt.ArrayLike) -> np.ndarray:
    u = _checks.shares('u', u, inner=True)
    return np.where(u < 0.5, 1.0, -1.0) * self.scale * np.log(2 * np.minimum(u, 1 - u))

  def log_density_at(self, z: npt.ArrayLike) -> np.ndarray:
    return -np.abs(_checks.numbers_of('z', z)) / self.scale - np.log(2 * self.scale)

  def log_mgf(self, t: float) -> float:
    """Returns log E exp(t Z), exactly; inf where it diverges."""
    rate = (self.scale * _checks.positive('t', t))**2
    return -math.log1p(-rate) if rate < 1 else math.inf

  def dominating_pair(self, shift: int = 1) -> PairBounds:
    """Returns bounds from cells between the peaks; beyond them the loss is constant."""
    top = _checks.integer('shift', shift, 1) / self.scale
    # In units of the scale: P peaks at 0, Q at `top`; u runs from Q's peak to P's.
    u = np.linspace(0.0, top, CELLS + 1)
    q = counted(0.5 * np.exp(-u[:-1]) * -math.expm1(-top / CELLS))
    # Rounding of u changes masses relatively by less than `off`. Only for top < 1400 do
    # cells exist whose masses both exceed `LEAST_CELL`.
    ends_mass = 0.5 + 0.5 * math.exp(-top)
    middle = from_cells(
        2 * u - top, q[::-1], q, 0.0, width=2 * top / CELLS, q_elsewhere=ends_mass,
        off=2 * EPS * min(top, 1400.0))
    # The two half-lines beyond the peaks are one atom each.
    loss, far = np.array([-top, top]), 0.5 * math.exp(-top)
    p = np.array([far, 0.5])
    return PairBounds(*(
        DominatingPair(np.append(part.loss, loss), np.append(part.p, p),
                       np.append(part.q, p[::-1]), part.p_inf, part.q_inf)
        for part in (middle.lower, middle.upper)))
