"""Cells of continuous distributions: their masses, and bounds on pairs from them."""

from __future__ import annotations

import math
from typing import Callable

import numpy as np
import numpy.typing as npt
from scipy import special

from tfcactus import _numerics
from tfcactus._numerics import EPS
from tfcactus.pairs import dominating_pair as pair_lib

CELLS = 1 << 14
"""Number of cells that bracket a continuous loss; the widths of bounds fall with its
square."""

GAUSSIAN_REACH = 12.0
"""Standard deviations kept in cells; the mass beyond is below 2e-33 on each side."""

RATIO_ROUNDOFF = 1e-13
"""Bound on the relative error of the ratio of a cell's two masses at loss zero; for
other losses see `ratio_roundoff`."""

NARROWEST = 1e-200
"""Stands for the width of a cell whose ends have the same loss to rounding."""

NORMAL_ROUNDOFF = 1e-14
"""Bound on the relative error of a normal mass; 4e-15 were measured."""

LEAST_CELL = 1e-300
"""Cells of smaller masses count as empty, before floats lose digits near 1e-308. What
all of them have is less than 1e-13 of the mass beyond `GAUSSIAN_REACH`."""

WIDEST = 1.0
"""Largest width of a cell at x, times |x| + 4, for which six Gauss points suffice."""


def from_cells(edges: np.ndarray, p: np.ndarray, q: np.ndarray, p_beyond: float, *,
               width: float | None = None, q_elsewhere: float = 0.0,
               off: float | np.ndarray = 0.0) -> pair_lib.PairBounds:
  """Returns bounds on a pair from the masses of cells of increasing loss.

  The lower pair merges each cell into one outcome. The upper pair moves its mass to the
  losses at its two ends.

  `edges`, (cells + 1,), are the losses at the cells' ends; `width` is their distance
  where it is one number, without the rounding of `edges`. `p_beyond` bounds the P-mass
  of larger losses from above. `q_elsewhere` is the Q-mass outside the cells for which
  the caller has atoms of its own; all other Q-mass outside them, and what raising
  losses leaves over, is the upper pair's `q_inf`. `off` bounds, for each cell, the
  relative errors of its two masses beyond `MASS_ROUNDOFF`. It may be above zero only
  if the pair equals its own reverse, as for symmetric noise: the lower pair of another
  one could be too high at alpha < 1.
  """
  real = (p > 0) & (q > 0)
  # Errors bring the two masses of a cell closer, up to where they are equal.
  closer = np.where(p > q, off, -np.asarray(off))
  low_p, low_q = p * (1 - closer), q * (1 + closer)
  low_p = np.where((low_p > low_q) == (p > q), low_p, low_q)
  size = max(float(np.sum(low_p)), float(np.sum(low_q)), 1.0)
  low_p, low_q = low_p[real] / size, low_q[real] / size
  lower = pair_lib.DominatingPair(np.log(low_p) - np.log(low_q), low_p, low_q)
  raised = raised_masses(edges, p * (1 + off), q * (1 + off), width, off)
  real = raised > 0
  loss, raised = edges[real], raised[real]
  mass = np.exp(np.log(raised) - loss)
  # The Q-mass that is left over, of smaller losses and by raising losses, belongs to
  # outcomes with mass under Q only. `p_beyond`, hardly a number, keeps it positive.
  q_inf = max(1 - float(np.sum(mass)) - q_elsewhere, p_beyond)
  return pair_lib.PairBounds(
      lower, pair_lib.DominatingPair(loss, raised, mass, p_beyond, q_inf))


