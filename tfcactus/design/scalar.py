"""Scalar noise of least divergence, from a budget to a certified ScalarTable.

`Cactus` minimises the largest divergence over all shifts; the density of `Monotone`
does not increase with |z|, so that the full shift is the worst.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from tfcactus import _checks
from tfcactus.design import fields, solvers
from tfcactus.design.solvers import convex_program, grid, interior_point
from tfcactus.design.solvers.cost import Cost
from tfcactus.noise import scalar_table

_DEFAULT_CELLS = 1500
"""Maximum number of cells at the default resolution."""

_REFINE = 5
"""Ratio of the cell width of the coarse grid to the cell width of the final grid."""

_SMALL = 200
"""Number of unknowns below which a coarse grid saves no time."""

_SKELETON = 20
"""Number of shifts of all sizes that are constrained whether they bind or not."""

_ROUNDS = 10
"""Maximum number of rounds that add violated shifts."""


@dataclasses.dataclass(frozen=True)
class ScalarSpec:
  """A checked scalar request with all defaults filled in."""

  mechanism: str
  objective: str
  budget: float
  cost: Cost
  bins: int
  cells: int
  log_tail_ratio: float
  solver: str
  monotone: bool

  def program(self, shifts: np.ndarray | None = None) -> convex_program.Program:
    """Returns program (20) of the paper, with a divergence for each of `shifts`.

    They are in cells; None stands for all up to the sensitivity, 1..bins.
    """
    if shifts is None:
      shifts = np.arange(1, self.bins + 1)
    return grid.scalar_program(
        self.objective, self.bins, self.cells, self.log_tail_ratio, self.cost,
        self.budget, shifts, self.monotone)


@dataclasses.dataclass(frozen=True)
class ScalarRequest:
  """Base class of scalar design requests; checks its arguments when created.

  Attributes:
    budget: Bound on E|Z|^power, in units of sensitivity^power; on E cost(|Z|) with
      `cost`.
    power: The cost of noise z is |z|^power.
    bins: Cells per unit of sensitivity (n of the paper); None for 20, more for
      narrow noise and fewer for very wide noise.
    cells: Index of the last free cell (N); None chooses it from the budget.
    tail_ratio: Density ratio r in (0, 1) of neighbouring cells beyond `cells`;
      None chooses it from the budget.
    objective: 'kl' for many full releases, 'chi2' for subsampled training,
      'renyi:A', or one of them followed by '@Q' for releases subsampled at
      rate Q (see `divergence.parse`).
    solver: 'interior-point' or 'cvxpy' (small bins only).
    cost: Cost function that replaces |z|^power. It maps an array of distances, in
      units of sensitivity, to costs, and must meet the papers' assumptions.

  Raises:
    ValueError: if an argument is out of range.
  """

  budget: float
  power: float = 2.0
  bins: int | None = None
  cells: int | None = None
  tail_ratio: float | None = None
  objective: str = 'kl'
  solver: str = 'interior-point'
  cost: fields.CostFunction | None = None

  monotone: ClassVar[bool]
  """True if the density must not increase with |z|."""

  def __post_init__(self) -> None:
    self.spec()

  def spec(self) -> ScalarSpec:
    """Returns the request with grid and tail filled in; ValueError if out of range."""
    budget = _checks.positive('budget', self.budget)
    cost = fields.check_program(self.power, self.cost, self.solver, self.objective)
    sigma = cost.size(budget)
    fields.check_sigma(sigma)
    reach, slope = grid.tail_shape(self.objective, cost, budget, 1)
    bins = self.bins
    if bins is None:
      # At least ten cells a standard deviation, but at most `_DEFAULT_CELLS` in all.
      bins = int(np.clip(np.ceil(10 / sigma), 20, max(_DEFAULT_CELLS // reach, 1)))
    bins = _checks.count('bins', bins)
    cells = self.cells
    if cells is None:
      cells = max(int(np.ceil(reach * bins)), bins + 1)
    cells = fields.check_cells(cells, bins)
    log_ratio = (-slope / bins if self.tail_ratio is None else
                 fields.check_tail(self.tail_ratio, bins, cells))
    return ScalarSpec(
        fields.mechanism_name('monotone' if self.monotone else 'cactus',
                              self.objective),
        self.objective, budget, cost, bins, cells, log_ratio, self.solver,
        self.monotone)

  def solve(self) -> scalar_table.ScalarTable:
    """Solves the convex program, projects onto its constraints and certifies the table.

    Returns:
      The table. Its `info` holds objective (the largest divergence over whole-cell
      shifts), lower_bound and gap (relative), all recomputed from the table.

    Raises:
      ValueError: if the grid cannot meet the budget, or the solver does not take the
        objective.
      SolverError: if the optimum could not be certified.
    """
    spec = self.spec()
    program, shifts, solution = _optimum(spec)
    p = grid.into_budget(program, solution.p)
    log_density = np.log(p * spec.bins)
    if spec.monotone:
      log_density = np.minimum.accumulate(log_density)
    table = scalar_table.ScalarTable.normalized(
        spec.bins, log_density, spec.log_tail_ratio)
    # Shifts outside the program get multiplier zero; `certify` checks them too.
    theta = np.zeros(spec.bins)
    theta[shifts - 1] = solution.theta
    parameters = {
        'budget': spec.budget, 'power': spec.cost.power, 'bins': spec.bins,
        'cells': spec.cells, 'tail_ratio': float(np.exp(spec.log_tail_ratio)),
        'objective': spec.objective}
    return dataclasses.replace(table, info=fields.certified(
        spec.mechanism, parameters, certify(spec, table, theta, solution.price),
        theta, solution, solver=spec.solver, statement=(
            'Optimal among symmetric densities'
            f'{" non-increasing in |z|" if spec.monotone else ""} within this grid and '
            f'tail class (cells of width 1/{spec.bins}, geometric tails beyond cell '
            f'{spec.cells}) up to the stated relative gap; not a statement about other '
            'grids.')))


def _optimum(request: ScalarSpec
             ) -> tuple[convex_program.Program, np.ndarray, convex_program.Solution]:
  """Returns (program, its shifts in cells, uncertified solution) of a request."""
  # Large grids start from the optimum of a coarse grid, and from the shifts that bind
  # there. In rounds, the shifts whose divergence is larger than allowed are added.
  bins = max(request.bins // _REFINE, 2)
  if (request.monotone or request.solver == 'cvxpy' or request.cells < _SMALL or
      request.bins < 2 * bins):
    # If the density is monotone, the full shift is the worst.
    shifts = np.arange(request.bins if request.monotone else 1, request.bins + 1)
    program = request.program(shifts)
    return program, shifts, solvers.solve(
        program, grid.exponential_start(program), solver=request.solver)
  factor = request.bins / bins
  coarse = dataclasses.replace(
      request, bins=bins, cells=max(int(request.cells / factor), bins + 1),
      log_tail_ratio=request.log_tail_ratio * factor)
  _, rough_shifts, rough = _optimum(coarse)
  start = np.interp(np.arange(request.cells + 1) / factor,
                    np.arange(rough.p.size), np.log(rough.p))
  # np.interp is constant beyond the coarse grid: add the slope of the tail there.
  start += request.log_tail_ratio * np.maximum(
      np.arange(request.cells + 1) - factor * coarse.cells, 0)
  p, total = np.exp(start), rough.iterations
  shifts = _near(rough_shifts[rough.theta > 1e-6] * factor, factor, request.bins)
  every_shift = request.program()
  for count in range(1, _ROUNDS + 1):
    program = dataclasses.replace(
        every_shift, shifts=[every_shift.shifts[k - 1] for k in shifts])
    solution = interior_point.solve(program, p, warm=True)
    total += solution.iterations
    values = every_shift.divergences(solution.p)
    violated = np.flatnonzero(values > np.max(values[shifts - 1]) * (1 + 1e-13)) + 1
    if not violated.size or count == _ROUNDS:
      break
    # Add the worst eight in the first round, sixteen in the second, and so on.
    worst = violated[np.argsort(values[violated - 1])[-8 * count:]]
    shifts = np.union1d(shifts, worst)
    p = solution.p
  return program, shifts, dataclasses.replace(solution, iterations=total)


def _near(shifts: np.ndarray, factor: float, bins: int) -> np.ndarray:
  """Returns whole shifts within two coarse cells of `shifts`, and an even spread."""
  # A coarse cell is as wide as `factor` fine ones. Constraints on more shifts cost
  # little time. With too few shifts, some cells are in no constraint together with
  # others, and the solution is free to oscillate.
  reach = int(np.ceil(2 * factor))
  around = np.round(shifts)[:, None] + np.arange(-reach, reach + 1)
  spread = np.linspace(1, bins, min(bins, _SKELETON))
  return np.unique(np.clip(np.round(np.append(around, spread)), 1, bins)).astype(int)


def certify(request: ScalarSpec, table: scalar_table.ScalarTable, theta: np.ndarray,
            price: float) -> dict[str, float]:
  """Returns 'objective', 'lower_bound' and 'gap' of a table over all whole-cell shifts.

  `theta`, shape (bins,), and `price` are multipliers of shifts and cost. Raises
  SolverError if the relative gap exceeds `fields.GAPS`, or a constraint is not met.
  """
  return convex_program.certify(
      request.program(), np.exp(table.log_density) / table.bins, theta, price,
      fields.GAPS[request.solver])


class Cactus(ScalarRequest):
  """Request for scalar noise that minimises the largest divergence over all shifts.

  Shifts are by 1 to `bins` whole cells. For small budgets the optimal density is not
  monotone in |z|, so that its privacy must be accounted over all shifts. `Monotone` is
  often the better choice there.

  Arguments are those of `ScalarRequest`.

  Source: program (20), Theorem 2 of Alghamdi et al., "Cactus Mechanisms: Optimal
  Differential Privacy Mechanisms in the Large-Composition Regime" (ISIT 2022).
  """

  monotone = False


class Monotone(ScalarRequest):
  """Request for the density, non-increasing in |z|, of least divergence at full shift.

  For a monotone density the pair of the full shift dominates the pair of every smaller
  shift, so that one dominating pair accounts its privacy exactly.

  Arguments are those of `ScalarRequest`.

  Source: program (20) of Alghamdi et al., "Cactus Mechanisms" (ISIT 2022), with
  the monotonicity of Definition 1 and Proposition 1 of Alghamdi et al.,
  "Optimal Multidimensional Differentially Private Mechanisms in the
  Large-Composition Regime" (ISIT 2023).
  """

  monotone = True
