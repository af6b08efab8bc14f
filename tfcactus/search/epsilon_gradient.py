"""How epsilon answers to a change of the noise's density: a guide, no bound.

One step's pair (P, Q) enters delta as an f-divergence, with the other steps'
total loss S known:

    delta(eps) = sum over outcomes of E[(P - e^(eps - S) Q)_+],

so that its derivatives are tail probabilities of S at eps less the outcome's
loss. S is composed on a plain lattice: what a search proposes from here must be
accounted again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tfcactus import _checks
from tfcactus.noise import scalar_table

POINTS = 1 << 17
"""Lattice points of the total loss."""

FORGOTTEN = 40.0
"""The tail is enumerated until its density has fallen by this many nats."""

SPREADS = 24.0
"""Standard deviations of the total loss that the lattice holds."""


class _Tail(NamedTuple):
  """Tail sums of the other steps' total loss S, at increasing points."""

  at: np.ndarray
  p: np.ndarray
  q: np.ndarray

  def beyond(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P(S > x) and E[e^(epsilon - S); S > x]."""
    if self.at.size == 1:
      above = x < self.at[0]
      return above * self.p[0], above * self.q[0]
    return (np.interp(x, self.at, np.append(self.p[1:], 0.0)),
            np.interp(x, self.at, np.append(self.q[1:], 0.0)))


def epsilon_gradient(table: scalar_table.ScalarTable, *, sampling_prob: float,
                     steps: int, epsilon: float) -> np.ndarray:
  """The derivative of epsilon, at fixed delta, in the mass of every cell.

  For adding or removing a record, whichever costs more; at a full shift, so that
  it belongs to monotone tables.

  Args:
    table: Symmetric noise with a geometric tail.
    sampling_prob: Poisson sampling probability of a step.
    steps: How many steps.
    epsilon: The epsilon that the table has at the delta meant.

  Returns:
    Shape of `table.log_density`: per unit of the mass of one cell, its mirror
    image and what the tail adds to the last one included. Only differences
    along changes that keep the total mass mean anything.

  Raises:
    ValueError: if the table has no tail, or an argument is out of range.
  """
  sampling_prob = _checks.sampling_prob(sampling_prob)
  steps = _checks.integer('steps', steps, 1)
  epsilon = _checks.non_negative('epsilon', epsilon)
  if not np.isfinite(table.log_tail_ratio):
    raise ValueError('Expected noise with a geometric tail, got a table that '
                     f'ends: {table!r}.')
  if table.edge_at_zero:
    raise ValueError('Expected a table with a cell around zero, got one with an '
                     f'edge there: {table!r}.')
  last = table.log_density.size - 1
  beyond = int(np.ceil(FORGOTTEN / -table.log_tail_ratio)) + table.bins
  index = np.arange(-last - beyond, last + beyond + table.bins + 1)
  here, there = _Cells.of(table, index), _Cells.of(table, index - table.bins)
  best = max((_side(here.mass, there.mass, sampling_prob, steps, epsilon, way)
              for way in ('add', 'remove')), key=lambda side: side.delta)
  gradient = (here.collect(best.here, last + 1) +
              there.collect(best.there, last + 1))
  return steps * gradient / best.per_epsilon


class _Cells(NamedTuple):
  """Cells of the line: the stored cell of each, its share of that, its mass."""

  stored: np.ndarray
  share: np.ndarray
  mass: np.ndarray

  @classmethod
  def of(cls, table: scalar_table.ScalarTable, index: np.ndarray) -> _Cells:
    """The cells with these indices, counted from the centre."""
    last = table.log_density.size - 1
    stored = np.minimum(np.abs(index), last)
    share = np.exp((np.abs(index) - stored) * table.log_tail_ratio)
    return cls(stored, share,
               share * np.exp(table.log_density[stored]) / table.bins)

  def collect(self, slope: np.ndarray, size: int) -> np.ndarray:
    """Derivatives in the stored cells from derivatives in these."""
    return np.bincount(self.stored, slope * self.share, size)


class _Side(NamedTuple):
  """One direction: delta, minus its slope in epsilon, and its derivatives."""

  delta: float
  per_epsilon: float
  here: np.ndarray
  there: np.ndarray


def _side(noise: np.ndarray, shifted: np.ndarray, rate: float, steps: int,
          epsilon: float, way: str) -> _Side:
  mixture = (1 - rate) * noise + rate * shifted
  p, q = (mixture, noise) if way == 'remove' else (noise, mixture)
  loss = np.log(p) - np.log(q)
  in_p, in_q = _others(loss, p, steps - 1, epsilon).beyond(epsilon - loss)
  in_mixture, in_noise = (in_p, -in_q) if way == 'remove' else (-in_q, in_p)
  return _Side(float(in_p @ p - in_q @ q), float(in_q @ q),
               in_noise + (1 - rate) * in_mixture, rate * in_mixture)


def _others(loss: np.ndarray, p: np.ndarray, steps: int, epsilon: float
            ) -> _Tail:
  """The total loss of the other steps, on a lattice around where it matters."""
  if steps == 0:
    return _Tail(np.zeros(1), np.ones(1), np.full(1, np.exp(epsilon)))
  mean = float(p @ loss)
  spread = float(np.sqrt(p @ (loss - mean)**2 * steps))
  top = float(np.max(np.abs(loss)))
  width = (SPREADS * spread + 2 * epsilon + 6 * top) / POINTS
  cell = np.floor(loss / width)
  up = p * (loss / width - cell)
  cell = cell.astype(np.int64)
  step = (np.bincount(cell % POINTS, p - up, POINTS) +
          np.bincount((cell + 1) % POINTS, up, POINTS))
  total = np.maximum(np.fft.irfft(np.fft.rfft(step)**steps, POINTS), 0.0)
  at = np.arange(POINTS) + int(steps * mean / width) - POINTS // 2
  total = total[at % POINTS]
  tilted = total * np.exp(np.clip(epsilon - at * width, -700, 700))
  # What lies far below epsilon never counts, and would overflow.
  tilted[at * width < epsilon - top - 1] = 0.0
  return _Tail(at * width, *(np.cumsum(x[::-1])[::-1] for x in (total, tilted)))
