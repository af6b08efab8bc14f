"""Dominating pairs of noise: what one release under a unit shift costs.

The base pair (P, Q) is the law of the noise against the law of the noise
shifted by the sensitivity. All noise here is symmetric, so the same pair
serves for adding and for removing a record; it is passed to subsampling as the
pair for *add*.
"""

from __future__ import annotations

import functools
import math
from typing import Any
from typing import Sequence

import numpy as np
from scipy import special

from tfcactus import _checks
from tfcactus.noise import closed_form
from tfcactus.noise import radial_table
from tfcactus.noise import scalar_table
from tfcactus.noise import shell_geometry
from tfcactus.pairs import dominating_pair as pair_lib

CELLS = 1 << 14
"""Cells in which continuous losses are bracketed; the relative error of the
divergence falls with the square, here below 1e-6."""

GAUSSIAN_REACH = 12.0
"""Standard deviations kept in cells; the mass beyond is 1e-33."""

RATIO_ROUNDOFF = 1e-13
"""Bound on the relative error of the ratio of a cell's two masses."""

SUM_ROUNDOFF = 2 * np.finfo(np.float64).eps
"""Relative error of a running sum of positive masses, for each of them: half of it
for the additions, the rest for the masses."""

ROWS_AT_ONCE = 1024
"""Shells treated together, to bound memory."""

EMPTY_SHELL = 1e-27
"""Shells of less mass than this are counted as privacy failures."""


LARGEST_LOSS = 700.0
"""Losses beyond this are counted as infinite: their Q-mass is below any float."""


@functools.singledispatch
def dominating_pair(noise: Any, *, shift: int = 1) -> pair_lib.PairBounds:
  """The pair of `noise` against itself shifted by `shift` sensitivities.

  Args:
    noise: Gaussian, Laplace, SinhNormal, ScalarTable or RadialTable.
    shift: 1 for neighbours that differ in one record (add or remove), 2 for
      neighbours where one record is replaced.

  Returns:
    Pairs that bracket the tight dominating pair over all shifts of at most
    `shift` sensitivities.

  Raises:
    ValueError: if no guarantee is known for the noise.
  """
  del shift
  raise ValueError(
      'Expected noise to be a Gaussian, Laplace, SinhNormal, ScalarTable or '
      f'RadialTable, got {noise!r}.')


@functools.lru_cache(maxsize=32)
def known_pair(noise: Any, shift: int) -> pair_lib.PairBounds:
  """`dominating_pair`, computed once for the same noise."""
  return dominating_pair(noise, shift=shift)


@dominating_pair.register
def _(noise: closed_form.Gaussian, *, shift: int = 1) -> pair_lib.PairBounds:
  return gaussian_bounds(
      _checks.integer('shift', shift, 1) / noise.noise_multiplier, CELLS)


def gaussian_bounds(mu: float, cells: int) -> pair_lib.PairBounds:
  """Bounds on the pair of a normal law against itself, shifted.

  Args:
    mu: Shift over standard deviation.
    cells: Number of cells.
  """
  # The loss is mu x + mu^2 / 2 with x standard normal under P and
  # x + mu standard normal under Q.
  bottom = -GAUSSIAN_REACH - mu
  width = (GAUSSIAN_REACH - bottom) / cells
  x = bottom + width * np.arange(cells + 1)
  return from_cells(
      mu * x + 0.5 * mu * mu, mu * width, normal_cells(x[:-1], width),
      normal_cells(x[:-1] + mu, width), special.ndtr(-GAUSSIAN_REACH))


@dominating_pair.register
def _(noise: closed_form.Laplace, *, shift: int = 1) -> pair_lib.PairBounds:
  top = _checks.integer('shift', shift, 1) / noise.scale
  # In units of the scale: P has its peak at 0, Q at `top`, u runs from the
  # peak of Q back to that of P.
  u = np.linspace(0.0, top, CELLS + 1)
  q = 0.5 * np.exp(-u[:-1]) * -math.expm1(-top / CELLS)
  ends_mass = 0.5 + 0.5 * math.exp(-top)
  middle = from_cells(2 * u - top, 2 * top / CELLS, q[::-1], q, 0.0, ends_mass)
  ends = pair_lib.DominatingPair(
      np.array([-top, top]), np.array([0.5 * np.exp(-top), 0.5]),
      np.array([0.5, 0.5 * np.exp(-top)]))
  return pair_lib.PairBounds(*(_union(part, ends)
                               for part in (middle.lower, middle.upper)))


