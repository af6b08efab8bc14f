"""Pairs for a replaced or zeroed record in a sample: mixtures with a common part.

docs/soundness_formulas.md ("Replaced and zeroed records") proves the worst pairs for
noise whose density never increases with its norm, and the bound for other noise by
advanced joint convexity. Radial tables: see `noise.radial_table`.

Source: Theorem 2 of Balle, Barthe and Gaboardi (2018) for advanced joint convexity;
Corollary 25 of Zhu, Dong and Wang (2022) for the pair of a profile.
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

  Arguments and proof are those of `replaced`, but another record is in the sample in
  place of one that is not drawn: it is up to two away (`far`), and the zeroed record up
  to one (`near`).
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
  # `share` is 1 - b of the derivation in docs/soundness_formulas.md.
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
  # The profiles at alpha = 1, `gain` of `above` and `fall` of `below`, agree up to
  # rounding. One more atom, of masses `more` and `less`, raises the smaller one by
  # `lack` = more - less. Its loss is positive to raise `gain`, else negative; any size
  # of it is safe, and `typical` is about the mean positive loss.
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
