"""Contours for discrete losses: beside closed-form losses, or smoothed and certified.

One loss whose phi decays is enough, since |phi| of the others is at most one. Discrete
losses are then neither smoothed nor put on a lattice, and only rounding is left.

Without such a loss, the phi function of discrete losses comes back near one again and
again. A small non-negative variable added to the total loss makes phi decay and raises
epsilon by at most its range. Values on a grid certify that phi stays small before it
decays.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
from typing import Union

import numpy as np

from tfcactus.accounting.bounds import Bounds, IntractableError
from tfcactus.accounting.composition import contour, infinite_mass, inversion
from tfcactus.accounting.composition.losses import atoms, base
from tfcactus.accounting.composition.losses.atoms import AtomicLoss
from tfcactus.pairs import dominating_pair as pair_lib

MAX_ATOMS = 20_000
"""Steps of more atoms go to other methods. Affects speed only."""

Part = Union[base.Loss, pair_lib.PairBounds]

RANGE = 5e-6
"""Range of the smoothing variable and width of epsilon's bounds. Any value is sound."""

MOST_SMOOTHED = 6000
"""Steps of more atoms go to the lattice, which they slow less. Affects speed only."""

MIN_STEPS = 30
"""Fewer discrete steps go to the lattice. Affects speed only."""

Groups = Sequence[tuple[pair_lib.PairBounds, int]]
"""Bounds on a step's dominating pair, and the number of such steps."""


@dataclasses.dataclass(frozen=True, eq=False)
class BoundedAtoms(AtomicLoss):
  """Finite losses of a pair, whose |phi| is bounded by one only."""

  def log_decay(self, order: float, t: np.ndarray) -> np.ndarray:
    """Returns zeros, the bound |phi| <= 1, in the shape of `t`."""
    return np.zeros(np.shape(t))


@dataclasses.dataclass(frozen=True)
class MixedContours:
  """A composition of losses in closed form, at least one, and of discrete losses."""

  # Pairs (closed-form loss or bounds on a discrete pair, number of steps).
  groups: Sequence[tuple[Part, int]]
  # Bounds (lower, upper) on the probability of an infinite loss.
  p_inf: infinite_mass.PInf

  def epsilon(self, delta: float) -> Bounds:
    """Returns bounds on epsilon; raises IntractableError if phi decays too slowly."""
    if delta <= self.p_inf[1]:
      raise IntractableError
    most, least = infinite_mass.without(delta, self.p_inf)
    low = self._side('lower').epsilon(most)
    alike = most == least and all(part.lower is part.upper for part, _ in self.groups
                                  if isinstance(part, pair_lib.PairBounds))
    high = low if alike else self._side('upper').epsilon(least)
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
  def _slack(self) -> float:
    """Bound on the error of the sum of all atoms' losses."""
    return pair_lib.LOSS_ROUNDOFF * sum(
        count for part, count in self.groups if isinstance(part, pair_lib.PairBounds))

  def _side(self, side: str) -> contour.Contour:
    """Returns the contour of the discrete losses' 'lower' or 'upper' pairs."""
    groups = []
    for part, count in self.groups:
      if isinstance(part, pair_lib.PairBounds):
        pair = getattr(part, side)
        if pair.p.size > MAX_ATOMS or not np.any(pair.p > 0):
          raise IntractableError
        part = BoundedAtoms(pair)
      groups.append((part, count))
    return contour.Contour(tuple(groups))


@dataclasses.dataclass(frozen=True)
class SmoothedContour(contour.Contour):
  """A composition of discrete losses with a small variable added to their sum."""

  groups: Sequence[tuple[atoms.AtomicLoss, int]]
  smoothing: atoms.Smoothing = atoms.Smoothing(RANGE)

  _decay_margin = 3.0

  @property
  def _all(self) -> Sequence[tuple[base.Loss, int]]:
    """The discrete losses, and last the smoothing variable."""
    return [*self.groups, (self.smoothing, 1)]

  def _certify(self, table: inversion.Table) -> None:
    """Raises IntractableError unless |phi| is small until the smoothing's phi is."""
    end = self.smoothing.end(-table.log_tail, table.order)
    # The smoothing variable, the last element, has a proved bound.
    atoms.certify_decay(table.tilted[:-1], table.last, max(end, table.last),
                        -table.log_tail)


@dataclasses.dataclass(frozen=True)
class SmoothedContours:
  """Bounds on epsilon by smoothed contours of the lower and of the upper pairs."""

  groups: Groups  # Pairs (bounds on a step's dominating pair, number of steps).
  # Bounds (lower, upper) on the probability of an infinite loss.
  p_inf: infinite_mass.PInf

  def epsilon(self, delta: float) -> Bounds:
    """Returns bounds on epsilon; raises IntractableError if phi may not be small."""
    steps = sum(count for _, count in self.groups)
    if steps < MIN_STEPS or delta <= self.p_inf[1] or any(
        pair.upper.p.size > MOST_SMOOTHED or not (pair.lower.p > 0).any()
        for pair, _ in self.groups):
      raise IntractableError
    most, least = infinite_mass.without(delta, self.p_inf)
    low = self._side('lower').epsilon(most)
    alike = most == least and all(pair.lower is pair.upper for pair, _ in self.groups)
    high = low if alike else self._side('upper').epsilon(least)
    slack = steps * pair_lib.LOSS_ROUNDOFF
    lower = max(low.lower - RANGE - slack, 0.0)
    upper = high.upper + slack
    estimate = 0.5 * (low.estimate + high.estimate) - 0.5 * RANGE
    return Bounds(lower, min(max(estimate, lower), upper), upper)

  def delta(self, epsilon: float) -> Bounds:
    """Raises IntractableError: smoothing moves epsilon; the lattice bounds delta."""
    raise IntractableError

  def _side(self, side: str) -> SmoothedContour:
    """Returns the contour of the 'lower' or of the 'upper' pairs."""
    return SmoothedContour(tuple(
        (_atoms_of(getattr(pair, side)), count) for pair, count in self.groups))


@functools.lru_cache(maxsize=64)
def _atoms_of(pair: pair_lib.DominatingPair) -> atoms.AtomicLoss:
  """Returns the pair's finite losses; cached with the values computed from them."""
  return atoms.AtomicLoss(pair)
