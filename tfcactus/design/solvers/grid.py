"""Grids and tails that suit a budget, and the convex program of scalar noise."""

from __future__ import annotations

import numpy as np
from scipy import optimize, special

from tfcactus.design.solvers import convex_program, divergence
from tfcactus.design.solvers.cost import Cost

_DROP = 30.0
"""The grid ends where the expected log mass is this far below its peak."""

_ANGLES = 48
"""Number of Gauss nodes over the cosine between the noise and the shift."""

_STEEPEST = 600.0
"""Largest slope of minus the log density, per unit of sensitivity."""


def tail_shape(objective: str, cost: Cost, budget: float,
               dim: int) -> tuple[float, float]:
  """Returns (radius, slope): the end of a grid, and how steep its geometric tail is."""
  # Little mass is left beyond the radius. The slope is the decrease of the log density
  # there, per unit of sensitivity. Far out the density is locally exponential with some
  # slope s. Stationarity requires that the mean over directions of -d phi / d a at (1,
  # exp(s cos)) equals the price of cost times the cost. Integrating the slopes gives a
  # density for every price; the price is chosen so that the density costs the budget.
  log_s = np.linspace(np.log(1e-5), np.log(_STEEPEST), 700)
  log_pull = _log_pull(objective, np.exp(log_s), dim)
  size = cost.size(budget)
  span = size * (60.0 / np.sqrt(dim) + 3)
  radius = np.linspace(0.0, span, 1201)[1:]
  log_cost = np.log(np.maximum(cost.at(radius), 1e-300))

  def density(log_price):
    """Returns slopes of minus the log density, and log masses, at every radius."""
    slope = np.exp(np.interp(log_price + log_cost, log_pull, log_s))
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
  """Returns log of the mean of -d phi / d a at (1, exp(slope * cos)), increasing."""
  # The mean is over the directions of the noise in R^dim; cos is the cosine between
  # noise and shift.
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
  # Rounding spoils tiny slopes and huge ones overflow: extrapolate by powers.
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

  Cells i and -i share one unknown; the last one represents a geometric tail, in which
  `log_ratio` is the log of the density ratio of neighbouring cells. `shifts` are in
  cells.

  Source: Theorem 2 of Alghamdi et al., "Cactus Mechanisms" (ISIT 2022).
  """
  ratio = np.exp(log_ratio)
  mass = np.full(cells + 1, 2.0)
  mass[0] = 1.0
  mass[-1] = -2 / np.expm1(log_ratio)
  tail = np.arange(int(np.ceil(-80.0 / log_ratio)) + 1)
  # Cell i is i / bins +- 1 / (2 bins).
  centre = np.arange(cells + tail.size)
  prices = 2 * cost.means(
      np.maximum((centre - 0.5) / bins, 0.0), (centre + 0.5) / bins, 1)
  prices[0] /= 2
  folded = np.append(prices[:cells], np.sum(prices[cells:] * ratio**tail))
  return convex_program.Program(
      objective=objective,
      shifts=[scalar_shift(objective, int(k), cells, log_ratio)
              for k in shifts],
      mass=mass, cost=folded, budget=budget,
      log_volume=np.zeros(cells + 1) if monotone else None)


def scalar_shift(objective: str, k: int, cells: int,
                 log_ratio: float) -> convex_program.Shift:
  """Returns the divergence at a shift by k cells; each unordered pair counts once."""
  right = np.arange(cells)
  # Every pair between the centre and the shifted centre appears twice.
  between = np.arange(1, k)
  first = np.concatenate([right, between])
  second = np.concatenate([right + k, k - between])
  weight = np.concatenate([np.ones(right.size), np.full(between.size, 0.5)])
  log_scale = np.maximum(second - cells, 0) * log_ratio
  tail = convex_program.pair_value(objective, 1.0, np.exp(k * log_ratio))
  return convex_program.Shift(first, np.minimum(second, cells), log_scale, weight,
                        float(tail / -np.expm1(log_ratio)))


def exponential_start(program: convex_program.Program) -> np.ndarray:
  """Returns an exponential density within 90 % of the budget; ValueError if none is."""
  size = program.mass.size
  index = np.arange(size)
  volume = program.log_volumes

  def tilted(rate):
    """Returns p of mass one whose density is proportional to exp(-rate * index)."""
    log_p = volume - rate * index
    p = np.exp(np.maximum(log_p - np.max(log_p), -600.0))
    return p / (program.mass @ p)

  def excess(log_rate):
    """Returns cost over budget, minus 0.9; decreasing."""
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
  """Returns p made monotone, of mass one, within budget; SolverError if far beyond."""
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