@dominating_pair.register
def _(noise: scalar_table.ScalarTable, *, shift: int = 1) -> pair_lib.PairBounds:
  cells = _checks.integer('shift', shift, 1) * noise.bins
  if noise.monotone:
    return pair_lib.PairBounds.exact(shifted_pair(noise, cells))
  return envelope(noise, cells)


@dominating_pair.register
def _(noise: radial_table.RadialTable, *, shift: int = 1) -> pair_lib.PairBounds:
  if not noise.monotone:
    raise ValueError(
        'Expected a radial table whose density never increases with the radius '
        '(only then does the full shift dominate every smaller one), got '
        f'{noise!r}.')
  return _radial_bounds(noise, _checks.integer('shift', shift, 1))


def shifted_pair(table: scalar_table.ScalarTable, cells: int
                 ) -> pair_lib.DominatingPair:
  """The exact pair of a scalar table against itself shifted by whole cells.

  Args:
    table: The noise.
    cells: The shift in cells; `table.bins` is the sensitivity.
  """
  log_p, log_q = scalar_log_masses(table, (0, cells))
  return log_mass_pair(log_p, log_q)


def scalar_log_masses(table: scalar_table.ScalarTable, shifts: Sequence[int]
                      ) -> np.ndarray:
  """Log masses of a scalar table shifted by whole cells, on common outcomes.

  Args:
    table: The noise.
    shifts: In cells.

  Returns:
    Shape (shifts, outcomes), exact but for rounding: the first and the last
    outcome are whole tails, on which no ratio of two shifts changes.
  """
  last = table.log_density.size - 1
  ratio = table.log_tail_ratio
  # With an edge at zero, cells -1, -2, ... mirror cells 0, 1, ...
  first = -last - 1 if table.edge_at_zero else -last
  index = np.arange(first + min(shifts), last + max(shifts) + 1)

  def log_mass(i):
    i = np.where(i < 0, first + last - i, i)
    beyond = np.maximum(i - last, 0)
    with np.errstate(invalid='ignore'):
      tail = np.where(beyond > 0, beyond * ratio, 0.0)
    return table.log_density[np.minimum(i, last)] + tail - np.log(table.bins)

  masses = np.stack([log_mass(index - shift) for shift in shifts])
  if np.isfinite(ratio):
    masses[:, [0, -1]] -= np.log(-np.expm1(ratio))
  return masses


def log_mass_pair(log_p: np.ndarray, log_q: np.ndarray
                  ) -> pair_lib.DominatingPair:
  """The pair of two laws on common outcomes, from their log masses."""
  total = np.sum(np.exp(log_p))
  both = np.isfinite(log_p) & np.isfinite(log_q)
  p, q = np.exp(log_p) / total, np.exp(log_q) / total
  return pair_lib.DominatingPair(
      log_p[both] - log_q[both], p[both], q[both],
      float(np.sum(p[np.isneginf(log_q)])),
      float(np.sum(q[np.isneginf(log_p)])))


def envelope(table: scalar_table.ScalarTable, cells: int) -> pair_lib.PairBounds:
  """Pairs around the largest privacy profile over the shifts 1..cells.

  The full shift of a density that is not monotone does not dominate smaller
  shifts, and no single shift does: the profiles' maximum is what holds, and it
  has a pair of its own. Shifts between whole cells lie below their whole
  neighbours, since H is convex in the mixture.

  Source: Corollary 25 of Zhu et al. (2022).
  """
  return envelope_of([pair_lib.PairBounds.exact(shifted_pair(table, k))
                      for k in range(1, cells + 1)])


def envelope_of(parts: Sequence[pair_lib.PairBounds]) -> pair_lib.PairBounds:
  """Pairs around the pointwise maximum of several privacy profiles.

  Args:
    parts: Pairs whose maximum is symmetric: with each, its reverse has a
      profile below the maximum.

  Source: Corollary 25 of Zhu et al. (2022).
  """
  log_alpha = profile_grid([part.upper for part in parts])
  alpha = np.exp(log_alpha)
  value, slope = np.zeros_like(alpha), np.zeros_like(alpha)
  upper = np.zeros_like(alpha)
  for part in parts:
    below, tangent, error = profile_at(part.lower, log_alpha)
    below = below - error
    slope = np.where(below > value, tangent, slope)
    value = np.maximum(below, value)
    profile, _, error = profile_at(part.upper, log_alpha)
    upper = np.maximum(profile + error, upper)
  return pair_lib.PairBounds(
      _tangent_pair(alpha, value, slope,
                    max(part.lower.p_inf for part in parts)),
      pair_lib.DominatingPair.from_symmetric_profile(alpha, upper))


