"""Pairs of continuous laws: masses of cells, bounds from cells of known losses."""

from __future__ import annotations

import math
from typing import Callable

import numpy as np
import numpy.typing as npt
from scipy import special

from tfcactus.pairs import dominating_pair as pair_lib

CELLS = 1 << 14
"""Cells in which continuous losses are bracketed; the relative error of the
divergence falls with the square, here below 1e-6."""

GAUSSIAN_REACH = 12.0
"""Standard deviations kept in cells; the mass beyond is 1e-33."""

RATIO_ROUNDOFF = 1e-13
"""Bound on the relative error of the ratio of a cell's two masses."""


WIDEST = 1.0
"""Width of a cell times |x| + 4 up to which six Gauss points serve."""


def from_cells(edges: np.ndarray, width: npt.ArrayLike, p: np.ndarray,
               q: np.ndarray, p_beyond: float, q_elsewhere: float = 0.0
               ) -> pair_lib.PairBounds:
  """Bounds from the masses of cells of increasing loss.

  Args:
    edges: Shape (cells + 1,), the losses at the cells' ends.
    width: Their distance, one for all or one for each.
    p: Shape (cells,), P-masses.
    q: Shape (cells,), Q-masses.
    p_beyond: Bound on the P-mass of losses above the last edge.
    q_elsewhere: Q-mass that the cells do not cover.
  """
  width = np.asarray(width, dtype=np.float64)
  real = (p > 0) & (q > 0)
  lower = pair_lib.DominatingPair(
      np.log(p[real]) - np.log(q[real]), p[real], q[real])
  share = np.minimum(pair_lib.split_fraction(p, q, edges[:-1], width) +
                     RATIO_ROUNDOFF / -np.expm1(-width), 1.0)
  raised = np.append(p * (1 - share), 0.0) + np.append(0.0, p * share)
  real = raised > 0
  loss, raised = edges[real], raised[real]
  mass = np.exp(np.log(raised) - loss)
  # What Q lost by raising losses is seen by Q alone.
  q_inf = max(1 - float(np.sum(mass)) - q_elsewhere, p_beyond)
  return pair_lib.PairBounds(
      lower, pair_lib.DominatingPair(loss, raised, mass, p_beyond, q_inf))


def cell_masses(density: Callable[[np.ndarray], np.ndarray], first: np.ndarray,
                width: npt.ArrayLike, nodes: int) -> np.ndarray:
  """Probabilities of cells by Gauss's rule, which keeps the digits of narrow ones.

  Differences of the distribution function would lose what narrow cells lack.

  Args:
    density: Of the law, smooth on each cell.
    first: Shape (cells,), left ends.
    width: Their widths, one for all or one for each.
    nodes: Points of the rule.
  """
  width = np.asarray(width, dtype=np.float64)
  places, weights = np.polynomial.legendre.leggauss(nodes)
  mass = np.zeros(first.shape)
  for place, weight in zip(places, weights):
    mass += 0.5 * weight * width * density(first + 0.5 * width * (1 + place))
  return mass


def normal_density(x: np.ndarray) -> np.ndarray:
  """The standard normal density."""
  return np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def normal_cells(first: np.ndarray, width: npt.ArrayLike) -> np.ndarray:
  """Normal probabilities of cells, to 1e-14 relatively.

  Six Gauss points leave 2e-16 (width (|x| + 4))^12 by the rule's remainder; of cells
  for which that is much, differences of the distribution function lose no digits.

  Args:
    first: Shape (cells,), left ends.
    width: Their widths.
  """
  width = np.broadcast_to(np.asarray(width, dtype=np.float64), first.shape)
  last = first + width
  mass = cell_masses(normal_density, first, width, 6)
  wide = width * (np.maximum(np.abs(first), np.abs(last)) + 4) > WIDEST
  if wide.any():
    low, high = first[wide], last[wide]
    # On the side where both are small numbers.
    low, high = np.where(low > 0, -high, low), np.where(low > 0, -low, high)
    mass[wide] = special.ndtr(high) - special.ndtr(low)
  return mass
