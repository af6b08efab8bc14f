"""Pairs of random allocation (balls-in-bins): a record enters one of several releases.

The likelihood ratio of T releases is the mean L of T independent copies, under Q, of
one release's. Both profiles are means of convex functions of L. Splitting a mass
between two grid points, keeping its mean, raises them; merging masses at their mean
lowers them. Sums keep this (convex) order; copies are added up by doubling.

Source: Feldman and Shenfeld, "Privacy amplification by random allocation" (2025).
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from tfcactus import _checks, _numerics
from tfcactus.pairs.dominating_pair import DominatingPair, MASS_ROUNDOFF, PairBounds

NODES = 1024
"""Number of points of a grid; widths of bounds fall with its square."""

LOG_LEFT_OUT = -64.0
"""log of the Q-mass below a grid and of the P-mass above it; both are counted."""

_LEAST, _MOST = 1e-300, 1e300
"""Ratios outside [_LEAST, _MOST] are not represented; masses below _LEAST are zero."""

UNDERFLOW = 1e-290
"""Bound on the sum of some million products of masses, each product below 1e-307."""

SCALE = 1.5
"""Standard deviations of log L within which a grid is about even."""


def allocated(bounds: PairBounds, bins: int, direction: str, nodes: int = NODES
              ) -> PairBounds:
  """Returns bounds on the pair of a record in one of `bins` releases, drawn uniformly.

  `bounds` are on one release's pair, P with the record and Q without it. In the result
  P is the distribution with the record for direction 'remove', Q for 'add'.
  """
  bins = _checks.integer('bins', bins, 1)
  if bins > 1:
    bounds = PairBounds(*(mean.pair(direction) for mean in _means(bounds, bins, nodes)))
  return bounds if direction == 'remove' else bounds.reversed()


@functools.lru_cache(maxsize=4)
def _means(bounds: PairBounds, bins: int, nodes: int) -> tuple[_Mean, _Mean]:
  """Returns (lower, upper) bounds on the mean of `bins` ratios, for both directions."""
  return (_multiple(_Mean.of(bounds.lower, False), bins, nodes),
          _multiple(_Mean.of(bounds.upper, True), bins, nodes))


@dataclasses.dataclass(frozen=True)
class _Mean:
  """The distribution under Q of a mean of ratios, or a bound on it in convex order."""

  count: int  # Number of ratios averaged.
  ratio: np.ndarray  # Shape (atoms,).
  q: np.ndarray  # Shape (atoms,), masses.
  # Contribution to the mean from ratios beyond any float, of masses near zero.
  infinite: float
  # Whether this is an upper bound, which grids may raise; else a lower bound.
  raises: bool
  # Bound on the relative error of the masses, and of merged ratios.
  roundoff: float = 0.0

  @classmethod
  def of(cls, pair: DominatingPair, raises: bool) -> _Mean:
    """Returns the distribution of P / Q under Q, an upper bound if `raises`."""
    with np.errstate(over='ignore', under='ignore'):
      ratio, q = np.exp(pair.loss), pair.q
    # Ratios or Q-masses that are hardly floats: the upper bound counts their P-mass at
    # infinity, the lower bound leaves out large ratios and small Q-masses. It raises
    # small ratios to _LEAST: only outcomes that P cannot have are at zero.
    beyond = (ratio > _MOST) | (q < _LEAST)
    small = ratio < _LEAST
    if raises:
      infinite = pair.p_inf + float(np.sum(pair.p[beyond | small]))
      ratio = np.where(beyond | small, 0.0, ratio)
    else:
      infinite = pair.p_inf
      ratio, q = np.maximum(ratio, _LEAST)[~beyond], q[~beyond]
    if pair.q_inf > 0:
      ratio, q = np.append(ratio, 0.0), np.append(q, pair.q_inf)
    # A ratio is the exponential of a loss, which is rounded.
    most = float(np.max(np.abs(pair.loss), initial=0.0))
    return cls(1, ratio, q, infinite, raises, MASS_ROUNDOFF + 4 * _numerics.EPS * most)

  def pair(self, direction: str) -> DominatingPair:
    """Returns (P, Q), which bounds H(P || Q) for 'remove', H(Q || P) for 'add'."""
    p, q = self.ratio * self.q, self.q
    # Both may be off by `roundoff`, in opposite directions: three times it is enough.
    room = (1 if self.raises else -1) * 3 * self.roundoff
    if direction == 'remove':
      p = p * (1 + room)
    else:
      q = q * (1 + room)
    seen = (p > 0) & (q > 0)
    p_inf = self.infinite * (1 + room)
    # A lower bound leaves out masses that are hardly floats, but not outcomes that P
    # cannot have.
    q_inf = float(np.sum(q[~seen if self.raises else self.ratio == 0]))
    # The total mass is one: mass that is missing is put where it counts most.
    if self.raises and direction == 'remove':
      p_inf = max(p_inf + UNDERFLOW, 1 - float(np.sum(p[seen])))
    elif self.raises:
      q_inf = max(q_inf + UNDERFLOW, 1 - float(np.sum(q[seen])))
    return DominatingPair(np.log(p[seen]) - np.log(q[seen]), p[seen], q[seen],
                          min(p_inf, 1.0), min(q_inf, 1.0))

  def plus(self, other: _Mean, nodes: int) -> _Mean:
    """Returns the mean over the ratios of two independent means, on a grid."""
    count = self.count + other.count
    share = self.count / count
    ratio = np.add.outer(self.ratio * share, other.ratio * (other.count / count))
    return _Mean(
        count, ratio.ravel(), np.multiply.outer(self.q, other.q).ravel(),
        share * self.infinite + (1 - share) * other.infinite, self.raises,
        self.roundoff + other.roundoff + 4 * _numerics.EPS).on_grid(nodes)

  def on_grid(self, nodes: int) -> _Mean:
    """Returns a bound in convex order, upper if `raises`, on about `nodes` points."""
    grid = self._grid(nodes)
    cell = np.searchsorted(grid, self.ratio, side='right') - 1
    # A sum of n terms of one sign has a relative error of at most n EPS / 2.
    most = float(np.max(np.bincount(cell, minlength=grid.size)))
    roundoff = self.roundoff + _numerics.EPS * (4 + most)
    if not self.raises:
      # Outcomes that P cannot have stay apart from those that it can.
      cell += self.ratio > 0
      q, p = (np.bincount(cell, weights, grid.size + 1)
              for weights in (self.q, self.q * self.ratio))
      return dataclasses.replace(
          self, ratio=p[q > 0] / q[q > 0], q=q[q > 0], roundoff=roundoff)
    # Mass above the last point moves to it; `infinite` takes the excess of the mean.
    above, width = self.ratio - grid[cell], np.append(np.diff(grid), np.inf)
    up = self.q * (above / width[cell])
    q = np.bincount(cell, self.q - up, grid.size)
    q[1:] += np.bincount(cell, up, grid.size)[:-1]
    beyond = cell == grid.size - 1
    return dataclasses.replace(
        self, ratio=grid, q=q, roundoff=roundoff,
        infinite=self.infinite + float(np.sum((self.q * above)[beyond])))

  def _grid(self, nodes: int) -> np.ndarray:
    """Returns zero and `nodes` points, dense where mass is; any give valid bounds."""
    # The log ratio z is arcsinh-scaled around its mean: even near it, sparse in tails.
    real = (self.ratio > 0) & (self.q > 0)
    if not np.any(real):
      return np.array([0.0, 1.0])
    z, q = np.log(self.ratio[real]), self.q[real]
    mean = float(q @ z) / float(np.sum(q))
    spread = max(float(q @ (z - mean)**2) / float(np.sum(q)), 1e-24)**0.5
    low, high = (
        mean + spread * np.sinh(_least_beyond(np.arcsinh((z - mean) / spread), sign,
                                              weights))
        for sign, weights in ((-1, q), (1, q * self.ratio[real])))
    scale = SCALE * spread
    first, last = np.arcsinh((np.array([low, high]) - mean) / scale)
    return np.append(0.0, np.exp(
        mean + scale * np.sinh(np.linspace(first, last, nodes))))


def _least_beyond(place: np.ndarray, sign: int, mass: np.ndarray) -> float:
  """Returns a place with mass <= e^LOG_LEFT_OUT above (`sign` 1) or below it (-1)."""
  low, high = float(np.min(place)), float(np.max(place))
  if not high > low:
    return low
  edges = np.linspace(low, high, 4097)
  sums = np.bincount(np.minimum((place - low) * (4096 / (high - low)), 4095).astype(
      np.int64), mass, 4096)
  if sign > 0:
    sums = sums[::-1]
  kept = int(np.searchsorted(np.cumsum(sums), math.exp(LOG_LEFT_OUT)))
  return float(edges[kept] if sign < 0 else edges[edges.size - 1 - kept])


def _multiple(mean: _Mean, bins: int, nodes: int) -> _Mean:
  """Returns the mean of `bins` independent copies of `mean`, by doubling."""
  mean = mean.on_grid(nodes)
  if bins == 1:
    return mean
  half = _multiple(mean, bins // 2, nodes)
  total = half.plus(half, nodes)
  return total.plus(mean, nodes) if bins % 2 else total
