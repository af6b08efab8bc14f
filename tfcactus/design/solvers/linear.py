"""Linear program of one release: its delta is piecewise linear in the masses.

The optimum is global, and the multipliers prove it without trust in the solver: any
multipliers give a lower bound on every table of the grid.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import optimize, sparse

from tfcactus.design.solvers import convex_program
from tfcactus.design.solvers.bounded_problem import Problem

NEGLIGIBLE = 1e-13
"""Masses below this share of the largest count as zero."""

_Program = tuple[np.ndarray, sparse.csr_matrix, np.ndarray, sparse.csr_matrix]


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
  """The optimum of a linear program.

  Attributes:
    w: Shape (cells,), masses of the mirrored pairs of cells.
    delta: The delta of w.
    lower_bound: Lower bound on the delta of all masses that the program allows.
  """

  w: np.ndarray
  delta: float
  lower_bound: float


def solve(problem: Problem, *, monotone: bool = True) -> Solution:
  """Returns the masses of least delta of one release under the full shift.

  If `monotone`, masses must not increase outwards; else the full shift is not the
  worst, and delta does not account the table. Raises SolverError without an optimum.
  """
  objective, upper, right, mass = program = _program_of(problem, monotone)
  result = optimize.linprog(
      objective, A_ub=upper, b_ub=right, A_eq=mass, b_eq=[1.0], bounds=(0, 1),
      method='highs', options={'primal_feasibility_tolerance': 1e-10,
                               'dual_feasibility_tolerance': 1e-10})
  if result.x is None:
    raise convex_program.SolverError(
        f'Expected an optimum of the linear program, got: {result.message}')
  w = _mended(problem, result.x[:problem.cells], monotone)
  delta = max(float(np.sum(np.maximum(p - math.exp(problem.epsilon) * q, 0.0)))
              for p, q in problem.pairs(w))
  return Solution(w, delta, _lower_bound(program, result))


def _program_of(problem: Problem, monotone: bool) -> _Program:
  """Returns (objective, A, b, mass): minimise objective @ x, A x <= b, mass @ x = 1.

  The variables x are w, one excess per outcome and direction, and delta.
  """
  n = problem.cells
  maps = _pair_maps(problem)
  outcomes = maps[0][0].shape[0]
  size = n + outcomes * len(maps) + 1
  rows, right = [], []
  for i, (p, q) in enumerate(maps):
    excess = sparse.lil_matrix((outcomes + 1, size))
    excess[:outcomes, :n] = p - math.exp(problem.epsilon) * q
    own = slice(n + i * outcomes, n + (i + 1) * outcomes)
    excess[:outcomes, own] = -sparse.identity(outcomes)
    excess[outcomes, own] = 1.0
    excess[outcomes, size - 1] = -1.0
    rows.append(excess)
    right.append(np.zeros(outcomes + 1))
  budget = sparse.lil_matrix((1, size))
  budget[0, :n] = problem.cost / problem.budget
  rows.append(budget)
  right.append(np.ones(1))
  if monotone:
    falls = sparse.lil_matrix((n - 1, size))
    falls[:, :n] = sparse.diags([-1.0, 1.0], [0, 1], shape=(n - 1, n))
    rows.append(falls)
    right.append(np.zeros(n - 1))
  mass = sparse.lil_matrix((1, size))
  mass[0, :n] = 1.0
  return (np.append(np.zeros(size - 1), 1.0),
          sparse.csr_matrix(sparse.vstack(rows)), np.concatenate(right),
          sparse.csr_matrix(mass))


def _pair_maps(problem: Problem) -> list[tuple[sparse.csr_matrix, sparse.csr_matrix]]:
  """Returns `Problem.pairs` as matrices that act on w."""
  n, bins = problem.cells, problem.bins
  full = 0.5 * sparse.vstack([sparse.identity(n).tocsr()[::-1],
                              sparse.identity(n)])
  nothing = sparse.csr_matrix((bins, n))
  p = sparse.csr_matrix(sparse.vstack([full, nothing]))
  q = sparse.csr_matrix(sparse.vstack([nothing, full]))
  s = problem.sampling_prob
  if s == 1:
    return [(p, q)]
  mixed = (1 - s) * p + s * q
  return [(mixed, p), (p, mixed)]


def _lower_bound(program: _Program, result: optimize.OptimizeResult) -> float:
  """Returns a lower bound on the optimum for any multipliers: all x are in [0, 1]."""
  objective, upper, right, mass = program
  y = np.minimum(result.ineqlin.marginals, 0.0)
  z = np.asarray(result.eqlin.marginals)
  reduced = objective - upper.T @ y - mass.T @ z
  return float(right @ y + np.sum(z) + np.sum(np.minimum(reduced, 0.0)))


def _mended(problem: Problem, w: np.ndarray, monotone: bool) -> np.ndarray:
  """Returns the solver's masses, made exactly feasible."""
  w = np.where(w < NEGLIGIBLE * np.max(w), 0.0, w)
  if monotone:
    w = np.minimum.accumulate(w)
  return within_budget(problem, w)


def within_budget(problem: Problem, w: np.ndarray) -> np.ndarray:
  """Returns masses of sum one within budget: any excess moves a share to cell 0."""
  w = w / np.sum(w)
  excess = float(w @ problem.cost) - problem.budget
  if excess > 0:
    share = excess / (float(w @ problem.cost) - problem.cost[0])
    w = (1 - share) * w
    w[0] += share
  return w
