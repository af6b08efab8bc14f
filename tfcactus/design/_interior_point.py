"""A primal-dual interior-point method for `Program`, dense, without cvxpy.

Newton steps are taken in p but applied as p * exp(step * du), so that masses
from 1 to 1e-30 converge in relative terms: the certificate reads gradients in
the far tail, where an absolute tolerance would leave noise.
"""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
from scipy import linalg

from tfcactus.design import _program

_CENTERING = 0.15
_TO_BOUNDARY = 0.99
_LARGEST_MOVE = 2.0
"""Largest change of log p in one step."""

_GAP = 1e-11
_CELL_WEIGHT = 1e-3
"""How much an error in one nearly empty cell counts towards convergence."""

_MAX_ITERATIONS = 200


@dataclasses.dataclass
class _State:
  """A point of the method; t = the drops of a monotone density."""

  p: np.ndarray
  top: float
  slack: np.ndarray
  theta: np.ndarray
  spare: float
  price: float
  nu: float
  eta: np.ndarray


def solve(program: _program.Program, start: np.ndarray) -> _program.Solution:
  """Solves a program from a strictly feasible or nearly feasible start.

  Args:
    program: The program.
    start: Positive masses; strictly decreasing density if monotone.

  Returns:
    The optimum and its multipliers (to be certified by the caller).

  Raises:
    SolverError: if the method stalls.
  """
  drops = _drop_rows(program)
  state = _start(program, start, drops)
  best, least, stale, steps = state, np.inf, 0, 0
  for _ in range(_MAX_ITERATIONS):
    gap, residual = _residual(program, state, drops)
    merit = max(gap, residual)
    if merit < _GAP:
      break
    stale += 1
    if merit < 0.9 * least:
      best, least, stale = state, merit, 0
    # Rounding sets a floor; the certificate decides whether it is low enough.
    if stale > (3 if least < 1e-8 else 40):
      state = best
      break
    try:
      state = _step(program, state, drops, max(gap, 0.3 * _GAP))
      steps += 1
    except _program.SolverError:
      if least > 1e-6:
        raise
      state = best
      break
  return _program.Solution(state.p, state.theta, state.price, steps)


def _drop_rows(program: _program.Program) -> np.ndarray:
  """ratio_i such that p_i - ratio_i p_{i+1} >= 0 keeps the density falling."""
  if program.log_volume is None:
    return np.zeros(0)
  return np.exp(-np.diff(program.log_volume))


def _drop(p: np.ndarray, ratio: np.ndarray) -> np.ndarray:
  """How far the density falls to the next cell; never quite zero."""
  if not ratio.size:
    return np.zeros(0)
  return np.maximum(p[:-1] - ratio * p[1:], 1e-17 * p[:-1])


def _start(program: _program.Program, p: np.ndarray,
           ratio: np.ndarray) -> _State:
  p = p / (program.mass @ p)
  values = program.divergences(p)
  top = 1.1 * float(np.max(values))
  spare = max(program.budget - float(program.cost @ p), 0.05 * program.budget)
  theta = np.full(values.size, 1.0 / values.size)
  mu = 0.1 * top / values.size
  eta = np.zeros(0)
  if ratio.size:
    eta = mu * p[:-1] / np.sum(p[:-1]) / (p[:-1] - ratio * p[1:])
  return _State(p, top, top - values, theta, spare, mu / spare, -top, eta)


def _residual(program: _program.Program, state: _State,
              ratio: np.ndarray) -> tuple[float, float]:
  """(complementarity per constraint, largest residual), relative to the top."""
  p, top = state.p, state.top
  values, gradients = program.divergences(p), program.gradients(p)
  dual = _dual(program, state, ratio, gradients)
  drop = _drop(p, ratio)
  gap = (state.theta @ state.slack + state.spare * state.price +
         state.eta @ drop) / top
  residual = max(
      float(np.max(np.abs(values - top + state.slack))) / top,
      abs(float(program.cost @ p) + state.spare - program.budget) /
      program.budget,
      abs(float(program.mass @ p) - 1), abs(1 - float(np.sum(state.theta))),
      float(np.max(np.abs(p * dual))) / top,
      # The bound reads the dual of every cell, however little mass it holds.
      _CELL_WEIGHT * float(np.max(np.abs(dual) / program.mass)) / top)
  return float(gap), residual


def _dual(program: _program.Program, state: _State, ratio: np.ndarray,
          gradients: np.ndarray) -> np.ndarray:
  dual = (state.theta @ gradients + state.price * program.cost +
          state.nu * program.mass)
  if ratio.size:
    dual[:-1] -= state.eta
    dual[1:] += ratio * state.eta
  return dual


