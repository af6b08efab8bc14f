"""Bounds on delta and epsilon from phi values on the nodes of a vertical line."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math
from typing import Callable, TypeVar

import numpy as np

from tfcactus import _numerics
from tfcactus.accounting import monotone
from tfcactus.accounting.bounds import Bounds, IntractableError
from tfcactus.accounting.composition.losses import base
from tfcactus.accounting.composition.saddles import Alias

MAX_TABLES = 4
"""Most tables made in search of one epsilon. The last one is used even if it was made
far from the epsilon that it gives."""

MAX_NEWTON = 80
"""Largest number of Newton steps before the tables are given up. Affects speed only."""

MAX_DOUBLINGS = 8
"""Number of times a bound on epsilon is moved outwards. Affects speed only."""

MAX_NORMALISATION = 0.05
"""Error of the log normalisation of all steps' phi beyond which another method is
tried: clipping phi to its possible range assumes that it is about right."""

MAX_WIDTH = 1e-3
"""Largest relative width of bounds on delta that is accepted. Affects speed only."""

_Profile = TypeVar('_Profile', bound='Profile')


class Table:
  """Values of phi on `count` nodes at the tilt `order`; bounds on delta nearby.

  `tilted` holds pairs (loss under the tilt, number of steps). `log_tail` bounds log
  |phi| beyond the last node.
  """

  def __init__(self, order: float, spacing: float, count: int,
               tilted: Sequence[tuple[base.TiltedLoss, int]],
               alias: Alias, log_tail: float):
    self.order = order
    self._period = 2 * math.pi / spacing
    self._alias = alias
    self._t = spacing * np.arange(count)
    self._log_mgf = math.fsum(n * part.log_mgf for part, n in tilted)
    log_phi, slack = log_phi_of(tilted, spacing, count)
    with np.errstate(under='ignore'):
      phi = np.exp(log_phi)
    s = order + 1j * self._t
    weight = np.full(count, spacing / math.pi)
    weight[0] *= 0.5
    slope = -weight * phi / (s + 1)
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
    self._tail = math.exp(max(log_tail, -745.0)) / (math.pi * self._t[-1])

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
    return both + self._alias.bound(epsilon, self._period), both

  @property
  def spacing(self) -> float:
    """Distance of the nodes."""
    return 2 * math.pi / self._period

  @property
  def margin(self) -> float:
    """Distance below the table's epsilon within which errors are still small."""
    return margin(self.order)


def log_phi_of(tilted: Sequence[tuple[base.TiltedLoss, int]], spacing: float,
               count: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns log phi of a sum at spacing * (0..count-1), and absolute error bounds."""
  t = spacing * np.arange(count)
  log_phi, slack = np.zeros(count, np.complex128), np.zeros(count)
  for part, n in tilted:
    own = part.log_phi(spacing, count)
    log_phi += n * own
    at_zero = part.error(t[:1])
    if part.cut_off and n * float(at_zero[0]) > MAX_NORMALISATION:
      raise IntractableError
    error = part.error(t) + at_zero
    # An error e of phi moves log phi by at most log(1 + e / |phi|).
    slack += n * np.log1p(error * np.exp(-np.maximum(own.real, -600.0)))
  return log_phi, slack


@dataclasses.dataclass(frozen=True)
class Profile:
  """delta near an epsilon, as a sum over disjoint measures."""

  tables: Sequence[Table]  # One table per measure.
  # Returns an upper bound on the delta of measures without a table.
  omitted: Callable[[float], float] = lambda epsilon: 0.0

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
    """Returns the epsilon of `delta` by Newton from a guess, or IntractableError."""
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
    """Returns checked bounds on the epsilon of `delta`; `epsilon` estimates it."""
    _, slope = self._at(epsilon)
    down, up = (1e-15 * (1 + abs(epsilon)) + 1.01 * error / abs(slope)
                for error in self._errors(epsilon))
    return monotone.epsilon_bounds(
        self._delta, delta, epsilon, down, up, tries=MAX_DOUBLINGS)

  def delta_bounds(self, epsilon: float) -> Bounds:
    """Returns bounds on delta; raises IntractableError if they are too wide."""
    low, value, high = self._delta(epsilon)
    if not value > 0 or high - low > MAX_WIDTH * value:
      raise IntractableError
    return Bounds(max(low, 0.0), min(value, 1.0), min(high, 1.0))


def solved(make: Callable[[float], _Profile], delta: float, guess: float
           ) -> tuple[_Profile, float]:
  """Returns a profile, and the epsilon at which its estimate of delta is `delta`."""
  # The guess is poor if a few rare losses compete with many small ones; the last
  # profile's epsilon replaces it.
  for _ in range(MAX_TABLES):
    profile = make(guess)
    found = profile.solve(delta, guess)
    if abs(found - guess) <= min(table.margin for table in profile.tables):
      break
    guess = found
  return profile, found


def margin(order: float) -> float:
  """Returns how far below its epsilon a table's errors at tilt `order` are small."""
  return 2 / order
