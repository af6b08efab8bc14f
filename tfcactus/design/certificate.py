"""Verification of a designed table from the table alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfcactus import _checks, noise
from tfcactus.design import fields, isotropic, scalar


def verify(table: noise.Table, cost: fields.CostFunction | None = None
           ) -> dict[str, float]:
  """Recomputes the certificate of a designed table.

  The density is read from the table. Its `info` supplies the claimed budget and the
  multipliers that select a lower bound. Wrong multipliers weaken the bound and never
  invalidate it.

  Args:
    table: A table made by `Cactus`, `Monotone` or `Isotropic`.
    cost: The cost function of a table that was designed for one: a file cannot hold it.

  Returns:
    'objective' (the largest divergence over shifts), 'lower_bound' (no table of the
    same grid and tail class within the same budget is below it; for `Monotone` and
    `Isotropic`, no monotone one) and 'gap' (relative).

  Raises:
    ValueError: if the table carries no certificate (a truncated or closed-form law, or
      a table of unknown origin), or `cost` does not fit.
    SolverError: if the certificate does not hold, naming the residual.
  """
  told = _told(table)
  power, solver, objective = told['power'], told['solver'], told['objective']
  if (power is None) != (cost is not None):
    raise ValueError(
        f'Expected {"the" if cost is None else "no"} cost function for a table '
        f'designed with {power=}, got cost={cost!r}.')
  # A table designed for a cost function stores no power: it had the default, 2.
  checked_cost = fields.check_program(
      2.0 if power is None else power, cost, solver, objective)
  budget = _checks.positive('budget', told['budget'])
  price = _checks.real('price', told['price'])
  if isinstance(table, noise.RadialTable):
    return isotropic.certify(table, objective, checked_cost, budget, price, solver)
  # Multipliers of shifts by 1, 2, ..., `bins` cells.
  theta = np.array([_checks.non_negative('shifts', told['shifts'].get(str(cells), 0))
                    for cells in range(1, table.bins + 1)])
  _checks.positive('the sum of shifts', np.sum(theta))
  spec = scalar.ScalarSpec(
      table.name, objective, budget, checked_cost, table.bins,
      table.log_density.size - 1, table.log_tail_ratio, solver,
      monotone=not table.name.startswith('cactus'))
  return scalar.certify(spec, table, theta, price)


def _told(table: noise.Table) -> dict[str, Any]:
  """Returns the info entries that `verify` reads; ValueError if one is missing."""
  if not isinstance(table, noise.TABLES):
    raise ValueError(f'Expected table to be a noise table, got {table!r}.')
  missing = [key for key in ('parameters', 'multipliers', 'solver')
             if table.info.get(key) is None]
  if missing:
    raise ValueError(
        'Expected a designed table with a certificate, got '
        f'{table.name!r} without {", ".join(missing)} in its info; only Cactus, '
        'Monotone and Isotropic make one.')
  try:
    found = {**table.info['parameters'], **table.info['multipliers']}
    return {'solver': table.info['solver'], 'shifts': dict(found['shifts']), **{
        name: found[name] for name in ('power', 'objective', 'budget', 'price')}}
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(
        'Expected info as a design writes it, with power, objective and budget, and '
        f'multipliers price and shifts, got {table.info!r}: {error!r}.') from error
