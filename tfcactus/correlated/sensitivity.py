"""Sensitivity of correlated noise if an example takes part several times."""

from __future__ import annotations

import numpy as np

from tfcactus import _checks


def min_separation_sensitivity_squared(
    coefficients: np.ndarray, steps: int, *, min_separation: int,
    max_participations: int) -> float:
  """Returns an upper bound on the squared sensitivity of a Toeplitz strategy.

  The sensitivity is the largest change of C times the sums by an example of norm one
  each time. The bound is attained if the coefficients are non-negative and do not grow;
  otherwise it is that of larger ones.

  Args:
    coefficients: Shape (bands,), the first column of C; zero beyond.
    steps: Number of steps.
    min_separation: Least number of steps from one participation to the next.
    max_participations: Largest number of participations of one example.

  Raises:
    ValueError: if a number is out of range.

  Source: McMahan et al., "A Hassle-free Algorithm for Private Learning in Practice"
  (2024), Theorem 2.
  """
  column = np.zeros(_checks.integer('steps', steps, 1))
  given = np.abs(_checks.vector('coefficients', coefficients))[:steps]
  # Larger coefficients that do not grow have inner products at least as large.
  given = np.maximum.accumulate(given[::-1])[::-1]
  column[:given.size] = given
  separation = _checks.integer('min_separation', min_separation, 1)
  times = min(_checks.integer('max_participations', max_participations, 1),
              -(-steps // separation))
  total = np.zeros(steps)
  for index in range(times):
    start = index * separation
    total[start:] += column[:steps - start]
  return float(total @ total) * (1 + 2.0**-52 * (steps + times))
