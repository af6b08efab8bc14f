"""The pointwise maximum of several privacy profiles, as a dominating pair.

Source: Corollary 25 of Zhu, Dong and Wang (2022) for the pair of a profile.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfcactus.pairs import dominating_pair as pair_lib
from tfcactus.pairs.cells import CELLS

SUM_ROUNDOFF = 2 * np.finfo(np.float64).eps
"""Relative error of a running sum of positive masses, per mass: for the additions, and
as much for the masses."""


def envelope_of(parts: Sequence[pair_lib.PairBounds]) -> pair_lib.PairBounds:
  """Returns bounds on a pair of the maximum of the profiles that `parts` bound.

  The caller vouches that the maximum also bounds the profiles of the pairs' reverses,
  so that it is the profile of a symmetric pair.
  """
  log_alpha = profile_grid([part.upper for part in parts])
  alpha = np.exp(log_alpha)
  value, slope = np.zeros_like(alpha), np.zeros_like(alpha)
  upper = np.zeros_like(alpha)
  for part in parts:
    below, tangent, error = profile_at(part.lower, log_alpha)
    below = below - error
    # The tangent of the largest profile so far is a lower bound on the maximum.
    slope = np.where(below > value, tangent, slope)
    value = np.maximum(below, value)
    profile, _, error = profile_at(part.upper, log_alpha)
    upper = np.maximum(profile + error, upper)
  return pair_lib.PairBounds(
      _tangent_pair(alpha, value, slope, max(part.lower.p_inf for part in parts)),
      pair_lib.DominatingPair.from_symmetric_profile(alpha, upper))


def profile_at(pair: pair_lib.DominatingPair, log_alpha: np.ndarray
               ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns a profile, its slope and the profile's rounding, at alpha = e^log_alpha."""
  order = np.argsort(pair.loss)
  above = np.searchsorted(pair.loss[order], log_alpha, side='right')
  p, q = (np.append(np.cumsum(mass[order][::-1])[::-1], 0.0)[above]
          for mass in (pair.p, pair.q))
  error = SUM_ROUNDOFF * (pair.p.size + 4) * (p + np.exp(log_alpha) * q)
  return p - np.exp(log_alpha) * q + pair.p_inf, -q, error


def profile_grid(pairs: list[pair_lib.DominatingPair]) -> np.ndarray:
  """Returns CELLS + 1 losses >= 0, dense where mass is, at which to take profiles."""
  # A chord over a cell of width w and mass m raises the profile by about m w^2 / 8, so
  # the best density of points is the cube root of the density of mass. Mass at losses
  # above LARGEST_LOSS is counted at infinity.
  top = min(max(np.max(np.abs(pair.loss), initial=0.0) for pair in pairs),
            pair_lib.LARGEST_LOSS)
  edges = np.linspace(0, max(top, 1e-6), 4097)
  mass = sum(np.histogram(pair.loss, edges, weights=pair.p + pair.q)[0]
             for pair in pairs)
  density = np.cbrt(mass / max(np.max(mass), 1e-300)) + 1e-3
  position = np.append(0.0, np.cumsum(density))
  return np.interp(np.linspace(0, position[-1], CELLS + 1), position, edges)


def _tangent_pair(alpha: np.ndarray, value: np.ndarray, slope: np.ndarray,
                  p_inf: float) -> pair_lib.DominatingPair:
  """Returns the symmetric pair whose profile is the maximum of given tangents.

  It is a lower bound on a convex profile H of a symmetric pair. `alpha` begins at 1.
  """
  # A tangent touches a convex profile at `alpha`, where the profile is `value`; `p_inf`
  # is a lower bound on the limit of the profile for large alpha.
  # A symmetric pair has H(1 / alpha) = 1 - 1 / alpha + H(alpha) / alpha. So the slope
  # of H at alpha = 1 is at least (H(1) - 1) / 2, and a line with that slope is below H:
  # a steeper slope is raised to it. Later slopes fall by rounding only.
  slope = np.append(max(slope[0], -0.5 * (1 - value[0])), slope[1:])
  slope = np.minimum(np.maximum.accumulate(slope), 0.0)
  # Two slopes that hardly differ have no known crossing: drop one.
  keep = np.append(np.diff(slope) > 1e-13, True)
  alpha, value, slope = alpha[keep], value[keep], slope[keep]
  jump = np.diff(slope)
  crossing = (np.diff(value) + slope[:-1] * alpha[:-1] - slope[1:] * alpha[1:]) / -jump
  crossing = np.clip(crossing, alpha[:-1], alpha[1:])
  return pair_lib.DominatingPair.symmetric(
      np.log(crossing), crossing * jump, jump, p_inf)
