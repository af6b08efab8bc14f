"""The convex program behind every designed noise, and the proof of its optimum.

Cells of the line and shells of space reduce to one form. The unknown p holds the masses
of cells. D_k(p) is the divergence of the noise from itself shifted by amount k: a sum
of weight * phi(p_i, scale * p_j) over pairs of cells i and j (edges), plus a term
linear in p. phi(a, b) is the divergence of two cells, in both directions. The proof
takes no solver's word: see `Program.lower_bound`.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from tfcactus.design.solvers import divergence

FEASIBILITY = 1e-9
"""Maximum relative violation of a constraint by a returned table."""

_MAX_CUTS = 100
"""Maximum number of cutting lines; a handful suffice."""


class SolverError(RuntimeError):
  """Raised when a design was not certified: no table is returned."""


@dataclasses.dataclass(frozen=True)
class Shift:
  """The divergence of one shift, as edges between cells."""

  first: np.ndarray  # Index i of each edge.
  second: np.ndarray  # Index j of each edge.
  log_scale: np.ndarray  # Each edge compares p_i with exp(log_scale) * p_j.
  weight: np.ndarray  # Factor of each edge, above zero.
  tail: float  # Coefficient of the last unknown: edges wholly inside the tail.


class _Edges(NamedTuple):
  """Edges of all shifts: starts[k] is the first of shift k, `row` each edge's shift."""

  first: np.ndarray
  second: np.ndarray
  scale: np.ndarray
  weight: np.ndarray
  starts: np.ndarray
  row: int | np.ndarray

  def cells(self, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the masses of the two cells that every edge compares."""
    return p[self.first], self.scale * p[self.second]


@dataclasses.dataclass(frozen=True)
class Program:
  """Minimises the largest D_k(p), subject to mass one and cost within a budget."""

  objective: str  # Name for `divergence.parse`: 'kl', 'chi2', 'renyi:A', ...
  shifts: Sequence[Shift]  # The divergences whose maximum is minimised.
  mass: np.ndarray  # Shape (N + 1,), mass @ p = 1.
  cost: np.ndarray  # Shape (N + 1,), cost @ p <= budget.
  budget: float  # Upper bound on the cost.
  # Shape (N + 1,) if the density p / volume must be non-increasing, None if it is free.
  log_volume: np.ndarray | None = None

  @property
  def divergence(self) -> divergence.Divergence:
    """The divergence of a pair of cells that `objective` names."""
    return divergence.parse(self.objective)

  @functools.cached_property
  def _edges(self) -> _Edges:
    """Edges of all shifts, concatenated: one array operation serves all shifts."""
    if len(self.shifts) == 1:
      s = self.shifts[0]
      return _Edges(s.first, s.second, np.exp(s.log_scale), s.weight,
                    np.zeros(1, int), 0)
    sizes = [s.first.size for s in self.shifts]
    first, second, log_scale, weight = (
        np.concatenate([getattr(s, name) for s in self.shifts])
        for name in ('first', 'second', 'log_scale', 'weight'))
    return _Edges(first, second, np.exp(log_scale), weight,
                  np.append(0, np.cumsum(sizes[:-1])),
                  np.repeat(np.arange(len(sizes)), sizes))

  @functools.cached_property
  def _tails(self) -> np.ndarray:
    """Coefficient of the last unknown in every D_k; shape (shifts,)."""
    return np.array([s.tail for s in self.shifts])

  @functools.cached_property
  def log_volumes(self) -> np.ndarray:
    """Log volumes of the cells; zeros if the density is free."""
    return np.zeros(self.mass.size) if self.log_volume is None else self.log_volume

  def divergences(self, p: np.ndarray) -> np.ndarray:
    """Returns D_k(p), (shifts,): sums of phi, not yet mapped by `Divergence.report`."""
    e = self._edges
    return np.add.reduceat(e.weight * self.divergence.value(*e.cells(p)),
                           e.starts) + self._tails * p[-1]

  def gradients(self, p: np.ndarray) -> np.ndarray:
    """Returns the gradient of every D_k with respect to p; shape (shifts, N + 1)."""
    e, slope = self._edges, self.divergence.slope
    a, b = e.cells(p)
    row = e.row * p.size
    size = len(self.shifts) * p.size
    rows = np.bincount(row + e.first, e.weight * slope(a, b), size)
    rows += np.bincount(row + e.second, e.weight * e.scale * slope(b, a), size)
    rows = rows.reshape(-1, p.size)
    rows[:, -1] += self._tails
    return rows

  @functools.cached_property
  def bandwidth(self) -> int:
    """The largest distance, in cells, between the ends of an edge; at least one."""
    return max(1, max(int(np.max(np.abs(s.second - s.first))) for s in self.shifts))

  def edges(self, p: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Returns diag(p) H diag(p) of sum theta_k D_k, a graph Laplacian, as edges."""
    # Entry (d, i) of shape (bandwidth + 1, N + 1) is the weight of the edge between i
    # and i + d; row 0 is zero. H is the Hessian of the sum with respect to p. H p = 0,
    # since the sum is homogeneous of degree one: rows of the result sum to zero.
    e = self._edges
    size = (self.bandwidth + 1) * p.size
    where = np.abs(e.second - e.first) * p.size + np.minimum(e.first, e.second)
    weight = e.weight * self.divergence.curvature(*e.cells(p))
    band = np.bincount(where, np.asarray(theta)[e.row] * weight, size)
    band = band.reshape(self.bandwidth + 1, p.size)
    band[0] = 0.0
    return band

  def lower_bound(self, p: np.ndarray, theta: np.ndarray, price: float = 1.0,
                  gradients: np.ndarray | None = None) -> float:
    """Returns a lower bound on the least max_k D_k, for any p > 0 and theta >= 0."""
    # With g the gradient of sum theta_k D_k at p, convexity and homogeneity give sum
    # theta_k D_k(q) >= g @ q for every q. The least g @ q over feasible q is a linear
    # program whose dual has one variable: the price of cost, of which `price` is a
    # guess. `gradients` is gradients(p), if known; theta is scaled to sum to one.
    if gradients is None:
      theta = np.maximum(theta, 0.0)
      active = np.flatnonzero(theta)
      part = dataclasses.replace(self, shifts=[self.shifts[k] for k in active])
      theta, gradients = theta[active], part.gradients(p)
    gradient = (theta / theta.sum()) @ gradients
    with np.errstate(over='ignore', invalid='ignore'):
      lead = self._per_mass(gradient)
    return best_bound(lead, self._per_mass(self.cost) - self.budget, price)

  def _per_mass(self, values: np.ndarray) -> np.ndarray:
    """Returns values @ r / (mass @ r) for each extreme ray r of the cone of all p."""
    if self.log_volume is None:
      return values / self.mass
    # The extreme rays of non-increasing densities are constant up to cell i.
    return _running_sum(values, self.log_volume) / _running_sum(
        self.mass, self.log_volume)


def best_bound(lead: np.ndarray, cost: np.ndarray, price: float) -> float:
  """Returns max over price >= 0 of min_i (lead_i + price cost_i), or slightly less."""
  # Cutting lines find the maximum: the minimum over i is concave in the price. Each of
  # its values at price >= 0 is a valid lower bound. `price` is a first guess.
  def least(price):
    """Returns the minimum over i at this price, and its index i."""
    values = lead + price * cost
    i = int(np.argmin(values))
    return float(values[i]), i

  best, i = least(max(price, 0.0))
  # Lines that bound the maximum from the left (rising) and the right (falling).
  rising, falling = (i, None) if cost[i] > 0 else (None, i)
  high = max(price, 1e-300)
  while falling is None and high < 1e300:
    high *= 16
    value, i = least(high)
    best = max(best, value)
    rising, falling = (i, None) if cost[i] > 0 else (rising, i)
  if rising is None:
    value, rising = least(0.0)
    best = max(best, value)
  for _ in range(_MAX_CUTS):
    if falling is None or not cost[rising] > 0:
      break
    price = (lead[falling] - lead[rising]) / (cost[rising] - cost[falling])
    value, i = least(price)
    best = max(best, value)
    if value >= lead[rising] + price * cost[rising] or i in (rising, falling):
      break
    rising, falling = (i, falling) if cost[i] > 0 else (rising, i)
  return best


def _running_sum(values: np.ndarray, log_volume: np.ndarray) -> np.ndarray:
  """Returns sum_{j <= i} v_j values_j / v_i, for volumes over thousands of decades."""
  # Inside a block volumes change by a factor of e^300, which floats can hold.
  block = np.floor((log_volume - log_volume[0]) / 300).astype(int)
  # Volumes never decrease outwards by much; a decrease stays in its block.
  block = np.maximum.accumulate(block)
  result = np.empty_like(values)
  carried, previous = 0.0, float(log_volume[0])
  cuts = np.flatnonzero(np.diff(block)) + 1
  for start, end in zip([0, *cuts], [*cuts, block.size]):
    base = float(log_volume[start])
    volume = np.exp(log_volume[start:end] - base)
    carried *= np.exp(previous - base)
    sums = carried + np.cumsum(volume * values[start:end])
    result[start:end] = sums / volume
    carried, previous = float(sums[-1]), base
  return result


@dataclasses.dataclass(frozen=True)
class Solution:
  """The result of a solver: not trusted, only certified."""

  p: np.ndarray  # The unknowns, positive; shape (N + 1,).
  theta: np.ndarray  # Multipliers of the shifts; shape (shifts,).
  price: float  # Multiplier of the cost.
  iterations: int  # Number of iterations.


def certify(program: Program, p: np.ndarray, theta: np.ndarray, price: float,
            tolerance: float) -> dict[str, float]:
  """Returns the recomputed 'objective' of masses `p`, a 'lower_bound' and their 'gap'.

  Both are in units of `Divergence.report`, the gap relative to the objective. `theta`
  and `price` only select a valid lower bound: no solver is trusted. Raises SolverError,
  naming the residual, if the relative gap before `report` exceeds `tolerance`, or mass,
  cost or monotonicity is off by more than `FEASIBILITY`.
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
  report = program.divergence.report
  objective, bound = report(objective), report(bound)
  return {'objective': objective, 'lower_bound': bound,
          'gap': max((objective - bound) / objective, 0.0)}
