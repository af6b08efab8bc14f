"""The classical accountants, as baselines: Renyi and moments."""

from __future__ import annotations

import math
from typing import Callable
from typing import Sequence

import numpy as np

from tfcactus import _checks
from tfcactus.privacy import accountant
from tfcactus.privacy import composition

ORDERS = tuple(1 + np.geomspace(0.02, 500.0, 300))
"""Orders at which divergences are known."""


class RenyiAccountant(accountant.PhiAccountant):
  """Composes Renyi divergences and converts them to epsilon.

  The divergences are those of the exact dominating pairs, so what is lost
  against `PhiAccountant` is lost in the conversion.
  """

  def __init__(self, *args, orders: Sequence[float] = ORDERS,
               conversion: str = 'tight', **kwargs):
    """Initializes an empty account.

    Args:
      *args: As for `PhiAccountant`.
      orders: Orders above one.
      conversion: 'tight' (Canonne, Kamath and Steinke, 2020, Proposition 12),
        'moments' (Abadi et al., 2016, the accountant of paper 000), or
        'optimal' (appendix F of Zhu, Dong and Wang, 2022: through the
        trade-off region of all orders together).
      **kwargs: As for `PhiAccountant`.
    """
    super().__init__(*args, **kwargs)
    if conversion not in _CONVERSIONS:
      raise ValueError(
          f'Expected conversion in {tuple(_CONVERSIONS)}, got {conversion!r}.')
    self._orders = _check_orders(orders)
    self._convert = _CONVERSIONS[conversion]

  def get_epsilon(self, target_delta: float) -> float:
    """The epsilon that the divergences imply at `target_delta`."""
    delta = _checks.delta(target_delta, 'target_delta')
    if self._non_private:
      return math.inf
    if not self._counts:
      return 0.0
    return max(max(self._convert(
        self._orders, part.renyi_divergence(self._orders), delta), 0.0)
               for part in self.compositions().values())

  def get_delta(self, target_epsilon: float) -> float:
    """The least delta whose epsilon is at most `target_epsilon`."""
    target = _checks.non_negative('target_epsilon', target_epsilon)
    if self._non_private:
      return 1.0
    low, high = -700.0, 0.0
    for _ in range(60):
      middle = 0.5 * (low + high)
      if self.get_epsilon(min(math.exp(middle), 1 - 1e-16)) <= target:
        high = middle
      else:
        low = middle
    return math.exp(high)


class ExtendedMomentsAccountant(accountant.PhiAccountant):
  """The moments accountant for noise with distinguishing events.

  The mass of infinite losses is composed by itself, and Markov's inequality is
  used on the rest: delta = 1 - (1 - omega)^n + min over lambda of
  exp(n Gamma_lambda - lambda epsilon). Without infinite losses it is
  `RenyiAccountant(conversion='moments')`.

  Source: Theorem 19 and Proposition 17 of Sommer et al., "Learning Numeric
  Optimal Differentially Private Truncated Additive Mechanisms" (2021).
  """

  def __init__(self, *args, orders: Sequence[float] = ORDERS, **kwargs):
    """Initializes an empty account.

    Args:
      *args: As for `PhiAccountant`.
      orders: Orders lambda + 1, above one.
      **kwargs: As for `PhiAccountant`.
    """
    super().__init__(*args, **kwargs)
    self._orders = _check_orders(orders)

  def get_epsilon(self, target_delta: float) -> float:
    """The least epsilon >= 0 that the bound gives at `target_delta`."""
    delta = _checks.delta(target_delta, 'target_delta')

    def solve(part):
      rest = delta - part.p_inf[1]
      if rest <= 0:
        return math.inf
      return max(_moments(self._orders, part.renyi_divergence(
          self._orders, finite=True), rest), 0.0)

    return self._worst(solve, math.inf)

  def get_delta(self, target_epsilon: float) -> float:
    """The bound on delta at `target_epsilon` >= 0."""
    epsilon = _checks.non_negative('target_epsilon', target_epsilon)

    def solve(part):
      log_tail = float(np.min((self._orders - 1) * (
          part.renyi_divergence(self._orders, finite=True) - epsilon)))
      return min(part.p_inf[1] + math.exp(min(log_tail, 0.0)), 1.0)

    return self._worst(solve, 1.0)

  def _worst(self, solve: Callable[[composition.Composition], float],
             nothing: float) -> float:
    if self._non_private:
      return nothing
    if not self._counts:
      return 0.0
    return max(solve(part) for part in self.compositions().values())


def _check_orders(orders: Sequence[float]) -> np.ndarray:
  orders = np.array(_checks.vector('orders', list(orders)))
  if np.any(orders <= 1):
    raise ValueError(f'Expected orders > 1, got {np.min(orders)!r}.')
  return orders


def _tight(orders: np.ndarray, divergence: np.ndarray, delta: float) -> float:
  return float(np.min(
      divergence + np.log1p(-1 / orders) -
      (math.log(delta) + np.log(orders)) / (orders - 1)))


def _moments(orders: np.ndarray, divergence: np.ndarray, delta: float) -> float:
  return float(np.min(divergence - math.log(delta) / (orders - 1)))


def _optimal(orders: np.ndarray, divergence: np.ndarray, delta: float) -> float:
  """The least epsilon for which no test allowed by all orders has gain delta.

  The largest of (y - delta) / x over the region, found by zooming in: a
  baseline, not a bound with its rounding.
  """
  known = np.isfinite(divergence)
  orders, log_bound = orders[known], ((orders - 1) * divergence)[known]
  if not orders.size:
    return math.inf
  low, high = -60.0, -1e-6
  for _ in range(4):
    log_x = np.linspace(low, high, 240)
    log_y = np.min(_largest_power(orders[:, None], log_bound[:, None], log_x),
                   axis=0)
    gain = np.log(np.maximum(np.exp(log_y) - delta, 1e-300)) - log_x
    best = int(np.argmax(gain))
    low, high = log_x[max(best - 2, 0)], log_x[min(best + 2, log_x.size - 1)]
  return float(max(np.max(gain), 0.0))


def _largest_power(order: np.ndarray, log_bound: np.ndarray, log_x: np.ndarray
                   ) -> np.ndarray:
  """log of the largest true positive rate y at false positive rate x.

  y^a x^(1-a) + (1-y)^a (1-x)^(1-a) <= exp(log_bound), by bisection.
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
    allowed = size <= log_bound
    low = np.where(allowed, middle, low)
    high = np.where(allowed, high, middle)
  return high


_CONVERSIONS: dict[str, Callable[[np.ndarray, np.ndarray, float], float]] = {
    'tight': _tight, 'moments': _moments, 'optimal': _optimal}
