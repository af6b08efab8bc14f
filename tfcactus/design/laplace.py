"""The Laplace mechanism as a table: geometric up to the last cell, exactly."""

from __future__ import annotations

import dataclasses

import numpy as np

from tfcactus import _checks
from tfcactus.design import closed_form, fields, table_info
from tfcactus.noise import scalar_table

_MAX_CELLS = 100_000


@dataclasses.dataclass(frozen=True)
class DiscretizedLaplace:
  """Request for Laplace noise with the exact Laplace probability of every cell.

  The masses of cells i >= 1 are geometric, so that the tail is exact. Inside a cell the
  density is constant. E|Z| exceeds `scale` by about the square of the cell width over
  12 scale; `table.moment(1)` is exact.

  Attributes:
    scale: The parameter b of the density exp(-|z| / b) / 2b, in units of sensitivity.
    bins: Cells per unit of sensitivity.
    cells: Index of the last stored cell; None for one unit and one cell.

  Raises:
    ValueError: if an argument is out of range.

  Source: Dwork, McSherry, Nissim and Smith, "Calibrating Noise to Sensitivity in
  Private Data Analysis" (TCC 2006).
  """

  scale: float
  bins: int = 200
  cells: int | None = None

  def __post_init__(self) -> None:
    _checks.positive('scale', self.scale)
    bins = _checks.integer('bins', self.bins, 1)
    if self.cells is not None:
      fields.check_cells(self.cells, bins)
    closed_form.check_size(self.scale * bins, _MAX_CELLS, 'cells in a scale',
                           'lower bins')

  def solve(self) -> scalar_table.ScalarTable:
    """Builds the noise table; its `info` carries no certificate."""
    cells = self.bins + 1 if self.cells is None else self.cells
    width = 1.0 / (self.bins * self.scale)
    # Mass of cell i >= 1: exp(-i w) sinh(w / 2); of cell 0: 1 - exp(-w / 2).
    log_mass = np.append(
        np.log(-np.expm1(-width / 2)),
        np.log(np.sinh(width / 2)) - width * np.arange(1, cells + 1)
        if width < 600 else
        width / 2 - np.log(2.0) - width * np.arange(1, cells + 1))
    info = table_info.uncertified(
        'discretized-laplace',
        {'scale': float(self.scale), 'bins': self.bins, 'cells': cells},
        'Laplace noise with exact cell probabilities and tail; not an optimised '
        'design.')
    return scalar_table.ScalarTable.normalized(
        self.bins, log_mass + np.log(self.bins), -width, info)
