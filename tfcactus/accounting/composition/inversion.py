"""Tilts of a composition, and bounds on delta and epsilon from phi at one of them.

A contour integrates along a vertical line, the tilt. `Saddles` are the tilts to choose
from, `Alias` bounds the error of the trapezoidal rule along the line, and a `Table` has
the values of phi on its nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Any, Callable

import numpy as np

from tfcactus import _numerics
from tfcactus.accounting.bounds import Bounds, epsilon_bounds, IntractableError
from tfcactus.accounting.composition.losses import base

MAX_TABLES = 4
"""Most tables made in search of one epsilon. The last one is used even if it was made
far from the epsilon that it gives."""

MAX_NEWTON = 80
"""Largest number of Newton steps before the tables are given up. Affects speed only."""

MAX_DOUBLINGS = 8
"""Most times that a bound on epsilon is moved outwards. Affects speed only."""

MAX_NORMALISATION = 0.05
"""Largest error of the log normalisation of phi^steps for losses that are `cut_off`."""

MAX_WIDTH = 1e-3
"""Largest relative width of bounds on delta that is accepted. Affects speed only."""

ROUNDOFF = 1e-6
"""Bound on the rounding error of the log of a Chernoff bound, over the sizes of its
terms. Quantities bounded with it are 1e-14 of delta, so that it costs nothing."""

STEP_ROUNDOFF = 2 * _numerics.sum_roundoff(1 << 20)
"""Bound on the error of a step's log moment. The moment X = E e^(c loss) is computed as
1 + E(e^(c loss) - 1), within `sum_roundoff` of the moduli, which are at most X + 1; and
X >= 1 for c > 0."""

LEAST = 1e-300
"""Smaller |phi| of a step are raised to this, so that errors over |phi| are floats."""


def log_chernoff(mgf: Any, orders: Any, epsilon: float, steps: int) -> Any:
  """Returns the log of Chernoff's bound on delta, rounded up, for each order.

  `mgf` has the log moment, at each order, of the total loss of `steps` steps, or a
  bound on it. Orders are an array, or one number.
  """
  terms = mgf, orders * epsilon, _numerics.log_kernel(orders)
  return terms[0] - terms[1] + terms[2] + STEP_ROUNDOFF * steps + ROUNDOFF * (
      1 + sum(map(np.abs, terms)))


@dataclasses.dataclass(frozen=True)
class Saddles:
  """Tilts c with the epsilon and delta whose saddle point they are."""

  orders: np.ndarray  # Shape (n,), increasing tilts c.
  mgf: np.ndarray  # K(c), the log moment generating function of the total loss.
  mean: np.ndarray  # K'(c).
  variance: np.ndarray  # K''(c).

  @functools.cached_property
  def epsilon(self) -> np.ndarray:
    """The epsilon at which c minimises the integrand on the real line, made to rise."""
    c = self.orders
    return np.maximum.accumulate(self.mean - 1 / c - 1 / (1 + c))

  @functools.cached_property
  def log_delta(self) -> np.ndarray:
    """The saddle point estimate of log delta at `epsilon`, made to fall."""
    c = self.orders
    curvature = np.maximum(self.variance, 0) + 1 / c**2 + 1 / (1 + c)**2
    return np.minimum.accumulate(
        self.mgf - c * self.epsilon - np.log(c * (1 + c)) -
        0.5 * np.log(2 * np.pi * curvature))

  def nearest(self, epsilon: float) -> int:
    """Returns the index of the tilt whose saddle point is nearest to `epsilon`."""
    return int(np.argmin(np.abs(self.epsilon - epsilon)))

  def chernoff(self, epsilon: float, steps: int) -> tuple[float, float]:
    """Returns log of the least Chernoff bound on delta after `steps`, and its tilt.

    The bound is proved only if `mgf` is.
    """
    bound = log_chernoff(self.mgf, self.orders, epsilon, steps)
    best = int(np.argmin(bound))
    return float(bound[best]), float(self.orders[best])

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
  """Chernoff bounds on the aliasing error of the trapezoidal rule.

  The rule adds an alias e^(order m period) delta(epsilon + m period) for each integer m
  other than zero.
  """

  order: float  # The tilt.
  orders: np.ndarray  # Orders at which log moments are known.
  mgf: np.ndarray  # The log moments.
  steps: int  # Number of steps; each contributes rounding.
  # Returns an upper bound on a log moment, if `mgf` is not proved.
  log_moment: Callable[[float], float] | None = None

  def period(self, epsilon: float, log_tolerance: float) -> float:
    """Returns a period at which aliases of each side add at most e^log_tolerance."""
    # For each order solves A / (e^(gap period) - 1) = e^log_tolerance, where `gap` is
    # its distance from the tilt: see `bound`. The result holds if `mgf` is right.
    above, below = self._log_excess(epsilon)
    up, down = self.orders > self.order, self.orders < self.order
    high = np.logaddexp(0.0, above - log_tolerance)[up] / (self.orders[up] - self.order)
    low = np.logaddexp(0.0, below - log_tolerance)[down] / (
        self.order - self.orders[down])
    # Aliases at smaller epsilon are values of delta, each at most one: at order zero A
    # is one.
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
    # Aliases of one side are at most A e^(-gap period m), m = 1, 2, ..., whose sum is
    # A / (e^(gap period) - 1).
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
    """Returns log A for aliases at larger epsilon, then at smaller, one per order c."""
    # delta(epsilon + x) <= A e^(-c x) for x of that sign (Chernoff, delta <= 1).
    log_a = log_chernoff(self.mgf, self.orders, epsilon, self.steps)
    return log_a, np.minimum(log_a, 0.0)


class Table:
  """Values of phi on `count` nodes at the tilt `order`; bounds on delta nearby.

  The nodes are `spacing` apart, from zero on. `tilted` holds pairs (loss under the
  tilt, number of steps). `log_tail` bounds log |phi| beyond the last node.
  """

  def __init__(self, order: float, spacing: float, count: int,
               tilted: Sequence[tuple[base.TiltedLoss, int]],
               alias: Alias, log_tail: float):
    self.order, self.spacing = order, spacing
    self._alias = alias
    self._t = spacing * np.arange(count)
    self._log_mgf = math.fsum(n * part.log_mgf for part, n in tilted)
    log_phi, slack = log_phi_of(tilted, spacing, count)
    with np.errstate(under='ignore'):
      phi = np.exp(log_phi)
    s = order + 1j * self._t
    # Terms at -t are conjugates of those at t: the real part is doubled, but at zero.
    weight = np.full(count, spacing / math.pi)
    weight[0] *= 0.5
    slope = -weight * phi / (s + 1)
    # Terms of delta and of its derivative, over `_scale` and e^(-i t epsilon).
    self._kernels = np.stack([-slope / s, slope])
    size = np.abs(self._kernels[0])
    relative = _numerics.sum_roundoff(count) + base.PHASE_ROUNDOFF * (
        abs(self._log_mgf) + np.abs(log_phi))
    # Neither phi nor its computed value exceeds one by much.
    wrong = np.minimum(
        np.abs(phi) * np.expm1(np.minimum(slack, 1.0)) + np.where(
            slack > 1, np.exp(np.minimum(log_phi.real + slack, 1.0)), 0.0), 3.0)
    # Errors of delta over `_scale`: `_noise`, and `_turning` times 1 + |epsilon|.
    self._noise = float(
        np.sum(size * relative) + np.sum(weight * wrong / np.abs(s * (s + 1))))
    self._turning = base.PHASE_ROUNDOFF * float(np.sum(size * (order + self._t)))
    # The bound is not rounded to zero.
    self._tail = max(math.exp(log_tail) / (math.pi * self._t[-1]), _numerics.LEAST)

  def _scale(self, epsilon: float) -> float:
    """Returns exp(K(order) - order * epsilon); raises IntractableError if too large."""
    log_scale = self._log_mgf - self.order * epsilon
    if log_scale > 700:
      raise IntractableError
    return math.exp(log_scale)

  def at(self, epsilon: float) -> tuple[float, float]:
    """Returns estimates of delta and of its derivative with respect to epsilon."""
    scale = self._scale(epsilon)
    value, slope = (self._kernels @ np.exp(-1j * self._t * epsilon)).real
    return scale * float(value), scale * float(slope)

  def errors(self, epsilon: float) -> tuple[float, float]:
    """Returns how far delta may lie below and above the estimate."""
    scale = self._scale(epsilon)
    both = scale * (self._noise + (1 + abs(epsilon)) * self._turning + self._tail)
    # Aliases make the estimate too large only.
    return both + self._alias.bound(epsilon, 2 * math.pi / self.spacing), both


def log_phi_of(tilted: Sequence[tuple[base.TiltedLoss, int]], spacing: float,
               count: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns log phi of a sum at spacing * (0..count-1), and `slack`, both (count,).

  phi is off by at most |phi| (e^slack - 1). `tilted` is as for `Table`. Raises
  IntractableError if `MAX_NORMALISATION` is exceeded.
  """
  t = spacing * np.arange(count)
  log_phi, slack = np.zeros(count, np.complex128), np.zeros(count)
  for part, n in tilted:
    own = part.log_phi(spacing, count)
    # Raise |phi| to LEAST, so that 1 / |phi| below is finite; `error` includes this.
    own = np.maximum(own.real, math.log(LEAST)) + 1j * own.imag
    log_phi += n * own
    at_zero = part.error(t[:1])
    if part.cut_off and n * float(at_zero[0]) > MAX_NORMALISATION:
      raise IntractableError
    error = part.error(t) + at_zero + LEAST
    # If each phi is off by e, phi^n is off by at most (|phi| + e)^n - |phi|^n.
    slack += n * np.log1p(error * np.exp(-own.real))
  return log_phi, slack


