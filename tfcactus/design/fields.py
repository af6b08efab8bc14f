"""Checks of arguments that design requests share, and the `info` of their tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

import numpy as np

from tfcactus import _checks
from tfcactus.design.solvers import convex_program, cost as cost_lib, divergence

GAPS = {'interior-point': 1e-8, 'cvxpy': 1e-3}
"""Maximum relative duality gap of a certified design, by solver."""

MAX_UNKNOWNS = 50_000
"""Maximum number of cells; more take minutes and describe no better noise."""

SIGMAS = (0.1, 100.0)
"""Smallest and largest noise to design, in units of sensitivity per coordinate."""

CostFunction = Callable[[np.ndarray], np.ndarray]
"""Maps an array of distances from zero to costs."""


def check_program(power: object, cost: CostFunction | None, solver: object,
                  objective: object) -> cost_lib.Cost:
  """Returns the cost function of a request; raises ValueError for a bad argument."""
  checked = cost_lib.make(power, cost)
  _checks.choice('solver', solver, GAPS)
  divergence.parse(objective)
  return checked


def check_sigma(sigma: float) -> None:
  """Raises ValueError for noise outside `SIGMAS`, where there is nothing to design."""
  if not SIGMAS[0] <= sigma <= SIGMAS[1]:
    raise ValueError(
        f'Expected a budget for noise between {SIGMAS[0]:g} and {SIGMAS[1]:g} '
        f'sensitivities, got one for about {sigma:.3g} (per coordinate); noise '
        'narrower than that protects nothing, and when it is wider the Gaussian '
        'is as good.')


def check_cells(cells: object, bins: int) -> int:
  """Returns `cells`; ValueError unless above `bins`, at most `MAX_UNKNOWNS`."""
  cells = _checks.integer('cells', cells, 1)
  if cells <= bins:
    raise ValueError(
        f'Expected cells > bins, so that the grid reaches past one unit of '
        f'sensitivity, got cells={cells} and bins={bins}.')
  if cells > MAX_UNKNOWNS:
    raise ValueError(
        f'Expected cells <= {MAX_UNKNOWNS}, got cells={cells}; lower bins, or '
        'give cells and tail_ratio for a shorter grid.')
  return cells


def check_tail_ratio(value: object) -> float:
  """Returns the density ratio of neighbouring cells, checked to be in (0, 1)."""
  value = _checks.real('tail_ratio', value)
  if not 0 < value < 1:
    raise ValueError(
        f'Expected tail_ratio in (0, 1), got tail_ratio={value!r}; it is the '
        'density ratio of neighbouring cells, None chooses it from the budget.')
  return value


def check_tail(tail_ratio: object, bins: int, cells: int) -> float:
  """Returns the log of a tail ratio; ValueError if too steep or flat for the grid."""
  log_ratio = float(np.log(check_tail_ratio(tail_ratio)))
  low, high = np.exp(-300.0 / bins), np.exp(-0.1 / cells)
  if not np.log(low) <= log_ratio <= np.log(high):
    raise ValueError(
        f'Expected tail_ratio between {low:.6g} and {high:.9g} with bins={bins} and '
        f'cells={cells} (a tail that neither ends at once nor outweighs the grid), got '
        f'tail_ratio={tail_ratio!r}; None chooses it from the budget.')
  return log_ratio


def check_epsilon(value: object) -> float:
  """Returns `epsilon` >= 0; ValueError above 700, where e^epsilon overflows."""
  value = _checks.non_negative('epsilon', value)
  if value > 700:
    raise ValueError('Expected epsilon <= 700, the log of the largest ratio that '
                     f'floats hold, got epsilon={value!r}.')
  return value


def mechanism_name(kind: str, objective: str) -> str:
  """Returns the name of an optimised table; the default objective 'kl' is left out."""
  return kind if objective == 'kl' else f'{kind}-{objective}'


def certified(mechanism: str, parameters: Mapping[str, Any],
              certificate: Mapping[str, float], theta: np.ndarray,
              solution: convex_program.Solution, *, solver: str, statement: str
              ) -> dict[str, Any]:
  """Returns the `info` of a table whose certificate `design.verify` can recompute.

  `theta` holds a multiplier for each shift by 1, 2, ... cells; for shells only that of
  the unit shift.
  """
  # Multipliers are scaled to sum one. Tiny ones are left out: any give a valid bound.
  theta = np.maximum(theta, 0.0)
  theta = theta / np.sum(theta)
  shifts = {str(k + 1): float(theta[k]) for k in np.flatnonzero(theta > 1e-12)}
  return {
      'mechanism': mechanism, 'parameters': dict(parameters), **certificate,
      'solver': solver, 'iterations': solution.iterations,
      'multipliers': {'shifts': shifts, 'price': float(solution.price)},
      'statement': statement}


def uncertified(mechanism: str, parameters: Mapping[str, Any], statement: str
                ) -> dict[str, Any]:
  """Returns the `info` of a table without a proof of optimality."""
  return {
      'mechanism': mechanism, 'parameters': dict(parameters), 'objective': None,
      'lower_bound': None, 'gap': None, 'solver': None, 'statement': statement}
