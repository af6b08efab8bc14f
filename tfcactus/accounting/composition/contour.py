"""Bounds on delta and epsilon by an integral along a vertical line, the contour.

delta(epsilon) is an integral of M(s) e^(-s epsilon) / (s (s + 1)) over Re s = c, with M
the moment generating function of the total loss under P. Values of phi(t) = M(c + i t)
/ M(c) on nodes t = 0, h, 2 h, ... serve every epsilon nearby. All errors are bounded:
docs/soundness_formulas.md, "Contours".

Source: phi is Definition 11 of Zhu, Dong and Wang (AISTATS 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import math
from typing import Callable

import numpy as np
import threadpoolctl

from tfcactus import _numerics
from tfcactus.accounting.bounds import Bounds, IntractableError
from tfcactus.accounting.composition import inversion
from tfcactus.accounting.composition.inversion import (
  Alias,
  Saddles,
  STEP_ROUNDOFF,
)
from tfcactus.accounting.composition.losses import base
from tfcactus.accounting.composition.losses.grouped import GroupedGaussian

LOG_TOLERANCE = math.log(1e-14)
"""Log of the relative error of delta aimed at per cause. Affects speed only."""

MAX_TABLE = 500_000_000
"""Phi values times quadrature nodes at which a contour gives up. Affects speed only."""

MIN_ORDER = 0.0008
"""Tilts much below this are not tried."""

FIRST_ORDERS = (0.5, 80.0)
"""Range of the tilts tried first."""

BLOCK = 25.0
"""Ratio of the ends of each further range of tilts."""

REACHES = (0.8, 40.0)
"""Range in which the end of the integral is sought first, relative to the end for a
normal loss of equal variance."""

LOG_NOTHING = -650.0
"""If log delta is smaller, bounds on delta are zero and about e^LOG_NOTHING."""

NOTHING_ROOM = 10.0
"""Added to LOG_NOTHING in the upper bound, for moments that were estimated."""

BELOW_SLACK = 1e-6
"""Allowance for rounding in `stays_below`, besides STEP_ROUNDOFF for each step."""

QUICK_ORDER = 300.0
"""Largest tilt of a quick contour: larger ones take seconds."""

QUICK_TABLE = 3_000_000
"""Phi values times nodes of a quick contour, which take a few tenths of a second."""

FEW_NODES = 400
"""With at most this many nodes no better tilt is sought."""

FEW_STEPS = 100_000
"""With at most this many steps a better tilt would not reduce rounding."""

NEAR = 1e-9
"""Largest relative width of bounds on delta by the table of another epsilon."""


@functools.cache
def _threads() -> threadpoolctl.ThreadpoolController:
  """Returns the controller of the loaded BLAS libraries, which are found only once."""
  return threadpoolctl.ThreadpoolController()


def one_thread(method: Callable[..., Bounds]) -> Callable[..., Bounds]:
  """Returns `method` run on one BLAS thread: several can take many times as long."""
  @functools.wraps(method)
  def limited(*args: object) -> Bounds:
    with _threads().limit(limits=1):
      return method(*args)
  return limited


@dataclasses.dataclass(frozen=True)
class Contour:
  """A composition of independent losses with analytic phi functions.

  A `quick` contour raises IntractableError where it would take more than tenths of a
  second: another method exists then.
  """

  groups: Sequence[tuple[base.Loss, int]]  # Pairs (loss, number of steps).
  quick: bool = False
  # The table that gave the last delta; none at first.
  _last: list[inversion.Profile] = dataclasses.field(
      default_factory=list, init=False, compare=False, repr=False)

  @one_thread
  def epsilon(self, delta: float) -> Bounds:
    """Returns bounds on the least epsilon >= 0 at `delta` in (0, 1).

    Raises IntractableError if a contour is too hard.
    """
    # A table of phi is made for one epsilon, `near`, and serves others close to it.
    log_delta = math.log(delta)
    saddles = self.saddles(log_delta=log_delta)
    guess = saddles.epsilon_at(log_delta)
    if guess <= 0 and self.delta(0.0).upper <= delta:
      return Bounds(0.0, 0.0, 0.0)
    profile, found = inversion.solved(
        lambda near: inversion.Profile([self.table(saddles, near, log_delta)]),
        delta, guess)
    return profile.bracket(delta, found)

  @one_thread
  def delta(self, epsilon: float) -> Bounds:
    """Returns bounds on delta; raises IntractableError if a contour is too hard."""
    for last in self._last:  # The last table serves what is close to its epsilon.
      with contextlib.suppress(IntractableError):
        bounds = last.delta_bounds(epsilon)
        if bounds.upper - bounds.lower <= NEAR * bounds.lower:
          return bounds
    saddles = self.saddles(epsilon=epsilon)
    log_chernoff, order = saddles.chernoff(epsilon, self.steps)
    if log_chernoff < LOG_NOTHING:
      # Room, as Chernoff's bound from a moment that is proved may be larger.
      most = LOG_NOTHING + NOTHING_ROOM
      if not self._moments_are_proved and not inversion.log_chernoff(
          self.log_moment(order), order, epsilon, self.steps) < most:
        raise IntractableError
      return Bounds(0.0, 0.0, math.exp(most))
    table = self.table(saddles, epsilon, min(saddles.log_delta_at(epsilon), 0.0))
    self._last[:] = [profile := inversion.Profile([table])]
    return profile.delta_bounds(epsilon)

  @property
  def steps(self) -> int:
    """The number of steps of all groups."""
    return sum(number for _, number in self.groups)

  @property
  def _moments_are_proved(self) -> bool:
    """Returns whether all losses' `cumulants` give log M, or more, up to rounding."""
    return all(loss.moments_are_proved for loss, _ in self.groups)

  @property
  def _max_order(self) -> float:
    """The approximate largest tilt that all losses support."""
    return min(loss.max_order for loss, _ in self.groups)

  def saddles(self, log_delta: float = -math.inf, epsilon: float = math.inf) -> Saddles:
    """Returns saddle points around `log_delta` or `epsilon`; callers give one."""
    # Adds tilts below or above until saddle points on both sides are known.
    known = self._block(*FIRST_ORDERS)
    while True:
      passed = np.flatnonzero(
          (known.log_delta <= log_delta) | (known.epsilon >= epsilon))
      first = int(passed[0]) if passed.size else known.orders.size
      if first == 0 and known.orders[0] > MIN_ORDER:
        low = known.orders[0]
        known = self._block(low / BLOCK, low).joined(known)
      elif first > known.orders.size - 5:
        # Bounds on aliasing need orders well above the best one.
        if known.orders[-1] >= self._max_order:
          break
        low = known.orders[-1]
        known = known.joined(self._block(low, BLOCK * low))
      else:
        break
    if self.steps > FEW_STEPS:
      known = self._refined(known, first)
    return known

  def _refined(self, known: Saddles, index: int) -> Saddles:
    """Returns `known` with more tilts between the neighbours of tilt number `index`."""
    index = min(max(index, 1), known.orders.size - 2)
    return known.joined(self._block(known.orders[index - 1], known.orders[index + 1]))

  def _block(self, low: float, high: float, points: int = 14) -> Saddles:
    """Returns saddle points of `points` tilts from `low` to `high` in equal ratios."""
    orders = np.geomspace(low, high, points)
    return Saddles(orders, *sum(
        (count * loss.cumulants(orders) for loss, count in self.groups),
        np.zeros((3, points))))

  def table(self, saddles: Saddles, epsilon: float, log_delta: float
            ) -> inversion.Table:
    """Returns phi on enough nodes for delta near `epsilon`.

    `log_delta` is a rough log of that delta. Raises IntractableError if too many nodes
    are needed.
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
      alias = Alias(order, saddles.orders, saddles.mgf, self.steps, log_moment)
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
      # A better tilt, with orders close to it, needs fewer nodes.
      saddles = self._refined(saddles, best)
      best = saddles.nearest(epsilon)
    tilted = self._tilted(order, count * spacing)
    if count * max(part.nodes for part, _ in tilted) > (
        QUICK_TABLE if self.quick else MAX_TABLE):
      raise IntractableError
    return inversion.Table(order, spacing, count, tilted, alias, log_tail)

  def _tilted(self, order: float, t_max: float) -> list[tuple[base.TiltedLoss, int]]:
    """Returns pairs (loss tilted by `order`, steps), for phi at t up to `t_max`."""
    tolerance = math.exp(LOG_TOLERANCE) / (10 * self.steps)
    return [(loss.tilted(order, t_max, tolerance), number)
            for loss, number in self.groups]

  def transform(self, order: float, spacing: float, count: int
                ) -> tuple[np.ndarray, np.ndarray]:
    """Returns log M at order + i spacing * (0..count-1), and errors e, both (count,).

    M is off by at most |M| (exp(e) - 1).
    """
    tilted = self._tilted(order, spacing * count)
    log_mgf = math.fsum(number * part.log_mgf for part, number in tilted)
    log_phi, slack = inversion.log_phi_of(tilted, spacing, count)
    return log_mgf + log_phi, slack + base.PHASE_ROUNDOFF * (
        1 + abs(log_mgf) + np.abs(log_phi))

  def log_moment(self, order: float) -> float:
    """Returns an upper bound on the log moment log M(order) of the total loss."""
    return math.fsum(number * loss.log_moment(order) for loss, number in self.groups)

  def _end(self, order: float, variance: float, spacing: float, log_need: float
           ) -> tuple[float, float]:
    """Returns t beyond which the integral can be dropped, and log of a bound on |phi|.

    The bound is an upper one for all larger t.
    """
    # The part of the integral that may be dropped is exp(-log_need) times
    # M(order) exp(-order * epsilon); `variance` is the total loss's under the tilt.
    normal = max(math.sqrt(2 * max(log_need, 1.0) / max(variance, 1e-300)), 2 * spacing)
    grid = np.geomspace(REACHES[0] * normal, REACHES[1] * normal, 14)
    decay, first = self._decay(order, grid, log_need)
    if first:
      return float(grid[first]), float(decay[first])
    # No point suffices, or a smaller one might. Try 2 to 2e7 nodes: first a coarse
    # grid, then one of its cells.
    low, high = 2 * spacing, 2e7 * spacing
    for points in (12, 6):
      grid = np.geomspace(low, high, points)
      decay, first = self._decay(order, grid, log_need)
      if first is None:
        raise IntractableError
      low, high = grid[max(first - 1, 0)], grid[first]
    return float(high), float(decay[first])

  def _decay(self, order: float, grid: np.ndarray, log_need: float
             ) -> tuple[np.ndarray, int | None]:
    """Returns bounds on log |phi| on the increasing `grid`, and where they suffice.

    That is the first index from which the rest of the integral, at most |phi| / (pi t),
    is below exp(-log_need); None if there is none.
    """
    decay = sum((number * loss.log_decay(order, grid)
                 for loss, number in self.groups), np.zeros_like(grid))
    enough = np.flatnonzero(decay - np.log(np.pi * grid) <= -log_need)
    return decay, int(enough[0]) if enough.size else None

  def stays_below(self, epsilon: float, log_delta: float) -> bool:
    """Returns True if bounds on |phi| show log delta < `log_delta`; False: unknown."""
    known = self._block(*FIRST_ORDERS, 22)
    best = int(np.argmin(
        known.mgf - known.orders * epsilon + _numerics.log_kernel(known.orders)))
    order, mgf, variance = (
        float(values[best]) for values in (known.orders, known.mgf, known.variance))
    if not self._moments_are_proved:
      mgf = self.log_moment(order)
    grid = _SPREAD / math.sqrt(max(variance, 1e-300))
    decay = sum(number * loss.log_decay(order, grid) for loss, number in self.groups)
    # |s (s + 1)| >= c (c + 1) + t^2 for s = c + i t.
    root = math.sqrt(order * (order + 1))
    shares = np.diff(np.arctan(grid / root), prepend=0.0, append=0.5 * math.pi)
    total = float(shares @ np.exp(np.append(0.0, decay))) / (math.pi * root)
    slack = BELOW_SLACK + STEP_ROUNDOFF * self.steps + base.ROUNDOFF * (
        abs(mgf) + order * epsilon)
    return mgf - order * epsilon + math.log(total) < log_delta - slack


_SPREAD = np.concatenate([np.linspace(0.25, 4.0, 13), [5.0, 7.0, 12.0, 50.0]])
"""Points where `stays_below` bounds |phi|, times the loss's standard deviation."""


