"""Dominating pairs of normal laws: shifted, and mixed over a sample."""

from __future__ import annotations

import functools
from typing import Sequence

import numpy as np
from scipy import special

from tfcactus import _numerics
from tfcactus.pairs import allocation
from tfcactus.pairs import cells as cells_lib
from tfcactus.pairs import overlap
from tfcactus.pairs.dominating_pair import DominatingPair
from tfcactus.pairs.dominating_pair import PairBounds

CELLS = 1 << 13
"""Cells of a mixture, at least: dense where its mass is."""

CELL_REACH = 0.5
"""Largest width of a cell times the distance of its ends from a mean, where eight
Gauss points are exact to rounding."""

NARROWEST = 1e-200
"""Width of a cell on whose ends the loss is the same to rounding."""

LARGEST_MU = 50.0
"""Shifts over standard deviations above this count as no noise: losses beyond
3,000 are not known to `dominating_pair.LOSS_ROUNDOFF`."""

LARGEST_ALLOCATED = 25.0
"""Likelihood ratios of one release are numbers up to this shift."""

_TAIL = float(special.ndtr(-cells_lib.GAUSSIAN_REACH))


def shifted(mu: float, cells: int) -> PairBounds:
  """Bounds on the pair of a normal law against itself, shifted.

  Args:
    mu: Shift over standard deviation.
    cells: Number of cells.
  """
  if mu > LARGEST_MU:
    return overlap.no_noise(1.0)
  # The loss is mu x + mu^2 / 2 with x standard normal under P and
  # x + mu standard normal under Q.
  reach = cells_lib.GAUSSIAN_REACH
  width = (2 * reach + mu) / cells
  x = -reach - mu + width * np.arange(cells + 1)
  return cells_lib.from_cells(
      mu * x + 0.5 * mu * mu, mu * width, cells_lib.normal_cells(x[:-1], width),
      cells_lib.normal_cells(x[:-1] + mu, width), _TAIL)


@functools.lru_cache(maxsize=32)
def allocated(mu: float, bins: int, direction: str, nodes: int) -> PairBounds:
  """Bounds on the pair of a record that enters one of `bins` releases.

  Args:
    mu: Sensitivity over standard deviation of each.
    bins: How many there are.
    direction: 'remove', where P is the law with the record, or 'add', where Q is.
    nodes: Points of a grid.
  """
  one = shifted(mu, allocation.CELLS)
  if mu <= LARGEST_ALLOCATED:
    return allocation.allocated(one, bins, direction, nodes)
  # One release of all records costs more, none at all less.
  nothing = DominatingPair(np.zeros(1), np.ones(1), np.ones(1))
  return PairBounds(nothing, one.upper)


def replaced(mu: float, prob: float) -> PairBounds:
  """Bounds on the pair of a replaced record: its share at mu against at -mu.

  Attained by a record of norm one against its opposite; see `pairs.overlap`.

  Args:
    mu: Sensitivity over standard deviation.
    prob: With which the record is in the sample, the rest being at zero.
  """
  if mu > LARGEST_MU:
    return overlap.no_noise(prob)
  # The loss is odd and grows with x.
  top = cells_lib.GAUSSIAN_REACH + mu
  x = _edges(-top, top, (-mu, 0.0, mu), CELLS)
  x = 0.5 * (x - x[::-1])
  p = (1 - prob) * _cells(x) + prob * _cells(x - mu)
  loss = _log_ratio(x, mu, prob)
  loss = loss - loss[::-1]
  return cells_lib.from_cells(loss, _widths(loss), p, p[::-1], _TAIL)


def zeroed(mu: float, prob: float) -> PairBounds:
  """Bounds on the pair of a zeroed record: its share at 2 mu against at mu.

  Args:
    mu: Sensitivity over standard deviation.
    prob: The share of records in the sample, the rest being at zero.
  """
  if mu > LARGEST_MU:
    return overlap.no_noise(prob)
  reach = cells_lib.GAUSSIAN_REACH

  def mixtures(bottom, cells):
    x = _edges(bottom, 2 * mu + reach, (0.0, mu, 2 * mu), cells)
    out, other, one = (_cells(x - k * mu) for k in (0, 1, 2))
    return x, (1 - prob) * out + prob * one, (1 - prob) * out + prob * other

  # The loss grows from zero at x = 1.5 mu upwards.
  x, p, q = mixtures(1.5 * mu, CELLS // 2)
  loss = _log_ratio(x, 2 * mu, prob) - _log_ratio(x, mu, prob)
  loss[0] = 0.0
  upper = cells_lib.from_cells(loss, _widths(loss), p, q, _TAIL).upper
  _, p, q = mixtures(-reach, CELLS)
  both = (p > 0) & (q > 0)
  lower = DominatingPair(np.log(p[both]) - np.log(q[both]), p[both], q[both])
  return overlap.zeroed_by(PairBounds(lower, upper), shifted(mu, CELLS), prob)


def _log_ratio(x: np.ndarray, mu: float, prob: float) -> np.ndarray:
  """log of the mixture's density over the standard normal density."""
  z = mu * x - 0.5 * mu * mu
  return np.where(
      z < 30, _numerics.log_mixture(prob, np.minimum(z, 30.0)),
      z + np.log(prob) + np.log1p(
          (1 - prob) / prob * np.exp(-np.maximum(z, 30.0))))


def _edges(bottom: float, top: float, means: Sequence[float], cells: int
           ) -> np.ndarray:
  """Edges of cells, dense where there is mass.

  A chord over a cell of width w and mass m costs about m w^2: the best density
  of edges goes with the cube root of that of mass.
  """
  reach = max(top - min(means), max(means) - bottom)
  cells = max(cells, int(np.ceil((top - bottom) * reach / CELL_REACH)))
  x = np.linspace(bottom, top, 8 * CELLS)
  density = 1 / 8 + sum(np.exp(-(x - mean)**2 / 6) for mean in means)
  position = np.append(0.0, np.cumsum(0.5 * (density[1:] + density[:-1])))
  return np.interp(np.linspace(0, position[-1], cells + 1), position, x)


def _widths(loss: np.ndarray) -> np.ndarray:
  """Distances of losses; rounding may turn two that hardly differ around."""
  return np.maximum(np.diff(loss), NARROWEST)


def _cells(x: np.ndarray) -> np.ndarray:
  """Standard normal probabilities between neighbouring edges."""
  return cells_lib.cell_masses(cells_lib.normal_density, x[:-1], np.diff(x), 8)
