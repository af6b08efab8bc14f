"""The phi function of discrete losses, certified to stay small after smoothing.

A discrete loss's phi does not decay: it comes back near one again and again. One small
non-negative variable with a smooth density, added to the total loss, makes it decay and
raises epsilon by no more than the variable's range. It remains to show that phi is
small between the last node and the point where the smoothing takes over; values on a
grid show it, because phi is Lipschitz.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math

import numpy as np

from tfcactus import _numerics
from tfcactus.accounting.bounds import IntractableError
from tfcactus.accounting.composition.losses import base
from tfcactus.pairs import dominating_pair as pair_lib

SUBSET = 96
"""Number of atoms of a subset with which |phi| is bounded. All other atoms add at most
their weight."""

MAX_GRID = 2_000_000
"""Most grid points of a certificate. Any value is sound."""

MAX_DOUBTS = 400
"""Most grid points that are examined again with all atoms."""


@dataclasses.dataclass(frozen=True, eq=False)
class AtomicLoss(base.Loss):
  """The finite losses of a pair."""

  pair: pair_lib.DominatingPair

  @property
  def max_order(self) -> float:
    return 1e4

  @functools.cached_property
  def _log_p(self) -> np.ndarray:
    """log of the P-masses, shape (atoms,)."""
    return _numerics.log_mass(self.pair.p)

  def cumulants(self, orders: np.ndarray) -> np.ndarray:
    return np.array([self._moments(order) for order in orders]).T

  def _moments(self, order: float) -> tuple[float, float, float]:
    """Returns log M(order), and the tilted mean and variance of the loss."""
    log_mgf, weight = self._tilt(order)
    mean = float(weight @ self.pair.loss)
    return log_mgf, mean, float(weight @ (self.pair.loss - mean)**2)

  def _tilt(self, order: float) -> tuple[float, np.ndarray]:
    """Returns log M(order) and the tilted masses, shape (atoms,)."""
    exponent = self._log_p + order * self.pair.loss
    log_mgf = float(_numerics.log_sum(exponent))
    return log_mgf, np.exp(exponent - log_mgf)

  def tilted(self, order: float, t_max: float, tolerance: float) -> TiltedAtoms:
    del t_max, tolerance
    return TiltedAtoms(order, *self._tilt(order), self.pair.loss)

  def log_decay(self, order: float, t: np.ndarray) -> np.ndarray:
    """Returns the largest log |phi| at each `t` and later ones; not a proved bound."""
    _, weight = self._tilt(order)
    keep = weight > 1e-12
    phase = np.multiply.outer(t, self.pair.loss[keep])
    size = np.log(np.abs(np.exp(1j * phase) @ weight[keep]) + 1e-300)
    return np.maximum.accumulate(size[::-1])[::-1]


@dataclasses.dataclass(frozen=True, eq=False)
class TiltedAtoms(base.TiltedSum):
  """Atoms under a tilt; `weight` (tilted masses) and `loss` have shape (atoms,)."""

  order: float
  log_mgf: float
  weight: np.ndarray
  loss: np.ndarray

  def error(self, t: np.ndarray) -> np.ndarray:
    """Returns bounds on the error of phi at `t`, shape (n,). They are rounding."""
    return pair_lib.MASS_ROUNDOFF + base.phi_error(
        self.loss, self.weight, self.order, 1.0 + abs(self.log_mgf), t)

  def certify(self, start: float, end: float, level: float) -> None:
    """Shows that |phi| <= level on [start, end], or raises IntractableError."""
    # Small t use all atoms, larger t a subset: |phi| <= 1 - W + |S|, where W is the
    # subset's weight and S the sum of weight e^(i t loss) over it.
    everything = _Atoms(self.weight, self.loss)
    few = everything.subset()
    seen = float(everything.gap(start, 0.0, 1)[0])
    while start < end:
      gap = float(np.min(few.gap(start, 3 * start / 40, 41)))  # On a coarse grid.
      if gap < 3 * (1 - level):
        stop = min(2 * start, end)
        seen = everything.certify(start, stop, everything, level, seen)
      else:
        # At a gap this large the phases have spread out, and |phi| is rarely large.
        stop = end if gap > 0.3 * few.total else min(4 * start, end)
        few.certify(start, stop, everything, level, gap)
      start = stop


class _Atoms:
  """Some of a distribution's atoms, centred; `total` is the sum of their weights."""

  def __init__(self, weight: np.ndarray, loss: np.ndarray):
    self._weight = weight
    self.total = float(np.sum(weight))
    self._loss = loss - float(weight @ loss) / self.total
    self._slope = max(float(weight @ np.abs(self._loss)), 1e-300)

  def subset(self) -> _Atoms:
    """Returns the heaviest atom of each of `SUBSET` intervals of equal weight."""
    order = np.argsort(self._loss)
    stretch = np.cumsum(self._weight[order]) / self.total * SUBSET
    _, first = np.unique(stretch.astype(np.int64), return_index=True)
    chosen = [order[part[np.argmax(self._weight[order[part]])]]
              for part in np.split(np.arange(order.size), first[1:])]
    return _Atoms(self._weight[chosen], self._loss[chosen])

  def gap(self, start: float, spacing: float, points: int) -> np.ndarray:
    """Returns W - |sum weight e^(i t loss)| at t = start + spacing * (0..points-1)."""
    return self.total - np.abs(_numerics.phi_table(
        self._loss, self._weight, spacing, points, start))

  def certify(self, start: float, end: float, everything: _Atoms,
              level: float, expected: float) -> float:
    """Shows |phi| <= level on [start, end], and returns the least gap on its grid."""
    # Grid points where the gap is too small are examined with all atoms, `everything`.
    # `expected`, a guess of the least gap, sets the spacing.
    need = 1 - level
    # The gap changes by at most `_slope` per unit of t.
    margin = expected - need
    if margin <= 0:
      raise IntractableError
    spacing = margin / self._slope
    points = int((end - start) / spacing) + 2
    if points > MAX_GRID:
      raise IntractableError
    gap = self.gap(start, spacing, points)
    doubtful = np.flatnonzero(gap - 0.5 * self._slope * spacing < need)
    if doubtful.size > MAX_DOUBTS:
      raise IntractableError
    for index in doubtful:
      everything.march(start + spacing * (index - 0.5),
                       start + spacing * (index + 0.5), need)
    return float(np.min(gap))

  def march(self, left: float, right: float, need: float) -> None:
    """Shows gap > need on [left, right] by its slope, or raises IntractableError."""
    for _ in range(MAX_DOUBTS):
      gap = float(self.gap(left, 0.0, 1)[0]) - need
      if gap <= 0:
        raise IntractableError
      left += gap / self._slope
      if left >= right:
        return
    raise IntractableError


