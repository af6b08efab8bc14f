"""Re-verification of a designed table from nothing but the table itself."""

from __future__ import annotations

from typing import Union

import numpy as np

from tfcactus.design import _program
from tfcactus.design import _scalar
from tfcactus.design import isotropic
from tfcactus.noise import radial
from tfcactus.noise import scalar


def verify(table: Union[scalar.ScalarTable, radial.RadialTable]
          ) -> dict[str, float]:
  """Recomputes the certificate of a designed table.

  The density is the table's own; `info` supplies the budget that it claims to
  meet and the multipliers that pick a lower bound. Wrong multipliers can only
  make the bound worse, never wrong.

  Args:
    table: A table made by `Cactus`, `Monotone` or `Isotropic`.

  Returns:
    objective (the largest divergence over shifts), lower_bound (no table of
    the same grid and tail class within the same budget is below it) and gap
    (relative).

  Raises:
    ValueError: if the table carries no certificate (a quantised Gaussian or
      Laplace, or a table of unknown origin).
    SolverError: if the claim fails, naming the residual.
  """
  if not isinstance(table, (radial.RadialTable, scalar.ScalarTable)):
    raise ValueError(f'Expected table to be a noise table, got {table!r}.')
  info = table.info
  missing = [key for key in ('parameters', 'multipliers', 'solver')
             if info.get(key) is None]
  if missing:
    raise ValueError(
        'Expected a designed table with a certificate, got '
        f'{table.name!r} without {", ".join(missing)} in its info; quantised '
        'Gaussians and Laplaces have none.')
  told = info['parameters']
  price = float(info['multipliers']['price'])
  shares = info['multipliers']['shifts']
  if table.kind == 'radial':
    bins = int(round(1 / table.width))
    program = isotropic.radial_program(
        told['objective'], table.dim, bins, table.log_density.size - 1,
        table.log_tail_ratio, told['power'], told['budget'])
    p = np.exp(table.log_density + program.log_volume)
    return _program.certify(program, p, np.ones(1), price,
                            _scalar.TOLERANCE[info['solver']])
  theta = np.zeros(table.bins)
  for shift, share in shares.items():
    theta[int(shift) - 1] = share
  request = _scalar.ScalarSpec(
      info['mechanism'], told['objective'], told['budget'], told['power'],
      table.bins, table.log_density.size - 1, table.log_tail_ratio,
      info['solver'], monotone=info['mechanism'] != 'cactus')
  return _scalar.certify(request, table, theta, price)
