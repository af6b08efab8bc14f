"""Mirror descent from a monotone design, for a quantity given by its gradient.

A mirror step minimises

    D(p) - D'(p0) (p - p0) + length * gradient (p - p0)

under the design's own constraints, where D is the design's divergence and p0 the
current density. This is the design's program with a linear term, and the
interior-point method solves it. The gradient is scaled to the size of D'.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tfcactus.design import scalar, table_info
from tfcactus.design.solvers import (
  convex_program,
  cost as cost_lib,
  grid,
  interior_point,
)
from tfcactus.noise import scalar_table

_ACCURACY = 1e-9


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
  """Takes one mirror step from a table of `Monotone`, or of this function.

  `gradient` has the shape of `table.log_density` and holds the quantity's derivatives
  with respect to each stored cell's mass. `length` 1 is right if the design's
  divergence, scaled to the gradient's size, has the curvature of the quantity; 0 leaves
  the density unchanged. The result is monotone, of the same grid and cost as `table`,
  without a certificate. Raises SolverError if there is no accurate solution.
  """
  told = table.info['parameters']
  spec = scalar.ScalarSpec(
      'refined', told['objective'], told['budget'],
      cost_lib.PowerCost(told['power']), table.bins, table.log_density.size - 1,
      table.log_tail_ratio, 'interior-point', monotone=True)
  program = spec.program(np.array([spec.bins]))
  p = np.exp(table.log_density) / table.bins
  own = program.gradients(p)[0]
  linear = length * gradient / _scale(program, p, gradient, own) - own
  # Adds a constant for all p of mass one, which keeps the objective above zero.
  linear = linear + (float(program.divergences(p)[0]) - linear @ p) * program.mass
  fields = {f.name: getattr(program, f.name) for f in dataclasses.fields(program)}
  solution = interior_point.solve(_Tilted(**fields, linear=linear), p, warm=True,
                                   target=_ACCURACY)
  q = grid.into_budget(program, solution.p)
  log_density = np.minimum.accumulate(np.log(q * spec.bins))
  return scalar_table.ScalarTable.normalized(
      spec.bins, log_density, spec.log_tail_ratio, table_info.uncertified(
          spec.mechanism, told, 'Refined by gradient steps from a certified '
          'design; not an optimum of its own.'))


def _scale(program: convex_program.Program, p: np.ndarray, gradient: np.ndarray,
           own: np.ndarray) -> float:
  """Returns the size of `gradient` relative to `own`, the divergence's gradient.

  Both are first projected onto changes that keep the mass and the cost.
  """
  weight = np.sqrt(program.mass * p)
  rows = np.column_stack([program.mass, program.cost]) / program.mass[:, None]

  def free(slope):
    """Returns a weighted gradient, projected onto changes that keep mass and cost."""
    values = weight * slope / program.mass
    found = np.linalg.lstsq(weight[:, None] * rows, values, rcond=None)[0]
    return values - weight * (rows @ found)

  ours, theirs = free(own), free(gradient)
  along = float(ours @ theirs) / float(ours @ ours)
  # If the gradients point in opposite directions, the ratio of their norms is used.
  return along if along > 0 else float(
      np.linalg.norm(theirs) / np.linalg.norm(ours))
