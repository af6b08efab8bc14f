"""Bounds on a number, and inverses of monotone functions (no accountant).

Each end of a published bracket is zero, or an argument at which the bound on the
function was evaluated and found on the right side. So the bracket is proved however the
search for it ended.
"""

from __future__ import annotations

import math
from typing import Callable, NamedTuple, Protocol

from scipy import optimize

MAX_DOUBLINGS = 60
"""Largest number of moves of an end before a search gives up. Knob of speed."""


class Bounds(NamedTuple):
  """Bounds lower <= truth <= upper; `estimate` is the best single number."""

  lower: float
  estimate: float
  upper: float


class Method(Protocol):
  """A method of accounting; raises `IntractableError` if bounds cost too much."""

  def epsilon(self, delta: float) -> Bounds:
    """Returns bounds on the least epsilon >= 0 at `delta` in (0, 1)."""

  def delta(self, epsilon: float) -> Bounds:
    """Returns bounds on the least delta at `epsilon` >= 0."""


class IntractableError(Exception):
  """Raised if a method has no bounds at acceptable cost; callers try another one."""


def root(delta_at: Callable[[float], float], delta: float, *, near: float = 0.0,
         width: float = 1.0, precision: float = 1e-15, limit: float = math.inf
         ) -> float:
  """Returns roughly the least epsilon >= 0 with delta_at(epsilon) <= `delta`.

  `delta_at` decreases. The search proves nothing. It starts at near +- width, ends at
  relative `precision` and raises `IntractableError` beyond `limit`.
  """
  target = math.log(delta)

  def excess(epsilon: float) -> float:
    """Returns log(delta_at(epsilon) / delta), or about the least such log for zero."""
    value = delta_at(epsilon)
    return math.log(value) - target if value > 0 else -1e3

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
  """Returns bounds on the least epsilon >= 0 at `delta`, checked at both ends.

  Searches from `near`, first at distances `down` and `up`, both positive, then at
  doubled distances; raises `IntractableError` after `tries`.
  """
  low = first_end(near, -down, lambda x: delta_at(x).lower >= delta, tries)
  high = first_end(near, up, lambda x: delta_at(x).upper <= delta, tries)
  return Bounds(low, min(max(near, low), high), high)


def first_end(near: float, move: float, holds: Callable[[float], bool],
              tries: int = MAX_DOUBLINGS) -> float:
  """Returns the first of near + move, near + 2 move, near + 4 move, ... that `holds`.

  Returns zero if the search reaches it from above, as no epsilon is smaller; raises
  `IntractableError` after `tries`.
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
  """Returns (low, high) around the argument at which `holds` turns True, by bisection.

  `holds` is False at the low returned, unless this is the given `low`, which is not
  checked, and True at the high returned, which may lie beyond the given `high`. If
  `holds` is False at `limit`, the result is (`limit`, inf). A `tolerance` of zero gives
  neighbouring floats.
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
