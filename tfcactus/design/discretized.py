"""Closed-form laws as tables: the exact probability of every cell of the line.

The laws are the Gaussian, the Laplace and the sinh-normal distribution. The tail of the
Laplace table is geometric, and so exact.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tfcactus import _checks
from tfcactus.design import closed_form, fields, table_info
from tfcactus.noise import scalar_table, sinh_normal

_REACH = 12.0
"""Standard deviations that the cells cover by default."""

_MAX_GAUSSIAN_CELLS = 200_000
_MAX_LAPLACE_CELLS = 100_000
_MAX_SINH_NORMAL_CELLS = 1_000_000


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
    closed_form.check_size(cells, _MAX_GAUSSIAN_CELLS, 'cells', 'lower bins')
    if cells < 4 * sigma * bins:
      raise ValueError(
          'Expected cells to reach 4 standard deviations, got '
          f'{cells / (bins * sigma):.3g}; raise cells to at least '
          f'{int(np.ceil(4 * sigma * bins))}.')
    if self.tail_ratio is not None:
      fields.check_tail_ratio(self.tail_ratio)

  def _cells(self) -> int:
    """Returns the index of the last stored cell: `cells`, or the default for None."""
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
      """Returns the table of a normal of standard deviation `sigma`."""
      log_mass = np.minimum.accumulate(
          closed_form.central_log_mass(edges / (self.bins * sigma)))
      slope = log_mass[-1] - log_mass[-2] if self.tail_ratio is None else (
          np.log(self.tail_ratio))
      return scalar_table.ScalarTable.normalized(
          self.bins, log_mass, float(slope), info)

    return closed_form.match_std(build, self.noise_multiplier)


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
    closed_form.check_size(self.scale * bins, _MAX_LAPLACE_CELLS, 'cells in a scale',
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
    if not 2 <= self._cells() <= _MAX_SINH_NORMAL_CELLS:
      raise ValueError(
          f'Expected 2 to {_MAX_SINH_NORMAL_CELLS} cells, got {self._cells()}; '
          'change bins or cells.')

  def _noise(self) -> sinh_normal.SinhNormal:
    return sinh_normal.SinhNormal(self.sigma, self.bend)

  def _cells(self) -> int:
    """Returns the index of the last stored cell: `cells`, or the default for None."""
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
