"""Composition on a lattice of losses: rigorous bounds for any discrete pairs.

The phi function of each step's privacy loss is evaluated at all points of a
vertical line Re s = c by one FFT of exponentially tilted masses, raised to the
number of steps, and transformed back. The tilt puts the precision where
epsilon is: the result keeps its relative accuracy at any delta.

- Upper: each atom is split between its two lattice neighbours so that both its
  P- and Q-mass are kept, which raises the profile by second order only.
- Lower: each atom is given an unbiased random lattice label (post-processing);
  every threshold on the sum of labels is a test, and every test is a bound.
- Wrap-around is bounded by Chernoff's inequality at the tilt, rounding by the
  norm of the transform.

Source: Zhu, Dong and Wang (AISTATS 2022), sections 4.2-4.3, for the phi
function; the two-sided bounds are this library's.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Sequence

import numpy as np
from scipy import fft
from scipy import optimize

from tfcactus.privacy import pair as pair_lib

Group = tuple  # (PairBounds, count)

WIDTH_TOLERANCE = 2e-6
"""Wanted effect of the lattice on epsilon; the spacing follows from it."""

MAX_POINTS = 1 << 20
"""Largest lattice; where it binds, the bounds widen and stay true."""

MIN_POINTS = 1 << 12

LOG_TAIL = 34.0
"""Minus the log of the tilted mass that may fall outside the lattice."""

FFT_ROUNDOFF = 8 * np.finfo(np.float64).eps
"""Relative error of an FFT coefficient per level of the transform."""

MAX_EXPONENT = 600.0
"""Exponents beyond this are left out before they overflow."""

TILT_RANGE = (1e-4, 1e5)
"""Tilts that are searched."""


@dataclasses.dataclass(frozen=True)
class Bounds:
  """A number with what is known of it: lower <= truth <= upper."""

  lower: float
  estimate: float
  upper: float


@dataclasses.dataclass(frozen=True)
class Composition:
  """The composition of independent groups of steps, in one direction.

  Attributes:
    groups: Pairs (bounds on one step's dominating pair, number of steps).
  """

  groups: Sequence[Group]

  @functools.cached_property
  def _steps(self) -> int:
    return sum(count for _, count in self.groups)

  @functools.cached_property
  def p_inf(self) -> tuple[float, float]:
    """(lower, upper) probability of an infinite loss."""
    logs = [[count * math.log1p(-pair.p_inf) for pair, count in side]
            for side in (self._side('lower'), self._side('upper'))]
    lower, upper = (-math.expm1(math.fsum(log)) for log in logs)
    return lower, upper

  def _side(self, name: str) -> list[tuple[pair_lib.DominatingPair, int]]:
    return [(getattr(bounds, name), count) for bounds, count in self.groups]

  def log_mgf(self, order: float) -> float:
    """log E_P[exp(order * loss)] of the upper pairs' finite losses, summed."""
    total = 0.0
    for pair, count in self._side('upper'):
      exponent = order * pair.loss
      peak = float(np.max(exponent))
      total += count * (peak + math.log(
          float(np.dot(pair.p, np.exp(exponent - peak)))))
    return total

  def epsilon(self, delta: float) -> Bounds:
    """The least epsilon at which the composition is (epsilon, delta)-DP."""
    p_low, p_high = self.p_inf
    if delta <= p_low:
      return Bounds(math.inf, math.inf, math.inf)
    tilt, start = self._tilt(
        lambda c: (self.log_mgf(c) + _log_kernel(c) - math.log(
            max(delta - p_high, delta * 1e-3))) / c)
    view = _View(self, tilt, start)
    upper = view.upper_epsilon(delta - p_high) if delta > p_high else math.inf
    lower = min(view.lower_epsilon(delta - p_low), upper)
    return Bounds(lower, _middle(lower, upper), upper)

  def delta(self, epsilon: float) -> Bounds:
    """The least delta at which the composition is (epsilon, delta)-DP."""
    p_low, p_high = self.p_inf
    tilt, _ = self._tilt(
        lambda c: self.log_mgf(c) - c * epsilon + _log_kernel(c))
    view = _View(self, tilt, epsilon)
    upper = min(p_high + view.upper_delta(epsilon), 1.0)
    lower = min(p_low + view.lower_delta(epsilon), upper)
    return Bounds(lower, 0.5 * (lower + upper), upper)

  @staticmethod
  def _tilt(objective) -> tuple[float, float]:
    """Minimises an upper bound over the tilt; returns (tilt, bound)."""
    result = optimize.minimize_scalar(
        lambda x: objective(math.exp(x)),
        bounds=tuple(map(math.log, TILT_RANGE)), method='bounded',
        options={'xatol': 1e-3})
    return math.exp(result.x), float(result.fun)


class _View:
  """A composition seen at one tilt, near one epsilon."""

  def __init__(self, composition: Composition, tilt: float, near: float):
    window = _Window.around(composition, tilt)
    width = window.width
    raised, label_p, label_q = [], [], []
    for bounds, count in composition.groups:
      raised.append((*pair_lib.split_to_grid(bounds.upper, width), count))
      first, p, q = pair_lib.rounded_to_grid(bounds.lower, width)
      label_p.append((first, p, count))
      label_q.append((first, q, count))
    self._upper = _TiltedSum(raised, window, tilt)
    self._lower_p = _TiltedSum(label_p, window, tilt)
    self._lower_q = _TiltedSum(label_q, window, tilt + 1)
    # Only losses near epsilon matter, and only there is nothing too large.
    self._near = min(near, self._upper.losses[-1])
    left = self._near - MAX_EXPONENT / (tilt + 1)
    self._range = slice(int(np.searchsorted(self._upper.losses, left)), None)
    self._losses = self._upper.losses[self._range]

  def _raised(self, shift: int) -> np.ndarray:
    return self._upper.suffix(self._near, shift)[self._range]

  @functools.cached_property
  def _excess(self) -> np.ndarray:
    """Bound on what rounding and wrap-around take from the upper delta."""
    kernel = math.exp(_log_kernel(self._upper.tilt))
    return kernel * self._upper.outside(self._near)[self._range] + (
        self._upper.roundoff(self._near)[self._range])

  def upper_epsilon(self, delta: float) -> float:
    """An epsilon >= 0 at which the upper pair's delta is at most `delta`."""
    head, tail, x = self._raised(0), self._raised(1), self._losses
    # At epsilon = x[r] the atom r itself gives nothing.
    at = head - np.exp(np.minimum(x - self._near, 700.0)) * tail + self._excess
    passing = np.flatnonzero(at <= delta)
    if passing.size == 0:
      return math.inf
    r = int(passing[0])
    if r == 0:
      return max(float(x[0]), 0.0)
    # Between x[r-1] and x[r] delta is linear in e^epsilon.
    room = head[r] + self._excess[r - 1] - delta
    if tail[r] <= 0 or room <= 0:
      return max(float(x[r]), 0.0)
    epsilon = self._near + math.log(room / tail[r])
    return max(min(max(epsilon, float(x[r - 1])), float(x[r])), 0.0)

  def upper_delta(self, epsilon: float) -> float:
    """The upper pair's delta at `epsilon`, from finite losses."""
    r = int(np.searchsorted(self._losses, epsilon))
    if r == self._losses.size:
      return float(self._excess[-1])
    gain = self._raised(0)[r] - math.exp(
        epsilon - self._near) * self._raised(1)[r]
    return float(gain + self._excess[max(r - 1, 0)])

  @functools.cached_property
  def _tests(self) -> tuple[np.ndarray, np.ndarray]:
    """P-mass (from below) and Q-mass (from above) of each threshold test."""
    p, q = self._lower_p, self._lower_q
    power = p.suffix(self._near, 0) - p.outside(self._near) - (
        p.roundoff(self._near))
    level = q.suffix(self._near, 0) + q.outside(self._near) + (
        q.roundoff(self._near))
    return power[self._range], level[self._range]

  def lower_epsilon(self, delta: float) -> float:
    """An epsilon >= 0 that no smaller one can undercut at `delta`."""
    power, level = self._tests
    useful = (power > delta) & (level > 0)
    if not np.any(useful):
      return 0.0
    return max(float(np.max(
        np.log(power[useful] - delta) - np.log(level[useful]))), 0.0)

  def lower_delta(self, epsilon: float) -> float:
    """The delta of the best test at `epsilon`."""
    power, level = self._tests
    with np.errstate(over='ignore'):
      return max(float(np.max(power - np.exp(epsilon) * level)), 0.0)


@dataclasses.dataclass(frozen=True)
class _Window:
  """A stretch of the lattice that holds nearly all of the tilted total loss.

  Attributes:
    start: Index of the first lattice point.
    points: Number of points.
    width: Lattice spacing.
    exponents: Exponents at which Chernoff's inequality is good for the tail
      above and for the tail below.
  """

  start: int
  points: int
  width: float
  exponents: tuple[float, float]

  @classmethod
  def around(cls, composition: Composition, tilt: float) -> _Window:
    """Chooses the window for a composition at a tilt."""
    mgf = composition.log_mgf
    base = mgf(tilt)
    step = 1e-4 * max(tilt, 1e-2)
    mean = (mgf(tilt + step) - mgf(tilt - step)) / (2 * step)
    (above, u_above), (below, u_below) = (
        min(((mgf(tilt + sign * u) - base - sign * u * mean + LOG_TAIL) / u, u)
            for u in np.geomspace(1e-2, 1e3, 51)) for sign in (1, -1))
    # Random labels widen the distribution a little.
    above, below = 1.05 * above, 1.05 * below
    reach = above + below + 1e-9 * (1 + abs(mean))
    steps = sum(count for _, count in composition.groups)
    width = math.sqrt(8 * WIDTH_TOLERANCE / (steps * (tilt + 1)))
    points = 1 << math.ceil(math.log2(max(reach / width, MIN_POINTS)))
    points = min(points, MAX_POINTS)
    width = reach / points
    return cls(round((mean - below) / width), points, width,
               (u_above, u_below))


class _TiltedSum:
  """Masses of a sum of lattice variables under an exponential tilt.

  The mass at loss x is exp(log_mgf - tilt * x) times the tilted mass; all
  results are given with that factor applied.
  """

  def __init__(self, groups: Sequence[tuple], window: _Window, tilt: float):
    self.tilt = tilt
    self._groups = groups
    self._window = window
    width, points = window.width, window.points
    self._log_mgf = 0.0
    log_phi = np.zeros(points // 2 + 1, dtype=np.complex128)
    steps = 0
    for first, mass, count in groups:
      x = (first + np.arange(mass.size)) * width
      log_m, weight = _tilt(mass, x, tilt)
      self._log_mgf += count * log_m
      with np.errstate(divide='ignore'):
        log_phi += count * np.log(fft.rfft(_fold(weight, first, points)))
      steps += count
    mass = fft.irfft(np.exp(log_phi), points)
    self._mass = np.roll(mass, -(window.start % points))
    self.losses = (window.start + np.arange(points)) * width
    levels = FFT_ROUNDOFF * math.log2(points)
    norm = np.mean(np.exp((1 - 1 / steps) * log_phi.real))
    self._entry_error = levels * (
        steps * float(norm) + float(np.linalg.norm(mass)))

  def _factor(self, near: float) -> float:
    return math.exp(self._log_mgf - self.tilt * near)

  def suffix(self, near: float, shift: int) -> np.ndarray:
    """Sums of mass(x) * exp(-shift * (x - near)) over x >= losses[r]."""
    decay = np.exp(np.minimum(
        -(self.tilt + shift) * (self.losses - near), MAX_EXPONENT + 50))
    terms = np.maximum(self._mass, 0.0) * decay
    return self._factor(near) * np.cumsum(terms[::-1])[::-1]

  def _decay(self, near: float) -> np.ndarray:
    return self._factor(near) * np.exp(np.minimum(
        -self.tilt * (self.losses - near), MAX_EXPONENT + 50))

  def roundoff(self, near: float) -> np.ndarray:
    """Bound on the rounding error of `suffix` at each loss."""
    entries = min(1 / -math.expm1(-self.tilt * self._window.width),
                  self._window.points)
    return self._decay(near) * self._entry_error * entries

  def outside(self, near: float) -> np.ndarray:
    """Bound on the effect of mass outside the window on sums from each loss."""
    return self._decay(near) * self._outside_mass

  @functools.cached_property
  def _outside_mass(self) -> float:
    """Chernoff's bound on the tilted mass outside the window."""
    edges = (self.losses[-1] + self._window.width, -self.losses[0])
    total = 0.0
    for sign, edge, u in zip((1, -1), edges, self._window.exponents):
      log_mass = self._mgf(self.tilt + sign * u) - self._log_mgf - u * edge
      total += math.exp(min(log_mass, 0.0))
    return total

  def _mgf(self, order: float) -> float:
    total = 0.0
    for first, mass, count in self._groups:
      x = (first + np.arange(mass.size)) * self._window.width
      total += count * _tilt(mass, x, order)[0]
    return total


def _tilt(mass: np.ndarray, x: np.ndarray, order: float
          ) -> tuple[float, np.ndarray]:
  """log sum(mass e^{order x}) and the normalised summands."""
  with np.errstate(divide='ignore'):
    exponent = np.log(mass) + order * x
  peak = float(np.max(exponent))
  weight = np.exp(exponent - peak)
  total = float(np.sum(weight))
  return peak + math.log(total), weight / total


def _fold(weight: np.ndarray, first: int, points: int) -> np.ndarray:
  """Wraps masses at first, first + 1, ... around a cycle."""
  offset = first % points
  padded = np.zeros(-(-(offset + weight.size) // points) * points)
  padded[offset:offset + weight.size] = weight
  return padded.reshape(-1, points).sum(axis=0)


def _log_kernel(tilt: float) -> float:
  """log of max over x of exp(-tilt x) (1 - e^-x)."""
  return tilt * math.log(tilt) - (1 + tilt) * math.log1p(tilt)


def _middle(lower: float, upper: float) -> float:
  return upper if math.isinf(upper) else 0.5 * (lower + upper)
