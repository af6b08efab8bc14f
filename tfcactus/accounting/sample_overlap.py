"""Samples of one size: a record replaced, or zeroed, and the rest the same.

Given how the other records are drawn, two neighbours release mixtures that
share what is released without the record, at mean w:

    P = (1-q) f(x - w) + q f(x - u),    Q = (1-q) f(x - w) + q f(x - v),

where q is the probability that the record is drawn. With C = 1:

| neighbours | sample | w, u, v |
|---|---|---|
| replaced | Poisson | w = 0, u and v of norm <= 1 |
| zeroed | fixed size | u and w of norm <= 1, v = 0: another record takes the place |
| restored | fixed size | v and w of norm <= 1, u = 0 |

(Zeroed under Poisson sampling has w = v = 0: the pair of a removed record.) The
hockey-stick divergence is jointly convex, so that a pair that dominates these
for all others drawn dominates the mechanism.

**Theorem.** Let f never increase with |x|, in any dimension, and alpha >= 1.
H_alpha(P || Q) is largest

* replaced: on one line, at u = 1, v = -1;
* zeroed: on one line, at u = 1, w = -1;
* restored: at v = w, |v| = 1, the profile of a removed record.

Proof. H = integral of (q f(x-u) - c f(x-w) - alpha q f(x-v))^+ with
c = (alpha-1)(1-q) >= 0. A reflection at a hyperplane swaps points in pairs, one
on either side; let y_L, y_R be the sum of the terms that stay and r <= r' the
values of the term that moves.

1. On one line. Replaced (zeroed: with v and w interchanged): let v* be the point
   of the ray from u through w with |v* - u| = |v - u|, so |v*| <= |v|. The
   bisector of v and v* passes through u, and w lies on the side of v*. So f(x-u)
   is the same at both points of a pair, and moving v to v* brings the larger two
   of the other terms together: (g-l-r)^+ + (g-l'-r')^+ is at least
   (g-l-r')^+ + (g-l'-r)^+ for l <= l', r <= r', since s -> (g-s)^+ is convex.
2. Now v <= u on the line. Move v to -1: the bisector M of both lies below zero.
   At a point x_L below M, v is nearer than u (zeroed: 0 is), hence
   q f(x_L-u) <= alpha q f(x_L-v), and the pair's lower half gives nothing before
   the move; its upper half only gains from it.
3. Move u to 1 > u: the bisector lies above zero, and both other terms are larger
   on its lower side. The larger value of f(x-u) goes where they are smaller:
   again two sums are spread, and the convex function grows.

Restored: by convexity H is at most the larger of what it is with both other
terms at w and with both at v, and a shift of one is the worst for either: what a
removed record costs, attained at w = v. []

alpha < 1 follows from H_alpha(P||Q) = 1 - alpha + alpha H_{1/alpha}(Q||P) and
the reverse neighbours. Replacing is symmetric: the pair of u = 1, v = -1 is
attained, so that nothing smaller dominates. Zeroed: above alpha = 1 the pair of
w = -1, u = 1, below it that of a removed record reversed.

Radial tables: see `three_points`. Where no line is the worst (noise known by what
dominates each shift only: i.i.d. Laplace on a vector of bounded l1 norm, tables
that are not monotone), advanced joint convexity bounds H by the profiles h_1 and h_2 of
shifts 1 and 2: with alpha = 1 + q (a - 1) and b = alpha / a,

    H_alpha(P || Q) = q H_a(f_u || (1-b) f_w + b f_v)
                   <= q ((1-b) H_a(f_u || f_w) + b H_a(f_u || f_v)).

Source: Theorem 2 of Balle, Barthe and Gaboardi (2018) for the last; Corollary 25
of Zhu, Dong and Wang (2022) for the pair of a profile.
"""

from __future__ import annotations

import functools
import math
from typing import Sequence

import numpy as np
from scipy import special

from tfcactus import noise as noise_lib
from tfcactus.noise import three_points
from tfcactus.pairs import dominating_pair as pair_lib
from tfcactus.pairs import of_noise
from tfcactus.pairs.dominating_pair import PairBounds

CELLS = 1 << 13
"""Cells of a Gaussian mixture, at least: dense where its mass is."""

CELL_REACH = 0.5
"""Largest width of a cell times the distance of its ends from a mean, where eight
Gauss points are exact to rounding."""

NARROWEST = 1e-200
"""Width of a cell on whose ends the loss is the same to rounding."""

ROUNDOFF = 1e-14
"""Relative error of a few operations on two profiles."""

LARGEST_MU = 50.0
"""Shifts over standard deviations above this count as no noise: losses beyond
3,000 are not known to `pair.LOSS_ROUNDOFF`."""


