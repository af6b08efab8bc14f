"""The convex program behind every designed noise, and its certificate.

Cells, shells and shifts all reduce to one form. The unknown p holds masses;
a shift k costs D_k(p), a sum over *edges* of weight * phi(p_i, scale * p_j)
plus a term linear in p, where phi(a, b) is the divergence of a pair of cells
counted in both directions. All D_k are convex and homogeneous of degree one,
which is what makes the lower bound below so short.
"""

from __future__ import annotations

import dataclasses
from typing import Any
from typing import Callable
from typing import Optional
from typing import Sequence

import numpy as np
from scipy import optimize

OBJECTIVES = ('kl', 'chi2')
"""Divergences that can be minimised."""

FEASIBILITY = 1e-9
"""How far a returned table may violate its constraints, relatively."""


class SolverError(RuntimeError):
  """A design was not certified: no table is returned."""


@dataclasses.dataclass(frozen=True)
class Shift:
  """One shift's divergence, as edges between cells.

  Attributes:
    first: Index i of each edge.
    second: Index j of each edge.
    log_scale: Each edge compares p_i with exp(log_scale) * p_j.
    weight: Factor of each edge, above zero.
    tail: Coefficient of the last unknown: edges wholly inside the tail.
  """

  first: np.ndarray
  second: np.ndarray
  log_scale: np.ndarray
  weight: np.ndarray
  tail: float


