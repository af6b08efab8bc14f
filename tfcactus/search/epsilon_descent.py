"""Descent of epsilon from a monotone design: a search for noise, which proves nothing.

The composed delta is computed on a plain lattice: noise that a search proposes must be
accounted again.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tfcactus.design import fields, scalar
from tfcactus.design.solvers import composed_delta, convex_program, grid, interior_point
from tfcactus.design.solvers.cost import PowerCost
from tfcactus.noise import scalar_table

POINTS = 1 << 17
"""Number of lattice points of the total loss."""

FORGOTTEN = 40.0
"""The tail is enumerated until its density has decreased by this many nats."""

_ACCURACY = 1e-9
"""Relative gap at which the interior-point method stops: affects the search only."""


def epsilon_gradient(table: scalar_table.ScalarTable, *, sampling_prob: float,
                     steps: int, epsilon: float) -> np.ndarray:
  """Returns the gradient of epsilon at fixed delta with respect to masses, (N + 1,)."""
  # `epsilon` is that of `table`, which is one of `Monotone`: it has a tail and a cell
  # around zero. An entry is the derivative with respect to the mass of one stored cell.
  # The cell's mirror image changes with it, and the tail changes with the last cell.
  # Only changes that keep the total mass have a meaning. The neighbours differ by a
  # record that is added or removed, whichever costs more, at the full shift.
  # At fixed delta, the derivative is that of delta with respect to the mass, over minus
  # that of delta with respect to epsilon.
  last = table.log_density.size - 1
  beyond = int(np.ceil(FORGOTTEN / -table.log_tail_ratio)) + table.bins
  index = np.arange(-last - beyond, last + beyond + table.bins + 1)
  here, here_share, p = _cells(table, index)
  there, there_share, q = _cells(table, index - table.bins)
  pairs = composed_delta.sampled_pairs(p, q, sampling_prob)
  values = [composed_delta.composed_delta(
      p, q, epsilon=epsilon, steps=steps, points=POINTS) for p, q in pairs]
  worst, value = max(enumerate(values), key=lambda item: item[1].delta)
  # delta is P(S) - e^epsilon Q(S), with the best set S of outcomes, and its derivative
  # with respect to epsilon is -e^epsilon Q(S). Q(S) has degree `steps` in the masses q,
  # so that by Euler's theorem by_q @ q is `steps` times that derivative.
  per_epsilon = -float(value.by_q @ pairs[worst][1]) / steps
  by_here, by_there = composed_delta.unsampled(worst, value.by_p, value.by_q,
                                               sampling_prob)
  return (np.bincount(here, by_here * here_share, last + 1) +
          np.bincount(there, by_there * there_share, last + 1)) / per_epsilon


def _cells(table: scalar_table.ScalarTable, index: np.ndarray
           ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns each cell's stored cell, its density over that one's, and its mass."""
  # Cell 0 is the one around zero; ratios are below one in the tail.
  stored = np.minimum(np.abs(index), table.log_density.size - 1)
  share = np.exp((np.abs(index) - stored) * table.log_tail_ratio)
  return stored, share, share * np.exp(table.log_density[stored]) / table.bins


@dataclasses.dataclass(frozen=True)
class _Tilted(convex_program.Program):
  """A program with a linear term added to its divergences."""

  linear: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(1))

  def divergences(self, p: np.ndarray) -> np.ndarray:
    return super().divergences(p) + self.linear @ p

  def gradients(self, p: np.ndarray) -> np.ndarray:
    return super().gradients(p) + self.linear


def step(table: scalar_table.ScalarTable, gradient: np.ndarray, length: float
         ) -> scalar_table.ScalarTable:
  """Returns the table one mirror step from that of `Monotone` or of an earlier step."""
  # It minimises D(p) - D'(p0) (p - p0) + length * gradient (p - p0) under the design's
  # constraints, where D is the design's divergence, p0 the table's density and
  # `gradient` that of `epsilon_gradient`: the design's program with a linear term.
  # `length` 1 is right if D, scaled to the gradient's size, has the curvature of
  # epsilon; 0 leaves the density unchanged. The result is monotone, of the same grid
  # and cost as `table`, without a certificate.
  told = table.info['parameters']
  spec = scalar.ScalarSpec(
      'refined', told['objective'], told['budget'],
      PowerCost(told['power']), table.bins, table.log_density.size - 1,
      table.log_tail_ratio, 'interior-point', monotone=True)
  program = spec.program(np.array([spec.bins]))
  p = np.exp(table.log_density) / table.bins
  own = program.gradients(p)[0]
  linear = length * gradient / _scale(program, p, gradient, own) - own
  # Adds a constant for all p of mass one, which keeps the objective above zero.
  linear = linear + (float(program.divergences(p)[0]) - linear @ p) * program.mass
  parts = {f.name: getattr(program, f.name) for f in dataclasses.fields(program)}
  solution = interior_point.solve(_Tilted(**parts, linear=linear), p, warm=True,
                                   target=_ACCURACY)
  q = grid.into_budget(program, solution.p)
  log_density = np.minimum.accumulate(np.log(q * spec.bins))
  return scalar_table.ScalarTable.normalized(
      spec.bins, log_density, spec.log_tail_ratio, fields.uncertified(
          spec.mechanism, told, 'Refined by gradient steps from a certified '
          'design; not an optimum of its own.'))


def _scale(program: convex_program.Program, p: np.ndarray, gradient: np.ndarray,
           own: np.ndarray) -> float:
  """Returns the size of `gradient` relative to `own`, the divergence's gradient."""
  # Both are first projected onto changes that keep the mass and the cost.
  weight = np.sqrt(program.mass * p)
  rows = np.column_stack([program.mass, program.cost]) / program.mass[:, None]

  def free(slope):
    """Returns a weighted gradient, projected onto changes that keep mass and cost."""
    values = weight * slope / program.mass
    fit = np.linalg.lstsq(weight[:, None] * rows, values, rcond=None)[0]
    return values - weight * (rows @ fit)

  ours, theirs = free(own), free(gradient)
  along = float(ours @ theirs) / float(ours @ ours)
  # If the gradients point in opposite directions, the ratio of their norms is used.
  return along if along > 0 else float(np.linalg.norm(theirs) / np.linalg.norm(ours))
