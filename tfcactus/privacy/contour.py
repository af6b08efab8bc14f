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

MAX_TABLE = 3_000_000_000
"""Phi values times quadrature nodes beyond which the contour gives up."""

BLOCKS = (0.0008, 0.02, 0.5, 12.5, 312.5)
"""Tilts are tried in blocks from each of these to 25 times as much."""

CERTIFICATE_ROOM = 3.0
"""How far the log of phi, as seen, stays below what is then certified."""

LOG_NOTHING = -650.0
"""Log of a delta that is not told from zero."""

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
    with _one_thread().limit(limits=1):
      return self._epsilon(delta)

  def _epsilon(self, delta: float) -> Bounds:
    log_delta = math.log(delta)
    saddles = self._saddles(log_delta=log_delta)
    guess = float(np.interp(-log_delta, -saddles.log_delta, saddles.epsilon))
    if guess <= 0 and self._delta(0.0).upper <= delta:
      return Bounds(0.0, 0.0, 0.0)
    # Where a few rare losses compete with many small ones the saddle point's
    # guess is poor: what a first table finds is where a second one is made.
    for _ in range(MAX_TABLES):
      table = self._table(saddles, guess, log_delta)
      found = table.solve(delta, guess)
      if abs(found - guess) <= table.margin:
        break
      guess = found
    self._certify(table)
    return table.bracket(delta, found)

  def delta(self, epsilon: float) -> Bounds:
    """Bounds on delta at `epsilon`.

    Raises:
      Hard: if the composition is too hard for a contour.
    """
    with _one_thread().limit(limits=1):
      return self._delta(epsilon)

  def _delta(self, epsilon: float) -> Bounds:
    saddles = self._saddles(epsilon=epsilon)
    chernoff = float(np.min(
        saddles.mgf - saddles.orders * epsilon + _numerics.log_kernel(saddles.orders)))
    if chernoff < LOG_NOTHING:
      return Bounds(0.0, 0.0, math.exp(LOG_NOTHING))
    log_delta = float(np.interp(epsilon, saddles.epsilon, saddles.log_delta))
    table = self._table(saddles, epsilon, min(log_delta, 0.0))
    self._certify(table)
    return table.delta_bounds(epsilon)

  def _saddles(self, log_delta: float = -math.inf, epsilon: float = math.inf
               ) -> _Saddles:
    """Saddle points on both sides of a delta or of an epsilon."""
    block = BLOCKS.index(0.5)
    known = self._block(BLOCKS[block], 25 * BLOCKS[block])
    while True:
      passed = np.flatnonzero(
          (known.log_delta <= log_delta) | (known.epsilon >= epsilon))
      first = int(passed[0]) if passed.size else known.orders.size
      if first == 0 and known.orders[0] > BLOCKS[0]:
        low = known.orders[0]
        known = self._block(low / 25, low).joined(known)
      elif first > known.orders.size - 5:
        # Aliasing wants orders well above the best.
        if known.orders[-1] > BLOCKS[-1]:
          break
        low = known.orders[-1]
        known = known.joined(self._block(low, 25 * low))
      else:
        break
    first = min(max(first, 1), known.orders.size - 1)
    fine = self._block(known.orders[first - 1], known.orders[first], 9)
    return known.joined(fine)

  def _block(self, low: float, high: float, points: int = 14) -> _Saddles:
    orders = _geometric(low, high, points)
    return _Saddles(orders, *sum(
        count * loss.cumulants(orders) for loss, count in self._all))

  @property
  def _all(self) -> list[tuple[Any, int]]:
    extra = [] if self.smoothing is None else [(self.smoothing, 1)]
    return [*self.groups, *extra]

  def _table(self, saddles: _Saddles, epsilon: float, log_delta: float
             ) -> _Table:
    """Nodes and phi values that suffice near an epsilon."""
    best = int(np.argmin(np.abs(saddles.epsilon - epsilon)))
    order = float(saddles.orders[best])
    alias = _Alias(order, saddles.orders, saddles.mgf)
    margin = _margin(order)
    period = alias.period(epsilon - margin, log_delta + LOG_TOLERANCE)
    spacing = 2 * math.pi / period
    log_scale = float(saddles.mgf[best]) - order * (epsilon - margin)
    end, log_tail = self._end(
        order, spacing, log_scale - log_delta - LOG_TOLERANCE)
    count = int(math.ceil(end / spacing)) + 1
    steps = sum(number for _, number in self.groups)
    tolerance = math.exp(LOG_TOLERANCE) / (10 * steps)
    tilted = [(loss.tilted(order, count * spacing, tolerance), number)
              for loss, number in self._all]
    if count * max(getattr(part, 'loss', np.zeros(1)).size
                   for part, _ in tilted) > MAX_TABLE:
      raise Hard
    return _Table(order, spacing, count, tilted, alias, log_tail)

  def _certify(self, table: _Table) -> None:
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

  def _end(self, order: float, spacing: float, log_need: float
           ) -> tuple[float, float]:
    """A point beyond which the integral can be dropped, and log |phi| there."""
    low, high = 2 * spacing, 2e7 * spacing
    for points in (12, 6):
      grid = _geometric(low, high, points)
      decay = sum(number * loss.log_decay(order, grid)
                  for loss, number in self._all)
      # Room, where what was seen has yet to be certified.
      decay = decay + (0.0 if self.smoothing is None else CERTIFICATE_ROOM)
      enough = np.flatnonzero(decay - np.log(np.pi * grid) <= -log_need)
      if enough.size == 0:
        raise Hard
      first = int(enough[0])
      low, high = grid[max(first - 1, 0)], grid[first]
    return float(high), float(decay[first])