@dataclasses.dataclass(frozen=True)
class Profile:
  """delta near an epsilon, as a sum over disjoint measures."""

  tables: Sequence[Table]  # One table per measure.
  # Returns an upper bound on the delta of measures without a table.
  omitted: Callable[[float], float] = lambda epsilon: 0.0
  # The place of each table's measure in a split composition.
  indices: Sequence[int] = ()

  def _at(self, epsilon: float) -> tuple[float, float]:
    """Returns estimates of delta and of its derivative with respect to epsilon."""
    values = [table.at(epsilon) for table in self.tables]
    return sum(value for value, _ in values), sum(slope for _, slope in values)

  def _errors(self, epsilon: float) -> tuple[float, float]:
    """Returns how far delta may lie below and above the estimate."""
    errors = [table.errors(epsilon) for table in self.tables]
    return (sum(below for below, _ in errors),
            sum(above for _, above in errors) + self.omitted(epsilon))

  def solve(self, delta: float, epsilon: float) -> float:
    """Returns the epsilon, maybe negative, whose estimate of delta is `delta`.

    `epsilon` is a guess. Newton's method on the log of the estimate; IntractableError
    if it does not converge.
    """
    if not self.tables:
      raise IntractableError
    reach = 2 / max(table.order for table in self.tables)  # Limits a Newton step.
    low, high = min(0.0, epsilon) - 10 * reach, math.inf
    for _ in range(MAX_NEWTON):
      value, slope = self._at(epsilon)
      if value > delta:
        low = max(low, epsilon)
      else:
        high = min(high, epsilon)
      if value > 0 and slope < 0:
        step = math.log(value / delta) * value / slope
        new = epsilon - min(max(step, -reach), reach)
      else:
        new = math.nan
      if not low < new < high:
        new = 0.5 * (low + high) if math.isfinite(high) else epsilon + 0.5 * reach
      if abs(new - epsilon) <= 1e-15 * max(abs(epsilon), 1e-3):
        return new
      epsilon, before = new, epsilon
    if abs(epsilon - before) > 1e-9 * max(1.0, abs(epsilon)):
      raise IntractableError
    return epsilon

  def _delta(self, epsilon: float) -> Bounds:
    """Returns bounds on delta that may leave [0, 1]."""
    value, _ = self._at(epsilon)
    below, above = self._errors(epsilon)
    return Bounds(value - below, value, value + above)

  def bracket(self, delta: float, epsilon: float) -> Bounds:
    """Returns checked bounds on the least epsilon at `delta`, estimated by `epsilon`.

    Raises IntractableError if `MAX_DOUBLINGS` moves of an end are too few.
    """
    _, slope = self._at(epsilon)
    down, up = (1e-15 * (1 + abs(epsilon)) + 1.01 * error / abs(slope)
                for error in self._errors(epsilon))
    return epsilon_bounds(self._delta, delta, epsilon, down, up, tries=MAX_DOUBLINGS)

  def delta_bounds(self, epsilon: float) -> Bounds:
    """Returns bounds on delta; raises IntractableError if they are too wide."""
    low, value, high = self._delta(epsilon)
    if not value > 0 or high - low > MAX_WIDTH * value:
      raise IntractableError
    return Bounds(max(low, 0.0), min(value, 1.0), min(high, 1.0))


def solved(make: Callable[[float], Profile], delta: float, guess: float
           ) -> tuple[Profile, float]:
  """Returns a profile, and the epsilon at which its estimate of delta is `delta`.

  `make` returns a profile with small errors near a given epsilon; `guess` is the first.
  """
  # The guess is poor if a few rare losses compete with many small ones; the last
  # profile's epsilon replaces it.
  for _ in range(MAX_TABLES):
    profile = make(guess)
    found = profile.solve(delta, guess)
    if abs(found - guess) <= min(margin(table.order) for table in profile.tables):
      break
    guess = found
  return profile, found


def margin(order: float) -> float:
  """Returns how far from the epsilon of its tilt `order` a table has small errors."""
  return 2 / order  # Errors, in proportion to e^(-order epsilon), grow by e^2 at most.