@functools.lru_cache(maxsize=32)
def replaced(noise: noise_lib.Noise, sampling_prob: float) -> PairBounds:
  """Pairs around that of a replaced record under Poisson sampling.

  Args:
    noise: Protects the query at sensitivity one.
    sampling_prob: In (0, 1).

  Returns:
    Bounds whose `upper` dominates. The Gaussian's and those of a monotone scalar
    table are attained by a record of norm one against its opposite; of other
    noise `lower` is a record against one that contributes nothing.
  """
  if isinstance(noise, noise_lib.Gaussian):
    return _gaussian_replaced(1 / noise.noise_multiplier, sampling_prob)
  if _is_monotone_scalar(noise):
    return PairBounds.exact(_scalar_mixture(
        noise, sampling_prob, (0, noise.bins, -noise.bins)))
  near = of_noise.known_pair(noise, 1)
  if isinstance(noise, noise_lib.RadialTable):
    points = three_points.profile(noise, sampling_prob, opposite=True)
  else:
    far = of_noise.known_pair(noise, 2)
    points = mixed_profile(near.upper, far.upper, sampling_prob)
  return PairBounds(
      near.poisson(sampling_prob)[1].lower,
      pair_lib.DominatingPair.from_symmetric_profile(*points))


@functools.lru_cache(maxsize=32)
def zeroed(noise: noise_lib.Noise, sampling_prob: float) -> PairBounds:
  """Pairs around that of a zeroed record under sampling of a fixed size.

  Args:
    noise: Protects the query at sensitivity one.
    sampling_prob: The share of records in the sample, in (0, 1).

  Returns:
    Bounds whose `upper` dominates, P being with the record; the reverse
    dominates for a restored one. `lower` is a record of norm one among such as
    are its opposite, or among zeros.
  """
  if isinstance(noise, noise_lib.Gaussian):
    mu = 1 / noise.noise_multiplier
    if mu > LARGEST_MU:
      return _no_noise(sampling_prob)
    near = of_noise.gaussian_bounds(mu, CELLS)
    above = _gaussian_zeroed(mu, sampling_prob)
  else:
    near = of_noise.known_pair(noise, 1)
    above = _zeroed(noise, near, sampling_prob)
  add, _ = near.poisson(sampling_prob)
  return PairBounds(above.lower, _joined(above.upper, add.upper))


def _zeroed(noise: noise_lib.Noise, near: PairBounds, prob: float) -> PairBounds:
  """Bounds on the zeroed record's profile for alpha >= 1."""
  if _is_monotone_scalar(noise):
    return PairBounds.exact(_scalar_mixture(
        noise, prob, (0, 2 * noise.bins, noise.bins)))
  if isinstance(noise, noise_lib.RadialTable):
    points = three_points.profile(noise, prob, opposite=False)
  else:
    far = of_noise.known_pair(noise, 2)
    points = mixed_profile(far.upper, near.upper, prob)
  return PairBounds(near.poisson(prob)[1].lower,
                    pair_lib.DominatingPair.from_symmetric_profile(*points))


def mixed_profile(out: pair_lib.DominatingPair, other: pair_lib.DominatingPair,
                  sampling_prob: float) -> tuple[np.ndarray, np.ndarray]:
  """Advanced joint convexity: bounds on the profile of two mixtures.

  Args:
    out: Dominates the drawn record against its sample without it.
    other: Dominates the drawn record against the neighbour's, drawn.
    sampling_prob: The share of the drawn in both mixtures.

  Returns:
    (alpha, value), shape (points,): alpha from one upwards, and what the profile
    does not exceed there.
  """
  log_a = of_noise.profile_grid([out, other])
  values = []
  for pair in (out, other):
    value, _, error = of_noise.profile_at(pair, log_a)
    values.append(np.maximum(value, 0.0) + error)
  share = (1 - sampling_prob) * -np.expm1(-log_a)
  value = sampling_prob * (share * values[0] + (1 - share) * values[1])
  alpha = 1 + sampling_prob * np.expm1(log_a)
  return alpha, np.minimum(value * (1 + ROUNDOFF), 1.0)


def _is_monotone_scalar(noise: noise_lib.Noise) -> bool:
  return isinstance(noise, noise_lib.ScalarTable) and noise.monotone


def _scalar_mixture(table: noise_lib.ScalarTable, prob: float,
                    shifts: tuple[int, int, int]) -> pair_lib.DominatingPair:
  """The exact pair of (w, u) against (w, v), with `shifts` in cells."""
  without, one, other = of_noise.scalar_log_masses(table, shifts)
  log_out, log_in = np.log1p(-prob), np.log(prob)
  return of_noise.log_mass_pair(
      np.logaddexp(log_out + without, log_in + one),
      np.logaddexp(log_out + without, log_in + other))


def _gaussian_replaced(mu: float, prob: float) -> PairBounds:
  """w = 0, u = mu, v = -mu: the loss is odd and grows with x."""
  if mu > LARGEST_MU:
    return _no_noise(prob)
  top = of_noise.GAUSSIAN_REACH + mu
  x = _edges(-top, top, (-mu, 0.0, mu), CELLS)
  x = 0.5 * (x - x[::-1])
  p = (1 - prob) * _cells(x) + prob * _cells(x - mu)
  loss = _log_ratio(x, mu, prob)
  loss = loss - loss[::-1]
  return of_noise.from_cells(
      loss, _widths(loss), p, p[::-1],
      float(special.ndtr(-of_noise.GAUSSIAN_REACH)))


