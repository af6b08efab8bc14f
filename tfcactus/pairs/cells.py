"""Cells of continuous distributions: their masses, and bounds on pairs from them."""

from __future__ import annotations

import math
from typing import Callable

import numpy as np
import numpy.typing as npt
from scipy import special

from tfcactus._numerics import EPS
from tfcactus.pairs import dominating_pair as pair_lib

CELLS = 1 << 14
"""Number of cells that bracket a continuous loss; the relative error of the divergence
falls with its square, here below 1e-6."""

GAUSSIAN_REACH = 12.0
"""Standard deviations kept in cells; the mass beyond is below 2e-33 on each side."""

RATIO_ROUNDOFF = 1e-13
"""Bound on the relative error of the ratio of a cell's two masses at loss zero."""

NARROWEST = 1e-200
"""Width of a cell whose ends have the same loss to rounding."""

WIDEST = 1.0
"""Width of a cell times |x| + 4 up to which six Gauss points suffice."""


def from_cells(edges: np.ndarray, p: np.ndarray, q: np.ndarray, p_beyond: float, *,
               width: float | None = None, q_elsewhere: float = 0.0
               ) -> pair_lib.PairBounds:
  """Returns bounds on a pair from the masses of cells of increasing loss.

  `edges` are the losses at the cells' ends; `width` is their distance where it is one
  number, without the rounding of `edges`. `p_beyond` bounds the P-mass of larger losses
  from above. `q_elsewhere` is the Q-mass outside the cells for which the caller has
  atoms of its own; all other Q-mass outside them is the upper pair's `q_inf`.
  """
  real = (p > 0) & (q > 0)
  lower = pair_lib.DominatingPair(np.log(p[real]) - np.log(q[real]), p[real], q[real])
  raised = raised_masses(edges, p, q, width)
  real = raised > 0
  loss, raised = edges[real], raised[real]
  mass = np.exp(np.log(raised) - loss)
  # The Q-mass that is left over, of smaller losses and by raising losses, belongs to
  # outcomes with mass under Q only. `p_beyond`, hardly a number, keeps it positive.
  q_inf = max(1 - float(np.sum(mass)) - q_elsewhere, p_beyond)
  return pair_lib.PairBounds(
      lower, pair_lib.DominatingPair(loss, raised, mass, p_beyond, q_inf))


def raised_masses(edges: np.ndarray, p: np.ndarray, q: np.ndarray,
                  width: float | None = None) -> np.ndarray:
  """Returns P-masses at the losses `edges`, where each cell's two masses are moved."""
  # Rounding may reverse losses that are the same.
  widths = np.maximum(np.diff(edges), NARROWEST) if width is None else np.array(width)
  share = np.minimum(pair_lib.split_fraction(p, q, edges[:-1], widths) +
                     ratio_roundoff(edges) / -np.expm1(-widths), 1.0)
  return np.append(p * (1 - share), 0.0) + np.append(0.0, p * share)


def ratio_roundoff(edges: np.ndarray) -> np.ndarray:
  """Bounds the relative errors of the ratios of cells' masses, given losses `edges`."""
  # The mass of a cell x standard deviations out is off by about x^2 EPS. With the other
  # mass within GAUSSIAN_REACH, x^2 is at most GAUSSIAN_REACH^2 + 2 |loss|.
  return RATIO_ROUNDOFF + 4 * EPS * np.maximum(np.abs(edges[:-1]), np.abs(edges[1:]))


def cell_masses(density: Callable[[np.ndarray], np.ndarray], first: np.ndarray,
                width: npt.ArrayLike, nodes: int) -> np.ndarray:
  """Returns probabilities of cells [first, first + width] by `nodes` Gauss points.

  `density` has to be smooth on each cell. Unlike differences of the distribution
  function, the rule keeps the digits of narrow cells.
  """
  width = np.asarray(width, dtype=np.float64)
  places, weights = np.polynomial.legendre.leggauss(nodes)
  mass = np.zeros(first.shape)
  for place, weight in zip(places, weights):
    mass += 0.5 * weight * width * density(first + 0.5 * width * (1 + place))
  return mass


def normal_density(x: np.ndarray) -> np.ndarray:
  """Returns the standard normal density."""
  return np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def normal_cells(first: np.ndarray, width: npt.ArrayLike) -> np.ndarray:
  """Returns normal masses of [first, first + width]; see `MASS_ROUNDOFF` for errors."""
  # The remainder of six Gauss points is 2e-16 (width (|x| + 4))^12. Where that is
  # large, differences of the distribution function lose no digits.
  width = np.broadcast_to(np.asarray(width, dtype=np.float64), first.shape)
  last = first + width
  mass = cell_masses(normal_density, first, width, 6)
  wide = width * (np.maximum(np.abs(first), np.abs(last)) + 4) > WIDEST
  if wide.any():
    low, high = first[wide], last[wide]
    # Subtract the tails of the side on which both are small.
    low, high = np.where(low > 0, -high, low), np.where(low > 0, -low, high)
    mass[wide] = special.ndtr(high) - special.ndtr(low)
  return mass
