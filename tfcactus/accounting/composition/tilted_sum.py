"""The distribution of a sum of lattice losses under an exponential tilt, by FFT."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Callable

import numpy as np
from scipy import fft, optimize

from tfcactus import _numerics
from tfcactus.pairs import dominating_pair as pair_lib

MIN_POINTS = 1 << 12
"""Smallest number of points of a lattice."""

MAX_PADDING = 64
"""Most cells left at each end of a window for rounding of losses to the lattice; with
many losses it spreads the sum by less than a twentieth of the window."""

LOG_TAIL = 34.0
"""Minus log of the tilted mass outside the window that is aimed at. Bounds count the
actual mass: affects speed and width only."""

FFT_ROUNDOFF = 8 * _numerics.EPS
"""Bound on the error of an FFT coefficient per level of the transform, over the sum of
the moduli of the input: a computed root of unity and its product are within 2.5 EPS, a
sum within EPS / 2 (Higham, section 24.1)."""

MAX_EXPONENT = 600.0
"""Lattice points with larger exponents, which may overflow, are left out or capped:
bounds are suffix sums near epsilon."""

APART = 30.0
"""Log of a ratio of two products beyond which each is computed separately."""

NEGLIGIBLE = -30.0
"""Outcomes of small losses only are left out if the log of their tilted mass is above
this; less mass does no harm."""


@dataclasses.dataclass(frozen=True)
class Window:
  """A part of the lattice that holds nearly all of the tilted total loss."""

  start: int  # Index of the first lattice point.
  points: int  # Number of points.
  width: float  # Lattice spacing.
  # Exponents at which Chernoff's inequality is good for the (upper, lower) tail.
  exponents: tuple[float, float]

  @classmethod
  def around(cls, log_mgf: Callable[[float], float], tilt: float, *, steps: int,
             effects: tuple[float, float], max_points: tuple[int, int]) -> Window:
    """Chooses the window for `steps` losses; `log_mgf` is that of their sum.

    Each of `effects` is how much of epsilon the lattice may cost. It asks for a number
    of points, cut to its `max_points`. The largest number is taken.
    """
    base = log_mgf(tilt)
    step = 1e-4 * max(tilt, 1e-2)
    mean = (log_mgf(tilt + step) - log_mgf(tilt - step)) / (2 * step)
    def growth(sign: int) -> Callable[[float], float]:
      """Returns the log moment generating function of sign (loss - mean)."""
      return lambda u: log_mgf(tilt + sign * u) - base - sign * u * mean

    (above, u_above), (below, u_below) = (cls._reach(growth(sign)) for sign in (1, -1))
    # Random lattice points of the lower bound widen the sum a little.
    above, below = 1.05 * above, 1.05 * below
    reach = above + below + 1e-9 * (1 + abs(mean))
    # An atom split between points h apart raises the log moment of order c of a step by
    # at most c (c + 1) h^2 / 8, and so epsilon by about steps (c + 1) h^2 / 8.
    points = 0
    for effect, most in zip(effects, max_points):
      wanted = max(reach / math.sqrt(8 * effect / (steps * (tilt + 1))), MIN_POINTS)
      points = max(points, min(1 << math.ceil(math.log2(wanted)), most))
    # Each of few labels may lie up to a cell from its loss, on the same side.
    padding = min(steps, MAX_PADDING)
    width = reach / (points - 2 * padding)
    return cls(round((mean - below) / width) - padding, points, width,
               (u_above, u_below))

  @staticmethod
  def _reach(growth: Callable[[float], float]) -> tuple[float, float]:
    """Returns (x, u): about the least x at which Chernoff's bound is exp(-LOG_TAIL)."""
    # The bound at x is e^(growth(u) - u x), for any u. The search is over log u.
    result = optimize.minimize_scalar(
        lambda x: math.log(max(growth(math.exp(x)) + LOG_TAIL, 1e-9)) - x,
        bounds=(math.log(1e-3), math.log(1e4)), method='bounded',
        options={'xatol': 3e-2})
    return math.exp(float(result.fun)), math.exp(float(result.x))


