"""Descent of the composed delta over densities that never increase with |z|.

The variables are the decrements of the log density from each cell to the next, at
least zero: every point is exactly monotone, and the full shift the worst. (Without
monotonicity the optimum is a comb of spikes one unit apart, which protects whole
changes only.) Decrements give the log of a shape; the density is the power of that
shape that meets the bound on utility.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Callable

import numpy as np
from scipy import linalg, optimize

from tfcactus.design.solvers.bounded_problem import Problem

ROUNDS = 3
"""Number of times that the scaling is chosen anew."""

MAX_ITERATIONS = 500
MEMORY = 30
"""Number of past gradients that L-BFGS keeps."""

SMALL_MASS = 1e-9
"""Minimum mass in the scaling of decrements."""

FLAT = 1e-4
"""Decrement that a coarse solution's plateaus get at the start of refinement."""

LEAST_VALUE = 1e-15
"""Added to the objective before its logarithm is taken: the error of its FFT."""

FLATTEST = 1e-7
"""Decrease of the log density over the whole range that every shape has at least, so
that a power can narrow a plateau."""

LOG_FLOOR = -80.0
"""Log of the smallest mass of a cell relative to the innermost."""

Value = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""Maps masses to an objective, positive up to rounding, and its gradient."""


def solve(problem: Problem) -> tuple[np.ndarray, int]:
  """Returns (w, evaluations) at a local minimum of the composed delta."""
  # The masses w never increase outwards and meet the bound on utility.
  found, evaluations = descend(problem, smooth_start(problem), problem.delta)
  best, best_delta = found, problem.delta(found)[0]
  coarse = _coarse_start(problem)
  if coarse is not None:
    found, more = descend(problem, coarse, problem.delta)
    evaluations += more
    if problem.delta(found)[0] < best_delta:
      best = found
  return best, evaluations


def smooth_start(problem: Problem) -> np.ndarray:
  """Returns the decrements of the density of least Fisher information; (cells - 1,)."""
  # It is the best for many releases: psi^2, where psi is the ground state of -psi'' +
  # kappa z^2 psi, and kappa follows from the bound on utility. It is sinh(x), as it may
  # have either sign and any size.
  n, width = problem.cells, 1.0 / problem.bins
  potential = np.concatenate([problem.cost[::-1], problem.cost])
  potential = potential / problem.budget

  def log_masses(kappa):
    """Returns log masses of the ground state psi^2 for this kappa, up to a constant."""
    _, vector = linalg.eigh_tridiagonal(
        2 / width**2 + kappa * potential, np.full(2 * n - 1, -1 / width**2),
        select='i', select_range=(0, 0))
    psi = np.abs(vector[n:, 0])
    return 2 * np.log(np.maximum(psi, 1e-150))

  def excess(x):
    """Returns cost / budget - 1 of the ground state for kappa = sinh(x)."""
    w = np.exp(log_masses(math.sinh(x)))
    return float((w @ problem.cost) / np.sum(w)) / problem.budget - 1

  low, high = -25.0, 25.0
  if excess(low) <= 0 or excess(high) >= 0:
    # The optimum is little more than the middle cells, or close to uniform: any shape
    # will do as a start.
    found = -problem.cost / problem.budget
  else:
    found = log_masses(math.sinh(optimize.brentq(excess, low, high, xtol=1e-8)))
  return np.maximum(-np.diff(found), 0.0)


def _coarse_start(problem: Problem) -> np.ndarray | None:
  """Returns decrements of the optimum on the widest cells that tile the range."""
  # None if these are the problem's own cells or fewer than two, or if the budget is
  # within a tenth of the cost of the narrowest noise on these cells, or of uniform
  # noise: few shapes are then left to choose from.
  bins = next(n for n in range(1, problem.bins + 1)
              if problem.bins % n == 0 and problem.cells * n % problem.bins == 0)
  coarse = dataclasses.replace(
      problem, bins=bins, cells=problem.cells * bins // problem.bins)
  if bins == problem.bins or coarse.cells < 2 or not (
      coarse.cost[0] < 0.9 * problem.budget < 0.81 * np.mean(coarse.cost)):
    return None
  w, _ = descend(coarse, smooth_start(coarse), coarse.delta)
  decrements = np.full(problem.cells - 1, FLAT)
  times = problem.bins // bins
  decrements[times - 1::times] += -np.diff(np.log(w))
  return decrements


def descend(problem: Problem, decrements: np.ndarray, value: Value
            ) -> tuple[np.ndarray, int]:
  """Minimises the log of an objective over decrements of the log density.

  `value` is the objective of masses. The search starts from `decrements`, shape
  (cells - 1,). Returns (w, evaluations): masses at a local minimum, the global one if
  the objective is convex in the masses.
  """
  density = _Fitted(problem, value)
  evaluations = 0
  for i in range(2 * ROUNDS):
    # After `ROUNDS` rounds on the whole budget, others follow if less of it is better.
    if i == ROUNDS and not density.better_within_budget(decrements):
      break
    w, power = density.fit(decrements)
    decrements = np.maximum(decrements * power, 0.0)
    # L-BFGS works on `decrements / scale`: the curvature in a decrement grows about as
    # the mass beside it.
    between = np.maximum(0.5 * (w[1:] + w[:-1]), SMALL_MASS)
    scale = np.sqrt(np.min(between) / between)
    scale /= np.min(scale)
    density.log_power = 0.0  # `decrements` contain the power now.

    def objective(y, scale=scale):
      """Returns the log objective and its gradient with respect to `y`."""
      log_value, slope = density.log_value(y * scale)
      return log_value, slope * scale

    result = optimize.minimize(
        objective, decrements / scale, jac=True, method='L-BFGS-B',
        bounds=[(0.0, None)] * decrements.size,
        options={'maxiter': MAX_ITERATIONS, 'maxcor': MEMORY, 'ftol': 1e-11,
                 'gtol': 1e-9, 'maxfun': 3 * MAX_ITERATIONS})
    decrements = result.x * scale
    evaluations += int(result.nfev)
  return density.fit(decrements)[0], evaluations


def fitted(problem: Problem, decrements: np.ndarray) -> np.ndarray:
  """Returns masses of these decrements' shape, to the power that fits the budget."""
  return _Fitted(problem, problem.delta).fit(decrements)[0]


