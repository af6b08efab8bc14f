"""Deltas with and without the mass of infinite losses, rounded outwards.

Where that mass is nearly all of delta, epsilon rests on the last digits of the rest.
"""

from __future__ import annotations

import math
from typing import Iterable

from tfcactus import _numerics

PInf = tuple[float, float]
"""(lower, upper) probability of an infinite loss."""

_ROUNDOFF = 8 * _numerics.EPS
"""Relative, of 1 - prod (1 - p): logs, their exact sum and expm1 are within half of it,
since x e^x / (e^x - 1) is at most one for x <= 0."""


def composed(masses: Iterable[tuple[float, int]], sign: int) -> float:
  """The probability that any of several losses is infinite, from one side.

  Args:
    masses: Pairs (probability of each step, number of steps).
    sign: 1 for an upper bound, -1 for a lower one.
  """
  given = [(p, count) for p, count in masses if p > 0]
  if sum(count for _, count in given) <= 1:
    return given[0][0] if given else 0.0
  total = -math.expm1(math.fsum(
      count * _numerics.log_complement(p) for p, count in given))
  return min(total * (1 + sign * _ROUNDOFF), 1.0)


def without(delta: float, p_inf: PInf) -> tuple[float, float]:
  """(at least, at most) the delta that is left to finite losses.

  Returns:
    (for a lower bound on epsilon, for an upper one): rounded up, and rounded down.
  """
  return (_difference(delta, p_inf[0], math.inf),
          _difference(delta, p_inf[1], -math.inf))


def beside(low: float, high: float, p_inf: PInf) -> tuple[float, float]:
  """(lower, upper) delta of all losses, by that of finite ones."""
  lower = min(max(_difference(low, -p_inf[0], -math.inf), p_inf[0], 0.0), 1.0)
  upper = min(_difference(high, -p_inf[1], math.inf), 1.0)
  return min(lower, upper), upper


def _difference(a: float, b: float, towards: float) -> float:
  return a - b if a == 0 or b == 0 else math.nextafter(a - b, towards)
