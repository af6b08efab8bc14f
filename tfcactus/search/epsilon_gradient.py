"""Gradient of epsilon with respect to the noise density: a search direction, no bound.

At fixed delta, the gradient is the derivative of the composed delta with respect to
each cell's mass over minus its derivative with respect to epsilon. delta is computed
on a plain lattice: noise that a search proposes must be accounted again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tfcactus import _checks
from tfcactus.design.solvers import composed_delta
from tfcactus.noise import scalar_table

POINTS = 1 << 17
"""Number of lattice points of the total loss."""

FORGOTTEN = 40.0
"""The tail is enumerated until its density has decreased by this many nats."""


def epsilon_gradient(table: scalar_table.ScalarTable, *, sampling_prob: float,
                     steps: int, epsilon: float) -> np.ndarray:
  """Returns the gradient of epsilon, at fixed delta, with respect to the cell masses.

  The result has the shape of `table.log_density`. Each entry is the derivative with
  respect to the mass of one stored cell. The cell's mirror image changes with it, and
  the tail changes with the last cell. Only changes that keep the total mass have a
  meaning. `epsilon` is the table's epsilon at that delta. The neighbours differ by
  adding or removing a record, whichever costs more, at the full shift: the table must
  be monotone. Raises ValueError if the table has no geometric tail, or an argument is
  out of range.
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
  # delta is P(S) - e^epsilon Q(S), with the best set S of outcomes, and its derivative
  # with respect to epsilon is -e^epsilon Q(S). Q(S) has degree `steps` in the masses q,
  # so that by Euler's theorem by_q @ q is `steps` times that derivative.
  per_epsilon = -float(value.by_q @ pairs[worst][1]) / steps
  by_here, by_there = composed_delta.unsampled(worst, value.by_p, value.by_q,
                                               sampling_prob)
  return (here.collect(by_here, last + 1) +
          there.collect(by_there, last + 1)) / per_epsilon


class _Cells(NamedTuple):
  """Cells of the real line, of which the table stores the right half up to a last one.

  Attributes:
    stored: Index of the stored cell whose density determines the cell's density.
    share: The cell's density over the density of that stored cell; below 1 in the tail.
    mass: The cell's probability.
  """

  stored: np.ndarray
  share: np.ndarray
  mass: np.ndarray

  @classmethod
  def of(cls, table: scalar_table.ScalarTable, index: np.ndarray) -> _Cells:
    """Returns the cells with these indices; 0 is the cell around zero noise."""
    last = table.log_density.size - 1
    stored = np.minimum(np.abs(index), last)
    share = np.exp((np.abs(index) - stored) * table.log_tail_ratio)
    return cls(stored, share,
               share * np.exp(table.log_density[stored]) / table.bins)

  def collect(self, slope: np.ndarray, size: int) -> np.ndarray:
    """Maps derivatives by these cells' masses to ones by `size` stored masses."""
    return np.bincount(self.stored, slope * self.share, size)
