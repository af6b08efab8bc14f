"""Post's formula: a privacy profile from Renyi divergences at real orders alone.

With losses of at least -m, u = epsilon + m and phi(s) = E_P exp(-s (loss + m)) over
finite losses, delta(u - m) has for u > 0 the Laplace transform

    F(s) = (1 - phi(s)) / s - (phi(s) - phi(1)) / (1 - s),

and log phi(s) + s m is (s - 1) D_s(Q || P). Post's derivatives of F, as differences
(Gaver, 1966), are means of delta: with rate a, k and T a sum of independent exponential
variables of rates i a, i = k .. 2 k,

    E delta(T - m) = c a * sum over j = 0 .. k of (-1)^j C(k, j) F((k + j) a)

with c = (2 k)! / (k! (k - 1)!).

Here a is such that E T = epsilon + m. delta falls by at most one for one, so that its
mean is off by half the standard deviation of T at most: the bounds, proved and wide,
about (epsilon + m) / (2 sqrt(k)). Where delta is smooth the error is of order 1 / k.

The sum cancels to one part in 8^k: divergences have to be known to k digits and more,
as they are where they have a closed form. So this is for comparison; a contour, of
complex orders, inverts the same transform to twelve digits in float64.

Source: appendix B of Zhu, Dong and Wang (AISTATS 2022) names the formula; differences,
for F above, and the bounds are this library's.
"""

from __future__ import annotations

import decimal
from decimal import Decimal
import math
from typing import Callable

from tfcactus import _checks
from tfcactus.accounting.bounds import Bounds

SPARE_DIGITS = 60
"""Digits beyond two for each term: one cancels, half of one where s is next to one."""

_ROUNDOFF = 1e-15
"""More than what those digits leave, and conversions to floats."""


def profile_by_post(log_moment: Callable[[Decimal], Decimal], most: float,
                    epsilon: float, terms: int = 100) -> Bounds:
  """Bounds on delta at `epsilon`, with a mean of deltas around it as estimate.

  Args:
    log_moment: Takes s > 0; returns log E_P exp(-s loss) over finite losses, which is
      (s - 1) D_s(Q || P), to the digits of the decimal context that it is called in.
      Your word.
    most: No loss is below minus this; positive.
    epsilon: Above -most.
    terms: k.

  Raises:
    ValueError: if there is no such distance, too few terms, or log_moment is seen not
      to have the digits.

  Source: see above.
  """
  most, k = _checks.positive('most', most), _checks.integer('terms', terms, 2)
  distance = _checks.real('epsilon', epsilon) + most
  if distance <= 0:
    raise ValueError(
        f'Expected epsilon > -most, got epsilon={epsilon!r}, most={most!r}; below, '
        'delta is one minus e^epsilon.')
  with decimal.localcontext() as context:
    context.prec = 2 * k + SPARE_DIGITS
    rates = [Decimal(1) / i for i in range(k, 2 * k + 1)]
    rate = sum(rates) / (Decimal(epsilon) + Decimal(most))
    near = Decimal(10)**-(k // 2 + 15)
    at_one = _moment(log_moment, Decimal(1), most)
    total = sum((-1)**j * math.comb(k, j) * _transform(
        log_moment, (k + j) * rate, most, at_one, near) for j in range(k + 1))
    mean = float(total * rate * (math.comb(2 * k, k) * k))
    spread = float(sum((each * each for each in rates), Decimal(0)).sqrt() / rate)
  room = 0.5 * spread + _ROUNDOFF
  if not -_ROUNDOFF <= mean <= 1 + _ROUNDOFF:
    raise ValueError(
        f'Expected log_moment to the {2 * k + SPARE_DIGITS} digits of the decimal '
        f'context, got values whose mean of deltas is {mean!r}.')
  low, high = max(mean - room, 0.0), min(mean + room, 1.0)
  return Bounds(low, min(max(mean, 0.0), high), high)


def _moment(log_moment: Callable[[Decimal], Decimal], s: Decimal, most: float
            ) -> Decimal:
  """phi(s)."""
  return (log_moment(s) - s * Decimal(most)).exp()


def _transform(log_moment: Callable[[Decimal], Decimal], s: Decimal, most: float,
               at_one: Decimal, near: Decimal) -> Decimal:
  """F(s); within `near` of s = 1 the mean of two neighbours, F being smooth there."""
  if abs(s - 1) < near:
    return sum((_transform(log_moment, 1 + sign * near, most, at_one, near)
                for sign in (-1, 1)), Decimal(0)) / 2
  phi = _moment(log_moment, s, most)
  return (1 - phi) / s - (phi - at_one) / (1 - s)
