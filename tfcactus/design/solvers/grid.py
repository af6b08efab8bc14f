"""Grids and tails that suit a budget, and the convex program of scalar noise."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from scipy import optimize, special

from tfcactus.design.solvers import convex_program, divergence
from tfcactus.design.solvers.cost import Cost
from tfcactus.noise import shell_geometry

_DROP = 30.0
"""The grid ends where the expected log mass is this far below its peak (in nats)."""

_ANGLES = 48
"""Number of Gauss nodes over the cosine between the noise and the shift."""

_STEEPEST = 600.0
"""Largest slope of minus the log density, per unit of sensitivity."""


def tail_shape(objective: str, cost: Cost, budget: float,
               dim: int) -> tuple[float, float]:
  """Returns (radius, slope): the end of a grid, and how steep its geometric tail is."""
  # Little mass is left beyond the radius. The slope is the decrease of the log density
  # there, per unit of sensitivity. Far out the density is locally exponential with some
  # slope s. Let phi(a, b) be the divergence of two cells of masses a and b, and cos the
  # cosine between noise and shift. At the optimum the mean over directions of
  # -d phi / d a at (1, exp(s cos)) is the price times the cost at that radius.
  # Integrating the slopes gives a density for every price; the price is chosen so that
  # the density costs the budget.
  log_s = np.linspace(np.log(1e-5), np.log(_STEEPEST), 700)
  log_pull = _log_pull(objective, np.exp(log_s), dim)
  size = cost.size(budget)
  # Largest radius to look at: several times the typical one.
  span = size * (60.0 / np.sqrt(dim) + 3)
  radius = np.linspace(0.0, span, 1201)[1:]
  log_cost = np.log(np.maximum(cost.at(radius), 1e-300))

  def density(log_price):
    """Returns slopes of minus the log density, and log masses, at every radius."""
    slope = np.exp(np.interp(log_price + log_cost, log_pull, log_s))
    # radius[0] is the distance of neighbouring radii.
    log_mass = (dim - 1) * np.log(radius) - np.cumsum(slope) * radius[0]
    return slope, log_mass - np.max(log_mass)

  def excess(log_price):
    """Returns cost / budget - 1 of the density at this price."""
    mass = np.exp(density(log_price)[1])
    return float(np.exp(log_cost) @ mass / np.sum(mass)) / budget - 1

  low, high = -60.0, 60.0
  for _ in range(60):
    middle = 0.5 * (low + high)
    low, high = (middle, high) if excess(middle) > 0 else (low, middle)
  slope, log_mass = density(high)
  peak = int(np.argmax(log_mass))
  beyond = np.flatnonzero(log_mass[peak:] < -_DROP)
  end = peak + int(beyond[0]) if beyond.size else radius.size - 1
  return float(radius[end]), float(slope[end])


def _log_pull(objective: str, slope: np.ndarray, dim: int) -> np.ndarray:
  """Returns log of the mean of -d phi / d a at (1, exp(slope * cos)), increasing.

  phi(a, b) is the divergence of two cells of masses a and b.
  """
  # The mean is over directions in R^dim; cos is the cosine between noise and shift.
  parsed = divergence.parse(objective)
  if dim == 1:
    cosine, weight = np.array([-1.0, 1.0]), np.array([0.5, 0.5])
  else:
    shape = 0.5 * (dim - 3)
    cosine, weight = special.roots_jacobi(_ANGLES, shape, shape)
    weight = weight / np.sum(weight)
  with np.errstate(over='ignore', invalid='ignore'):
    ratio = np.exp(slope[:, None] * cosine)
    pull = -parsed.slope(np.ones_like(ratio), ratio) @ weight
  # Rounding spoils tiny slopes, where the mean goes like slope^2, and huge ones
  # overflow: extrapolate by that power, and by one so high that no slope gets there.
  good = np.flatnonzero((slope > 1e-2) & np.isfinite(pull) & (pull > 0))
  first, last = good[0], good[-1]
  log_pull = np.log(np.maximum(pull, 1e-300))
  step = np.log(slope)
  log_pull[:first] = log_pull[first] + 2 * (step[:first] - step[first])
  log_pull[last + 1:] = log_pull[last] + 1e3 * (step[last + 1:] - step[last])
  return np.maximum.accumulate(log_pull)


def scalar_program(objective: str, bins: int, cells: int, log_ratio: float,
                   cost: Cost, budget: float, shifts: np.ndarray,
                   monotone: bool) -> convex_program.Program:
  """Returns program (20): the unknowns are the masses of cells 0..cells.

  Cells i and -i share one unknown, the mass of either; the last one represents a
  geometric tail, in which `log_ratio` is the log of the density ratio of neighbouring
  cells. `shifts` are in cells.

  Source: Theorem 2 of Alghamdi et al., "Cactus Mechanisms" (ISIT 2022).
  """
  # The last unknown stands for a geometric series of cells on either side. The cost
  # leaves out its terms below e^-80.
  ratio = np.exp(log_ratio)
  mass = np.full(cells + 1, 2.0)
  mass[0] = 1.0
  mass[-1] = -2 / np.expm1(log_ratio)
  tail = np.arange(int(np.ceil(-80.0 / log_ratio)) + 1)
  # Cell i is i / bins +- 1 / (2 bins).
  centre = np.arange(cells + tail.size)
  costs = 2 * cost.means(
      np.maximum((centre - 0.5) / bins, 0.0), (centre + 0.5) / bins, 1)
  costs[0] /= 2
  folded = np.append(costs[:cells], np.sum(costs[cells:] * ratio**tail))
  return convex_program.Program(
      objective=objective,
      shifts=[scalar_shift(objective, int(k), cells, log_ratio)
              for k in shifts],
      mass=mass, cost=folded, budget=budget,
      log_volume=np.zeros(cells + 1) if monotone else None)


def scalar_shift(objective: str, k: int, cells: int,
                 log_ratio: float) -> convex_program.Shift:
  """Returns the divergence at a shift by k >= 1 cells, as weighted pairs of cells.

  The divergence phi(a, b) of two masses counts both orders of a pair.
  """
  right = np.arange(cells)
  # Every pair between the centre and the shifted centre appears twice.
  between = np.arange(1, k)
  first = np.concatenate([right, between])
  second = np.concatenate([right + k, k - between])
  weight = np.concatenate([np.ones(right.size), np.full(between.size, 0.5)])
  log_scale = np.maximum(second - cells, 0) * log_ratio
  # Pairs wholly in the tail: a geometric series of phi(1, ratio^k).
  tail = divergence.parse(objective).value(np.array(1.0), np.exp(k * log_ratio))
  return convex_program.Shift(first, np.minimum(second, cells), log_scale, weight,
                              float(tail / -np.expm1(log_ratio)))


FLAT_DIM = 50
"""Dimension above which the shells leave out a core of negligible mass."""

MAX_SHELLS = 400_000
"""Maximum number of shells; more take minutes."""

_LEAST_CHANCE = 1e-22
"""Transition probabilities between two shells below this are neglected."""

_MAX_PAIRS = 60_000_000
"""Maximum number of pairs of shells; more need gigabytes."""


class Layout(NamedTuple):
  """Shells 0..cells: a ball of radius `first`, then shells of one width."""

  first: float  # Radius of the ball, in units of sensitivity.
  width: float  # Width of a shell, in units of sensitivity.
  cells: int  # Index of the last free shell.
  log_ratio: float  # Log of the density ratio of neighbouring shells beyond `cells`.


def radial_program(objective: str, dim: int, layout: Layout, cost: Cost,
                   budget: float) -> convex_program.Program:
  """Returns program (28), whose unknowns are the masses of shells 0..cells.

  Masses of the shells beyond, a geometric tail, are multiples of the last unknown.
  Raises ValueError for more than `_MAX_PAIRS` pairs of shells.

  Source: Theorem 4 of Alghamdi et al. (ISIT 2023).
  """
  first, width, cells, log_ratio = layout
  band = shell_geometry.reach(dim, first, width)
  shells = _count_shells(dim, layout) + band
  if shells * band > _MAX_PAIRS:
    raise ValueError(
        f'Expected at most {_MAX_PAIRS} pairs of shells, got {shells * band}: '
        f'{shells} shells hold the tail. Use a smaller tail_ratio or fewer bins.')
  radii = first + width * np.arange(shells)
  log_volume = shell_geometry.log_volumes(dim, first, width, shells)
  i, j, chance = _overlaps(dim, first, width, shells)
  # Densities of shells beyond `cells` are multiples of the last free density.
  # `relative` is the log of a shell's mass over the unknown that gives it.
  beyond = np.maximum(np.arange(shells) - cells, 0) * log_ratio
  index = np.minimum(np.arange(shells), cells)
  relative = beyond + log_volume - log_volume[index]
  # Pairs of shells from `cells` on add a multiple of the last unknown, `tail`.
  inner, far = i < cells, i >= cells
  tail = np.sum(chance[far] * divergence.parse(objective).value(
      np.exp(relative[i[far]]),
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


@functools.lru_cache(maxsize=1)
def _overlaps(dim: int, first: float, width: float, shells: int
              ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns (i, j, chance that a unit shift moves shell i to shell j > i), (pairs,)."""
  # The chance T_ij is computed from v_i T_ij = v_j T_ji, where v are volumes: only
  # probabilities of inward moves are known to relative precision.
  log_volume = shell_geometry.log_volumes(dim, first, width, shells)
  band, _ = shell_geometry.transition(dim, first, width, shells)
  # Column s of `inward` holds the chances of moving in by s + 1 shells.
  inward = band[:, band.shape[1] // 2 - 1::-1]
  j, step = np.nonzero(inward > 0)
  i = j - step - 1
  j, step, i = j[i >= 0], step[i >= 0], i[i >= 0]
  chance = inward[j, step] * np.exp(log_volume[j] - log_volume[i])
  kept = chance > _LEAST_CHANCE
  return i[kept], j[kept], chance[kept]


def _count_shells(dim: int, layout: Layout) -> int:
  """Returns the number of shells until a shell's mass is negligible for objectives."""
  # The least log mass that counts, relative to the last free shell.
  least = -90.0 if dim <= FLAT_DIM else -30.0
  first, width, cells, log_ratio = layout
  count = 1024
  while True:
    steps = np.arange(1, count)
    log_mass = steps * log_ratio + (dim - 1) * np.log1p(
        steps * width / (first + cells * width))
    below = np.flatnonzero(log_mass < least)
    if below.size or count > 10 * MAX_SHELLS:
      return cells + int(steps[below[0]] if below.size else steps[-1])
    count *= 2


def exponential_start(program: convex_program.Program) -> np.ndarray:
  """Returns masses of an exponential density of at most 90 % of the budget.

  Raises ValueError if the narrowest such density costs more.
  """
  size = program.mass.size
  index = np.arange(size)
  volume = program.log_volumes

  def tilted(rate):
    """Returns p of mass one whose density is proportional to exp(-rate * index)."""
    log_p = volume - rate * index
    p = np.exp(np.maximum(log_p - np.max(log_p), -600.0))
    return p / (program.mass @ p)

  def excess(log_rate):
    """Returns cost over budget, minus 0.9, which decreases with the rate."""
    return float(program.cost @ tilted(np.exp(log_rate))) / program.budget - 0.9

  low, high = np.log(1e-7), np.log(200.0)
  if excess(high) > 0:
    least = float(program.cost @ tilted(np.exp(high)))
    raise ValueError(
        f'Expected a budget that this grid can meet, got a budget of '
        f'{program.budget:.6g} where the narrowest density costs {least:.6g}; '
        'raise bins or the budget.')
  if excess(low) < 0:
    return tilted(np.exp(low))
  return tilted(np.exp(optimize.brentq(excess, low, high)))


def into_budget(program: convex_program.Program, p: np.ndarray) -> np.ndarray:
  """Returns p of mass one, within budget, monotone if the program asks for that.

  Raises SolverError if p costs far more than the budget.
  """
  log_p = np.log(p)
  if program.log_volume is not None:
    log_p = np.minimum.accumulate(log_p - program.log_volume) + program.log_volume
  index = np.arange(p.size) / p.size

  def tilted(rate):
    """Returns the point times exp(-rate * index), scaled to mass one."""
    q = np.exp(log_p - rate * index)
    return q / (program.mass @ q)

  def excess(rate):
    """Returns cost / budget - 1 + 1e-13 of the tilted point."""
    return float(program.cost @ tilted(rate)) / program.budget - 1 + 1e-13

  if excess(0.0) <= 0:
    return tilted(0.0)
  high = 1e-6
  while excess(high) > 0:
    high *= 10
    if high > 10 * p.size:
      raise convex_program.SolverError(
          'Expected a solution near its budget, got one that costs '
          f'{1 + excess(0.0):.3g} of it.')
  return tilted(optimize.brentq(excess, 0.0, high, xtol=1e-15) * (1 + 1e-9))
