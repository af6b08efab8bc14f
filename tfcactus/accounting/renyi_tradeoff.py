"""Trade-off functions from Renyi divergences, of orders below one too.

A test maps each law to a coin. Let x be the false positive rate, Q's probability to
reject, and y the false negative rate, so that 1 - y is P's probability to reject. By
post-processing, at each order a

    d_a(1 - y || x) <= D_a(P || Q)   and   d_a(x || 1 - y) <= D_a(Q || P),

where d_a is the divergence of two coins. For given x, the left sides decrease in y up
to 1 - x, so that each order has a least y. The largest of these is a lower bound on the
false negative rate of every test of every pair whose divergences are at most the given
ones. This is proved for any set of orders. The paper conjectures, without proof, that
the divergences imply no larger bound. The bound lies below the trade-off function of
the pair, usually far below, since divergences are upper bounds here and need not be
attained at all orders at once.

Source: appendix F of Zhu, Dong and Wang (AISTATS 2022), after Balle et al., "Hypothesis
testing interpretations and Renyi differential privacy" (2020).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tfcactus import _checks
from tfcactus._numerics import EPS

MAX_ORDER = 1e12
"""Largest order: beyond it the divergence is practically the largest loss."""

_LEAST = 1e-300
"""Replaces a false positive rate of zero; safe, as the function is decreasing."""

_HALVINGS = 62
"""Bisections that resolve an interval of 1400 in log(y / (1 - y)) to its last digit."""


def tradeoff_from_renyi(
    orders: npt.ArrayLike, divergences: npt.ArrayLike,
    false_positive: npt.ArrayLike, reverse: npt.ArrayLike | None = None
    ) -> np.ndarray:
  """Returns lower bounds on the trade-off function of all pairs with such divergences.

  Args:
    orders: Shape (n,), positive, other than one.
    divergences: Shape (n,), D_order(P || Q) or upper bounds; inf gives no information.
    false_positive: Q-probability of rejecting, in [0, 1], any shape.
    reverse: Shape (n,), D_order(Q || P) or upper bounds; None if unknown. Pass
      `divergences` again for a guarantee that covers both directions.

  Returns:
    Lower bounds on the false negative rate (1 minus the P-probability of rejecting) of
    any test at that level. Between two levels the chord is no bound; the value at the
    larger level is one.

  Raises:
    ValueError: if orders, divergences or levels are out of range.
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
  """Returns the largest y seen to violate some order's bound, by bisecting its logit.

  `order` and `divergence` have shape (n, 1); `x` has shape (points,), in (0, 1). The
  result has the shape of `x`, with zero if none is seen. `forward` means P against Q.
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
  # Rounded down. The first lower end was not evaluated, hence zero.
  return np.where(low > -700.0, np.exp(log_y) * (1 - 8 * EPS * (1 - log_y)), 0.0)


def _breaks(order: np.ndarray, divergence: np.ndarray,
            p: tuple[np.ndarray, np.ndarray], q: tuple[np.ndarray, np.ndarray]
            ) -> np.ndarray:
  """Returns whether d_order(p || q) of two coins exceeds `divergence` despite rounding.

  `order` and `divergence` have shape (n, 1). `p` and `q` hold the logs of the
  probabilities of both sides, each of shape (points,).
  """
  sides = [order * a + (1 - order) * b for a, b in zip(p, q)]
  size = 1 + sum(order * np.abs(a) + np.abs(1 - order) * np.abs(b)
                 for a, b in zip(p, q)) + np.abs(order - 1) * divergence
  moment = np.logaddexp(*sides) - (order - 1) * divergence
  return np.sign(order - 1) * moment > 16 * EPS * size
