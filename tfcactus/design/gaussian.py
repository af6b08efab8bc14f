"""The Gaussian as a table: on cells of the line, or on shells of R^dim."""

from __future__ import annotations

import dataclasses
from typing import Callable
from typing import Optional
from typing import Union

import numpy as np
from scipy import optimize
from scipy import special

from tfcactus import _checks
from tfcactus.design import _scalar
from tfcactus.noise import radial_table
from tfcactus.noise import scalar_table

_STD_ERROR = 1e-12
"""How closely a table's noise multiplier meets the one asked for."""

_SCALAR_REACH = 12.0
"""Cells go out to this many standard deviations."""

_RADIAL_REACH = 9.0
"""Shells cover this many standard deviations (sigma / sqrt 2) of the radius."""

_SHELL_RULE = 0.12
"""width * sqrt(dim): costs its square over 8 of epsilon, .18 % (measured)."""

_MAX_WIDTH = 1 / 40
_MAX_SHELLS = 200_000


@dataclasses.dataclass(frozen=True)
class DiscretizedGaussian:
  """Normal noise on cells: the normal's cell probabilities, geometric tails.

  The underlying normal is made slightly narrower, so that the table's standard
  deviation, uniform spread inside cells included, is the one asked for.

  Attributes:
    noise_multiplier: Standard deviation over sensitivity.
    bins: Cells per unit of sensitivity.
    cells: Index of the last stored cell; None for 12 standard deviations.
    tail_ratio: Density ratio in (0, 1) of neighbouring cells beyond `cells`;
      None continues the normal's slope there.

  Raises:
    ValueError: if an argument is out of range.
  """

  noise_multiplier: float
  bins: int = 200
  cells: Optional[int] = None
  tail_ratio: Optional[float] = None

  def __post_init__(self):
    sigma = _checks.positive('noise_multiplier', self.noise_multiplier)
    bins = _checks.integer('bins', self.bins, 1)
    if sigma * bins < 0.5:
      raise ValueError(
          'Expected noise_multiplier * bins >= 0.5, or one cell is wider than '
          f'the noise, got noise_multiplier={sigma!r} and bins={bins}; raise '
          'bins.')
    cells = self._cells()
    if cells > _MAX_SHELLS:
      raise ValueError(
          f'Expected at most {_MAX_SHELLS} cells, got {cells}; lower bins.')
    if cells < 4 * sigma * bins:
      raise ValueError(
          'Expected cells to reach 4 standard deviations, got '
          f'{cells / (bins * sigma):.3g}; raise cells to at least '
          f'{int(np.ceil(4 * sigma * bins))}.')
    if self.tail_ratio is not None:
      _scalar.check_tail_ratio(self.tail_ratio)

  def _cells(self) -> int:
    if self.cells is not None:
      return _checks.integer('cells', self.cells, 1)
    return int(np.ceil(_SCALAR_REACH * max(
        self.noise_multiplier * self.bins, 1)))

  def solve(self) -> scalar_table.ScalarTable:
    """Builds the noise table; its `info` carries no certificate."""
    cells = self._cells()
    info = {
        'mechanism': 'discretized-gaussian',
        'parameters': {'noise_multiplier': float(self.noise_multiplier),
                       'bins': self.bins, 'cells': cells},
        'objective': None, 'lower_bound': None, 'gap': None, 'solver': None,
        'statement': 'The normal distribution quantised on cells; not an '
                     'optimised design.'}

    def build(sigma):
      edge = (np.arange(cells + 2) - 0.5) / (self.bins * sigma)
      edge[0] = 0.0
      log_above = special.log_ndtr(-edge)
      log_mass = log_above[:-1] + np.log(-np.expm1(np.diff(log_above)))
      log_mass[0] += np.log(2.0)
      log_mass = np.minimum.accumulate(log_mass)
      slope = log_mass[-1] - log_mass[-2] if self.tail_ratio is None else (
          np.log(self.tail_ratio))
      return scalar_table.ScalarTable.normalized(self.bins, log_mass, float(slope),
                                           info)

    return _match_std(build, self.noise_multiplier)


