"""Closed-form laws as tables: Gaussian, Laplace, sinh-normal and staircase.

A cell of the line gets the law's probability of it, a shell of R^dim the Gaussian
density at its middle. Tails are geometric, which is exact for the Laplace table only.
Gaussian tables fit the law's scale, so that the table has the wanted noise multiplier.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Callable, TypeVar

import numpy as np
from scipy import optimize, special

from tfcactus import _checks
from tfcactus.design import fields
from tfcactus.noise import radial_table, scalar_table, sinh_normal, table_file, tiling

STD_ERROR = 1e-9
"""Maximum relative error of a table's noise multiplier."""

Table = TypeVar('Table', scalar_table.ScalarTable, radial_table.RadialTable)

_REACH = 12.0
"""Standard deviations that the cells cover by default."""

_MAX_CELLS = 1_000_000
"""Largest size of a table, which catches mistaken arguments; some have less."""

_RADIAL_REACH = 9.0
"""Standard deviations (sigma / sqrt 2) of the radius that the shells cover each way."""

_LINE_REACH = 12.0
"""Minimum outer radius of the shells, in standard deviations of one coordinate."""

_SHELL_RULE = 0.12
"""Default of width * sqrt(dim). Quantisation costs its square over 8, .18 %, of
epsilon (measured). Only quality depends on it: accountants read the table itself."""

_MAX_WIDTH = 1 / 40
"""Largest default width of a shell, in units of sensitivity: in few dimensions
`_SHELL_RULE` alone gives coarse shells."""


def normal_log_mass(edges: np.ndarray) -> np.ndarray:
  """Returns log N(0, 1) probabilities between edges >= 0; shape (edges - 1,)."""
  log_above = special.log_ndtr(-edges)
  return log_above[:-1] + np.log(-np.expm1(np.diff(log_above)))


def central_log_mass(edges: np.ndarray) -> np.ndarray:
  """Returns log N(0, 1) masses between edges; only edges[0] = -edges[1] is below 0."""
  # The mass of the middle cell is twice that of its upper half.
  log_mass = normal_log_mass(np.maximum(edges, 0.0))
  log_mass[0] += np.log(2.0)
  return log_mass


def check_resolution(name: str, std: float, bins: int) -> None:
  """Raises ValueError if `std`, in sensitivities, is below half a cell of 1 / bins."""
  if std * bins < 0.5:
    raise ValueError(
        'Expected a standard deviation of at least half a cell, got '
        f'{name}={std:.4g} and bins={bins}; raise bins.')


def check_size(size: float, largest: float, what: str, remedy: str) -> None:
  """Raises ValueError if `size`, the number of `what`, exceeds `largest`."""
  if size > largest:
    raise ValueError(f'Expected at most {largest} {what}, got {size:.6g}; {remedy}.')


def match_std(build: Callable[[float], Table], target: float) -> Table:
  """Returns the table of a family whose noise multiplier is `target` to `STD_ERROR`.

  `build` maps a scale to a table whose noise multiplier increases with the scale.
  Raises ValueError if no scale from half to twice `target` gives such a table.
  """
  def error(log_factor: float) -> float:
    """Returns log(noise multiplier / target) at the scale target * e^log_factor."""
    return float(np.log(build(target * np.exp(log_factor)).noise_multiplier / target))

  # Quantisation changes the noise multiplier a little: widen the bracket as needed.
  step = 1e-3
  while error(-step) > 0 or error(step) < 0:
    step *= 3
    if step > 1:
      raise ValueError(
          f'Expected a grid that can carry noise_multiplier={target!r}, got '
          'one too coarse or too short; raise bins or cells, or lower width.')
  log_factor = optimize.brentq(error, -step, step, xtol=1e-15, rtol=1e-15)
  table = build(target * np.exp(log_factor))
  if abs(table.noise_multiplier / target - 1) > STD_ERROR:
    raise ValueError(
        f'Expected a noise multiplier of {target!r}, got '
        f'{table.noise_multiplier!r}; use a finer grid.')
  return table


