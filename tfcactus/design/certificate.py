"""Re-verification of a designed table from nothing but the table itself."""

from __future__ import annotations

from typing import Callable
from typing import Optional
from typing import Union

import numpy as np

from tfcactus.design import _scalar
from tfcactus.design import cost as cost_lib
from tfcactus.design import isotropic
from tfcactus.noise import radial_table
from tfcactus.noise import scalar_table


def verify(table: Union[scalar_table.ScalarTable, radial_table.RadialTable],
           cost: Optional[Callable[[np.ndarray], np.ndarray]] = None
           ) -> dict[str, float]:
  """Recomputes the certificate of a designed table.

  The density is the table's own; `info` supplies the budget that it claims to
  meet and the multipliers that pick a lower bound. Wrong multipliers can only
  make the bound worse, never wrong.

  Args:
    table: A table made by `Cactus`, `Monotone` or `Isotropic`.
    cost: The cost function, for a table that was designed for one: a file
      cannot hold it.

  Returns:
    objective (the largest divergence over shifts), lower_bound (no table of
    the same grid and tail class within the same budget is below it) and gap
    (relative).

  Raises:
    ValueError: if the table carries no certificate (a quantised Gaussian or
      Laplace, or a table of unknown origin).
    SolverError: if the claim fails, naming the residual.
  """
  if not isinstance(table, (radial_table.RadialTable, scalar_table.ScalarTable)):
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
  if (told['power'] is None) != (cost is not None):
    raise ValueError(
        f'Expected {"the" if cost is None else "no"} cost function for a table '
        f'designed with power={told["power"]!r}, got cost={cost!r}.')
  made = cost_lib.make(2.0 if told['power'] is None else told['power'], cost)
  price = float(info['multipliers']['price'])
  if table.kind == 'radial':
    return isotropic.certify(table, told['objective'], made, told['budget'],
                             price, info['solver'])
  theta = np.zeros(table.bins)
  for shift, share in info['multipliers']['shifts'].items():
    theta[int(shift) - 1] = share
  request = _scalar.ScalarSpec(
      info['mechanism'], told['objective'], told['budget'], made,
      table.bins, table.log_density.size - 1, table.log_tail_ratio,
      info['solver'], monotone=not info['mechanism'].startswith('cactus'))
  return _scalar.certify(request, table, theta, price)
