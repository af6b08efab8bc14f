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
from typing import ContextManager
from typing import Optional
from typing import Sequence

import numpy as np
import threadpoolctl

from tfcactus import _numerics
from tfcactus.accounting.bounds import Bounds
from tfcactus.accounting.bounds import IntractableError
from tfcactus.accounting.composition import inversion
from tfcactus.accounting.composition.losses import base
from tfcactus.accounting.composition.losses import rounding
from tfcactus.accounting.composition.saddles import Alias
from tfcactus.accounting.composition.saddles import Saddles
from tfcactus.accounting.composition.saddles import STEP_ROUNDOFF

LOG_TOLERANCE = math.log(1e-14)
"""Log of the relative error of delta aimed at for each cause. Knob of speed."""

MAX_TABLE = 500_000_000
"""Phi values times quadrature nodes beyond which the contour gives up. Knob of
speed."""

MIN_ORDER = 0.0008
"""No tilts much below this are tried."""

FIRST_ORDERS = (0.5, 80.0)
"""Tilts are tried in this range, then beyond."""

BLOCK = 25.0
"""Ratio of the ends of a range that is tried beyond."""

REACHES = (0.8, 40.0)
"""The end of the integral is sought in this range, in the ends that it would
have if the tilted loss were normal; then everywhere."""

LOG_NOTHING = -650.0
"""Log of a delta that is not told from zero; about it is then the upper bound."""

NOTHING_ROOM = 10.0
"""Allowance for rounding in that log, which the bound is larger by."""

BELOW_SLACK = 1e-6
"""Allowance for rounding in the log of a delta that is quickly shown small, beside
that of each step's moment, `saddles.STEP_ROUNDOFF`."""

QUICK_ORDER = 300.0
"""A tilt beyond this takes seconds: delta is next to what no epsilon undercuts."""

QUICK_TABLE = 3_000_000
"""Exponentials that take a few tenths of a second."""

FEW_NODES = 400
"""So many nodes are not worth saving."""

FEW_STEPS = 100_000
"""So many steps do not add up rounding that a better tilt would avoid."""