def _step(program: _program.Program, state: _State, ratio: np.ndarray,
          gap: float) -> _State:
  """One damped Newton step towards the central path at a smaller mu."""
  p, n, k = state.p, state.p.size, state.theta.size
  gradients = program.gradients(p)
  mu = _CENTERING * gap * state.top / (k + 1 + (1 if ratio.size else 0))
  tau = mu * p[:-1] / np.sum(p[:-1]) if ratio.size else np.zeros(0)
  block = program.scaled_hessian(p, state.theta)
  pull = -p * _dual(program, state, ratio, gradients)
  if ratio.size:
    _add_drops(block, pull, state, ratio, tau)
  # Unknowns in order: log p, theta, price, nu, top.
  system = np.zeros((n + k + 3, n + k + 3))
  border = np.vstack([gradients * p, program.cost * p, program.mass * p])
  columns = slice(n, n + k + 2)
  system[:n, :n] = block
  system[columns, :n] = border
  system[:n, columns] = border.T
  system[-1, n:n + k] = system[n:n + k, -1] = -1.0
  diagonal = np.arange(n, n + k + 1)
  system[diagonal, diagonal] = -np.append(state.slack / state.theta,
                                          state.spare / state.price)
  right = np.concatenate([
      pull, state.top - program.divergences(p) - mu / state.theta,
      [program.budget - program.cost @ p - mu / state.price,
       1 - program.mass @ p, np.sum(state.theta) - 1]])
  return _advance(state, _solve_linear(system, right), mu, tau, ratio)


def _add_drops(block: np.ndarray, pull: np.ndarray, state: _State,
               ratio: np.ndarray, tau: np.ndarray) -> None:
  """Adds the barrier of the monotonicity constraints, in place."""
  head, tail = state.p[:-1], ratio * state.p[1:]
  drop = _drop(state.p, ratio)
  stiff = state.eta / drop
  i = np.arange(head.size)
  block[i, i] += stiff * head * head
  block[i + 1, i + 1] += stiff * tail * tail
  block[i, i + 1] -= stiff * head * tail
  block[i + 1, i] -= stiff * head * tail
  push = tau / drop - state.eta
  pull[:-1] += head * push
  pull[1:] -= tail * push


def _solve_linear(system: np.ndarray, right: np.ndarray) -> np.ndarray:
  """Solves a Newton system, equilibrated: rows span thirty decades."""
  if not (np.all(np.isfinite(system)) and np.all(np.isfinite(right))):
    raise _program.SolverError(
        'Expected a finite Newton system, got infinities: the program is too '
        'badly scaled. Use fewer bins or cells, or another tail_ratio.')
  scale = 1 / np.sqrt(np.maximum(np.max(np.abs(system), axis=1), 1e-300))
  with warnings.catch_warnings():
    # Near the optimum it is always ill-conditioned; the certificate judges.
    warnings.simplefilter('ignore', linalg.LinAlgWarning)
    try:
      move = scale * linalg.solve(system * np.outer(scale, scale),
                                  scale * right)
    except linalg.LinAlgError:
      move = np.full(right.size, np.nan)
  if not np.all(np.isfinite(move)):
    raise _program.SolverError(
        'Expected a finite Newton step, got none: the program is too badly '
        'scaled. Use fewer bins or cells, or another tail_ratio.')
  return move


def _advance(state: _State, move: np.ndarray, mu: float, tau: np.ndarray,
             ratio: np.ndarray) -> _State:
  """Applies a Newton direction as far as positivity allows."""
  n, k = state.p.size, state.theta.size
  du, theta, price, nu, top = (
      move[:n], move[n:n + k], move[n + k], move[n + k + 1], move[-1])
  slack = mu / state.theta - state.slack - state.slack / state.theta * theta
  spare = mu / state.price - state.spare - state.spare / state.price * price
  eta = np.zeros(0)
  pairs = [(state.theta, theta), (state.slack, slack),
           (np.array([state.price, state.spare]), np.array([price, spare]))]
  if ratio.size:
    head, tail = state.p[:-1], ratio * state.p[1:]
    drop = _drop(state.p, ratio)
    fall = head * du[:-1] - tail * du[1:]
    eta = (tau - state.eta * fall) / drop - state.eta
    # In logs the density's fall is linear in the step, and log(head / tail) is
    # at least drop / head.
    pairs += [(state.eta, eta), (drop / head, du[:-1] - du[1:])]
  length = min(1.0, _LARGEST_MOVE / max(float(np.max(np.abs(du))), 1e-300))
  for value, change in pairs:
    falling = change < 0
    if np.any(falling):
      length = min(length, _TO_BOUNDARY * float(
          np.min(-value[falling] / change[falling])))
  return _State(
      state.p * np.exp(length * du), state.top + length * top,
      state.slack + length * slack, state.theta + length * theta,
      state.spare + length * float(spare), state.price + length * float(price),
      state.nu + length * float(nu), state.eta + length * eta)
