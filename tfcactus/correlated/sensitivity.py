"""What an example may contribute to C times the sums, where it takes part often."""

from __future__ import annotations

import numpy as np

from tfcactus import _checks


def min_separation_sensitivity_squared(
    coefficients: np.ndarray, steps: int, *, min_separation: int,
    max_participations: int) -> float:
  """At least the squared sensitivity of a Toeplitz strategy.

  Of what C applied to the sums changes by, if an example takes part at most so often
  with at least so many steps from one time to the next, at norm one each time. It is
  attained if the coefficients are not negative and do not grow; otherwise it is that
  of larger ones.

  Args:
    coefficients: Of the first column, shape (bands,); zero beyond.
    steps: How many.
    min_separation: Steps from one participation to the next, at least.
    max_participations: Of one example.

  Raises:
    ValueError: if a number is out of range.

  Source: McMahan et al., "A Hassle-free Algorithm for Private Learning in Practice"
  (2024), Theorem 2.
  """
  column = np.zeros(_checks.integer('steps', steps, 1))
  given = np.abs(_checks.vector('coefficients', coefficients))[:steps]
  # Of larger coefficients, which do not grow, all inner products are as large.
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
