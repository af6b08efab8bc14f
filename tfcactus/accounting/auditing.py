"""Audits: what runs of a mechanism say about its epsilon.

Whoever runs a mechanism often enough on two neighbouring inputs sees how often
an event happens on each, and no epsilon can be true that makes those counts
incredible. An audit can refute a claim; it never proves one.
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
  """The exact two-sided confidence interval of a probability.

  Args:
    successes: How often it happened.
    trials: Out of how many independent runs.
    significance: Probability that the interval misses the truth, at most;
      half on each side.

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
  """The epsilon below which a mechanism is refuted at `delta`.

  Args:
    hits: Runs on one input in which an event happened. The event must have been
      fixed before the runs were seen.
    hits_on_neighbor: Runs on its neighbour in which it happened.
    trials: Runs on each.
    delta: The delta of the claim.
    significance: Probability, at most, that the bound exceeds the truth.

  Returns:
    log((p - delta) / q) for the lower end of p and the upper end of q; zero if
    the counts refute nothing.
  """
  delta = _checks.non_negative('delta', delta)
  # Each of the two one-sided limits may fail with half the probability.
  p = clopper_pearson(hits, trials, significance=significance).lower - delta
  q = clopper_pearson(hits_on_neighbor, trials, significance=significance).upper
  return max(math.log(p / q), 0.0) if p > 0 else 0.0


def gaussian_noise_upper_bound(false_alarms: int, misses: int, trials: int, *,
                               significance: float = 1e-3) -> float:
  """The noise multiplier above which Gaussian noise is refuted.

  Args:
    false_alarms: Runs without the record that a test took for runs with it.
    misses: Runs with the record that it took for runs without.
    trials: Runs of each kind.
    significance: Probability, at most, that the bound is below the truth.

  Returns:
    inf if the counts refute nothing. The trade-off curve of two normals one
    apart is the least error of any test (Dong, Roth and Su, 2022).
  """
  rates = [clopper_pearson(count, trials, significance=significance).upper
           for count in (false_alarms, misses)]
  apart = -float(np.sum(special.ndtri(rates)))
  return 1 / apart if apart > 0 else math.inf
