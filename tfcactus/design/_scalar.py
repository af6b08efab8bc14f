"""From a budget to a certified ScalarTable: shared by cactus and monotone."""

from __future__ import annotations

import dataclasses
from typing import Any
from typing import Callable
from typing import ClassVar
from typing import Optional

import numpy as np

from tfcactus import _checks
from tfcactus.design import cost as cost_lib
from tfcactus.design.solvers import convex_program
from tfcactus.design.solvers import divergence
from tfcactus.design.solvers import grid
from tfcactus.noise import scalar_table

SOLVERS = ('interior-point', 'cvxpy')
"""Solvers by name."""

TOLERANCE = {'interior-point': 1e-8, 'cvxpy': 1e-3}
"""Largest relative duality gap with which each solver's table is accepted."""

MAX_UNKNOWNS = 50_000
"""More cells than this take minutes and describe nothing better."""

_DEFAULT_CELLS = 1500
"""Cells that the default resolution does not exceed."""

_REFINE = 5
"""Cells of the coarse grid that finds the active shifts are wider by this."""

_SMALL = 200
"""Unknowns below which a coarse grid saves nothing."""

_SKELETON = 20
"""Shifts of all sizes that are constrained whether they bind or not."""

_ROUNDS = 10
"""How often violated shifts may be added."""


@dataclasses.dataclass(frozen=True)
class ScalarSpec:
  """A checked request for a scalar design, its defaults filled in."""

  mechanism: str
  objective: str
  budget: float
  cost: Any
  bins: int
  cells: int
  log_tail_ratio: float
  solver: str
  monotone: bool

  def parameters(self) -> dict[str, Any]:
    """The request as JSON values."""
    power = isinstance(self.cost, cost_lib.PowerCost)
    return {'budget': self.budget, 'power': self.cost.power if power else None,
            'bins': self.bins, 'cells': self.cells, 'tail_ratio': float(
                np.exp(self.log_tail_ratio)), 'objective': self.objective}

  def program(self, shifts: np.ndarray) -> convex_program.Program:
    """Program (20) with the constraints of these shifts."""
    return grid.scalar_program(
        self.objective, self.bins, self.cells, self.log_tail_ratio, self.cost,
        self.budget, shifts, self.monotone)

  def all_shifts(self) -> np.ndarray:
    """Every whole-cell shift of at most the sensitivity."""
    return np.arange(1, self.bins + 1)


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


def check_program(power: Any, cost: Any, solver: Any, objective: Any) -> Any:
  """Checks what every request has; returns its cost."""
  made = cost_lib.make(power, cost)
  check_choice('solver', solver, SOLVERS)
  divergence.parse(objective)
  return made


@dataclasses.dataclass(frozen=True)
class ScalarRequest:
  """A scalar design, checked when it is made.

  Attributes:
    budget: Bound on E|Z|^power, in units of sensitivity^power.
    power: The cost is |z|^power.
    bins: Cells per unit of sensitivity (n of the paper); None for 20, more for
      narrow noise and fewer for very wide noise.
    cells: Index of the last free cell (N); None chooses it from the budget.
    tail_ratio: Density ratio r in (0, 1) of neighbouring cells beyond `cells`;
      None matches it to the budget.
    objective: 'kl' for many full releases, 'chi2' for subsampled training,
      'renyi:A', or one of them followed by '@Q' for releases subsampled at
      rate Q (see `divergence.parse`).
    solver: 'interior-point' or 'cvxpy' (small bins only, needs cvxpy).
    cost: Another cost, as a function of an array of distances in units of
      sensitivity; it replaces |z|^power and must meet the papers' assumptions.

  Raises:
    ValueError: if an argument is out of range.
  """

  budget: float
  power: float = 2.0
  bins: Optional[int] = None
  cells: Optional[int] = None
  tail_ratio: Optional[float] = None
  objective: str = 'kl'
  solver: str = 'interior-point'
  cost: Optional[Callable[[np.ndarray], np.ndarray]] = None

  monotone: ClassVar[bool]
  """Whether the density must fall away from zero."""

  def __post_init__(self):
    self._spec()

  def _spec(self) -> ScalarSpec:
    kind = 'monotone' if self.monotone else 'cactus'
    return spec(
        kind if self.objective == 'kl' else f'{kind}-{self.objective}',
        objective=self.objective, budget=self.budget, power=self.power,
        cost=self.cost, bins=self.bins, cells=self.cells,
        tail_ratio=self.tail_ratio, solver=self.solver, monotone=self.monotone)

  def solve(self) -> scalar_table.ScalarTable:
    """Solves for the noise table.

    Returns:
      The table; its `info` holds objective (largest divergence over whole
      shifts), lower_bound and gap (relative), recomputed from the table.

    Raises:
      ValueError: if the grid cannot meet the budget.
      SolverError: if the optimum could not be certified.
      ImportError: if solver='cvxpy' and cvxpy is absent.
    """
    return solve(self._spec())


