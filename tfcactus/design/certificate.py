"""Verification of a designed table from the table alone."""

from __future__ import annotations

from typing import Any, Union

import numpy as np

from tfcactus.design import fields, isotropic, scalar
from tfcactus.design.solvers import cost as cost_lib
from tfcactus.noise import radial_table, scalar_table

Table = Union[scalar_table.ScalarTable, radial_table.RadialTable]


def verify(table: Table, cost: fields.CostFunction | None = None) -> dict[str, float]:
  """Recomputes the certificate of a designed table.

  The density is read from the table. Its `info` supplies the claimed budget and the
  multipliers that select a lower bound. Wrong multipliers weaken the bound and never
  invalidate it.

  Args:
    table: A table made by `Cactus`, `Monotone` or `Isotropic`.
    cost: The cost function of a table that was designed for one: a file cannot hold it.

  Returns:
    objective (the largest divergence over shifts), lower_bound (no table of the same
    grid and tail class within the same budget is below it) and gap (relative).

  Raises:
    ValueError: if the table carries no certificate (a quantised Gaussian or Laplace, or
      a table of unknown origin).
    SolverError: if the certificate does not hold, naming the residual.
  """
  request = _request_of(table, cost)
  price = float(table.info['multipliers']['price'])
  # A table that was designed for a function stores no power; `make` wants 2 with one.
  checked_cost = cost_lib.make(
      2.0 if request['power'] is None else request['power'], cost)
  if isinstance(table, radial_table.RadialTable):
    return isotropic.certify(table, request['objective'], checked_cost,
                             request['budget'], price, table.info['solver'])
  theta = np.zeros(table.bins)  # Multipliers of shifts by 1, 2, ..., `bins` cells.
  for shift, share in table.info['multipliers']['shifts'].items():
    theta[int(shift) - 1] = share
  mechanism = table.info['mechanism']
  spec = scalar.ScalarSpec(
      mechanism, request['objective'], request['budget'], checked_cost, table.bins,
      table.log_density.size - 1, table.log_tail_ratio, table.info['solver'],
      monotone=not mechanism.startswith('cactus'))
  return scalar.certify(spec, table, theta, price)


def _request_of(table: Table, cost: fields.CostFunction | None) -> dict[str, Any]:
  """Returns the request in a table's info; ValueError if none or if `cost` misfits."""
  if not isinstance(table, (radial_table.RadialTable, scalar_table.ScalarTable)):
    raise ValueError(f'Expected table to be a noise table, got {table!r}.')
  missing = [key for key in ('parameters', 'multipliers', 'solver')
             if table.info.get(key) is None]
  if missing:
    raise ValueError(
        'Expected a designed table with a certificate, got '
        f'{table.name!r} without {", ".join(missing)} in its info; quantised '
        'Gaussians and Laplaces have none.')
  request = table.info['parameters']
  if (request['power'] is None) != (cost is not None):
    raise ValueError(
        f'Expected {"the" if cost is None else "no"} cost function for a table '
        f'designed with power={request["power"]!r}, got cost={cost!r}.')
  return request
