"""Tables of closed-form laws: cell probabilities, size checks, fitting of a scale."""

from __future__ import annotations

from typing import Callable, TypeVar

import numpy as np
from scipy import optimize, special

from tfcactus.noise import radial_table, scalar_table

STD_ERROR = 1e-9
"""Maximum relative error of a table's noise multiplier."""

Table = TypeVar('Table', scalar_table.ScalarTable, radial_table.RadialTable)


def normal_log_mass(edges: np.ndarray) -> np.ndarray:
  """Returns log N(0, 1) probabilities between edges >= 0; shape (edges - 1,)."""
  log_above = special.log_ndtr(-edges)
  return log_above[:-1] + np.log(-np.expm1(np.diff(log_above)))


def central_log_mass(edges: np.ndarray) -> np.ndarray:
  """Returns log N(0, 1) masses between edges; only edges[0] = -edges[1] is below 0."""
  log_mass = normal_log_mass(np.maximum(edges, 0.0))
  log_mass[0] += np.log(2.0)
  return log_mass


def check_resolution(name: str, std: float, bins: int) -> None:
  """Raises ValueError if `std`, in sensitivities, is below half a cell of 1 / bins."""
  if std * bins < 0.5:
    raise ValueError(
        'Expected a standard deviation of at least half a cell, got '
        f'{name}={std:.4g} and bins={bins}; raise bins.')


def check_size(size: float, largest: int, what: str, remedy: str) -> None:
  """Raises ValueError ending in `remedy` for more than `largest` elements `what`."""
  if size > largest:
    raise ValueError(
        f'Expected at most {largest} {what}, got {size:.6g}; {remedy}.')


def match_std(build: Callable[[float], Table], target: float) -> Table:
  """Returns the table of a family whose noise multiplier is `target`.

  `build` maps a scale to a table whose noise multiplier increases with the scale.
  Raises ValueError if the grid cannot carry noise of that size.
  """
  def error(log_factor: float) -> float:
    """Returns log(noise multiplier / target) at the scale target * e^log_factor."""
    return float(np.log(
        build(target * np.exp(log_factor)).noise_multiplier / target))

  step = 1e-3
  while error(-step) > 0 or error(step) < 0:
    step *= 3
    if step > 1:
      raise ValueError(
          f'Expected a grid that can carry noise_multiplier={target!r}, got '
          'one too coarse or too short; raise bins or cells, or lower width.')
  found = optimize.brentq(error, -step, step, xtol=1e-15, rtol=1e-15)
  table = build(target * np.exp(found))
  if abs(table.noise_multiplier / target - 1) > STD_ERROR:
    raise ValueError(
        f'Expected a noise multiplier of {target!r}, got '
        f'{table.noise_multiplier!r}; use a finer grid.')
  return table
