"""Leaky Gaussian parts (no accountant): what a release takes from an adaptive budget.

L(leak, mu) is the pair that shows which data set it is with probability `leak`, and is
a shift by mu of a standard normal variable otherwise. docs/soundness_accounting.md
("The account of a data set") proves how such parts compose, and when one dominates a
release.

Source: for Gaussian releases alone, Koskela, Tobaben and Honkela, "Individual Privacy
Accounting with Gaussian Differential Privacy" (ICLR 2023).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import special

from tfcactus import relations
from tfcactus._numerics import EPS
from tfcactus.accounting.base import PairAccountant
from tfcactus.accounting.bounds import crossing
from tfcactus.pairs.dominating_pair import lower_hull

POINTS, REFINED = 24, 24
"""First points of a profile, and most points that one `refine` adds to lower mu.
Affects width only."""

CLOSE = 1e-4
"""Relative excess of a chord over a profile that is small enough. Affects width."""

LEAST_SHARE = 1e-6
"""Share of the leak left that any release may take for itself. Affects width only."""

LEAST_TOP, CLOSEST = 0.01, 1e-8
"""Least range of points, and least distance between them. Closer ones would see the
rounding of the bounds. Affects width only."""

LARGEST = 300.0
"""Largest epsilon at which a profile is bounded; its last bound holds beyond."""

_ROOM = 64 * EPS
"""Relative room for the rounding of a chord, which takes a few operations."""


class Part(NamedTuple):
  """A part L(leak, mu) of an adaptive budget, or all of it."""

  leak: float
  mu: float


def shift(relation: relations.Relation) -> float:
  """Returns the mu of Gaussian noise of noise multiplier one under a relation."""
  return 2.0 if relations.check(relation) == relations.REPLACE else 1.0


def part(accountant: PairAccountant, left: Part) -> Part:
  """Returns the part of `left` that dominates all that an accountant holds.

  The accountant must have `rows_of_one` 1, add no total variation distance to its
  releases, and hold no `TCDPDpEvent`: its `compositions` show none of these. Unsampled
  Gaussian releases take no leak. Else leak / left.leak is about (mu / left.mu)^2. The
  part may exceed `left`; its mu is inf if no mu is proved. Raises ValueError for an
  accountant of one direction.
  """
  accountant.check_both()
  if accountant.non_private:
    return Part(0.0, math.inf)
  parts = accountant.compositions().values()
  if accountant.get_delta(0.0) == 0:
    return Part(0.0, 0.0)
  if parts and all(step.loss is not None and step.loss.normal
                   for whole in parts for step, _ in whole.groups):
    return Part(0.0, (1 + _ROOM) * max(math.sqrt(math.fsum(
        step.loss.mu**2 * count for step, count in whole.groups
        if step.loss is not None)) for whole in parts))
  if not left.leak > 1e-300:  # No leak is left; shares of it would underflow.
    return Part(0.0, math.inf)
  curve = _Curve(accountant, left.leak)

  def enough(share: float) -> bool:
    """Returns whether (mu / left.mu)^2 <= leak / left.leak = e^share for this leak."""
    mu = curve.mu(left.leak * math.exp(share))
    return mu * mu <= left.mu**2 * math.exp(share)

  leak = left.leak
  for _ in range(2):  # Points added for one leak lower the best leak.
    share = crossing(enough, math.log(LEAST_SHARE), 0.0, tolerance=2e-11, limit=0.0)[1]
    leak = left.leak * math.exp(min(share, 0.0))
    curve.refine(leak)
  return Part(leak, curve.mu(leak))


class _Curve:
  """Upper bounds on the profile of a release at points epsilon, for its least mu."""

  def __init__(self, accountant: PairAccountant, leak: float):
    """Bounds delta at `POINTS` epsilons, from 0 to where delta is a share of `leak`."""
    self._accountant = accountant
    # A small share serves best, but a delta below the mass of infinite losses has no
    # finite epsilon.
    tops = (accountant.get_epsilon(leak * share) for share in (
        LEAST_SHARE, 1e-4, 1e-2, 0.5))
    top = next((each for each in tops if each < math.inf), 1.0)
    self._deltas: dict[float, float] = {}
    self._add(np.linspace(0.0, min(max(top, LEAST_TOP), LARGEST), POINTS))

  def _add(self, epsilon: np.ndarray) -> None:
    """Adds points, and makes the chords _y[i] - _x[i] alpha between all points anew."""
    # Chord i is for epsilon from _ends[i] to _ends[i + 1]; alpha is e^epsilon.
    for one in epsilon.tolist():
      self._deltas[one] = min(self._accountant.get_delta(one), 1.0)
    points = np.array(sorted(self._deltas))
    delta = np.array([self._deltas[one] for one in points.tolist()])
    keep = lower_hull(np.exp(points), delta)
    self._ends, delta = points[keep], np.minimum.accumulate(delta[keep])
    fall, width = -np.diff(delta), np.diff(self._ends)
    # The last line is constant.
    self._x = np.append(fall * np.exp(-self._ends[:-1]) / np.expm1(width), 0.0) * (
        1 - _ROOM)
    self._y = np.append(delta[:-1] + fall / np.expm1(width), delta[-1]) * (1 + _ROOM)

  def _mus(self, leak: float) -> np.ndarray:
    """Returns the least mu for each chord, shape (chords,); inf if there is none."""
    # A line y - x alpha is below the profile of a shift by mu if ndtri(y) - ndtri(x) <=
    # mu: then no test that accepts P and Q with probabilities y and x tells more.
    above = (self._y - leak) / (1 - leak)
    with np.errstate(divide='ignore', invalid='ignore', over='ignore'):
      z, w = special.ndtri(above), special.ndtri(self._x / (1 - leak))
      # The rounding of `above`, then of its quantile and of the other one.
      room = 16 * EPS * (above * np.exp(0.5 * z * z) * 3 + 1 + np.abs(z) + np.abs(w))
      mu = np.where((self._x > 0) & (above < 1), z - w + room, np.inf)
    return np.where(above <= 0, 0.0, np.where(np.isnan(mu), np.inf, mu))

  def mu(self, leak: float) -> float:
    """Returns a mu for which L(leak, mu) dominates the release, or inf."""
    return float(np.max(self._mus(leak)))

  def refine(self, leak: float) -> None:
    """Adds points where the chord of the largest mu is too far from the profile."""
    for _ in range(REFINED):
      worst = int(np.argmax(self._mus(leak)))
      if worst + 1 == self._ends.size or (
          self._ends[worst + 1] - self._ends[worst] < CLOSEST):
        return
      middle = 0.5 * (self._ends[worst] + self._ends[worst + 1])
      chord = self._y[worst] - self._x[worst] * math.exp(middle)
      if middle in self._deltas:
        return
      self._add(np.array([middle]))
      if chord < (1 + CLOSE) * self._deltas[middle]:
        return