def profile_at(pair: pair_lib.DominatingPair, log_alpha: np.ndarray
               ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """A privacy profile with its slope and a bound on its rounding error."""
  order = np.argsort(pair.loss)
  above = np.searchsorted(pair.loss[order], log_alpha, side='right')
  p, q = (np.append(np.cumsum(mass[order][::-1])[::-1], 0.0)[above]
          for mass in (pair.p, pair.q))
  error = SUM_ROUNDOFF * (pair.p.size + 4) * (p + np.exp(log_alpha) * q)
  return p - np.exp(log_alpha) * q + pair.p_inf, -q, error


def profile_grid(pairs: list[pair_lib.DominatingPair]) -> np.ndarray:
  """Non-negative losses at which a profile is evaluated: dense where mass is.

  A chord over a cell of width w and mass m costs about m w^2 / 8, so the best
  density of points goes with the cube root of the density of mass.
  """
  # What lies beyond the largest float is counted at infinity.
  top = min(max(np.max(np.abs(pair.loss), initial=0.0) for pair in pairs),
            LARGEST_LOSS)
  edges = np.linspace(0, max(top, 1e-6), 4097)
  mass = sum(np.histogram(pair.loss, edges, weights=pair.p + pair.q)[0]
             for pair in pairs)
  density = np.cbrt(mass / max(np.max(mass), 1e-300)) + 1e-3
  position = np.append(0.0, np.cumsum(density))
  return np.interp(np.linspace(0, position[-1], CELLS + 1), position, edges)


def _tangent_pair(alpha: np.ndarray, value: np.ndarray, slope: np.ndarray,
                  p_inf: float) -> pair_lib.DominatingPair:
  """The symmetric pair whose profile is the largest tangent of a convex one.

  Args:
    alpha: Shape (points,), where it is known.
    value: Shape (points,), the profile.
    slope: Shape (points,), of a tangent there.
    p_inf: What the profile falls to, or less.
  """
  # At one the profile has a kink where several meet there; of its tangents that
  # of a symmetric pair is known, and no steeper one completes to a pair.
  slope = np.append(max(slope[0], -0.5 * (1 - value[0])), slope[1:])
  slope = np.minimum(np.maximum.accumulate(slope), 0.0)
  # Where two slopes hardly differ their crossing is not known: drop one.
  keep = np.append(np.diff(slope) > 1e-13, True)
  alpha, value, slope = alpha[keep], value[keep], slope[keep]
  jump = np.diff(slope)
  crossing = (np.diff(value) + slope[:-1] * alpha[:-1] -
              slope[1:] * alpha[1:]) / -jump
  crossing = np.clip(crossing, alpha[:-1], alpha[1:])
  return pair_lib.DominatingPair.symmetric(
      np.log(crossing), crossing * jump, jump, p_inf)


def normal_cells(first: np.ndarray, width: Any) -> np.ndarray:
  """Normal probabilities of cells, to 1e-14 relatively.

  Differences of the distribution function would lose what narrow cells lack.
  Four Gauss points leave 6e-10 (width (|x| + 3))^8, by the rule's remainder.

  Args:
    first: Shape (cells,), left ends.
    width: Their widths; times |x| + 3 at most 0.2.
  """
  nodes, weights = np.polynomial.legendre.leggauss(4)
  return sum(
      (0.5 * weight * width / math.sqrt(2 * math.pi)) *
      np.exp(-0.5 * (first + 0.5 * width * (1 + node))**2)
      for node, weight in zip(nodes, weights))


def from_cells(edges: np.ndarray, width: Any, p: np.ndarray, q: np.ndarray,
               p_beyond: float, q_elsewhere: float = 0.0
               ) -> pair_lib.PairBounds:
  """Bounds from the masses of cells of increasing loss.

  Args:
    edges: Shape (cells + 1,), the losses at the cells' ends.
    width: Their distance, one for all or one for each.
    p: Shape (cells,), P-masses.
    q: Shape (cells,), Q-masses.
    p_beyond: Bound on the P-mass of losses above the last edge.
    q_elsewhere: Q-mass that the cells do not cover.
  """
  real = (p > 0) & (q > 0)
  lower = pair_lib.DominatingPair(
      np.log(p[real]) - np.log(q[real]), p[real], q[real])
  share = np.minimum(pair_lib.split_fraction(p, q, edges[:-1], width) +
                     RATIO_ROUNDOFF / -np.expm1(-width), 1.0)
  raised = np.append(p * (1 - share), 0.0) + np.append(0.0, p * share)
  real = raised > 0
  loss, raised = edges[real], raised[real]
  mass = np.exp(np.log(raised) - loss)
  # What Q lost by raising losses is seen by Q alone.
  q_inf = max(1 - float(np.sum(mass)) - q_elsewhere, p_beyond)
  return pair_lib.PairBounds(
      lower, pair_lib.DominatingPair(loss, raised, mass, p_beyond, q_inf))


def _union(first: pair_lib.DominatingPair, second: pair_lib.DominatingPair
           ) -> pair_lib.DominatingPair:
  return pair_lib.DominatingPair(
      np.concatenate([first.loss, second.loss]),
      np.concatenate([first.p, second.p]), np.concatenate([first.q, second.q]),
      first.p_inf + second.p_inf, first.q_inf + second.q_inf)


def _radial_bounds(table: radial_table.RadialTable, shift: int
                   ) -> pair_lib.PairBounds:
  """Brackets the pair of a radial table by binning shell-to-shell losses.

  The law of the noise and of the shifted noise are mirror images, so that the
  moves outwards, whose losses are positive, are enough. Of each shell, the
  probability of going further than d shells out is known to an error; adding it
  makes losses stochastically larger, since they increase outwards, and
  H(alpha) is an average of that survival function: that is the upper pair.
  Subtracting it is the lower one.
  """
  log_f, mass = table.shell_log_density, table.shell_mass
  occupied = np.flatnonzero(mass > EMPTY_SHELL)
  count = int(occupied[-1]) + 1
  geometry = (table.dim, table.first_radius / shift, table.width / shift, count)
  further, error = shell_geometry.outward(*geometry)
  band = further.shape[1] - 1
  padded = np.append(log_f, np.full(band + 1, -np.inf))
  top = max(np.max(log_f[:count] - np.maximum(
      padded[band:count + band], log_f[-1])), 1e-3)
  width = max(min(2 * top / CELLS, 1e-3), top / (4 * CELLS))
  raised, merged = _LossGrid(top, width), _LossGrid(top, width)
  for start in range(0, count, ROWS_AT_ONCE):
    rows = np.arange(start, min(start + ROWS_AT_ONCE, count))
    loss = log_f[rows, None] - padded[rows[:, None] + np.arange(1, band + 2)]
    # Beyond the band: as if it left the table, or (below) as if it stayed.
    loss[:, -1] = np.inf
    for grid, sign in ((raised, 1), (merged, -1)):
      survival = np.clip(further[rows] + sign * error[rows], 0.0, 1.0)
      survival = np.maximum.accumulate(survival[:, ::-1], axis=1)[:, ::-1]
      moved = mass[rows, None] * -np.diff(survival, axis=1, append=0.0)
      kept = (moved > 0) & ((sign > 0) | (np.arange(band + 1) < band))
      grid.add(loss[kept], moved[kept])
  return pair_lib.PairBounds(
      merged.lower(), raised.upper(float(np.sum(mass[count:]))))


class _LossGrid:
  """Accumulates atoms of positive loss on a grid of losses."""

  def __init__(self, top: float, width: float):
    self._width = width
    size = int(np.ceil(top / width)) + 4
    self._raised = np.zeros(size)
    self._p = np.zeros(size)
    self._q = np.zeros(size)
    self._p_inf = 0.0

  def add(self, loss: np.ndarray, p: np.ndarray) -> None:
    """Adds atoms; a loss of +inf goes to the mass at infinity."""
    finite = np.isfinite(loss)
    self._p_inf += float(np.sum(p[~finite]))
    loss, p = loss[finite], p[finite]
    cell = np.floor(loss / self._width).astype(np.int64)
    share = np.clip(
        -np.expm1(cell * self._width - loss - pair_lib.LOSS_ROUNDOFF) /
        -np.expm1(-self._width), 0.0, 1.0)
    size = self._p.size
    up = p * share
    self._raised += np.bincount(cell, p - up, size)
    self._raised += np.bincount(cell + 1, up, size)
    self._p += np.bincount(cell, p, size)
    self._q += np.bincount(
        cell, p * np.exp(-np.minimum(loss, LARGEST_LOSS)), size)

  def upper(self, lost: float) -> pair_lib.DominatingPair:
    """The pair of the raised atoms.

    Args:
      lost: Probability left out, counted at infinity.
    """
    loss = np.arange(self._raised.size) * self._width
    known = loss <= LARGEST_LOSS
    loss, p = loss[known], self._raised[known]
    return pair_lib.DominatingPair.symmetric(
        loss, p, p * np.exp(-loss),
        self._p_inf + lost + float(np.sum(self._raised[~known])))

  def lower(self) -> pair_lib.DominatingPair:
    """The pair of the atoms of each cell taken together."""
    real = (self._p > 0) & (self._q > 0)
    p, q = self._p[real], self._q[real]
    return pair_lib.DominatingPair.symmetric(
        np.log(p) - np.log(q), p, q, self._p_inf)
