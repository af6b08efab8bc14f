"""A primal-dual interior-point method for `Program`.

Steps change log p, so that masses from 1 to 1e-60 all converge in relative terms: the
certificate reads gradients in the far tail, where an absolute tolerance would leave
noise. In log p the Hessian is the Laplacian of a graph, whose edges span no more cells
than a unit shift. The few constraints (shifts, cost, mass) border it, and are solved
for by a Schur complement.
"""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
from scipy import linalg

from tfcactus.design.solvers import convex_program

_TO_BOUNDARY = 0.99
"""Share of the way to the nearest boundary that a step goes at most."""

_LARGEST_MOVE = 2.0
"""Maximum change of log p in one step."""

_LINEAR = 0.1
"""Steps that change log p by less are linear in p."""

_GAP = 2e-11
"""Certified relative gap at which iterations stop."""

_LOOK = 1e-2
"""Relative complementarity (slacks times multipliers) below which the certified gap is
computed."""

_BEHIND = 0.03
"""Least relative complementarity that a step aims at, as a share of the certified gap,
but no more than the present one."""

_PATIENCE = 8
"""Iterations near the target without a better certified gap before the method stops."""

_PROXIMAL = 1e-9
"""Proximal weight of a unit of mass, relative to the largest divergence."""

_MAX_ITERATIONS = 150


@dataclasses.dataclass
class _State:
  """An iterate of the method."""

  p: np.ndarray  # Masses.
  # Log density of each cell minus that of the next cell, if monotone. Stored apart from
  # p, because it may be far below the rounding of p.
  fall: np.ndarray
  top: float  # Upper bound on the divergences.
  slack: np.ndarray  # top minus each divergence.
  theta: np.ndarray  # Multipliers of the shifts.
  spare: float  # Remaining budget.
  price: float  # Multiplier of the cost.
  nu: float  # Multiplier of the mass.
  eta: np.ndarray  # Multipliers of the constraints `drop` >= 0.

  @property
  def drop(self) -> np.ndarray:
    """Mass of each cell minus `carried`, to full relative precision."""
    return -self.p[:-1] * np.expm1(-self.fall) if self.fall.size else self.fall

  @property
  def carried(self) -> np.ndarray:
    """The mass that cell i would have at the density of cell i + 1."""
    return self.p[:-1] * np.exp(-self.fall) if self.fall.size else self.fall


def solve(program: convex_program.Program, start: np.ndarray, *, warm: bool = False,
          target: float = _GAP) -> convex_program.Solution:
  """Solves a program from positive masses `start`; `warm` if they are near the optimum.

  Stops at the relative gap `target`, or when the gap no longer falls; returns the best
  iterate, not yet certified. Raises SolverError if the method breaks down before it is
  near the optimum.
  """
  state = _start(program, start, 1e-3 if warm else 0.1)
  values = program.divergences(state.p)
  best: _State | None = None
  least, stale, steps, centering = np.inf, 0, 0, 0.2
  with np.errstate(over='ignore', invalid='ignore', divide='ignore'):
    while steps < _MAX_ITERATIONS:
      # Slack times multiplier over all constraints, relative to `top`.
      gap = float(state.theta @ state.slack + state.spare * state.price +
                  state.eta @ state.drop) / state.top
      certified = 0.0
      gradients = program.gradients(state.p)
      if gap < _LOOK:
        # The relative gap that a certificate would find, plus the infeasibility.
        largest = float(np.max(values))
        bound = program.lower_bound(state.p, state.theta, state.price, gradients)
        certified = abs(largest - bound) / largest + max(
            abs(float(program.mass @ state.p) - 1),
            float(program.cost @ state.p) / program.budget - 1)
        if gap < 10 * target:
          stale += 1
        if certified < 0.7 * least or best is None:  # A clear gain.
          best, least, stale = state, certified, 0
        if least < target or stale >= _PATIENCE:
          break
      # The barrier must not vanish before the multipliers converge: only the
      # barrier holds cells that no binding shift constrains.
      aim = max(centering * gap, min(_BEHIND * certified, gap), 0.01 * target)
      try:
        state, values, length = _step(program, state, values, gradients, aim)
        steps += 1
      except convex_program.SolverError:
        if best is None:
          raise
        break
      # A step that had to be shortened was badly centred: centre the next one more.
      centering = 0.06 if length > 0.9 else 0.15 if length > 0.5 else 0.4
  if best is not None:
    state = best
  return convex_program.Solution(state.p, state.theta, state.price, steps)


