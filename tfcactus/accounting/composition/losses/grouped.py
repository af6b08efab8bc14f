"""The privacy loss of a person with several rows, in a sampled Gaussian release.

If j rows are in the sample with probability w_j, and each shifts the mean by m standard
deviations, the likelihood ratio at an output y is u(y) = sum_j w_j exp(j m y - j^2 m^2
/ 2). All bounds of `quadrature` hold for u in z = k m y, with k rows in all.

Source: Ganesh, "Tight Group-Level DP Guarantees for DP-SGD with Sampling via Mixture of
Gaussians Mechanisms" (2024), for the pair.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from scipy import optimize, special

from tfcactus import _numerics
from tfcactus.accounting.bounds import IntractableError
from tfcactus.accounting.composition.losses import quadrature
from tfcactus.accounting.composition.losses.base import ROUNDOFF
from tfcactus.noise import gaussian
from tfcactus.pairs import groups, overlap
from tfcactus.pairs.dominating_pair import PairBounds

BLOCK = 1 << 18
"""Terms computed at once, so that they stay in the cache; any number is correct."""

LARGEST_LEVEL = 35.0
"""Standard deviations below the mean down to which the output is sought whose loss is
epsilon. For outputs below, a single release has no closed form."""

MAX_DOUBLINGS = 60
"""Most widenings of an interval around a level. Affects speed only."""

MAX_TERMS = 1 << 22
"""Terms of a moment beyond which a bound by convexity stands in. Affects speed only."""

TAIL_ROUNDOFF = 1e-10
"""Bound on the relative error of a sum of probabilities of numbers of rows."""

TOP_ROUNDS = 40
"""Most rounds of the search for the end of quadrature. Affects speed only."""


@dataclasses.dataclass(frozen=True)
class GroupedGaussian(quadrature.SampledGaussian):
  """The loss of a person's rows in a sampled Gaussian release.

  `mu` is the shift of all rows together, over standard deviation, and `sampling_prob`
  the probability that at least one row is in the sample.
  """

  log_weights: tuple[float, ...]  # log P(j rows are in the sample), j = 0, 1, ...

  @classmethod
  def of(cls, shift: float, log_weights: np.ndarray, direction: str) -> GroupedGaussian:
    """Returns the loss of rows that shift the mean by `shift` deviations each."""
    return cls((log_weights.size - 1) * shift, -math.expm1(float(log_weights[0])),
               direction, tuple(map(float, log_weights)))

  def truncated(self, most: float, last: int | None = None
                ) -> tuple[GroupedGaussian, float]:
    """Returns the loss of a person of fewer rows, and a bound on P's change in mass.

    Samples with more rows than the number kept count as samples with that number. It is
    the least >= 1 for which such samples have a mass of at most `most`, but never above
    `last`.
    """
    beyond = np.append(np.cumsum(np.exp(self.log_weights)[::-1])[::-1][1:], 0.0)
    beyond *= 1 + TAIL_ROUNDOFF
    kept = max(int(np.argmax(beyond <= most)), 1)
    kept = kept if last is None else min(kept, last)
    log_weights = np.array(self.log_weights[:kept + 1])
    log_weights[-1] = np.logaddexp.reduce(self.log_weights[kept:])
    fewer = dataclasses.replace(
        self, mu=self._shift * kept, log_weights=tuple(log_weights))
    return fewer, float(beyond[kept])

  def pair_bounds(self, cells: int) -> PairBounds:
    """Returns bounds on the dominating pair from at most about `cells` cells of output.

    If one row's shift is beyond `gaussian.LARGEST_MU`, the noise is not counted.
    """
    last = int(gaussian.LARGEST_MU / self._shift)
    if not last:
      return overlap.no_noise(self.sampling_prob)
    part, beyond = self.truncated(groups.NOTHING, last)
    cells = max(cells // (1 + len(part.log_weights) // 8), 64)
    bounds = gaussian.grouped_pair(
        self._shift, np.exp(part.log_weights), beyond, cells, part.log_u)
    return bounds if self.direction == 'remove' else bounds.reversed()

  def delta(self, epsilon: float) -> tuple[float, float]:
    """Returns delta of one release at `epsilon` >= 0, and a bound on its error.

    Raises IntractableError if the best test is out of reach (`LARGEST_LEVEL`).
    """
    # Outputs above (removal) or below (addition) the one whose loss is epsilon are the
    # best test; `rows` and `other` are its masses with and without the rows, the one
    # under Q times e^epsilon, which may be no float. A `level` off by `width` loses at
    # most `slip`.
    remove = self.direction == 'remove'
    sign = 1 if remove else -1
    if sign * epsilon <= self.log_weights[0] + ROUNDOFF:  # No loss is above epsilon.
      return 0.0, ROUNDOFF * (1 - self.log_weights[0])
    epsilon = min(epsilon, self.zero_from)
    level, width, step = self._level(sign * epsilon)
    j, log_w = self._rows
    size = np.append(0.0, j * self._shift)
    log_w = np.append(self.log_weights[0], log_w)
    x = sign * (size - level)
    room = ROUNDOFF * (1 + np.where(log_w > -np.inf, np.abs(log_w), 0.0) + j.size +
                       (size + abs(level)) * (1 + np.abs(x)))
    log_w = log_w + special.log_ndtr(x)
    log_other = float(special.log_ndtr(-sign * level))
    rows = np.exp(log_w if remove else log_w + epsilon)
    other = math.exp(log_other + epsilon if remove else log_other)
    value = float(np.sum(rows)) - other if remove else other - float(np.sum(rows))
    error = float(np.sum(rows * (room + ROUNDOFF * epsilon))) + (
        other * ROUNDOFF * (1 + level * level + epsilon))
    slip = width * -math.expm1(-step) * math.exp(
        step - 0.5 * max(abs(level) - width, 0.0)**2 + (epsilon if remove else 0.0))
    return max(value, 0.0), error + slip

  def _level(self, target: float) -> tuple[float, float, float]:
    """Returns (y, width, rise): log u(y) is near `target`, at an output y."""
    # An interval of that width around y holds the exact place. On this interval log u
    # rises by at most `rise`.
    log_u = lambda y: float(self._ratios(np.array([y]))[0][0])
    low, high = -LARGEST_LEVEL, 1.0
    if log_u(low) > target:
      raise IntractableError
    while log_u(high) < target:
      high *= 2
    level = optimize.brentq(lambda y: log_u(y) - target, low, high, xtol=1e-14)
    half = 1e-13 * (1 + abs(level))
    for _ in range(MAX_DOUBLINGS):
      found, _, moduli = self._ratios(np.array([level - half, level + half]))
      room = ROUNDOFF * (1 + moduli)
      if found[0] + room[0] <= target <= found[1] - room[1]:
        return level, 2 * half, float(found[1] - found[0] + np.sum(room))
      half *= 2
    raise IntractableError

  @functools.cached_property
  def _rows(self) -> tuple[np.ndarray, np.ndarray]:
    """Numbers j >= 1 of rows that can be in the sample, and log w_j, shape (n, 1)."""
    log_w = np.array(self.log_weights)
    j = np.flatnonzero(log_w > -np.inf)
    j = j[j > 0]
    return j[:, None].astype(np.float64), log_w[j][:, None]

  @property
  def _shift(self) -> float:
    """Shift of one row, over standard deviation."""
    return self.mu / (len(self.log_weights) - 1)

  @property
  def largest(self) -> float:
    """The largest loss: finite for addition, unless some row is always in."""
    return math.inf if self.direction == 'remove' else -self.log_weights[0]

  @property
  def max_order(self) -> float:
    return 5e3 if self.direction == 'remove' else 1e8

  @property
  def _bend(self) -> float:
    # Near z = 0, arg u is about the mean share of the rows in the sample, times strip.
    j, log_w = self._rows
    return float(np.sum(j * np.exp(log_w))) / (len(self.log_weights) - 1) * self.mu**2

  def _ratios(self, y: np.ndarray) -> np.ndarray:
    """Returns log u, its derivative and its `moduli` at outputs `y`, shape (3, n).

    Rounding errors of log u are relative to `moduli`.
    """
    block = max(BLOCK // len(self.log_weights), 1)
    return np.concatenate([self._block_ratios(y[start:start + block])
                           for start in range(0, y.size, block)], axis=1)

  def _block_ratios(self, y: np.ndarray) -> np.ndarray:
    """Returns `_ratios` of one block of outputs `y`, shape (3, n)."""
    j, log_w = self._rows
    size = j * self._shift
    exponent = size * (y - 0.5 * size)
    log_terms = log_w + exponent
    peak = np.maximum(np.max(log_terms, axis=0), self.log_weights[0])
    terms = np.exp(log_terms - peak)
    total = np.sum(terms, axis=0) + np.exp(self.log_weights[0] - peak)
    # The mean of e^x - 1 keeps the digits of log u near zero.
    change = np.exp(log_w) * np.expm1(np.minimum(exponent, 1.0))
    large = exponent > 1.0
    change[large] = (np.exp(np.minimum(log_terms, 600.0)) - np.exp(log_w))[large]
    excess = np.sum(change, axis=0)
    near = np.abs(excess) < 0.5
    log_u = np.where(near, np.log1p(np.where(near, excess, 0.0)), peak + np.log(total))
    # w_j, e^x - 1 and the sum have relative errors; x has that of its products.
    terms /= total
    off = np.where(near, 2 * np.abs(change), terms) * (j.size + 4 + np.abs(log_w))
    off += terms * size * (np.abs(y) + size)
    moduli = np.abs(log_u) + np.sum(off, axis=0)
    return np.stack([log_u, np.sum(terms * size, axis=0), moduli])

  def log_u(self, y: np.ndarray) -> np.ndarray:
    return self._ratios(y.ravel())[0].reshape(y.shape)

  def _rounded(self, y: np.ndarray, log_u: np.ndarray) -> np.ndarray:
    del log_u
    return self._ratios(y)[2]

  def _turned(self, y: np.ndarray, strip: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # The term of j rows turns by the angle strip j / k.
    j, log_w = self._rows
    shape = (-1,) + (1,) * y.ndim
    size = (j * self._shift).reshape(shape)
    log_u = self.log_u(y)
    share = np.exp(log_w.reshape(shape) + size * (y - 0.5 * size) - log_u)
    angle = strip * (j[:, 0] / (len(self.log_weights) - 1))
    rest = np.exp(self.log_weights[0] - log_u)
    cosine = np.tensordot(np.cos(angle), share, (-1, 0)) + rest
    sine = np.tensordot(np.sin(angle), share, (-1, 0))
    return (log_u + 0.5 * np.log(cosine * cosine + sine * sine),
            np.maximum(np.arctan2(sine, cosine), 0.0))

  def _top(self, order: float) -> float:
    # Beyond `top` + REACH the log of the integrand has a slope of -REACH at most. The
    # slope of log u increases: this holds for a smaller `lower` if it does for `top`.
    top = self.mu * (1 + order)
    for _ in range(TOP_ROUNDS):
      lower = (1 + order) * self._slope(top + quadrature.REACH)
      if lower > top - 1:
        break
      top = lower
    return top

  def _slope(self, y: float) -> float:
    return float(self._ratios(np.array([y]))[1][0])

  def cumulants(self, orders: np.ndarray) -> np.ndarray:
    # Bounds by convexity, replaced by quadrature where that takes few terms.
    found = self._convex(orders)
    for index, order in enumerate(orders):
      y, _ = self._nodes(order, order, 0.0, 1e-16)
      if y.size * len(self.log_weights) <= MAX_TERMS:
        found[:, index] = super().cumulants(orders[index:index + 1])[:, 0]
    return found

  def _convex(self, orders: np.ndarray) -> np.ndarray:
    """Returns upper bounds on log M and their two derivatives, shape (3, orders)."""
    # M(c) is at most the sum of w_j e^(c (c + 1) size_j), the moment with j rows in
    # (Jensen's inequality).
    j, log_w = self._rows
    size = 0.5 * (j * self._shift)**2
    exponent = log_w + size * orders * (orders + 1)
    exponent = np.concatenate(
        [np.full_like(exponent[:1], self.log_weights[0]), exponent])
    bound = _numerics.log_sum(exponent.T)
    share = np.exp(exponent - bound)[1:]
    slope = np.sum(share * size, axis=0)
    bend = np.sum(share * (size - slope)**2, axis=0) + slope**2 * (
        1 - np.sum(share, axis=0))
    turn = 2 * orders + 1
    return np.stack([bound, slope * turn, 2 * slope + bend * turn**2])
