"""The Renyi differential privacy (RDP) accountant, a baseline."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any, Callable

import numpy as np
import numpy.typing as npt

from tfcactus import _checks, _numerics
from tfcactus.accounting import base, monotone, renyi_tradeoff
from tfcactus.accounting.bounds import IntractableError
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
"""Bound on how far the 'optimal' conversion exceeds the optimum."""

_FEW_ORDERS = 40
"""Orders that share a quadrature if all together are too many. Knob of speed."""

_LOWEST = -700.0
"""Least log of a false positive rate, or of a delta, that is searched."""

_DIVISIONS = 12
_SHARES = np.arange(1, 8) / 8


class RenyiAccountant(base.OneSidedAccountant):
  """Composes Renyi divergences and converts them to epsilon.

  The divergences are those of the exact dominating pairs, so that only the
  conversion loses against `PhiAccountant`.
  """

  def __init__(self, *args: Any, orders: Sequence[float] = ORDERS,
               conversion: str = 'tight', **kwargs: Any):
    """Initializes an empty account.

    Args:
      *args: Positional arguments of `PairAccountant`.
      orders: Orders above one.
      conversion: 'tight' (Canonne, Kamath and Steinke, 2020, Proposition 12),
        'moments' (Markov's inequality, Abadi et al., 2016), or 'optimal' (appendix F
        of Zhu, Dong and Wang, 2022: the trade-off region of all orders together).
      **kwargs: Keyword arguments of `PairAccountant`.
    """
    super().__init__(*args, **kwargs)
    if conversion not in _CONVERSIONS:
      raise ValueError(
          f'Expected conversion in {tuple(_CONVERSIONS)}, got {conversion!r}.')
    self._orders = check_orders(orders)
    self._convert = _CONVERSIONS[conversion]

  def _epsilon(self, part: Composition, delta: float) -> float:
    return self._converted(divergence_bounds(part, self._orders), delta)

  def _delta(self, part: Composition, epsilon: float) -> float:
    """Returns the least delta whose epsilon is at most `epsilon`."""
    divergence = divergence_bounds(part, self._orders)
    _, log_delta = monotone.crossing(
        lambda x: self._converted(divergence, min(math.exp(x), 1 - 1e-16)) <= epsilon,
        _LOWEST, 0.0, tolerance=1e-15, limit=0.0)
    return math.exp(min(log_delta, 0.0))

  def _converted(self, divergence: np.ndarray, delta: float) -> float:
    return max(self._convert(self._orders, divergence, delta), 0.0)

  def tradeoff(self, false_positive: npt.ArrayLike, *, below_one: bool = True
               ) -> np.ndarray:
    """Returns lower bounds on the false negative rate of any test between neighbours.

    The bounds hold whichever neighbour is the null. They lie below the trade-off
    function of `views.composed_pair`, since Renyi divergences lose information.
    `renyi_tradeoff` has the proof.

    Args:
      false_positive: In [0, 1], any shape.
      below_one: Whether orders below one are used too.

    Raises:
      ValueError: unless the accountant's direction is 'both'.
    """
    if self.direction != 'both':
      raise ValueError(
          "Expected an accountant of direction 'both', got "
          f'direction={self.direction!r}; one direction alone is no guarantee.')
    orders = np.append(BELOW_ONE, self._orders) if below_one else self._orders
    known = [divergence_bounds(part, orders) for part in self.compositions().values()]
    if self._non_private or not known:
      # No divergence is known if non-private; all are zero if nothing was composed.
      known = [np.full(orders.shape, math.inf if self._non_private else 0.0)]
    # 'remove' and 'add' are reverses of each other; 'replace' is its own reverse.
    return np.min([
        renyi_tradeoff.tradeoff_from_renyi(orders, one, false_positive, other)
        for one, other in zip(known, known[::-1])], axis=0)


def divergence_bounds(part: Composition, orders: np.ndarray, *,
                      finite: bool = False) -> np.ndarray:
  """Returns upper bounds on a composition's Renyi divergences, rounding included.

  `orders` has shape (n,), positive, other than one. `finite` omits infinite losses.
  """
  slack = sum(count * (ROUNDOFF / np.abs(orders - 1) + np.where(
      orders < 1, pair_lib.LOSS_ROUNDOFF + pair_lib.MASS_ROUNDOFF / np.abs(orders - 1),
      pair_lib.LOSS_ROUNDOFF if step.loss is None else 0.0))
              for step, count in part.groups)
  return known_divergences(part, orders, finite=finite) * (1 + ROUNDOFF) + slack


def known_divergences(part: Composition, orders: np.ndarray, *,
                      finite: bool = False) -> np.ndarray:
  """Returns a composition's Renyi divergences; inf where they are intractable."""
  try:
    return part.renyi_divergence(orders, finite=finite)
  except IntractableError:
    if orders.size <= _FEW_ORDERS:
      return np.full(orders.size, math.inf)
    return np.concatenate([
        known_divergences(part, some, finite=finite)
        for some in np.array_split(orders, -(-orders.size // _FEW_ORDERS))])


def check_orders(orders: Sequence[float]) -> np.ndarray:
  """Returns the orders as an array; ValueError unless all are above one."""
  checked = np.array(_checks.vector('orders', list(orders)))
  if np.any(checked <= 1):
    raise ValueError(f'Expected orders > 1, got {np.min(checked)!r}.')
  return checked


def _tight(orders: np.ndarray, divergence: np.ndarray, delta: float) -> float:
  return float(np.min(
      divergence + np.log1p(-1 / orders) -
      (math.log(delta) + np.log(orders)) / (orders - 1)))


def markov_epsilon(orders: np.ndarray, divergence: np.ndarray, delta: float) -> float:
  """Returns the least epsilon by Markov's inequality (Abadi et al., 2016, Thm. 2)."""
  return float(np.min(divergence - math.log(delta) / (orders - 1)))


def _optimal(orders: np.ndarray, divergence: np.ndarray, delta: float) -> float:
  """Returns the least epsilon for which no test that all orders allow has gain delta.

  It is the maximum of log((y - delta) / x) over the region, bounded from above. y(x),
  the largest power at x, is concave: between two points it lies below the extended
  chords of both neighbouring cells. Cells that might exceed the best point by `WASTE`
  are divided.
  """
  known = np.isfinite(divergence)
  orders, log_bound = orders[known], ((orders - 1) * divergence)[known]
  if not orders.size:
    return math.inf

  def power(x: np.ndarray) -> np.ndarray:
    return np.exp(np.min(_largest_power(
        orders[:, None], log_bound[:, None], np.log(x)), axis=0))

  low = -40.0
  while power(np.exp([low]))[0] > delta:
    if low == _LOWEST:
      return math.inf
    low = max(1.5 * low, _LOWEST)
  x = np.exp(np.linspace(low, -1e-3, 100))
  y = power(x)
  for _ in range(_DIVISIONS):
    top = _gain_of_cells(x, y, delta)
    best = max(float(np.max(_numerics.log_mass(np.maximum(y - delta, 0.0) / x))),
               0.0)
    open_ = np.flatnonzero(top > best + WASTE)
    if not open_.size:
      break
    ends = np.append(x, 1.0)
    new = (ends[open_, None]**(1 - _SHARES) * ends[open_ + 1, None]**_SHARES).ravel()
    x, y = np.append(x, new), np.append(y, power(new))
    x, first = np.unique(x, return_index=True)
    y = y[first]
  return max(float(np.max(_gain_of_cells(x, y, delta))), 0.0) + WASTE


def _gain_of_cells(x: np.ndarray, y: np.ndarray, delta: float) -> np.ndarray:
  """Returns upper bounds on log((y - delta) / x) in each cell between points.

  `x` increases, shape (n,); the last cell ends at one. `y` is concave and increasing in
  x, with y(0) >= 0 and y(1) = 1.
  """
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


def _largest_power(order: np.ndarray, log_bound: np.ndarray, log_x: np.ndarray
                   ) -> np.ndarray:
  """Returns log of the largest true positive rate y at false positive rate x.

  The constraint is y^a x^(1-a) + (1-y)^a (1-x)^(1-a) <= exp(log_bound), by bisection.
  """
  log_1x = np.log(-np.expm1(log_x))
  shape = np.broadcast_shapes(order.shape, log_x.shape)
  low = np.broadcast_to(log_x, shape).copy()
  high = np.zeros(shape)
  for _ in range(50):
    middle = 0.5 * (low + high)
    log_1y = np.log(-np.expm1(np.minimum(middle, -1e-300)))
    size = np.logaddexp(order * middle + (1 - order) * log_x,
                        order * log_1y + (1 - order) * log_1x)
    # The slack covers rounding: y may be too large, never too small.
    allowed = size <= log_bound + ROUNDOFF * (1 - order * (log_x + log_1x))
    low = np.where(allowed, middle, low)
    high = np.where(allowed, high, middle)
  return high


_CONVERSIONS: dict[str, Callable[[np.ndarray, np.ndarray, float], float]] = {
    'tight': _tight, 'moments': markov_epsilon, 'optimal': _optimal}
