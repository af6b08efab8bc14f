"""Accountants by Renyi divergences (RDP, moments), and trade-off functions of these."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any, Callable

import numpy as np
import numpy.typing as npt
from scipy import special

from tfcactus import _checks, _numerics
from tfcactus._numerics import EPS
from tfcactus.accounting import base
from tfcactus.accounting.bounds import crossing, IntractableError
from tfcactus.accounting.composition.composition import Composition
from tfcactus.pairs import dominating_pair as pair_lib

ORDERS = tuple(1 + np.geomspace(0.02, 500.0, 300))
"""Default orders above one."""

BELOW_ONE = tuple(np.linspace(0.5, 0.99, 50))
"""Orders below one, for trade-off functions only. None is below 1/2, since
D_a(P || Q) = a / (1 - a) D_(1 - a)(Q || P)."""

ROUNDOFF = 64 * np.finfo(np.float64).eps
"""Bound on the relative rounding error of a moment (pairwise sums of at most 1e5
positive terms, each of a few roundings), hence on the error of its logarithm."""

WASTE = 1e-6
"""Half of how far the 'optimal' conversion may exceed the optimum, if `_DIVISIONS` are
enough; the other half is room for rounding."""

_FEW_ORDERS = 40
"""Orders that share a quadrature if all together are too many. Knob of speed."""

_LOWEST = -700.0
"""Least log of a false positive rate or a delta, and least log-odds, searched."""

_DIVISIONS = 12
"""Largest number of times that `_optimal` divides cells. Knob of tightness."""

MAX_ORDER = 1e12
"""Largest order: beyond it the divergence is practically the largest loss."""

_LEAST = 1e-300
"""Replaces a false positive rate of zero; safe, as a trade-off function decreases."""

_HALVINGS = 62
"""Bisections that resolve an interval of 1400 in log(y / (1 - y)) to its last digit."""


class RenyiAccountant(base.OneSidedAccountant):
  """Renyi (RDP) accountant: composes divergences and converts them to epsilon.

  The divergences are those of the dominating pairs, or slightly larger, so that mainly
  the conversion from finitely many orders loses against `PhiAccountant`.
  """

  def __init__(self, *args: Any, orders: Sequence[float] = ORDERS,
               conversion: str = 'tight', **kwargs: Any):
    """Initializes an empty account; other arguments are those of `PairAccountant`.

    Args:
      orders: Orders above one.
      conversion: 'tight' (Canonne, Kamath and Steinke, 2020, Proposition 12),
        'moments' (Markov's inequality, Abadi et al., 2016), or 'optimal' (appendix F
        of Zhu, Dong and Wang, 2022: the trade-off region of all orders together).
    """
    super().__init__(*args, **kwargs)
    _checks.choice('conversion', conversion, _CONVERSIONS)
    self._orders = _check_orders(orders)
    self._convert = _CONVERSIONS[conversion]

  def _epsilon(self, part: Composition, delta: float) -> float:
    return self._converted(divergence_bounds(part, self._orders), delta)

  def _delta(self, part: Composition, epsilon: float) -> float:
    """Returns a delta, about the least, whose converted epsilon is within `epsilon`."""
    divergence = divergence_bounds(part, self._orders)
    _, log_delta = crossing(
        lambda x: self._converted(divergence, min(math.exp(x), 1 - 1e-16)) <= epsilon,
        _LOWEST, 0.0, tolerance=1e-15, limit=0.0)
    return math.exp(min(log_delta, 0.0))

  def _converted(self, divergence: np.ndarray, delta: float) -> float:
    """Returns epsilon >= 0 at `delta` from the divergences at all orders."""
    return max(self._convert(self._orders, divergence, delta), 0.0)

  def tradeoff(self, false_positive: npt.ArrayLike, *, below_one: bool = True
               ) -> np.ndarray:
    """Returns lower bounds on the false negative rate of any test between neighbours.

    The bounds hold whichever neighbour is the null. `false_positive` is in [0, 1], of
    any shape; with `below_one` orders below one are used too. `views.tradeoff` of a
    `views.composed_pair` with many epsilons gives larger bounds. Raises ValueError
    unless the accountant's direction is 'both'.
    """
    self.check_both()
    orders = np.append(BELOW_ONE, self._orders) if below_one else self._orders
    known = [divergence_bounds(part, orders) for part in self.compositions().values()]
    if self.non_private or not known:
      # No divergence is known if non-private; all are zero if nothing was composed.
      known = [np.full(orders.shape, math.inf if self.non_private else 0.0)]
    # 'remove' and 'add' are reverses of each other; 'replace' is its own reverse.
    return np.min([
        tradeoff_from_renyi(orders, own, false_positive, reverse)
        for own, reverse in zip(known, reversed(known))], axis=0)


class ExtendedMomentsAccountant(base.OneSidedAccountant):
  """The moments accountant for noise with distinguishing events.

  A distinguishing event is an outcome that only one of two neighbours has: its privacy
  loss is infinite. Composes the mass omega of infinite losses separately and applies
  Markov's inequality to finite losses: delta = 1 - (1 - omega)^n + min over lambda of
  exp(n Gamma_lambda - lambda epsilon). Without infinite losses this equals
  `RenyiAccountant(conversion='moments')`.

  Source: Theorem 19 and Proposition 17 of Sommer et al., "Learning Numeric
  Optimal Differentially Private Truncated Additive Mechanisms" (2021).
  """

  def __init__(self, *args: Any, orders: Sequence[float] = ORDERS, **kwargs: Any):
    """Initializes an empty account; `orders` are lambda + 1, above one.

    Other arguments are those of `PairAccountant`.
    """
    super().__init__(*args, **kwargs)
    self._orders = _check_orders(orders)

  def _epsilon(self, part: Composition, delta: float) -> float:
    rest = delta - part.p_inf[1]
    return math.inf if rest <= 0 else max(_markov_epsilon(
        self._orders, divergence_bounds(part, self._orders, finite=True), rest), 0.0)

  def _delta(self, part: Composition, epsilon: float) -> float:
    divergence = divergence_bounds(part, self._orders, finite=True)
    log_tail = float(np.min((self._orders - 1) * (divergence - epsilon)))
    return min(part.p_inf[1] + max(
        math.exp(min(log_tail, 0.0)), _numerics.LEAST), 1.0)


def divergence_bounds(part: Composition, orders: np.ndarray, *,
                      finite: bool = False) -> np.ndarray:
  """Returns upper bounds on D_order, shape (n,).

  `finite` leaves out the mass `p_inf` of upper pairs, which includes that of finite
  losses beyond their cells.
  """
  # D_order is a log moment over order - 1. A pair adds the rounding of its masses and
  # losses; moments have a closed form only above order one.
  apart = np.abs(orders - 1)
  of_pair = pair_lib.LOSS_ROUNDOFF + pair_lib.MASS_ROUNDOFF / apart
  slack = sum(count * (ROUNDOFF / apart + np.where(
      (orders < 1) | (step.loss is None), of_pair, 0.0)) for step, count in part.groups)
  return _known_divergences(part, orders, finite=finite) * (1 + ROUNDOFF) + slack


def _known_divergences(part: Composition, orders: np.ndarray, *,
                      finite: bool = False) -> np.ndarray:
  """Returns Renyi divergences, shape (n,), not rounded up; inf where intractable."""
  try:
    return part.renyi_divergence(orders, finite=finite)
  except IntractableError:
    if orders.size <= _FEW_ORDERS:
      return np.full(orders.size, math.inf)
    # Fewer orders may have a quadrature in common where all of them have none.
    return np.concatenate([
        _known_divergences(part, few, finite=finite)
        for few in np.array_split(orders, -(-orders.size // _FEW_ORDERS))])


def _check_orders(orders: Sequence[float]) -> np.ndarray:
  """Returns the orders as an array; ValueError unless all are in (1, MAX_ORDER]."""
  checked = _checks.vector('orders', orders)
  wrong = checked[(checked <= 1) | (checked > MAX_ORDER)]
  if wrong.size:
    raise ValueError(f'Expected orders > 1, up to {MAX_ORDER:g}, got {wrong[0]!r}.')
  return checked


def _tight(orders: np.ndarray, divergence: np.ndarray, delta: float) -> float:
  """Returns the least epsilon by Proposition 12 of Canonne et al. (2020)."""
  return float(np.min(
      divergence + np.log1p(-1 / orders) -
      (math.log(delta) + np.log(orders)) / (orders - 1)))


def _markov_epsilon(orders: np.ndarray, divergence: np.ndarray, delta: float) -> float:
  """Returns the least epsilon by Markov's inequality (Abadi et al., 2016, Thm. 2)."""
  return float(np.min(divergence - math.log(delta) / (orders - 1)))


