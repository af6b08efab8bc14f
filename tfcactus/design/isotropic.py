"""Isotropic noise: the optimal monotone radial density in small dimensions."""

from __future__ import annotations

import dataclasses
from typing import Any
from typing import Optional

import numpy as np

from tfcactus import _checks
from tfcactus.design import _grid
from tfcactus.design import _program
from tfcactus.design import _scalar
from tfcactus.noise import radial
from tfcactus.noise import shells as shells_lib

_MAX_DIM = 50
"""Beyond this the masses of inner shells underflow."""

_LEAST_CHANCE = 1e-12
"""Smaller chances of moving between two shells are rounding."""

_MODEST = 1500
"""Shells that the default resolution does not exceed: some seconds."""

_SHELL_COST = 0.003
"""Largest relative cost of the shells that the default resolution accepts."""

_MAX_PAIRS = 10_000_000
"""More pairs of shells than this need gigabytes."""

_LOG_FORGOTTEN = -90.0
"""Log mass below which tail shells no longer count towards an objective."""


@dataclasses.dataclass(frozen=True)
class Isotropic:
  """Minimises the divergence at a unit shift over falling radial densities.

  Exactly one of `noise_multiplier` and `budget` is given.

  Attributes:
    dim: Dimension m of the query, 1 to 50. (The gain over the Gaussian falls
      like 1 / dim: use `RadialGaussian` beyond.)
    noise_multiplier: sigma; the same as budget = dim * sigma^2 with power 2.
    budget: Bound on E|Z|^power, in units of sensitivity^power.
    power: The cost is |z|^power.
    bins: Shells per unit of sensitivity (n of the paper); None chooses about
      20 sqrt(dim), so that the shells cost about .03 % of the objective.
    cells: Index of the last free shell (N); None chooses it.
    tail_ratio: Density ratio r in (0, 1) of neighbouring shells beyond `cells`;
      None matches it.
    objective: 'kl' for many full releases, 'chi2' for subsampled training.
    solver: 'interior-point' or 'cvxpy' (small bins only, needs cvxpy).

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

  def __post_init__(self):
    self._grid()

  def solve(self) -> radial.RadialTable:
    """Solves for the noise table.

    Returns:
      The table; its `info` holds objective, lower_bound and gap (relative),
      recomputed from the table. By Proposition 1 the unit shift is the worst.

    Raises:
      ValueError: if the grid cannot meet the budget.
      SolverError: if the optimum could not be certified.
      ImportError: if solver='cvxpy' and cvxpy is absent.
    """
    budget, _, bins, cells, log_ratio = self._grid()
    program = radial_program(self.objective, self.dim, bins, cells, log_ratio,
                             self.power, budget)
    start = _grid.exponential_start(program)
    solution = _scalar.run(self.solver, program, start)
    p = _grid.into_budget(program, solution.p)
    log_density = np.minimum.accumulate(np.log(p) - program.log_volume)
    table = radial.RadialTable.normalized(
        self.dim, 1.0 / bins, 1.0 / bins, log_density, log_ratio)
    frozen = np.exp(table.log_density + program.log_volume)
    certificate = _program.certify(
        program, frozen, solution.theta, solution.price,
        _scalar.TOLERANCE[self.solver])
    info = {
        'mechanism': self._mechanism, 'parameters': self._parameters(),
        **certificate, 'solver': self.solver,
        'iterations': solution.iterations,
        'multipliers': _program.multipliers(solution.theta, solution.price),
        'statement': (
            'Optimal among radial densities non-increasing in |z| within this '
            f'grid and tail class (shells of width 1/{bins}, geometric '
            f'tail beyond shell {cells}) up to the stated relative gap; not a '
            'statement about other grids.')}
    return dataclasses.replace(table, info=info)

  @property
  def _mechanism(self) -> str:
    return 'isotropic' if self.objective == 'kl' else 'isotropic-chi2'

  def _parameters(self) -> dict[str, Any]:
    budget, sigma, bins, cells, log_ratio = self._grid()
    return {'dim': self.dim, 'budget': budget, 'power': self.power,
            'noise_multiplier': sigma if self.power == 2 else None,
            'bins': bins, 'cells': cells,
            'tail_ratio': float(np.exp(log_ratio)),
            'objective': self.objective}

  def _grid(self) -> tuple[float, float, int, int, float]:
    """Checks everything; returns (budget, sigma, bins, cells, log ratio)."""
    dim = _checks.integer('dim', self.dim, 1)
    if dim > _MAX_DIM:
      raise ValueError(
          f'Expected dim <= {_MAX_DIM}, got dim={dim}; the '
          'gain over the Gaussian falls like 1 / dim, so use '
          'RadialGaussian(dim, noise_multiplier).')
    power = _checks.positive('power', self.power)
    _scalar.check_choice('solver', self.solver, _scalar.SOLVERS)
    _scalar.check_choice('objective', self.objective, _program.OBJECTIVES)
    budget, sigma = self._budget(dim, power)
    _scalar.check_sigma(sigma)
    reach = _grid.reach(sigma, dim, self.objective, power)
    bins = self.bins
    if bins is None:
      bins = _default_bins(dim, sigma, reach)
    bins = _checks.integer('bins', bins, 1)
    cells = self.cells
    if cells is None:
      cells = max(bins + 1, int(np.ceil(reach * bins)))
    cells = _scalar.check_cells(cells, bins)
    if self.tail_ratio is not None:
      log_ratio = _scalar.check_tail(self.tail_ratio, bins, cells)
    else:
      log_ratio = -float(_grid.tail_slope(
          np.array([cells / bins]), sigma, dim, self.objective,
          power)[0]) / bins
    return budget, sigma, bins, cells, log_ratio

  def _budget(self, dim: int, power: float) -> tuple[float, float]:
    if (self.budget is None) == (self.noise_multiplier is None):
      raise ValueError(
          'Expected exactly one of noise_multiplier and budget, got '
          f'noise_multiplier={self.noise_multiplier!r} and '
          f'budget={self.budget!r}.')
    if self.noise_multiplier is None:
      budget = _checks.positive('budget', self.budget)
      return budget, budget**(1 / power) / np.sqrt(dim)
    if power != 2:
      raise ValueError(
          f'Expected power=2 with noise_multiplier, got power={power!r}; give '
          'budget = E|Z|^power instead.')
    sigma = _checks.positive('noise_multiplier', self.noise_multiplier)
    return dim * sigma**2, sigma


def _default_bins(dim: int, sigma: float, reach: float) -> int:
  """About 20 sqrt(dim) shells per unit, fewer where that were too many."""
  wanted = np.ceil(max(20 * np.sqrt(dim), 10 / sigma))
  bins = int(max(min(wanted, _MODEST // reach), 1))
  # On a line whole-cell shifts are exact, however wide the cells.
  if dim > 1 and dim / (8 * bins**2) > _SHELL_COST:
    raise ValueError(
        f'Expected noise that {_MODEST} shells can resolve, got dim={dim} and '
        f'about {sigma:.3g} sensitivities per coordinate. The Gaussian is as '
        'good as optimal there: use RadialGaussian(dim, noise_multiplier), or '
        'give bins.')
  return bins


def radial_program(objective: str, dim: int, bins: int, cells: int,
                   log_ratio: float, power: float,
                   budget: float) -> _program.Program:
  """Program (28) in shell masses, the geometric tail folded into the last."""
  shells = _count_shells(dim, cells, log_ratio) + bins + 1
  if shells * bins > _MAX_PAIRS:
    raise ValueError(
        f'Expected at most {_MAX_PAIRS} pairs of shells, got '
        f'{shells * bins}: {shells} shells hold the tail. Use a smaller '
        'tail_ratio or fewer bins.')
  radii = np.arange(1, shells + 1) / bins
  hollow = dim * np.log1p(-1 / np.arange(1, shells + 1)[1:])
  log_volume = dim * np.log(radii * bins)
  log_volume[1:] += np.log(-np.expm1(hollow))
  first, second, chance = _overlaps(dim, bins, shells)
  # Densities of shells beyond the last are ratios of the last one's.
  beyond = np.maximum(np.arange(shells) - cells, 0) * log_ratio
  index = np.minimum(np.arange(shells), cells)
  relative = beyond + log_volume - log_volume[index]
  inner = (first < cells) & (first != second)
  i, j, weight = first[inner], second[inner], chance[inner]
  log_scale = beyond[j] + log_volume[i] - log_volume[index[j]]
  far = first >= cells
  fi, fj, fweight = first[far], second[far], chance[far]
  tail = np.sum(fweight * _program.pair_value(
      objective, np.exp(relative[fi]),
      np.exp(relative[fi] + beyond[fj] - beyond[fi])))
  cost = _shell_costs(dim, radii, power)
  folded = np.exp(relative[cells:])
  return _program.Program(
      objective=objective,
      shifts=[_program.Shift(i, index[j], log_scale, weight, float(tail))],
      mass=np.append(np.ones(cells), np.sum(folded)),
      cost=np.append(cost[:cells], np.sum(cost[cells:] * folded)),
      budget=budget, log_volume=log_volume[:cells + 1])


def _overlaps(dim: int, bins: int, shells: int
              ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Pairs i <= j of shells and the chance that a unit shift moves i to j.

  As v_i T_ij = v_j T_ji, the pairs with i > j follow.
  """
  band, _ = shells_lib.transition(dim, 1 / bins, 1 / bins, shells)
  chance = band[:, band.shape[1] // 2:]
  i, step = np.nonzero(chance > _LEAST_CHANCE)
  inside = i + step < shells
  i, step = i[inside], step[inside]
  return i, i + step, chance[i, step]


def _count_shells(dim: int, cells: int, log_ratio: float) -> int:
  """Shells until the tail's mass has fallen by exp(_LOG_FORGOTTEN)."""
  steps = np.arange(1, 40 * (cells + dim) + int(-4 * _LOG_FORGOTTEN /
                                                -log_ratio))
  log_mass = steps * log_ratio + (dim - 1) * np.log1p(steps / (cells + 1))
  below = np.flatnonzero(log_mass < _LOG_FORGOTTEN)
  return cells + int(steps[below[0]] if below.size else steps[-1])


def _shell_costs(dim: int, radii: np.ndarray, power: float) -> np.ndarray:
  """The mean of |z|^power over each shell."""
  inner = np.concatenate([[0.0], radii[:-1]])
  with np.errstate(divide='ignore'):
    hollow = dim * np.log(inner / radii)
  ratio = np.expm1(hollow * (1 + power / dim)) / np.expm1(hollow)
  return radii**power * ratio * dim / (dim + power)
