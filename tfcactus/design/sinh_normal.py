"""Sinh-normal noise as a table: the exact probability of every cell."""

from __future__ import annotations

import dataclasses

import numpy as np

from tfcactus import _checks
from tfcactus.design import closed_form, table_info
from tfcactus.noise import scalar_table, sinh_normal

_REACH = 12.0
"""Standard deviations of the underlying normal that the cells cover by default."""

_MAX_CELLS = 1_000_000


@dataclasses.dataclass(frozen=True)
class DiscretizedSinhNormal:
  """Request for sinh-normal noise on cells, with a geometric tail beyond the last one.

  By default the tail starts where less than about 1e-32 of the mass is left. It is
  heavier than the noise's own, and all moments of the table's privacy loss are finite.

  Attributes:
    sigma: Standard deviation of the underlying normal, over the sensitivity.
    bend: Where the tails bend (A of the paper), in units of sensitivity. Below
      sigma the density has two peaks, and is accounted over all shifts.
    bins: Cells per unit of sensitivity.
    cells: Index of the last stored cell; None for 12 standard deviations.

  Raises:
    ValueError: if an argument is out of range.

  Source: section 4 of Bun, Dwork, Rothblum and Steinke (STOC 2018).
  """

  sigma: float
  bend: float
  bins: int = 200
  cells: int | None = None

  def __post_init__(self) -> None:
    noise = self._noise()
    bins = _checks.integer('bins', self.bins, 1)
    closed_form.check_resolution('std', noise.std, bins)
    if not 2 <= self._cells() <= _MAX_CELLS:
      raise ValueError(
          f'Expected 2 to {_MAX_CELLS} cells, got {self._cells()}; change bins '
          'or cells.')

  def _noise(self) -> sinh_normal.SinhNormal:
    return sinh_normal.SinhNormal(self.sigma, self.bend)

  def _cells(self) -> int:
    if self.cells is not None:
      return _checks.integer('cells', self.cells, 1)
    reach = self.bend * np.arcsinh(_REACH * self.sigma / self.bend)
    return max(int(np.floor(reach * self.bins)), 2)

  def solve(self) -> scalar_table.ScalarTable:
    """Builds the noise table; its `info` carries no certificate."""
    edges = (np.arange(self._cells() + 2) - 0.5) / self.bins
    log_mass = closed_form.central_log_mass(
        self.bend / self.sigma * np.sinh(edges / self.bend))
    if self._noise().monotone:
      log_mass = np.minimum.accumulate(log_mass)
    info = table_info.uncertified(
        'discretized-sinh-normal',
        {'sigma': float(self.sigma), 'bend': float(self.bend),
         'bins': self.bins, 'cells': self._cells()},
        'Sinh-normal noise with exact cell probabilities; not an optimised '
        'design.')
    return scalar_table.ScalarTable.normalized(
        self.bins, log_mass, float(log_mass[-1] - log_mass[-2]), info)