@dataclasses.dataclass(frozen=True)
class DiscretizedGaussian:
  """Request for normal noise quantised on cells, with geometric tails.

  The underlying normal is fitted, so that the table's standard deviation, which
  includes the uniform spread inside cells, equals `noise_multiplier`.

  Attributes:
    noise_multiplier: Standard deviation over sensitivity.
    bins: Cells per unit of sensitivity.
    cells: Index of the last stored cell, which lies at 4 standard deviations or more;
      None for 12 standard deviations, or 12 cells if that is further.
    tail_ratio: Density ratio in (0, 1) of neighbouring cells beyond `cells`;
      None continues the ratio of the last two cells.

  Raises:
    ValueError: if an argument is out of range. `solve` raises it if no normal on this
      grid has the noise multiplier.
  """

  noise_multiplier: float
  bins: int = 200
  cells: int | None = None
  tail_ratio: float | None = None

  def __post_init__(self) -> None:
    sigma = _checks.noise_scale('noise_multiplier', self.noise_multiplier)
    bins = _checks.count('bins', self.bins)
    check_resolution('noise_multiplier', sigma, bins)
    cells = self._cells()
    check_size(cells, 200_000, 'cells', 'lower bins')
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
      return _checks.count('cells', self.cells)
    return int(np.ceil(_REACH * max(self.noise_multiplier * self.bins, 1)))

  def solve(self) -> scalar_table.ScalarTable:
    """Builds the noise table; its `info` carries no certificate."""
    cells = self._cells()
    edges = np.arange(cells + 2) - 0.5
    info = fields.uncertified(
        'discretized-gaussian',
        {'noise_multiplier': float(self.noise_multiplier), 'bins': self.bins,
         'cells': cells},
        'The normal distribution quantised on cells; not an optimised design.')

    def build(sigma: float) -> scalar_table.ScalarTable:
      """Returns the table of a normal of standard deviation `sigma`."""
      # The running minimum undoes rises by rounding: the density must not increase.
      log_mass = np.minimum.accumulate(central_log_mass(edges / (self.bins * sigma)))
      slope = log_mass[-1] - log_mass[-2] if self.tail_ratio is None else (
          np.log(self.tail_ratio))
      return scalar_table.ScalarTable.normalized(
          self.bins, log_mass, float(slope), info)

    return match_std(build, self.noise_multiplier)


