"""Conversions of partial knowledge of a mechanism into safe bounds for accounting.

A distribution function of the privacy loss becomes a dominating pair. Renyi divergences
at finitely many orders become upper bounds on a privacy profile; at all orders, to
hundreds of digits, they determine the profile by Post's formula
(docs/soundness_accounting.md, "Inversions of the papers").
"""

from __future__ import annotations

from collections.abc import Sequence
import decimal
from decimal import Decimal
import math
from typing import Callable

import numpy as np
import numpy.typing as npt

from tfcactus import _checks, _numerics
from tfcactus.accounting import truncated_cdp
from tfcactus.accounting.bounds import Bounds
from tfcactus.accounting.composition.losses.base import ROUNDOFF
from tfcactus.pairs.dominating_pair import DominatingPair, LARGEST_LOSS, LEAST_MASS

SPARE_DIGITS = 60
"""Decimal digits besides two per term of the sum. Cancellation takes one digit per
term, and near s = 1 half of the digits are lost."""

_ROUNDOFF = 1e-15
"""Bound on the rounding error with so many digits, conversions to float included."""


def pair_from_loss_cdf(loss: npt.ArrayLike, cdf: npt.ArrayLike) -> DominatingPair:
  """Returns a pair that dominates every pair whose loss CDF is at least `cdf`.

  Mass up to the first point, and between two points, moves to the upper point, mass
  beyond the last point to infinity. `loss` increases; `cdf`, P-probabilities of losses
  up to `loss` or lower bounds on them, does not fall. Raises ValueError for other
  arrays, and unless the moved masses have E_P e^-loss <= 1, as any privacy loss has.

  Source: appendix B of Zhu, Dong and Wang (AISTATS 2022).
  """
  x, y = _checks.vector('loss', loss), _checks.vector('cdf', cdf)
  if x.shape != y.shape:
    raise ValueError(
        f'Expected a value of cdf for each loss, got {y.size} for {x.size}.')
  for name, array, bad in (('loss to increase', x, np.diff(x) <= 0),
                           ('cdf not to fall', y, np.diff(y) < 0)):
    if np.any(bad):
      first = int(np.flatnonzero(bad)[0])
      raise ValueError(
          f'Expected {name}, got {float(array[first])!r} and then '
          f'{float(array[first + 1])!r} at index {first + 1}; sort the points by loss, '
          'each loss once.')
  if y[0] < 0 or y[-1] > 1:
    raise ValueError(
        f'Expected cdf in [0, 1], got values from {float(y[0])!r} to {float(y[-1])!r}.')
  p = np.diff(y, prepend=0.0)
  with np.errstate(over='ignore', under='ignore', invalid='ignore'):
    q = np.where(p > 0, p * np.exp(-x), 0.0)
  # Losses whose masses are no floats count as infinite, which is safe.
  known = (x <= LARGEST_LOSS) & (np.minimum(p, q) >= LEAST_MASS)
  total = float(np.sum(q))
  if total > 1 + 1e-12:
    raise ValueError(
        f'Expected E exp(-loss) <= 1, as for any privacy loss, got {total!r}; cdf is '
        'too large where losses are small.')
  p_inf = float(1 - y[-1]) + float(np.sum(p[~known]))
  return DominatingPair(
      x[known], p[known], q[known], p_inf, max(1 - float(np.sum(q[known])), 0.0))


def profile_from_renyi(orders: Sequence[float], divergences: Sequence[float],
                       epsilon: npt.ArrayLike) -> np.ndarray:
  """Returns upper bounds on delta at `epsilon` from Renyi divergences; not tight.

  `orders` increase, and are above one; `divergences` are D_order(P || Q), or upper
  bounds on them. `epsilon` has any shape; `views.pair_from_profile` makes a pair of the
  bounds.

  Source: Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy"
  (2020), Proposition 12.
  """
  order, divergence = truncated_cdp.check_curve(orders, divergences)
  at = _checks.numbers_of('epsilon', epsilon)[..., None]
  with np.errstate(invalid='ignore', over='ignore'):
    # delta is E_P (1 - e^-x)+ of x = loss - epsilon, and (1 - e^-x)+ is at most
    # c e^((order - 1) x), where `log_kernel` is the log of the least such c.
    log_delta = (order - 1) * (divergence - at) + _numerics.log_kernel(order - 1)
    size = (order - 1) * (np.abs(divergence) + np.abs(at)) + 1 + np.log(order)
    log_delta += ROUNDOFF * np.where(np.isinf(at), 0.0, size)
  # An order whose products overflow gives NaN, which `fmin` leaves out.
  return _numerics.raised_exp(np.fmin(np.fmin.reduce(log_delta, axis=-1), 0.0))


def profile_by_post(log_moment: Callable[[Decimal], Decimal], most: float,
                    epsilon: float, terms: int = 100) -> Bounds:
  """Returns bounds on delta at `epsilon`; the estimate is a mean of deltas around it.

  The bounds are wide: about (epsilon + most) / (2 sqrt(terms)) on either side.
  `log_moment` takes s > 0 and returns log E_P exp(-s loss) over finite losses, which is
  (s - 1) D_s(Q || P), to the digits of the current decimal context. The caller vouches
  for it. No loss is below -`most` < 0; `terms` is k, at least two. Raises ValueError
  unless epsilon > -most, and if the result shows that log_moment lacks digits.
  """
  most, k = _checks.positive('most', most), _checks.integer('terms', terms, 2)
  epsilon = _checks.real('epsilon', epsilon)
  if epsilon <= -most:
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
  """Returns phi(s) = E_P exp(-s (loss + most)) over finite losses."""
  return (log_moment(s) - s * Decimal(most)).exp()


def _transform(log_moment: Callable[[Decimal], Decimal], s: Decimal, most: float,
               at_one: Decimal, near: Decimal) -> Decimal:
  """Returns the Laplace transform F(s) of delta(u - most); `at_one` is phi(1)."""
  # The formula has no value at s = 1. Within `near` of it, the result is the mean of F
  # at two points beside it, since F is smooth.
  if abs(s - 1) < near:
    return sum((_transform(log_moment, 1 + sign * near, most, at_one, near)
                for sign in (-1, 1)), Decimal(0)) / 2
  phi = _moment(log_moment, s, most)
  return (1 - phi) / s - (phi - at_one) / (1 - s)