@dataclasses.dataclass(frozen=True)
class RadialGaussian:
  """Normal noise in R^dim, quantised on shells around its typical radius.

  Below the shells lies one core ball with the first shell's density, beyond
  them a geometric tail with the normal's slope. In thousands of dimensions the
  isotropic optimum is this Gaussian to five digits.

  Attributes:
    dim: Dimension of the query.
    noise_multiplier: Standard deviation of a coordinate over sensitivity; the
      table's is made equal to it.
    width: Width of a shell in units of sensitivity; None for the default
      min(.12 / sqrt(dim), 1/40, sigma/20), which costs less than .2 % of
      epsilon.

  Raises:
    ValueError: if an argument is out of range.
  """

  dim: int
  noise_multiplier: float
  width: Optional[float] = None

  def __post_init__(self):
    _checks.integer('dim', self.dim, 1)
    sigma = _checks.positive('noise_multiplier', self.noise_multiplier)
    if self.width is not None:
      _checks.positive('width', self.width)
      if self.width > sigma / 2:
        raise ValueError(
            'Expected width <= noise_multiplier / 2, got width='
            f'{self.width!r} and noise_multiplier={sigma!r}.')
    low, high, width = self._layout()
    if (high - low) / width > _MAX_SHELLS:
      raise ValueError(
          f'Expected at most {_MAX_SHELLS} shells, got '
          f'{(high - low) / width:.3g} of width {width:.3g}; raise width (at '
          'the price of a larger epsilon).')

  def _layout(self) -> tuple[float, float, float]:
    """Inner and outer radius of the shells, and their width."""
    sigma = float(self.noise_multiplier)
    width = self.width or min(_SHELL_RULE / np.sqrt(self.dim), _MAX_WIDTH,
                              sigma / 20)
    if self.width is None:
      # A whole number of shells per unit, as designed tables have.
      width = 1 / np.ceil(1 / width)
    mode = sigma * np.sqrt(self.dim)
    reach = _RADIAL_REACH * sigma / np.sqrt(2)
    # One dimension's radius is the normal itself, wider than sigma / sqrt 2.
    outer = mode + max(reach, _SCALAR_REACH * sigma - mode)
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
        'mechanism': 'radial-gaussian',
        'parameters': {'dim': self.dim, 'width': width,
                       'noise_multiplier': float(self.noise_multiplier)},
        'objective': None, 'lower_bound': None, 'gap': None, 'solver': None,
        'quantisation': width**2 * self.dim / 8,
        'statement': 'The radial Gaussian quantised on shells; not an '
                     'optimised design. Its quantisation costs about '
                     f'{100 * width**2 * self.dim / 8:.2g} % of epsilon.'}

    def build(sigma):
      # Relative to the first shell: the large constant would cost digits.
      log_density = -(middle - middle[0]) * (middle + middle[0]) / (
          2 * sigma**2)
      slope = -width * outer[-1] / sigma**2
      return radial_table.RadialTable.normalized(self.dim, first, width, log_density,
                                           slope, info)

    return _match_std(build, self.noise_multiplier)


_Table = Union[scalar_table.ScalarTable, radial_table.RadialTable]


def _match_std(build: Callable[[float], _Table], target: float) -> _Table:
  """The table of the family whose noise multiplier is `target`.

  Raises:
    ValueError: if the grid cannot carry noise of that size.
  """
  def error(log_factor):
    return np.log(build(target * np.exp(log_factor)).noise_multiplier / target)

  step = 1e-3
  while error(-step) > 0 or error(step) < 0:
    step *= 3
    if step > 1:
      raise ValueError(
          f'Expected a grid that can carry noise_multiplier={target!r}, got '
          'one too coarse or too short; raise bins or cells, or lower width.')
  found = optimize.brentq(error, -step, step, xtol=1e-15, rtol=1e-15)
  table = build(target * np.exp(found))
  if abs(table.noise_multiplier / target - 1) > 1e3 * _STD_ERROR:
    raise ValueError(
        f'Expected a noise multiplier of {target!r}, got '
        f'{table.noise_multiplier!r}; use a finer grid.')
  return table