@dataclasses.dataclass(frozen=True)
class Smoothing(base.Loss):
  """A sum of `terms` uniforms on [0, width / terms]; |phi| falls like t^-terms."""

  width: float
  terms: int = 30

  @property
  def max_order(self) -> float:
    return math.inf

  def cumulants(self, orders: np.ndarray) -> np.ndarray:
    return np.stack([self._log_m(orders).real,
                     np.full_like(orders, 0.5 * self.width),
                     np.full_like(orders, self.width**2 / (12 * self.terms))])

  def _log_m(self, s: np.ndarray) -> np.ndarray:
    """Returns log M at real or complex `s`."""
    z = np.asarray(s) * (0.5 * self.width / self.terms)
    small = np.abs(z) < 0.1
    safe = np.where(small, 1.0, z)
    series = z * z / 6 - z**4 / 180 + z**6 / 2835
    return 0.5 * self.width * s + self.terms * np.where(
        small, series, np.log(np.sinh(safe) / safe + 0j))

  def tilted(self, order: float, t_max: float, tolerance: float) -> TiltedSmoothing:
    del t_max, tolerance  # phi has a closed form, right at all t.
    log_mgf = float(self.cumulants(np.array([order]))[0, 0])
    return TiltedSmoothing(self, order, log_mgf)

  def log_decay(self, order: float, t: np.ndarray) -> np.ndarray:
    # With scale (order + i t) = a + i b, a uniform's |phi| is a / sinh(a) times
    # |sinh(a + i b) / (a + i b)|: at most a coth(a) / b <= exp(a^2 / 2) / b.
    scale = 0.5 * self.width / self.terms
    return np.minimum(self.terms * (
        0.5 * (scale * order)**2 - np.log(np.maximum(scale * t, 1e-300))), 0.0)

  def end(self, log_need: float, order: float) -> float:
    """Returns t beyond which log |phi| is below -log_need under the tilt `order`."""
    scale = 0.5 * self.width / self.terms
    return math.exp(log_need / self.terms + 0.5 * (scale * order)**2) / scale


@dataclasses.dataclass(frozen=True)
class TiltedSmoothing(base.TiltedLoss):
  """The smoothing variable under a tilt."""

  law: Smoothing
  order: float
  log_mgf: float

  def log_phi(self, spacing: float, count: int) -> np.ndarray:
    s = self.order + 1j * spacing * np.arange(count)
    return self.law._log_m(s) - self.log_mgf

  def error(self, t: np.ndarray) -> np.ndarray:
    return base.ROUNDOFF * np.minimum(1.0, self.law.width * (t + self.order))


def certify_decay(tilted: Sequence[tuple[base.TiltedLoss, int]], start: float,
                  end: float, log_need: float) -> None:
  """Shows that |product of phi^count| <= exp(-log_need) on [start, end], or raises."""
  # One has to show it, since |phi| of the others is at most one.
  for part, count in sorted(tilted, key=lambda item: -item[1]):
    try:
      part.certify(start, end, math.exp(-log_need / count))
      return
    except IntractableError:
      continue
  raise IntractableError
