"""Accountant by buckets of privacy losses (PrivacyBuckets), composed by convolution.

Each outcome counts in the bucket above its loss. Losses below all buckets are raised to
the lowest one, and losses above all count as infinite.

Source: Meiser and Mohammadi, "Tight on Budget? Tight Bounds for r-Fold Approximate
Differential Privacy" (CCS 2018); PDP and the infinite bucket: Sommer, Meiser and
Mohammadi, "Privacy Loss Classes" (PoPETs 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Callable

import dp_accounting
import numpy as np
import scipy

from tfcactus import _checks, _numerics
from tfcactus.accounting import base
from tfcactus.accounting.bounds import Bounds, crossing
from tfcactus.accounting.composition import composition
from tfcactus.pairs import dominating_pair as pair_lib

SPREAD = 12.0
"""Standard deviations of the total loss that an adaptive factor covers."""

RARE = 1e-18
"""Mass of one release's losses that an adaptive factor may leave outside."""

ROUNDOFF = 1e-14
"""Bound on the error of a sum of one release's masses, and of a label."""

LARGEST_EPSILON = 700.0
"""Above this epsilon, as e^epsilon may overflow, lower bounds count infinite losses
only."""

FURTHEST = 1e4
"""Largest finite epsilon that is searched; beyond it the bound is inf."""

CONVOLUTION_ROUNDOFF = 8 * _numerics.EPS
"""Error of a convolution by FFT per level, relative to the norms."""


class PrivacyBucketsAccountant(base.TwoSidedAccountant):
  """Composes buckets of privacy losses (PLD), with lower and upper bounds.

  With guarantee='pdp', delta is the probability of a loss above epsilon
  (probabilistic differential privacy), for the pair of the full shift. That smaller
  shifts have no larger one is a conjecture of the paper. PDP implies the usual
  guarantee but is not closed under post-processing.
  """

  def __init__(self, neighboring_relation: dp_accounting.NeighboringRelation = (
      dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE), *,
               direction: str = 'both', guarantee: str = 'adp',
               buckets: int = 1 << 16, factor: float | None = None):
    """Initializes an empty account.

    Args:
      neighboring_relation: As for `PairAccountant`.
      direction: As for `PairAccountant`.
      guarantee: 'adp', the usual delta (approximate DP), or 'pdp'.
      buckets: Number of buckets, at least 16.
      factor: Factor f > 1 by which P / Q grows from one bucket to the next; None
        chooses the least that covers the likely losses.
    """
    super().__init__(neighboring_relation, direction=direction)
    _checks.choice('guarantee', guarantee, ('adp', 'pdp'))
    self._guarantee = guarantee
    self._buckets = _checks.integer('buckets', buckets, 16)
    self._factor = None if factor is None else _checks.real('factor', factor)
    if self._factor is not None and self._factor <= 1:
      raise ValueError(f'Expected factor > 1, got factor={factor!r}.')

  def compositions(self) -> dict[str, composition.Composition]:
    """Returns {direction: composition}; ValueError for 'pdp' of a bracketed step."""
    # Neither pair's probability of a large loss bounds the mechanism's.
    parts = super().compositions()
    for step, _ in (group for part in parts.values() for group in part.groups):
      if self._guarantee == 'pdp' and step.bounds().lower is not step.bounds().upper:
        raise ValueError(
            "Expected discrete noise with guarantee='pdp' (a table whose density never "
            'increases with |z|), got a step whose losses are only bracketed; use '
            "guarantee='adp'.")
    return parts

  def _epsilon_bounds(self, part: composition.Composition, delta: float) -> Bounds:
    """Returns bounds on epsilon; the estimate is their mean, inf beyond `FURTHEST`."""
    lower, upper = compose_buckets(part.groups, self._buckets, self._factor)

    def first(delta_at: Callable[[float, str], float]) -> tuple[float, float]:
      """Returns floats around the least epsilon where `delta_at` is <= `delta`."""
      if delta_at(0.0, self._guarantee) <= delta:
        return 0.0, 0.0
      return crossing(
          lambda x: delta_at(x, self._guarantee) <= delta, 0.0, 1.0, limit=FURTHEST)

    high = first(upper.upper)[1]
    low = min(first(lower.lower)[0], high)
    return Bounds(low, 0.5 * (low + high), high)

  def _delta_bounds(self, part: composition.Composition, epsilon: float) -> Bounds:
    lower, upper = compose_buckets(part.groups, self._buckets, self._factor)
    low = lower.lower(epsilon, self._guarantee)
    high = min(upper.upper(epsilon, self._guarantee), 1.0)
    return Bounds(min(low, high), 0.5 * (low + high), high)


