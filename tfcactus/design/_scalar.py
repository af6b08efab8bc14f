"""From a budget to a certified ScalarTable: shared by cactus and monotone."""

from __future__ import annotations

import dataclasses
from typing import Any
from typing import Optional

import numpy as np

from tfcactus import _checks
from tfcactus.design import _grid
from tfcactus.design import _program
from tfcactus.noise import scalar

SOLVERS = ('interior-point', 'cvxpy')
"""Solvers by name."""

TOLERANCE = {'interior-point': 1e-6, 'cvxpy': 1e-3}
"""Largest relative duality gap with which each solver's table is accepted."""

MAX_UNKNOWNS = 4000
"""The dense solver's memory and time grow with the square and the cube."""


@dataclasses.dataclass(frozen=True)
class ScalarSpec:
  """A checked request for a scalar design, its defaults filled in."""

  mechanism: str
  objective: str
  budget: float
  power: float
  bins: int
  cells: int
  log_tail_ratio: float
  solver: str
  monotone: bool

  def parameters(self) -> dict[str, Any]:
    """The request as JSON values."""
    return {'budget': self.budget, 'power': self.power, 'bins': self.bins,
            'cells': self.cells, 'tail_ratio': float(
                np.exp(self.log_tail_ratio)), 'objective': self.objective}


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
  """Returns `value` if it is one of `choices`."""
  if not isinstance(value, str) or value not in choices:
    raise ValueError(
        f'Expected {name} to be one of {", ".join(choices)}, got '
        f'{name}={value!r}.')
  return value


def check_sigma(sigma: float) -> None:
  """Refuses noise so narrow or so wide that there is nothing to design."""
  if not 0.1 <= sigma <= 100:
    raise ValueError(
        'Expected a budget for noise between 0.1 and 100 sensitivities, got '
        f'one for about {sigma:.3g} (per coordinate); noise narrower than that '
        'protects nothing, and when it is wider the Gaussian is optimal.')


def check_tail_ratio(value: Any) -> float:
  """Returns a density ratio of neighbouring cells, in (0, 1)."""
  value = _checks.real('tail_ratio', value)
  if not 0 < value < 1:
    raise ValueError(
        f'Expected tail_ratio in (0, 1), got tail_ratio={value!r}; it is the '
        'density ratio of neighbouring cells, None chooses it from the budget.')
  return value


def check_tail(tail_ratio: Any, bins: int, cells: int) -> float:
  """Returns the log of a tail ratio that suits a grid."""
  log_ratio = float(np.log(check_tail_ratio(tail_ratio)))
  low, high = np.exp(-300.0 / bins), np.exp(-0.1 / cells)
  if not np.log(low) <= log_ratio <= np.log(high):
    raise ValueError(
        f'Expected tail_ratio between {low:.6g} and {high:.9g} with '
        f'bins={bins} and cells={cells} (a tail that neither ends at once nor '
        f'outweighs the grid), got tail_ratio={tail_ratio!r}; None chooses it '
        'from the budget.')
  return log_ratio


def check_cells(cells: Any, bins: int) -> int:
  """Returns the number of cells or shells, more than one unit of them."""
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


def spec(mechanism: str, *, objective: str, budget: Any, power: Any,
         bins: Optional[int], cells: Optional[int],
         tail_ratio: Optional[float], solver: Any,
         monotone: bool) -> ScalarSpec:
  """Checks a request and fills in the grid and the tail from the budget."""
  budget = _checks.positive('budget', budget)
  power = _checks.positive('power', power)
  check_choice('solver', solver, SOLVERS)
  check_choice('objective', objective, _program.OBJECTIVES)
  sigma = budget**(1 / power)
  check_sigma(sigma)
  reach = _grid.reach(sigma, 1, objective, power)
  if bins is None:
    bins = int(np.clip(np.ceil(10 / sigma), 20, max(1500 // reach, 1)))
  bins = _checks.integer('bins', bins, 1)
  if cells is None:
    cells = max(int(np.ceil(reach * bins)), bins + 1)
  cells = check_cells(cells, bins)
  if tail_ratio is not None:
    log_ratio = check_tail(tail_ratio, bins, cells)
  else:
    log_ratio = -float(_grid.tail_slope(
        np.array([cells / bins]), sigma, 1, objective, power)[0]) / bins
  return ScalarSpec(mechanism, objective, budget, power, bins, cells, log_ratio,
                    solver, monotone)


def solve(request: ScalarSpec) -> scalar.ScalarTable:
  """Solves, projects, freezes and certifies.

  Raises:
    ValueError: if the grid cannot meet the budget.
    SolverError: if the result could not be certified.
    ImportError: if solver='cvxpy' and cvxpy is absent.
  """
  least = request.bins if request.monotone else 1
  program = _scalar_program(request, np.arange(least, request.bins + 1))
  start = _grid.exponential_start(program)
  solution = run(request.solver, program, start)
  p = _grid.into_budget(program, solution.p)
  log_density = np.log(p * request.bins)
  if request.monotone:
    log_density = np.minimum.accumulate(log_density)
  table = scalar.ScalarTable.normalized(request.bins, log_density,
                                        request.log_tail_ratio)
  theta = solution.theta
  if request.monotone:
    # Only the full shift carries a multiplier; the others are checked below it.
    theta = np.append(np.zeros(request.bins - 1), 1.0)
  certificate = certify(request, table, theta, solution.price)
  info = {
      'mechanism': request.mechanism, 'parameters': request.parameters(),
      **certificate, 'solver': request.solver,
      'iterations': solution.iterations,
      'multipliers': _program.multipliers(theta, solution.price),
      'statement': _statement(request)}
  return dataclasses.replace(table, info=info)


def run(solver: str, program: _program.Program,
        start: np.ndarray) -> _program.Solution:
  """Runs a solver by name."""
  # Imported here so that asking for one never loads the other.
  if solver == 'cvxpy':
    from tfcactus.design import _conic  # pylint: disable=import-outside-toplevel
    return _conic.solve(program, start)
  from tfcactus.design import _interior_point  # pylint: disable=import-outside-toplevel
  return _interior_point.solve(program, start)


def certify(request: ScalarSpec, table: scalar.ScalarTable, theta: np.ndarray,
            price: float) -> dict[str, float]:
  """The certificate of a frozen table, over every whole-bin shift."""
  program = _scalar_program(request, np.arange(1, request.bins + 1))
  return _program.certify(program, np.exp(table.log_density) / table.bins,
                          theta, price, TOLERANCE[request.solver])


def _scalar_program(request: ScalarSpec,
                    shifts: np.ndarray) -> _program.Program:
  return _grid.scalar_program(
      request.objective, request.bins, request.cells, request.log_tail_ratio,
      request.power, request.budget, shifts, request.monotone)


def _statement(request: ScalarSpec) -> str:
  kind = ('symmetric densities non-increasing in |z|' if request.monotone else
          'symmetric densities')
  return (
      f'Optimal among {kind} within this grid and tail class (cells of width '
      f'1/{request.bins}, geometric tails beyond cell {request.cells}) up to '
      'the stated relative gap; not a statement about other grids.')
