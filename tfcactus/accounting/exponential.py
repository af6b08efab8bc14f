"""Event and dominating pair (no accountant) of the exponential mechanism.

One of k options is drawn with probability proportional to exp(c score).
docs/soundness_releases.md derives the largest profile of such a mechanism.

Source: McSherry and Talwar, "Mechanism Design via Differential Privacy" (FOCS 2007);
Dong, Durfee and Rogers, "Optimal Differential Privacy Composition for Exponential
Mechanisms" (ICML 2020) for the range of its losses.
"""

from __future__ import annotations

import attr
import dp_accounting
import numpy as np

from tfcactus import _checks, relations
from tfcactus._numerics import EPS
from tfcactus.accounting import events
from tfcactus.pairs import dominating_pair as pair_lib

POINTS = 4000
"""Points of the profile. Bounds between them are chords and tangents, whose distance is
of order POINTS^-2. Knob of speed."""

LEAST = 1e-9
"""Least epsilon: below it the masses of a cell of the profile are differences of a few
roundings of one."""

MOST = 500.0
"""Largest epsilon of a replaced record: e^500 is a float64, and no protection."""

ROUNDOFF = 32 * EPS
"""Bound on the relative error of a computed profile and of the masses made from it. The
profile has expm1 to one ulp, a square, a quotient with another expm1 and arguments to
half an ulp, twelve EPS at most; the rest is for slopes and their differences."""

_PLACE_ROUNDOFF = 4 * EPS
"""Three times the relative error of an alpha, per unit of 1 + loss: the error of a mean
of losses, of its exponential and of the logarithm of that exponential."""


@attr.s(frozen=True, slots=True, auto_attribs=True)
class ExponentialMechanismDpEvent(events.SteppedDpEvent):
  """One option drawn with probability proportional to exp(c score).

  Attributes:
    epsilon: Largest change of c score of one option relative to another when a record
      is added or removed: 2 c times the sensitivity of a score, or c times the
      sensitivity if a record moves all scores in one direction. The mechanism is
      epsilon-differentially private. A replaced record costs 2 epsilon.
  """

  epsilon: float

  proved_relations = (relations.ADD_OR_REMOVE, relations.REPLACE, relations.ZERO_OUT)

  def __attrs_post_init__(self) -> None:
    check_epsilon(self.epsilon)

  def pair_bounds(self, relation: dp_accounting.NeighboringRelation,
                  direction: str) -> pair_lib.PairBounds:
    """Returns pairs that bracket the worst case; symmetric, for all directions."""
    del direction
    factor = 2 if relation == relations.REPLACE else 1
    return bounded_range_pair(factor * self.epsilon)


def check_epsilon(value: object) -> float:
  """Returns the epsilon of an exponential mechanism; ValueError outside [1e-9, 250]."""
  value = _checks.positive('epsilon', value)
  if not LEAST <= value <= MOST / 2:
    raise ValueError(
        f'Expected epsilon from {LEAST:g} to {MOST / 2:g}, got epsilon={value!r}: less '
        'is lost in the rounding of its account, and more protects nothing.')
  return value


def profile(epsilon: float, loss: np.ndarray) -> np.ndarray:
  """Returns H(e^loss), |loss| <= epsilon, if losses lie in intervals of `epsilon`."""
  return np.expm1(0.5 * (np.asarray(loss) - epsilon))**2 / -np.expm1(-epsilon)


def bounded_range_pair(epsilon: float) -> pair_lib.PairBounds:
  """Returns bounds on the pair with the profile `profile(epsilon, ...)`.

  It is the worst case of privacy losses in an interval of length `epsilon`.
  Compositions of the pair give upper bounds only: real neighbours may not attain it.
  """
  # The upper pair has chords of the convex profile, the lower pair its tangents.
  loss = np.linspace(0.0, epsilon, POINTS)
  alpha, value = np.exp(loss), profile(epsilon, loss)
  # -dH/dalpha is (sqrt(c / alpha) - c) / (1 - c), where c = e^-epsilon.
  slope = np.exp(-epsilon) * np.expm1(0.5 * (epsilon - loss)) / -np.expm1(-epsilon)
  # Rounding moves alpha, hence a value by at most slope times that error.
  room = _PLACE_ROUNDOFF * (1 + loss) * alpha * slope
  # alpha = 1 is exact. The last alpha is rounded up: the profile is zero beyond it.
  end = alpha[-1:] * (1 + _PLACE_ROUNDOFF * (1 + epsilon))
  upper = pair_lib.DominatingPair.from_symmetric_profile(
      np.concatenate([alpha[:-1], end]), value * (1 + ROUNDOFF) + np.append(
          0.0, room[1:]))
  # Tangents at neighbouring points a and b meet at alpha = sqrt(a b). Between two such
  # meeting points the chord is the tangent at the point between them.
  root = np.exp(0.5 * (loss[:-1] + loss[1:]))
  met = value[:-1] - (slope * alpha)[:-1] * np.expm1(0.5 * np.diff(loss))
  met = met - _PLACE_ROUNDOFF * (1 + loss[1:]) * root * slope[:-1]
  lower = pair_lib.DominatingPair.from_symmetric_profile(
      np.concatenate([[1.0], root, end]),
      np.concatenate([value[:1], np.maximum(met, 0.0), [0.0]]) * (1 - ROUNDOFF))
  return pair_lib.PairBounds(lower, upper)