@dataclasses.dataclass(frozen=True, eq=False)
class Buckets:
  """P- and Q-masses of the total loss of several releases, in buckets."""

  width: float  # Width of a bucket in units of loss: log of the factor.
  first: int  # Index of the lowest bucket; losses in bucket i are labelled i * width.
  p: np.ndarray  # Shape (buckets,), P-masses.
  q: np.ndarray  # Shape (buckets,), Q-masses.
  # Shape (buckets,), as `q`, but losses raised to the lowest bucket have at most the
  # Q-mass of a true loss there: their P-mass times e^-label.
  q_kept: np.ndarray
  p_inf: float  # P-mass of infinite losses and of labels above the highest bucket.
  known_inf: float  # P-mass of infinite losses only.
  raised: float = 0.0  # Bound on the total P-mass raised to the lowest bucket.
  releases: int = 1  # Number of releases; a label is at most as many buckets too high.
  error: float = 0.0  # Bound on the error of any sum of masses.

  @classmethod
  def of(cls, pair: pair_lib.DominatingPair, width: float, buckets: int) -> Buckets:
    """Returns one release's buckets, `buckets` of them, each of `width` in loss."""
    first = -(buckets // 2)
    label = np.ceil((pair.loss + pair_lib.LOSS_ROUNDOFF) / width + ROUNDOFF
                    ).astype(np.int64)
    below, above = label < first, label >= first + buckets
    place = np.clip(label - first, 0, buckets - 1)
    # P-mass times e^-label of the lowest bucket: see `q_kept`.
    at_label = np.exp(np.minimum(_numerics.log_mass(pair.p) - first * width,
                                 LARGEST_EPSILON))
    kept = np.where(below, np.minimum(pair.q, at_label), pair.q)
    p, q, q_kept = (
        np.bincount(place[~above], mass[~above], buckets)
        for mass in (pair.p, pair.q, kept))
    return cls(width, first, p, q, q_kept,
               pair.p_inf + float(np.sum(pair.p[above])), pair.p_inf,
               float(np.sum(pair.p[below])), error=ROUNDOFF)

  def compose(self, other: Buckets) -> Buckets:
    """Returns the buckets of all releases of this and `other`, of the same width."""
    size, first = self.p.size, self.first

    def join(x: np.ndarray, y: np.ndarray) -> np.ndarray:
      """Returns the masses of sums of labels, shape (2 * size - 1,)."""
      # Labels add: index 0 of the convolution is label 2 * first.
      return np.maximum(scipy.signal.fftconvolve(x, y), 0.0)

    full = [join(self.p, other.p), join(self.q, other.q),
            join(self.q_kept, other.q_kept)]
    p, q, kept = (mass[-first:-first + size].copy() for mass in full)
    low, q_low, kept_low = (float(np.sum(mass[:-first])) for mass in full)
    # Sums of labels below the lowest bucket are raised to it, those above the highest
    # count as infinite.
    p[0] += low
    q[0] += q_low
    kept[0] += min(kept_low, low * math.exp(min(-first * self.width, LARGEST_EPSILON)))
    high = float(np.sum(full[0][-first + size:]))
    p_inf = self.p_inf + other.p_inf - self.p_inf * other.p_inf + high
    levels = CONVOLUTION_ROUNDOFF * math.log2(4 * size) * math.sqrt(2 * size)
    worst = max(float(np.linalg.norm(x) * np.linalg.norm(y)) for x, y in (
        (self.p, other.p), (self.q, other.q)))
    # Masses sum to about one: the errors add, and twice that covers their product.
    return Buckets(
        self.width, first, p, q, kept, min(p_inf, 1.0),
        self.known_inf + other.known_inf - self.known_inf * other.known_inf,
        self.raised + other.raised + low,
        self.releases + other.releases,
        2 * (self.error + other.error) + levels * worst)

  def repeated(self, count: int) -> Buckets:
    """Returns the buckets of `count` times these releases."""
    power, factors = self, []
    while True:
      if count & 1:
        factors.append(power)
      count >>= 1
      if not count:
        return functools.reduce(Buckets.compose, factors)
      power = power.compose(power)

  @functools.cached_property
  def _labels(self) -> np.ndarray:
    """Labels of the buckets, shape (buckets,): upper bounds on the losses in them."""
    return (self.first + np.arange(self.p.size)) * self.width

  @property
  def _least(self) -> np.ndarray:
    """Lower bounds on the losses in each bucket, shape (buckets,).

    Losses below the first bucket were raised into it; nothing bounds these.
    """
    # `of` adds LOSS_ROUNDOFF to a loss that may be as much smaller than computed. A
    # third one covers the rounding of labels.
    return self._labels - self.releases * (
        self.width * (1 + 2 * ROUNDOFF) + 3 * pair_lib.LOSS_ROUNDOFF)

  def upper(self, epsilon: float, guarantee: str) -> float:
    """Returns an upper bound on delta at `epsilon`; `guarantee` is 'adp' or 'pdp'."""
    loss = self._labels
    slack = self.error * (1 + math.exp(min(epsilon, LARGEST_EPSILON)))
    above = loss > epsilon
    if guarantee == 'pdp':
      return self.p_inf + float(np.sum(self.p[above])) + self.error
    gain = self.p * -np.expm1(np.minimum(epsilon - loss, 0.0))
    # If even the lowest true loss lies above epsilon, both masses are used.
    sure = self._least >= epsilon
    with np.errstate(over='ignore', invalid='ignore'):
      exact = np.nan_to_num(
          self.p - math.exp(min(epsilon, LARGEST_EPSILON)) * self.q_kept)
    exact = np.where(sure, np.clip(exact, 0.0, gain), gain)
    # The bound from labels alone has the error of P-masses only.
    return self.p_inf + min(float(np.sum(exact[above])) + slack,
                            float(np.sum(gain[above])) + self.error)

  def lower(self, epsilon: float, guarantee: str) -> float:
    """Returns a lower bound on delta at `epsilon`; `guarantee` is 'adp' or 'pdp'."""
    if guarantee == 'pdp':
      sure = self._least > epsilon
      return max(self.known_inf + float(np.sum(self.p[sure])) - self.raised -
                 self.error, 0.0)
    if epsilon > LARGEST_EPSILON:
      return max(self.known_inf - self.error, 0.0)
    grown = math.exp(epsilon)
    gain = float(np.sum(np.maximum(self.p - grown * self.q, 0.0)))
    return max(self.known_inf + gain - self.error * (1 + grown), 0.0)


def compose_buckets(groups: Sequence[tuple[composition.StepLoss, int]],
                    buckets: int, factor: float | None
                    ) -> tuple[Buckets, Buckets]:
  """Returns all steps' buckets for the lower and the upper pairs; one object if exact.

  From one bucket to the next P / Q grows by `factor`; None chooses the least factor
  whose buckets cover the likely losses.
  """
  bounds = [(step.bounds(), count) for step, count in groups]
  width = math.log(factor) if factor is not None else _width(
      [(both.upper, count) for both, count in bounds], buckets)
  results: list[Buckets] = []
  for side in ('lower', 'upper'):
    if results and all(both.lower is both.upper for both, _ in bounds):
      return results[0], results[0]
    parts = [Buckets.of(getattr(both, side), width, buckets).repeated(count)
             for both, count in bounds]
    results.append(functools.reduce(Buckets.compose, parts))
  return results[0], results[1]


def _width(groups: Sequence[tuple[pair_lib.DominatingPair, int]],
           buckets: int) -> float:
  """Returns the least width at which `buckets` buckets cover the likely losses."""
  mean, variance, single = 0.0, 0.0, 0.0  # Of the total; largest loss of a release.
  for pair, count in groups:
    # Losses are likely unless they and all of larger modulus have a mass <= RARE.
    order = np.argsort(np.abs(pair.loss))
    mass_from_here = np.cumsum(pair.p[order][::-1])[::-1]
    likely = order[mass_from_here > RARE]
    loss, p = pair.loss[likely], pair.p[likely]
    if not loss.size:
      continue
    single = max(single, float(np.max(np.abs(loss))))
    centre = float(p @ loss) / float(np.sum(p))
    mean += count * centre
    variance += count * float(p @ (loss - centre)**2)
  # Half of the buckets, less two for rounding, cover each sign; two percent are room.
  reach = max(abs(mean) + SPREAD * math.sqrt(variance), single, 1e-9)
  return 1.02 * reach / (buckets // 2 - 2)
