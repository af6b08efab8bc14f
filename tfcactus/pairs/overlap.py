"""Pairs for a replaced or zeroed record: mixtures that share what others release.

Given how the other records are drawn, two neighbours release mixtures that share the
release without the record, at mean w:

    P = (1-q) f(x - w) + q f(x - u),    Q = (1-q) f(x - w) + q f(x - v),

where q is the probability that the record is drawn. With C = 1:

| neighbours | sample | w, u, v |
|---|---|---|
| replaced | Poisson | w = 0, u and v of norm <= 1 |
| zeroed | fixed size | u and w of norm <= 1, v = 0: another record takes the place |
| restored | fixed size | v and w of norm <= 1, u = 0 |

(Zeroed under Poisson sampling has w = v = 0: the pair of a removed record.) The
hockey-stick divergence is jointly convex, so that a pair that dominates these mixtures
for all draws of the others dominates the mechanism.

**Theorem.** Let f never increase with |x|, in any dimension, and alpha >= 1. H_alpha(P
|| Q) is largest

* replaced: on one line, at u = 1, v = -1;
* zeroed: on one line, at u = 1, w = -1;
* restored: at v = w, |v| = 1, the profile of a removed record.

Proof. H = integral of (q f(x-u) - c f(x-w) - alpha q f(x-v))^+ with c = (alpha-1)(1-q)
>= 0. A reflection at a hyperplane swaps points in pairs, one on either side; let y_L,
y_R be the sum of the terms that stay and r <= r' the values of the term that moves.

1. On one line. Replaced (zeroed: with v and w interchanged): let v* be the point of the
   ray from u through w with |v* - u| = |v - u|, so |v*| <= |v|. The bisector of v and
   v* passes through u, and w lies on the side of v*. So f(x-u) is the same at both
   points of a pair, and moving v to v* brings the larger two of the other terms
   together: (g-l-r)^+ + (g-l'-r')^+ is at least (g-l-r')^+ + (g-l'-r)^+ for l <= l', r
   <= r', since s -> (g-s)^+ is convex.
2. Now v <= u on the line. Move v to -1: the bisector M of both lies below zero. At a
   point x_L below M, v is nearer than u (zeroed: 0 is), hence q f(x_L-u) <= alpha q
   f(x_L-v), and the pair's lower half gives nothing before the move; its upper half
   only gains from it.
3. Move u to 1 > u: the bisector lies above zero, and both other terms are larger on its
   lower side. The larger value of f(x-u) goes where they are smaller: again two sums
   are spread, and the convex function grows.

Restored: by convexity H is at most the larger of its values with both other terms at w
and with both at v. A shift of one is the worst for either: the cost of a removed
record, attained at w = v. []

alpha < 1 follows from H_alpha(P||Q) = 1 - alpha + alpha H_{1/alpha}(Q||P) and the
reverse neighbours. Replacing is symmetric: the pair of u = 1, v = -1 is attained, so
that no smaller pair dominates. Zeroed: for alpha >= 1 the profile is that of the pair
of w = -1, u = 1; for alpha < 1 it is that of the reversed pair of a removed record.

Radial tables: see `noise.radial_table`. Where no line is the worst (i.i.d. Laplace on a
vector of bounded l1 norm and tables that are not monotone, known only by pairs that
dominate each shift), advanced joint convexity bounds H by the profiles h_1 and h_2 of
shifts 1 and 2: with alpha = 1 + q (a - 1) and b = alpha / a,

    H_alpha(P || Q) = q H_a(f_u || (1-b) f_w + b f_v)
                   <= q ((1-b) H_a(f_u || f_w) + b H_a(f_u || f_v)).

Source: Theorem 2 of Balle, Barthe and Gaboardi (2018) for the last; Corollary 25 of
Zhu, Dong and Wang (2022) for the pair of a profile.
"""

from __future__ import annotations

import numpy as np

from tfcactus.pairs import envelope
from tfcactus.pairs.dominating_pair import DominatingPair, PairBounds

ROUNDOFF = 1e-14
"""Relative error of a few operations on two profiles."""


def replaced(near: PairBounds, far: PairBounds, sampling_prob: float) -> PairBounds:
  """Returns bounds on a replaced record's pair, by advanced joint convexity.

  `near` and `far` bound the noise's pair over all shifts up to one and up to two.
  """
  return mixture_bounds(
      near, *mixed_profile(near.upper, far.upper, sampling_prob), sampling_prob)


def zeroed(near: PairBounds, far: PairBounds, sampling_prob: float) -> PairBounds:
  """Returns bounds on a zeroed record's pair in fixed-size samples, as `zeroed_by`.

  The arguments are those of `replaced`, and so is the proof.
  """
  return zeroed_by(mixture_bounds(
      near, *mixed_profile(far.upper, near.upper, sampling_prob), sampling_prob),
                   near, sampling_prob)


def mixture_bounds(near: PairBounds, alpha: np.ndarray, value: np.ndarray,
                   sampling_prob: float) -> PairBounds:
  """Returns bounds on a pair of mixtures, given upper bounds on its profile.

  `near` bounds the noise's pair over all shifts up to one, `value` the profile at
  `alpha`, which increases from one. The upper pair is symmetric. The lower pair
  compares a record with one that contributes nothing.
  """
  return PairBounds(near.poisson(sampling_prob)[1].lower,
                    DominatingPair.from_symmetric_profile(alpha, value))


def zeroed_by(above: PairBounds, near: PairBounds, sampling_prob: float) -> PairBounds:
  """Returns bounds on a zeroed record's pair, given bounds `above` for alpha >= 1.

  In the upper pair, P is the distribution with the record; the reverse dominates for a
  restored record. The lower pair is that of `above`: a record of norm one, while all
  other records are its opposite, or are zero.
  """
  add, _ = near.poisson(sampling_prob)
  return PairBounds(above.lower, _joined(above.upper, add.upper))


def mixed_profile(out: DominatingPair, other: DominatingPair,
                  sampling_prob: float) -> tuple[np.ndarray, np.ndarray]:
  """Returns (alpha, value): upper bounds on the profile of two mixtures, alpha >= 1.

  `out` dominates the release with the drawn record against the release without it,
  `other` against the neighbour's release with its drawn record.
  """
  log_a = envelope.profile_grid([out, other])
  values = []
  for pair in (out, other):
    value, _, error = envelope.profile_at(pair, log_a)
    values.append(np.maximum(value, 0.0) + error)
  # `share` is 1 - b of the module's docstring.
  share = (1 - sampling_prob) * -np.expm1(-log_a)
  value = sampling_prob * (share * values[0] + (1 - share) * values[1])
  alpha = 1 + sampling_prob * np.expm1(log_a)
  return alpha, np.minimum(value * (1 + ROUNDOFF), 1.0)


def no_noise(prob: float) -> PairBounds:
  """Returns bounds for any noise: the upper pair shows the record if it is drawn."""
  # The lower pair shows nothing.
  zero, one = np.zeros(1), np.ones(1)
  return PairBounds(
      DominatingPair(zero, one, one),
      DominatingPair(zero, (1 - prob) * one, (1 - prob) * one, prob, prob))


def _joined(above: DominatingPair, below: DominatingPair) -> DominatingPair:
  """Returns the pair with the profile of `above` for alpha >= 1, else of `below`."""
  # Both profiles agree at alpha = 1 up to rounding. The mass that the smaller profile
  # lacks there is added at a loss of typical size.
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
  return DominatingPair(
      np.append(loss, 0.0), np.append(p, rest), np.append(q, rest),
      above.p_inf, below.q_inf)
