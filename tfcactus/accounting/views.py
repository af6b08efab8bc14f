"""Views (no accountant) of privacy: profile, trade-off function, loss distribution.

They are exact for a pair and bounds for a composition. Each view determines the others
(appendix B of Zhu, Dong and Wang, AISTATS 2022).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tfcactus import _checks, _numerics
from tfcactus.accounting.base import PairAccountant
from tfcactus.accounting.bounds import Bounds
from tfcactus.accounting.composition.composition import Composition
from tfcactus.pairs.dominating_pair import DominatingPair, LARGEST_LOSS, lower_hull


def privacy_profile(pair: DominatingPair, alpha: npt.ArrayLike) -> np.ndarray:
  """Returns the hockey-stick divergence H(alpha) = sup_A P(A) - alpha Q(A).

  `alpha` = e^epsilon has any shape, which the result has too; ValueError if negative.
  """
  ratio = _checks.numbers_of('alpha', alpha)
  if np.any(ratio < 0):
    raise ValueError(f'Expected alpha >= 0, got {ratio!r}.')
  return np.vectorize(pair.hockey_stick, otypes=[np.float64])(_numerics.log_mass(ratio))


def pair_from_profile(alpha: npt.ArrayLike, value: npt.ArrayLike) -> DominatingPair:
  """Returns the pair with the largest convex profile below the given points.

  `alpha`, shape (points,), is positive and increases. `value` holds H there, or upper
  bounds on it, in [0, 1]; the last also holds for all larger alpha. The pair dominates
  every mechanism with such a profile: between points a convex profile lies below the
  chord. Raises ValueError for other points.

  Source: Lemma 9 and Corollary 25 of Zhu, Dong and Wang (AISTATS 2022).
  """
  x, y = _checks.vector('alpha', alpha), _checks.vector('value', value)
  if x.shape != y.shape:
    raise ValueError(
        f'Expected alpha and value of the same shape, got {x.shape} and {y.shape}.')
  if x[0] <= 0 or np.any(np.diff(x) <= 0):
    raise ValueError('Expected alpha to be positive and increasing.')
  if np.any(y < 0) or np.any(y > 1):
    raise ValueError('Expected value in [0, 1].')
  # Every profile is at least 1 - alpha, and is one at alpha = 0.
  x = np.append(0.0, x)
  y = np.append(1.0, np.maximum(y, 1 - x[1:]))
  keep = lower_hull(x, y)
  x, y = x[keep], np.minimum.accumulate(y[keep])
  # H(alpha) = p_inf + sum of q_i (x_i - alpha)^+, whose slope grows by q_i at x_i.
  slope = np.append(np.diff(y) / np.diff(x), 0.0)
  q = np.diff(slope)
  real = q > 0
  return DominatingPair(
      np.log(x[1:][real]), (x[1:] * q)[real], q[real],
      float(y[-1]), float(max(1 + slope[0], 0.0)))


def tradeoff(pair: DominatingPair, false_positive: npt.ArrayLike) -> np.ndarray:
  """Returns the trade-off function (f-DP): the least false negative rate of any test.

  A test tells P, the alternative, from Q, the null. `false_positive`, in [0, 1] and of
  any shape, is the Q-probability of rejecting Q.
  """
  level = _checks.shares('false_positive', false_positive)
  # The best tests reject the outcomes of largest loss (Neyman and Pearson).
  order = np.argsort(-pair.loss, kind='stable')
  x = np.append(0.0, np.cumsum(pair.q[order]))
  y = pair.p_inf + np.append(0.0, np.cumsum(pair.p[order]))
  return np.maximum(1 - np.interp(level, x, y), 0.0)


def pair_from_tradeoff(false_positive: npt.ArrayLike, false_negative: npt.ArrayLike
                       ) -> DominatingPair:
  """Returns the pair whose trade-off function is linear between the given points.

  `false_positive` increases from 0 to 1; `false_negative`, one for each, is convex and
  does not increase, to 0. Raises ValueError for other points.
  """
  x = _checks.vector('false_positive', false_positive)
  y = _checks.vector('false_negative', false_negative)
  if x.shape != y.shape or x[0] != 0 or x[-1] != 1 or np.any(np.diff(x) <= 0):
    raise ValueError('Expected false_positive to increase from 0 to 1, with a '
                     'false_negative for each.')
  q, p = np.diff(x), -np.diff(y)
  # p / q falls along a convex curve, here up to the rounding of the points.
  with np.errstate(over='ignore'):
    rises = np.any(np.diff(p / q) > 1e-9)
  if y[-1] != 0 or not 0 <= y[0] <= 1 or np.any(p < 0) or rises:
    raise ValueError(
        'Expected false_negative to be convex and fall to 0 within [0, 1].')
  return pair_of_curve(x, y)


def pair_of_curve(false_positive: np.ndarray, false_negative: np.ndarray
                  ) -> DominatingPair:
  """Returns the pair of a trade-off function as `pair_from_tradeoff`, unchecked."""
  q, p = np.diff(false_positive), -np.diff(false_negative)
  seen = p > 0
  return DominatingPair(np.log(p[seen]) - np.log(q[seen]), p[seen], q[seen],
                        float(1 - false_negative[0]), float(np.sum(q[~seen])))


def loss_cdf(pair: DominatingPair, loss: npt.ArrayLike) -> np.ndarray:
  """Returns the P-probability of losses of at most the finite `loss`, any shape."""
  order = np.argsort(pair.loss)
  mass = np.append(0.0, np.cumsum(pair.p[order]))
  return mass[np.searchsorted(
      pair.loss[order], _checks.numbers_of('loss', loss), side='right')]


def composed_pair(accountant: PairAccountant, epsilon: npt.ArrayLike) -> DominatingPair:
  """Returns a pair that dominates a composition in both directions.

  The pair's `tradeoff` is a lower bound on the false negative rates of any test (the
  f-DP guarantee), tight if the points are dense. Its `privacy_profile` is an upper
  bound, and at the given points at most the accountant's delta.

  The points `epsilon`, at which the profile is evaluated, increase from 0, to 700 at
  most. Raises ValueError for others, or if the accountant's direction is not 'both'.
  """
  epsilon = _checks.vector('epsilon', epsilon)
  if epsilon[0] != 0 or np.any(np.diff(epsilon) <= 0) or epsilon[-1] > LARGEST_LOSS:
    raise ValueError('Expected epsilon to increase from 0, to '
                     f'{LARGEST_LOSS:g} at most, got epsilon={epsilon!r}.')
  accountant.check_both()
  return DominatingPair.from_symmetric_profile(
      np.exp(epsilon), np.array([accountant.get_delta(x) for x in epsilon]))


def composed_loss_cdf(composition: Composition, loss: float) -> Bounds:
  """Returns bounds on the probability under P that a composed loss is at most `loss`.

  P and Q are the composed laws of the dominating pair in one direction, an entry of
  `PhiAccountant.compositions`. `loss` is non-negative; at zero the lower bound is zero.
  """
  # P's probability of a larger loss is delta(loss) plus e^loss times Q's. Q's is minus
  # the slope of the profile, convex in e^epsilon: difference quotients bracket it.
  loss = _checks.non_negative('loss', loss)
  step = max(1e-5, 1e-9 * loss)  # A smaller step would see the width of the bounds.
  places = max(loss - step, 0.0), loss, loss + step
  below, at, above = map(composition.delta, places)
  with np.errstate(over='ignore'):  # An infinite `grown` gives a `low` of zero.
    grown, fallen = np.expm1(places[2] - loss), -np.expm1(places[0] - loss)
  # Bounds on e^loss times the Q-probability of a larger loss.
  low = max((at.lower - above.upper) / grown, 0.0)
  high = (below.upper - at.lower) / fallen if loss > 0 else 1.0
  high = min(high, 1.0 - at.lower)
  lower = min(max(1 - at.upper - high, 0.0), 1.0)
  upper = min(1 - at.lower - low, 1.0)
  estimate = 1 - at.estimate - (below.estimate - above.estimate) / (grown + fallen)
  return Bounds(lower, float(np.clip(estimate, lower, upper)), upper)
