"""Contours for discrete losses beside losses in closed form.

A contour needs phi, the characteristic function of the total loss, to decay. One step
whose phi decays is enough, since |phi| of the others is at most one. Discrete losses
then need no lattice, and only rounding is left.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Union

import numpy as np

from tfcactus.accounting.bounds import Bounds, IntractableError
from tfcactus.accounting.composition import contour, infinite_mass
from tfcactus.accounting.composition.losses import base
from tfcactus.accounting.composition.tilted_sum import tilted_masses
from tfcactus.pairs import dominating_pair as pair_lib

MAX_ATOMS = 20_000
"""Compositions with a step of more atoms go to other methods. Affects speed only."""

Part = Union[base.Loss, pair_lib.PairBounds]
"""A loss in closed form, or bounds on the pair of a discrete loss."""


@dataclasses.dataclass(frozen=True, eq=False)
class AtomicLoss(base.Loss):
  """The finite losses of a pair, whose |phi| is bounded by one only."""

  pair: pair_lib.DominatingPair

  max_order = 1e4

  def cumulants(self, orders: np.ndarray) -> np.ndarray:
    found, p, loss = [], self.pair.p, self.pair.loss
    for order in orders:
      log_mgf, weight = tilted_masses(p, loss, order)
      mean = float(weight @ loss)
      found.append((log_mgf, mean, float(weight @ (loss - mean)**2)))
    return np.array(found).T

  def tilted(self, order: float, t_max: float, tolerance: float) -> TiltedAtoms:
    del t_max, tolerance
    return TiltedAtoms(
        order, *tilted_masses(self.pair.p, self.pair.loss, order), self.pair.loss)

  def log_decay(self, order: float, t: np.ndarray) -> np.ndarray:
    return np.zeros(np.shape(t))


@dataclasses.dataclass(frozen=True, eq=False)
class TiltedAtoms(base.TiltedSum):
  """Atoms under a tilt; `weight` (tilted masses) and `loss` have shape (atoms,)."""

  order: float
  log_mgf: float
  weight: np.ndarray
  loss: np.ndarray

  def error(self, t: np.ndarray) -> np.ndarray:
    """Returns bounds on the error of phi at `t`, shape (n,): rounding alone."""
    return pair_lib.MASS_ROUNDOFF + base.phi_error(
        self.loss, self.weight, self.order, 1.0 + abs(self.log_mgf), t)


@dataclasses.dataclass(frozen=True)
class MixedContours:
  """A composition of losses in closed form, at least one, and of discrete losses."""

  # Pairs (closed-form loss or bounds on a discrete pair, number of steps).
  groups: Sequence[tuple[Part, int]]
  p_inf: infinite_mass.PInf

  def epsilon(self, delta: float) -> Bounds:
    """Returns bounds on the least epsilon >= 0 at `delta` in (0, 1).

    Raises IntractableError if `delta` may be no larger than the mass of infinite
    losses, if there are too many atoms, or if phi decays too slowly.
    """
    if delta <= self.p_inf[1]:
      raise IntractableError
    # Bounds on the delta of finite losses. The larger one gives the smaller epsilon.
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
    """Returns bounds on delta at `epsilon` >= 0.

    Raises IntractableError if there are too many atoms, or phi decays too slowly.
    """
    low, high = (self._side(side).delta(max(epsilon + move, 0.0)) for side, move in (
        ('lower', self._slack), ('upper', -self._slack)))
    lower, upper = infinite_mass.beside(low.lower, high.upper, self.p_inf)
    if epsilon < self._slack:
      # At negative epsilon, delta falls by at most one per unit of epsilon.
      upper = min(upper + self._slack, 1.0)
    return Bounds(lower, 0.5 * (lower + upper), upper)

  @property
  def _slack(self) -> float:
    """Bound on the error of a total loss from rounding of the atoms' losses."""
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
        part = AtomicLoss(pair)
      groups.append((part, count))
    return contour.Contour(tuple(groups))