@dataclasses.dataclass(frozen=True)
class Contour:
  """A composition of independent losses with analytic phi functions.

  Attributes:
    groups: Pairs (loss, number of steps).
    quick: Whether to give up where it takes seconds, since there is another method.
  """

  groups: Sequence[tuple[base.Loss, int]]
  quick: bool = False

  _decay_margin = 0.0

  def epsilon(self, delta: float) -> Bounds:
    """Bounds on epsilon at `delta`.

    Raises:
      IntractableError: if the composition is too hard for a contour.
    """
    with one_thread():
      return self._epsilon(delta)

  def _epsilon(self, delta: float) -> Bounds:
    log_delta = math.log(delta)
    saddles = self.saddles(log_delta=log_delta)
    guess = saddles.epsilon_at(log_delta)
    if guess <= 0 and self._delta(0.0).upper <= delta:
      return Bounds(0.0, 0.0, 0.0)
    profile, found = inversion.solved(
        lambda near: inversion.Profile([self.table(saddles, near, log_delta)]),
        delta, guess)
    self._certify(profile.tables[0])
    return profile.bracket(delta, found)

  def delta(self, epsilon: float) -> Bounds:
    """Bounds on delta at `epsilon`.

    Raises:
      IntractableError: if the composition is too hard for a contour.
    """
    with one_thread():
      return self._delta(epsilon)

  def _delta(self, epsilon: float) -> Bounds:
    saddles = self.saddles(epsilon=epsilon)
    if saddles.log_chernoff(epsilon) < LOG_NOTHING:
      self._check_nothing(saddles.best_order(epsilon), epsilon)
      return Bounds(0.0, 0.0, math.exp(LOG_NOTHING + NOTHING_ROOM))
    table = self.table(
        saddles, epsilon, min(saddles.log_delta_at(epsilon), 0.0))
    self._certify(table)
    return inversion.Profile([table]).delta_bounds(epsilon)

  def _check_nothing(self, order: float, epsilon: float) -> None:
    """Shows that delta is not told from zero, where moments are about right only.

    Raises:
      IntractableError: if it is not shown.
    """
    if self._moments_are_proved:
      return
    log_bound = self.log_moment(order) - order * epsilon + _numerics.log_kernel(order)
    if not log_bound + 1 + STEP_ROUNDOFF * self._steps < LOG_NOTHING + NOTHING_ROOM:
      raise IntractableError

  @property
  def _steps(self) -> int:
    return sum(number for _, number in self.groups)

  @property
  def _moments_are_proved(self) -> bool:
    return all(loss.moments_are_proved for loss, _ in self.groups)

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
    if self._steps > FEW_STEPS:
      known = self._refined(known, first)
    return known

  def _refined(self, known: Saddles, index: int) -> Saddles:
    """With more tilts around one of them."""
    index = min(max(index, 1), known.orders.size - 2)
    return known.joined(
        self._block(known.orders[index - 1], known.orders[index + 1]))

  def _block(self, low: float, high: float, points: int = 14) -> Saddles:
    orders = _geometric(low, high, points)
    return Saddles(orders, *sum(
        (count * loss.cumulants(orders) for loss, count in self._all),
        np.zeros((3, points))))

  @property
  def _all(self) -> Sequence[tuple[base.Loss, int]]:
    """What is added up: the groups, and what a subclass adds to them."""
    return self.groups

  def table(self, saddles: Saddles, epsilon: float, log_delta: float
            ) -> inversion.Table:
    """Nodes and phi values that suffice near an epsilon.

    Args:
      saddles: This composition's, around `epsilon`.
      epsilon: Where delta is wanted.
      log_delta: About its log there: errors are a small share of delta.

    Raises:
      IntractableError: if that takes too many.
    """
    log_moment = None if self._moments_are_proved else functools.lru_cache(
        self.log_moment)
    best = saddles.nearest(epsilon)
    while best > saddles.orders.size - 5 and saddles.orders[-1] < self._max_order:
      low = saddles.orders[-1]
      saddles = saddles.joined(self._block(low, BLOCK * low))
      best = saddles.nearest(epsilon)
    for refined in (False, True):
      order = float(saddles.orders[best])
      if self.quick and order > QUICK_ORDER:
        raise IntractableError
      alias = Alias(
          order, saddles.orders, saddles.mgf, self._steps, log_moment)
      period = alias.period(
          epsilon - inversion.margin(order), log_delta + LOG_TOLERANCE)
      spacing = 2 * math.pi / period
      log_scale = float(saddles.mgf[best]) - order * (epsilon - inversion.margin(order))
      end, log_tail = self._end(
          order, float(saddles.variance[best]), spacing,
          log_scale - log_delta - LOG_TOLERANCE)
      count = int(math.ceil(end / spacing)) + 1
      if refined or count <= FEW_NODES:
        break
      # A better tilt, and orders close to it, make for fewer nodes.
      saddles = self._refined(saddles, best)
      best = saddles.nearest(epsilon)
    tilted = self._tilted(order, count * spacing)
    if count * max(part.nodes for part, _ in tilted) > (
        QUICK_TABLE if self.quick else MAX_TABLE):
      raise IntractableError
    return inversion.Table(order, spacing, count, tilted, alias, log_tail)

  def _tilted(self, order: float, t_max: float
              ) -> list[tuple[base.TiltedLoss, int]]:
    tolerance = math.exp(LOG_TOLERANCE) / (10 * self._steps)
    return [(loss.tilted(order, t_max, tolerance), number)
            for loss, number in self._all]

  def transform(self, order: float, spacing: float, count: int
                ) -> tuple[np.ndarray, np.ndarray]:
    """log M at order + i spacing * (0..count-1), and a bound on its error."""
    tilted = self._tilted(order, spacing * count)
    log_mgf = math.fsum(number * part.log_mgf for part, number in tilted)
    log_phi, slack = inversion.log_phi_of(tilted, spacing, count)
    return log_mgf + log_phi, slack + rounding.PHASE_ROUNDOFF * (
        1 + abs(log_mgf) + np.abs(log_phi))

  def log_moment(self, order: float) -> float:
    """An upper bound on the log moment of the sum."""
    return math.fsum(number * loss.log_moment(order)
                     for loss, number in self._all)

  def _certify(self, table: inversion.Table) -> None:
    """Shows that phi decays as taken, where `log_decay` is no proof.

    Raises:
      IntractableError: if it could not be shown.
    """

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
        raise IntractableError
      low, high = grid[max(first - 1, 0)], grid[first]
    return float(high), float(decay[first])

  def _decay(self, order: float, grid: np.ndarray, log_need: float
             ) -> tuple[np.ndarray, Optional[int]]:
    """log |phi| on a grid, and where it is first small enough."""
    decay = sum((number * loss.log_decay(order, grid)
                 for loss, number in self._all), np.zeros_like(grid))
    decay = decay + self._decay_margin
    enough = np.flatnonzero(decay - np.log(np.pi * grid) <= -log_need)
    return decay, int(enough[0]) if enough.size else None

  def stays_below(self, epsilon: float, log_delta: float) -> bool:
    """Whether delta at `epsilon` is quickly shown to be below; False: unknown.

    The integrand's modulus is integrated, with the bound on |phi| that falls.
    """
    known = self._block(*FIRST_ORDERS, 22)
    best = int(np.argmin(
        known.mgf - known.orders * epsilon + _numerics.log_kernel(known.orders)))
    order, mgf, variance = (
        float(values[best]) for values in (known.orders, known.mgf, known.variance))
    if not self._moments_are_proved:
      mgf = self.log_moment(order)
    grid = _SPREAD / math.sqrt(max(variance, 1e-300))
    decay = sum(number * loss.log_decay(order, grid) for loss, number in self._all)
    # |s (s + 1)| >= c (c + 1) + t^2 for s = c + i t.
    root = math.sqrt(order * (order + 1))
    shares = np.diff(np.arctan(grid / root), prepend=0.0, append=0.5 * math.pi)
    total = float(shares @ np.exp(np.append(0.0, decay))) / (math.pi * root)
    slack = BELOW_SLACK + STEP_ROUNDOFF * self._steps
    return mgf - order * epsilon + math.log(total) < log_delta - slack


def one_thread() -> ContextManager[object]:
  """Several threads make matrices of this size ten times slower."""
  return _threads().limit(limits=1)


@functools.cache
def _threads() -> threadpoolctl.ThreadpoolController:
  return threadpoolctl.ThreadpoolController()


_STEPS = {points: np.linspace(0.0, 1.0, points) for points in (6, 12, 14, 22)}

_SPREAD = np.concatenate([np.linspace(0.25, 4.0, 13), [5.0, 7.0, 12.0, 50.0]])
"""Where |phi| is bounded for a quick answer, in units of a normal loss."""


def _geometric(low: float, high: float, points: int) -> np.ndarray:
  """`points` numbers from low to high in equal ratios."""
  return low * (high / low)**_STEPS[points]
