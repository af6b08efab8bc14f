"""Pairs of a person with several rows, from the pairs of each number of rows.

If j of the rows are in a sample with probability w_j, and R_j(b) is the largest P(S)
with Q(S) <= b against shifts of j rows, then P(S) is at most sum_j w_j R_j(Q(S)). So
the mean of these power curves dominates, in both directions; Gaussian noise attains it.

Source: Dong, Roth and Su, "Gaussian Differential Privacy" (2022), for power curves;
Ganesh, "Tight Group-Level DP Guarantees for DP-SGD" (2024), for Gaussians.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import itertools
import math

import numpy as np

from tfcactus import _checks, _numerics
from tfcactus.pairs.cells import CELLS, raised_masses
from tfcactus.pairs.dominating_pair import DominatingPair, LARGEST_LOSS, PairBounds

MOST_ROWS = 1000
"""Largest number of rows of one person that is accounted for exactly."""

NOTHING = 1e-40
"""Largest probability of the numbers of rows that are left out; the upper pair counts
it."""

MOST_ATOMS = 1 << 15
"""Atoms beyond which neighbouring ones are merged. Affects speed and width only."""

ROUNDOFF = 1e-14
"""Bound on the relative error of a slope: a sum of masses' ratios."""


def poisson_weights(rows: int, sampling_prob: float) -> np.ndarray:
  """Returns log P(j of `rows` rows are in a Poisson sample), j = 0, ..., `rows`."""
  prob = _checks.sampling_prob(sampling_prob)
  j = np.arange(rows + 1)
  with np.errstate(divide='ignore', invalid='ignore'):
    out = np.where(j < rows, (rows - j) * np.log1p(-prob), 0.0)
  choices = np.array([math.log(math.comb(rows, drawn)) for drawn in range(rows + 1)])
  return choices + j * math.log(prob) + out


def fixed_size_weights(rows: int, size: int, total: int) -> np.ndarray:
  """Returns log P(j of `rows` rows are in a sample of `size` of `total`), j >= 0."""
  def falling(first: int) -> list[int]:
    """Returns the products first (first - 1) ... of 0, 1, ..., `rows` factors."""
    return list(itertools.accumulate(
        range(rows), lambda product, i: product * max(first - i, 0), initial=1))

  # Whole numbers, hence exact: C(rows, j) times falling factorials of `size` and of the
  # examples outside, over that of `total`.
  drawn, left, every = falling(size), falling(total - size)[::-1], falling(total)[-1]
  return np.array([_log_share(math.comb(rows, j) * a * b, every)
                   for j, (a, b) in enumerate(zip(drawn, left))])


def _log_share(part: int, whole: int) -> float:
  """Returns log(part / whole) to a few ulps of 1 + |log|, however large both are."""
  if not part:
    return -math.inf
  room = whole.bit_length() - part.bit_length()
  return math.log((part << max(room, 0)) / whole) - max(room, 0) * math.log(2)


def most_likely(weights: np.ndarray) -> tuple[np.ndarray, float]:
  """Returns probabilities of 0, 1, ..., n rows, and that of more, at most `NOTHING`."""
  # `weights` has the probabilities of all numbers of rows. That of more than n is added
  # to that of n as well.
  beyond = np.append(np.cumsum(weights[::-1])[::-1][1:], 0.0)
  last = max(int(np.argmax(beyond <= NOTHING)), 1)
  return np.append(weights[:last], weights[last] + beyond[last]), float(beyond[last])


def mean_of(parts: Sequence[PairBounds], weights: np.ndarray, beyond: float = 0.0
            ) -> PairBounds:
  """Returns bounds on the pair whose power curve is a mean of power curves.

  `parts` bound the pairs (P with the rows, Q without) of one row, two rows and so on;
  `weights`, probabilities, begin with that of no row. The upper pair has P-mass
  `beyond` more at infinity.
  """
  lower, upper = (_mean([getattr(part, side) for part in parts], weights, sign)
                  for side, sign in (('lower', -1), ('upper', 1)))
  upper = dataclasses.replace(upper, p_inf=upper.p_inf + beyond)
  return PairBounds(_merged(lower).lower, _merged(upper).upper)