@dataclasses.dataclass(frozen=True)
class _Saddles:
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

  def joined(self, other: _Saddles) -> _Saddles:
    """Both, in order, each tilt once."""
    orders, index = np.unique(
        np.concatenate([self.orders, other.orders]), return_index=True)
    return _Saddles(orders, *(
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


class _Table:
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
    self._value = weight * phi / (s * (s + 1))
    self._slope = -weight * phi / (s + 1)
    size = np.abs(self._value)
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

  def _at(self, epsilon: float) -> tuple[float, float, float]:
    """Estimates of delta and its derivative, and the scale e^{K - c eps}."""
    scale = self._scale(epsilon)
    turn = np.exp(-1j * self._t * epsilon)
    return (scale * float(np.sum((self._value * turn).real)),
            scale * float(np.sum((self._slope * turn).real)), scale)

  def errors(self, epsilon: float) -> tuple[float, float]:
    """How far delta may lie below and above the estimate."""
    scale = self._scale(epsilon)
    both = scale * (self._noise + abs(epsilon) * self._turning + self._tail)
    return both + self._alias.bound(epsilon, self._period), both

  @property
  def last(self) -> float:
    """The last node."""
    return float(self._t[-1])

  @property
  def margin(self) -> float:
    """How far below the epsilon it was made for the table is still good."""
    return _margin(self.order)

  def solve(self, delta: float, epsilon: float) -> float:
    """Newton's method on log delta, kept inside a bracket."""
    low, high = min(0.0, epsilon) - 20 / self.order, math.inf
    for _ in range(MAX_NEWTON):
      value, slope, _ = self._at(epsilon)
      if value > delta:
        low = max(low, epsilon)
      else:
        high = min(high, epsilon)
      if value > 0 and slope < 0:
        step = math.log(value / delta) * value / slope
        new = epsilon - min(max(step, -2 / self.order), 2 / self.order)
      else:
        new = math.nan
      if not low < new < high:
        new = 0.5 * (low + high) if math.isfinite(high) else epsilon + 1 / self.order
      if abs(new - epsilon) <= 1e-15 * max(abs(epsilon), 1e-3):
        return new
      epsilon, before = new, epsilon
    if abs(epsilon - before) > 1e-9 * max(1.0, abs(epsilon)):
      raise Hard
    return epsilon

  def bracket(self, delta: float, epsilon: float) -> Bounds:
    """Turns the errors of delta into bounds on epsilon, and checks them."""
    low, high = epsilon, epsilon
    for side in (-1, 1):
      _, slope, _ = self._at(epsilon)
      error = self.errors(epsilon)[0 if side < 0 else 1]
      move = 1e-15 * (1 + abs(epsilon)) + 1.01 * error / abs(slope)
      for _ in range(8):
        at = epsilon + side * move
        below, above = self.errors(at)
        value = self._at(at)[0]
        if (value - below >= delta) if side < 0 else (value + above <= delta):
          break
        move *= 2
      else:
        raise Hard
      low, high = (at, high) if side < 0 else (low, at)
    return Bounds(max(low, 0.0), max(epsilon, 0.0), max(high, 0.0))

  def delta_bounds(self, epsilon: float) -> Bounds:
    """Bounds on delta."""
    value, _, _ = self._at(epsilon)
    below, above = self.errors(epsilon)
    if not value > 0 or below + above > 1e-3 * value:
      raise Hard
    return Bounds(max(value - below, 0.0), min(value, 1.0), min(value + above, 1.0))


@functools.cache
def _one_thread() -> threadpoolctl.ThreadpoolController:
  """Several threads make matrices of this size ten times slower."""
  return threadpoolctl.ThreadpoolController()


_STEPS = {points: np.linspace(0.0, 1.0, points) for points in (6, 9, 12, 14)}


def _geometric(low: float, high: float, points: int) -> np.ndarray:
  """`points` numbers from low to high in equal ratios."""
  return low * (high / low)**_STEPS[points]


def _margin(order: float) -> float:
  return 2 / order


def _log_expm1(x: np.ndarray) -> np.ndarray:
  """log(e^x - 1) for x > 0."""
  return x + np.log(-np.expm1(-x))
