"""Grids and tails matched to a budget, and the scalar program (20)."""

from __future__ import annotations

import functools

import numpy as np
from scipy import optimize
from scipy import special

from tfcactus.design import _program

_DROP = 30.0
"""The grid ends where the expected log mass is this far below its peak."""


def tail_slope(radius: np.ndarray, sigma: float, dim: int, objective: str,
               power: float) -> np.ndarray:
  """The slope of -log density per unit that stationarity asks for at a radius.

  Far out the density is locally exponential with slope s. With F(s) the mean of
  exp(s cos) over directions, the derivative of the KL divergence with respect
  to mass there is 1 - F(s), that of chi-square -2 (F(2s) - 2 F(s) + 1); either
  must balance the price of cost times radius^power. The prices are those of a
  Gaussian (KL) or of a fit to optimal chi-square values; they need be no better
  than a factor of two, since slopes depend on their logarithm.

  Args:
    radius: Distances from zero, in units of sensitivity.
    sigma: Size of a coordinate: budget^(1 / power) / sqrt(dim).
    dim: Dimension.
    objective: 'kl' or 'chi2'.
    power: The cost is |z|^power.
  """
  half = 0.5 * dim
  # KL is about dim / (2 budget^(2 / power)); this is minus its derivative.
  log_price = np.log(dim / power) - (2 + power) * np.log(sigma * np.sqrt(dim))
  if objective == 'chi2':
    log_price += np.log(2 + sigma**-2)
  target = log_price + power * np.log(radius)

  def log_mean(s):
    bessel = np.maximum(special.ive(half - 1, s), 1e-300)
    return (special.gammaln(half) - (half - 1) * np.log(0.5 * s) + s +
            np.log(bessel))

  def log_pull(s):
    one = log_mean(s)
    if objective == 'kl':
      return np.log(np.maximum(np.expm1(one), 1e-300))
    two = log_mean(2 * s)
    return two + np.log(
        np.maximum(1 - 2 * np.exp(one - two) + np.exp(-two), 1e-300))

  log_low = np.full(target.shape, np.log(1e-4))
  log_high = np.full(target.shape, np.log(700.0))
  for _ in range(50):
    middle = 0.5 * (log_low + log_high)
    above = log_pull(np.exp(middle)) > target
    log_low, log_high = (np.where(above, log_low, middle),
                         np.where(above, middle, log_high))
  return np.exp(log_low)


@functools.lru_cache(maxsize=256)
def reach(sigma: float, dim: int, objective: str, power: float) -> float:
  """The radius where little enough mass is left for a geometric tail."""
  radius = sigma * np.linspace(0.0, 60.0 + 2 * np.sqrt(dim), 601)[1:]
  slope = tail_slope(radius, sigma, dim, objective, power)
  log_mass = (dim - 1) * np.log(radius) - np.cumsum(slope) * (
      radius[1] - radius[0])
  peak = int(np.argmax(log_mass))
  beyond = np.flatnonzero(log_mass[peak:] < log_mass[peak] - _DROP)
  return float(radius[peak + int(beyond[0]) if beyond.size else -1])


def scalar_program(objective: str, bins: int, cells: int, log_ratio: float,
                   power: float, budget: float, shifts: np.ndarray,
                   monotone: bool) -> _program.Program:
  """Program (20): cells 0..cells, a folded geometric tail, these shifts.

  Source: Theorem 2 of Alghamdi et al., "Cactus Mechanisms" (ISIT 2022).
  """
  ratio = np.exp(log_ratio)
  mass = np.full(cells + 1, 2.0)
  mass[0] = 1.0
  mass[-1] = -2 / np.expm1(log_ratio)
  cost = 2 * cell_costs(np.arange(cells + 1), bins, power)
  cost[0] /= 2
  cost[-1] = 2 * _tail_cost(cells, bins, ratio, power)
  return _program.Program(
      objective=objective,
      shifts=[scalar_shift(objective, int(k), cells, log_ratio)
              for k in shifts],
      mass=mass, cost=cost, budget=budget,
      log_volume=np.zeros(cells + 1) if monotone else None)


def scalar_shift(objective: str, k: int, cells: int,
                 log_ratio: float) -> _program.Shift:
  """The divergence at a shift by k cells, each unordered pair counted once."""
  right = np.arange(cells)
  # Between the centre and the shifted centre every pair appears twice.
  between = np.arange(1, k)
  first = np.concatenate([right, between])
  second = np.concatenate([right + k, k - between])
  weight = np.concatenate([np.ones(right.size), np.full(between.size, 0.5)])
  log_scale = np.maximum(second - cells, 0) * log_ratio
  tail = _program.pair_value(objective, 1.0, np.exp(k * log_ratio))
  return _program.Shift(first, np.minimum(second, cells), log_scale, weight,
                        float(tail / -np.expm1(log_ratio)))


def cell_costs(index: np.ndarray, bins: int, power: float) -> np.ndarray:
  """The mean of |z|^power over each cell."""
  outer = (index + 0.5) / bins
  inner = np.maximum((index - 0.5) / bins, 0.0)
  width = np.where(index == 0, 0.5, 1.0) / bins
  return (outer**(power + 1) - inner**(power + 1)) / ((power + 1) * width)


def _tail_cost(cells: int, bins: int, ratio: float, power: float) -> float:
  """sum_{i >= cells} c_i ratio^(i - cells), to rounding."""
  count = int(np.ceil(-80.0 / np.log(ratio))) + 1
  steps = np.arange(count)
  return float(np.sum(cell_costs(cells + steps, bins, power) * ratio**steps))


def exponential_start(program: _program.Program) -> np.ndarray:
  """A density with exponential tails whose cost is 90 % of the budget."""
  size = program.mass.size
  index = np.arange(size)
  volume = 0.0 if program.log_volume is None else program.log_volume

  def tilted(rate):
    log_p = volume - rate * index
    p = np.exp(log_p - np.max(log_p))
    return p / (program.mass @ p)

  def excess(log_rate):
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


def into_budget(program: _program.Program, p: np.ndarray) -> np.ndarray:
  """Projects a solver's point: exactly monotone, mass one, within budget."""
  log_p = np.log(p)
  if program.log_volume is not None:
    log_p = np.minimum.accumulate(
        log_p - program.log_volume) + program.log_volume
  index = np.arange(p.size) / p.size

  def tilted(rate):
    q = np.exp(log_p - rate * index)
    return q / (program.mass @ q)

  def excess(rate):
    return float(program.cost @ tilted(rate)) / program.budget - 1 + 1e-13

  if excess(0.0) <= 0:
    return tilted(0.0)
  high = 1e-6
  while excess(high) > 0:
    high *= 10
    if high > 10:
      raise _program.SolverError(
          'Expected a solution near its budget, got one that costs '
          f'{1 + excess(0.0):.3g} of it.')
  return tilted(optimize.brentq(excess, 0.0, high, xtol=1e-15) * (1 + 1e-9))
