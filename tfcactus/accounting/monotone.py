"""Inverting functions that fall with epsilon, or rise: one search, one proof.

A search may end anywhere. What is published was evaluated: each end of a bracket is
an argument at which the bound on the function was seen on the right side, and
monotonicity of the truth does the rest.
"""

from __future__ import annotations

import math
from typing import Callable

from scipy import optimize

from tfcactus.accounting.bounds import Bounds
from tfcactus.accounting.bounds import IntractableError

MAX_DOUBLINGS = 60
"""So often an end is moved further before that is given up. Knob of speed."""

_NOTHING = -1e3
"""Stands for the log of zero; logs of floats are above -745."""


def root(delta_at: Callable[[float], float], delta: float, *, near: float = 0.0,
         width: float = 1.0, precision: float = 1e-15, limit: float = math.inf
         ) -> float:
  """About the epsilon >= 0 where delta has a value; proves nothing.

  Args:
    delta_at: Falls with epsilon.
    delta: The value, in (0, 1).
    near: Where to look first.
    width: How far on both sides to look first.
    precision: Wanted, relative.
    limit: Beyond it nothing is looked for.

  Raises:
    IntractableError: if there is none within the limit.
  """
  target = math.log(delta)

  def excess(epsilon: float) -> float:
    value = delta_at(epsilon)
    return math.log(value) - target if value > 0 else _NOTHING

  low, high, step = max(near - width, 0.0), near + width, width
  while low > 0 and excess(low) < 0:
    step *= 8
    low = max(low - step, 0.0)
  step = width
  while excess(high) > 0:
    step *= 8
    high += step
    if high > limit:
      raise IntractableError
  if excess(low) <= 0:
    return low
  return optimize.brentq(excess, low, high, xtol=1e-18, rtol=precision)


def epsilon_bounds(delta_at: Callable[[float], Bounds], delta: float, near: float,
                   down: float, up: float, *, tries: int = MAX_DOUBLINGS) -> Bounds:
  """Bounds on the least epsilon >= 0 at `delta`, checked at both ends.

  Args:
    delta_at: Bounds on delta at an epsilon.
    delta: In (0, 1).
    near: About the answer.
    down: How far below it the lower end is tried first, then twice as far and so on.
    up: How far above it the upper end is tried.
    tries: How often.

  Raises:
    IntractableError: if an end was not shown to be one.
  """
  low = first_end(near, -down, lambda x: delta_at(x).lower >= delta, tries)
  high = first_end(near, up, lambda x: delta_at(x).upper <= delta, tries)
  return Bounds(low, min(max(near, low), high), high)


def first_end(near: float, move: float, holds: Callable[[float], bool],
              tries: int = MAX_DOUBLINGS) -> float:
  """The first of near + move, near + 2 move, near + 4 move, ... at which it holds.

  Zero, where that is reached from above: no epsilon is smaller.

  Raises:
    IntractableError: if it holds at none.
  """
  for _ in range(tries):
    end = near + move
    if move < 0 and end <= 0:
      return 0.0
    if holds(end):
      return end
    move *= 2
  raise IntractableError


def crossing(holds: Callable[[float], bool], low: float, high: float, *,
             tolerance: float = 0.0, limit: float = math.inf
             ) -> tuple[float, float]:
  """Where something that begins to hold does so: bisection.

  Args:
    holds: False up to some argument and True above it.
    low: Where it is known, or taken, not to hold.
    high: Where it may hold; moved up until it does.
    tolerance: Distance of the ends wanted; zero for neighbouring floats.
    limit: Beyond it nothing is looked for.

  Returns:
    (low, high): it did not hold at the first, unless that is the `low` given, and
    did at the second, unless that is inf: then it did not up to the limit.
  """
  while not holds(high):
    if high >= limit:
      return high, math.inf
    low, high = high, min(high + 2 * (high - low), limit)
  while high - low > tolerance:
    middle = 0.5 * (low + high)
    if not low < middle < high:
      break
    low, high = (low, middle) if holds(middle) else (middle, high)
  return low, high
