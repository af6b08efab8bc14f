"""The convex program of isotropic noise, whose density is constant on shells."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from tfcactus.design.solvers import convex_program
from tfcactus.design.solvers.cost import Cost
from tfcactus.noise import shell_geometry

FLAT_DIM = 50
"""Dimension above which the shells leave out a core of negligible mass."""

MAX_SHELLS = 400_000
"""Maximum number of shells; more take minutes."""

_LEAST_CHANCE = 1e-22
"""Transition probabilities between two shells below this are neglected."""

_MAX_PAIRS = 60_000_000
"""Maximum number of pairs of shells; more need gigabytes."""


class Layout(NamedTuple):
  """Shells 0..cells: a ball of radius `first`, then shells of one width."""

  first: float  # Radius of the ball, in units of sensitivity.
  width: float  # Width of a shell, in units of sensitivity.
  cells: int  # Index of the last free shell.
  log_ratio: float  # Log of the density ratio of neighbouring shells beyond `cells`.


def radial_program(objective: str, dim: int, layout: Layout, cost: Cost,
                   budget: float) -> convex_program.Program:
  """Returns program (28), whose unknowns are the masses of shells 0..cells.

  Masses of the shells beyond, a geometric tail, are multiples of the last unknown.

  Source: Theorem 4 of Alghamdi et al. (ISIT 2023).
  """
  first, width, cells, log_ratio = layout
  band = shell_geometry.reach(dim, first, width)
  shells = _count_shells(dim, layout) + band
  if shells * band > _MAX_PAIRS:
    raise ValueError(
        f'Expected at most {_MAX_PAIRS} pairs of shells, got {shells * band}: '
        f'{shells} shells hold the tail. Use a smaller tail_ratio or fewer bins.')
  radii = first + width * np.arange(shells)
  log_volume = shell_geometry.log_volumes(dim, first, width, shells)
  i, j, chance = _overlaps(dim, first, width, shells)
  # Densities of shells beyond `cells` are multiples of the last free density.
  beyond = np.maximum(np.arange(shells) - cells, 0) * log_ratio
  index = np.minimum(np.arange(shells), cells)
  relative = beyond + log_volume - log_volume[index]
  inner, far = i < cells, i >= cells
  tail = np.sum(chance[far] * convex_program.pair_value(
      objective, np.exp(relative[i[far]]),
      np.exp(relative[i[far]] + beyond[j[far]] - beyond[i[far]])))
  i, j = i[inner], j[inner]
  log_scale = beyond[j] + log_volume[i] - log_volume[index[j]]
  costs = cost.means(np.append(0.0, radii[:-1]), radii, dim)
  folded = np.exp(relative[cells:])
  return convex_program.Program(
      objective=objective,
      shifts=[convex_program.Shift(i, index[j], log_scale, chance[inner], float(tail))],
      mass=np.append(np.ones(cells), np.sum(folded)),
      cost=np.append(costs[:cells], np.sum(costs[cells:] * folded)),
      budget=budget, log_volume=log_volume[:cells + 1])


@functools.lru_cache(maxsize=1)
def _overlaps(dim: int, first: float, width: float, shells: int
              ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns (i, j, chance), (pairs,): a unit shift moves shell i to shell j > i."""
  # The chance T_ij is computed from v_i T_ij = v_j T_ji, where v are volumes:
  # probabilities of inward moves are known to relative precision, those of outward
  # moves are not.
  log_volume = shell_geometry.log_volumes(dim, first, width, shells)
  band, _ = shell_geometry.transition(dim, first, width, shells)
  inward = band[:, band.shape[1] // 2 - 1::-1]
  j, step = np.nonzero(inward > 0)
  i = j - step - 1
  j, step, i = j[i >= 0], step[i >= 0], i[i >= 0]
  chance = inward[j, step] * np.exp(log_volume[j] - log_volume[i])
  kept = chance > _LEAST_CHANCE
  return i[kept], j[kept], chance[kept]


def _count_shells(dim: int, layout: Layout) -> int:
  """Returns the number of shells until the tail's mass is negligible for objectives."""
  forgotten = -90.0 if dim <= FLAT_DIM else -30.0
  first, width, cells, log_ratio = layout
  count = 1024
  while True:
    steps = np.arange(1, count)
    log_mass = steps * log_ratio + (dim - 1) * np.log1p(
        steps * width / (first + cells * width))
    below = np.flatnonzero(log_mass < forgotten)
    if below.size or count > 10 * MAX_SHELLS:
      return cells + int(steps[below[0]] if below.size else steps[-1])
    count *= 2
