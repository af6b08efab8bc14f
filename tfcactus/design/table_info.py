"""The `info` of noise tables, with and without a certificate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfcactus.design.solvers import convex_program


def certified(mechanism: str, parameters: Mapping[str, Any],
              certificate: Mapping[str, float], theta: np.ndarray,
              solution: convex_program.Solution, *, solver: str, statement: str
              ) -> dict[str, Any]:
  """Returns the `info` of a table whose certificate `design.verify` can recompute.

  `theta` holds a multiplier for each shift by 1, 2, ... cells, or only for the unit
  shift if the table is radial. `parameters` is the request as JSON values.
  """
  return {
      'mechanism': mechanism, 'parameters': dict(parameters), **certificate,
      'solver': solver, 'iterations': solution.iterations,
      'multipliers': convex_program.multipliers(theta, solution.price),
      'statement': statement}


def uncertified(mechanism: str, parameters: Mapping[str, Any], statement: str
                ) -> dict[str, Any]:
  """Returns the `info` of a table without a proof of optimality."""
  return {
      'mechanism': mechanism, 'parameters': dict(parameters), 'objective': None,
      'lower_bound': None, 'gap': None, 'solver': None, 'statement': statement}