def _optimal(orders: np.ndarray, divergence: np.ndarray, delta: float) -> float:
  """Returns about the least epsilon at `delta` by all orders together, never less."""
  # y(x), the largest true positive rate (power) that the divergences allow at false
  # positive rate x, is concave. Epsilon is the maximum of log((y(x) - delta) / x).
  # Cells in which it might exceed the best known value by `WASTE` are divided.
  known = np.isfinite(divergence)
  if not np.any(known):
    return math.inf

  def power(x: np.ndarray) -> np.ndarray:
    """Returns y(x), shape (points,)."""
    return special.expit(-_least_log_odds(
        orders[known, None], divergence[known, None], x, True))

  # At the rate e^low, y is at most delta: smaller rates gain nothing.
  low = -40.0
  while power(np.exp([low]))[0] > delta:
    if low == _LOWEST:
      return math.inf
    low = max(1.5 * low, _LOWEST)
  x = np.exp(np.linspace(low, -1e-3, 100))
  y = power(x)
  for _ in range(_DIVISIONS):
    top = _gain_of_cells(x, y, delta)
    best = max(float(np.max(_numerics.log_mass(np.maximum(y - delta, 0.0) / x))), 0.0)
    open_ = np.flatnonzero(top > best + WASTE)
    if not open_.size:
      break
    ends, share = np.append(x, 1.0), np.arange(1, 8) / 8  # Of a cell in log x.
    new = (ends[open_, None]**(1 - share) * ends[open_ + 1, None]**share).ravel()
    x, y = np.append(x, new), np.append(y, power(new))
    x, first = np.unique(x, return_index=True)
    y = y[first]
  return max(float(np.max(_gain_of_cells(x, y, delta))), 0.0) + WASTE