class _Fitted:
  """Densities exp(power * log shape) of decrements, within the bound on utility."""
  # The power makes the cost equal to the budget. It is one after `better_within_budget`
  # has dropped the bound on utility, unless the shape itself then costs more.

  def __init__(self, problem: Problem, value: Value):
    self._problem = problem
    self._value = value
    self.log_power = 0.0  # Where the search for the power starts.
    self._free = False

  def _shape(self, decrements: np.ndarray) -> np.ndarray:
    """Returns the log shape from its decrements, with the least slope `FLATTEST`."""
    cost = self._problem.cost
    return np.append(0.0, -np.cumsum(decrements)) - FLATTEST * cost / cost[-1]

  def fit(self, decrements: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns (masses, power): the shape to the power at which it costs the budget.

    The power is 1 if `better_within_budget` was True and the shape costs less.
    """
    shape = self._shape(decrements)
    if self._free:
      w = _normalized(shape)
      if w @ self._problem.cost <= self._problem.budget:
        return w, 1.0
    cost, budget = self._problem.cost, self._problem.budget
    x, low, high = self.log_power, -80.0, 80.0
    for _ in range(200):
      w = _normalized(math.exp(x) * shape)
      mean = float(w @ cost)
      low, high = (x, high) if mean > budget else (low, x)
      slope = math.exp(x) * float(w @ ((cost - mean) * shape))
      # Newton in the logarithm, or bisection where Newton leaves the bracket.
      new = x - (mean - budget) / slope if slope < 0 else math.inf
      if not low < new < high:
        new = 0.5 * (low + high)
      if abs(new - x) <= 1e-14 * (1 + abs(x)):
        break
      x = new
    self.log_power = x
    return w, math.exp(x)

  def log_value(self, decrements: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns log(objective + LEAST_VALUE) and its gradient, (cells - 1,)."""
    w, power = self.fit(decrements)
    value, by_w = self._value(w)
    gain = by_w - w @ by_w
    by_shape = power * w * gain  # w is the softmax of power * shape.
    if not (self._free and power == 1.0):
      # The power changes with the shape so that the cost stays constant.
      centred_cost = self._problem.cost - w @ self._problem.cost
      by_shape -= self._price(w, gain, decrements) * power * w * centred_cost
    # A decrement lowers the log shape of all cells beyond it.
    by_decrements = -np.cumsum(by_shape[::-1])[::-1][1:]
    value = max(value, 0.0) + LEAST_VALUE
    return math.log(value), by_decrements / value

  def _price(self, w: np.ndarray, gain: np.ndarray, decrements: np.ndarray) -> float:
    """Returns the derivative of the objective with respect to the cost budget."""
    # Only the power of the shape changes with the budget. `gain` is the gradient of the
    # objective with respect to w, minus its mean under w.
    shape = self._shape(decrements)
    centred_cost = self._problem.cost - w @ self._problem.cost
    return float((w * gain) @ shape) / min(float((w * centred_cost) @ shape), -1e-300)

  def better_within_budget(self, decrements: np.ndarray) -> bool:
    """Returns whether a smaller budget is better; if so, drops the bound on utility."""
    w, _ = self.fit(decrements)
    _, by_w = self._value(w)
    self._free = self._price(w, by_w - w @ by_w, decrements) > 0
    return self._free


def _normalized(log_mass: np.ndarray) -> np.ndarray:
  """Returns masses of sum one; none is below e^`LOG_FLOOR` times that of cell 0."""
  w = np.exp(np.maximum(log_mass - log_mass[0], LOG_FLOOR))
  return w / np.sum(w)
