"""Gaussian noise, and its dominating pairs: shifted, and mixed by subsampling."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Callable

import dp_accounting
import numpy as np
import numpy.typing as npt
from scipy import special

from tfcactus import _checks, _numerics
from tfcactus.noise import base
from tfcactus.pairs import allocation, cells as cells_lib, overlap
from tfcactus.pairs.cells import CELLS
from tfcactus.pairs.dominating_pair import DominatingPair, PairBounds
from tfcactus.randomness import Random, Size

MIXTURE_CELLS = 1 << 13
"""Least number of cells of a mixture over the whole line, half of it over a half-line.
Cells are narrower where the mixture has more mass."""

CELL_REACH = 0.5
"""Largest product of a mixture's mean cell width and a cell's largest distance from a
mean: about the change of a component's log density over a cell."""

LARGEST_MU = 50.0
"""Noise counts as none for shifts by more standard deviations than this, since
`dominating_pair.LOSS_ROUNDOFF` does not cover losses beyond 3,000."""

LARGEST_ALLOCATED = 25.0
"""Largest shift, in standard deviations, whose likelihood ratios fit in floats: they
reach e^612."""

_TAIL = float(special.ndtr(-cells_lib.GAUSSIAN_REACH)) * (1 + 1e-12)
"""Probability of a standard normal beyond the cells, on one side, and of cells that
count as having none (`cells.LEAST_CELL`); rounded up."""

_UNIT = 2.0**-44
"""Edges of equally wide cells are multiples of this, which floats hold up to 2^9."""


