"""Truncated noise for scalar queries: least composed delta, Gaussian and Laplace."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from typing import Any, ClassVar

import numpy as np
from scipy import optimize

from tfcactus import _checks, _format
from tfcactus.design import closed_forms, fields
from tfcactus.design.solvers import (
  bounded_problem,
  convex_program,
  density_descent,
  moments_bound,
)
from tfcactus.noise import scalar_table, tiling

METHODS = ('direct', 'lp', 'ma')
"""Methods of `Truncated`, which explains them."""

CERTIFIED_GAP = 1e-4
"""Maximum relative gap to the lower bound of a proved optimum of delta."""

MOMENTS_GAP = 1e-2
"""Maximum relative gap to the lower bound of a proved optimum of the moments bound."""

NO_DELTA = 1e-9
"""Deltas below this are beyond the linear program's accuracy."""

_SMALLEST = 1e-300
"""Mass of the second cell where a very narrow density leaves it empty."""


@dataclasses.dataclass(frozen=True)
class Truncated:
  """Request for noise on [-range, range] of least composed delta.

  The table is sought among densities on whole cells that never increase with |z| (or
  may, with monotone=False) and meet the bound on utility. A table's cost comes from the
  accountant (`tfcactus.search.truncated_noise` calls it). The table's `info` says what
  was proved:

  - steps=1, 'direct' or 'lp': a linear program; the global optimum to 1e-4,
    proved by its multipliers unless delta is below 1e-9.
  - steps>1, 'direct': the composed delta by its exact gradient; a local
    optimum, the better of one or two starts.
  - 'ma': the Extended Moments Accountant's bound, convex at a fixed order; the
    global optimum of that bound at that order, where a tangent proves it. The
    true delta is usually worse than with 'direct'.

  Attributes:
    range: Bound on |noise|, in units of sensitivity; above one half.
    utility: Bound on E|Z| (norm 1) or sqrt(E Z^2) (norm 2), the uniform dither
      inside cells included, in units of sensitivity.
    epsilon: The epsilon, at most 700, at which delta is minimised.
    steps: Number of releases composed.
    sampling_prob: Poisson sampling probability of a release; 1 for no sampling.
    norm: 1 or 2.
    bins: Cells per unit of sensitivity, such that they tile the range; None
      for about 400 cells on each side, but at most 20 per unit, or a few more
      where fewer do not tile the range.
    method: 'direct', 'lp' or 'ma'.
    order: The order lambda of 'ma', at most 1e6; None to search it.
    monotone: False lets 'lp' put more mass further out. The full shift then
      may not be the worst change, and the true delta exceed the program's optimum.

  Raises:
    ValueError: if an argument is out of range, or no such table has that utility.

  Source: Sommer et al., "Learning Numeric Optimal Differentially Private
  Truncated Additive Mechanisms" (2021); the methods are this library's.
  """

  range: float
  utility: float
  epsilon: float
  steps: int = 1
  sampling_prob: float = 1.0
  norm: int = 2
  bins: int | None = None
  method: str = 'direct'
  order: float | None = None
  monotone: bool = True

  def __post_init__(self) -> None:
    _checks.choice('method', self.method, METHODS)
    problem = self._problem
    if self.method == 'lp' and problem.steps != 1:
      raise ValueError(
          "Expected steps=1 with method='lp', got "
          f'steps={problem.steps}: after several releases delta is not linear '
          "in the masses; use method='direct'.")
    if self.order is not None:
      _checks.positive('order', self.order)
      if self.method != 'ma' or self.order > 1e6:
        raise ValueError(
            "Expected an order of at most 1e6, with method='ma' only, got "
            f'order={self.order!r} with method={self.method!r}.')
    if not self.monotone and self.method != 'lp':
      raise ValueError(
          "Expected monotone=False with method='lp' only, got "
          f'method={self.method!r}.')

  @functools.cached_property
  def _problem(self) -> bounded_problem.Problem:
    """The checked request on its grid; ValueError if an argument is out of range."""
    bins, cells = tiling.check_range(self.range, self.bins)
    norm = tiling.check_norm(self.norm)
    return bounded_problem.Problem(
        bins, cells, norm,
        tiling.check_utility(self.utility, cells, bins, norm),
        fields.check_epsilon(self.epsilon),
        _checks.count('steps', self.steps),
        _checks.sampling_prob(self.sampling_prob))

  def solve(self) -> scalar_table.ScalarTable:
    """Designs the noise table.

    Raises:
      SolverError: if the linear program fails or is not proved to be at its optimum.
    """
    problem = self._problem
    if self.method == 'ma':
      w, found = self._by_moments(problem)
    elif problem.steps == 1:
      w, found = self._by_program(problem)
    else:
      w, evaluations = density_descent.solve(problem)
      found = {
          'objective': problem.delta(w)[0], 'lower_bound': None, 'gap': None,
          'solver': 'l-bfgs on the composed delta', 'iterations': evaluations,
          'statement': 'A local optimum of the delta after '
                       f'{problem.steps} releases among tables that never '
                       'increase with |z|: no lower bound is known.'}
    return scalar_table.ScalarTable.from_cell_masses(
        problem.bins, 0.5 * np.concatenate([w[::-1], w]),
        {'mechanism': 'truncated', 'parameters': {
            'range': float(self.range), 'utility': problem.utility,
            'norm': problem.norm, 'epsilon': problem.epsilon,
            'steps': problem.steps, 'sampling_prob': problem.sampling_prob,
            'bins': problem.bins, 'method': self.method,
            'monotone': self.monotone}, **found})

  def _by_program(self, problem: bounded_problem.Problem
                  ) -> tuple[np.ndarray, dict[str, Any]]:
    """Returns (masses of mirrored pairs, entries of `info`) by the linear program."""
    found = bounded_problem.solve(problem, monotone=self.monotone)
    lower = min(max(found.lower_bound, 0.0), found.delta)
    gap = (found.delta - lower) / found.delta if found.delta > 0 else 0.0
    if gap > CERTIFIED_GAP and found.delta > NO_DELTA:
      raise convex_program.SolverError(
          f'Expected a gap of at most {CERTIFIED_GAP:g} to the lower bound, got '
          f'{_format.upper(gap, 2)} (delta {_format.upper(found.delta)}, lower '
          f'bound {_format.lower(found.lower_bound)}); change bins.')
    among = ('never increase with |z|' if self.monotone else
             'may rise, for the full shift alone (smaller shifts may cost more)')
    return found.w, {
        'objective': found.delta, 'lower_bound': lower, 'gap': gap,
        'solver': 'linear program', 'iterations': None,
        'statement': ('The global optimum' if gap <= CERTIFIED_GAP else
                      'Not proved to be the optimum') +
                     ' of the delta of one release among tables of this grid '
                     f'that {among}, to the gap given.'}

  def _by_moments(self, problem: bounded_problem.Problem
                  ) -> tuple[np.ndarray, dict[str, Any]]:
    """Returns (masses of mirrored pairs, entries of `info`) by the moments bound."""
    found = moments_bound.solve(problem, self.order)
    gap = (found.bound - found.lower_bound) / found.bound
    proved = gap <= MOMENTS_GAP
    return found.w, {
        'objective': found.bound,
        'lower_bound': found.lower_bound if proved else None,
        'gap': gap if proved else None,
        'solver': 'l-bfgs on the moments bound', 'iterations': None,
        'order': found.order,
        'statement': (f'The global optimum to {_format.upper(gap, 2)} relatively'
                      if proved else 'Not proved to be the optimum') +
                     ' of the Extended Moments Accountant\'s bound of order '
                     f'{found.order:.6g} (the mass omega counted linearly) '
                     'among tables of this grid that never increase with |z|. '
                     'Not the optimum of delta.'}


