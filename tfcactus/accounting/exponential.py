"""What the exponential mechanism costs, exactly: its pair and its event.

One of k options is drawn with probability proportional to exp(c score). Neighbours move
c score within a range of epsilon, and the logarithm of the normaliser by as much as
keeps the mass one: losses of one pair of neighbours lie in some interval
[t - epsilon, t]. Of all laws with such losses the one on the two ends has the largest
profile, a chord of a convex function lying above it,

    H_t(e^x) = (1 - e^(t - epsilon)) (1 - e^(x - t)) / (1 - e^-epsilon),

and of all t the worst is (x + epsilon) / 2:

    H(e^x) = (1 - e^((x - epsilon) / 2))^2 / (1 - e^-epsilon),  |x| <= epsilon.

Many options, a share of which moves, attain it: for small epsilon half of what pure
epsilon-differential privacy allows. It is the profile of a pair, whose losses are not
those of one pair of neighbours: of many releases it is an upper bound, and
`TCDP.from_bounded_range` may say less.

Source: McSherry and Talwar, "Mechanism Design via Differential Privacy" (FOCS 2007);
Dong, Durfee and Rogers, "Optimal Differential Privacy Composition for Exponential
Mechanisms" (ICML 2020) for the range. The closed form is derived here.
"""

from __future__ import annotations

import attr
import dp_accounting
import numpy as np

from tfcactus import _checks
from tfcactus import relations
from tfcactus._numerics import EPS
from tfcactus.accounting import events
from tfcactus.pairs import dominating_pair as pair_lib

POINTS = 4000
"""Where the profile is taken; between them its bounds are chords and tangents, whose
distance falls with the square. Knob of speed."""

LEAST = 1e-9
"""The least epsilon: below it a cell's masses differ by a few roundings of one, and
pairs of float64 masses say nothing."""

MOST = 500.0
"""The largest epsilon: e^500 is a float64, and no protection."""

ROUNDOFF = 32 * EPS
"""Relative error of a computed profile, expm1 to one ulp, a square, a quotient with
another expm1, the difference of arguments to half an ulp, twelve EPS at most; and of
slopes and their differences, that make masses of it."""

_PLACE_ROUNDOFF = 4 * EPS
"""Thrice the relative error of an alpha, for each 1 + loss: of a mean of losses, of its
exponential and of the logarithm of that."""


@attr.s(frozen=True, slots=True, auto_attribs=True)
class ExponentialMechanismDpEvent(events.SteppedDpEvent):
  """One option drawn with probability proportional to exp(c score).

  Attributes:
    epsilon: By how much one added or removed record can move c score of one option
      against another's: 2 c times the sensitivity of a score, or c times where a record
      moves all scores the same way. The mechanism is epsilon-differentially private. A
      replaced record costs what twice that does.
  """

  epsilon: float

  proved_relations = (relations.ADD_OR_REMOVE, relations.REPLACE, relations.ZERO_OUT)

  def __attrs_post_init__(self) -> None:
    check_epsilon(self.epsilon)

  def pair_bounds(self, relation: dp_accounting.NeighboringRelation,
                  direction: str) -> pair_lib.PairBounds:
    """Pairs around the worst case; symmetric, so that all directions have them."""
    del direction
    factor = 2 if relation == relations.REPLACE else 1
    return bounded_range_pair(factor * self.epsilon)


def check_epsilon(value: object) -> float:
  """Returns the epsilon of an exponential mechanism, in [1e-9, 250]."""
  value = _checks.positive('epsilon', value)
  if value < LEAST:
    raise ValueError(
        f'Expected epsilon >= {LEAST:g}, got epsilon={value!r}, less than the rounding '
        'of its account; account for the least one.')
  if value > MOST / 2:
    raise ValueError(
        f'Expected epsilon <= {MOST / 2:g}, got epsilon={value!r}, which protects '
        'nothing; lower it.')
  return value


def profile(epsilon: float, loss: np.ndarray) -> np.ndarray:
  """sup P(A) - e^loss Q(A) over all events and all neighbours.

  Args:
    epsilon: Of the mechanism.
    loss: In [-epsilon, epsilon], any shape.
  """
  return np.expm1(0.5 * (np.asarray(loss) - epsilon))**2 / -np.expm1(-epsilon)


def _slope(epsilon: float, loss: np.ndarray) -> np.ndarray:
  """By how much the profile falls with a = e^loss, (sqrt(c / a) - c) / (1 - c)."""
  return np.exp(-epsilon) * np.expm1(0.5 * (epsilon - loss)) / -np.expm1(-epsilon)


def bounded_range_pair(epsilon: float) -> pair_lib.PairBounds:
  """Pairs around the one with that profile, the tight dominating pair.

  Args:
    epsilon: The range of the losses, from `LEAST` to `MOST`.

  Returns:
    Bounds whose `upper` dominates: chords lie above the convex profile, tangents below.
  """
  loss = np.linspace(0.0, epsilon, POINTS)
  alpha, value, slope = np.exp(loss), profile(epsilon, loss), _slope(epsilon, loss)
  # The alpha of a loss is rounded, which moves a point as its slope says.
  room = _PLACE_ROUNDOFF * (1 + loss) * alpha * slope
  # One has no rounding, and at the end the profile is zero at all larger alphas.
  end = alpha[-1:] * (1 + _PLACE_ROUNDOFF * (1 + epsilon))
  upper = pair_lib.DominatingPair.from_symmetric_profile(
      np.concatenate([alpha[:-1], end]), value * (1 + ROUNDOFF) + np.append(
          0.0, room[1:]))
  # Tangents at neighbouring points: two meet where alpha is the product of their roots.
  # Below both of them a point moved stays below the profile, as chords between such do.
  root = np.exp(0.5 * (loss[:-1] + loss[1:]))
  met = value[:-1] - (slope * alpha)[:-1] * np.expm1(0.5 * np.diff(loss))
  met = met - _PLACE_ROUNDOFF * (1 + loss[1:]) * root * slope[:-1]
  lower = pair_lib.DominatingPair.from_symmetric_profile(
      np.concatenate([[1.0], root, end]),
      np.concatenate([value[:1], np.maximum(met, 0.0), [0.0]]) * (1 - ROUNDOFF))
  return pair_lib.PairBounds(lower, upper)
