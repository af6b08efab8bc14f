"""Cells that tile [-range, range], counted outwards from zero; their checks."""

from __future__ import annotations

import numpy as np

from tfcactus import _checks

MAX_CELLS = 20_000
"""Largest number of cells on one side; more take minutes."""

CELLS = 400
"""Number of cells on one side that the default width aims at."""

MAX_BINS = 20
"""Largest number of cells per unit that the default aims at; it takes up to 39 more if
fewer do not tile the range."""

_WHOLE = 1e-9
"""Relative distance from a whole number that counts as rounding."""


def cell_cost(cells: int, bins: int, norm: int) -> np.ndarray:
  """Returns the mean of |z|^norm over each cell counted from zero, shape (cells,)."""
  centre = (np.arange(cells) + 0.5) / bins
  return centre if norm == 1 else centre**2 + 1 / (12 * bins**2)


def check_norm(norm: int) -> int:
  """Returns `norm` if it is 1 or 2, ValueError otherwise."""
  norm = _checks.integer('norm', norm, 1)
  if norm > 2:
    raise ValueError(f'Expected norm 1 (E|Z|) or 2 (sqrt(E Z^2)), got norm={norm}.')
  return norm


def check_range(value: float, bins: int | None) -> tuple[int, int]:
  """Returns (cells per unit, cells up to the range), both whole numbers.

  `bins` None chooses cells that tile the range. Raises ValueError if the range is at
  most 1/2, so that the noise would never hide a full change, if the cells do not tile
  it, or if there are fewer than two or more than `MAX_CELLS` up to it.
  """
  value = _checks.positive('range', value)
  if value <= 0.5:
    raise ValueError(
        'Expected range > 0.5, half the sensitivity, got '
        f'range={value!r}: the noise would never hide a full change.')
  if bins is None:
    wanted = min(max(round(CELLS / value), 1), MAX_BINS)
    bins = next((n for n in range(wanted, wanted + 40) if _is_whole(value * n)), None)
    if bins is None:
      raise ValueError(
          f'Expected a range of whole cells, got range={value!r}, which no '
          f'{wanted} to {wanted + 39} cells per unit tile; pass bins.')
  bins = _checks.count('bins', bins)
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
        f'Expected at most {MAX_CELLS} cells up to the range, got {cells}; lower bins.')
  return bins, cells


def _is_whole(value: float) -> bool:
  """Returns whether the number is whole up to rounding."""
  return abs(value - round(value)) <= _WHOLE * max(value, 1.0)


def utility_limits(cells: int, bins: int, norm: int) -> tuple[float, float]:
  """Returns (least, most) utility of tables whose density never increases with |z|."""
  # The narrowest table has the least, uniform noise the most (less a billionth).
  cost = cell_cost(cells, bins, norm)
  return (float(cost[0])**(1 / norm), float(np.mean(cost))**(1 / norm) * (1 - 1e-9))


def check_utility(value: float, cells: int, bins: int, norm: int) -> float:
  """Returns the utility; raises ValueError unless strictly within `utility_limits`."""
  value = _checks.positive('utility', value)
  name = 'E|Z|' if norm == 1 else 'sqrt(E Z^2)'
  least, most = utility_limits(cells, bins, norm)
  if value <= least:
    raise ValueError(
        f'Expected utility above {least:.6g}, the {name} that the dither inside '
        f'the two middle cells has alone, got utility={value!r}; raise the '
        'utility or bins.')
  if value >= most:
    raise ValueError(
        f'Expected utility below {most:.6g}, the {name} of uniform noise on '
        f'[-{cells / bins:g}, {cells / bins:g}], got utility={value!r}; widen '
        'the range.')
  return value
