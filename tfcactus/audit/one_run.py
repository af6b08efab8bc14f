"""Bounds that hold for any mechanism, from the canaries of one run.

The scores of canaries may depend on each other. An auditor names some canaries as
present or absent and is told which names were right.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import special

from tfcactus import _checks
from tfcactus.audit import families
from tfcactus.audit.counts import Curve

_LARGEST_EPSILON = 100.0


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
    _checks.integer('canaries', self.canaries, 1)
    _checks.integer('guesses', self.guesses, 1, self.canaries)
    _checks.integer('correct', self.correct, 0, self.guesses)

  def p_value(self, epsilon: float, delta: float) -> float:
    """Returns an upper bound on the p-value of (epsilon, delta)-DP.

    Source: Theorem 5.2 of Steinke, Nasr and Jagielski, "Privacy Auditing with One (1)
    Training Run" (2023).
    """
    right = special.expit(_checks.non_negative('epsilon', epsilon))
    delta = _checks.non_negative('delta', delta)
    # P(W >= k) for k = 0 .. correct, W binomial.
    tail = np.append(1.0, special.bdtrc(
        np.arange(self.correct), self.guesses, right))
    fewer = np.arange(1, self.correct + 1)
    most = float(np.max((tail[self.correct - fewer] - tail[-1]) / fewer, initial=0.0))
    return min(float(tail[-1]) + 2 * self.canaries * delta * most, 1.0)

  def epsilon(self, delta: float, significance: float = 0.05) -> float:
    """Returns the largest refuted epsilon at `delta`, or zero (Steinke et al.)."""
    return families.largest(
        lambda epsilon: self.p_value(epsilon, delta) <= significance,
        0.0, _LARGEST_EPSILON)

  def refutes(self, curve: Curve, significance: float = 0.05) -> bool:
    """Returns whether the guesses refute a symmetric trade-off function (f-DP).

    Source: Mahloujifar, Melis and Chaudhuri, "Auditing f-Differential Privacy in One
    Run" (2024).
    """
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