SHARE = 1e-11
"""Mass that is set aside, as a share of delta. Affects speed and width only."""

ROUNDS = 3
"""Most rounds until the mass set aside is a small enough share of delta."""


@dataclasses.dataclass(frozen=True)
class GroupedContours:
  """A composition of releases, some with several rows of one person."""

  # Pairs (loss of a release, number of steps).
  groups: Sequence[tuple[base.ReleaseLoss, int]]

  def epsilon(self, delta: float) -> Bounds:
    """Returns bounds on epsilon; raises IntractableError if a contour is too hard."""
    # True delta is at least the contour's, and larger by `aside` at most.
    whole, aside = self._contour(SHARE * delta)
    low = whole.epsilon(delta)
    high = whole.epsilon(delta - aside) if aside > 0 else low
    return Bounds(low.lower, low.estimate, max(low.upper, high.upper))

  def delta(self, epsilon: float) -> Bounds:
    """Returns bounds on delta; raises IntractableError if a contour is too hard."""
    most = SHARE
    for _ in range(ROUNDS):
      whole, aside = self._contour(most)
      bounds = whole.delta(epsilon)
      if aside <= 1e-9 * bounds.lower:
        break
      most = SHARE * bounds.upper
    return Bounds(bounds.lower, bounds.estimate, min(bounds.upper + aside, 1.0))

  def _contour(self, most: float) -> tuple[Contour, float]:
    """Returns a contour, and a bound on the mass set aside, which is at most `most`.

    The mass is P's in samples of many rows. The contour counts it as if fewer were in.
    """
    steps = sum(count for _, count in self.groups)
    groups, aside = [], 0.0
    for loss, count in self.groups:
      # For addition P is the output without the rows: nothing is set aside.
      if isinstance(loss, GroupedGaussian) and loss.direction == 'remove':
        loss, mass = loss.truncated(most / steps)
        aside += count * mass
      groups.append((loss, count))
    return Contour(tuple(groups)), aside