@dataclasses.dataclass(frozen=True)
class Program:
  """Minimise the largest D_k(p), with mass one and cost within a budget.

  Attributes:
    objective: 'kl' or 'chi2'.
    shifts: The divergences whose maximum is minimised.
    mass: Shape (N + 1,), mass @ p = 1.
    cost: Shape (N + 1,), cost @ p <= budget.
    budget: The budget.
    log_volume: Shape (N + 1,) if the density p / volume must be
      non-increasing, None if it is free.
  """

  objective: str
  shifts: Sequence[Shift]
  mass: np.ndarray
  cost: np.ndarray
  budget: float
  log_volume: Optional[np.ndarray] = None

  def divergences(self, p: np.ndarray) -> np.ndarray:
    """D_k(p) of every shift."""
    phi = _PAIR[self.objective].value
    return np.array([
        np.sum(s.weight * phi(p[s.first], np.exp(s.log_scale) * p[s.second]))
        + s.tail * p[-1] for s in self.shifts])

  def gradients(self, p: np.ndarray) -> np.ndarray:
    """Shape (shifts, N + 1): the gradient of every D_k."""
    slope = _PAIR[self.objective].slope
    rows = np.zeros((len(self.shifts), p.size))
    for row, s in zip(rows, self.shifts):
      scale = np.exp(s.log_scale)
      a, b = p[s.first], scale * p[s.second]
      row += np.bincount(s.first, s.weight * slope(a, b), p.size)
      row += np.bincount(s.second, s.weight * scale * slope(b, a), p.size)
      row[-1] += s.tail
    return rows

  def scaled_hessian(self, p: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """diag(p) H diag(p) of sum theta_k D_k: the Laplacian of a graph."""
    curvature = _PAIR[self.objective].curvature
    n = p.size
    where, value = [], []
    for t, s in zip(theta, self.shifts):
      where.append(s.first * n + s.second)
      value.append(t * s.weight * curvature(
          p[s.first], np.exp(s.log_scale) * p[s.second]))
    edges = np.bincount(np.concatenate(where), np.concatenate(value), n * n)
    edges = edges.reshape(n, n)
    edges = edges + edges.T
    np.fill_diagonal(edges, 0.0)
    return np.diag(edges.sum(axis=1)) - edges

  def lower_bound(self, p: np.ndarray, theta: np.ndarray,
                  price: float = 1.0) -> float:
    """A lower bound on the optimum, valid for any p > 0 and theta >= 0.

    With g the gradient of sum theta_k D_k at p, convexity and homogeneity give
    sum theta_k D_k(q) >= g @ q for every q, and the least g @ q over feasible q
    is a linear program whose dual has one variable: the price of cost.

    Args:
      p: A positive vector, best the optimum.
      theta: Weights of the shifts; scaled here to sum to one.
      price: A guess of the price, above zero.
    """
    theta = np.maximum(theta, 0.0)
    gradient = (theta / theta.sum()) @ self.gradients(p)
    lead, cost = self._per_mass(gradient), self._per_mass(self.cost)

    def bound(log_price):
      price = np.exp(log_price)
      return float(np.min(lead + price * cost) - price * self.budget)

    center = np.log(max(price, 1e-300))
    grid = center + np.linspace(-8.0, 8.0, 65)
    best = grid[np.argmax([bound(x) for x in grid])]
    found = optimize.minimize_scalar(
        lambda x: -bound(x), bounds=(best - 0.3, best + 0.3), method='bounded',
        options={'xatol': 1e-13})
    return max(bound(found.x), bound(best), bound(center))

  def _per_mass(self, values: np.ndarray) -> np.ndarray:
    """Values per unit of mass of each extreme point of the feasible cone."""
    if self.log_volume is None:
      return values / self.mass
    # The extreme rays of non-increasing densities are flat up to cell i.
    volume = np.exp(self.log_volume - np.max(self.log_volume))
    return np.cumsum(volume * values) / np.cumsum(volume * self.mass)


@dataclasses.dataclass(frozen=True)
class Solution:
  """What a solver returns: not trusted, only certified.

  Attributes:
    p: The unknowns, positive.
    theta: Multipliers of the shifts.
    price: Multiplier of the cost.
    iterations: How many iterations it took.
  """

  p: np.ndarray
  theta: np.ndarray
  price: float
  iterations: int


def certify(program: Program, p: np.ndarray, theta: np.ndarray, price: float,
            tolerance: float) -> dict[str, float]:
  """Recomputes objective, bound and feasibility of a frozen density.

  Nothing that a solver claims is believed: the multipliers only choose which
  of many valid lower bounds is computed.

  Args:
    program: The program it claims to solve.
    p: The masses of the frozen table.
    theta: Multipliers of the shifts.
    price: Multiplier of the cost.
    tolerance: Largest relative gap that is accepted.

  Returns:
    objective, lower_bound and gap (relative), as JSON numbers.

  Raises:
    SolverError: naming the residual that failed.
  """
  objective = float(np.max(program.divergences(p)))
  bound = program.lower_bound(p, theta, price)
  gap = (objective - bound) / objective
  mass = abs(float(program.mass @ p) - 1.0)
  excess = float(program.cost @ p) / program.budget - 1.0
  residuals = {'relative gap': (gap, tolerance),
               'mass error': (mass, FEASIBILITY),
               'relative cost excess': (excess, FEASIBILITY)}
  if program.log_volume is not None:
    rise = float(np.max(np.diff(np.log(p) - program.log_volume)))
    residuals['rise of the density'] = (rise, FEASIBILITY)
  failed = [f'{name} {value:.3g} (at most {limit:.3g})'
            for name, (value, limit) in residuals.items()
            if not value <= limit]
  if failed:
    raise SolverError(
        f'Expected a certified optimum, got {"; ".join(failed)}. Try the other '
        'solver, another tail_ratio, more cells or fewer bins.')
  return {'objective': objective, 'lower_bound': bound, 'gap': max(gap, 0.0)}


def multipliers(theta: np.ndarray, price: float) -> dict[str, Any]:
  """The multipliers as JSON, so that a file can be certified by itself."""
  theta = np.maximum(theta, 0.0)
  theta = theta / np.sum(theta)
  return {'shifts': {str(k + 1): float(theta[k])
                     for k in np.flatnonzero(theta > 1e-12)},
          'price': float(price)}


@dataclasses.dataclass(frozen=True)
class _Pair:
  """phi(a, b), its slope in a, and -a b d2 phi / da db."""

  value: Callable[[np.ndarray, np.ndarray], np.ndarray]
  slope: Callable[[np.ndarray, np.ndarray], np.ndarray]
  curvature: Callable[[np.ndarray, np.ndarray], np.ndarray]


_PAIR = {
    'kl': _Pair(lambda a, b: (a - b) * np.log(a / b),
                lambda a, b: np.log(a / b) + 1 - b / a,
                lambda a, b: a + b),
    'chi2': _Pair(lambda a, b: (a - b) * (a / b - b / a),
                  lambda a, b: 2 * a / b - (b / a)**2 - 1,
                  lambda a, b: 2 * a * (a / b) + 2 * b * (b / a)),
}


def pair_value(objective: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """phi(a, b): the divergence of two cells, both directions together."""
  return _PAIR[objective].value(np.asarray(a), np.asarray(b))
