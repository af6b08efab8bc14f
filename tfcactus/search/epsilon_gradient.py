"""How epsilon answers to a change of the noise's density: a guide, no bound.

By the derivative of the composed delta in each cell's mass, over its derivative in
epsilon. delta is computed on a plain lattice: what a search proposes from here
must be accounted again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tfcactus import _checks
from tfcactus.design.solvers import composed_delta
from tfcactus.noise import scalar_table

POINTS = 1 << 17
"""Lattice points of the total loss."""

FORGOTTEN = 40.0
"""The tail is enumerated until its density has fallen by this many nats."""


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
  pairs = composed_delta.sampled_pairs(here.mass, there.mass, sampling_prob)
  values = [composed_delta.composed_delta(
      p, q, epsilon=epsilon, steps=steps, points=POINTS) for p, q in pairs]
  worst = max(range(len(values)), key=lambda i: values[i].delta)
  value = values[worst]
  # delta is linear in e^epsilon, and homogeneous in Q with degree `steps`.
  per_epsilon = -float(value.by_q @ pairs[worst][1]) / steps
  by_here, by_there = composed_delta.unsampled(worst, value.by_p, value.by_q,
                                               sampling_prob)
  return (here.collect(by_here, last + 1) +
          there.collect(by_there, last + 1)) / per_epsilon


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