@dataclasses.dataclass(frozen=True)
class Gaussian(base.ScalarNoise):
  """Gaussian noise: i.i.d. normal coordinates.

  Protects an l2-clipped vector of any dimension. One release is the analytic Gaussian
  mechanism.

  Attributes:
    noise_multiplier: Standard deviation over sensitivity, from 1e-100 to 1e100.

  Raises:
    ValueError: if the noise multiplier is out of range.
  """

  noise_multiplier: float

  kind = 'gaussian'
  dim = None
  event_type = dp_accounting.GaussianDpEvent
  log_concave = True

  def __post_init__(self) -> None:
    object.__setattr__(
        self, 'noise_multiplier',
        _checks.noise_scale('noise_multiplier', self.noise_multiplier))

  @property
  def gaussian_std(self) -> float:
    return self.noise_multiplier

  def sample(self, rng: Random, size: Size) -> np.ndarray:
    noise = rng.standard_normal(size)
    noise *= self.noise_multiplier  # In place: a copy takes measurable time.
    return noise

  def cdf(self, z: npt.ArrayLike) -> np.ndarray:
    return special.ndtr(_checks.numbers_of('z', z) / self.noise_multiplier)

  def quantile(self, u: npt.ArrayLike) -> np.ndarray:
    return self.noise_multiplier * special.ndtri(_checks.shares('u', u, inner=True))

  def log_density_at(self, z: npt.ArrayLike) -> np.ndarray:
    z = _checks.numbers_of('z', z) / self.noise_multiplier
    return -0.5 * z * z - np.log(self.noise_multiplier * np.sqrt(2 * np.pi))

  def log_mgf(self, t: float) -> float:
    """Returns log E exp(t Z), exactly."""
    return 0.5 * (self.noise_multiplier * _checks.positive('t', t))**2

  def dominating_pair(self, shift: int = 1) -> PairBounds:
    """Returns bounds from cells of the line; the loss is linear in the output."""
    return shifted_pair(
        _checks.integer('shift', shift, 1) / self.noise_multiplier, CELLS)

  def replaced_pair(self, sampling_prob: float) -> PairBounds:
    """Returns bounds on the pair of a Poisson-sampled record and its negative."""
    # P has mean `mu`, in standard deviations, with probability `prob`, Q has mean -mu,
    # and both have mean 0 otherwise. A record of norm one and its negative attain this.
    mu, prob = 1 / self.noise_multiplier, _checks.delta(sampling_prob, 'sampling_prob')
    if mu > LARGEST_MU:
      return overlap.no_noise(prob)
    # The loss is odd and increasing in x; edges and losses are made exactly odd.
    top = cells_lib.GAUSSIAN_REACH + mu
    x = _edges(-top, top, (-mu, 0.0, mu), MIXTURE_CELLS)
    x = 0.5 * (x - x[::-1])
    p = (1 - prob) * _masses(x) + prob * _masses(x, mu)
    loss = _log_ratio(x, mu, prob)
    loss = loss - loss[::-1]
    return cells_lib.from_cells(loss, p, p[::-1], _TAIL)

  def zeroed_pair(self, sampling_prob: float) -> PairBounds:
    """Returns bounds on the pair of a zeroed record in samples of a fixed size.

    Other records may be anything. In the worst case, the record that takes the zeroed
    one's place in other samples is its negative.
    """
    # For alpha >= 1: with probability `prob`, the share of records in the sample, P has
    # mean 2 mu and Q has mean mu; otherwise both have mean 0, where the record's
    # negative is. For alpha < 1, the pair is the reversed pair of a removed record (see
    # `pairs.overlap`).
    mu, prob = 1 / self.noise_multiplier, _checks.delta(sampling_prob, 'sampling_prob')
    if mu > LARGEST_MU:
      return overlap.no_noise(prob)
    reach = cells_lib.GAUSSIAN_REACH

    def mixtures(bottom, cells):
      """Returns (edges of cells from `bottom` up, their masses under P, under Q)."""
      x = _edges(bottom, 2 * mu + reach, (0.0, mu, 2 * mu), cells)
      at_0, at_mu, at_2_mu = (_masses(x, k * mu) for k in (0, 1, 2))
      return x, (1 - prob) * at_0 + prob * at_2_mu, (1 - prob) * at_0 + prob * at_mu

    # The loss is zero at x = 1.5 mu and increasing above.
    x, p, q = mixtures(1.5 * mu, MIXTURE_CELLS // 2)
    loss = _log_ratio(x, 2 * mu, prob) - _log_ratio(x, mu, prob)
    loss[0] = 0.0
    upper = cells_lib.from_cells(loss, p, q, _TAIL).upper
    # Cells merged into one outcome each give a lower bound.
    _, p, q = mixtures(-reach, MIXTURE_CELLS)
    filled = (p > 0) & (q > 0)
    p, q = p[filled], q[filled]
    lower = DominatingPair(np.log(p) - np.log(q), p, q)
    return overlap.zeroed_by(
        PairBounds(lower, upper), shifted_pair(mu, MIXTURE_CELLS), prob)


def shifted_pair(mu: float, cells: int) -> PairBounds:
  """Returns bounds on the pair (N(0, 1), N(-mu, 1)) from `cells` cells of one width."""
  if mu > LARGEST_MU:
    return overlap.no_noise(1.0)
  # The loss is mu x + mu^2 / 2 with x standard normal under P and
  # x + mu standard normal under Q.
  reach = cells_lib.GAUSSIAN_REACH
  bottom = -math.ceil((reach + mu) / _UNIT) * _UNIT
  width = math.ceil((reach - bottom) / cells / _UNIT) * _UNIT
  x = bottom + width * np.arange(cells + 1)  # Exact.
  return cells_lib.from_cells(
      mu * x + 0.5 * mu * mu, cells_lib.normal_cells(x[:-1], width),
      cells_lib.normal_cells(x[:-1], width, mu), _TAIL, width=mu * width)


@functools.lru_cache(maxsize=32)
def allocated_pair(mu: float, bins: int, direction: str, nodes: int) -> PairBounds:
  """Returns bounds on the pair of a record in one of `bins` releases (balls-in-bins).

  `mu` is the sensitivity over the standard deviation of each release, `nodes` the
  number of quadrature nodes. P is the distribution with the record for direction
  'remove', Q for 'add'. Above `LARGEST_ALLOCATED` the bounds are crude.
  """
  always = shifted_pair(mu, CELLS)
  if mu <= LARGEST_ALLOCATED:
    return allocation.allocated(always, bins, direction, nodes)
  # A release that always has the record costs more; releasing nothing costs less.
  nothing = DominatingPair(np.zeros(1), np.ones(1), np.ones(1))
  return PairBounds(nothing, always.upper)


def grouped_pair(mu: float, weights: np.ndarray, beyond: float, cells: int,
                 loss: Callable[[np.ndarray], np.ndarray]) -> PairBounds:
  """Returns bounds on the pair of a person with several rows, in a sampled release."""
  # P, with the rows, has mean j `mu` with probability `weights[j]`, Q has mean 0, in
  # standard deviations; no mean exceeds LARGEST_MU. `loss` returns log P / Q. Samples
  # with more rows than the last weight's count as samples with that many; `beyond` is
  # their probability, which the upper pair has at infinity too.
  means = mu * np.arange(weights.size)
  reach = cells_lib.GAUSSIAN_REACH
  x = _edges(-reach, means[-1] + reach, list(means), cells)
  p = sum(weight * _masses(x, mean) for weight, mean in zip(weights, means))
  return cells_lib.from_cells(loss(x), p, _masses(x), _TAIL + beyond)


def _log_ratio(x: np.ndarray, mu: float, prob: float) -> np.ndarray:
  """Returns log of the density of (1 - prob) N(0, 1) + prob N(mu, 1) over N(0, 1)'s."""
  return _numerics.log_mixture(prob, mu * x - 0.5 * mu * mu)


def _edges(bottom: float, top: float, means: Sequence[float], cells: int) -> np.ndarray:
  """Returns edges of `cells` cells or more from `bottom` to `top`, dense at `means`."""
  # A chord over a cell of width w and mass m costs about m w^2, so the optimal density
  # of edges is proportional to the cube root of the density of mass: e^(-x^2 / 6) for
  # each mean. The constant 1/8 gives the tails edges too.
  reach = max(top - min(means), max(means) - bottom)
  cells = max(cells, int(np.ceil((top - bottom) * reach / CELL_REACH)))
  x = np.linspace(bottom, top, 8 * MIXTURE_CELLS)
  density = 1 / 8 + sum(np.exp(-(x - mean)**2 / 6) for mean in means)
  position = np.append(0.0, np.cumsum(0.5 * (density[1:] + density[:-1])))
  return np.interp(np.linspace(0, position[-1], cells + 1), position, x)


def _masses(x: np.ndarray, mean: float = 0.0) -> np.ndarray:
  """Returns probabilities of N(mean, 1) between neighbouring edges `x`."""
  return cells_lib.normal_cells(x[:-1], np.diff(x), -mean)