def spec(mechanism: str, *, objective: str, budget: Any, power: Any, cost: Any,
         bins: Optional[int], cells: Optional[int],
         tail_ratio: Optional[float], solver: Any,
         monotone: bool) -> ScalarSpec:
  """Checks a request and fills in the grid and the tail from the budget."""
  budget = _checks.positive('budget', budget)
  cost = check_program(power, cost, solver, objective)
  sigma = cost.size(budget)
  check_sigma(sigma)
  reach, slope = grid.tail_shape(objective, cost, budget, 1)
  if bins is None:
    bins = int(np.clip(np.ceil(10 / sigma), 20,
                       max(_DEFAULT_CELLS // reach, 1)))
  bins = _checks.integer('bins', bins, 1)
  if cells is None:
    cells = max(int(np.ceil(reach * bins)), bins + 1)
  cells = check_cells(cells, bins)
  if tail_ratio is not None:
    log_ratio = check_tail(tail_ratio, bins, cells)
  else:
    log_ratio = -slope / bins
  return ScalarSpec(mechanism, objective, budget, cost, bins, cells, log_ratio,
                    solver, monotone)


def solve(request: ScalarSpec) -> scalar_table.ScalarTable:
  """Solves, projects, freezes and certifies.

  Raises:
    ValueError: if the grid cannot meet the budget.
    SolverError: if the result could not be certified.
    ImportError: if solver='cvxpy' and cvxpy is absent.
  """
  if request.solver == 'cvxpy':
    from tfcactus.design.solvers import conic  # pylint: disable=import-outside-toplevel
    program, shifts = _constrained(request)
    solution = conic.solve(program, grid.exponential_start(program))
  else:
    program, shifts, solution = _optimum(request)
  p = grid.into_budget(program, solution.p)
  log_density = np.log(p * request.bins)
  if request.monotone:
    log_density = np.minimum.accumulate(log_density)
  table = scalar_table.ScalarTable.normalized(request.bins, log_density,
                                        request.log_tail_ratio)
  # Shifts without a multiplier are checked to lie below those with one.
  theta = np.zeros(request.bins)
  theta[shifts - 1] = solution.theta
  certificate = certify(request, table, theta, solution.price)
  info = {
      'mechanism': request.mechanism, 'parameters': request.parameters(),
      **certificate, 'solver': request.solver,
      'iterations': solution.iterations,
      'multipliers': convex_program.multipliers(theta, solution.price),
      'statement': _statement(request)}
  return dataclasses.replace(table, info=info)


def _constrained(request: ScalarSpec) -> tuple[convex_program.Program, np.ndarray]:
  """The program with every shift that may bind."""
  shifts = request.all_shifts()[request.bins - 1 if request.monotone else 0:]
  return request.program(shifts), shifts


def _optimum(request: ScalarSpec
             ) -> tuple[convex_program.Program, np.ndarray, convex_program.Solution]:
  """Coarse to fine: a coarse optimum gives the start and the active shifts."""
  from tfcactus.design.solvers import interior_point  # pylint: disable=import-outside-toplevel
  bins = max(request.bins // _REFINE, 2)
  if (request.monotone or request.cells < _SMALL or
      request.bins < 2 * bins):
    program, shifts = _constrained(request)
    solution = interior_point.solve(program, grid.exponential_start(program))
    return program, shifts, solution
  factor = request.bins / bins
  coarse = dataclasses.replace(
      request, bins=bins, cells=max(int(request.cells / factor), bins + 1),
      log_tail_ratio=request.log_tail_ratio * factor)
  _, found, rough = _optimum(coarse)
  start = np.interp(np.arange(request.cells + 1) / factor,
                    np.arange(rough.p.size), np.log(rough.p))
  # Past the coarse grid the density goes on like its tail.
  start += request.log_tail_ratio * np.maximum(
      np.arange(request.cells + 1) - factor * coarse.cells, 0)
  p, total = np.exp(start), rough.iterations
  shifts = _near(found[rough.theta > 1e-6] * factor, factor, request.bins)
  everything = request.program(request.all_shifts())
  for rounds in range(_ROUNDS):
    program = dataclasses.replace(
        everything, shifts=[everything.shifts[k - 1] for k in shifts])
    solution = interior_point.solve(program, p, warm=True)
    total += solution.iterations
    values = everything.divergences(solution.p)
    allowed = np.max(values[shifts - 1]) * (1 + 1e-13)
    if np.max(values) <= allowed:
      break
    over = np.flatnonzero(values > allowed) + 1
    keep = over[np.argsort(values[over - 1])[-8 * (rounds + 1):]]
    shifts = np.union1d(shifts, keep)
    p = solution.p
  return program, shifts, _more(solution, total - solution.iterations)


def _more(solution: convex_program.Solution, earlier: int) -> convex_program.Solution:
  """The solution, with the iterations of coarser grids counted in."""
  return dataclasses.replace(solution,
                             iterations=solution.iterations + earlier)


def _near(shifts: np.ndarray, factor: float, bins: int) -> np.ndarray:
  """Whole shifts within two coarse cells of these, and a few of all sizes.

  A few too many cost little; with too few, chains of cells come loose.
  """
  reach = int(np.ceil(2 * factor))
  around = np.round(shifts)[:, None] + np.arange(-reach, reach + 1)
  spread = np.linspace(1, bins, min(bins, _SKELETON))
  return np.unique(np.clip(np.round(np.append(around, spread)), 1, bins)
                   ).astype(int)


def certify(request: ScalarSpec, table: scalar_table.ScalarTable, theta: np.ndarray,
            price: float) -> dict[str, float]:
  """The certificate of a frozen table, over every whole-bin shift."""
  return convex_program.certify(
      request.program(request.all_shifts()),
      np.exp(table.log_density) / table.bins, theta, price,
      TOLERANCE[request.solver])


def _statement(request: ScalarSpec) -> str:
  kind = ('symmetric densities non-increasing in |z|' if request.monotone else
          'symmetric densities')
  return (
      f'Optimal among {kind} within this grid and tail class (cells of width '
      f'1/{request.bins}, geometric tails beyond cell {request.cells}) up to '
      'the stated relative gap; not a statement about other grids.')
