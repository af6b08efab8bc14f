"""Probabilities of infinite losses, and deltas with and without them, rounded outwards.

If nearly all of delta is such mass, epsilon depends on the last digits of the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
import math

from tfcactus import _numerics

PInf = tuple[float, float]
"""Bounds (lower, upper) on the probability of an infinite loss."""

_ROUNDOFF = 8 * _numerics.EPS
"""Relative error of 1 - prod (1 - p): logs, their exact sum and expm1 are within half
of this, since x e^x / (e^x - 1) is at most one for x <= 0."""


def composed(masses: Iterable[tuple[float, int]], sign: int) -> float:
  """Returns an upper (`sign` 1) or lower (-1) bound on P(any step's loss is infinite).

  `masses` are pairs (probability of an infinite loss in one step, number of steps).
  """
  given = [(p, count) for p, count in masses if p > 0]
  if sum(count for _, count in given) <= 1:  # Not computed, hence not rounded.
    return given[0][0] if given else 0.0
  total = -math.expm1(math.fsum(
      count * (math.log1p(-p) if p < 1 else -math.inf) for p, count in given))
  return min(total * (1 + sign * _ROUNDOFF), 1.0)


def without(delta: float, p_inf: PInf) -> tuple[float, float]:
  """Returns (upper, lower) bounds on `delta` minus the mass of infinite losses.

  They may be negative.
  """
  return (_difference(delta, p_inf[0], math.inf),
          _difference(delta, p_inf[1], -math.inf))


def beside(low: float, high: float, p_inf: PInf) -> tuple[float, float]:
  """Returns bounds on delta; `low` and `high` bound the part of finite losses."""
  lower = min(max(_difference(low, -p_inf[0], -math.inf), p_inf[0], 0.0), 1.0)
  upper = min(_difference(high, -p_inf[1], math.inf), 1.0)
  return min(lower, upper), upper


def _difference(a: float, b: float, towards: float) -> float:
  """Returns a - b, rounded towards `towards`; exact if a or b is zero."""
  return a - b if a == 0 or b == 0 else math.nextafter(a - b, towards)
