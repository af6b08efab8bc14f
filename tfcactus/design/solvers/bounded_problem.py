"""The design problem of truncated noise, and the linear program of one release.

The unknowns are the masses w of the mirrored pairs of cells of [-range, range], counted
outwards from zero. The delta of one release is piecewise linear in them. By duality any
multipliers bound it from below for every table of the grid. The bound is computed in
fractions, without rounding.
"""

from __future__ import annotations

import dataclasses
import decimal
from fractions import Fraction
import functools
import math
from typing import Any

import numpy as np
from scipy import optimize, sparse

from tfcactus import _numerics
from tfcactus.design.solvers import composed_delta, convex_program
from tfcactus.noise import tiling

NEGLIGIBLE = 1e-13
"""Masses below this share of the largest count as zero, or as this share if masses may
rise outwards: tables have no empty cells between others."""

_ROUNDOFF = 64 * _numerics.EPS
"""Bound on the relative error of e^epsilon, of a sum of masses, and of the masses of a
table, which keeps logs: these are above -42."""


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
  """The request for truncated noise, as a grid with a bound on utility."""

  bins: int  # Cells per unit of sensitivity.
  cells: int  # Cells between zero and the range.
  norm: int  # Utility is E|Z| for 1, sqrt(E Z^2) for 2.
  utility: float  # Upper bound on the utility.
  epsilon: float  # The epsilon at which delta is minimised.
  steps: int  # Number of releases.
  sampling_prob: float = 1.0  # Poisson sampling probability; 1 for no sampling.

  @functools.cached_property
  def cost(self) -> np.ndarray:
    """Mean of |z|^norm over each cell, dither included; shape (cells,)."""
    return tiling.cell_cost(self.cells, self.bins, self.norm)

  @property
  def budget(self) -> float:
    """Upper bound on E|Z|^norm."""
    return self.utility**self.norm

  def pairs(self, w: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns outcome masses (P, Q) of a release; two pairs if sampled, else one."""
    return composed_delta.sampled_pairs(*shifted(w, self.bins), self.sampling_prob)

  def delta(self, w: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns the largest delta over `pairs`, and its gradient with respect to w."""
    values = [composed_delta.composed_delta(p, q, epsilon=self.epsilon,
                                            steps=self.steps)
              for p, q in self.pairs(w)]
    worst, value = max(enumerate(values), key=lambda item: item[1].delta)
    return value.delta, self.by_masses(worst, value.by_p, value.by_q)

  def by_masses(self, direction: int, by_p: np.ndarray, by_q: np.ndarray) -> np.ndarray:
    """Maps derivatives with respect to pairs(w)[direction] to a gradient for w."""
    by_p, by_q = composed_delta.unsampled(direction, by_p, by_q, self.sampling_prob)
    # The noise is the first 2 n outcomes, the shifted noise the last 2 n, and each mass
    # of w is spread over two mirrored cells.
    n = self.cells
    full = by_p[:2 * n] + by_q[self.bins:]
    return (full[n:] + full[:n][::-1]) / 2


def shifted(w: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns masses of noise w and of w shifted by `bins`, on 2 * cells + bins cells."""
  full = 0.5 * np.concatenate([w[::-1], w])
  nothing = np.zeros(bins)
  return np.append(full, nothing), np.append(nothing, full)


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
  """The optimum of a linear program."""

  w: np.ndarray  # Shape (cells,), masses of the mirrored pairs of cells.
  delta: float  # Upper bound on the delta of w and of a table with these masses.
  lower_bound: float  # Lower bound on the delta of all masses that the program allows.


def solve(problem: Problem, *, monotone: bool = True) -> Solution:
  """Returns the masses of least delta of one release under the full shift.

  `monotone` asks for masses that never increase outwards. Without it the full shift may
  not be the worst, and the solution's delta is not the table's privacy cost. Raises
  SolverError if the linear program has no result.
  """
  objective, upper, right, mass = _program_of(problem, monotone)
  result = optimize.linprog(
      objective, A_ub=upper, b_ub=right, A_eq=mass, b_eq=[1.0], bounds=(0, 1),
      method='highs', options={'primal_feasibility_tolerance': 1e-10,
                               'dual_feasibility_tolerance': 1e-10})
  if result.x is None:
    raise convex_program.SolverError(
        f'Expected an optimum of the linear program, got: {result.message}')
  w = result.x[:problem.cells]
  # Masses that never increase may end in empty cells, which only shorten the range.
  # Otherwise empty cells may lie between others, which no table holds: fill them.
  least = NEGLIGIBLE * np.max(w)
  w = within_budget(problem, np.minimum.accumulate(np.where(w < least, 0.0, w))
                    if monotone else np.maximum(w, least))
  # Rounded up.
  more, less = 1 + _ROUNDOFF, math.exp(problem.epsilon) * (1 - _ROUNDOFF)
  delta = more * max(float(np.sum(np.maximum(more * p - less * q, 0.0)))
                     for p, q in problem.pairs(w))
  return Solution(w, delta, _lower_bound(problem, monotone, result))


def _program_of(problem: Problem, monotone: bool
                ) -> tuple[np.ndarray, sparse.csr_matrix, np.ndarray,
                           sparse.csr_matrix]:
  """Returns the linear program of one release as (objective, A, b, mass).

  It minimises objective @ x over x in [0, 1] with A x <= b and mass @ x = 1.
  """
  # The variables x are w, one excess per outcome and direction, and delta. An excess is
  # at least P - e^epsilon Q and zero, and those of a direction sum to at most delta. In
  # `rows`, None is a block of zeros.
  n = problem.cells
  # `Problem.pairs`, (P, Q) for each direction, as matrices that multiply w.
  full = 0.5 * sparse.vstack([sparse.identity(n).tocsr()[::-1], sparse.identity(n)])
  nothing = sparse.csr_matrix((problem.bins, n))
  maps = composed_delta.sampled_pairs(
      sparse.csr_matrix(sparse.vstack([full, nothing])),
      sparse.csr_matrix(sparse.vstack([nothing, full])), problem.sampling_prob)
  outcomes, others = 2 * n + problem.bins, [None] * (len(maps) + 1)
  rows = []
  for i, (p, q) in enumerate(maps):
    before, after = [None] * i, [None] * (len(maps) - 1 - i)
    rows += [[p - math.exp(problem.epsilon) * q,
              *before, -sparse.identity(outcomes), *after, None],
             [None, *before, np.ones((1, outcomes)), *after, -np.ones((1, 1))]]
  rows.append([problem.cost[None, :] / problem.budget, *others])
  if monotone:
    rows.append([sparse.diags([-1.0, 1.0], [0, 1], shape=(n - 1, n)), *others])
  upper = sparse.bmat(rows, 'csr')
  right = np.zeros(upper.shape[0])
  right[len(maps) * (outcomes + 1)] = 1.0  # The budget.
  size = upper.shape[1]
  mass = sparse.csr_matrix((np.arange(size) < n).astype(float))
  return np.append(np.zeros(size - 1), 1.0), upper, right, mass


def _lower_bound(problem: Problem, monotone: bool, result: optimize.OptimizeResult
                 ) -> float:
  """Returns a proved lower bound on the optimum, from the solver's multipliers."""
  # Take any y >= 0, a number per outcome and direction, and let `top` be the sum over
  # directions of the largest y. Then top delta(w) is at least the sum of all y (P -
  # e^epsilon Q), which is slope @ w. The masses w are a mixture: of uniform masses on
  # the first k cells if they never increase, else of single cells. Within the budget
  # slope @ w is at least the least slope @ w + price (cost @ w / budget - 1) of these,
  # for any price >= 0. Fractions are not rounded; e^epsilon is rounded up.
  n, outcomes = problem.cells, 2 * problem.cells + problem.bins
  prob: Any = Fraction(problem.sampling_prob)
  exact = dataclasses.replace(problem, sampling_prob=prob)
  context = decimal.Context(prec=40)
  grown = Fraction(context.next_plus(context.exp(decimal.Decimal(problem.epsilon))))
  found = [Fraction(max(-y, 0.0)) for y in result.ineqlin.marginals.tolist()]
  slope, top = np.zeros(n, object), Fraction(0)
  directions = 1 if problem.sampling_prob == 1 else 2
  for i in range(directions):
    y: Any = np.array(found[i * (outcomes + 1):][:outcomes])
    slope = slope + exact.by_masses(i, y, -grown * y)
    top += max(y)
  price: Any = found[directions * (outcomes + 1)]
  cells: Any = np.array(range(n), object)
  cost = (2 * cells + 1) * Fraction(1, 2 * problem.bins) if problem.norm == 1 else (
      3 * cells**2 + 3 * cells + 1) * Fraction(1, 3 * problem.bins**2)
  value = slope + price / Fraction(problem.utility)**problem.norm * cost
  if monotone:
    value = np.cumsum(value) / (cells + 1)
  least = min(value) - price
  return math.nextafter(float(least / top), -math.inf) if top else 0.0


def within_budget(problem: Problem, w: np.ndarray) -> np.ndarray:
  """Returns masses of sum one within budget: any excess moves a share to cell 0."""
  w = w / np.sum(w)
  excess = float(w @ problem.cost) - problem.budget
  if excess > 0:
    share = excess / (float(w @ problem.cost) - problem.cost[0])
    w = (1 - share) * w
    w[0] += share
  return w