def _start(program: convex_program.Program, p: np.ndarray, gap: float) -> _State:
  """Returns a centred state whose largest divergence has relative slack `gap`."""
  fall, eta = np.zeros(0), np.zeros(0)
  if program.log_volume is not None:
    log_density = np.log(p) - program.log_volume
    fall = -np.diff(log_density)
    # Flat stretches are steepened, so that no `fall` starts at its boundary.
    fall = np.maximum(fall, 0.1 * np.mean(np.maximum(fall, 0.0)))
    log_p = program.log_volume - np.append(0.0, np.cumsum(fall))
    p = np.exp(log_p - np.max(log_p))
  p = p / (program.mass @ p)
  values = program.divergences(p)
  if not np.all(np.isfinite(values)):
    raise convex_program.SolverError(
        f'Expected a start of finite {program.objective} divergence, got '
        f'{np.max(values)}; the order is too high for this grid. Use a lower '
        'order, more bins or a tail_ratio nearer one.')
  top = (1 + gap) * float(np.max(values))
  spare = max(program.budget - float(program.cost @ p), 0.5 * gap * program.budget)
  mu = gap * top / values.size
  if fall.size:
    eta = mu * p[:-1] / np.sum(p[:-1]) / (-p[:-1] * np.expm1(-fall))
  theta = np.full(values.size, 1.0 / values.size)
  return _State(p, fall, top, top - values, theta, spare, mu / spare, -top, eta)


def _step(program: convex_program.Program, state: _State, values: np.ndarray,
          gradients: np.ndarray, gap: float) -> tuple[_State, np.ndarray, float]:
  """Returns (state, divergences, length) after a damped Newton step."""
  # The step aims at the `gap` relative to `top`, in equal shares for each shift, the
  # cost and all of `drop`. `length` is the share of the full step. `mu` and `tau` are
  # as in `_advance`, `pull` is minus the gradient of the Lagrangian with respect to
  # log p, to which the constraints `drop` >= 0 add `push`.
  p, k = state.p, state.theta.size
  mu = gap * state.top / (k + 1 + bool(state.fall.size))
  tau = mu * p[:-1] / np.sum(p[:-1]) if state.fall.size else np.zeros(0)
  pull = -p * (state.theta @ gradients + state.price * program.cost +
               state.nu * program.mass)
  band = program.edges(p, state.theta)
  # Where one shift dominates, chains of cells a whole shift apart are hardly
  # coupled: a proximal term keeps the factors accurate.
  excess = _PROXIMAL * state.top * program.mass * p
  if state.fall.size:
    drop, carried = state.drop, state.carried
    band[1, :-1] += state.eta / drop * p[:-1] * carried
    excess[:-1] += state.eta * p[:-1]
    excess[1:] -= state.eta * carried
    push = tau / drop
    pull[:-1] += p[:-1] * push
    pull[1:] -= carried * push
  border = np.vstack([gradients * p, program.cost * p, program.mass * p])
  corner = np.append(state.slack / state.theta, [state.spare / state.price, 0])
  right = np.concatenate([
      state.top - values - mu / state.theta,
      [program.budget - program.cost @ p - mu / state.price,
       1 - program.mass @ p]])
  du, dual, top = _newton(_Laplacian(band, excess), border, corner, k, pull, right,
                          np.sum(state.theta) - 1)
  moved, length = _advance(state, du, dual, top, mu, tau)
  # The linearised slack is replaced by the true one unless that is much smaller.
  values = program.divergences(moved.p)
  slack = moved.top - values
  return dataclasses.replace(moved, slack=np.where(
      slack > 0.5 * moved.slack, slack, moved.slack)), values, length


