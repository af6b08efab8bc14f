"""delta and epsilon by inverting the phi function on a tilted contour.

With K(t) the sum of the steps' log moment generating functions and c > 0,

    delta(eps) = 1/(2 pi i) * integral over Re t = c of
                     exp(K(t) - t eps) / (t (t + 1)) dt,

and the derivative in eps has the kernel -1 / (t + 1): one table of phi values
serves every epsilon near the one sought. All four errors are bounded:

- aliasing: the trapezoidal rule of step 2 pi / T equals the sum over m of
  e^(c m T) delta(eps + m T), which exceeds delta(eps) by what Chernoff's
  inequality bounds;
- truncation: by a bound on |phi| that holds at every later point;
- quadrature and rounding: node by node.

Source: the phi function is Definition 11 of Zhu, Dong and Wang (AISTATS 2022);
tilting and bounds are this library's.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any
from typing import Callable
from typing import ContextManager
from typing import Optional
from typing import Sequence

import numpy as np
import threadpoolctl

from tfcactus.privacy import _numerics
from tfcactus.privacy import atoms
from tfcactus.privacy import gaussian
from tfcactus.privacy.bounds import Bounds

LOG_TOLERANCE = math.log(1e-14)
"""Log of the relative error of delta allowed to each cause."""

MAX_TABLE = 500_000_000
"""Phi values times quadrature nodes beyond which the contour gives up."""

MIN_ORDER = 0.0008
"""No tilts much below this are tried."""

FIRST_ORDERS = (0.5, 80.0)
"""Tilts are tried in this range, then beyond."""

BLOCK = 25.0
"""Ratio of the ends of a range that is tried beyond."""

REACHES = (0.8, 40.0)
"""The end of the integral is sought in this range, in the ends that it would
have if the tilted loss were normal; then everywhere."""

CERTIFICATE_ROOM = 3.0
"""How far the log of phi, as seen, stays below what is then certified."""

LOG_NOTHING = -650.0
"""Log of a delta that is not told from zero."""

BELOW_SLACK = 1e-6
"""Allowance for rounding in the log of a delta that is quickly shown small."""

MAX_TABLES = 4
"""Tables made before the last is used as it is."""

MAX_NEWTON = 80


class Hard(Exception):
  """The contour cannot answer cheaply; another method has to."""


@dataclasses.dataclass(frozen=True)
class Contour:
  """A composition of independent losses with analytic phi functions.

  Attributes:
    groups: Pairs (loss, number of steps); a loss is a `gaussian.GaussianLoss`
      or an `atoms.AtomicLoss`.
    smoothing: A small variable added to the total loss, which discrete losses
      need; results are those of the sum.
  """

  groups: Sequence[tuple[Any, int]]
  smoothing: Optional[atoms.Smoothing] = None

  def epsilon(self, delta: float) -> Bounds:
    """Bounds on epsilon at `delta`.

    Raises:
      Hard: if the composition is too hard for a contour.
    """
    with one_thread():
      return self._epsilon(delta)

  def _epsilon(self, delta: float) -> Bounds:
    log_delta = math.log(delta)
    saddles = self.saddles(log_delta=log_delta)
    guess = saddles.epsilon_at(log_delta)
    if guess <= 0 and self._delta(0.0).upper <= delta:
      return Bounds(0.0, 0.0, 0.0)
    profile, found = solved(
        lambda near: Profile([self.table(saddles, near, log_delta)]),
        delta, guess)
    self._certify(profile.tables[0])
    return profile.bracket(delta, found)

  def delta(self, epsilon: float) -> Bounds:
    """Bounds on delta at `epsilon`.

    Raises:
      Hard: if the composition is too hard for a contour.
    """
    with one_thread():
      return self._delta(epsilon)

  def _delta(self, epsilon: float) -> Bounds:
    saddles = self.saddles(epsilon=epsilon)
    if saddles.log_chernoff(epsilon) < LOG_NOTHING:
      return Bounds(0.0, 0.0, math.exp(LOG_NOTHING))
    table = self.table(
        saddles, epsilon, min(saddles.log_delta_at(epsilon), 0.0))
    self._certify(table)
    return Profile([table]).delta_bounds(epsilon)

  @property
  def _max_order(self) -> float:
    return min(loss.max_order for loss, _ in self._all)

  def saddles(self, log_delta: float = -math.inf, epsilon: float = math.inf
               ) -> Saddles:
    """Saddle points on both sides of a delta or of an epsilon."""
    known = self._block(*FIRST_ORDERS)
    while True:
      passed = np.flatnonzero(
          (known.log_delta <= log_delta) | (known.epsilon >= epsilon))
      first = int(passed[0]) if passed.size else known.orders.size
      if first == 0 and known.orders[0] > MIN_ORDER:
        low = known.orders[0]
        known = self._block(low / BLOCK, low).joined(known)
      elif first > known.orders.size - 5:
        # Aliasing wants orders well above the best.
        if known.orders[-1] >= self._max_order:
          break
        low = known.orders[-1]
        known = known.joined(self._block(low, BLOCK * low))
      else:
        break
    # Aliasing also wants some just above the best.
    first = min(max(first, 1), known.orders.size - 2)
    fine = self._block(known.orders[first - 1], known.orders[first + 1])
    return known.joined(fine)

  def _block(self, low: float, high: float, points: int = 14) -> Saddles:
    orders = _geometric(low, high, points)
    try:
      return Saddles(orders, *sum(
          count * loss.cumulants(orders) for loss, count in self._all))
    except gaussian.TooManyNodes as error:
      raise Hard from error

  @property
  def _all(self) -> list[tuple[Any, int]]:
    extra = [] if self.smoothing is None else [(self.smoothing, 1)]
    return [*self.groups, *extra]

  def table(self, saddles: Saddles, epsilon: float, log_delta: float
             ) -> Table:
    """Nodes and phi values that suffice near an epsilon.

    Args:
      saddles: This composition's, around `epsilon`.
      epsilon: Where delta is wanted.
      log_delta: About its log there: errors are a small share of delta.

    Raises:
      Hard: if that takes too many.
    """
    best = saddles.nearest(epsilon)
    while best > saddles.orders.size - 5 and saddles.orders[-1] < self._max_order:
      low = saddles.orders[-1]
      saddles = saddles.joined(self._block(low, BLOCK * low))
      best = saddles.nearest(epsilon)
    order = float(saddles.orders[best])
    alias = _Alias(order, saddles.orders, saddles.mgf)
    margin = _margin(order)
    period = alias.period(epsilon - margin, log_delta + LOG_TOLERANCE)
    spacing = 2 * math.pi / period
    log_scale = float(saddles.mgf[best]) - order * (epsilon - margin)
    end, log_tail = self._end(
        order, float(saddles.variance[best]), spacing,
        log_scale - log_delta - LOG_TOLERANCE)
    count = int(math.ceil(end / spacing)) + 1
    steps = sum(number for _, number in self.groups)
    tolerance = math.exp(LOG_TOLERANCE) / (10 * steps)
    try:
      tilted = [(loss.tilted(order, count * spacing, tolerance), number)
                for loss, number in self._all]
    except gaussian.TooManyNodes as error:
      raise Hard from error
    if count * max(getattr(part, 'loss', np.zeros(1)).size
                   for part, _ in tilted) > MAX_TABLE:
      raise Hard
    return Table(order, spacing, count, tilted, alias, log_tail)

  def _certify(self, table: Table) -> None:
    """Shows that discrete losses' phi stays as small as it was seen to be."""
    if self.smoothing is None:
      return
    discrete = [(part, number) for part, number in table.tilted
                if isinstance(part, atoms.TiltedAtoms)]
    end = self.smoothing.end(-table.log_tail, table.order)
    try:
      atoms.certify_decay(discrete, table.last, max(end, table.last),
                          -table.log_tail)
    except atoms.Uncertified as error:
      raise Hard from error

  def _end(self, order: float, variance: float, spacing: float, log_need: float
           ) -> tuple[float, float]:
    """A point beyond which the integral can be dropped, and log |phi| there."""
    normal = max(math.sqrt(2 * max(log_need, 1.0) / max(variance, 1e-300)),
                 2 * spacing)
    grid = _geometric(REACHES[0] * normal, REACHES[1] * normal, 14)
    decay, first = self._decay(order, grid, log_need)
    if first:
      return float(grid[first]), float(decay[first])
    low, high = 2 * spacing, 2e7 * spacing
    for points in (12, 6):
      grid = _geometric(low, high, points)
      decay, first = self._decay(order, grid, log_need)
      if first is None:
        raise Hard
      low, high = grid[max(first - 1, 0)], grid[first]
    return float(high), float(decay[first])

  def _decay(self, order: float, grid: np.ndarray, log_need: float
             ) -> tuple[np.ndarray, Optional[int]]:
    """log |phi| on a grid, and where it is first small enough."""
    decay = sum(number * loss.log_decay(order, grid)
                for loss, number in self._all)
    # Room, where what was seen has yet to be certified.
    decay = decay + (0.0 if self.smoothing is None else CERTIFICATE_ROOM)
    enough = np.flatnonzero(decay - np.log(np.pi * grid) <= -log_need)
    return decay, int(enough[0]) if enough.size else None

  def stays_below(self, epsilon: float, log_delta: float) -> bool:
    """Whether delta at `epsilon` is quickly shown to be below; False: unknown.

    The integrand's modulus is integrated, with the bound on |phi| that falls.
    """
    known = self._block(*FIRST_ORDERS, 9)
    best = int(np.argmin(
        known.mgf - known.orders * epsilon + _numerics.log_kernel(known.orders)))
    # From there a step of Newton's method, in the logarithm.
    order, mean, variance = (
        float(values[best]) for values in (known.orders, known.mean, known.variance))
    slope = order * (mean - epsilon + math.log(order / (1 + order)))
    curve = order**2 * variance + order / (1 + order) + slope
    order *= math.exp(min(max(-slope / max(curve, 1e-9), -0.7), 0.7))
    mgf, _, variance = sum(
        count * loss.cumulants(np.array([order])) for loss, count in self._all)[:, 0]
    grid = _SPREAD / math.sqrt(max(variance, 1e-300))
    decay = sum(number * loss.log_decay(order, grid) for loss, number in self._all)
    # |s (s + 1)| >= c (c + 1) + t^2 for s = c + i t.
    root = math.sqrt(order * (order + 1))
    shares = np.diff(np.arctan(grid / root), prepend=0.0, append=0.5 * math.pi)
    total = float(shares @ np.exp(np.append(0.0, decay))) / (math.pi * root)
    return mgf - order * epsilon + math.log(total) < log_delta - BELOW_SLACK


