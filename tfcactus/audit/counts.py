"""Bounds on epsilon and noise from counted events.

An auditor runs a mechanism on two neighbouring inputs, or plants canaries in one run,
and counts an event on each side. Epsilons, and trade-off functions, under which the
counts are improbable are refuted. An audit can refute a claim; it never proves one.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from typing import Callable, NamedTuple

import numpy as np
from scipy import special

from tfcactus import _checks, _numerics
from tfcactus.accounting.bounds import crossing

Curve = Callable[[np.ndarray], np.ndarray]
"""Trade-off function: the least false negative rate at each false positive rate."""

_TOLERANCE = 0.01
"""Relative error of p-values, which are too large; `_OUTSIDE` adds an absolute one."""

_OUTSIDE = 1e-12
"""Bound on the probability of counts that are left out of a sum."""


def largest(refuted: Callable[[float], bool], low: float, high: float,
            tolerance: float = 1e-6) -> float:
  """Returns a refuted value within `tolerance` of the largest; `low` if none is.

  If a value is refuted, all smaller ones must be. Values above `high` are not tried.
  """
  if not refuted(low):
    return low
  return crossing(lambda value: not refuted(value), low, high, tolerance=tolerance,
                  limit=high)[0]


class Interval(NamedTuple):
  """A confidence interval for a probability."""

  lower: float
  upper: float


def clopper_pearson(successes: int, trials: int, *, significance: float = 1e-3
                    ) -> Interval:
  """Returns the exact two-sided confidence interval of a probability.

  The interval misses the truth with probability at most `significance`, half on each
  side. `trials` counts independent runs.

  Source: Clopper and Pearson, "The Use of Confidence or Fiducial Limits
  Illustrated in the Case of the Binomial" (1934).
  """
  # More trials are counted by no one, and float64 would round the upper end to zero.
  trials = _checks.integer('trials', trials, 1, 10**12)
  if _checks.integer('successes', successes, 0) > trials:
    raise ValueError(
        f'Expected successes <= trials={trials}, got successes={successes}.')
  half = 0.5 * _checks.delta(significance, 'significance')
  return Interval(
      float(special.betaincinv(successes, trials - successes + 1, half))
      if successes else 0.0,
      1 - float(special.betaincinv(trials - successes, successes + 1, half))
      if successes < trials else 1.0)


def epsilon_lower_bound(hits: int, hits_on_neighbor: int, trials: int,
                        trials_on_neighbor: int | None = None, *,
                        delta: float = 0.0, significance: float = 1e-3) -> float:
  """Returns a lower bound on a mechanism's epsilon at `delta`.

  An event, fixed before the runs were seen, happened in `hits` of `trials` runs on one
  input and in `hits_on_neighbor` of `trials_on_neighbor` (by default `trials`) runs on
  its neighbour. The bound, at least zero, is log((p - delta) / q), where p is the lower
  end of the confidence interval for the event's probability on the input, and q the
  upper end on the neighbour. It is too large with probability at most `significance`.
  """
  delta = _checks.non_negative('delta', delta)
  # Each of the two one-sided limits fails with at most half the significance.
  p = clopper_pearson(hits, trials, significance=significance).lower - delta
  others = trials if trials_on_neighbor is None else trials_on_neighbor
  q = clopper_pearson(hits_on_neighbor, others, significance=significance).upper
  return max(math.log(p / q), 0.0) if p > 0 else 0.0


def gaussian_noise_upper_bound(false_alarms: int, misses: int, trials: int, *,
                               significance: float = 1e-3) -> float:
  """Returns an upper bound on the noise multiplier of Gaussian noise.

  A test guesses from a run's output whether the record was in the data. It guessed
  wrongly in `false_alarms` of `trials` runs without the record, and in `misses` of
  `trials` runs with the record. The bound is inf if the counts refute no noise
  multiplier. It is below the true multiplier with probability at most `significance`.

  Source: Dong, Roth and Su, "Gaussian Differential Privacy" (2022): no test has smaller
  errors than the trade-off function of two normal distributions one sensitivity apart.
  """
  rates = [clopper_pearson(count, trials, significance=significance).upper
           for count in (false_alarms, misses)]
  apart = -float(np.sum(special.ndtri(rates)))
  return 1 / apart if apart > 0 else math.inf


@dataclasses.dataclass(frozen=True)
class Errors:
  """Errors of a membership test, fixed before it saw the canaries that it is tried on.

  Attributes:
    absent: Number of canaries that were not in the data.
    present: Number of canaries that were in the data.
    false_positives: Absent canaries that the test called present.
    false_negatives: Present canaries that the test called absent.
  """

  absent: int
  present: int
  false_positives: int
  false_negatives: int

  def __post_init__(self) -> None:
    for name in ('absent', 'present'):
      _checks.integer(name, getattr(self, name), 1, 10**9)
    _checks.integer('false_positives', self.false_positives, 0, self.absent)
    _checks.integer('false_negatives', self.false_negatives, 0, self.present)

  def epsilon(self, delta: float, significance: float = 0.05) -> float:
    """Returns the lower bound on epsilon at `delta` by Clopper and Pearson."""
    return epsilon_lower_bound(
        self.present - self.false_negatives, self.false_positives, self.present,
        self.absent, delta=delta, significance=significance)

  def p_value(self, curve: Curve, enough: float = 0.0) -> float:
    """Returns an upper bound on the p-value of a trade-off function.

    The errors are binomial and independent, with rates a and b >= curve(a) for an
    unknown a. The p-value is the supremum over a of the probability of at most as many
    errors of both kinds together. The search stops once it is known whether that is
    above `enough`; at zero, once the bound is close to the supremum.
    """
    _checks.function('curve', curve, 'such as gaussian_curve(1.0)')
    enough = _checks.non_negative('enough', enough)
    # On a cell [a, a'] the rates (a, curve(a')) bound the probability.
    edges = np.linspace(0.0, 1.0, 33)  # The search splits cells further.
    least = _checks.shares('the curve', curve(edges))
    # A cell [a, b] is (minus its bound, a, b, curve(b)): the heap's first is the worst.
    cells = [(-self._tail(a, c), a, b, float(c))
             for a, b, c in zip(edges, edges[1:], least[1:])]
    heapq.heapify(cells)
    attained = 0.0
    while True:
      most, a, b, c = cells[0]
      small = -most <= max(enough, 2 * _OUTSIDE)
      close = attained + 2 * _OUTSIDE >= -most * (1 - _TOLERANCE)
      if small or close or 0 < enough < attained:
        return min(-most, 1.0)
      middle = 0.5 * (a + b)
      at_middle = float(curve(np.array(middle)))
      attained = max(attained, self._tail(middle, at_middle) - _OUTSIDE)
      heapq.heapreplace(cells, (-self._tail(a, at_middle), a, middle, at_middle))
      heapq.heappush(cells, (-self._tail(middle, c), middle, b, c))

  def refutes(self, curve: Curve, significance: float = 0.05) -> bool:
    """Returns whether the counts refute a trade-off function."""
    level = _checks.delta(significance, 'significance')
    return self.p_value(curve, level) <= level

  def _tail(self, a: float, b: float) -> float:
    """Returns P(Bin(absent, a) + Bin(present, b) <= errors), or up to 1e-12 more."""
    n, errors = self.absent, self.false_positives + self.false_negatives
    # Bernstein's inequality: counts farther out have a probability below _OUTSIDE.
    reach = 8 * math.sqrt(n * a * (1 - a)) + 20
    first = max(math.floor(n * a - reach), 0)
    k = np.arange(first, min(n, errors, math.ceil(n * a + reach)) + 1)
    if not k.size:
      return _OUTSIDE
    return float(np.exp(_numerics.log_binomial(k, n, a)) @ special.bdtr(
        np.minimum(errors - k, self.present), self.present, b)) + _OUTSIDE


@dataclasses.dataclass(frozen=True)
class OneRun:
  """Guesses about canaries, each of which a fair coin put into the data.

  Attributes:
    canaries: Number of canaries.
    guesses: Number of canaries guessed, fixed before scores were seen.
    correct: Number of right guesses.
  """

  canaries: int
  guesses: int
  correct: int

  def __post_init__(self) -> None:
    _checks.integer('canaries', self.canaries, 1, 10**9)
    _checks.integer('guesses', self.guesses, 1, self.canaries)
    _checks.integer('correct', self.correct, 0, self.guesses)

  def p_value(self, epsilon: float, delta: float) -> float:
    """Returns an upper bound on the p-value of (epsilon, delta)-DP.

    Source: Theorem 5.2 of Steinke, Nasr and Jagielski, "Privacy Auditing with One (1)
    Training Run" (2023).
    """
    right = special.expit(_checks.non_negative('epsilon', epsilon))
    delta = _checks.non_negative('delta', delta)
    # The bound is P(W >= correct) + 2 m delta a, for m canaries and a binomial W, where
    # a is the maximum over i >= 1 of P(correct - i <= W < correct) / i. `tail` has
    # P(W >= k) for k = 0, ..., correct.
    tail = np.append(1.0, special.bdtrc(np.arange(self.correct), self.guesses, right))
    fewer = np.arange(1, self.correct + 1)
    most = float(np.max((tail[self.correct - fewer] - tail[-1]) / fewer, initial=0.0))
    return min(float(tail[-1]) + 2 * self.canaries * delta * most, 1.0)

  def epsilon(self, delta: float, significance: float = 0.05) -> float:
    """Returns the largest refuted epsilon at `delta`, or zero; tries none above 100."""
    level = _checks.delta(significance, 'significance')
    return largest(lambda epsilon: self.p_value(epsilon, delta) <= level, 0.0, 100.0)

  def refutes(self, curve: Curve, significance: float = 0.05) -> bool:
    """Returns whether the guesses refute a symmetric trade-off function (f-DP).

    Source: Mahloujifar, Melis and Chaudhuri, "Auditing f-Differential Privacy in One
    Run" (2024).
    """
    _checks.function('curve', curve, 'such as gaussian_curve(1.0)')
    significance = _checks.delta(significance, 'significance')
    # The paper's recursion (its r and h) from the observed number of right guesses down
    # to none, if that number is reached with probability `significance`. `right` and
    # `wrong` bound from below shares of canaries that are guessed right and wrong on
    # average, so that a sum above guesses / canaries refutes the curve.
    right = significance * self.correct / self.canaries
    wrong = significance * (self.guesses - self.correct) / self.canaries
    for more in range(self.correct - 1, -1, -1):
      if right + wrong > 1:
        break
      # For a symmetric curve f, f(1 - x) is the inverse of 1 - f.
      new = max(wrong, float(curve(np.array(1 - right))))
      right += more / (self.guesses - more) * (new - wrong)
      wrong = new
    return not math.isnan(right) and right + wrong > self.guesses / self.canaries
