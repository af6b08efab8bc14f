"""The Gaussian as a table: normal probabilities of cells of the line."""

from __future__ import annotations

import dataclasses

import numpy as np

from tfcactus import _checks
from tfcactus.design import closed_form, fields, table_info
from tfcactus.noise import scalar_table

_REACH = 12.0
"""Standard deviations that the cells cover by default."""

_MAX_CELLS = 200_000


@dataclasses.dataclass(frozen=True)
class DiscretizedGaussian:
  """Request for normal noise quantised on cells, with geometric tails.

  The underlying normal is slightly narrower, so that the table's standard deviation,
  which includes the uniform spread inside cells, equals `noise_multiplier`.

  Attributes:
    noise_multiplier: Standard deviation over sensitivity.
    bins: Cells per unit of sensitivity.
    cells: Index of the last stored cell; None for 12 standard deviations.
    tail_ratio: Density ratio in (0, 1) of neighbouring cells beyond `cells`;
      None continues the normal's slope at the last cell.

  Raises:
    ValueError: if an argument is out of range.
  """

  noise_multiplier: float
  bins: int = 200
  cells: int | None = None
  tail_ratio: float | None = None

  def __post_init__(self) -> None:
    sigma = _checks.positive('noise_multiplier', self.noise_multiplier)
    bins = _checks.integer('bins', self.bins, 1)
    closed_form.check_resolution('noise_multiplier', sigma, bins)
    cells = self._cells()
    closed_form.check_size(cells, _MAX_CELLS, 'cells', 'lower bins')
    if cells < 4 * sigma * bins:
      raise ValueError(
          'Expected cells to reach 4 standard deviations, got '
          f'{cells / (bins * sigma):.3g}; raise cells to at least '
          f'{int(np.ceil(4 * sigma * bins))}.')
    if self.tail_ratio is not None:
      fields.check_tail_ratio(self.tail_ratio)

  def _cells(self) -> int:
    if self.cells is not None:
      return _checks.integer('cells', self.cells, 1)
    return int(np.ceil(_REACH * max(self.noise_multiplier * self.bins, 1)))

  def solve(self) -> scalar_table.ScalarTable:
    """Builds the noise table; its `info` carries no certificate."""
    cells = self._cells()
    edges = np.arange(cells + 2) - 0.5
    info = table_info.uncertified(
        'discretized-gaussian',
        {'noise_multiplier': float(self.noise_multiplier), 'bins': self.bins,
         'cells': cells},
        'The normal distribution quantised on cells; not an optimised design.')

    def build(sigma: float) -> scalar_table.ScalarTable:
      log_mass = np.minimum.accumulate(
          closed_form.central_log_mass(edges / (self.bins * sigma)))
      slope = log_mass[-1] - log_mass[-2] if self.tail_ratio is None else (
          np.log(self.tail_ratio))
      return scalar_table.ScalarTable.normalized(
          self.bins, log_mass, float(slope), info)

    return closed_form.match_std(build, self.noise_multiplier)
