"""The problem of designing truncated noise: cells, cost, and composed delta.

Unknown are the masses w of the mirrored pairs of cells of [-range, range],
counted outwards from zero.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from tfcactus import _checks
from tfcactus.design import _composed

NORMS = (1, 2)

MAX_CELLS = 20_000
"""More cells than this on one side take minutes."""

CELLS = 400
"""About how many cells on one side the default width gives."""

MAX_BINS = 20
"""Most cells per unit that are chosen by default."""

_WHOLE = 1e-9


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
  """What truncated noise is asked for.

  Attributes:
    bins: Cells per unit of sensitivity.
    cells: Cells between zero and the range.
    norm: 1 for E|Z|, 2 for sqrt(E Z^2).
    utility: Bound on it.
    epsilon: Where delta is minimised.
    steps: Number of releases.
    sampling_prob: Of Poisson sampling; 1 for none.
  """

  bins: int
  cells: int
  norm: int
  utility: float
  epsilon: float
  steps: int
  sampling_prob: float = 1.0

  @functools.cached_property
  def cost(self) -> np.ndarray:
    """Shape (cells,), the mean of |z|^norm over a cell, dither included."""
    return cell_cost(self.cells, self.bins, self.norm)

  @property
  def budget(self) -> float:
    """Bound on E|Z|^norm."""
    return self.utility**self.norm

  def coarser(self, bins: int) -> Problem:
    """The same problem on wider cells."""
    return dataclasses.replace(self, bins=bins,
                               cells=self.cells * bins // self.bins)

  def pairs(self, w: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Outcome masses (P, Q) of one release, in each direction that differs."""
    p, q = shifted(w, self.bins)
    if self.sampling_prob == 1:
      return [(p, q)]
    mixed = (1 - self.sampling_prob) * p + self.sampling_prob * q
    return [(mixed, p), (p, mixed)]

  def delta(self, w: np.ndarray) -> tuple[float, np.ndarray]:
    """The larger composed delta of the directions, and its derivative by w.

    Args:
      w: Shape (cells,), masses of the mirrored pairs of cells.
    """
    best = None
    for i, (p, q) in enumerate(self.pairs(w)):
      value = _composed.composed_delta(
          p, q, epsilon=self.epsilon, steps=self.steps)
      if best is None or value.delta > best[0]:
        best = value.delta, self.by_masses(i, value.by_p, value.by_q)
    return best

  def by_masses(self, direction: int, by_p: np.ndarray, by_q: np.ndarray
                ) -> np.ndarray:
    """Derivatives by w from those by a direction's (P, Q).

    Args:
      direction: Index into `pairs`.
      by_p: Shape (outcomes,), derivatives by the P-masses.
      by_q: Shape (outcomes,), derivatives by the Q-masses.
    """
    s = self.sampling_prob
    if s < 1:
      mixed, plain = (by_p, by_q) if direction == 0 else (by_q, by_p)
      by_p, by_q = (1 - s) * mixed + plain, s * mixed
    n = self.cells
    full = by_p[:2 * n] + by_q[self.bins:]
    return 0.5 * (full[n:] + full[:n][::-1])


def shifted(w: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
  """Masses of the noise and of the noise shifted by `bins` cells, aligned."""
  full = 0.5 * np.concatenate([w[::-1], w])
  nothing = np.zeros(bins)
  return np.append(full, nothing), np.append(nothing, full)


def cell_cost(cells: int, bins: int, norm: int) -> np.ndarray:
  """Shape (cells,), the mean of |z|^norm over cells counted from zero."""
  centre = (np.arange(cells) + 0.5) / bins
  return centre if norm == 1 else centre**2 + 1 / (12 * bins**2)


def check_norm(norm: int) -> int:
  """Returns the utility's norm: 1 or 2."""
  norm = _checks.integer('norm', norm, 1)
  if norm not in NORMS:
    raise ValueError(
        f'Expected norm 1 (E|Z|) or 2 (sqrt(E Z^2)), got norm={norm}.')
  return norm


def check_range(value: float, bins: int | None) -> tuple[int, int]:
  """Returns (cells per unit, cells up to the range).

  Raises:
    ValueError: if the noise would hide nothing, or cells do not tile it.
  """
  value = _checks.positive('range', value)
  if value <= 0.5:
    raise ValueError(
        'Expected range > 0.5, half the sensitivity, got '
        f'range={value!r}: the noise would never hide a full change.')
  if bins is None:
    wanted = min(max(round(CELLS / value), 1), MAX_BINS)
    bins = next((n for n in range(wanted, wanted + 40)
                 if _is_whole(value * n)), None)
    if bins is None:
      raise ValueError(
          f'Expected a range of whole cells, got range={value!r}, which no '
          f'{wanted} to {wanted + 39} cells per unit tile; pass bins.')
  elif isinstance(bins, float) and not bins.is_integer():
    raise ValueError(
        'Expected bins to be an integer, so that a change by the sensitivity '
        f'is a whole number of cells, got bins={bins!r}.')
  bins = _checks.integer('bins', bins, 1)
  if not _is_whole(value * bins):
    raise ValueError(
        'Expected cells that tile [-range, range], got '
        f'range * bins = {value * bins:.6g}; choose bins so that it is whole.')
  cells = round(value * bins)
  if cells < 2:
    raise ValueError(
        f'Expected at least two cells up to the range, got range * bins = '
        f'{cells}; raise bins.')
  if cells > MAX_CELLS:
    raise ValueError(
        f'Expected at most {MAX_CELLS} cells up to the range, got {cells}; '
        'lower bins.')
  return bins, cells


def _is_whole(value: float) -> bool:
  return abs(value - round(value)) <= _WHOLE * max(value, 1.0)


def check_utility(value: float, cells: int, bins: int, norm: int) -> float:
  """Returns the utility, if some table that falls outwards has it.

  Raises:
    ValueError: if it is below the narrowest table's or above the uniform's.
  """
  value = _checks.positive('utility', value)
  name = 'E|Z|' if norm == 1 else 'sqrt(E Z^2)'
  cost = cell_cost(cells, bins, norm)
  least, most = cost[0]**(1 / norm), float(np.mean(cost))**(1 / norm)
  if value <= least:
    raise ValueError(
        f'Expected utility above {least:.6g}, the {name} that the dither inside '
        f'the two middle cells has alone, got utility={value!r}; raise the '
        'utility or bins.')
  if value >= most * (1 - 1e-9):
    raise ValueError(
        f'Expected utility below {most:.6g}, the {name} of uniform noise on '
        f'[-{cells / bins:g}, {cells / bins:g}], got utility={value!r}; widen '
        'the range.')
  return value


def utility_of(w: np.ndarray, bins: int, norm: int) -> float:
  """E|Z| or sqrt(E Z^2) of the table with these masses."""
  cost = cell_cost(w.size, bins, norm)
  return float((w @ cost) / math.fsum(w))**(1 / norm)