@dataclasses.dataclass(frozen=True)
class DiscretizedLaplace:
  """Request for Laplace noise with the exact Laplace probability of every cell.

  The masses of cells i >= 1 are geometric, so that the tail is exact. Inside a cell the
  density is constant: for cells much narrower than `scale`, E|Z| exceeds `scale` by
  about the square of the cell width over 12 scale; `table.moment(1)` is that E|Z|.

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
    _checks.noise_scale('scale', self.scale)
    bins = _checks.count('bins', self.bins)
    if self.cells is not None:
      fields.check_cells(self.cells, bins)
    check_size(self.scale * bins, 100_000, 'cells in a scale', 'lower bins')

  def solve(self) -> scalar_table.ScalarTable:
    """Builds the noise table; its `info` carries no certificate."""
    cells = self.bins + 1 if self.cells is None else self.cells
    width = 1.0 / (self.bins * self.scale)
    # With cells of width w, cell 0 has mass 1 - exp(-w / 2), and cell i >= 1 has mass
    # exp(-i w) sinh(w / 2), where sinh(w / 2) is exp(w / 2) (1 - exp(-w)) / 2.
    log_sinh = width / 2 + math.log(-math.expm1(-width) / 2)
    log_mass = np.append(math.log(-math.expm1(-width / 2)),
                         log_sinh - width * np.arange(1, cells + 1))
    info = fields.uncertified(
        'discretized-laplace',
        {'scale': float(self.scale), 'bins': self.bins, 'cells': cells},
        'Laplace noise with exact cell probabilities and tail; not an optimised '
        'design.')
    return scalar_table.ScalarTable.normalized(
        self.bins, log_mass, -width, info)


@dataclasses.dataclass(frozen=True)
class DiscretizedSinhNormal:
  """Request for sinh-normal noise on cells, with a geometric tail beyond the last one.

  By default, with narrow cells, the tail starts with less than 1e-32 of the mass.
  The tail is heavier than that of sinh-normal noise: all moments of the table's privacy
  loss are finite. The table's noise multiplier is not fitted to that of the noise.

  Attributes:
    sigma: Standard deviation of the underlying normal, over the sensitivity.
    bend: Where the tails bend (A of the paper), in units of sensitivity. Below
      sigma the density has two peaks, and is accounted over all shifts.
    bins: Cells per unit of sensitivity.
    cells: Index of the last stored cell; None for 12 standard deviations of the
      underlying normal.

  Raises:
    ValueError: if an argument is out of range.

  Source: section 4 of Bun, Dwork, Rothblum and Steinke (STOC 2018).
  """

  sigma: float
  bend: float
  bins: int = 200
  cells: int | None = None

  def __post_init__(self) -> None:
    noise = sinh_normal.SinhNormal(self.sigma, self.bend)
    bins = _checks.count('bins', self.bins)
    check_resolution('std', noise.std, bins)
    cells = self._cells()
    if not 2 <= cells <= _MAX_CELLS:
      raise ValueError(
          f'Expected 2 to {_MAX_CELLS} cells, got {cells}; change bins or cells.')
    check_size(float(noise.straight((cells + 1) / bins)), 1e150,
               'standard deviations up to the last cell', 'lower cells')

  def _cells(self) -> int:
    """Returns the index of the last stored cell: `cells`, or the default for None."""
    if self.cells is not None:
      return _checks.count('cells', self.cells)
    reach = self.bend * np.arcsinh(_REACH * self.sigma / self.bend)
    return max(int(np.floor(reach * self.bins)), 2)

  def solve(self) -> scalar_table.ScalarTable:
    """Builds the noise table; its `info` carries no certificate."""
    edges = (np.arange(self._cells() + 2) - 0.5) / self.bins
    log_mass = central_log_mass(self.bend / self.sigma * np.sinh(edges / self.bend))
    if self.bend >= self.sigma:  # The density never increases; rounding may.
      log_mass = np.minimum.accumulate(log_mass)
    info = fields.uncertified(
        'discretized-sinh-normal',
        {'sigma': float(self.sigma), 'bend': float(self.bend),
         'bins': self.bins, 'cells': self._cells()},
        'Sinh-normal noise with exact cell probabilities; not an optimised design.')
    return scalar_table.ScalarTable.normalized(
        self.bins, log_mass, float(log_mass[-1] - log_mass[-2]), info)


@dataclasses.dataclass(frozen=True)
class Staircase:
  """Request for staircase noise, of least E|Z| for pure epsilon and one release.

  The density decreases by a factor of e^-epsilon once in each unit, at gamma, 1 +
  gamma, ... A cell that contains a step holds its average density. One unit further
  out, a cell has e^-epsilon times the density, so quantisation costs no privacy. With a
  range, the noise has no pure epsilon.

  Attributes:
    epsilon: Log of the ratio of neighbouring steps, above zero, at most 700.
    range: Where the density is truncated and renormalised; None for no truncation.
      Without a range the density continues, once it has decreased to 1e-30, as a
      geometric tail of the same mean slope, which keeps epsilon.
    gamma: Place of the step in (0, 1); None for 1 / (1 + e^(epsilon / 2)), which
      minimises E|Z|.
    bins: Cells per unit of sensitivity; they must tile the range.

  Raises:
    ValueError: if an argument is out of range.

  Source: Geng, Kairouz, Oh and Viswanath, "The staircase mechanism in differential
  privacy" (IEEE JSTSP 2015).
  """

  epsilon: float
  range: float | None = None
  gamma: float | None = None
  bins: int = 100

  def __post_init__(self) -> None:
    _checks.positive('epsilon', fields.check_epsilon(self.epsilon))
    bins = _checks.count('bins', self.bins)
    if self.range is not None:
      tiling.check_range(self.range, bins)
    else:
      check_size(-table_file.LOG_TAIL_FLOOR / self.epsilon * bins, _MAX_CELLS,
                 'cells until the stairs fall to 1e-30', 'lower bins')
    if self.gamma is not None and not 0 < _checks.real('gamma', self.gamma) < 1:
      raise ValueError(f'Expected gamma in (0, 1), got gamma={self.gamma!r}.')

  def solve(self) -> scalar_table.ScalarTable:
    """Builds the noise table; its `info` carries no certificate."""
    gamma = self.gamma or 1 / (1 + math.exp(self.epsilon / 2))
    # Without a range the stairs fall to 1e-30 or less.
    length = self.range or math.ceil(-table_file.LOG_TAIL_FLOOR / self.epsilon) + 1
    edges = np.arange(round(length * self.bins) + 1) / self.bins
    # Masses of the cells of one unit: height 1 before the step, e^-epsilon after it.
    # The two parts of a mass are differences of their own: their sizes are far apart.
    inside = np.arange(self.bins + 1) / self.bins
    mass = np.diff(np.minimum(inside, gamma)) + math.exp(-self.epsilon) * np.diff(
        np.maximum(inside - gamma, 0.0))
    stair, place = np.divmod(np.arange(edges.size - 1), self.bins)
    log_density = np.log(mass)[place] - self.epsilon * stair
    tail = -math.inf if self.range is not None else -self.epsilon / self.bins
    info = fields.uncertified(
        'staircase' if self.range is None else 'truncated-staircase',
        {'epsilon': float(self.epsilon), 'gamma': gamma, 'range': self.range,
         'bins': self.bins},
        'The staircase mechanism' + (
            '.' if self.range is None else ', cut at the range.') +
        ' Not an optimised design.')
    return scalar_table.ScalarTable.normalized(
        self.bins, np.minimum.accumulate(log_density), tail, info,
        edge_at_zero=True)


@dataclasses.dataclass(frozen=True)
class RadialGaussian:
  """Request for normal noise in R^dim, quantised on shells around its typical radius.

  In more than about 40 dimensions one core ball below the shells has the first shell's
  density. Beyond the shells lies a geometric tail with the normal's slope. In thousands
  of dimensions the isotropic optimum equals this Gaussian to five digits.

  Attributes:
    dim: Dimension of the query.
    noise_multiplier: Standard deviation of a coordinate of the table over sensitivity;
      the underlying normal is fitted to it.
    width: Width of a shell in units of sensitivity; None for the default
      min(.12 / sqrt(dim), 1/40, sigma/20), lowered to a whole number of shells per
      unit, which costs less than .2 % of epsilon.

  Raises:
    ValueError: if an argument is out of range. `solve` raises it if no normal on these
      shells has the noise multiplier.
  """

  dim: int
  noise_multiplier: float
  width: float | None = None

  def __post_init__(self) -> None:
    _checks.count('dim', self.dim)
    sigma = _checks.noise_scale('noise_multiplier', self.noise_multiplier)
    if self.width is not None:
      _checks.positive('width', self.width)
      if self.width > sigma / 2:
        raise ValueError(
            'Expected width <= noise_multiplier / 2, got width='
            f'{self.width!r} and noise_multiplier={sigma!r}.')
    low, high, width = self._layout()
    check_size((high - low) / width, 200_000, 'shells',
               'raise width (at the price of a larger epsilon)')

  def _layout(self) -> tuple[float, float, float]:
    """Returns the inner and outer radius of the shells, and their width."""
    sigma = float(self.noise_multiplier)
    width = self.width or min(_SHELL_RULE / math.sqrt(self.dim), _MAX_WIDTH, sigma / 20)
    if self.width is None:
      # Designed tables, too, have a whole number of shells per unit.
      width = 1 / math.ceil(1 / width)
    mode = sigma * math.sqrt(self.dim)
    reach = _RADIAL_REACH * sigma / math.sqrt(2)
    # In one dimension the radius is |normal|, wider than sigma / sqrt 2.
    outer = mode + max(reach, _LINE_REACH * sigma - mode)
    return max(mode - reach, 0.0), outer, width

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
        **fields.uncertified(
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
      log_density = -(middle - middle[0]) * (middle + middle[0]) / (2 * sigma**2)
      slope = -width * outer[-1] / sigma**2
      return radial_table.RadialTable.normalized(
          self.dim, first, width, log_density, slope, info)

    return match_std(build, self.noise_multiplier)
