"""Audits (no accountant): bounds on epsilon and noise from runs of a mechanism.

An auditor runs a mechanism on two neighbouring inputs and counts an event on each.
Epsilons under which the counts are improbable are refuted. An audit can refute a
claim; it never proves one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import special

from tfcactus import _checks


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
  trials = _checks.integer('trials', trials, 1)
  successes = _checks.integer('successes', successes, 0)
  if successes > trials:
    raise ValueError(
        f'Expected successes <= trials={trials}, got successes={successes}.')
  half = 0.5 * _checks.delta(significance, 'significance')
  return Interval(
      float(special.betaincinv(successes, trials - successes + 1, half))
      if successes else 0.0,
      1 - float(special.betaincinv(trials - successes, successes + 1, half))
      if successes < trials else 1.0)


def epsilon_lower_bound(hits: int, hits_on_neighbor: int, trials: int, *,
                        delta: float = 0.0, significance: float = 1e-3) -> float:
  """Returns a lower bound on a mechanism's epsilon at `delta`.

  An event, fixed before the runs were seen, happened in `hits` of `trials` runs on one
  input and in `hits_on_neighbor` of `trials` runs on its neighbour. The bound is
  log((p - delta) / q). Here p is the lower end of the confidence interval for the
  event's probability on the input, and q the upper end for the neighbour. The bound is
  zero if the counts refute no epsilon. It exceeds the mechanism's epsilon with
  probability at most `significance`.
  """
  delta = _checks.non_negative('delta', delta)
  # Each of the two one-sided limits fails with at most half the significance.
  p = clopper_pearson(hits, trials, significance=significance).lower - delta
  q = clopper_pearson(hits_on_neighbor, trials, significance=significance).upper
  return max(math.log(p / q), 0.0) if p > 0 else 0.0


def gaussian_noise_upper_bound(false_alarms: int, misses: int, trials: int, *,
                               significance: float = 1e-3) -> float:
  """Returns an upper bound on the noise multiplier of Gaussian noise.

  A test guesses from a run's output whether the record was in the data. It guessed
  wrongly in `false_alarms` of `trials` runs without the record, and in `misses` of
  `trials` runs with the record. The bound is inf if the counts refute no noise
  multiplier. It is below the true one with probability at most `significance`.
  The trade-off function of two normal distributions one apart is the least error of any
  test (Dong, Roth and Su, 2022).
  """
  rates = [clopper_pearson(count, trials, significance=significance).upper
           for count in (false_alarms, misses)]
  apart = -float(np.sum(special.ndtri(rates)))
  return 1 / apart if apart > 0 else math.inf
