"""Base class of requests for truncated densities of one scale parameter."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import ClassVar

import numpy as np
from scipy import optimize

from tfcactus import _checks
from tfcactus.design import table_info
from tfcactus.noise import scalar_table, tiling

_SMALLEST = 1e-300
"""Mass of the second cell where a very narrow density leaves it empty."""


@dataclasses.dataclass(frozen=True)
class TruncatedForm(abc.ABC):
  """Base class: a density truncated to a range, of a given scale or a given utility."""

  range: float
  scale: float | None = None
  utility: float | None = None
  norm: int = 2
  bins: int | None = None

  mechanism: ClassVar[str]
  """The mechanism's name as reports show it."""

  def __post_init__(self) -> None:
    bins, cells = tiling.check_range(self.range, self.bins)
    norm = tiling.check_norm(self.norm)
    if (self.scale is None) == (self.utility is None):
      raise ValueError(
          'Expected scale or utility, got '
          f'scale={self.scale!r} and utility={self.utility!r}.')
    if self.utility is not None:
      tiling.check_utility(self.utility, cells, bins, norm)
    else:
      _checks.positive('scale', self.scale)

  @abc.abstractmethod
  def _log_mass(self, edges: np.ndarray, scale: float) -> np.ndarray:
    """Returns log masses between edges, up to a constant; shape (edges - 1,)."""

  def _masses(self, edges: np.ndarray, scale: float) -> np.ndarray:
    shape = np.minimum.accumulate(self._log_mass(edges, scale))
    w = np.exp(shape - shape[0])
    return w / np.sum(w)

  def _sought_scale(self, edges: np.ndarray, bins: int, utility: float) -> float:
    """Returns the scale at which the table has this utility."""
    def excess(log_scale: float) -> float:
      w = self._masses(edges, math.exp(log_scale))
      return math.log(tiling.utility_of(w, bins, self.norm) / utility)

    low, high = math.log(0.01 / bins), math.log(1e4 * self.range)
    return math.exp(optimize.brentq(excess, low, high, xtol=1e-13))

  def solve(self) -> scalar_table.ScalarTable:
    """Builds the noise table; its `info` carries no certificate."""
    bins, cells = tiling.check_range(self.range, self.bins)
    edges = np.arange(cells + 1) / bins
    scale = (_checks.positive('scale', self.scale) if self.utility is None else
             self._sought_scale(edges, bins, self.utility))
    w = self._masses(edges, scale)
    kept = max(int(np.count_nonzero(w)), 2)
    info = table_info.uncertified(
        self.mechanism,
        {'range': float(self.range), 'scale': scale, 'bins': bins},
        f'{self.mechanism.replace("-", " ").capitalize()} noise with exact cell '
        'probabilities. Not an optimised design.')
    return scalar_table.ScalarTable.normalized(
        bins, np.log(np.maximum(w[:kept], _SMALLEST)), -math.inf, info,
        edge_at_zero=True)
