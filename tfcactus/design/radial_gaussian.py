"""The Gaussian in many dimensions as a table on shells of R^dim."""

from __future__ import annotations

import dataclasses

import numpy as np

from tfcactus import _checks
from tfcactus.design import closed_form, table_info
from tfcactus.noise import radial_table

_REACH = 9.0
"""Standard deviations (sigma / sqrt 2) of the radius that the shells cover each way."""

_LINE_REACH = 12.0
"""Minimum outer radius of the shells, in standard deviations of one coordinate."""

_SHELL_RULE = 0.12
"""Default of width * sqrt(dim). Quantisation costs its square over 8, .18 %, of
epsilon (measured). Only quality depends on it: accountants read the table itself."""

_MAX_WIDTH = 1 / 40
_MAX_SHELLS = 200_000


@dataclasses.dataclass(frozen=True)
class RadialGaussian:
  """Request for normal noise in R^dim, quantised on shells around its typical radius.

  One core ball below the shells has the first shell's density. Beyond the shells lies a
  geometric tail with the normal's slope. In thousands of dimensions the isotropic
  optimum equals this Gaussian to five digits.

  Attributes:
    dim: Dimension of the query.
    noise_multiplier: Standard deviation of a coordinate of the table over sensitivity;
      the underlying normal is fitted to it.
    width: Width of a shell in units of sensitivity; None for the default
      min(.12 / sqrt(dim), 1/40, sigma/20), which costs less than .2 % of epsilon.

  Raises:
    ValueError: if an argument is out of range.
  """

  dim: int
  noise_multiplier: float
  width: float | None = None

  def __post_init__(self) -> None:
    _checks.integer('dim', self.dim, 1)
    sigma = _checks.positive('noise_multiplier', self.noise_multiplier)
    if self.width is not None:
      _checks.positive('width', self.width)
      if self.width > sigma / 2:
        raise ValueError(
            'Expected width <= noise_multiplier / 2, got width='
            f'{self.width!r} and noise_multiplier={sigma!r}.')
    low, high, width = self._layout()
    closed_form.check_size((high - low) / width, _MAX_SHELLS, 'shells',
                           'raise width (at the price of a larger epsilon)')

  def _layout(self) -> tuple[float, float, float]:
    """Returns the inner and outer radius of the shells, and their width."""
    sigma = float(self.noise_multiplier)
    width = self.width or min(_SHELL_RULE / np.sqrt(self.dim), _MAX_WIDTH,
                              sigma / 20)
    if self.width is None:
      # Designed tables, too, have a whole number of shells per unit.
      width = 1 / np.ceil(1 / width)
    mode = sigma * np.sqrt(self.dim)
    reach = _REACH * sigma / np.sqrt(2)
    # In one dimension the radius is |normal|, wider than sigma / sqrt 2.
    outer = mode + max(reach, _LINE_REACH * sigma - mode)
    return max(mode - reach, 0.0), outer, float(width)

  def solve(self) -> radial_table.RadialTable:
    """Builds the noise table; its `info` carries no certificate."""
    low, high, width = self._layout()
    first = max(low, width)
    count = int(np.ceil((high - first) / width))
    outer = first + width * np.arange(count + 1)
    middle = np.maximum(outer - 0.5 * width, 0.5 * first)
    if low > width:
      # The core ball continues inwards at the first shell's density.
      middle[0] = middle[1]
    info = {
        **table_info.uncertified(
            'radial-gaussian',
            {'dim': self.dim, 'width': width,
             'noise_multiplier': float(self.noise_multiplier)},
            'The radial Gaussian quantised on shells; not an optimised design. '
            f'Its quantisation costs about {100 * width**2 * self.dim / 8:.2g} % '
            'of epsilon.'),
        'quantisation': width**2 * self.dim / 8}

    def build(sigma: float) -> radial_table.RadialTable:
      """Returns the table of a normal of standard deviation `sigma` per coordinate."""
      # Relative to the first shell: a large common term would cost digits.
      log_density = -(middle - middle[0]) * (middle + middle[0]) / (
          2 * sigma**2)
      slope = -width * outer[-1] / sigma**2
      return radial_table.RadialTable.normalized(
          self.dim, first, width, log_density, slope, info)

    return closed_form.match_std(build, self.noise_multiplier)