@dataclasses.dataclass(frozen=True)
class Saddles:
  """Tilts with the epsilon and delta whose saddle point they are.

  Attributes:
    orders: Increasing tilts c.
    mgf: K(c).
    mean: K'(c).
    variance: K''(c).
  """

  orders: np.ndarray
  mgf: np.ndarray
  mean: np.ndarray
  variance: np.ndarray

  @functools.cached_property
  def epsilon(self) -> np.ndarray:
    """The epsilon at which c minimises the integrand on the real line."""
    c = self.orders
    return np.maximum.accumulate(self.mean - 1 / c - 1 / (1 + c))

  @functools.cached_property
  def log_delta(self) -> np.ndarray:
    """The saddle point's estimate of log delta there."""
    c = self.orders
    curvature = np.maximum(self.variance, 0) + 1 / c**2 + 1 / (1 + c)**2
    return np.minimum.accumulate(
        self.mgf - c * self.epsilon - np.log(c * (1 + c)) -
        0.5 * np.log(2 * np.pi * curvature))

  def nearest(self, epsilon: float) -> int:
    """Index of the tilt whose saddle point is nearest to `epsilon`."""
    return int(np.argmin(np.abs(self.epsilon - epsilon)))

  def log_chernoff(self, epsilon: float) -> float:
    """log of a bound on delta."""
    return float(np.min(
        self.mgf - self.orders * epsilon + _numerics.log_kernel(self.orders)))

  def epsilon_at(self, log_delta: float) -> float:
    """Epsilon, interpolated; beyond the largest tilt that tilt goes on."""
    beyond = max(float(self.log_delta[-1]) - log_delta, 0.0) / self.orders[-1]
    return float(np.interp(-log_delta, -self.log_delta, self.epsilon)) + beyond

  def log_delta_at(self, epsilon: float) -> float:
    """log delta, interpolated; beyond the largest tilt that tilt goes on."""
    beyond = max(epsilon - float(self.epsilon[-1]), 0.0) * self.orders[-1]
    return float(np.interp(epsilon, self.epsilon, self.log_delta)) - beyond

  def joined(self, other: Saddles) -> Saddles:
    """Both, in order, each tilt once."""
    orders, index = np.unique(
        np.concatenate([self.orders, other.orders]), return_index=True)
    return Saddles(orders, *(
        np.concatenate([getattr(self, name), getattr(other, name)])[index]
        for name in ('mgf', 'mean', 'variance')))


