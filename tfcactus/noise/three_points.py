"""Radial noise around three points of a line: replaced and zeroed records.

Around +e, 0 and -e an outcome has radii with r_0^2 = (r_+^2 + r_-^2) / 2 - 1, so
that the law of (r_+, r_-), two units apart, gives all three densities. It is the
shell-to-shell transition under a shift of two; within a cell of it r_0 varies by
about a shell, and the density there is taken where it is least, which raises what
follows.
"""

from __future__ import annotations

import numpy as np

from tfcactus.noise import radial_table
from tfcactus.noise import shell_geometry
from tfcactus.pairs import of_noise

REACH_ROUNDOFF = 1e-12
"""Relative error allowed to a radius."""

LARGEST_LOG = 700.0
"""Log of the largest alpha; what the profile has left there counts as infinite
losses."""


def profile(table: radial_table.RadialTable, prob: float, opposite: bool
            ) -> tuple[np.ndarray, np.ndarray]:
  """Bounds on the profile of two mixtures that share a part.

  Args:
    table: Monotone.
    prob: Share of what is drawn, at +e in the first law.
    opposite: Whether the second law's is at -e and what they share at 0 (a
      replaced record); else it is at 0 and what they share at -e (a zeroed one).

  Returns:
    (alpha, value), shape (points,): alpha from one upwards, and what the profile
    does not exceed there.
  """
  log_f, mass = table.shell_log_density, table.shell_mass
  count = int(np.flatnonzero(mass > of_noise.EMPTY_SHELL)[-1]) + 1
  transition, error = shell_geometry.transition(
      table.dim, table.first_radius / 2, table.width / 2, count)
  band = transition.shape[1] // 2
  padded = np.append(log_f, np.full(band + 1, -np.inf))
  drop = log_f[:count] - np.maximum(padded[band:count + band], log_f[-1])
  top = min(max(float(np.max(drop)), 1.0), LARGEST_LOG)
  alpha = 1 + prob * np.expm1(np.linspace(0.0, top, of_noise.CELLS + 1))
  log_alpha = np.log(alpha)
  totals = np.zeros((2, alpha.size + 1))
  terms = np.zeros(alpha.size + 1)
  for start in range(0, count, of_noise.ROWS_AT_ONCE):
    rows = np.arange(start, min(start + of_noise.ROWS_AT_ONCE, count))[:, None]
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
  # Wherever rounding moved mass, and in shells left out, it gains at most this.
  unknown = float(np.sum(mass[:count] * error) + np.sum(mass[count:]))
  return alpha, np.clip(value + prob * unknown, 0.0, 1.0)


def _densities(table: radial_table.RadialTable, log_f: np.ndarray, rows: np.ndarray,
               columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Least densities around -e and 0 over that around +e, for each cell."""
  radii = table.first_radius + table.width * np.arange(log_f.size)
  middle = np.sqrt(np.maximum(
      0.5 * (radii[rows]**2 + radii[columns]**2) - 1, 0.0))
  shell = np.ceil((middle * (1 + REACH_ROUNDOFF) - table.first_radius) /
                  table.width).astype(np.int64)
  shell = np.clip(shell, 0, log_f.size - 1)
  return (np.exp(log_f[columns] - log_f[rows]),
          np.exp(log_f[shell] - log_f[rows]))
