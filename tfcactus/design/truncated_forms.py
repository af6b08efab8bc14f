"""The Gaussian and the Laplace distribution, truncated to a range, as tables."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import ClassVar

import numpy as np
from scipy import optimize

from tfcactus import _checks
from tfcactus.design import closed_form, table_info
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
    """Returns log masses between edges >= 0, up to a constant; one fewer than edges."""

  def _masses(self, edges: np.ndarray, scale: float) -> np.ndarray:
    """Returns the masses, of sum one, of mirrored pairs of cells between edges >= 0."""
    shape = np.minimum.accumulate(self._log_mass(edges, scale))
    w = np.exp(shape - shape[0])
    return w / np.sum(w)

  def _sought_scale(self, edges: np.ndarray, bins: int, utility: float) -> float:
    """Returns the scale at which the table has this utility."""
    def excess(log_scale: float) -> float:
      """Returns the log of the utility at this scale over the wanted one."""
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


@dataclasses.dataclass(frozen=True)
class TruncatedGaussian(TruncatedForm):
  """Request for a normal density truncated to [-range, range], on cells that tile it.

  Attributes:
    range: Bound on |noise|, in units of sensitivity; above one half.
    scale: Standard deviation before truncation; give either `scale` or `utility`.
    utility: E|Z| (norm 1) or sqrt(E Z^2) (norm 2) of the table.
    norm: 1 or 2.
    bins: Cells per unit of sensitivity; None for about 400 on each side.

  Raises:
    ValueError: if an argument is out of range, or none or both of `scale` and
      `utility` are given.

  Source: Example 7 of Sommer et al., "Learning Numeric Optimal Differentially
  Private Truncated Additive Mechanisms" (2021).
  """

  mechanism = 'truncated-gaussian'

  def _log_mass(self, edges: np.ndarray, scale: float) -> np.ndarray:
    """Returns log normal probabilities between edges; `scale` is the deviation."""
    return closed_form.normal_log_mass(edges / scale)


@dataclasses.dataclass(frozen=True)
class TruncatedLaplace(TruncatedForm):
  """Request for a Laplace density truncated to [-range, range], on cells that tile it.

  Attributes:
    range: Bound on |noise|, in units of sensitivity; above one half.
    scale: The parameter b of exp(-|z| / b); give either `scale` or `utility`.
    utility: E|Z| (norm 1) or sqrt(E Z^2) (norm 2) of the table.
    norm: 1 or 2.
    bins: Cells per unit of sensitivity; None for about 400 on each side.

  Raises:
    ValueError: if an argument is out of range, or none or both of `scale` and
      `utility` are given.

  Source: Geng, Ding, Guo and Kumar, "Tight analysis of privacy and utility
  tradeoff in approximate differential privacy" (AISTATS 2020).
  """

  norm: int = 1

  mechanism = 'truncated-laplace'

  def _log_mass(self, edges: np.ndarray, scale: float) -> np.ndarray:
    """Returns log masses of the Laplace density with b = `scale`, up to a constant."""
    return -edges[:-1] / scale
