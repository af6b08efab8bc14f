"""Groups of rows, whatever the steps: the power curve of a run, applied repeatedly.

The power curve R(b), the largest P(S) of a set with Q(S) <= b, is the least e^x b +
delta(x) over x. For k rows, P(S) <= R_k(Q(S)) with R_k = R(R(...R)), k times. Values of
delta at finitely many x bound R from above and, as delta is convex in e^x, from below,
each time by a minimum of lines. Epsilon is the log of the largest (R_k(b) - delta) / b,
which is at a kink of R_k.

Source: Dong, Roth and Su, "Gaussian Differential Privacy" (2022), Theorem 2.14.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Callable

import numpy as np

from tfcactus import _numerics
from tfcactus.accounting.bounds import Bounds, Method
from tfcactus.pairs.dominating_pair import lower_hull

FIRST = 16
"""Number of first lines up to an epsilon of the scale, and from there to twice it."""

LARGEST = 650.0
"""Largest epsilon at which delta is computed: e^epsilon is a float."""

LEAST_LEVEL = 1e-290
"""Smaller levels b are not looked at: they would lose digits, or be zero."""

FINER = 4.0
"""Ratio of the distances of lines from one round to the next."""

ROUNDS = 6
"""Most rounds of refinement by default."""

MOST_KINKS = 300
"""Kinks examined at once."""

LEAST_SCALE = 1e-3
"""Least scale of the lines for delta. Affects speed and width only."""

FALLS = 0.9
"""If delta falls by a smaller factor over `FIRST` lines, no larger epsilon is tried."""

TINY = 1e-280
"""If delta is no larger at the largest epsilon, no larger epsilon is tried."""

APART = 1e-3
"""Least distance of epsilons of two lines, over the distance wanted."""

MOST_LINES = 250
"""Lines beyond which no more are added. Affects speed and width only."""

GOOD = 1e-6
"""Relative width of bounds that need no further round."""

ROUNDOFF = 16 * _numerics.EPS
"""Bound on the relative error of a line's value and of a kink's place."""


@dataclasses.dataclass(frozen=True)
class Lines:
  """A bound on a power curve: the least of 1 and of the lines slope b + height."""

  slope: np.ndarray  # Shape (lines,), increasing.
  height: np.ndarray  # Shape (lines,), decreasing; convex in `slope`.

  @classmethod
  def of(cls, slope: np.ndarray, height: np.ndarray) -> Lines:
    """Returns the lines that matter, of lines in any order."""
    order = np.lexsort((height, slope))
    slope, first = np.unique(slope[order], return_index=True)
    height = np.minimum.accumulate(height[order][first])
    keep = lower_hull(slope, height)
    return cls(slope[keep], height[keep])

  @functools.cached_property
  def kinks(self) -> np.ndarray:
    """The levels, decreasing, at which the next line takes over; shape (lines - 1,)."""
    return -np.diff(self.height) / np.diff(self.slope)

  def index(self, level: np.ndarray) -> np.ndarray:
    """Returns the number of the line that is least at each level."""
    # At level 0 it is the last one, also if kinks are too small for a float.
    return np.where(level > 0, np.searchsorted(-self.kinks, -level), self.kinks.size)

  def __call__(self, level: np.ndarray) -> np.ndarray:
    """Returns the bound at each level in [0, 1]."""
    line = self.index(level)
    return np.minimum(self.slope[line] * level + self.height[line], 1.0)

  def preimages(self, value: np.ndarray) -> np.ndarray:
    """Returns the positive levels at which the bound is a value, at most one each."""
    # A first line of slope zero, as lower bounds have, is the bound at many levels. The
    # least of them is a kink.
    rises = (self.slope[0] > 0) | (value < self.height[0])
    value = value[(value > self.height[-1]) & (value <= 1) & rises]
    at_kinks = self.slope[:-1] * self.kinks + self.height[:-1]
    line = np.searchsorted(-at_kinks, -value)
    return (value - self.height[line]) / self.slope[line]

  def kinks_of_power(self, rows: int) -> np.ndarray:
    """Returns kinks above `LEAST_LEVEL` of the bound applied `rows` times, and level 1.

    Shape (n,), increasing.
    """
    kinks = np.append(self.kinks, self.preimages(np.ones(1)))
    kinks = np.append(kinks[(kinks > LEAST_LEVEL) & (kinks < 1)], 1.0)
    # Those of one application, then the levels from which 1, 2, ... applications lead
    # to them.
    rounds = [kinks]
    for _ in range(rows - 1):
      level = self.preimages(rounds[-1])
      rounds.append(level[(level > LEAST_LEVEL) & (level <= 1)])
    return np.unique(np.concatenate(rounds))

  def best(self, rows: int, gain: Callable[[np.ndarray, np.ndarray], np.ndarray]
           ) -> tuple[float, float]:
    """Returns (b, R_k(b)) at the kink b of largest gain(b, R_k(b)), for k = `rows`."""
    # As b grows, the gain has to rise and then fall, as (R_k(b) - delta) / b and R_k(b)
    # minus a multiple of b do, since R_k is concave. So the best of all kinks lies
    # between the neighbours of the best of a choice of kinks.
    kinks = self.kinks_of_power(rows)
    while True:
      places = np.unique(np.linspace(0, kinks.size - 1, MOST_KINKS).astype(np.int64))
      value = self.power(kinks[places], rows)
      best = int(np.argmax(gain(kinks[places], value)))
      if places.size == kinks.size:
        return float(kinks[best]), float(value[best])
      kinks = kinks[places[max(best - 1, 0)]:
                    places[min(best + 1, places.size - 1)] + 1]

  def power(self, level: np.ndarray, rows: int) -> np.ndarray:
    """Returns the bound applied `rows` times, R_k(level) for k = `rows`."""
    for _ in range(rows):
      level = self(level)
    return level


@dataclasses.dataclass(frozen=True)
class Repeated:
  """The largest cost of a person with several rows, given the account of one row.

  A mechanism whose cost for several rows is known may cost less than the lower bounds.
  """

  one: Method  # The whole run's account for one row.
  rows: int  # Number of rows.
  p_inf: float  # Lower bound on the mass of infinite losses for one row.
  rounds: int = ROUNDS  # Most rounds of refinement; affects speed and width only.

  def epsilon(self, delta: float) -> Bounds:
    """Returns bounds on the least epsilon >= 0 at `delta` in (0, 1)."""
    share = math.nextafter(delta / self.rows, 0.0)  # Zero if delta is near it.
    scale = self.one.epsilon(share).upper if share > 0 else math.inf
    if scale == 0:  # R(b) <= b + delta / rows.
      return Bounds(0.0, 0.0, 0.0)

    def solve(lines: Lines, sign: int) -> tuple[float, float]:
      """Returns an epsilon, rounded up (`sign` 1) or down (-1), and the deciding b."""
      # Where R_k(b) <= delta, no smaller level matters, since R_k is concave.
      if self._near_zero(lines, sign) > delta:
        return math.inf, 0.0
      level, value = lines.best(self.rows, lambda b, r: (r - delta) / b)
      if not value > delta:
        return 0.0, level
      room = self.rows * ROUNDOFF * (1 + value / (value - delta))
      return max(math.log((value - delta) / level) + sign * room, 0.0), level

    return self._refined(scale if math.isfinite(scale) else 1.0, solve)

  def delta(self, epsilon: float) -> Bounds:
    """Returns bounds on the least delta at `epsilon` >= 0."""
    def solve(lines: Lines, sign: int) -> tuple[float, float]:
      """Returns a delta, rounded up (`sign` 1) or down (-1), and the deciding b."""
      slope = math.exp(min(epsilon, LARGEST))
      level, value = lines.best(self.rows, lambda b, r: r - slope * b)
      at_least = self._near_zero(lines, sign)  # What the levels left out give.
      if sign < 0 and epsilon > LARGEST:  # The capped slope is no lower bound.
        return at_least, level
      room = sign * self.rows * ROUNDOFF * (value + slope * level)
      return min(max(value - slope * level + room, at_least, 0.0), 1.0), level

    return self._refined(max(epsilon / self.rows, LEAST_SCALE), solve)

  def _near_zero(self, lines: Lines, sign: int) -> float:
    """Returns a bound on R_k below `LEAST_LEVEL`: upper (`sign` 1) or lower (-1)."""
    level = LEAST_LEVEL if sign > 0 else 0.0
    return float(lines.power(np.array([level]), self.rows)[0])

  def stays_below(self, epsilon: float, delta: float) -> bool:
    """Returns whether a few lines show (epsilon, delta)-DP; False proves nothing."""
    return dataclasses.replace(self, rounds=0).epsilon(delta).upper <= epsilon

  def _refined(self, scale: float, solve: Callable[[Lines, int], tuple[float, float]]
               ) -> Bounds:
    """Returns bounds by `solve`, from lines that get closer where they matter."""
    spacing = min(scale, 0.5 * LARGEST) / FIRST
    known = {x: self.one.delta(x) for x in spacing * np.arange(2 * FIRST + 1)}
    done = 0
    while True:
      x = np.array(sorted(known))
      low, high = (np.array([getattr(known[one], side) for one in x])
                   for side in ('lower', 'upper'))
      lines = Lines.of(np.exp(x), high)
      upper, level = solve(lines, 1)
      lower = min(solve(lower_lines(x, low, high, self.p_inf), -1)[0], upper)
      if not upper - lower > GOOD * min(upper, 1.0) or (
          done == self.rounds or x.size > MOST_LINES):
        return Bounds(lower, 0.5 * (lower + upper), upper)
      # The levels to which R is applied on the way from b to R_k(b).
      chain = [np.array([level])]
      for _ in range(self.rows - 1):
        chain.append(lines(chain[-1]))
      levels = np.concatenate(chain)
      levels = levels[levels < 1]
      # If the last line decides and delta still falls there, append larger epsilons;
      # else put more of them near those that decide.
      beyond = np.any(lines.index(levels) == lines.slope.size - 1)
      if beyond and x[-1] * (1 + 1 / FIRST) <= LARGEST and high[-1] > TINY and (
          high[-1] < FALLS * high[-1 - FIRST]):
        new = x[-1] * np.linspace(1, 2, FIRST + 1)[1:]
      else:
        spacing, done = spacing / FINER, done + 1
        near = np.rint(_minimisers(x, high, levels) / spacing)
        new = spacing * np.unique(np.concatenate([near - 1, near, near + 1]))
      # A new epsilon that differs in its last digits from a known one is not new.
      far = np.min(np.abs(new[:, None] - x), axis=1) > APART * spacing
      for one in new[far & (new >= 0) & (new <= LARGEST)]:
        known[one] = self.one.delta(float(one))


def _minimisers(x: np.ndarray, delta: np.ndarray, levels: np.ndarray) -> np.ndarray:
  """Returns, for each level b, roughly the epsilon at which a line is least there."""
  # That line is e^epsilon b + delta(epsilon); `delta` has the values at `x`.
  found = []
  for level in levels:
    value = np.log(np.exp(x) * level + delta + 1e-300)
    i = int(np.argmin(value))
    move = 0.0
    if 0 < i < x.size - 1:  # To the vertex of the parabola through three points.
      left, right = x[i] - x[i - 1], x[i + 1] - x[i]
      fall, rise = (value[i - 1] - value[i]) / left, (value[i + 1] - value[i]) / right
      move = 0.5 * (fall * right - rise * left) / max(fall + rise, 1e-300)
      move = min(max(move, -left), right)
    found.append(x[i] + move)
  return np.array(found)


def lower_lines(x: np.ndarray, low: np.ndarray, high: np.ndarray, p_inf: float
                ) -> Lines:
  """Returns lower bounds on a power curve, given bounds on delta at increasing `x`."""
  # delta is a convex, decreasing function H of a = e^x with H(0) = 1, so that H lies
  # above each of its chords, extended to either side.
  a = np.append(0.0, np.exp(x))
  # Values e^x before rounding are between these. Chords of close points are extended
  # far, so that the rounding counts.
  least, most = a * (1 - ROUNDOFF), a * (1 + ROUNDOFF)
  # `low` must not be below p_inf, or the chords from it would miss where H gets there.
  low, high = np.append(1.0, np.maximum(low, p_inf)), np.append(1.0, high)
  # Slopes of a convex function increase. So `right` bounds H's slope to the right of
  # each point from below, `left` its slope to the left from above.
  width = np.maximum(least[1:] - most[:-1], 1e-300)
  right = np.maximum.accumulate(np.append(-1.0, (low[1:] - high[:-1]) / width))
  left = np.append(np.minimum((high[1:] - low[:-1]) / (most[1:] - least[:-1]), 0.0),
                   0.0)
  left = np.minimum.accumulate(left[::-1])[::-1]
  gap = right[:-1] - left[1:]
  with np.errstate(divide='ignore', invalid='ignore'):
    cross = (np.diff(low) + right[:-1] * a[:-1] - left[1:] * a[1:]) / gap
  cross = np.clip(np.where(gap < 0, cross, a[:-1]), a[:-1], a[1:])
  value = np.minimum(low[:-1] + right[:-1] * (cross - least[:-1]),
                     low[1:] + left[1:] * (cross - least[1:]))
  value = np.maximum(value - ROUNDOFF * low[:-1], p_inf)
  # Beyond the last point H falls no faster than before it, and to p_inf at most.
  last = a[-1] + (low[-1] - p_inf) / max(-right[-1], 1e-300)
  return Lines.of(np.concatenate([a, cross, [min(last, 1e300)]]),
                  np.concatenate([low, value, [p_inf]]))