class TiltedSum:
  """Masses of a sum of lattice variables under an exponential tilt.

  The mass at loss x is exp(log_mgf - tilt * x) times the tilted mass. Sums of losses
  that are all at most `bulk` are left out, unless they are `NEGLIGIBLE`. `groups` are
  tuples (first index, masses, steps): a step's masses lie on consecutive lattice
  points, from the first index on.
  """

  def __init__(self, groups: Sequence[tuple], window: Window, tilt: float, bulk: float):
    self.tilt = tilt
    self._groups = groups
    self._window = window
    width, points = window.width, window.points
    self._log_mgf = 0.0
    levels = FFT_ROUNDOFF * math.log2(points)
    tilted = []
    for first, mass, count in groups:
      x = (first + np.arange(mass.size)) * width
      log_m, weight = tilted_masses(mass, x, tilt)
      self._log_mgf += count * log_m
      tilted.append((first, weight, x <= bulk, count))
    # Log of the tilted mass of outcomes of small losses only.
    alone = sum(count * math.log(max(float(np.sum(weight[low])), 1e-300))
                for _, weight, low, count in tilted)
    if alone > NEGLIGIBLE:
      phi, error = self._without_bulk(tilted, points)
    else:
      own = [_numerics.log(fft.rfft(_fold(weight, first, points)))
             for first, weight, _, _ in tilted]
      log_phi = sum(count * part for part, (*_, count) in zip(own, tilted))
      phi = np.exp(log_phi)
      # Error of the product over that of one phi: its derivative with respect to phi.
      error = sum(count * np.exp(log_phi.real - part.real)
                  for part, (*_, count) in zip(own, tilted))
    mass = fft.irfft(phi, points)
    # The norm of the error of `phi`, by Parseval's equation, and of transforming back.
    self._norm_error = levels * (
        math.sqrt(float(np.mean(error * error))) + float(np.linalg.norm(mass)))
    self._mass = np.roll(mass, -(window.start % points))
    self.losses = (window.start + np.arange(points)) * width

  @staticmethod
  def _without_bulk(tilted: Sequence[tuple], points: int
                    ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the transform less that of all-small losses, and its error."""
    # The first result is A - B, to relative accuracy. A is the product of all steps'
    # phi, the transform of a step's tilted masses; B is that of s, the transform of the
    # masses of its small losses. The second result bounds the error of A - B over that
    # of one transform: s contributes |A / phi - B / s|, the other losses |A / phi|
    # times their mass. `tilted` are tuples (first index, tilted masses, where the loss
    # is small, steps).
    # log B, log(A / B) and log A.
    small = ratio = whole = np.zeros(points // 2 + 1, np.complex128)
    parts = []
    for first, weight, low, count in tilted:
      part = fft.rfft(_fold(np.where(low, weight, 0.0), first, points))
      # Where the small losses cancel, there is nothing to leave out.
      part = np.where(np.abs(part) < 1e-150, 1e-150, part)
      rest = fft.rfft(_fold(np.where(low, 0.0, weight), first, points))
      share = _numerics.log1p(rest / part)
      small = small + count * np.log(part)
      ratio = ratio + count * share
      log_phi = _numerics.log(part + rest)
      whole = whole + count * log_phi
      parts.append((np.log(np.abs(part)), log_phi.real, share,
                    float(np.sum(weight[~low])), count))
    # Where B is tiny beside A, B expm1(log(A / B)) would lose digits of A.
    apart = ratio.real > APART
    difference = np.where(
        apart, np.exp(whole) - np.exp(small),
        np.exp(small) * _numerics.expm1(np.where(apart, 0.0, ratio)))
    error = np.zeros(difference.size)
    for log_part, log_phi, share, rare, count in parts:
      # |B / s|, and |A / phi|, which is |B / s| times |e^(ratio - share)|.
      base, kept = np.exp(small.real - log_part), np.exp(whole.real - log_phi)
      far = (ratio - share).real > APART
      error += count * (rare * kept + np.where(far, kept + base, base * np.abs(
          _numerics.expm1(np.where(far, 0.0, ratio - share)))))
    # One transform of a step moves A - B by at most its own error, as masses of a step
    # sum to at most one.
    return difference, np.minimum(error, sum(count for *_, count in parts))

  def log_factor(self, near: float) -> float:
    """Returns log of the factor that turns tilted masses near a loss into masses."""
    return self._log_mgf - self.tilt * near

  @property
  def slack(self) -> float:
    """Relative rounding error of exp(log_factor) times the masses."""
    return FFT_ROUNDOFF * (
        4 + abs(self._log_mgf) + self.tilt * float(np.max(np.abs(self.losses)))
    ) + pair_lib.MASS_ROUNDOFF * sum(count for *_, count in self._groups)

  def suffix(self, near: float, shift: int) -> np.ndarray:
    """Returns suffix sums over x of tilted mass(x) exp(-(tilt + shift) (x - near)).

    The shape is (points,).
    """
    # Times exp(log_factor(near)) they are sums of P-masses (`shift` 0), or of Q-masses
    # times e^near (`shift` 1).
    terms = np.maximum(self._mass, 0.0) * self._decay(near, shift)
    return np.cumsum(terms[::-1])[::-1]

  def _decay(self, near: float, shift: int) -> np.ndarray:
    """Returns exp(-(tilt + shift) (x - near)) at all lattice losses x, capped."""
    return np.exp(np.minimum(
        -(self.tilt + shift) * (self.losses - near), MAX_EXPONENT + 50))

  def error(self, near: float) -> np.ndarray:
    """Returns bounds on the errors of `suffix(near, 0)`, shape (points,).

    They cover FFT rounding, summed by the Cauchy-Schwarz inequality, and the mass
    outside the window, which wraps around.
    """
    weight = (-math.expm1(-2 * self.tilt * self._window.width))**-0.5
    return self._decay(near, 0) * (
        self._norm_error * min(weight, self._window.points**0.5) +
        self._outside_mass)

  @functools.cached_property
  def _outside_mass(self) -> float:
    """Chernoff's bound on the tilted mass outside the window."""
    edges = (self.losses[-1] + self._window.width, -self.losses[0])
    total = 0.0
    for sign, edge, u in zip((1, -1), edges, self._window.exponents):
      log_mgf = sum(count * tilted_masses(
          mass, (first + np.arange(mass.size)) * self._window.width,
          self.tilt + sign * u)[0] for first, mass, count in self._groups)
      total += math.exp(min(log_mgf - self._log_mgf - u * edge, 0.0))
    return total


def tilted_masses(mass: np.ndarray, x: np.ndarray, order: float
                  ) -> tuple[float, np.ndarray]:
  """Returns log of sum(mass e^(order x)), and the summands divided by their sum."""
  exponent = _numerics.log_mass(mass) + order * x
  peak = float(np.max(exponent))
  weight = np.exp(exponent - peak)
  total = float(np.sum(weight))
  return peak + math.log(total), weight / total


def _fold(weight: np.ndarray, first: int, points: int) -> np.ndarray:
  """Wraps masses at first, first + 1, ... around a cycle of `points`."""
  offset = first % points
  padded = np.zeros(-(-(offset + weight.size) // points) * points)
  padded[offset:offset + weight.size] = weight
  return padded.reshape(-1, points).sum(axis=0)
