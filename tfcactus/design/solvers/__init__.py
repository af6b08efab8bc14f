"""Solvers of the optimisation problems behind the designs."""

from __future__ import annotations

import numpy as np

from tfcactus.design.solvers import conic, convex_program, interior_point


def solve(program: convex_program.Program, start: np.ndarray, *, solver: str,
          warm: bool = False) -> convex_program.Solution:
  """Solves a program from positive masses `start`; `warm` if they are near the optimum.

  The result is not yet certified. Raises SolverError if the solver fails or the program
  is too large for it, ValueError if it does not take the objective.
  """
  if solver == 'cvxpy':
    return conic.solve(program, start)
  return interior_point.solve(program, start, warm=warm)