def _gain_of_cells(x: np.ndarray, y: np.ndarray, delta: float) -> np.ndarray:
  """Returns upper bounds on log((y - delta) / x) in the cells that begin at `x`."""
  # The last cell ends at one. y is concave and increases, y(0) >= 0 and y(1) = 1, so
  # that it lies below the extended chords of both neighbouring cells.
  a, y_a, b, y_b = x, y, np.append(x[1:], 1.0), np.append(y[1:], 1.0)
  chord = (y_b - y_a) / (b - a)
  rise = np.append(y[0] / x[0], chord[:-1])
  fall = np.append(chord[1:], 0.0)
  # The maximum is at an end or where the extended chords of both neighbours meet.
  with np.errstate(divide='ignore', invalid='ignore'):
    meet = (y_b - y_a + rise * a - fall * b) / (rise - fall)
  meet = np.clip(np.where(rise > fall, meet, a), a, b)
  y_meet = np.minimum(y_a + rise * (meet - a), y_b - fall * (b - meet))
  gains = [(y_a - delta) / a, (y_b - delta) / b, (y_meet - delta) / meet]
  return _numerics.log_mass(np.maximum(np.max(gains, axis=0), 0.0))


_CONVERSIONS: dict[str, Callable[[np.ndarray, np.ndarray, float], float]] = {
    'tight': _tight, 'moments': _markov_epsilon, 'optimal': _optimal}


