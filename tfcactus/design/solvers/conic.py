"""A solver of the convex program by cvxpy and Clarabel, for small grids.

It is slow, and independent of the interior-point method.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from tfcactus.design.solvers import convex_program

OBJECTIVES = ('kl', 'chi2')
"""Objectives with a conic form."""

MAX_EDGES = 20_000
"""Maximum number of exponential cones; more take minutes and come back inaccurate."""


def solve(program: convex_program.Program, start: np.ndarray
          ) -> convex_program.Solution:
  """Solves a program with cvxpy and Clarabel; the result is not yet certified.

  `start` holds positive masses, the units that scale the unknowns. Raises SolverError
  if the program is too large or the solver fails, and ValueError if the objective has
  no conic form in `OBJECTIVES`.
  """
  if program.objective not in OBJECTIVES:
    raise ValueError(
        f'Expected objective {" or ".join(OBJECTIVES)} with solver="cvxpy", got '
        f'{program.objective!r}; use solver="interior-point".')
  edges = sum(s.first.size for s in program.shifts)
  if edges > MAX_EDGES:
    raise convex_program.SolverError(
        f'Expected at most {MAX_EDGES} edges for solver="cvxpy", got {edges}; '
        'use fewer bins or solver="interior-point".')
  import cvxpy as cp  # Takes a second, and few callers need it.

  unit = start / (program.mass @ start)
  x, top = cp.Variable(start.size, pos=True), cp.Variable()
  masses = cp.multiply(unit, x)
  values = [_divergence(cp, program.objective, s, masses, unit)
            for s in program.shifts]
  tops = [value <= top for value, _ in values]
  within = cp.sum(cp.multiply(program.cost * unit / program.budget, x)) <= 1
  rest = [(program.mass * unit) @ x == 1]
  rest += [cone for _, cones in values for cone in cones]
  if program.log_volume is not None:  # The density p / volume never increases outwards.
    ratio = np.exp(-np.diff(program.log_volume)) * unit[1:] / unit[:-1]
    rest.append(x[:-1] >= cp.multiply(ratio, x[1:]))
  problem = cp.Problem(cp.Minimize(top), [*tops, within, *rest])
  try:
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
  except cp.error.SolverError as error:
    raise convex_program.SolverError(
        f'Clarabel failed on {edges} edges: {error} Use fewer bins or '
        'solver="interior-point".') from error
  if x.value is None:
    raise convex_program.SolverError(
        f'Expected an optimum from Clarabel, got status {problem.status!r}; '
        'use fewer bins or solver="interior-point".')
  theta = np.array([float(c.dual_value) for c in tops])
  price = float(within.dual_value) / program.budget
  p = _mend_tail(program, unit * np.maximum(x.value, 1e-12), theta, price)
  return convex_program.Solution(p, theta, price,
                                 int(problem.solver_stats.num_iters or 0))


def _mend_tail(program: convex_program.Program, p: np.ndarray, theta: np.ndarray,
               price: float) -> np.ndarray:
  """Returns p with a better tail, where the solver's tolerance leaves only noise."""
  # With the multipliers fixed, the Lagrangian is convex in the tail cells; they are set
  # to its minimum. The lower bound, valid at every positive point, chooses the cut.
  theta = np.maximum(theta, 0.0)
  best, best_bound = p, program.lower_bound(p, theta, price)
  beyond = np.cumsum((program.mass * p)[::-1])[::-1]  # Mass from each cell on.
  for share in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
    cut = max(int(np.argmax(beyond < share)), 1)
    q = _relax(program, p, theta, price, cut)
    bound = program.lower_bound(q, theta, price)
    if bound > best_bound:
      best, best_bound = q, bound
  return best / (program.mass @ best)


def _relax(program: convex_program.Program, p: np.ndarray, theta: np.ndarray,
           price: float, cut: int) -> np.ndarray:
  """Returns p that minimises the Lagrangian over cells from `cut` on."""
  # Damped Newton in log p. `theta` multiplies the divergences, `price` the cost, and
  # `nu` the mass. All three stay fixed. With this `nu` the slopes at the first `p` sum
  # to zero.
  nu = -float(theta @ program.divergences(p) + price * (program.cost @ p))
  nu /= float(program.mass @ p)
  for _ in range(60):
    slope = p * (theta @ program.gradients(p) + price * program.cost +
                 nu * program.mass)
    stiff = _laplacian(program.edges(p, theta))[cut:, cut:]
    scale = 1 / np.sqrt(np.diag(stiff))
    move = -scale * np.linalg.solve(stiff * np.outer(scale, scale), scale * slope[cut:])
    move = move * min(1.0, 1.0 / np.max(np.abs(move)))
    p = np.append(p[:cut], p[cut:] * np.exp(move))
    if np.max(np.abs(move)) < 1e-12:
      break
  return p


def _laplacian(band: np.ndarray) -> np.ndarray:
  """Returns a dense graph Laplacian; band[d, i] weighs the edge from i to i + d."""
  n = band.shape[1]
  edges = np.zeros((n, n))
  for distance, row in enumerate(band[:n]):
    edges += np.diag(row[:n - distance], distance)
  edges = edges + edges.T
  return np.diag(edges.sum(axis=1)) - edges


def _divergence(cp: ModuleType, objective: str, shift: convex_program.Shift, p: Any,
                unit: np.ndarray) -> tuple[Any, list[Any]]:
  """Returns a shift's cvxpy divergence and its cones; `unit` is about the size of p."""
  scale = np.exp(shift.log_scale)
  # phi is homogeneous: dividing both cells by `size` and multiplying the weight by
  # it changes only the conditioning.
  size = np.sqrt(unit[shift.first] * scale * unit[shift.second])
  a = cp.multiply(1 / size, p[shift.first])
  b = cp.multiply(scale / size, p[shift.second])
  weight = shift.weight * size
  if objective == 'kl':
    edges = cp.rel_entr(a, b) + cp.rel_entr(b, a)
    return cp.sum(cp.multiply(weight, edges)) + shift.tail * p[-1], []
  # For chi2, phi is b^2 / a + a^2 / b - a - b.
  forth, back = cp.Variable(weight.size), cp.Variable(weight.size)
  cones = [_square_over(cp, a, b, forth), _square_over(cp, b, a, back)]
  edges = forth + back - a - b
  return cp.sum(cp.multiply(weight, edges)) + shift.tail * p[-1], cones


def _square_over(cp: ModuleType, a: Any, b: Any, bound: Any) -> Any:
  """Returns the cone a^2 / b <= bound, elementwise."""
  # |(2 a, bound - b)| <= bound + b if and only if a^2 <= b bound.
  return cp.SOC(bound + b, cp.vstack([2 * a, bound - b]), axis=0)
