"""Noise for scalar queries: a symmetric piecewise-constant density on the line.

`ScalarTable` is the law of the noise; the functions below it compute its dominating
pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math

import numpy as np
import numpy.typing as npt

from tfcactus import _checks, _numerics
from tfcactus.noise import base, table_file
from tfcactus.pairs import envelope as envelope_lib, overlap
from tfcactus.pairs.dominating_pair import DominatingPair, lower_hull, PairBounds
from tfcactus.randomness import fine_uniform, Random, Size

_SYMMETRY = 1e-9
"""Largest relative difference of mirrored masses that counts as rounding."""

_ROUNDOFF = 64 * _numerics.EPS
"""Relative rounding of computed log densities, which may hide that they are concave."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ScalarTable(table_file.NoiseTable, base.ScalarNoise):
  """A noise table on the line: symmetric, cells of equal width, geometric tails.

  Cell i (any integer) is [(i - 1/2) / bins, (i + 1/2) / bins]; the density on it
  is exp(log_density[|i|]) for |i| <= N = len(log_density) - 1, and
  exp(log_density[N] + (|i| - N) * log_tail_ratio) beyond. A shift by the
  sensitivity, one, is a shift by exactly `bins` cells.

  With `edge_at_zero` there is no middle cell: cell i >= 0 is [i / bins, (i + 1) / bins]
  and its mirror image, so that truncated noise tiles [-range, range] exactly.

  Attributes:
    bins: Cells per unit of sensitivity (n of the paper).
    log_density: Shape (N + 1,), log of the density at cells 0..N.
    log_tail_ratio: Log of the ratio of neighbouring cells beyond N, below zero
      (log r of the paper); -inf for noise that ends with cell N.
    edge_at_zero: Whether zero is the edge between two cells, not the middle of one.
    info: Provenance of the table: mechanism, budget, certificate. Not part of its
      identity.

  Raises:
    ValueError: if an argument is out of range, `log_density` has fewer than two
      entries, or the mass is not one to 1e-9.

  Source: Definition 1 of Alghamdi et al., "Cactus Mechanisms" (ISIT 2022).
  """

  bins: int
  log_density: np.ndarray
  log_tail_ratio: float
  info: table_file.Info = dataclasses.field(default_factory=dict)
  edge_at_zero: bool = False

  kind = 'scalar'

  def __post_init__(self):
    object.__setattr__(self, 'bins', _checks.count('bins', self.bins))
    self._check_table()
    object.__setattr__(
        self, 'edge_at_zero', _checks.flag('edge_at_zero', self.edge_at_zero))
    self._check_mass(self._log_cell_mass)

  @classmethod
  def normalized(cls, bins: int, log_density: npt.ArrayLike, log_tail_ratio: float,
                 info: table_file.Info | None = None, *,
                 edge_at_zero: bool = False) -> ScalarTable:
    """Builds a table from log densities known up to an additive constant."""
    bins = _checks.count('bins', bins)
    log_density = _checks.vector('log_density', log_density)
    log_tail_ratio = table_file.check_tail_ratio(log_tail_ratio)
    log_mass = _numerics.log_sum(
        _log_masses(bins, log_density, log_tail_ratio, edge_at_zero))
    return cls(bins, log_density - log_mass, log_tail_ratio, info or {}, edge_at_zero)

  @classmethod
  def from_cell_masses(cls, bins: int, masses: npt.ArrayLike,
                       info: table_file.Info | None = None) -> ScalarTable:
    """Builds truncated noise from the masses of its cells, left to right.

    Args:
      bins: Cells per unit of sensitivity.
      masses: Shape (cells,), symmetric probabilities. An even number of cells
        has an edge at zero, an odd one a cell around it; empty cells at both
        ends are left out.
      info: Provenance of the noise.

    Raises:
      ValueError: if the masses are negative, do not sum to one or are not symmetric
        (both to 1e-9), are zero between others, or fill a single cell on each side.
    """
    masses = _checks.vector('masses', masses)
    if np.any(masses < 0):
      raise ValueError(
          f'Expected masses >= 0, got {np.min(masses)!r} in cell '
          f'{int(np.argmin(masses))}.')
    if abs(np.sum(masses) - 1) > table_file.MASS_TOLERANCE:
      raise ValueError(
          f'Expected masses that sum to 1, got {np.sum(masses):.12g}; divide '
          'by the sum.')
    if np.any(np.abs(masses - masses[::-1]) > _SYMMETRY * masses):
      raise ValueError(
          'Expected masses that are the same from left to right as from right '
          'to left, got an asymmetric vector; average it with its mirror image.')
    half = masses[masses.size // 2:]
    last = int(np.flatnonzero(half)[-1])
    if np.any(half[:last + 1] == 0):
      raise ValueError(
          'Expected no empty cell between others, got mass 0 in cell '
          f'{int(np.flatnonzero(half == 0)[0])} from the middle: noise with '
          'gaps tells which side of them the value lies; fill it.')
    return cls.normalized(bins, np.log(half[:last + 1]), float('-inf'), info,
                          edge_at_zero=masses.size % 2 == 0)

  def __repr__(self) -> str:
    return (f'ScalarTable({self.name!r}, bins={self.bins}, '
            f'cells={self.log_density.size}, std={self.std:.6g}, digest={self.digest})')

  @property
  def format_version(self) -> int:
    """Version of the file layout: 2 with `edge_at_zero`, unknown to older readers."""
    return 2 if self.edge_at_zero else 1

  def _payload(self) -> dict[str, np.ndarray]:
    payload = super()._payload()
    if not self.edge_at_zero:
      del payload['edge_at_zero']
    return payload

  @property
  def width(self) -> float:
    """Width of a cell, in units of sensitivity."""
    return 1.0 / self.bins

  @property
  def range(self) -> float:
    """Largest possible |noise|, in units of sensitivity; inf with a tail."""
    if np.isfinite(self.log_tail_ratio):
      return float('inf')
    return float((self.log_density.size - 1 + self._outer) / self.bins)

  @property
  def _outer(self) -> float:
    """Distance from zero of the outer edge of cell 0, in cells."""
    return 1.0 if self.edge_at_zero else 0.5

  @functools.cached_property
  def _log_cell_mass(self) -> np.ndarray:
    """Log masses of |cell| = 0..N-1 and, in the last entry, of all |cell| >= N."""
    return _log_masses(self.bins, self.log_density, self.log_tail_ratio,
                       self.edge_at_zero)

  @functools.cached_property
  def survival(self) -> np.ndarray:
    """Shape (N + 1,): P(|cell| >= i), summed from the tail inwards.

    With `edge_at_zero`, |cell| is the number of cells between a cell and zero.
    """
    mass = np.exp(self._log_cell_mass)
    survival = np.cumsum(mass[::-1])[::-1]
    return _checks.read_only(survival / survival[0])

  @functools.cached_property
  def half_density(self) -> np.ndarray:
    """Log densities of cells 0, 1, ..., (cells,); leaves out a tail of mass 1e-30.

    Raises ValueError if that takes more than `table_file.MAX_CELLS` cells of the tail.
    """
    if np.isneginf(self.log_tail_ratio):
      return self.log_density
    with np.errstate(over='ignore'):
      count = np.ceil((table_file.LOG_TAIL_FLOOR - self._log_cell_mass[-1]) /
                      self.log_tail_ratio)
    if count > table_file.MAX_CELLS:
      raise ValueError(
          f'Expected a tail that ends within {table_file.MAX_CELLS} cells, got '
          f'log_tail_ratio={self.log_tail_ratio!r}; make the tail steeper.')
    tail = self.log_tail_ratio * np.arange(1, 1 + int(max(count, 1)))
    return _checks.read_only(
        np.append(self.log_density, self.log_density[-1] + tail))

  def moment(self, power: float) -> float:
    """Returns E|Z|^power, power > 0, in sensitivities^power, to a relative 1e-9.

    Includes the uniform dither in a cell. Raises ValueError if a tail of mass 1e-30
    counts, or the moment is beyond floats.
    """
    power = _checks.positive('power', power)
    half = self.half_density
    outer = (np.arange(half.size) + self._outer) * self.width
    with np.errstate(over='ignore', invalid='ignore'):
      integral = outer**(power + 1) / (power + 1)
      return self._moment(power, np.exp(half) * 2 * np.diff(integral, prepend=0.0))

  @functools.cached_property
  def noise_multiplier(self) -> float:
    """Standard deviation over sensitivity, including the uniform dither in a cell."""
    return float(np.sqrt(self.moment(2)))

  def log_density_at(self, z: npt.ArrayLike) -> np.ndarray:
    return self._log_density_of(self._cell_at(np.abs(_checks.numbers_of('z', z))))

  def _cell_at(self, z: np.ndarray) -> np.ndarray:
    """Returns the cell of each z >= 0, a float, inf for inf; the last holds `range`."""
    cell = np.floor(z * self.bins + 1 - self._outer)
    last = self.log_density.size - 1
    return np.where(z <= self.range, np.minimum(cell, last), cell) if np.isinf(
        self.log_tail_ratio) else cell

  def cdf(self, z: npt.ArrayLike) -> np.ndarray:
    """Returns P(Z <= z) for `z` of any shape; leaves out a tail of mass 1e-30."""
    z = _checks.numbers_of('z', z)
    distance = np.abs(z)
    density, beyond = self._cells_by_tail
    cell = np.minimum(self._cell_at(distance), density.size - 1).astype(np.int64)
    outer = (cell + self._outer) * self.width
    tail = beyond[cell] + density[cell] * np.maximum(outer - distance, 0.0)
    return np.where(z < 0, tail, 1 - tail)

  @functools.cached_property
  def _cells_by_tail(self) -> tuple[np.ndarray, np.ndarray]:
    """Density of each cell of `half_density`, and P(Z > its outer edge); (cells,)."""
    density = np.exp(self.half_density)
    mass = density * self.width
    return density, np.append(np.cumsum(mass[::-1])[::-1][1:], 0.0)

  def quantile(self, u: npt.ArrayLike) -> np.ndarray:
    """Returns the inverse of `cdf`, which leaves a tail of mass 1e-30 out, at `u`.

    Raises ValueError unless all of `u` are in (0, 1).
    """
    u = _checks.shares('u', u, inner=True)
    tail = np.minimum(u, 1 - u)  # By symmetry, quantile(1 - u) = -quantile(u).
    density, beyond = self._cells_by_tail
    # The first cell with at most `tail` mass beyond its outer edge.
    cell = np.searchsorted(-beyond, -tail, side='left')
    cell = np.minimum(cell, density.size - 1)
    inwards = (tail - beyond[cell]) / np.maximum(density[cell], 1e-300)
    z = (cell + self._outer) * self.width - inwards
    return np.where(u < 0.5, -1.0, 1.0) * np.clip(z, 0.0, self.range)

  def max_error(self, dim: int, beta: float) -> float:
    """Returns t with P(some of `dim` independent |Z| > t) <= beta, at most `range`."""
    bound = super().max_error(dim, beta)
    # Quantiles leave out a tail of mass 1e-30.
    return bound if beta > 1e-29 * dim else self.range

  def sample(self, rng: Random, size: Size) -> np.ndarray:
    """Draws noise: a cell by its mass, then a uniform point inside the cell."""
    # Source: Definition 6 of Sommer et al., "Learning Numeric Optimal Differentially
    # Private Truncated Additive Mechanisms" (2021).
    last = self.survival.size - 1
    u = fine_uniform(rng, size)
    # The largest i with survival[i] > u; survival[0] = 1 > u always holds.
    cell = last - np.searchsorted(self.survival[::-1], u, side='right')
    if np.isfinite(self.log_tail_ratio):
      # Cells beyond N have geometric masses.
      tail_cells = np.floor(np.log(fine_uniform(rng, size)) / self.log_tail_ratio)
      cell = cell + np.where(cell == last, tail_cells, 0.0)
    sign = np.where(rng.random(size) < 0.5, -1.0, 1.0)
    if self.edge_at_zero:
      # A product with 1 / bins may round to a number beyond the range.
      return sign * (cell + rng.random(size)) / self.bins
    return (sign * cell + (rng.random(size) - 0.5)) * self.width

  @functools.cached_property
  def log_concave_on_cells(self) -> bool:
    """Returns whether the density is log-concave over the cells, up to rounding."""
    log, ratio = self.log_density, self.log_tail_ratio
    slope = np.append(np.diff(log), ratio)
    if np.any(slope > 0):
      return False
    if np.all(np.diff(slope) <= 0):
      return True
    # Small rises of the slope add up over the cells of a sensitivity. So what counts is
    # how far the logs are below the least concave function above them, tail included.
    cell = np.arange(log.size, dtype=np.float64)
    corners = lower_hull(cell, -log)
    below = np.interp(cell, cell[corners], log[corners]) - log
    if np.isfinite(ratio):  # The tail, extended inwards, has to lie above all cells.
      tail = log - ratio * cell
      below[-1] = np.max(tail) - tail[-1]
    return bool(np.all(below <= _ROUNDOFF * (1 + np.abs(log))))

  def log_mgf(self, t: float) -> float:
    """Returns an upper bound on log E exp(t Z), for t > 0; inf if the tail diverges."""
    # By symmetry the mean is the integral of e^(t z) + e^(-t z) over z > 0, which has a
    # closed form on each cell; beyond the last cell it is a geometric series.
    t = _checks.positive('t', t)
    outer = (np.arange(self.log_density.size) + self._outer) * self.width
    inner = np.maximum(outer - self.width, 0.0)
    log_cell = self.log_density + np.log(-np.expm1(t * (inner - outer))) - math.log(t)
    log_terms = []
    for sign, end in ((1, outer), (-1, inner)):
      log_ratio = self.log_tail_ratio + sign * t * self.width
      if log_ratio >= 0:
        return math.inf
      log_terms.append(log_cell + sign * t * end)
      log_terms.append(log_terms[-1][-1:] + log_ratio - np.log(-np.expm1(log_ratio)))
    # The table's mass may be off by its tolerance; rounding is far less than that.
    return float(_numerics.log_sum(np.concatenate(log_terms))) + (
        2 * table_file.MASS_TOLERANCE)

  def dominating_pair(self, shift: int = 1) -> PairBounds:
    """Returns the exact pair of the full shift if monotone.

    Otherwise returns bounds over all shifts of at most `shift` sensitivities.
    """
    cells = _checks.integer('shift', shift, 1) * self.bins
    if self.monotone:
      return PairBounds.exact(shifted_pair(self, cells))
    # No single shift dominates all smaller ones. The maximum of the profiles does
    # (Corollary 25 of Zhu et al., 2022). Shifts between whole cells lie below their
    # whole neighbours, since H is convex in the mixture.
    return envelope_lib.envelope_of([
        PairBounds.exact(shifted_pair(self, k)) for k in range(1, cells + 1)])

  def replaced_pair(self, sampling_prob: float) -> PairBounds:
    """Returns the exact pair if monotone; else bounds by joint convexity."""
    if not self.monotone:
      return super().replaced_pair(sampling_prob)
    return PairBounds.exact(_mixture_pair(
        self, sampling_prob, (0, self.bins, -self.bins)))

  def zeroed_pair(self, sampling_prob: float) -> PairBounds:
    """Returns bounds from the exact mixture if monotone; else by joint convexity."""
    if not self.monotone:
      return super().zeroed_pair(sampling_prob)
    above = _mixture_pair(self, sampling_prob, (0, 2 * self.bins, self.bins))
    return overlap.zeroed_by(
        PairBounds.exact(above), base.known_pair(self, 1), sampling_prob)


def _log_masses(bins: int, log_density: np.ndarray, log_tail_ratio: float,
                edge_at_zero: bool) -> np.ndarray:
  """Returns log masses of |cell| = 0..N-1 and of all |cell| >= N; N >= 1."""
  # Cells other than a middle one count twice; the tail is a geometric series.
  log_mass = log_density - np.log(bins) + np.log(2.0)
  if log_mass.size == 1:
    raise ValueError('Expected at least two cells in log_density, got 1.')
  if not edge_at_zero:
    log_mass[0] -= np.log(2.0)
  if np.isfinite(log_tail_ratio):
    log_mass[-1] -= np.log(-np.expm1(log_tail_ratio))
  return log_mass


def shifted_pair(table: ScalarTable, cells: int) -> DominatingPair:
  """Returns the exact pair of the table (P) and its shift by `cells` cells (Q)."""
  return log_mass_pair(*_shifted_log_masses(table, (0, cells)))


def _shifted_log_masses(table: ScalarTable, shifts: Sequence[int]) -> np.ndarray:
  """Returns log masses of a table at `shifts` in cells, (shifts, outcomes)."""
  # The first and the last outcome are whole tails, on which ratios are constant.
  last, ratio = table.log_density.size - 1, table.log_tail_ratio
  # Cell i < 0 mirrors cell `first + last - i`: -1 - i with an edge at zero, else -i.
  first = -last - 1 if table.edge_at_zero else -last
  index = np.arange(first + min(shifts), last + max(shifts) + 1)
  cells = np.stack([index - shift for shift in shifts])
  masses = table._log_density_of(
      np.where(cells < 0, first + last - cells, cells)) - np.log(table.bins)
  if np.isfinite(ratio):
    masses[:, [0, -1]] -= np.log(-np.expm1(ratio))
  return masses


def log_mass_pair(log_p: np.ndarray, log_q: np.ndarray) -> DominatingPair:
  """Returns the pair of two laws on common outcomes, from their log masses."""
  # Both laws come from one table, whose total mass is one up to MASS_TOLERANCE only.
  total = np.sum(np.exp(log_p))
  both = np.isfinite(log_p) & np.isfinite(log_q)
  p, q = np.exp(log_p) / total, np.exp(log_q) / total
  return DominatingPair(
      log_p[both] - log_q[both], p[both], q[both],
      float(np.sum(p[np.isneginf(log_q)])),
      float(np.sum(q[np.isneginf(log_p)])))


def _mixture_pair(table: ScalarTable, prob: float, shifts: tuple[int, int, int]
                  ) -> DominatingPair:
  """Returns the exact pair (P, Q) of two mixtures with a common component."""
  # `shifts` are (shared, u, v) in cells. With probability `prob` P is the noise shifted
  # by u, and Q by v; otherwise both are shifted by `shared`. The callers' shifts are
  # proved to be the worst ones for monotone tables only; see `pairs.overlap`.
  prob = _checks.delta(prob, 'sampling_prob')
  shared, at_u, at_v = _shifted_log_masses(table, shifts)
  shared = np.log1p(-prob) + shared
  return log_mass_pair(np.logaddexp(shared, np.log(prob) + at_u),
                       np.logaddexp(shared, np.log(prob) + at_v))
