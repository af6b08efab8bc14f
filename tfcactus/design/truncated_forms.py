"""Truncated noise in closed form, as tables: Gaussian, Laplace, staircase."""

from __future__ import annotations

import dataclasses
import math
from typing import Any
from typing import Callable
from typing import Optional

import numpy as np
from scipy import optimize
from scipy import special

from tfcactus import _checks
from tfcactus.noise import scalar_table
from tfcactus.noise import table_file
from tfcactus.noise import tiling

_SMALLEST = 1e-300
"""Mass of a second cell that a very narrow density leaves empty."""


@dataclasses.dataclass(frozen=True)
class _Cut:
  """A density of one scale, cut at a range."""

  range: float
  scale: Optional[float] = None
  utility: Optional[float] = None
  norm: int = 2
  bins: Optional[int] = None

  def __post_init__(self):
    _check(self)


@dataclasses.dataclass(frozen=True)
class TruncatedGaussian(_Cut):
  """A normal density cut at the range, quantised on cells that tile it.

  Attributes:
    range: Bound on |noise|, in units of sensitivity; above one half.
    scale: Standard deviation before the cut; give it or `utility`.
    utility: E|Z| (norm 1) or sqrt(E Z^2) (norm 2) of the table.
    norm: 1 or 2.
    bins: Cells per unit of sensitivity; None for about 400 on each side.

  Raises:
    ValueError: if an argument is out of range, or none or both of `scale` and
      `utility` are given.

  Source: Example 7 of Sommer et al., "Learning Numeric Optimal Differentially
  Private Truncated Additive Mechanisms" (2021).
  """

  def solve(self) -> scalar_table.ScalarTable:
    """Builds the noise table; its `info` carries no certificate."""
    return _solve(self, 'truncated-gaussian', _normal_log_mass)