def tradeoff_from_renyi(
    orders: npt.ArrayLike, divergences: npt.ArrayLike,
    false_positive: npt.ArrayLike, reverse: npt.ArrayLike | None = None
    ) -> np.ndarray:
  """Returns lower bounds on the trade-off function of all pairs with such divergences.

  `orders`, `divergences`, D_order(P || Q) or upper bounds, and `reverse`, D_order(Q ||
  P), have shape (n,). An infinite divergence gives no information. `false_positive`,
  the Q-probability of rejecting Q, has any shape. The bounds are on the false negative
  rate of any test at that level. Between two levels the chord is no lower bound, but
  the value at the larger level is. Raises ValueError for arguments out of range.

  Source: appendix F of Zhu, Dong and Wang (AISTATS 2022), after Balle et al.,
  "Hypothesis testing interpretations and Renyi differential privacy" (2020).
  """
  order = _checks.vector('orders', orders)
  if np.any(order <= 0) or np.any(order == 1) or np.any(order > MAX_ORDER):
    raise ValueError(
        f'Expected orders > 0, of at most {MAX_ORDER:g} and other than 1, got '
        f'{order.tolist()!r}; for order 1 use one slightly above.')
  known = [(_divergences('divergences', divergences, order.size), True)]
  if reverse is not None:
    known.append((_divergences('reverse', reverse, order.size), False))
  x = _checks.shares('false_positive', false_positive)
  level = np.clip(x.ravel(), _LEAST, 1.0 - 0.5 * EPS)
  log_odds = np.full(level.shape, _LOWEST)
  for divergence, forward in known:
    finite = np.isfinite(divergence)
    log_odds = np.maximum(log_odds, _least_log_odds(
        order[finite, None], divergence[finite, None], level, forward))
  log_y = -np.logaddexp(0.0, -log_odds)
  # Rounded down. No bisection evaluated its first lower end: zero is proved there.
  best = np.where(log_odds > _LOWEST, np.exp(log_y) * (1 - 8 * EPS * (1 - log_y)), 0.0)
  return np.where(x == 1, 0.0, best.reshape(x.shape))


def _divergences(name: str, value: npt.ArrayLike, size: int) -> np.ndarray:
  """Returns `value` as an array; ValueError unless it is `size` numbers >= 0."""
  array = _checks.numbers_of(name, value)
  if array.shape != (size,) or np.any(array < 0):
    raise ValueError(
        f'Expected {name} >= 0, one for each of {size} orders, got {value!r}.')
  return array


def _least_log_odds(order: np.ndarray, divergence: np.ndarray, x: np.ndarray,
                    forward: bool) -> np.ndarray:
  """Returns lower bounds on log(y / (1 - y)), y the least false negative rate at x."""
  # By bisection. Shapes: `order` and `divergence` (n, 1), `x` and the result (points,).
  # `divergence` is of P against Q if `forward`, else of Q against P.
  log_x, log_1x = np.log(x), np.log1p(-x)
  low, high = np.full(x.shape, _LOWEST), log_1x - log_x
  for _ in range(_HALVINGS):
    middle = 0.5 * (low + high)
    log_y, log_1y = -np.logaddexp(0.0, -middle), -np.logaddexp(0.0, middle)
    p, q = (log_1y, log_y), (log_x, log_1x)
    coins = (p, q) if forward else (q, p)
    broken = np.any(_breaks(order, divergence, *coins), axis=0)
    low, high = np.where(broken, middle, low), np.where(broken, high, middle)
  return low


def _breaks(order: np.ndarray, divergence: np.ndarray,
            p: tuple[np.ndarray, np.ndarray], q: tuple[np.ndarray, np.ndarray]
            ) -> np.ndarray:
  """Returns whether d_order(p || q) surely exceeds `divergence`, shape (n, points)."""
  # `p` and `q` hold the logs of a coin's two probabilities, each of shape (points,).
  # Rounding: `size` adds up the moduli of all terms.
  sides = [order * a + (1 - order) * b for a, b in zip(p, q)]
  size = 1 + sum(order * np.abs(a) + np.abs(1 - order) * np.abs(b)
                 for a, b in zip(p, q)) + np.abs(order - 1) * divergence
  moment = np.logaddexp(*sides) - (order - 1) * divergence
  return np.sign(order - 1) * moment > 16 * EPS * size
