"""Saddle points of a composition, and bounds on the aliasing error of its contour."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Callable

import numpy as np

from tfcactus import _numerics
from tfcactus.accounting.bounds import IntractableError

ROUNDOFF = 1e-6
"""Bound on the relative error of the log of a Chernoff bound, from its sums and
products. Quantities bounded with it are 1e-14 of delta, so that it costs nothing."""

STEP_ROUNDOFF = 2 * _numerics.sum_roundoff(1 << 20)
"""Bound on the error of a step's log moment. The moment X = E e^(c loss) is computed as
1 + E(e^(c loss) - 1), within `sum_roundoff` of the moduli, which are at most X + 1; and
X >= 1 for c > 0."""


@dataclasses.dataclass(frozen=True)
class Saddles:
  """Tilts c with the epsilon and delta whose saddle point they are."""

  orders: np.ndarray  # Increasing tilts c.
  mgf: np.ndarray  # K(c), the log moment generating function of the total loss.
  mean: np.ndarray  # K'(c).
  variance: np.ndarray  # K''(c).

  @functools.cached_property
  def epsilon(self) -> np.ndarray:
    """The epsilon at which c minimises the integrand on the real line."""
    c = self.orders
    return np.maximum.accumulate(self.mean - 1 / c - 1 / (1 + c))

  @functools.cached_property
  def log_delta(self) -> np.ndarray:
    """The saddle point estimate of log delta at `epsilon`."""
    c = self.orders
    curvature = np.maximum(self.variance, 0) + 1 / c**2 + 1 / (1 + c)**2
    return np.minimum.accumulate(
        self.mgf - c * self.epsilon - np.log(c * (1 + c)) -
        0.5 * np.log(2 * np.pi * curvature))

  def nearest(self, epsilon: float) -> int:
    """Returns the index of the tilt whose saddle point is nearest to `epsilon`."""
    return int(np.argmin(np.abs(self.epsilon - epsilon)))

  def log_chernoff(self, epsilon: float) -> float:
    """Returns log of the least Chernoff bound on delta; proved only if `mgf` is."""
    return float(np.min(self._log_chernoff(epsilon)))

  def best_order(self, epsilon: float) -> float:
    """Returns the order at which the Chernoff bound on delta at `epsilon` is least."""
    return float(self.orders[np.argmin(self._log_chernoff(epsilon))])

  def _log_chernoff(self, epsilon: float) -> np.ndarray:
    """Returns log of the Chernoff bound on delta at each of `orders`."""
    return self.mgf - self.orders * epsilon + _numerics.log_kernel(self.orders)

  def epsilon_at(self, log_delta: float) -> float:
    """Estimates epsilon by interpolation; extrapolates with the largest tilt."""
    beyond = max(float(self.log_delta[-1]) - log_delta, 0.0) / self.orders[-1]
    return float(np.interp(-log_delta, -self.log_delta, self.epsilon)) + beyond

  def log_delta_at(self, epsilon: float) -> float:
    """Estimates log delta by interpolation; extrapolates with the largest tilt."""
    beyond = max(epsilon - float(self.epsilon[-1]), 0.0) * self.orders[-1]
    return float(np.interp(epsilon, self.epsilon, self.log_delta)) - beyond

  def joined(self, other: Saddles) -> Saddles:
    """Returns the saddle points of both, in order, each tilt once."""
    orders, index = np.unique(
        np.concatenate([self.orders, other.orders]), return_index=True)
    return Saddles(orders, *(
        np.concatenate([getattr(self, name), getattr(other, name)])[index]
        for name in ('mgf', 'mean', 'variance')))


@dataclasses.dataclass(frozen=True)
class Alias:
  """Chernoff bounds on the aliasing error of the trapezoidal rule."""

  order: float  # The tilt.
  orders: np.ndarray  # Orders at which log moments are known.
  mgf: np.ndarray  # The log moments.
  steps: int  # Number of steps; each contributes rounding.
  # Returns an upper bound on a log moment, if `mgf` is not proved.
  log_moment: Callable[[float], float] | None = None

  def period(self, epsilon: float, log_tolerance: float) -> float:
    """Returns a period at which aliases are small beside delta at `epsilon`."""
    # The aliases at larger epsilon add at most exp(log_tolerance) to delta, and so do
    # those at smaller epsilon, if `mgf` is right.
    above, below = self._log_excess(epsilon)
    up, down = self.orders > self.order, self.orders < self.order
    high = np.logaddexp(0.0, above - log_tolerance)[up] / (self.orders[up] - self.order)
    low = np.logaddexp(0.0, below - log_tolerance)[down] / (
        self.order - self.orders[down])
    # Aliases at smaller epsilon are values of delta, each at most one. At order zero a
    # geometric series bounds their sum.
    zero = np.logaddexp(0.0, -log_tolerance) / self.order
    period = max(np.min(high, initial=np.inf), np.min(low, initial=zero))
    if not (math.isfinite(period) and period > 0):
      raise IntractableError
    return float(period)

  def bound(self, epsilon: float, period: float) -> float:
    """Returns an upper bound on the aliasing error at `epsilon`."""
    above, below = self._log_excess(epsilon)
    up, down = self.orders > self.order, self.orders < self.order
    gap = np.abs(self.orders - self.order)
    with np.errstate(divide='ignore'):
      decay = _numerics.log_expm1(gap * period)
    high = np.where(up, above - decay, np.inf)
    low = np.where(down, below - decay, np.inf)
    if self.log_moment is not None:
      # The choice of the best orders needs no proof; their moments do.
      best = [int(np.argmin(side)) for side in (high, low)]
      return Alias(self.order, self.orders[best], np.array(
          [self.log_moment(float(order)) for order in self.orders[best]]),
                   self.steps).bound(epsilon, period)
    zero = -float(_numerics.log_expm1(np.array(self.order * period)))
    return math.exp(min(np.min(high), 700.0)) + math.exp(min(np.min(low), zero))

  def _log_excess(self, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns log A for aliases at larger epsilon, then at smaller, one per order."""
    # delta(epsilon + x) <= A exp(-order x) for x of that sign (Chernoff, delta <= 1).
    log_a = self.mgf - self.orders * epsilon + _numerics.log_kernel(self.orders)
    log_a = log_a + STEP_ROUNDOFF * self.steps + ROUNDOFF * (
        1 + np.abs(self.mgf) + np.abs(self.orders * epsilon))
    return log_a, np.minimum(log_a, 0.0)
