"""Least bound of the Extended Moments Accountant at a fixed order, a convex program.

The bound is not the composed delta: a smaller bound can mean a larger delta.

Source: Proposition 17 of Sommer et al., "Learning Numeric Optimal Differentially
Private Truncated Additive Mechanisms" (2021). As printed the bound has 1 - (1 -
omega)^n, which is concave; here it has n omega.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import optimize

from tfcactus.design.solvers import convex_program, density_descent
from tfcactus.design.solvers.bounded_problem import Problem

ORDERS = (1e-3, 300.0)
"""Smallest and largest order of the search."""

ROUNDS = 12
"""Maximum number of rounds that choose order and masses in turn."""

CHANGE = 1e-5
"""Relative change of the bound at which the rounds end."""

LARGEST, SMALLEST = 200.0, 1e-150
"""Maximum log of a bound and minimum mass in a divisor: they keep slopes finite."""

LARGEST_SLOPE = 1e100
"""Slope beyond which no tangent is drawn."""


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
  """The optimum of the convex program of one order."""

  w: np.ndarray  # Shape (cells,), masses of the mirrored pairs of cells.
  order: float  # The order lambda.
  bound: float  # n omega + exp(n Gamma - lambda epsilon) at w.
  # No non-increasing masses within the budget have a smaller bound at this order; -inf
  # if no tangent was drawn.
  lower_bound: float


def solve(problem: Problem, order: float | None = None) -> Solution:
  """Minimises the bound over non-increasing masses, in turn with `order` if None."""
  # Start from truncated Gaussian or Laplace noise: all its moments are moderate.
  start = np.diff(problem.cost) / problem.budget
  if order is not None:
    return _fixed_order(problem, start, order)
  best = _next_order(problem, density_descent.fitted(problem, start))
  for _ in range(ROUNDS - 1):
    found = _next_order(problem, best.w)
    if found.bound > best.bound * (1 - CHANGE):
      break
    best = found
  return best


def bound(problem: Problem, w: np.ndarray, order: float) -> tuple[float, np.ndarray]:
  """Returns the worse direction's bound, and its gradient in masses w > 0, (cells,)."""
  # Let P and Q be the noise and the shifted noise, omega the P-mass of outcomes that Q
  # cannot have, Gamma the log of the sum of P^(1 + order) / Q^order over others. The
  # bound n omega + exp(n Gamma - order epsilon) on the delta of n releases is convex in
  # the masses. So its tangent at the optimum, minimised over all tables of the grid, is
  # a lower bound.
  values = [_directed(p, q, problem, order) for p, q in problem.pairs(w)]
  worst, (value, by_p, by_q) = max(enumerate(values), key=lambda item: item[1][0])
  return value, problem.by_masses(worst, by_p, by_q)


def _directed(p: np.ndarray, q: np.ndarray, problem: Problem, order: float
              ) -> tuple[float, np.ndarray, np.ndarray]:
  """Returns the bound of one direction, and its gradients with respect to p and q."""
  # The bound is steps * omega + exp(steps * gamma - order * epsilon). Here omega is the
  # P-mass where Q has none, and gamma the log moment of finite losses at the order.
  steps = problem.steps
  both = (p > 0) & (q > 0)
  loss = np.log(p[both]) - np.log(q[both])
  exponent = np.log(p[both]) + order * loss
  peak = float(np.max(exponent))
  gamma = peak + math.log(float(np.sum(np.exp(exponent - peak))))
  tail = math.exp(min(steps * gamma - order * problem.epsilon, LARGEST))
  share = np.exp(exponent - gamma)
  by_p, by_q = np.zeros_like(p), np.zeros_like(q)
  by_p[both] = tail * steps * (1 + order) * share / np.maximum(p[both], SMALLEST)
  by_q[both] = -tail * steps * order * share / np.maximum(q[both], SMALLEST)
  alone = (p > 0) & (q <= 0)
  by_p[alone] = steps
  return steps * float(np.sum(p[alone])) + tail, by_p, by_q


def _next_order(problem: Problem, w: np.ndarray) -> Solution:
  """Returns the optimum at the order that is best for the masses `w`."""
  result = optimize.minimize_scalar(
      lambda x: math.log(bound(problem, w, math.exp(x))[0]),
      bounds=tuple(map(math.log, ORDERS)), method='bounded')
  return _fixed_order(problem, -np.diff(np.log(w)), math.exp(float(result.x)))


def _fixed_order(problem: Problem, start: np.ndarray, order: float) -> Solution:
  """Solves one order's program from `start`, decrements of log masses (cells - 1,)."""
  # `w` are masses of cells, (cells,).
  w, _ = density_descent.descend(
      problem, start, lambda masses: bound(problem, masses, order))
  value, slope = bound(problem, w, order)
  # The bound is convex: its tangent at w is nowhere above it, so the tangent's least
  # value over all tables is a lower bound. Where a bound or a mass was capped, the
  # slope is no tangent, and the lower bound is -inf.
  masses = np.concatenate([m for pair in problem.pairs(w) for m in pair])
  exact = value < math.exp(LARGEST) and np.min(masses[masses > 0]) > SMALLEST and (
      np.max(np.abs(slope)) < LARGEST_SLOPE)
  # Non-increasing masses mix uniforms on the first k cells: the least slope @ w within
  # the budget is a linear program. `costs` are relative to the budget, less 1.
  count = np.arange(1, slope.size + 1)
  values = np.cumsum(slope) / count
  costs = np.cumsum(problem.cost) / count / problem.budget - 1
  least = convex_program.best_bound(values, costs, float(np.ptp(values)))
  return Solution(w, order, value,
                  value + least - float(slope @ w) if exact else -math.inf)