@dataclasses.dataclass(frozen=True)
class TruncatedForm(abc.ABC):
  """Base class: a density truncated to [-range, range], on cells that tile it.

  Attributes:
    range: Bound on |noise|, in units of sensitivity; above one half.
    scale: Scale before truncation; give either `scale` or `utility`.
    utility: E|Z| (norm 1) or sqrt(E Z^2) (norm 2) of the table, in sensitivities.
    norm: 1 or 2.
    bins: Cells per unit of sensitivity; None for about 400 on each side, but at most 20
      per unit, or a few more where fewer do not tile the range.

  Raises:
    ValueError: if an argument is out of range, or none or both of `scale` and
      `utility` are given.
  """

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
      _checks.noise_scale('scale', self.scale)

  @abc.abstractmethod
  def _log_mass(self, edges: np.ndarray, scale: float) -> np.ndarray:
    """Returns log masses between edges >= 0, up to a constant; one fewer than edges."""

  def _masses(self, edges: np.ndarray, scale: float) -> np.ndarray:
    """Returns the masses, of sum one, of mirrored pairs of cells between edges >= 0."""
    # The running minimum undoes rises by rounding: the density must not increase.
    shape = np.minimum.accumulate(self._log_mass(edges, scale))
    w = np.exp(shape - shape[0])
    return w / np.sum(w)

  def _sought_scale(self, edges: np.ndarray, bins: int, utility: float) -> float:
    """Returns the scale at which the table has this utility."""
    # The bracket is from all mass in the innermost cells to nearly uniform noise.
    cost = tiling.cell_cost(edges.size - 1, bins, self.norm)

    def excess(log_scale: float) -> float:
      """Returns the log of the utility at this scale over the wanted one."""
      w = self._masses(edges, math.exp(log_scale))
      return math.log(float((w @ cost) / math.fsum(w))**(1 / self.norm) / utility)

    low, high = math.log(0.01 / bins), math.log(1e4 * self.range)
    if excess(high) < 0:  # Laplace noise is uniform to one part in 1e9 only here.
      high = math.log(1e10 * self.range)
    return math.exp(optimize.brentq(excess, low, high, xtol=1e-13))

  def solve(self) -> scalar_table.ScalarTable:
    """Builds the noise table; its `info` carries no certificate."""
    bins, cells = tiling.check_range(self.range, self.bins)
    edges = np.arange(cells + 1) / bins
    scale = (_checks.noise_scale('scale', self.scale) if self.utility is None else
             self._sought_scale(edges, bins, self.utility))
    w = self._masses(edges, scale)
    # Cells that underflow are cut off; a table has at least two.
    kept = max(int(np.count_nonzero(w)), 2)
    info = fields.uncertified(
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

  Its scale is the standard deviation before truncation. Arguments are those of
  `TruncatedForm`.

  Source: Example 7 of Sommer et al., "Learning Numeric Optimal Differentially
  Private Truncated Additive Mechanisms" (2021).
  """

  mechanism = 'truncated-gaussian'

  def _log_mass(self, edges: np.ndarray, scale: float) -> np.ndarray:
    if scale > 1e6 * edges[-1]:  # Differences of tails would have no digits left.
      return -0.5 * ((edges[1:] + edges[:-1]) / (2 * scale))**2
    return closed_forms.normal_log_mass(edges / scale)


@dataclasses.dataclass(frozen=True)
class TruncatedLaplace(TruncatedForm):
  """Request for a Laplace density truncated to [-range, range], on cells that tile it.

  Its scale is the b of exp(-|z| / b), its norm 1 by default. Arguments are those of
  `TruncatedForm`.

  Source: Geng, Ding, Guo and Kumar, "Tight analysis of privacy and utility
  tradeoff in approximate differential privacy" (AISTATS 2020).
  """

  norm: int = 1

  mechanism = 'truncated-laplace'

  def _log_mass(self, edges: np.ndarray, scale: float) -> np.ndarray:
    # In cells of one width the masses are proportional to the density at inner edges.
    return -edges[:-1] / scale
