"""The law of a sum of lattice losses under an exponential tilt, by FFT."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Callable
from typing import Sequence

import numpy as np
from scipy import fft
from scipy import optimize

from tfcactus import _numerics
from tfcactus.pairs import dominating_pair as pair_lib

MIN_POINTS = 1 << 12
"""Smallest lattice."""

MAX_PADDING = 64
"""Cells left at each end of a window for few labels; many are spread by less than
a twentieth of it."""

LOG_TAIL = 34.0
"""Minus the log of the tilted mass that may fall outside the lattice. Knob of speed:
what does is counted."""

FFT_ROUNDOFF = 8 * _numerics.EPS
"""Bound on the error of an FFT coefficient for each level of the transform, over the
sum of the moduli of what is transformed: a computed root of unity and its product are
within 2.5 EPS, a sum within EPS / 2 (Higham, section 24.1)."""

MAX_EXPONENT = 600.0
"""Exponents beyond this are left out before they overflow; what is left out is of no
help, not of harm: bounds are suffix sums near epsilon."""

APART = 30.0
"""Log of a ratio of two products beyond which each is computed by itself."""

NEGLIGIBLE = -30.0
"""Log weight below which small losses alone need no separate treatment."""


@dataclasses.dataclass(frozen=True)
class Window:
  """A stretch of the lattice that holds nearly all of the tilted total loss.

  Attributes:
    start: Index of the first lattice point.
    points: Number of points.
    width: Lattice spacing.
    exponents: Exponents at which Chernoff's inequality is good for the tail
      above and for the tail below.
  """

  start: int
  points: int
  width: float
  exponents: tuple[float, float]

  @classmethod
  def around(cls, mgf: Callable[[float], float], tilt: float, *, steps: int,
             tolerance: float, max_points: int) -> Window:
    """Chooses the window for a composition at a tilt.

    Args:
      mgf: Log moment generating function of the total loss.
      tilt: The tilt.
      steps: How many losses are added up.
      tolerance: Wanted effect of the lattice on epsilon.
      max_points: Of the window.
    """
    base = mgf(tilt)
    step = 1e-4 * max(tilt, 1e-2)
    mean = (mgf(tilt + step) - mgf(tilt - step)) / (2 * step)
    def growth(sign: int) -> Callable[[float], float]:
      return lambda u: mgf(tilt + sign * u) - base - sign * u * mean

    (above, u_above), (below, u_below) = (cls._reach(growth(sign)) for sign in (1, -1))
    # Random labels widen the distribution a little.
    above, below = 1.05 * above, 1.05 * below
    reach = above + below + 1e-9 * (1 + abs(mean))
    width = math.sqrt(8 * tolerance /
                      (steps * (tilt + 1)))
    points = 1 << math.ceil(math.log2(max(reach / width, MIN_POINTS)))
    points = min(points, max_points)
    # Few labels, each up to a cell away from its loss, may all be.
    padding = min(steps, MAX_PADDING)
    width = reach / (points - 2 * padding)
    return cls(round((mean - below) / width) - padding, points, width,
               (u_above, u_below))

  @staticmethod
  def _reach(growth: Callable[[float], float]) -> tuple[float, float]:
    """Least distance with a Chernoff bound of exp(-LOG_TAIL), and its exponent."""
    result = optimize.minimize_scalar(
        lambda x: math.log(max(growth(math.exp(x)) + LOG_TAIL, 1e-9)) - x,
        bounds=(math.log(1e-3), math.log(1e4)), method='bounded',
        options={'xatol': 3e-2})
    return math.exp(float(result.fun)), math.exp(float(result.x))


class TiltedSum:
  """Masses of a sum of lattice variables under an exponential tilt.

  The mass at loss x is exp(log_mgf - tilt * x) times the tilted mass; all
  results are given with that factor applied. Sums of losses that are all at
  most `bulk` are left out.
  """

  def __init__(self, groups: Sequence[tuple], window: Window, tilt: float,
               bulk: float):
    self.tilt = tilt
    self._groups = groups
    self._window = window
    width, points = window.width, window.points
    self._log_mgf = 0.0
    levels = FFT_ROUNDOFF * math.log2(points)
    tilted = []
    for first, mass, count in groups:
      x = (first + np.arange(mass.size)) * width
      log_m, weight = _tilt(mass, x, tilt)
      self._log_mgf += count * log_m
      tilted.append((first, weight, x <= bulk, count))
    alone = sum(count * math.log(max(float(np.sum(weight[low])), 1e-300))
                for _, weight, low, count in tilted)
    if alone > NEGLIGIBLE:
      phi, error = self._without_bulk(tilted, points)
    else:
      own = [_numerics.log(fft.rfft(_fold(weight, first, points)))
             for first, weight, _, _ in tilted]
      log_phi = sum(count * part for part, (*_, count) in zip(own, tilted))
      phi = np.exp(log_phi)
      # The derivative of the product by each group's phi.
      error = sum(count * np.exp(log_phi.real - part.real)
                  for part, (*_, count) in zip(own, tilted))
    mass = fft.irfft(phi, points)
    self._norm_error = levels * (
        math.sqrt(float(np.mean(error * error))) + float(np.linalg.norm(mass)))
    self._mass = np.roll(mass, -(window.start % points))
    self.losses = (window.start + np.arange(points)) * width

  @staticmethod
  def _without_bulk(tilted: Sequence[tuple], points: int
                    ) -> tuple[np.ndarray, np.ndarray]:
    """Product A of phi minus the product B of its small losses' parts.

    Returns:
      The difference, with relative accuracy, and the size of its error in
      units of the transform's: by the part s of small losses A / phi - B / s,
      by the rest, which is smaller by the mass it transforms, A / phi.
    """
    small = ratio = whole = np.zeros(points // 2 + 1, np.complex128)
    parts = []
    for first, weight, low, count in tilted:
      part = fft.rfft(_fold(np.where(low, weight, 0.0), first, points))
      # Where the small losses cancel, nothing has to be left out.
      part = np.where(np.abs(part) < 1e-150, 1e-150, part)
      rest = fft.rfft(_fold(np.where(low, 0.0, weight), first, points))
      share = _numerics.log1p(rest / part)
      small = small + count * np.log(part)
      ratio = ratio + count * share
      log_phi = _numerics.log(part + rest)
      whole = whole + count * log_phi
      parts.append((np.log(np.abs(part)), log_phi.real, share,
                    float(np.sum(weight[~low])), count))
    # Where B is next to nothing beside A, which B times a ratio would lose.
    apart = ratio.real > APART
    phi = np.where(apart, np.exp(whole) - np.exp(small),
                   np.exp(small) * _numerics.expm1(np.where(apart, 0.0, ratio)))
    error = np.zeros(phi.size)
    for log_part, log_phi, share, rare, count in parts:
      # B / s, and A / phi, which is larger by e^(ratio - share).
      base, kept = np.exp(small.real - log_part), np.exp(whole.real - log_phi)
      far = (ratio - share).real > APART
      error += count * (rare * kept + np.where(far, kept + base, base * np.abs(
          _numerics.expm1(np.where(far, 0.0, ratio - share)))))
    return phi, np.minimum(error, sum(count for *_, count in parts))

  def log_factor(self, near: float) -> float:
    """log of the weight that turns tilted masses near a loss into masses."""
    return self._log_mgf - self.tilt * near

  @property
  def slack(self) -> float:
    """Relative rounding error of `log_factor` and of what it multiplies."""
    return FFT_ROUNDOFF * (
        4 + abs(self._log_mgf) + self.tilt * float(np.max(np.abs(self.losses)))
    ) + pair_lib.MASS_ROUNDOFF * sum(count for *_, count in self._groups)

  def suffix(self, near: float, shift: int) -> np.ndarray:
    """Sums of tilted mass(x) exp(-(tilt + shift) (x - near)) from each loss on.

    To be multiplied by exp(log_factor(near)).
    """
    decay = np.exp(np.minimum(
        -(self.tilt + shift) * (self.losses - near), MAX_EXPONENT + 50))
    terms = np.maximum(self._mass, 0.0) * decay
    return np.cumsum(terms[::-1])[::-1]

  def _decay(self, near: float) -> np.ndarray:
    return np.exp(np.minimum(
        -self.tilt * (self.losses - near), MAX_EXPONENT + 50))

  def error(self, near: float) -> np.ndarray:
    """Bound on the error of `suffix` (shift 0), of rounding and wrap-around.

    Rounding by Cauchy's inequality: the transform's error in norm, against
    the norm of the weights that the suffix gives.
    """
    weight = (-math.expm1(-2 * self.tilt * self._window.width))**-0.5
    return self._decay(near) * (
        self._norm_error * min(weight, self._window.points**0.5) +
        self._outside_mass)

  @functools.cached_property
  def _outside_mass(self) -> float:
    """Chernoff's bound on the tilted mass outside the window."""
    edges = (self.losses[-1] + self._window.width, -self.losses[0])
    total = 0.0
    for sign, edge, u in zip((1, -1), edges, self._window.exponents):
      log_mass = self._mgf(self.tilt + sign * u) - self._log_mgf - u * edge
      total += math.exp(min(log_mass, 0.0))
    return total

  def _mgf(self, order: float) -> float:
    total = 0.0
    for first, mass, count in self._groups:
      x = (first + np.arange(mass.size)) * self._window.width
      total += count * _tilt(mass, x, order)[0]
    return total


def _tilt(mass: np.ndarray, x: np.ndarray, order: float
          ) -> tuple[float, np.ndarray]:
  """log sum(mass e^{order x}) and the normalised summands."""
  exponent = _numerics.log_mass(mass) + order * x
  peak = float(np.max(exponent))
  weight = np.exp(exponent - peak)
  total = float(np.sum(weight))
  return peak + math.log(total), weight / total


def _fold(weight: np.ndarray, first: int, points: int) -> np.ndarray:
  """Wraps masses at first, first + 1, ... around a cycle."""
  offset = first % points
  padded = np.zeros(-(-(offset + weight.size) // points) * points)
  padded[offset:offset + weight.size] = weight
  return padded.reshape(-1, points).sum(axis=0)
