"""Calibration (no accountant): noise, sampling or steps that spend a given epsilon."""

from __future__ import annotations

import math
from typing import Callable

import dp_accounting
from scipy import optimize

from tfcactus import _checks
from tfcactus._numerics import EPS
from tfcactus.accounting.phi import PhiAccountant

TOLERANCE = 1e-7
"""Relative tolerance of results; the error is on the safe side."""

Account = Callable[[float], float]
"""Function from the value of a parameter to an upper bound on epsilon."""


def account(make_event: Callable[[float], dp_accounting.DpEvent], delta: float,
            relation: dp_accounting.NeighboringRelation = (
                dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE),
            direction: str = 'both') -> Account:
  """Returns a function from a parameter's value to an upper bound on epsilon.

  `make_event` maps the value to the event of the whole run; epsilon is at `delta`. The
  other arguments are those of `PhiAccountant`.
  """
  def cost(value: float) -> float:
    """Returns the upper bound on epsilon of `make_event(value)` at `delta`."""
    accountant = PhiAccountant(relation, direction=direction)
    return accountant.compose(make_event(value)).get_epsilon(delta)
  return cost


def calibrate_noise(target_epsilon: float, cost: Account, *, low: float = 1e-3,
                    high: float = 1e6, tolerance: float = TOLERANCE,
                    name: str = 'noise multiplier',
                    target_name: str = 'target_epsilon') -> float:
  """Returns the least noise multiplier (or scale) whose cost is within the target.

  Args:
    target_epsilon: Budget for the upper bound.
    cost: Epsilon as a function that decreases with the noise.
    low: Least noise tried; returned if its cost is within the target.
    high: Largest noise tried.
    tolerance: Relative; the result may be too large by so much, never too small.
    name: Name of the parameter in error messages.
    target_name: Name of the target in error messages.

  Raises:
    ValueError: if no noise up to `high` has that cost, or an argument is out of range.
  """
  target = _checks.positive(target_name, target_epsilon)
  tolerance = _checks.positive('tolerance', tolerance)
  least = math.log(_checks.positive('low', low))
  most = math.log(_checks.positive('high', high))

  def excess(log_value: float) -> float:
    """Returns log(cost / target) at the noise e^log_value, finite for `brentq`."""
    value = cost(math.exp(log_value))
    return math.log(max(value, 1e-300) / target) if value < math.inf else 1e3

  # Start in the middle: extreme values are slow to account.
  left = right = min(max(0.0, least), most)
  if excess(left) > 0:
    while excess(right) > 0:
      if right == most:
        raise ValueError(
            f'Expected {target_name}={target!r} to be reachable with a {name} '
            f'of at most {high:g}; raise the target or lower the steps.')
      left, right = right, min(right + math.log(2), most)
  else:
    while excess(left) <= 0:
      if left == least:
        return math.exp(left)
      left, right = max(left - math.log(2), least), left
  root = optimize.brentq(excess, left, right, xtol=tolerance / 4, rtol=1e-14)
  step = max(tolerance / 4, math.ulp(root), EPS)  # A smaller step changes nothing.
  while excess(root) > 0:
    root += step
  return math.exp(root)


def calibrate_sampling_prob(target_epsilon: float, cost: Account) -> float:
  """Returns the largest sampling probability whose cost is within the target.

  It may be too small by a share of `TOLERANCE`, never too large. `cost` is epsilon as a
  function that increases with the probability. Raises ValueError if no probability from
  1e-9 to 1 is within the target.
  """
  if cost(1.0) <= _checks.positive('target_epsilon', target_epsilon):
    return 1.0
  return 1 / calibrate_noise(
      target_epsilon, lambda inverse: cost(1 / inverse), low=1.0, high=1e9,
      name='inverse sampling probability')


def calibrate_steps(target_epsilon: float, cost: Callable[[int], float],
                    most: int | None = None) -> int:
  """Returns the largest number of steps whose cost is within the target, or zero.

  `cost` is epsilon as a function that increases with the steps; `most` is the largest
  number of steps tried. Raises ValueError if `most` is None and 2^40 steps are within
  the target, or if an argument is out of range.
  """
  target = _checks.positive('target_epsilon', target_epsilon)
  low, high = 0, 1 if most is None else _checks.integer('most', most, 0)
  while cost(high) <= target:
    if most is not None:
      return most
    low, high = high, 2 * high
    if high > 1 << 40:
      raise ValueError(
          f'Expected target_epsilon={target!r} to bound the steps, but 2^40 '
          'steps are within it.')
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (middle, high) if cost(middle) <= target else (low, middle)
  return low
