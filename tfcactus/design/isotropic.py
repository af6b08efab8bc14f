"""Isotropic noise: the optimal monotone radial density in any dimension."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from tfcactus import _checks
from tfcactus.design import fields, solvers
from tfcactus.design.solvers import convex_program, grid, interior_point
from tfcactus.design.solvers.cost import Cost
from tfcactus.noise import radial_table

_MAX_DIM = 1_000_000

_MODEST = 1500
"""Maximum number of shells at the default resolution in one dimension."""

_FINEST = 0.03
_COARSEST = 0.055
"""Limits of the default r = width * sqrt(dim). Shells cost r^2 / 6 of KL, as if
noise were narrower by r^2 / 12. Epsilon moves up to 7 times as much where rare
losses dominate, and less for wide noise. With the coarsest limit, times sqrt(sigma)
if that is above one, the cost was below .2 % of epsilon in the plans tried. Only
quality depends on these limits: accountants read the table itself."""

_PAIRS = 1_000_000
"""Number of pairs of shells that the default resolution aims at, within its limits."""

_COARSE_RULE = 0.4
"""width * sqrt(dim) of the coarse solution that locates the mass."""

_COARSE_GAP = 1e-5
"""Relative gap of the coarse solution."""

_EMPTY = 1e-11
"""Maximum mass below the shells, in the core ball, and beyond the grid."""


@dataclasses.dataclass(frozen=True)
class Isotropic:
  """Request for the monotone radial density of least divergence at a unit shift.

  Exactly one of `noise_multiplier` and `budget` is given.

  Attributes:
    dim: Dimension m of the query, 1 to a million. The gain over the Gaussian decreases
      like 1 / dim: in thousands of dimensions there is none.
    noise_multiplier: Standard deviation sigma of a coordinate over sensitivity;
      equivalent to budget = dim * sigma^2 with power 2.
    budget: Bound on E|Z|^power, in units of sensitivity^power; on E cost(|Z|) with
      `cost`.
    power: The cost of noise z is |z|^power.
    bins: Shells per unit of sensitivity (n of the paper). None chooses 18 /
      max(sqrt(sigma), 1) to 33 times sqrt(dim); if dim is 1 about 20, more for narrow
      noise and fewer for very wide noise. Shells cost dim / (6 bins^2) of KL. The
      default cost less than .2 % of epsilon in the plans tried.
    cells: Index of the last free shell (N); None chooses it.
    tail_ratio: Density ratio r in (0, 1) of neighbouring shells beyond `cells`; None
      chooses it from the budget.
    objective: 'kl' for many full releases, 'chi2' for subsampled training, 'renyi:A',
      or one of them followed by '@Q' for releases subsampled at rate Q (see
      `divergence.parse`).
    solver: 'interior-point' or 'cvxpy' (small bins only).
    cost: Cost function that replaces |z|^power. It maps an array of distances, in units
      of sensitivity, to costs, and must meet the papers' assumptions.

  With `cells` None in more than 50 dimensions the shells cover the radii that hold the
  mass, around one core ball; otherwise they start at zero. In thousands of
  dimensions Renyi orders above 3 may have no certified design.

  Raises:
    ValueError: if an argument is out of range.

  Source: program (28), Theorem 4 of Alghamdi et al., "Optimal Multidimensional
  Differentially Private Mechanisms in the Large-Composition Regime" (ISIT 2023).
  """

  dim: int
  noise_multiplier: float | None = None
  budget: float | None = None
  power: float = 2.0
  bins: int | None = None
  cells: int | None = None
  tail_ratio: float | None = None
  objective: str = 'kl'
  solver: str = 'interior-point'
  cost: fields.CostFunction | None = None

  def __post_init__(self) -> None:
    self.checked()

  def solve(self) -> radial_table.RadialTable:
    """Solves the convex program, projects onto its constraints and certifies the table.

    Returns:
      The table. Its `info` holds objective, lower_bound and gap (relative), all
      recomputed from the table. By Proposition 1 the unit shift is the worst shift.

    Raises:
      ValueError: if the grid cannot meet the budget or has too many pairs of shells, or
        the solver does not take the objective.
      SolverError: if the optimum could not be certified.
    """
    cost, budget, sigma = self.checked()
    layout, rough = self._layout(cost, budget, sigma)
    program = grid.radial_program(self.objective, self.dim, layout, cost, budget)
    if rough is not None and self.solver == 'interior-point':
      start = rough.masses(layout, program.log_volumes)
    else:
      start = start_masses(program, self.dim, layout, cost)
    solution = solvers.solve(program, start, solver=self.solver, warm=rough is not None)
    p = grid.into_budget(program, solution.p)
    log_density = np.minimum.accumulate(np.log(p) - program.log_volumes)
    table = radial_table.RadialTable.normalized(
        self.dim, layout.first, layout.width, log_density, layout.log_ratio)
    parameters = {
        'dim': self.dim, 'budget': budget, 'power': cost.power,
        'noise_multiplier': sigma if cost.power == 2 else None,
        'bins': int(round(1 / layout.width)), 'cells': layout.cells,
        'first_radius': layout.first, 'tail_ratio': float(np.exp(layout.log_ratio)),
        'objective': self.objective}
    return dataclasses.replace(table, info=fields.certified(
        fields.mechanism_name('isotropic', self.objective), parameters,
        certify(table, self.objective, cost, budget, solution.price, self.solver),
        solution.theta, solution, solver=self.solver, statement=(
            'Optimal among radial densities non-increasing in |z| within this grid and '
            f'tail class (a ball of radius {layout.first:.6g}, shells of width '
            f'{layout.width:.6g}, geometric tail beyond shell {layout.cells}) up to '
            'the stated relative gap; not a statement about other grids.')))

  def checked(self) -> tuple[Cost, float, float]:
    """Returns (cost, budget, sigma per coordinate); ValueError if out of range.

    Sigma is exact if the cost is |z|^2, else the distance of that cost over sqrt(dim).
    """
    dim = _checks.integer('dim', self.dim, 1)
    if dim > _MAX_DIM:
      raise ValueError(
          f'Expected dim <= {_MAX_DIM}, got dim={dim}; use '
          'tfcactus.Gaussian(noise_multiplier), which is as good there.')
    cost = fields.check_program(self.power, self.cost, self.solver, self.objective)
    if (self.budget is None) == (self.noise_multiplier is None):
      raise ValueError(
          'Expected exactly one of noise_multiplier and budget, got '
          f'noise_multiplier={self.noise_multiplier!r} and budget={self.budget!r}.')
    if self.noise_multiplier is None:
      budget = _checks.positive('budget', self.budget)
      sigma = cost.size(budget) / np.sqrt(dim)
    elif cost.power != 2:
      raise ValueError(
          f'Expected power=2 with noise_multiplier, got power={self.power!r} '
          f'and cost={self.cost!r}; give budget = E cost(|Z|) instead.')
    else:
      sigma = _checks.positive('noise_multiplier', self.noise_multiplier)
      budget = dim * (sigma * sigma)  # Infinite where a power would raise.
    fields.check_sigma(sigma)
    bins = self._bins(sigma)
    if self.cells is not None:
      fields.check_cells(self.cells, bins)
    if self.tail_ratio is not None:
      fields.check_tail(self.tail_ratio, bins, self.cells or bins)
    return cost, budget, sigma

  def _bins(self, sigma: float) -> int:
    """Returns shells per unit of sensitivity: `bins`, or a default if that is None."""
    if self.bins is not None:
      return _checks.count('bins', self.bins)
    dim = self.dim
    mode = sigma * np.sqrt(dim)
    # Length of the range of radii that shells cover: from zero, or around the mode.
    reach = mode + 12 * sigma if dim <= grid.FLAT_DIM else 12 * sigma
    if dim == 1:
      # In one dimension whole-cell shifts are exact for cells of any width.
      wanted = min(max(20, 10 / sigma), max(_MODEST / reach, 1))
    else:
      # A unit shift changes the radius by at most about 10 / sqrt(dim), and by no more
      # than one. With shells of width rule / sqrt(dim) there are span / rule^2 pairs.
      span = min(10.0, np.sqrt(dim)) * reach * np.sqrt(dim)
      rule = min(max(np.sqrt(span / _PAIRS), _FINEST),
                 _COARSEST * max(1.0, np.sqrt(sigma)))
      wanted = np.sqrt(dim) / rule
    if wanted * reach > grid.MAX_SHELLS:
      raise ValueError(
          f'Expected noise that {grid.MAX_SHELLS} shells can resolve, got dim={dim} '
          f'and about {sigma:.3g} sensitivities per coordinate. The Gaussian is '
          'as good as optimal there: use tfcactus.Gaussian(noise_multiplier), '
          'or give bins.')
    return int(np.ceil(wanted))

  def _layout(self, cost: Cost, budget: float, sigma: float
              ) -> tuple[grid.Layout, Rough | None]:
    """Returns the layout of shells and tail, and the coarse solution, if any."""
    bins, dim = self._bins(sigma), self.dim
    width, rough = 1 / bins, None
    if dim > grid.FLAT_DIM and self.cells is None:
      rough = coarse(self.objective, dim, cost, budget, sigma, width)
      layout = rough.finer_layout(width)
    else:
      reach, slope = grid.tail_shape(self.objective, cost, budget, dim)
      cells = self.cells or max(int(np.ceil(reach * bins)), bins + 1)
      cells = fields.check_cells(cells, bins)
      layout = grid.Layout(width, width, cells, -slope * width)
    if self.tail_ratio is not None:
      layout = layout._replace(log_ratio=fields.check_tail(
          self.tail_ratio, bins, layout.cells))
    return layout, rough


def certify(table: radial_table.RadialTable, objective: str, cost: Cost,
            budget: float, price: float, solver: str) -> dict[str, float]:
  """Recomputes a table's certificate: objective, lower bound on the optimum, their gap.

  `price` is the Lagrange multiplier of the constraint E cost <= `budget` in that bound.
  `objective` names the divergence; `solver` sets the largest allowed gap. Raises
  SolverError if the gap or a constraint is not met.
  """
  layout = grid.Layout(table.first_radius, table.width, table.log_density.size - 1,
                       table.log_tail_ratio)
  program = grid.radial_program(objective, table.dim, layout, cost, budget)
  return convex_program.certify(
      program, np.exp(table.log_density + program.log_volumes), np.ones(1), price,
      fields.GAPS[solver])


class Rough(NamedTuple):
  """A coarse optimum: shell masses of `layout`, and log densities up to a constant."""

  layout: grid.Layout
  mass: np.ndarray
  log_density: np.ndarray

  def finer_layout(self, width: float) -> grid.Layout:
    """Returns the layout of shells of this width that cover all mass but `_EMPTY`."""
    first, wide, *_ = self.layout
    inner = int(np.argmax(np.cumsum(self.mass) > _EMPTY))
    outer = self.mass.size - 1 - int(np.argmax(np.cumsum(self.mass[::-1]) > _EMPTY))
    low = width * np.ceil((first + wide * inner) / width)
    high = first + wide * outer
    # The tail continues the mean slope of the last eight coarse shells.
    fall = np.diff(self.log_density)[max(outer - 8, 0):outer]
    return grid.Layout(float(low), width, int(np.ceil((high - low) / width)),
                       float(np.mean(fall)) * width / wide)

  def masses(self, layout: grid.Layout, log_volume: np.ndarray) -> np.ndarray:
    """Returns masses of other shells under the coarse density, not normalised."""
    # Relative masses are at least e^-600, since solvers take logarithms.
    middle = (self.layout.first + self.layout.width * (np.arange(self.mass.size) - 0.5))
    others = layout.first + layout.width * (np.arange(log_volume.size) - 0.5)
    log_p = log_volume + np.interp(others, middle, self.log_density)
    return np.exp(np.maximum(log_p - np.max(log_p), -600))


def coarse(objective: str, dim: int, cost: Cost, budget: float, sigma: float,
           width: float) -> Rough:
  """Returns a coarse optimum near a normal's typical radius, no finer than `width`."""
  # The tail has the slope of a normal log density one standard deviation of the radius,
  # `spread`, beyond the typical radius.
  mode = sigma * np.sqrt(dim)
  spread = sigma / np.sqrt(2)
  wide = max(width, _COARSE_RULE / np.sqrt(dim))
  low, high = max(mode - 9 * spread, wide), mode + 9 * spread
  layout = grid.Layout(low, wide, int(np.ceil((high - low) / wide)),
                       -wide * (mode + spread) / sigma**2)
  program = grid.radial_program(objective, dim, layout, cost, budget)
  if objective in ('kl', 'chi2'):
    start = start_masses(program, dim, layout, cost)
  else:
    # High orders start from the optimum of a low one.
    start = coarse('chi2', dim, cost, budget, sigma, width).masses(
        layout, program.log_volumes)
  p = interior_point.solve(program, start, warm=True, target=_COARSE_GAP).p
  return Rough(layout, program.mass * p, np.log(p) - program.log_volumes)