@dataclasses.dataclass(frozen=True)
class _Alias:
  """Chernoff bounds on the other periods' contributions.

  Attributes:
    order: The tilt.
    orders: Orders at which log moments are known.
    mgf: The log moments.
  """

  order: float
  orders: np.ndarray
  mgf: np.ndarray

  def period(self, epsilon: float, log_tolerance: float) -> float:
    """A period whose aliasing error is below the tolerance."""
    above, below = self._log_excess(epsilon)
    up, down = self.orders > self.order, self.orders < self.order
    high = np.logaddexp(0.0, above - log_tolerance)[up] / (
        self.orders[up] - self.order)
    low = np.logaddexp(0.0, below - log_tolerance)[down] / (
        self.order - self.orders[down])
    # Order zero: everything below is at most one.
    zero = np.logaddexp(0.0, -log_tolerance) / self.order
    period = max(np.min(high, initial=np.inf), np.min(low, initial=zero))
    if not (math.isfinite(period) and period > 0):
      raise Hard
    return float(period)

  def bound(self, epsilon: float, period: float) -> float:
    """The aliasing error at `epsilon`."""
    above, below = self._log_excess(epsilon)
    up, down = self.orders > self.order, self.orders < self.order
    high = above[up] - _log_expm1((self.orders[up] - self.order) * period)
    low = below[down] - _log_expm1((self.order - self.orders[down]) * period)
    zero = -float(_log_expm1(np.array(self.order * period)))
    return math.exp(min(np.min(high, initial=np.inf), 700.0)) + math.exp(
        np.min(low, initial=zero))

  def _log_excess(self, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    log_a = self.mgf - self.orders * epsilon + _numerics.log_kernel(self.orders)
    # Rounding of log_a itself.
    log_a = log_a + 1e-12 * (1 + np.abs(self.mgf) + np.abs(self.orders * epsilon))
    return log_a, np.minimum(log_a, 0.0)


class Table:
  """Phi on the nodes, and what follows from it at any epsilon nearby."""

  def __init__(self, order: float, spacing: float, count: int,
               tilted: Sequence[tuple[Any, int]],
               alias: _Alias, log_tail: float):
    self.order = order
    self.tilted = tilted
    self.log_tail = log_tail
    self._period = 2 * math.pi / spacing
    self._alias = alias
    self._t = spacing * np.arange(count)
    self._log_mgf = math.fsum(n * part.log_mgf for part, n in tilted)
    log_phi = np.zeros(count, dtype=np.complex128)
    slack = np.zeros(count)
    for part, n in tilted:
      own = part.log_phi(spacing, count)
      log_phi += n * own
      error = part.error(self._t) + part.error(self._t[:1])
      # An error e of phi is e / |phi| of log phi.
      slack += n * np.minimum(error * np.exp(-np.maximum(own.real, -30.0)), 1.0)
    with np.errstate(under='ignore'):
      phi = np.exp(log_phi)
    s = order + 1j * self._t
    weight = np.full(count, spacing / math.pi)
    weight[0] *= 0.5
    slope = -weight * phi / (s + 1)
    self._kernels = np.stack([-slope / s, slope])
    size = np.abs(self._kernels[0])
    rounding = gaussian.ROUNDOFF + gaussian.PHASE_ROUNDOFF * (
        abs(self._log_mgf) + np.abs(log_phi))
    self._noise = float(np.sum(size * (np.expm1(slack) + rounding)))
    self._turning = gaussian.PHASE_ROUNDOFF * float(
        np.sum(size * (order + self._t)))
    self._tail = math.exp(max(log_tail, -745.0)) / (math.pi * self._t[-1])

  def _scale(self, epsilon: float) -> float:
    """e^{K - c eps}."""
    log_scale = self._log_mgf - self.order * epsilon
    if log_scale > 700:
      raise Hard
    return math.exp(log_scale)

  def at(self, epsilon: float) -> tuple[float, float]:
    """Estimates of delta and of its derivative."""
    scale = self._scale(epsilon)
    value, slope = (self._kernels @ np.exp(-1j * self._t * epsilon)).real
    return scale * float(value), scale * float(slope)

  def errors(self, epsilon: float) -> tuple[float, float]:
    """How far delta may lie below and above the estimate."""
    scale = self._scale(epsilon)
    both = scale * (self._noise + abs(epsilon) * self._turning + self._tail)
    return (both + self._alias.bound(epsilon, self._period),
            both)

  @property
  def last(self) -> float:
    """The last node."""
    return float(self._t[-1])

  @property
  def margin(self) -> float:
    """How far below the epsilon it was made for the table is still good."""
    return _margin(self.order)


@dataclasses.dataclass(frozen=True)
class Profile:
  """delta near an epsilon, as the sum of what disjoint measures have of it.

  Attributes:
    tables: One table for each measure.
    omitted: Bounds, at any epsilon, the delta of what has no table.
  """

  tables: Sequence[Table]
  omitted: Callable[[float], float] = lambda epsilon: 0.0

  def _at(self, epsilon: float) -> tuple[float, float]:
    """Estimates of delta and of its derivative."""
    values = [table.at(epsilon) for table in self.tables]
    return sum(value for value, _ in values), sum(slope for _, slope in values)

  def _errors(self, epsilon: float) -> tuple[float, float]:
    """How far delta may lie below and above the estimate."""
    errors = [table.errors(epsilon) for table in self.tables]
    return (sum(below for below, _ in errors),
            sum(above for _, above in errors) + self.omitted(epsilon))

  def solve(self, delta: float, epsilon: float) -> float:
    """Newton's method on log delta, kept inside a bracket."""
    reach = 2 / max(table.order for table in self.tables)
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
      raise Hard
    return epsilon

  def bracket(self, delta: float, epsilon: float) -> Bounds:
    """Turns the errors of delta into bounds on epsilon, and checks them."""
    _, slope = self._at(epsilon)
    errors = self._errors(epsilon)
    ends = []
    for side in (-1, 1):
      move = 1e-15 * (1 + abs(epsilon)) + 1.01 * errors[side > 0] / abs(slope)
      for _ in range(8):
        end = epsilon + side * move
        below, above = self._errors(end)
        value, _ = self._at(end)
        if (value - below >= delta) if side < 0 else (value + above <= delta):
          break
        move *= 2
      else:
        raise Hard
      ends.append(max(end, 0.0))
    return Bounds(ends[0], max(epsilon, 0.0), ends[1])

  def delta_bounds(self, epsilon: float) -> Bounds:
    """Bounds on delta."""
    value, _ = self._at(epsilon)
    below, above = self._errors(epsilon)
    if not value > 0 or below + above > 1e-3 * value:
      raise Hard
    return Bounds(max(value - below, 0.0), min(value, 1.0), min(value + above, 1.0))


def solved(make: Callable[[float], Profile], delta: float, guess: float
           ) -> tuple[Profile, float]:
  """A profile made where epsilon is found, and that epsilon.

  Where a few rare losses compete with many small ones a guess is poor: what a
  first profile finds is where a second one is made.

  Args:
    make: Makes a profile near an epsilon.
    delta: The delta wanted.
    guess: A first guess of epsilon.
  """
  for _ in range(MAX_TABLES):
    profile = make(guess)
    found = profile.solve(delta, guess)
    if abs(found - guess) <= min(table.margin for table in profile.tables):
      break
    guess = found
  return profile, found


def one_thread() -> ContextManager[Any]:
  """Several threads make matrices of this size ten times slower."""
  return _threads().limit(limits=1)


@functools.cache
def _threads() -> threadpoolctl.ThreadpoolController:
  return threadpoolctl.ThreadpoolController()


_STEPS = {points: np.linspace(0.0, 1.0, points) for points in (6, 9, 12, 14)}

_SPREAD = np.concatenate([np.linspace(0.25, 4.0, 13), [5.0, 7.0, 12.0, 50.0]])
"""Where |phi| is bounded for a quick answer, in units of a normal loss."""


def _geometric(low: float, high: float, points: int) -> np.ndarray:
  """`points` numbers from low to high in equal ratios."""
  return low * (high / low)**_STEPS[points]


def _margin(order: float) -> float:
  return 2 / order


def _log_expm1(x: np.ndarray) -> np.ndarray:
  """log(e^x - 1) for x > 0."""
  return x + np.log(-np.expm1(-x))
