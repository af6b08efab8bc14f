"""The privacy loss of a record in one of several Gaussian sums, drawn at random.

A record enters one of T sums, each released with Gaussian noise, with equal
probabilities. The ratio of the outputs' densities with the record and without is the
mean L of T independent lognormals, X = exp(mu y - mu^2 / 2) each, so that every moment
of the loss, log L or -log L, is a moment of L: `mean_lognormal` has them.

That the pair dominates whatever the sums depend on of earlier outputs: given those, a
sum's own ratio has mean one and is in convex order at most X; put X in its place from
the last sum to the first. Both directions' profiles are the mean of a convex function
of L.

Source: Feldman and Shenfeld, "Privacy amplification by random allocation" (2025), and
Chua et al., "Balls-and-bins sampling for DP-SGD" (2024), for the mechanism and the
pair; the moments are this library's.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Iterator
from typing import TypeVar

import numpy as np

from tfcactus.accounting.composition.losses import base
from tfcactus.accounting.composition.losses.mean_lognormal import Line
from tfcactus.accounting.composition.losses.mean_lognormal import MeanLognormal

MAX_EXACT = 24.0
"""Orders times mu up to which moments are computed; beyond, terms are below the least
number, and a bound by convexity serves. Knob of speed."""

MAX_DEGREE = 400.0
"""The same without mu: what a moment costs grows with the square. Knob of speed."""

MAX_ERROR = 1e-3
"""Relative error of a moment beyond which no phi is built on it. Knob of speed."""

_Order = TypeVar('_Order', float, np.ndarray)


@dataclasses.dataclass(frozen=True)
class AllocatedGaussian(base.ReleaseLoss):
  """The loss of a record that enters one of several Gaussian sums.

  Attributes:
    mu: Sensitivity over standard deviation of each sum.
    bins: How many sums there are.
    direction: 'add' or 'remove'.
  """

  moments_are_proved = False

  mu: float
  bins: int
  direction: str

  @property
  def _law(self) -> MeanLognormal:
    return MeanLognormal(self.mu, self.bins)

  @property
  def max_order(self) -> float:
    # Those of order q - 1 = c are of degree c + 5 or so; of negative q, of 4.
    most = max(min(MAX_EXACT, 37 - 6 * self.mu), 0.1) / self.mu
    return min(most, MAX_DEGREE) if self.direction == 'remove' else min(
        most * math.sqrt(self.bins), 1e3)

  def _power(self, order: _Order) -> _Order:
    """q with M(order) = E[L^q]."""
    return order + 1 if self.direction == 'remove' else -order

  def cumulants(self, orders: np.ndarray) -> np.ndarray:
    q, sign = self._power(orders), 1 if self.direction == 'remove' else -1
    bound, near = self._law.log_bound(q), 1e-6 * np.maximum(np.abs(q), 1.0)
    step = self._law.log_bound(q + near) - bound
    found = np.stack([bound, sign * step / near,
                      np.full_like(q, self.mu**2 / self.bins)])
    known = np.flatnonzero(orders <= self.max_order)
    if known.size:
      exact = self._law.log_moments(q[known]) * np.array([[1.0], [sign], [1.0]])
      # Bounds are this close; what is beyond is a loss of all digits.
      good = np.isfinite(exact).all(axis=0) & (
          exact[0] <= bound[known] + 1e-6) & (
              exact[0] >= bound[known] - 1 - 0.51 * self.mu**2 * np.abs(q[known]))
      found[:, known[good]] = exact[:, good]
    return found

  def log_moment(self, order: float) -> float:
    return _log_moment(self._law, self._power(order),
                       order <= self.max_order)

  def log_decay(self, order: float, t: np.ndarray) -> np.ndarray:
    # E[L^q] with all y moved by i a / mu has L turned by exp(i a), and a density
    # exp(bins (a / mu)^2 / 2) as large; the best a is t mu^2 / bins.
    return -0.5 * (self.mu * np.asarray(t, dtype=np.float64))**2 / self.bins

  def tilted(self, order: float, t_max: float, tolerance: float) -> TiltedAllocated:
    del tolerance
    if order > self.max_order:
      raise base.IntractableError
    q = self._power(order)
    lines, start = [], 0.0
    while start <= t_max:
      end = self._law.reach(q, start)
      lines.append((end, _line(self._law, q, start, min(end, t_max))))
      start = end
    return TiltedAllocated(lines, self, self.log_moment(order))


class TiltedAllocated(base.TiltedLoss):
  """The same under a tilt.

  Attributes:
    log_mgf: log M(order).
  """

  cut_off = True

  def __init__(self, lines: list[tuple[float, Line]], law: AllocatedGaussian,
               log_bound: float):
    """Initialises it.

    Args:
      lines: Pairs (the largest t it is for, line), by t.
      law: The loss.
      log_bound: An upper bound on log M(order).
    """
    self._lines = lines
    self._law = law
    line, zero = lines[0][1], np.zeros(1)
    self.log_mgf = float(line.log_integral(1.0, 1)[0].real)
    self._log_bound = log_bound
    # phi is over this: it has to be about right, for what is cut off below is cut off
    # where phi cannot be.
    if not line.log_error_at(zero, log_bound)[0] - self.log_mgf < math.log(MAX_ERROR):
      raise base.IntractableError

  @property
  def nodes(self) -> int:
    return max(line.u.size for _, line in self._lines)

  def log_phi(self, spacing: float, count: int) -> np.ndarray:
    found, t = np.empty(count, np.complex128), spacing * np.arange(count)
    for part, line in self._parts(t):
      found[part] = line.log_integral(
          spacing, part.stop - part.start, spacing * part.start) - self.log_mgf
    found = np.where(np.isfinite(found), found, 0.0)
    # What is larger than phi can be is moved to where it may be: no further away.
    found.real = np.minimum(found.real, self._decay(t))
    return found.conj() if self._law.direction == 'add' else found

  def error(self, t: np.ndarray) -> np.ndarray:
    found = np.empty(t.size)
    for part, line in self._parts(t):
      found[part] = line.log_error_at(t[part], self._log_bound) - self.log_mgf
    return np.exp(np.minimum(found, math.log(2) + self._decay(t)))

  def _decay(self, t: np.ndarray) -> np.ndarray:
    return self._law.log_decay(0.0, t)

  def _parts(self, t: np.ndarray) -> Iterator[tuple[slice, Line]]:
    """Slices of increasing `t`, with the line for each."""
    start = 0
    for index, (end, line) in enumerate(self._lines):
      last = index == len(self._lines) - 1
      stop = t.size if last else int(np.searchsorted(t, end))
      if stop > start:
        yield slice(start, stop), line
      start = max(start, stop)


@functools.lru_cache(maxsize=64)
def _line(law: MeanLognormal, q: float, start: float, end: float) -> Line:
  return law.line(q, start, end)


@functools.lru_cache(maxsize=256)
def _log_moment(law: MeanLognormal, q: float, exact: bool) -> float:
  """An upper bound on log E[L^q], by convexity if no better one is known."""
  bound = float(law.log_bound(q))
  if not exact:
    return bound
  try:
    found = _line(law, q, 0.0, 0.0).log_moment()
  except base.IntractableError:
    return bound
  return min(found, bound) if math.isfinite(found) else bound