@dataclasses.dataclass(frozen=True)
class TruncatedLaplace(_Cut):
  """A Laplace density cut at the range, quantised on cells that tile it.

  Attributes:
    range: Bound on |noise|, in units of sensitivity; above one half.
    scale: The parameter b of exp(-|z| / b); give it or `utility`.
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

  def solve(self) -> scalar_table.ScalarTable:
    """Builds the noise table; its `info` carries no certificate."""
    return _solve(self, 'truncated-laplace',
                  lambda edges, scale: -edges[:-1] / scale)


@dataclasses.dataclass(frozen=True)
class Staircase:
  """Geng's staircase: optimal for pure epsilon, one release and no range.

  The density falls by e^-epsilon once in each unit, at gamma, 1 + gamma, ...
  Cells that hold an edge get its average: moved by one, every cell still has
  exactly e^-epsilon times its density, so quantisation costs no privacy.

  Attributes:
    epsilon: Log of the height of a step, above zero.
    range: Where the stairs are cut and renormalised; None for none. Beyond
      1e-30 stairs without a range go on as a geometric tail of the same mean
      slope, which keeps epsilon.
    gamma: Where in (0, 1) the step is; None for the one of least E|Z|,
      1 / (1 + e^(epsilon / 2)).
    bins: Cells per unit of sensitivity.

  Raises:
    ValueError: if an argument is out of range.

  Source: Geng, Kairouz, Oh and Viswanath, "The staircase mechanism in
  differential privacy" (IEEE JSTSP 2015).
  """

  epsilon: float
  range: Optional[float] = None
  gamma: Optional[float] = None
  bins: int = 100

  def __post_init__(self):
    epsilon = _checks.positive('epsilon', self.epsilon)
    bins = _checks.integer('bins', self.bins, 1)
    if self.range is not None:
      tiling.check_range(self.range, bins)
    elif self._stairs() * bins > 1_000_000:
      raise ValueError(
          f'Expected stairs that fall to 1e-30 within 1000000 cells, got '
          f'epsilon={epsilon!r} and bins={bins}; lower bins.')
    if self.gamma is not None and not 0 < _checks.real(
        'gamma', self.gamma) < 1:
      raise ValueError(
          f'Expected gamma in (0, 1), got gamma={self.gamma!r}.')

  def _stairs(self) -> int:
    return math.ceil(-table_file.LOG_TAIL_FLOOR / self.epsilon) + 1

  def solve(self) -> scalar_table.ScalarTable:
    """Builds the noise table; its `info` carries no certificate."""
    gamma = self.gamma or 1 / (1 + math.exp(self.epsilon / 2))
    length = self._stairs() if self.range is None else self.range
    edges = np.arange(round(length * self.bins) + 1) / self.bins
    # Mass up to z: whole stairs, then what lies before and after the step.
    inside = np.arange(self.bins + 1) / self.bins
    down = math.exp(-self.epsilon)
    mass = np.diff(np.minimum(inside, gamma) +
                   down * np.maximum(inside - gamma, 0.0))
    stair, place = np.divmod(np.arange(edges.size - 1), self.bins)
    log_density = np.log(mass)[place] - self.epsilon * stair
    tail = -math.inf if self.range is not None else -self.epsilon / self.bins
    info = {
        'mechanism': 'staircase' if self.range is None else
                     'truncated-staircase',
        'parameters': {'epsilon': float(self.epsilon), 'gamma': gamma,
                       'range': self.range, 'bins': self.bins},
        **_no_certificate(
            'The staircase mechanism' + (
                '.' if self.range is None else ', cut at the range.'))}
    return scalar_table.ScalarTable.normalized(
        self.bins, np.minimum.accumulate(log_density), tail, info,
        edge_at_zero=True)


def _no_certificate(statement: str) -> dict[str, Any]:
  return {'objective': None, 'lower_bound': None, 'gap': None, 'solver': None,
          'statement': f'{statement} Not an optimised design.'}


def _check(request: Any) -> None:
  bins, cells = tiling.check_range(request.range, request.bins)
  norm = tiling.check_norm(request.norm)
  if (request.scale is None) == (request.utility is None):
    raise ValueError(
        'Expected scale or utility, got '
        f'scale={request.scale!r} and utility={request.utility!r}.')
  if request.scale is not None:
    _checks.positive('scale', request.scale)
  else:
    tiling.check_utility(request.utility, cells, bins, norm)


def _normal_log_mass(edges: np.ndarray, scale: float) -> np.ndarray:
  log_above = special.log_ndtr(-edges / scale)
  return log_above[:-1] + np.log(-np.expm1(np.diff(log_above)))


def _solve(request: Any, name: str,
           log_mass: Callable[[np.ndarray, float], np.ndarray]
           ) -> scalar_table.ScalarTable:
  """The table of a family with one scale, which is given or sought."""
  bins, cells = tiling.check_range(request.range, request.bins)
  edges = np.arange(cells + 1) / bins

  def masses(scale):
    shape = np.minimum.accumulate(log_mass(edges, scale))
    w = np.exp(shape - shape[0])
    return w / np.sum(w)

  def excess(log_scale):
    w = masses(math.exp(log_scale))
    return math.log(tiling.utility_of(w, bins, request.norm) /
                    request.utility)

  scale = request.scale
  if scale is None:
    low, high = math.log(0.01 / bins), math.log(1e4 * request.range)
    scale = math.exp(optimize.brentq(excess, low, high, xtol=1e-13))
  w = masses(scale)
  kept = max(int(np.count_nonzero(w)), 2)
  info = {
      'mechanism': name,
      'parameters': {'range': float(request.range), 'scale': float(scale),
                     'bins': bins},
      **_no_certificate(f'{name.replace("-", " ").capitalize()} noise with '
                        'exact cell probabilities.')}
  return scalar_table.ScalarTable.normalized(
      bins, np.log(np.maximum(w[:kept], _SMALLEST)), -math.inf, info,
      edge_at_zero=True)