def _gaussian_zeroed(mu: float, prob: float) -> PairBounds:
  """w = 0, u = 2 mu, v = mu: the loss grows from zero at x = 1.5 mu upwards."""
  reach = of_noise.GAUSSIAN_REACH

  def mixtures(bottom, cells):
    x = _edges(bottom, 2 * mu + reach, (0.0, mu, 2 * mu), cells)
    out, other, one = (_cells(x - k * mu) for k in (0, 1, 2))
    return x, (1 - prob) * out + prob * one, (1 - prob) * out + prob * other

  x, p, q = mixtures(1.5 * mu, CELLS // 2)
  loss = _log_ratio(x, 2 * mu, prob) - _log_ratio(x, mu, prob)
  loss[0] = 0.0
  upper = of_noise.from_cells(
      loss, _widths(loss), p, q, float(special.ndtr(-reach))).upper
  _, p, q = mixtures(-reach, CELLS)
  both = (p > 0) & (q > 0)
  return PairBounds(pair_lib.DominatingPair(
      np.log(p[both]) - np.log(q[both]), p[both], q[both]), upper)


def _log_ratio(x: np.ndarray, mu: float, prob: float) -> np.ndarray:
  """log of the mixture's density over the standard normal density."""
  z = mu * x - 0.5 * mu * mu
  return np.where(
      z < 30, np.log1p(prob * np.expm1(np.minimum(z, 30.0))),
      z + np.log(prob) + np.log1p(
          (1 - prob) / prob * np.exp(-np.maximum(z, 30.0))))


def _edges(bottom: float, top: float, means: Sequence[float], cells: int
           ) -> np.ndarray:
  """Edges of cells, dense where there is mass.

  A chord over a cell of width w and mass m costs about m w^2: the best density
  of edges goes with the cube root of that of mass.
  """
  reach = max(top - min(means), max(means) - bottom)
  cells = max(cells, int(np.ceil((top - bottom) * reach / CELL_REACH)))
  x = np.linspace(bottom, top, 8 * CELLS)
  density = 1 / 8 + sum(np.exp(-(x - mean)**2 / 6) for mean in means)
  position = np.append(0.0, np.cumsum(0.5 * (density[1:] + density[:-1])))
  return np.interp(np.linspace(0, position[-1], cells + 1), position, x)


def _widths(loss: np.ndarray) -> np.ndarray:
  """Distances of losses; rounding may turn two that hardly differ around."""
  return np.maximum(np.diff(loss), NARROWEST)


def _cells(x: np.ndarray) -> np.ndarray:
  """Standard normal probabilities between neighbouring edges."""
  nodes, weights = np.polynomial.legendre.leggauss(8)
  width = np.diff(x)
  return sum(
      (0.5 * weight / math.sqrt(2 * math.pi)) * width *
      np.exp(-0.5 * (x[:-1] + 0.5 * width * (1 + node))**2)
      for node, weight in zip(nodes, weights))


def _no_noise(prob: float) -> PairBounds:
  """Bounds that hold for any noise: the drawn record is seen for certain."""
  one = np.ones(1)
  return PairBounds(
      pair_lib.DominatingPair(np.zeros(1), one, one),
      pair_lib.DominatingPair(np.zeros(1), (1 - prob) * one, (1 - prob) * one,
                              prob, prob))


def _joined(above: pair_lib.DominatingPair, below: pair_lib.DominatingPair
            ) -> pair_lib.DominatingPair:
  """The pair whose profile is the one's for alpha >= 1, the other's below.

  Both have the same profile at one, but for rounding: what the smaller lacks
  there is added at a loss of the size of the others.
  """
  up, down = above.loss > 0, below.loss < 0
  gain = float(np.sum(above.p[up] - above.q[up])) + above.p_inf
  fall = float(np.sum(below.q[down] - below.p[down])) + below.q_inf
  typical = max(float(np.sum((above.p * above.loss)[up])), 1e-12) / max(
      float(np.sum(above.p[up])), 1e-300)
  typical = min(max(typical, 1e-9), 1.0)
  lack = abs(gain - fall) + 1e-16
  more, less = lack / -np.expm1(-typical), lack / np.expm1(typical)
  extra = (more, less) if gain < fall else (less, more)
  loss = np.concatenate([
      below.loss[down], [typical if gain < fall else -typical], above.loss[up]])
  p, q = (np.concatenate([low[down], [middle], high[up]]) for low, middle, high in
          zip((below.p, below.q), extra, (above.p, above.q)))
  rest = max(1 - above.p_inf - float(np.sum(p)), 0.0)
  return pair_lib.DominatingPair(
      np.append(loss, 0.0), np.append(p, rest), np.append(q, rest),
      above.p_inf, below.q_inf)
