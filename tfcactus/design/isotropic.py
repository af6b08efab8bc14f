"""Isotropic noise: the optimal monotone radial density in any dimension."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any
from typing import Callable
from typing import NamedTuple
from typing import Optional

import numpy as np

from tfcactus import _checks
from tfcactus.design import _scalar
from tfcactus.design.solvers import convex_program
from tfcactus.design.solvers import grid
from tfcactus.design.solvers import interior_point
from tfcactus.noise import radial_table
from tfcactus.noise import shell_geometry as shells_lib

_MAX_DIM = 1_000_000

_FLAT_DIM = 50
"""Beyond this the shells leave out a core that holds no mass to speak of."""

_LEAST_CHANCE = 1e-22
"""Smaller chances of moving between two shells count for nothing."""

_MODEST = 1500
"""Shells that the finest default resolution does not exceed."""

_MAX_SHELLS = 400_000
"""More shells than this take minutes."""

_FINEST = 0.03
_COARSEST = 0.055
"""width * sqrt(dim), r for short: shells cost r^2 / 6 of KL, as if noise were
narrower by r^2 / 12. Epsilon moves up to 7 times as much where rare losses
decide, less for wide noise: the coarsest, times sqrt(sigma) if that is above
one, costs less than .2 % of epsilon in every plan tried."""

_PAIRS = 1_000_000
"""Pairs of shells up to which shells are made finer than that."""

_COARSE_RULE = 0.4
"""The same for the coarse solution that tells where the mass is."""

_COARSE_GAP = 1e-5
"""How well."""

_MAX_PAIRS = 60_000_000
"""More pairs of shells than this need gigabytes."""

_EMPTY = 1e-11
"""Mass that may lie below the shells, in the core ball, or beyond them."""


class _Layout(NamedTuple):
  """Shells 0..cells: a ball of radius `first`, then shells of one width."""

  first: float
  width: float
  cells: int
  log_ratio: float


@dataclasses.dataclass(frozen=True)
class Isotropic:
  """Minimises the divergence at a unit shift over falling radial densities.

  Exactly one of `noise_multiplier` and `budget` is given.

  Attributes:
    dim: Dimension m of the query, 1 to a million. The gain over the Gaussian
      falls like 1 / dim: in thousands of dimensions there is none.
    noise_multiplier: sigma; the same as budget = dim * sigma^2 with power 2.
    budget: Bound on E|Z|^power, in units of sensitivity^power.
    power: The cost is |z|^power.
    bins: Shells per unit of sensitivity (n of the paper); None chooses between
      18 / max(sqrt(sigma), 1) and 33 times sqrt(dim): shells cost dim / (6 bins^2)
      of KL, less than .2 % of epsilon.
    cells: Index of the last free shell (N); None chooses it.
    tail_ratio: Density ratio r in (0, 1) of neighbouring shells beyond `cells`;
      None matches it.
    objective: 'kl' for many full releases, 'chi2' for subsampled training,
      'renyi:A', or one of them followed by '@Q' for releases subsampled at
      rate Q (see `divergence.parse`).
    solver: 'interior-point' or 'cvxpy' (small bins only, needs cvxpy).
    cost: Another cost, as a function of an array of distances in units of
      sensitivity; it replaces |z|^power and must meet the papers' assumptions.

  With `cells` None in more than 50 dimensions the shells cover the radii that
  hold the mass, around one core ball; with `cells` given they start at zero.
  In thousands of dimensions orders above 3 may have no certified design.

  Raises:
    ValueError: if an argument is out of range.

  Source: program (28), Theorem 4 of Alghamdi et al., "Optimal Multidimensional
  Differentially Private Mechanisms in the Large-Composition Regime" (ISIT
  2023).
  """

  dim: int
  noise_multiplier: Optional[float] = None
  budget: Optional[float] = None
  power: float = 2.0
  bins: Optional[int] = None
  cells: Optional[int] = None
  tail_ratio: Optional[float] = None
  objective: str = 'kl'
  solver: str = 'interior-point'
  cost: Optional[Callable[[np.ndarray], np.ndarray]] = None

  def __post_init__(self):
    self._checked()

  def solve(self) -> radial_table.RadialTable:
    """Solves for the noise table.

    Returns:
      The table; its `info` holds objective, lower_bound and gap (relative),
      recomputed from the table. By Proposition 1 the unit shift is the worst.

    Raises:
      ValueError: if the grid cannot meet the budget.
      SolverError: if the optimum could not be certified.
      ImportError: if solver='cvxpy' and cvxpy is absent.
    """
    cost, budget, sigma = self._checked()
    layout, rough = self._layout(cost, budget, sigma)
    program = radial_program(self.objective, self.dim, layout, cost, budget)
    if self.solver == 'cvxpy':
      from tfcactus.design.solvers import conic  # pylint: disable=import-outside-toplevel
      solution = conic.solve(program, grid.exponential_start(program))
    else:
      start = (_start(program, self.dim, layout, cost) if rough is None else
               rough.on(layout, program.log_volume))
      solution = interior_point.solve(program, start, warm=rough is not None)
    p = grid.into_budget(program, solution.p)
    log_density = np.minimum.accumulate(np.log(p) - program.log_volume)
    table = radial_table.RadialTable.normalized(
        self.dim, layout.first, layout.width, log_density, layout.log_ratio)
    certificate = certify(table, self.objective, cost, budget, solution.price,
                          self.solver)
    info = {
        'mechanism': self._mechanism,
        'parameters': self._parameters(cost, budget, sigma, layout),
        **certificate, 'solver': self.solver,
        'iterations': solution.iterations,
        'multipliers': convex_program.multipliers(solution.theta, solution.price),
        'statement': (
            'Optimal among radial densities non-increasing in |z| within this '
            f'grid and tail class (a ball of radius {layout.first:.6g}, shells '
            f'of width {layout.width:.6g}, geometric tail beyond shell '
            f'{layout.cells}) up to the stated relative gap; not a statement '
            'about other grids.')}
    return dataclasses.replace(table, info=info)

  @property
  def _mechanism(self) -> str:
    return ('isotropic' if self.objective == 'kl' else
            f'isotropic-{self.objective}')

  def _parameters(self, cost: Any, budget: float, sigma: float,
                  layout: _Layout) -> dict[str, Any]:
    power = None if self.cost is not None else cost.power
    return {'dim': self.dim, 'budget': budget, 'power': power,
            'noise_multiplier': sigma if power == 2 else None,
            'bins': int(round(1 / layout.width)), 'cells': layout.cells,
            'first_radius': layout.first,
            'tail_ratio': float(np.exp(layout.log_ratio)),
            'objective': self.objective}

  def _checked(self) -> tuple[Any, float, float]:
    """Checks everything that needs no solving; (cost, budget, sigma)."""
    dim = _checks.integer('dim', self.dim, 1)
    if dim > _MAX_DIM:
      raise ValueError(
          f'Expected dim <= {_MAX_DIM}, got dim={dim}; use '
          'tfcactus.Gaussian(noise_multiplier), which is as good there.')
    cost = _scalar.check_program(self.power, self.cost, self.solver,
                                 self.objective)
    budget, sigma = self._budget(dim, cost)
    _scalar.check_sigma(sigma)
    bins = self._bins(sigma)
    if self.cells is not None:
      _scalar.check_cells(self.cells, bins)
    if self.tail_ratio is not None:
      _scalar.check_tail(self.tail_ratio, bins, self.cells or bins)
    return cost, budget, sigma

  def _budget(self, dim: int, cost: Any) -> tuple[float, float]:
    if (self.budget is None) == (self.noise_multiplier is None):
      raise ValueError(
          'Expected exactly one of noise_multiplier and budget, got '
          f'noise_multiplier={self.noise_multiplier!r} and '
          f'budget={self.budget!r}.')
    if self.noise_multiplier is None:
      budget = _checks.positive('budget', self.budget)
      return budget, cost.size(budget) / np.sqrt(dim)
    if self.cost is not None or cost.power != 2:
      raise ValueError(
          f'Expected power=2 with noise_multiplier, got power={self.power!r} '
          f'and cost={self.cost!r}; give budget = E cost(|Z|) instead.')
    sigma = _checks.positive('noise_multiplier', self.noise_multiplier)
    return dim * sigma**2, sigma

  def _bins(self, sigma: float) -> int:
    """Shells per unit: what the rule asks for, finer where that is cheap."""
    if self.bins is not None:
      return _checks.integer('bins', self.bins, 1)
    dim = self.dim
    mode = sigma * np.sqrt(dim)
    reach = mode + 12 * sigma if dim <= _FLAT_DIM else 12 * sigma
    if dim == 1:
      # On a line whole-cell shifts are exact, however wide the cells.
      wanted = min(max(20, 10 / sigma), max(_MODEST / reach, 1))
    else:
      # A unit shift moves the radius by at most 10 / sqrt(dim) or so.
      span = min(10.0, np.sqrt(dim)) * reach * np.sqrt(dim)
      rule = min(max(np.sqrt(span / _PAIRS), _FINEST),
                 _COARSEST * max(1.0, np.sqrt(sigma)))
      wanted = np.sqrt(dim) / rule
    if wanted * reach > _MAX_SHELLS:
      raise ValueError(
          f'Expected noise that {_MAX_SHELLS} shells can resolve, got dim={dim} '
          f'and about {sigma:.3g} sensitivities per coordinate. The Gaussian is '
          'as good as optimal there: use tfcactus.Gaussian(noise_multiplier), '
          'or give bins.')
    return int(np.ceil(wanted))

  def _layout(self, cost: Any, budget: float, sigma: float
              ) -> tuple[_Layout, Optional[_Rough]]:
    """Where the shells lie and how the tail falls; a coarse solution, if any."""
    bins, dim = self._bins(sigma), self.dim
    width, rough = 1 / bins, None
    if dim > _FLAT_DIM and self.cells is None:
      rough = _coarse(self.objective, dim, cost, budget, sigma, width)
      found = rough.where(width)
    else:
      reach, slope = grid.tail_shape(self.objective, cost, budget, dim)
      cells = self.cells or max(int(np.ceil(reach * bins)), bins + 1)
      found = _Layout(width, width, _scalar.check_cells(cells, bins),
                      -slope * width)
    if self.tail_ratio is not None:
      found = found._replace(log_ratio=_scalar.check_tail(
          self.tail_ratio, bins, found.cells))
    return found, rough


class _Rough(NamedTuple):
  """A coarse optimum: where the mass is, and a start for a finer one."""

  layout: _Layout
  mass: np.ndarray
  log_density: np.ndarray

  def where(self, width: float) -> _Layout:
    """Shells of that width where the mass is."""
    first, rough, *_ = self.layout
    inner = int(np.argmax(np.cumsum(self.mass) > _EMPTY))
    outer = self.mass.size - 1 - int(
        np.argmax(np.cumsum(self.mass[::-1]) > _EMPTY))
    low = width * np.ceil((first + rough * inner) / width)
    high = first + rough * outer
    fall = np.diff(self.log_density)[max(outer - 8, 0):outer]
    return _Layout(float(low), width, int(np.ceil((high - low) / width)),
                   float(np.mean(fall)) * width / rough)

  def on(self, layout: _Layout, log_volume: np.ndarray) -> np.ndarray:
    """The masses of finer shells under this density, not normalised."""
    middle = (self.layout.first + self.layout.width *
              (np.arange(self.mass.size) - 0.5))
    finer = layout.first + layout.width * (np.arange(log_volume.size) - 0.5)
    log_p = log_volume + np.interp(finer, middle, self.log_density)
    return np.exp(np.maximum(log_p - np.max(log_p), -600))


def _coarse(objective: str, dim: int, cost: Any, budget: float, sigma: float,
            width: float) -> _Rough:
  """A coarse optimum, on shells wide around those of a normal law."""
  mode = sigma * np.sqrt(dim)
  spread = sigma / np.sqrt(2)
  rough = max(width, _COARSE_RULE / np.sqrt(dim))
  low, high = max(mode - 9 * spread, rough), mode + 9 * spread
  layout = _Layout(low, rough, int(np.ceil((high - low) / rough)),
                   -rough * (mode + spread) / sigma**2)
  program = radial_program(objective, dim, layout, cost, budget)
  if objective in ('kl', 'chi2'):
    start = _start(program, dim, layout, cost)
  else:
    # High orders are reached from a low one.
    start = _coarse('chi2', dim, cost, budget, sigma, width).on(
        layout, program.log_volume)
  p = interior_point.solve(program, start, warm=True, target=_COARSE_GAP).p
  return _Rough(layout, program.mass * p, np.log(p) - program.log_volume)


def _start(program: convex_program.Program, dim: int, layout: _Layout,
           cost: Any) -> np.ndarray:
  """The radial Gaussian where it fits, else exponential tails."""
  if dim <= _FLAT_DIM:
    return grid.exponential_start(program)
  outer = layout.first + layout.width * np.arange(program.mass.size)
  middle = np.maximum(outer - 0.5 * layout.width, 0.5 * outer)

  def shaped(log_size):
    size = np.exp(log_size)
    # Optimal tails are no steeper than exponential.
    steep = np.maximum(middle - size * (np.sqrt(dim) + 0.7), 0.0)
    log_density = -0.5 / size**2 * (middle**2 - middle[0]**2 - steep**2)
    log_p = program.log_volume + log_density
    p = np.exp(np.maximum(log_p - np.max(log_p), -600))
    return p / (program.mass @ p)

  center = np.log(cost.size(program.budget) / np.sqrt(dim))
  low, high = center - 1.0, center
  for _ in range(50):
    guess = 0.5 * (low + high)
    over = float(program.cost @ shaped(guess)) > program.budget * (1 - 0.1 / dim)
    low, high = (low, guess) if over else (guess, high)
  return shaped(low)


def certify(table: radial_table.RadialTable, objective: str, cost: Any, budget: float,
            price: float, solver: str) -> dict[str, float]:
  """The certificate of a frozen table, recomputed from its arrays."""
  layout = _Layout(table.first_radius, table.width, table.log_density.size - 1,
                   table.log_tail_ratio)
  program = radial_program(objective, table.dim, layout, cost, budget)
  return convex_program.certify(program, np.exp(table.log_density + program.log_volume),
                          np.ones(1), price, _scalar.TOLERANCE[solver])


def radial_program(objective: str, dim: int, layout: _Layout, cost: Any,
                   budget: float) -> convex_program.Program:
  """Program (28) in shell masses, the geometric tail folded into the last."""
  first, width, cells, log_ratio = layout
  band = shells_lib.reach(dim, first, width)
  shells = _count_shells(dim, layout) + band
  if shells * band > _MAX_PAIRS:
    raise ValueError(
        f'Expected at most {_MAX_PAIRS} pairs of shells, got {shells * band}: '
        f'{shells} shells hold the tail. Use a smaller tail_ratio or fewer bins.')
  radii = first + width * np.arange(shells)
  log_volume = _log_volume(dim, first, width, shells)
  i, j, chance = _overlaps(dim, first, width, shells)
  # Densities of shells beyond the last are ratios of the last one's.
  beyond = np.maximum(np.arange(shells) - cells, 0) * log_ratio
  index = np.minimum(np.arange(shells), cells)
  relative = beyond + log_volume - log_volume[index]
  inner, far = i < cells, i >= cells
  tail = np.sum(chance[far] * convex_program.pair_value(
      objective, np.exp(relative[i[far]]),
      np.exp(relative[i[far]] + beyond[j[far]] - beyond[i[far]])))
  i, j = i[inner], j[inner]
  log_scale = beyond[j] + log_volume[i] - log_volume[index[j]]
  costs = cost.means(np.append(0.0, radii[:-1]), radii, dim)
  folded = np.exp(relative[cells:])
  return convex_program.Program(
      objective=objective,
      shifts=[convex_program.Shift(i, index[j], log_scale, chance[inner], float(tail))],
      mass=np.append(np.ones(cells), np.sum(folded)),
      cost=np.append(costs[:cells], np.sum(costs[cells:] * folded)),
      budget=budget, log_volume=log_volume[:cells + 1])


def _log_volume(dim: int, first: float, width: float, shells: int) -> np.ndarray:
  """Log volumes of the shells, in units of the innermost ball."""
  log_outer = dim * np.log1p(np.arange(shells) * (width / first))
  log_volume = log_outer.copy()
  log_volume[1:] += np.log(-np.expm1(-np.diff(log_outer)))
  return log_volume


@functools.lru_cache(maxsize=1)
def _overlaps(dim: int, first: float, width: float, shells: int
              ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Pairs i < j of shells and the chance that a unit shift moves i to j.

  v_i T_ij = v_j T_ji, and inward moves are caps known to relative precision,
  which outward moves, whose caps are nearly whole, are not.
  """
  log_volume = _log_volume(dim, first, width, shells)
  band, _ = shells_lib.transition(dim, first, width, shells)
  inward = band[:, band.shape[1] // 2 - 1::-1]
  j, step = np.nonzero(inward > 0)
  i = j - step - 1
  j, step, i = j[i >= 0], step[i >= 0], i[i >= 0]
  chance = inward[j, step] * np.exp(log_volume[j] - log_volume[i])
  kept = chance > _LEAST_CHANCE
  return i[kept], j[kept], chance[kept]


def _count_shells(dim: int, layout: _Layout) -> int:
  """Shells until the tail's mass no longer counts towards an objective."""
  forgotten = -90.0 if dim <= _FLAT_DIM else -30.0
  first, width, cells, log_ratio = layout
  count = 1024
  while True:
    steps = np.arange(1, count)
    log_mass = steps * log_ratio + (dim - 1) * np.log1p(
        steps * width / (first + cells * width))
    below = np.flatnonzero(log_mass < forgotten)
    if below.size or count > 10 * _MAX_SHELLS:
      return cells + int(steps[below[0]] if below.size else steps[-1])
    count *= 2
