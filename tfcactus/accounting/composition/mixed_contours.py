"""Contours for closed-form losses beside discrete ones.

One loss whose phi decays is enough, since |phi| of the others is at most one. Discrete
losses are then neither smoothed nor put on a lattice, and only rounding is left.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Union

import numpy as np

from tfcactus.accounting.bounds import Bounds, IntractableError
from tfcactus.accounting.composition import contour, infinite_mass
from tfcactus.accounting.composition.losses import base
from tfcactus.accounting.composition.losses.atoms import AtomicLoss
from tfcactus.pairs import dominating_pair as pair_lib

MAX_ATOMS = 20_000
"""Steps of more atoms go to other methods. Affects speed only."""

Part = Union[base.Loss, pair_lib.PairBounds]


@dataclasses.dataclass(frozen=True, eq=False)
class BoundedAtoms(AtomicLoss):
  """Finite losses of a pair, whose |phi| is bounded by one only."""

  def log_decay(self, order: float, t: np.ndarray) -> np.ndarray:
    """Returns zeros, the bound |phi| <= 1, in the shape of `t`."""
    return np.zeros(np.shape(t))


@dataclasses.dataclass(frozen=True)
class MixedContours:
  """A composition of losses in closed form, at least one, and of discrete losses.

  Attributes:
    groups: Pairs (closed-form loss or bounds on a discrete pair, number of steps).
    p_inf: Bounds (lower, upper) on the probability of an infinite loss.
  """

  groups: Sequence[tuple[Part, int]]
  p_inf: infinite_mass.PInf

  def epsilon(self, delta: float) -> Bounds:
    """Returns bounds on epsilon; raises IntractableError if phi decays too slowly."""
    if delta <= self.p_inf[1]:
      raise IntractableError
    most, least = infinite_mass.without(delta, self.p_inf)
    low = self._side('lower').epsilon(most)
    high = low if self._exact and most == least else self._side('upper').epsilon(least)
    lower, upper = max(low.lower - self._slack, 0.0), high.upper
    if upper > 0:
      upper += self._slack
    return Bounds(lower, min(max(0.5 * (low.estimate + high.estimate), lower), upper),
                  upper)

  def delta(self, epsilon: float) -> Bounds:
    """Returns bounds on delta; raises IntractableError if phi decays too slowly."""
    low, high = (self._side(side).delta(max(epsilon + move, 0.0)) for side, move in (
        ('lower', self._slack), ('upper', -self._slack)))
    lower, upper = infinite_mass.beside(low.lower, high.upper, self.p_inf)
    if epsilon < self._slack:
      # At negative epsilon, delta falls by at most one per unit of epsilon.
      upper = min(upper + self._slack, 1.0)
    return Bounds(lower, 0.5 * (lower + upper), upper)

  @property
  def _exact(self) -> bool:
    """Returns whether every discrete pair is its own lower and upper bound."""
    return all(part.lower is part.upper for part, _ in self.groups
               if isinstance(part, pair_lib.PairBounds))

  @property
  def _slack(self) -> float:
    """Bound on the error of the sum of all atoms' losses."""
    return pair_lib.LOSS_ROUNDOFF * sum(
        count for part, count in self.groups if isinstance(part, pair_lib.PairBounds))

  def _side(self, side: str) -> contour.Contour:
    """Returns the contour of the discrete losses' 'lower' or 'upper' pairs.

    Raises IntractableError if a pair has too many atoms or no finite loss.
    """
    groups = []
    for part, count in self.groups:
      if isinstance(part, pair_lib.PairBounds):
        pair = getattr(part, side)
        if pair.p.size > MAX_ATOMS or not np.any(pair.p > 0):
          raise IntractableError
        part = BoundedAtoms(pair)
      groups.append((part, count))
    return contour.Contour(tuple(groups))
