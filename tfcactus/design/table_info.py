"""What a table says of its origin: its certificate, or that it has none."""

from __future__ import annotations

from typing import Any
from typing import Mapping

import numpy as np

from tfcactus.design.solvers import convex_program


def certified(mechanism: str, parameters: Mapping[str, Any],
              certificate: Mapping[str, float], theta: np.ndarray,
              solution: convex_program.Solution, *, solver: str, statement: str
              ) -> dict[str, Any]:
  """The `info` of a table whose certificate `tfcactus.design.verify` repeats.

  Args:
    mechanism: The name that reports show.
    parameters: The request, as JSON values: budget, power, objective and grid.
    certificate: As `convex_program.certify` returned it.
    theta: Shape (bins,), multipliers of the whole-cell shifts.
    solution: Of the solver.
    solver: Its name.
    statement: What was proved, in words.
  """
  return {
      'mechanism': mechanism, 'parameters': dict(parameters), **certificate,
      'solver': solver, 'iterations': solution.iterations,
      'multipliers': convex_program.multipliers(theta, solution.price),
      'statement': statement}


def uncertified(mechanism: str, parameters: Mapping[str, Any], statement: str
                ) -> dict[str, Any]:
  """The `info` of a table that is no optimum of anything, or not proved one."""
  return {
      'mechanism': mechanism, 'parameters': dict(parameters), 'objective': None,
      'lower_bound': None, 'gap': None, 'solver': None, 'statement': statement}