class _Laplacian:
  """Cholesky factor of a Laplacian plus a diagonal, grounded at one cell."""
  # It begins in the tail: small weights go before large ones, and nothing cancels.

  def __init__(self, band: np.ndarray, excess: np.ndarray):
    """Factorises edge weights band[d, i] of (i, i + d) plus the diagonal `excess`.

    Row 0 of `band`, and entries beyond the last cell, are zero.
    """
    self.band, self.excess = band, excess
    width, n = band.shape
    degree = np.sum(band, axis=0)
    # In reverse order entry (d, j) of the lower band is the edge (n-1-j-d, n-1-j).
    lower = np.zeros((n, width))
    for d in range(1, width):
      degree[d:] += band[d, :n - d]
      lower[:n - d, d] = -band[d, n - d - 1::-1]
    # Constant vectors are in the kernel of the Laplacian (scaling p changes only the
    # mass). So the cell of largest degree gets that degree added to its diagonal entry
    # once more; `_newton` subtracts it again.
    self.heaviest = int(np.argmax(degree))
    self.ground = degree[self.heaviest]
    lower[:, 0] = (degree + excess)[::-1]
    lower[-1 - self.heaviest, 0] += self.ground
    lower = lower.T
    if not np.all(np.isfinite(lower)):
      raise convex_program.SolverError(
          'Expected a finite Newton system, got infinities: the program is too '
          'badly scaled. Use fewer bins or cells, or another tail_ratio.')
    self._factor = self._cholesky(lower)

  @staticmethod
  def _cholesky(lower: np.ndarray) -> np.ndarray:
    """Returns lower bands of the factor, with jitter if need be; else SolverError."""
    for jitter in (0.0, 1e-15, 1e-13, 1e-10, 1e-7):
      # Rounding may make a pivot negative. Refinement corrects for the jitter.
      shifted = lower.copy(order='F')
      shifted[0] *= 1 + jitter
      factor, info = linalg.lapack.dpbtrf(shifted, lower=1, overwrite_ab=1)
      if info == 0:
        return factor
    raise convex_program.SolverError(
        'Expected a positive definite Newton system, got a negative pivot at cell '
        f'{lower.shape[1] - info}. Use fewer bins or cells, or another tail_ratio.')

  def apply(self, x: np.ndarray) -> np.ndarray:
    """Returns the Laplacian plus the diagonal, not grounded, times x."""
    result = self.excess * x
    n = x.size
    for d in range(1, self.band.shape[0]):
      flow = self.band[d, :n - d] * (x[:n - d] - x[d:])
      result[:n - d] += flow
      result[d:] -= flow
    return result

  def solve(self, rows: np.ndarray) -> np.ndarray:
    """Solves the grounded system for each row of `rows`."""
    solution, _ = linalg.lapack.dpbtrs(
        self._factor, np.asfortranarray(rows[:, ::-1].T), lower=1)
    return solution.T[:, ::-1]


