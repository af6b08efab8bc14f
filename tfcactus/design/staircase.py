"""The staircase mechanism, optimal for pure epsilon, as a table."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from tfcactus import _checks
from tfcactus.design import closed_form, table_info
from tfcactus.noise import scalar_table, table_file, tiling

_MAX_CELLS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Staircase:
  """Request for staircase noise: optimal for pure epsilon, one release and no range.

  The density decreases by e^-epsilon once in each unit, at gamma, 1 + gamma, ... A cell
  that contains a step holds its average density. One unit further
  out, a cell has exactly e^-epsilon times the density, so quantisation costs no
  privacy.

  Attributes:
    epsilon: Log of the ratio of neighbouring steps, above zero.
    range: Where the density is truncated and renormalised; None for no truncation.
      Without a range the density continues, once it has decreased to 1e-30, as a
      geometric tail of the same mean slope, which keeps epsilon.
    gamma: Place of the step in (0, 1); None for 1 / (1 + e^(epsilon / 2)), which
      minimises E|Z|.
    bins: Cells per unit of sensitivity.

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
    _checks.positive('epsilon', self.epsilon)
    bins = _checks.integer('bins', self.bins, 1)
    if self.range is not None:
      tiling.check_range(self.range, bins)
    else:
      closed_form.check_size(self._stairs() * bins, _MAX_CELLS,
                             'cells until the stairs fall to 1e-30', 'lower bins')
    if self.gamma is not None and not 0 < _checks.real(
        'gamma', self.gamma) < 1:
      raise ValueError(
          f'Expected gamma in (0, 1), got gamma={self.gamma!r}.')

  def _stairs(self) -> int:
    """Returns the number of units in which the density decreases to 1e-30 or less."""
    return math.ceil(-table_file.LOG_TAIL_FLOOR / self.epsilon) + 1

  def solve(self) -> scalar_table.ScalarTable:
    """Builds the noise table; its `info` carries no certificate."""
    gamma = self.gamma or 1 / (1 + math.exp(self.epsilon / 2))
    length = self._stairs() if self.range is None else self.range
    edges = np.arange(round(length * self.bins) + 1) / self.bins
    # Mass up to z within one unit: height 1 before the step, e^-epsilon after it.
    inside = np.arange(self.bins + 1) / self.bins
    down = math.exp(-self.epsilon)
    mass = np.diff(np.minimum(inside, gamma) +
                   down * np.maximum(inside - gamma, 0.0))
    stair, place = np.divmod(np.arange(edges.size - 1), self.bins)
    log_density = np.log(mass)[place] - self.epsilon * stair
    tail = -math.inf if self.range is not None else -self.epsilon / self.bins
    info = table_info.uncertified(
        'staircase' if self.range is None else 'truncated-staircase',
        {'epsilon': float(self.epsilon), 'gamma': gamma, 'range': self.range,
         'bins': self.bins},
        'The staircase mechanism' + (
            '.' if self.range is None else ', cut at the range.') +
        ' Not an optimised design.')
    return scalar_table.ScalarTable.normalized(
        self.bins, np.minimum.accumulate(log_density), tail, info,
        edge_at_zero=True)