def raised_masses(edges: np.ndarray, p: np.ndarray, q: np.ndarray,
                  width: float | None = None, off: float | np.ndarray = 0.0
                  ) -> np.ndarray:
  """Returns P-masses at the losses `edges`, (cells + 1,), to which cells are moved.

  This keeps each cell's P- and Q-mass, so that the profile rises to its chord.
  Arguments are as for `from_cells`.
  """
  # Rounding may reverse losses that are the same.
  widths = np.maximum(np.diff(edges), NARROWEST) if width is None else np.array(width)
  # The P-mass that moves to a cell's upper end is (p - e^low q) / (1 - e^-width).
  with np.errstate(over='ignore', invalid='ignore', divide='ignore'):
    share = -np.expm1(edges[:-1] + np.log(q) - np.log(p)) / -np.expm1(-widths)
  share = np.clip(np.nan_to_num(share, nan=1.0, posinf=1.0), 0.0, 1.0)
  share = np.minimum(
      share + (ratio_roundoff(edges) + 2 * off) / -np.expm1(-widths), 1.0)
  return np.append(p * (1 - share), 0.0) + np.append(0.0, p * share)


def ratio_roundoff(edges: np.ndarray) -> np.ndarray:
  """Bounds the relative errors of the ratios of cells' masses, given losses `edges`."""
  # Losses, whose exponentials the ratios are compared with, are rounded.
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


def counted(mass: np.ndarray) -> np.ndarray:
  """Returns the masses of cells, with zero for those below `LEAST_CELL`."""
  return np.where(mass < LEAST_CELL, 0.0, mass)


def normal_density(x: np.ndarray, low: np.ndarray) -> np.ndarray:
  """Returns the standard normal density at x + low; |low| is a rounding error of x."""
  # e^(-x^2 / 2) would multiply the rounding error of x by |x|, and that of x^2 by one
  # half. `near` has few bits, so that its square is exact; the rest is small.
  near = np.round(np.clip(64 * x, -4096, 4096)) / 64
  rest = (x - near) * (x + near) + 2 * x * low
  return np.exp(-0.5 * near * near) * np.exp(-0.5 * rest) / math.sqrt(2 * math.pi)


def normal_cells(first: np.ndarray, width: npt.ArrayLike, shift: float = 0.0
                 ) -> np.ndarray:
  """Returns normal masses of [first + shift, first + shift + width].

  `first + shift` is not rounded. The relative error is at most `NORMAL_ROUNDOFF`;
  masses below `LEAST_CELL` count as zero.
  """
  width = np.broadcast_to(np.asarray(width, dtype=np.float64), first.shape)
  start, low = _numerics.exact_sum(first, shift)
  # The mass is the density at the start times the integral of e^(-t (start + t / 2))
  # over t in [0, width], whose exponents are small. The remainder of six Gauss points
  # is 2e-16 (width (|x| + 4))^12. Where that is large, differences of the distribution
  # function lose no digits.
  last = start + width
  wide = width * (np.maximum(np.abs(start), np.abs(last)) + 4) > WIDEST
  step = np.where(wide, 0.0, width)
  mass = normal_density(start, low) * cell_masses(
      lambda t: np.exp(-t * (start + 0.5 * t)), np.zeros(first.shape), step, 6)
  if wide.any():
    last, last_low = _numerics.exact_sum(start[wide], width[wide])
    mass[wide] = _between(start[wide], low[wide], last, last_low + low[wide])
  return counted(mass)


def _between(x: np.ndarray, x_low: np.ndarray, y: np.ndarray, y_low: np.ndarray
             ) -> np.ndarray:
  """Returns normal masses between x + x_low and y + y_low, which are far apart."""
  # On one side of zero subtract tails, on both sides add error functions: nothing
  # cancels.
  left = y <= 0
  ends = np.where(left, -y, x), np.where(left, -x, y)
  lows = np.where(left, -y_low, x_low), np.where(left, -x_low, y_low)
  scaled = [end / math.sqrt(2) for end in ends]
  tails = [math.sqrt(math.pi / 2) * normal_density(end, low) * special.erfcx(
      np.maximum(part, 0.0)) for end, low, part in zip(ends, lows, scaled)]
  around = 0.5 * (special.erf(scaled[1]) - special.erf(scaled[0]))
  return np.where(ends[0] < 0, around, tails[0] - tails[1])