def _newton(matrix: _Laplacian, border: np.ndarray, corner: np.ndarray, k: int,
            first: np.ndarray, second: np.ndarray, third: float
            ) -> tuple[np.ndarray, np.ndarray, float]:
  """Returns the changes (of log p, of dual = (theta, price, nu), of `top`)."""
  # With A = `matrix` without its grounding and B = `border`, whose first k rows belong
  # to shifts: A du + B' dual = first, B du - corner * dual - top = second (top in the
  # first k only), and sum(dual[:k]) = -third.
  unit = np.zeros((1, border.shape[1]))
  unit[0, matrix.heaviest] = 1.0
  rows = np.vstack([border, unit])
  inverse = matrix.solve(rows)
  size = rows.shape[0] + 1
  schur = np.zeros((size, size))
  schur[:-1, :-1] = rows @ inverse.T
  diagonal = np.arange(size - 2)
  schur[diagonal, diagonal] += corner
  schur[-2, -2] -= 1 / matrix.ground
  schur[-1, :k] = schur[:k, -1] = 1.0
  scale = 1 / np.sqrt(np.maximum(np.max(np.abs(schur), axis=1), 1e-300))
  with warnings.catch_warnings():
    # Near the optimum the matrix is always ill-conditioned; certificates judge.
    warnings.simplefilter('ignore', linalg.LinAlgWarning)
    if not np.all(np.isfinite(schur)):
      raise _breakdown()
    factors = linalg.lu_factor(schur * np.outer(scale, scale))

  def once(first, second, third):
    """Solves the equations without refinement."""
    particular = matrix.solve(first[None, :])[0]
    right = rows @ particular
    right[:-1] -= second
    # Eliminating du leaves the Schur complement for y, which holds dual, the multiplier
    # of `unit` and top.
    y = scale * linalg.lu_solve(factors, scale * np.append(right, -third))
    return particular - y[:-1] @ inverse, y[:-2], float(y[-1])

  du, dual, top = once(first, second, third)
  # One step of refinement: solves again for what the equations still lack.
  first_rest = first - matrix.apply(du) - dual @ border
  second_rest = second - border @ du + corner * dual
  second_rest[:k] += top
  more_du, more_dual, more_top = once(
      first_rest, second_rest, third + np.sum(dual[:k]))
  du, dual, top = du + more_du, dual + more_dual, top + more_top
  if not (np.all(np.isfinite(du)) and np.all(np.isfinite(dual))):
    raise _breakdown()
  return du, dual, top


def _breakdown() -> convex_program.SolverError:
  """Returns the error to raise if a Newton step is not finite."""
  return convex_program.SolverError(
      'Expected a finite Newton step, got none: the program is too badly '
      'scaled. Use fewer bins or cells, or another tail_ratio.')


def _advance(state: _State, du: np.ndarray, dual: np.ndarray, top: float,
             mu: float, tau: np.ndarray) -> tuple[_State, float]:
  """Applies a Newton direction as far as positivity allows; returns (state, length)."""
  # `mu` and `tau` are the products of slack and multiplier that the step aims at: `mu`
  # for shifts and cost, `tau` for `drop` and `eta`.
  k = state.theta.size
  theta, price, nu = dual[:k], dual[k], dual[k + 1]
  # Linearised complementarity: slack * theta = mu, and so for the other pairs.
  slack = mu / state.theta - state.slack - state.slack / state.theta * theta
  spare = mu / state.price - state.spare - state.spare / state.price * price
  pairs = [(state.theta, theta), (state.slack, slack),
           (np.array([state.price, state.spare]), np.array([price, spare]))]
  fall, eta = np.zeros(0), np.zeros(0)
  if state.fall.size:
    fall = du[:-1] - du[1:]
    drop = state.drop
    moved = state.p[:-1] * du[:-1] - state.carried * du[1:]
    eta = (tau - state.eta * moved) / drop - state.eta
    pairs += [(state.eta, eta), (state.fall, fall)]
  length = min(1.0, _LARGEST_MOVE / max(float(np.max(np.abs(du))), 1e-300))
  for value, change in pairs:
    falling = change < 0
    if np.any(falling):
      length = min(length, _TO_BOUNDARY * float(
          np.min(-value[falling] / change[falling])))
  if not np.isfinite(length):
    raise _breakdown()
  p, moved = state.p * np.exp(length * du), state.fall + length * fall
  if length * np.max(np.abs(du)) < _LINEAR:
    # A step linear in p keeps mass and cost constraints that are met. `bent` is the
    # `fall` to which such a step leads.
    bent = state.fall + np.log1p(length * fall / (1 + length * du[1:])
                                 ) if fall.size else fall
    if np.all(bent > 1e-3 * state.fall):
      p, moved = state.p * (1 + length * du), bent
  return _State(
      p, moved,
      state.top + length * top, state.slack + length * slack,
      state.theta + length * theta, state.spare + length * float(spare),
      state.price + length * float(price), state.nu + length * float(nu),
      state.eta + length * eta), length