def _mean(pairs: Sequence[DominatingPair], weights: np.ndarray, sign: int
          ) -> DominatingPair:
  """Returns the pair of the mean power curve, rounded up (`sign` 1) or down (-1).

  `pairs` are those of one row, two rows and so on; `weights` begin with that of none.
  """
  # Q is uniform on [0, 1], from the largest losses on, and each pair's P has a density,
  # its ratio e^loss, that decreases. Levels up to one half are measured from the
  # largest losses (side 0), others from the smallest (1), where they are small. There
  # the curve is one minus the P-mass of smaller losses, which rounds the other way.
  steps = [_Steps.of(pair) for pair in pairs]
  masses, ratios = [], []
  for side, way in ((0, 1), (1, -1)):
    levels = np.unique(np.concatenate(
        [[0.0, 0.5], *(step.ends(side) for step in steps)]))
    middle = 0.5 * (levels[1:] + levels[:-1])
    ratio = weights[0] + sum(
        weight * step.ratio(middle, side) for weight, step in zip(weights[1:], steps))
    size = max(pair.q.size for pair in pairs)
    room = sign * way * (ROUNDOFF + size * _numerics.EPS)
    masses.append(np.diff(levels)[::way])
    ratios.append((ratio * (1 + room))[::way])
  q, p = np.concatenate(masses), np.concatenate(masses) * np.concatenate(ratios)
  p_inf = float(sum(weight * pair.p_inf for weight, pair in zip(weights[1:], pairs)))
  # In the middle, where the two halves meet, P-mass makes up for rounding.
  middle = masses[0].size - 1
  p[middle] = max(p[middle] + 1 - p_inf - float(np.sum(p)), 0.0)
  real = (p > 0) & (q > 0)
  return DominatingPair(np.log(p[real]) - np.log(q[real]), p[real], q[real], p_inf,
                        float(np.sum(q[~real])))


@dataclasses.dataclass(frozen=True)
class _Steps:
  """The density of P on [0, 1] if Q is uniform, decreasing; constant between ends."""

  # Q-masses from the largest loss on, and from the smallest on, cumulated.
  levels: tuple[np.ndarray, np.ndarray]
  ratios: tuple[np.ndarray, np.ndarray]  # Densities up to each of `levels`, for both.

  @classmethod
  def of(cls, pair: DominatingPair) -> _Steps:
    """Returns the density of a pair's finite losses; zero on its `q_inf`."""
    order = np.argsort(-pair.loss, kind='stable')
    ratio = np.append(np.exp(np.minimum(pair.loss[order], LARGEST_LOSS)), 0.0)
    q = np.append(pair.q[order], pair.q_inf)
    return cls((np.cumsum(q), np.cumsum(q[::-1])), (ratio, ratio[::-1]))

  def ends(self, side: int) -> np.ndarray:
    """Returns the levels below one half at which the density changes."""
    levels = self.levels[side]
    return levels[(levels > 0) & (levels < 0.5)]

  def ratio(self, level: np.ndarray, side: int) -> np.ndarray:
    """Returns the density at each of `level`, measured from the largest loss (0)."""
    index = np.searchsorted(self.levels[side], level)
    return self.ratios[side][np.minimum(index, self.ratios[side].size - 1)]


def _merged(pair: DominatingPair) -> PairBounds:
  """Returns bounds on a pair, with fewer atoms; exact if the pair has few enough."""
  if pair.loss.size <= MOST_ATOMS:
    return PairBounds.exact(pair)
  order = np.argsort(pair.loss)
  first = np.unique(np.linspace(0, order.size, CELLS + 1).astype(np.int64))[:-1]
  loss = pair.loss[order]
  # Merged atoms lower the profile; mass moved to the least and largest loss raises it.
  edges = np.append(loss[first], loss[-1])
  p, q = (np.add.reduceat(mass[order], first) for mass in (pair.p, pair.q))
  lower = DominatingPair(np.log(p) - np.log(q), p, q, pair.p_inf, pair.q_inf)
  raised = raised_masses(edges, p, q)
  mass = raised * np.exp(-edges)
  real = (raised > 0) & (mass > 0)
  lost = pair.p_inf + float(np.sum(raised[~real]))
  return PairBounds(lower, DominatingPair(
      edges[real], raised[real], mass[real], lost,
      max(1 - float(np.sum(mass[real])), pair.q_inf)))
