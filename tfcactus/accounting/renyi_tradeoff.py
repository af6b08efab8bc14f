"""Trade-off functions from Renyi divergences, of orders below one too.

A test makes a coin of each law: with x the false positive rate, Q's chance to reject,
and y the false negative rate, 1 - y is P's. No divergence grows by that, so at each
order a

    d_a(1 - y || x) <= D_a(P || Q)   and   d_a(x || 1 - y) <= D_a(Q || P),

d_a being the divergence of two coins. Of x given, the left sides fall in y up to
1 - x, so that each order has a least y; the largest of them is a lower bound on the
false negative rate of every test of every pair whose divergences are at most those
given. That is proved, for any set of orders. What is not: that no larger bound follows
from the divergences, which the paper conjectures; and it lies below the pair's own
function, as a rule far below, since divergences are bounded here and not known to be
attained at all orders at once.

Source: appendix F of Zhu, Dong and Wang (AISTATS 2022), after Balle et al., "Hypothesis
testing interpretations and Renyi differential privacy" (2020).
"""

from __future__ import annotations

from typing import Optional

import numpy as np
import numpy.typing as npt

from tfcactus import _checks
from tfcactus._numerics import EPS

MAX_ORDER = 1e12
"""Orders are at most this: beyond it a divergence is the largest loss."""

_LEAST = 1e-300
"""In place of a false positive rate of zero: the function falls in it."""

_HALVINGS = 62
"""Of an interval of 1400 in log(y / (1 - y)): to its last digit."""


def tradeoff_from_renyi(
    orders: npt.ArrayLike, divergences: npt.ArrayLike,
    false_positive: npt.ArrayLike, reverse: Optional[npt.ArrayLike] = None
    ) -> np.ndarray:
  """Lower bounds on the trade-off function of all pairs with such divergences.

  Args:
    orders: Shape (n,), positive, other than one.
    divergences: Shape (n,), D_order(P || Q) or upper bounds on them; inf says nothing.
    false_positive: Q-probability of rejecting, in [0, 1], any shape.
    reverse: Shape (n,), D_order(Q || P) or upper bounds on them; None: not known. A
      guarantee for neighbours either way has the same as `divergences`.

  Returns:
    Bounds from below on the false negative rate of any test at that level, 1 minus the
    P-probability of rejecting. Between two points the function may lie below their
    chord: a staircase, each value back to the level before, is a bound there.

  Raises:
    ValueError: if orders, divergences or levels are none.
  """
  order = _checks.vector('orders', orders)
  if np.any(order <= 0) or np.any(order == 1) or np.any(order > MAX_ORDER):
    raise ValueError(
        f'Expected orders > 0, of at most {MAX_ORDER:g} and other than 1, got '
        f'{order.tolist()!r}; for order 1 use one slightly above.')
  known = [(_divergences('divergences', divergences, order.size), True)]
  if reverse is not None:
    known.append((_divergences('reverse', reverse, order.size), False))
  x = _checks.numbers_of('false_positive', false_positive)
  if not np.all((x >= 0) & (x <= 1)):
    raise ValueError(f'Expected false_positive in [0, 1], got {x!r}.')
  level = np.clip(x.ravel(), _LEAST, 1.0 - 0.5 * EPS)
  bounds = [_least(order[finite, None], divergence[finite, None], level, forward)
            for divergence, forward in known
            for finite in [np.isfinite(divergence)] if np.any(finite)]
  found = np.max(bounds, axis=0) if bounds else np.zeros(level.shape)
  return np.where(x == 1, 0.0, found.reshape(x.shape))


def _divergences(name: str, value: npt.ArrayLike, size: int) -> np.ndarray:
  array = _checks.numbers_of(name, value)
  if array.shape != (size,) or np.any(array < 0):
    raise ValueError(
        f'Expected {name} >= 0, one for each of {size} orders, got {value!r}.')
  return array


def _least(order: np.ndarray, divergence: np.ndarray, x: np.ndarray, forward: bool
           ) -> np.ndarray:
  """The largest y seen to break some order's bound, by bisection of its logit.

  Args:
    order: Shape (n, 1).
    divergence: Shape (n, 1).
    x: Shape (points,), above zero and below one.
    forward: Whether of P against Q; else of Q against P.

  Returns:
    Shape (points,): zero where none is seen.
  """
  log_x, log_1x = np.log(x), np.log1p(-x)
  low, high = np.full(x.shape, -700.0), log_1x - log_x
  for _ in range(_HALVINGS):
    middle = 0.5 * (low + high)
    log_y, log_1y = -np.logaddexp(0.0, -middle), -np.logaddexp(0.0, middle)
    one, other = ((log_1y, log_y), (log_x, log_1x))[::1 if forward else -1]
    broken = np.any(_breaks(order, divergence, one, other), axis=0)
    low, high = np.where(broken, middle, low), np.where(broken, high, middle)
  log_y = -np.logaddexp(0.0, -low)
  # Rounded down; the first end was not looked at.
  return np.where(low > -700.0, np.exp(log_y) * (1 - 8 * EPS * (1 - log_y)), 0.0)


def _breaks(order: np.ndarray, divergence: np.ndarray,
            p: tuple[np.ndarray, np.ndarray], q: tuple[np.ndarray, np.ndarray]
            ) -> np.ndarray:
  """Whether d_order(p || q) of two coins is above, rounding counted.

  Args:
    order: Shape (n, 1).
    divergence: Shape (n, 1).
    p: Two arrays of shape (points,), logs of both sides' chances.
    q: Likewise.
  """
  sides = [order * a + (1 - order) * b for a, b in zip(p, q)]
  size = 1 + sum(order * np.abs(a) + np.abs(1 - order) * np.abs(b)
                 for a, b in zip(p, q)) + np.abs(order - 1) * divergence
  moment = np.logaddexp(*sides) - (order - 1) * divergence
  return np.sign(order - 1) * moment > 16 * EPS * size
