"""Dominating pairs of radial tables: shifted, and mixtures at three points of a line.

An outcome at distances r_+, r_0 and r_- from +e, 0 and -e has r_0^2 =
(r_+^2 + r_-^2) / 2 - 1, so the joint law of (r_+, r_-), two units apart, gives all
three densities. That law is the shell-to-shell transition under a shift of two. Within
one cell of the transition r_0 varies by about a shell; the density around 0 is taken
where it is least, which raises the profile of the mixtures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tfcactus.noise import shell_geometry
from tfcactus.pairs import cells as cells_lib, dominating_pair as pair_lib, envelope

if TYPE_CHECKING:
  from tfcactus.noise.radial_table import RadialTable

ROWS_AT_ONCE = 1024
"""Shells processed together, to bound memory."""

EMPTY_SHELL = 1e-27
"""Shells beyond the last one of more mass than this count as privacy failures."""

REACH_ROUNDOFF = 1e-12
"""Relative error allowed in a radius."""

LARGEST_LOG = 700.0
"""Log of the largest alpha; the profile's value there counts as infinite losses."""


def shifted(table: RadialTable, shift: int) -> pair_lib.PairBounds:
  """Returns bounds on the pair of a radial table from binned shell-to-shell losses.

  The laws of the noise and of the shifted noise are mirror images, so the moves
  outwards, whose losses are positive, are enough. For each shell, the probability of
  moving further than d shells out is known up to an error. Adding the error makes
  losses stochastically larger, since they increase outwards, and H(alpha) is an
  average of that survival function: this is the upper pair. Subtracting the error
  gives the lower pair.
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
  width = max(min(2 * top / cells_lib.CELLS, 1e-3), top / (4 * cells_lib.CELLS))
  raised, merged = _LossGrid(top, width), _LossGrid(top, width)
  for start in range(0, count, ROWS_AT_ONCE):
    rows = np.arange(start, min(start + ROWS_AT_ONCE, count))
    loss = log_f[rows, None] - padded[rows[:, None] + np.arange(1, band + 2)]
    # Moves beyond the band: infinite loss above, left out below.
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
  """Grid of privacy losses that accumulates atoms of positive loss."""

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
        cell, p * np.exp(-np.minimum(loss, envelope.LARGEST_LOSS)), size)

  def upper(self, lost: float) -> pair_lib.DominatingPair:
    """Returns the pair of the raised atoms; probability `lost` counts at infinity."""
    loss = np.arange(self._raised.size) * self._width
    known = loss <= envelope.LARGEST_LOSS
    loss, p = loss[known], self._raised[known]
    return pair_lib.DominatingPair.symmetric(
        loss, p, p * np.exp(-loss),
        self._p_inf + lost + float(np.sum(self._raised[~known])))

  def lower(self) -> pair_lib.DominatingPair:
    """Returns the pair that merges the atoms of each cell."""
    real = (self._p > 0) & (self._q > 0)
    p, q = self._p[real], self._q[real]
    return pair_lib.DominatingPair.symmetric(
        np.log(p) - np.log(q), p, q, self._p_inf)


def three_points(table: RadialTable, prob: float, opposite: bool
            ) -> tuple[np.ndarray, np.ndarray]:
  """Returns upper bounds on the profile of two mixtures that share a component.

  `table` is monotone, and the component of share `prob` is at +e in the first law. If
  `opposite` (a replaced record), it is at -e in the second law and the shared
  component at 0; else (a zeroed record) it is at 0 and the shared one at -e.

  Returns:
    (alpha, value), shape (points,): alpha from one upwards, and values that the
    profile does not exceed there.
  """
  log_f, mass = table.shell_log_density, table.shell_mass
  count = int(np.flatnonzero(mass > EMPTY_SHELL)[-1]) + 1
  transition, error = shell_geometry.transition(
      table.dim, table.first_radius / 2, table.width / 2, count)
  band = transition.shape[1] // 2
  padded = np.append(log_f, np.full(band + 1, -np.inf))
  drop = log_f[:count] - np.maximum(padded[band:count + band], log_f[-1])
  top = min(max(float(np.max(drop)), 1.0), LARGEST_LOG)
  alpha = 1 + prob * np.expm1(np.linspace(0.0, top, cells_lib.CELLS + 1))
  log_alpha = np.log(alpha)
  totals = np.zeros((2, alpha.size + 1))
  terms = np.zeros(alpha.size + 1)
  for start in range(0, count, ROWS_AT_ONCE):
    rows = np.arange(start, min(start + ROWS_AT_ONCE, count))[:, None]
    columns = rows + np.arange(-band, band + 1)
    p = mass[rows] * transition[rows[:, 0]]
    exists = (p > 0) & (columns >= 0)
    other, middle = _densities(table, padded, rows, np.maximum(columns, 0))
    drawn, shared = (other, middle) if opposite else (middle, other)
    first = prob + (1 - prob) * shared[exists]
    second = prob * drawn[exists] + (1 - prob) * shared[exists]
    with np.errstate(divide='ignore'):
      place = np.searchsorted(log_alpha, np.log(first) - np.log(second))
    terms += np.bincount(place, minlength=alpha.size + 1)
    for total, part in zip(totals, (first, second)):
      total += np.bincount(place, p[exists] * part, alpha.size + 1)
  above, below = (np.cumsum(total[::-1])[::-1][1:] for total in totals)
  value = above - alpha * below
  value += np.finfo(np.float64).eps * (np.max(terms[1:]) + terms.size) * (
      above + alpha * below)
  # Bounds the profile's gain from mass moved by rounding and from shells left out.
  unknown = float(np.sum(mass[:count] * error) + np.sum(mass[count:]))
  return alpha, np.clip(value + prob * unknown, 0.0, 1.0)


def _densities(table: RadialTable, log_f: np.ndarray, rows: np.ndarray,
               columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns least densities around -e and 0, over that around +e, for each cell."""
  radii = table.first_radius + table.width * np.arange(log_f.size)
  middle = np.sqrt(np.maximum(
      0.5 * (radii[rows]**2 + radii[columns]**2) - 1, 0.0))
  shell = np.ceil((middle * (1 + REACH_ROUNDOFF) - table.first_radius) /
                  table.width).astype(np.int64)
  shell = np.clip(shell, 0, log_f.size - 1)
  return (np.exp(log_f[columns] - log_f[rows]),
          np.exp(log_f[shell] - log_f[rows]))