def start_masses(program: convex_program.Program, dim: int, layout: grid.Layout,
                 cost: Cost) -> np.ndarray:
  """Returns masses of shells 0..cells, within budget, from which a solver starts."""
  # Up to `FLAT_DIM` dimensions the shells start at zero, where a plain exponential
  # density will do; above, a radial Gaussian whose far tail is exponential.
  if dim <= grid.FLAT_DIM:
    return grid.exponential_start(program)
  outer = layout.first + layout.width * np.arange(program.mass.size)
  middle = np.maximum(outer - 0.5 * layout.width, 0.5 * outer)

  def shaped(log_size):
    """Returns masses of the density of standard deviation e^log_size per coordinate."""
    size = np.exp(log_size)
    # Optimal tails are no steeper than exponential. Here they begin one standard
    # deviation, 0.7 size, beyond the typical radius, size sqrt(dim).
    steep = np.maximum(middle - size * (np.sqrt(dim) + 0.7), 0.0)
    log_density = -0.5 / size**2 * (middle**2 - middle[0]**2 - steep**2)
    log_p = program.log_volumes + log_density
    p = np.exp(np.maximum(log_p - np.max(log_p), -600))
    return p / (program.mass @ p)

  center = np.log(cost.size(program.budget) / np.sqrt(dim))
  # Strictly within the budget. The margin shrinks with the layer of radii that holds
  # the mass, which is ever thinner in many dimensions.
  low, high = center - 1.0, center
  for _ in range(50):
    guess = 0.5 * (low + high)
    over = float(program.cost @ shaped(guess)) > program.budget * (1 - 0.1 / dim)
    low, high = (low, guess) if over else (guess, high)
  return shaped(low)
