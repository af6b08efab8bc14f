"""Starting points of radial designs: a coarse optimum, or a Gaussian in the budget."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tfcactus.design.solvers import convex_program, grid, interior_point, shells
from tfcactus.design.solvers.cost import Cost

_COARSE_RULE = 0.4
"""width * sqrt(dim) of the coarse solution that locates the mass."""

_COARSE_GAP = 1e-5
"""Relative gap of the coarse solution."""

_EMPTY = 1e-11
"""Maximum mass below the shells, in the core ball, and beyond the shells."""


class Rough(NamedTuple):
  """A coarse optimum: locates the mass, and starts a finer solution."""

  layout: shells.Layout
  mass: np.ndarray
  log_density: np.ndarray

  def where(self, width: float) -> shells.Layout:
    """Returns the layout of shells of this width that cover the mass."""
    first, rough, *_ = self.layout
    inner = int(np.argmax(np.cumsum(self.mass) > _EMPTY))
    outer = self.mass.size - 1 - int(
        np.argmax(np.cumsum(self.mass[::-1]) > _EMPTY))
    low = width * np.ceil((first + rough * inner) / width)
    high = first + rough * outer
    fall = np.diff(self.log_density)[max(outer - 8, 0):outer]
    return shells.Layout(float(low), width, int(np.ceil((high - low) / width)),
                   float(np.mean(fall)) * width / rough)

  def on(self, layout: shells.Layout, log_volume: np.ndarray) -> np.ndarray:
    """Returns masses of finer shells under the coarse density, not normalised."""
    middle = (self.layout.first + self.layout.width *
              (np.arange(self.mass.size) - 0.5))
    finer = layout.first + layout.width * (np.arange(log_volume.size) - 0.5)
    log_p = log_volume + np.interp(finer, middle, self.log_density)
    return np.exp(np.maximum(log_p - np.max(log_p), -600))


def coarse(objective: str, dim: int, cost: Cost, budget: float, sigma: float,
            width: float) -> Rough:
  """Returns a coarse optimum, on wide shells around the typical radius of a normal."""
  mode = sigma * np.sqrt(dim)
  spread = sigma / np.sqrt(2)
  rough = max(width, _COARSE_RULE / np.sqrt(dim))
  low, high = max(mode - 9 * spread, rough), mode + 9 * spread
  layout = shells.Layout(low, rough, int(np.ceil((high - low) / rough)),
                   -rough * (mode + spread) / sigma**2)
  program = shells.radial_program(objective, dim, layout, cost, budget)
  if objective in ('kl', 'chi2'):
    start = gaussian_start(program, dim, layout, cost)
  else:
    # High orders start from the optimum of a low one.
    start = coarse('chi2', dim, cost, budget, sigma, width).on(
        layout, program.log_volumes)
  p = interior_point.solve(program, start, warm=True, target=_COARSE_GAP).p
  return Rough(layout, program.mass * p, np.log(p) - program.log_volumes)


def gaussian_start(program: convex_program.Program, dim: int, layout: shells.Layout,
           cost: Cost) -> np.ndarray:
  """Returns the radial Gaussian above `FLAT_DIM` dimensions, else exponential tails."""
  if dim <= shells.FLAT_DIM:
    return grid.exponential_start(program)
  outer = layout.first + layout.width * np.arange(program.mass.size)
  middle = np.maximum(outer - 0.5 * layout.width, 0.5 * outer)

  def shaped(log_size):
    size = np.exp(log_size)
    # Optimal tails are no steeper than exponential.
    steep = np.maximum(middle - size * (np.sqrt(dim) + 0.7), 0.0)
    log_density = -0.5 / size**2 * (middle**2 - middle[0]**2 - steep**2)
    log_p = program.log_volumes + log_density
    p = np.exp(np.maximum(log_p - np.max(log_p), -600))
    return p / (program.mass @ p)

  center = np.log(cost.size(program.budget) / np.sqrt(dim))
  low, high = center - 1.0, center
  for _ in range(50):
    guess = 0.5 * (low + high)
    over = float(program.cost @ shaped(guess)) > program.budget * (1 - 0.1 / dim)
    low, high = (low, guess) if over else (guess, high)
  return shaped(low)
