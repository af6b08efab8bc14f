"""The privacy loss of random allocation (balls-in-bins) over Gaussian sums.

A record enters one of T sums. X = exp(mu y - mu^2 / 2), y standard normal, is the
likelihood ratio of a record in one sum, and the mean L of T independent X that of the
epoch. The loss is log L (removed) or -log L (added). This pair dominates even if a sum
depends on outputs of earlier ones (docs/soundness.md, "Who is protected").

Source: Feldman and Shenfeld (2025) and Chua et al. (2024) for mechanism and pair.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import functools
import math
from typing import TypeVar

import numpy as np

from tfcactus.accounting.bounds import IntractableError
from tfcactus.accounting.composition.losses import base
from tfcactus.accounting.composition.losses.mean_lognormal import Line, MeanLognormal

MAX_EXACT = 24.0
"""Largest order times mu at which moments are computed for removal. Beyond it terms
underflow, and a bound by convexity is used. Affects speed and width only."""

MAX_DEGREE = 400.0
"""Largest order with a moment: the cost grows with its square. Affects speed only."""

MAX_ERROR = 1e-3
"""Relative error of a moment beyond which no phi is built on it. Affects speed only."""

_Order = TypeVar('_Order', float, np.ndarray)


@dataclasses.dataclass(frozen=True)
class AllocatedGaussian(base.ReleaseLoss):
  """The loss of a record that enters one of several Gaussian sums."""

  moments_are_proved = False

  mu: float  # Sensitivity over standard deviation of each sum.
  bins: int  # Number of sums.
  direction: str  # 'add' or 'remove'.

  @property
  def _law(self) -> MeanLognormal:
    """The law of L, the mean of `bins` lognormals."""
    return MeanLognormal(self.mu, self.bins)

  @property
  def max_order(self) -> float:
    """The largest order whose moment is computed by quadrature; others use a bound."""
    # The cost of a moment of L grows with the square of the degree that
    # `mean_lognormal` takes for it: about order + 5 for removal, at most 4 for
    # addition. The limits are empirical.
    most = max(min(MAX_EXACT, 37 - 6 * self.mu), 0.1) / self.mu
    return min(most, MAX_DEGREE) if self.direction == 'remove' else min(
        most * math.sqrt(self.bins), 1e3)

  def _power(self, order: _Order) -> _Order:
    """Returns q with M(order) = E[L^q]."""
    return order + 1 if self.direction == 'remove' else -order

  def cumulants(self, orders: np.ndarray) -> np.ndarray:
    # Bounds by convexity, replaced by estimates where these have kept their digits.
    # Both only guide the choice of tilts: bounds on delta use `log_moment`.
    q, sign = self._power(orders), 1 if self.direction == 'remove' else -1
    bound, move = self._law.log_bound(q), 1e-6 * np.maximum(np.abs(q), 1.0)
    rise = self._law.log_bound(q + move) - bound
    found = np.stack([bound, sign * rise / move,
                      np.full_like(q, self.mu**2 / self.bins)])
    known = np.flatnonzero(orders <= self.max_order)
    if known.size:
      exact = self._law.log_moments(q[known]) * np.array([[1.0], [sign], [1.0]])
      # Logs of moments are this close to the bounds: for q < 0 within mu^2 |q| / 2.
      # Other values have lost all digits.
      good = np.isfinite(exact).all(axis=0) & (
          exact[0] <= bound[known] + 1e-6) & (
              exact[0] >= bound[known] - 1 - 0.51 * self.mu**2 * np.abs(q[known]))
      found[:, known[good]] = exact[:, good]
    return found

  def log_moment(self, order: float) -> float:
    return _log_moment(self._law, self._power(order), exact=order <= self.max_order)

  def log_decay(self, order: float, t: np.ndarray) -> np.ndarray:
    """Returns bounds as `Loss.log_decay`, which hold for any order."""
    # Moving all y by i a / mu turns L by exp(i a) and makes the density
    # exp(bins (a / mu)^2 / 2) times as large; the best a is t mu^2 / bins.
    return -0.5 * (self.mu * np.asarray(t, dtype=np.float64))**2 / self.bins

  def tilted(self, order: float, t_max: float, tolerance: float) -> TiltedAllocated:
    del tolerance
    if order > self.max_order:
      raise IntractableError
    q = self._power(order)
    lines, start = [], 0.0  # Each line, a ray of t, serves a range of Im q.
    while start <= t_max:
      end = self._law.reach(q, start)
      lines.append((end, _line(self._law, q, start, min(end, t_max))))
      start = end
    return TiltedAllocated(lines, self, self.log_moment(order))


class TiltedAllocated(base.TiltedLoss):
  """The loss of an allocated record under a tilt."""

  cut_off = True

  def __init__(self, lines: list[tuple[float, Line]], law: AllocatedGaussian,
               log_bound: float):
    """Takes pairs (largest t, line), by increasing t, and a bound on log M(order).

    Raises IntractableError if the relative error of M(order) may exceed MAX_ERROR.
    """
    self._lines = lines
    self._law = law
    line, zero = lines[0][1], np.zeros(1)
    self.log_mgf = float(line.log_integral(1.0, 1)[0].real)
    self._log_bound = log_bound
    # phi is a ratio over M(order), which has to be about right for clipping below.
    if not line.log_error_at(zero, log_bound)[0] - self.log_mgf < math.log(MAX_ERROR):
      raise IntractableError

  @property
  def nodes(self) -> int:
    return max(line.u.size for _, line in self._lines)

  def log_phi(self, spacing: float, count: int) -> np.ndarray:
    """Returns log phi, with |phi| clipped to its bound; see `TiltedLoss.log_phi`."""
    found, t = np.empty(count, np.complex128), spacing * np.arange(count)
    for part, line in self._parts(t):
      found[part] = line.log_integral(
          spacing, part.stop - part.start, spacing * part.start) - self.log_mgf
    # A log that is not finite becomes zero. All logs are clipped to the bound on
    # log |phi|, which moves no value away from the true one.
    found = np.where(np.isfinite(found), found, 0.0)
    found.real = np.minimum(found.real, self._decay(t))
    # A line has E[L^(q + i t)]. Addition needs E[L^(q - i t)], its conjugate.
    return found.conj() if self._law.direction == 'add' else found

  def error(self, t: np.ndarray) -> np.ndarray:
    found = np.empty(t.size)
    for part, line in self._parts(t):
      found[part] = line.log_error_at(t[part], self._log_bound) - self.log_mgf
    # Neither phi nor its clipped value exceeds the bound on |phi|.
    return np.exp(np.minimum(found, math.log(2) + self._decay(t)))

  def _decay(self, t: np.ndarray) -> np.ndarray:
    """Returns upper bounds on log |phi| at `t`; every tilt has the same, hence 0.0."""
    return self._law.log_decay(0.0, t)

  def _parts(self, t: np.ndarray) -> Iterator[tuple[slice, Line]]:
    """Yields slices that cover the increasing `t`, each with the line to use there."""
    start = 0
    for index, (end, line) in enumerate(self._lines):
      last = index == len(self._lines) - 1
      stop = t.size if last else int(np.searchsorted(t, end))
      if stop > start:
        yield slice(start, stop), line
      start = max(start, stop)


@functools.lru_cache(maxsize=64)
def _line(law: MeanLognormal, q: float, start: float, end: float) -> Line:
  """Returns the cached `law.line`, the nodes for E[L^(q + i t)], t in [start, end]."""
  return law.line(q, start, end)


@functools.lru_cache(maxsize=256)
def _log_moment(law: MeanLognormal, q: float, exact: bool) -> float:
  """Returns an upper bound on log E[L^q]: quadrature if `exact`, or convexity in q."""
  bound = float(law.log_bound(q))
  if not exact:
    return bound
  try:
    found = _line(law, q, 0.0, 0.0).log_moment()
  except IntractableError:
    return bound
  return min(found, bound) if math.isfinite(found) else bound
