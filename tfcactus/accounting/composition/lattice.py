"""Composition on a lattice of losses: rigorous bounds for any discrete pairs.

One FFT of exponentially tilted masses gives a step's phi; its power is transformed
back. Upper: each atom is split between two lattice losses, keeping its P- and Q-mass.
Lower: each atom gets an unbiased random lattice label; every threshold on the sum of
labels is a test, hence a bound. Chernoff's inequality bounds wrap-around.

Source: Zhu, Dong and Wang (AISTATS 2022), sections 4.2-4.3, for phi.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Callable

import numpy as np
from scipy import optimize

from tfcactus import _numerics
from tfcactus.accounting.bounds import Bounds
from tfcactus.accounting.composition import infinite_mass
from tfcactus.accounting.composition.tilted_sum import (
  MAX_EXPONENT,
  tilted_masses,
  TiltedSum,
  Window,
)
from tfcactus.pairs import dominating_pair as pair_lib

TILT_RANGE = (1e-4, 1e4)
"""Range of tilts that is searched."""

BULK_SHARES = (0.6, 0.2, 0.0)
"""Shares of epsilon, tried in turn. Losses of up to a share of epsilon over the number
of steps (the bulk) cannot add up to epsilon without a larger one, so that sums of them
alone are left out."""

LEAST_TOLERANCE = 1e-9
"""Least effect of the lattice on epsilon that is aimed at: rounding is as large."""

ENOUGH = 3e-6
"""Effect on epsilon, relative to max(epsilon, 1), for which a lattice may have the
second number of `Resolution.max_points`, which may be larger than the first."""

MAX_FACTOR = 700.0
"""Log of the largest factor that turns tilted masses into masses. Beyond it the upper
bound on delta is one, and that on epsilon inf."""

REACH, KEPT = 5.0, 64
"""A view for delta serves epsilons up to half as large again, and up to which its
factors change by e^`REACH`: rounding grows by as much. The last `KEPT` views are kept.
Affect speed and width only."""

MAX_LABELS = 1 << 23
"""Most lattice points that the losses of one step may span."""

Groups = Sequence[tuple[pair_lib.PairBounds, int]]
"""Pairs (bounds on a step's dominating pair, number of such steps)."""


@dataclasses.dataclass(frozen=True)
class Resolution:
  """The resolution of a lattice."""

  # Wanted effect of the lattice on epsilon; the spacing follows.
  tolerance: float = 2e-5
  share: float = 1e-6  # Wanted effect as a share of epsilon, where that is less.
  # Largest lattice for the wanted effect, and for an effect of `ENOUGH`. Where they
  # bind, bounds widen and stay true.
  max_points: tuple[int, int] = (1 << 20, 1 << 22)


FINE = Resolution(1e-9, max_points=(1 << 19, 1 << 19))
"""The resolution for compositions that have no better method."""


def _infinite(groups: Groups, side: str, sign: int) -> float:
  """Bounds P(infinite total loss) of `side` pairs: above (`sign` 1) or below (-1)."""
  return infinite_mass.composed(
      ((getattr(bounds, side).p_inf, count) for bounds, count in groups), sign)


class Lattice:
  """Composes dominating pairs on a lattice of losses."""

  def __init__(self, groups: Groups,
               resolution: Resolution = Resolution(),
               pilot: Groups | None = None):
    # `pilot` bounds the same steps with fewer atoms; None is `groups`. The tilt, the
    # window and the floor of the losses are chosen from it, in less time. Bounds are
    # valid for any choice of these three.
    self.groups = groups
    self.pilot = groups if pilot is None else pilot
    self.resolution = resolution
    self.steps = sum(count for _, count in groups)
    self._views: list[_View] = []  # Those that gave the last deltas.

  @functools.cached_property
  def p_inf(self) -> tuple[float, float]:
    """Bounds (lower, upper) on the probability of an infinite loss."""
    return _infinite(self.groups, 'lower', -1), _infinite(self.groups, 'upper', 1)

  def epsilon(self, delta: float) -> Bounds:
    """Returns bounds on the least epsilon >= 0 at `delta` > 0."""
    p_low, p_high = self.p_inf
    if delta < p_low:
      return Bounds(math.inf, math.inf, math.inf)
    if delta >= 1 or self._empty:  # Epsilon is zero, or inf if delta < the true p_inf.
      return Bounds(0.0, 0.0, math.inf if delta <= p_high else 0.0)
    # About log of the delta of finite losses. It only guides the choice of tilts.
    log_delta = math.log(max(delta - p_high, delta * 1e-3, 5e-324))
    def reached(c: float, log_mass: float) -> float:
      """Returns the epsilon at which Chernoff's bound at tilt c is exp(log_delta)."""
      return (log_mass + float(_numerics.log_kernel(c)) - log_delta) / c
    near = self._tilt(reached, -math.inf)[1]
    # Values of `bulk`, the largest small loss, to try near a rough epsilon; with -inf
    # nothing is left out.
    bulks = [share * near / self.steps or -math.inf for share in BULK_SHARES
             ] if 0 < near < math.inf else [-math.inf]
    for bulk in bulks:
      # Outcomes left out have total losses of at most steps * bulk: results hold above.
      tilt, bound = self._tilt(reached, bulk)
      if bulk > 0 and not self.steps * bulk < bound < math.inf:
        continue
      view = _View(self, tilt, bound, bulk)
      most, least = infinite_mass.without(delta, self.p_inf)
      upper = view.upper_epsilon(least) if delta > p_high else math.inf
      lower = min(view.lower_epsilon(most), upper)
      if bulk < 0 or lower > self.steps * bulk:
        break
    return Bounds(lower, 0.5 * (lower + upper), upper)

  def delta(self, epsilon: float) -> Bounds:
    """Returns bounds on the least delta at `epsilon` >= 0."""
    p_low, p_high = self.p_inf
    if self._empty or epsilon > self.top:
      return Bounds(p_low, p_high, p_high)
    for view in self._views:
      if view.near <= epsilon <= view.end:
        return self._delta_by(view, epsilon)
    bulk = BULK_SHARES[0] * epsilon / self.steps or -math.inf
    def reached(c: float, log_mass: float) -> float:
      """Returns log of Chernoff's bound on delta at tilt c."""
      return log_mass - c * epsilon + float(_numerics.log_kernel(c))
    tilt, bound = self._tilt(reached, bulk)
    if bound < -MAX_EXPONENT:
      # The pilot's upper pairs bound the steps too: delta is at most the mass of their
      # infinite losses, plus e^-600 for finite ones, with room for rounding 1e-250.
      most = max(p_high, _infinite(self.pilot, 'upper', 1))
      upper = infinite_mass.beside(0.0, 1e-250, (p_low, most))[1]
      return Bounds(p_low, p_high, upper)
    view = _View(self, tilt, epsilon, bulk,
                 min(epsilon + REACH / (tilt + 1), 1.5 * epsilon))
    self._views = [view, *self._views[:KEPT - 1]]
    return self._delta_by(view, epsilon)

  def _delta_by(self, view: _View, epsilon: float) -> Bounds:
    """Returns bounds on delta by a view that serves `epsilon`."""
    lower, upper = infinite_mass.beside(
        view.lower_delta(epsilon), view.upper_delta(epsilon), self.p_inf)
    return Bounds(lower, 0.5 * (lower + upper), upper)

  @property
  def _empty(self) -> bool:
    """Returns whether some step's upper pair has no finite loss at all."""
    return any(not np.any(bounds.upper.p > 0) for bounds, _ in self.groups)

  @functools.cached_property
  def top(self) -> float:
    """An upper bound on the largest finite total loss."""
    return math.fsum(
        count * (float(np.max(bounds.upper.loss[bounds.upper.p > 0])) +
                 2 * pair_lib.LOSS_ROUNDOFF) for bounds, count in self.groups)

  def log_mgf(self, order: float, bulk: float = -math.inf) -> float:
    """Estimates log M(order) without outcomes whose losses are all <= `bulk`.

    M(order) is E_P[e^(order loss)] of the pilot's finite total loss; -inf if none is
    left.
    """
    # M is A - B: A is the product of the steps' M, B that of their small losses' M.
    # `small` is log B, `ratio` is log(A / B).
    small, ratio = 0.0, 0.0
    for bounds, count in self.pilot:
      pair = bounds.upper
      exponent = _numerics.log_mass(pair.p) + order * pair.loss
      low, high = ((pair.p > 0) & side for side in (
          pair.loss <= bulk, pair.loss > bulk))
      if not np.any(low):  # No outcome has small losses only: none is left out.
        return sum(
            n * float(_numerics.log_sum(
                _numerics.log_mass(b.upper.p) + order * b.upper.loss))
            for b, n in self.pilot)
      base = float(_numerics.log_sum(exponent[low]))
      small += count * base
      if np.any(high):
        ratio += count * float(np.logaddexp(
            0.0, _numerics.log_sum(exponent[high]) - base))
    if ratio <= 0:
      return -math.inf
    return small + ratio + math.log(-math.expm1(-ratio))

  def _tilt(self, objective: Callable[[float, float], float], bulk: float
            ) -> tuple[float, float]:
    """Returns the tilt with the least `objective(tilt, its log_mgf)`, and the value."""
    def finite(x):  # The search subtracts values.
      """Returns `objective` at tilt e^x, clipped to finite values."""
      value = objective(math.exp(x), self.log_mgf(math.exp(x), bulk))
      return min(max(value, -1e300), 1e300)

    result = optimize.minimize_scalar(
        finite, bounds=tuple(map(math.log, TILT_RANGE)), method='bounded',
        options={'xatol': 1e-2})
    value = float(result.fun)
    return math.exp(result.x), (
        value if abs(value) < 1e300 else math.copysign(math.inf, value))


class _View:
  """Bounds of a composition at one tilt of all lattice masses, near one epsilon.

  Outcomes in which every step's loss is at most `bulk` are left out. Bounds on delta
  hold from `near` to `end`, which is finite; for bounds on epsilon `end` is inf.
  """

  def __init__(self, lattice: Lattice, tilt: float, near: float, bulk: float,
               end: float = math.inf):
    self.near, self.end = near, end
    wanted = lattice.resolution
    window = Window.around(
        lattice.log_mgf, tilt, steps=lattice.steps, max_points=wanted.max_points,
        effects=(max(min(wanted.tolerance, wanted.share * near), LEAST_TOLERANCE),
                 ENOUGH * max(near, 1.0)))
    # Triples (bounds on a step's pair, its least loss on the lattice, steps).
    groups = [(bounds, _floor(pilot.upper, tilt, lattice.steps), count) for
              (bounds, count), (pilot, _) in zip(lattice.groups, lattice.pilot)]
    width = max(window.width, *((np.max(bounds.upper.loss) - floor) / MAX_LABELS
                                for bounds, floor, _ in groups))
    window = dataclasses.replace(
        window, width=width, start=round(window.start * window.width / width))
    upper = TiltedSum(
        [(*pair_lib.split_to_grid(bounds.upper, width, floor), count)
         for bounds, floor, count in groups], window, tilt, bulk)
    # Only losses from about epsilon on matter: factors of smaller ones may overflow.
    self._near = min(near, upper.losses[-1])
    margin = REACH / (tilt + 1)  # The best tests for delta are close to epsilon.
    left = max(self._near - (MAX_EXPONENT / (tilt + 1) if end == math.inf else margin),
               lattice.steps * bulk)
    first, last = np.searchsorted(upper.losses, [left, end + margin])
    self._range = slice(int(first), int(last) + 1)
    self._keep_raised(upper)
    self._power = self._log_level = np.zeros(0)
    if all(np.any(bounds.lower.p > 0) for bounds, _ in lattice.groups):
      labels = [(*pair_lib.rounded_to_grid(bounds.lower, width, floor), count)
                for bounds, floor, count in groups]
      self._keep_tests(*(
          TiltedSum([(first, (p, q)[side], count) for first, p, q, count in labels],
                    window, tilt + side, bulk) for side in (0, 1)))

  def _keep_raised(self, upper: TiltedSum) -> None:
    """Stores losses, the upper pair's masses at and above each, and their errors."""
    # P-masses, and Q-masses times exp(_near), as computed. `_excess` bounds the errors
    # of P-masses from rounding and wrap-around.
    log_factor = upper.log_factor(self._near) + upper.slack
    self._too_large = log_factor > MAX_FACTOR
    scale = 0.0 if self._too_large else math.exp(log_factor)
    self._losses = upper.losses[self._range].copy()
    self._p, self._q = (scale * upper.suffix(self._near, shift)[self._range]
                        for shift in (0, 1))
    self._excess = scale * upper.error(self._near)[self._range]

  def _keep_tests(self, p: TiltedSum, q: TiltedSum) -> None:
    """Stores lower bounds on P-masses, and logs of upper bounds on Q-masses, of tests.

    Each test is that the loss is at least one of `_losses`.
    """
    near = self._near
    # Lower bounds may be capped, and -inf is a lower bound.
    with np.errstate(over='ignore'):
      power = np.minimum((p.suffix(near, 0) - p.error(near)) * math.exp(
          min(p.log_factor(near), MAX_FACTOR) - p.slack), 1.0)
    level = q.suffix(near, 0) + q.error(near)
    self._power = power[self._range].copy()
    self._log_level = _numerics.log_mass(level[self._range]) + (
        q.log_factor(near) + q.slack)

  def upper_epsilon(self, delta: float) -> float:
    """Returns an epsilon >= 0 at which finite losses give at most `delta`, or inf."""
    if self._too_large:
      return math.inf
    p, q, x = self._p, self._q, self._losses
    # At epsilon = x[r] the atom r itself contributes nothing.
    at_losses = p - np.exp(np.minimum(x - self._near, 700.0)) * q + self._excess
    passing = np.flatnonzero(at_losses <= delta)
    if passing.size == 0:
      return math.inf
    r = int(passing[0])
    if r == 0:
      return max(float(x[0]), 0.0)
    # Between x[r-1] and x[r] delta is p[r] - e^(epsilon - near) q[r], and its error,
    # which falls with the loss: that at x[r-1] covers all epsilon up to x[r].
    room = p[r] + self._excess[r - 1] - delta
    if q[r] <= 0 or room <= 0:
      return max(float(x[r]), 0.0)
    epsilon = self._near + math.log(room / q[r])
    return max(min(max(epsilon, float(x[r - 1])), float(x[r])), 0.0)

  def upper_delta(self, epsilon: float) -> float:
    """Returns an upper bound on the upper pair's delta, from its finite losses."""
    if self._too_large:
      return 1.0
    r = int(np.searchsorted(self._losses, epsilon))
    if r == self._losses.size:
      return float(self._excess[-1])
    gain = self._p[r] - math.exp(epsilon - self._near) * self._q[r]
    return float(gain + self._excess[max(r - 1, 0)])

  def lower_epsilon(self, delta: float) -> float:
    """Returns a lower bound >= 0 on epsilon at `delta`."""
    power, log_level = self._power, self._log_level
    useful = (power > delta) & np.isfinite(log_level)
    if not np.any(useful):
      return 0.0
    return max(float(np.max(np.log(power[useful] - delta) - log_level[useful])), 0.0)

  def lower_delta(self, epsilon: float) -> float:
    """Returns the delta of the best threshold test at `epsilon`: a lower bound."""
    gain = self._power - np.exp(np.minimum(epsilon + self._log_level, 700.0))
    return max(float(np.max(gain, initial=0.0)), 0.0)


def _floor(pair: pair_lib.DominatingPair, tilt: float, steps: int) -> float:
  """Returns a loss with hardly any tilted mass below it; the lattice begins there."""
  _, weight = tilted_masses(pair.p, pair.loss, tilt)
  order = np.argsort(pair.loss)
  first = int(np.searchsorted(np.cumsum(weight[order]), 1e-17 / steps))
  return float(pair.loss[order[min(first, order.size - 1)]])
