"""An example of an event of one's own: a privacy event in one file."""

from __future__ import annotations

import attr
import dp_accounting
import numpy as np

from tfcactus import accounting

ADD_OR_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE


@attr.s(frozen=True, slots=True, auto_attribs=True)
class HalfAndHalfDpEvent(accounting.SteppedDpEvent):
  """Two randomised responses; each record takes part in one, a fair coin says which.

  Attributes:
    keep: Probability that a response is 1 with the record, and that it is 0 without.
  """

  keep: float

  @property
  def proved_relations(self) -> tuple[dp_accounting.NeighboringRelation, ...]:
    return (ADD_OR_REMOVE,)

  def pair_bounds(self, relation: dp_accounting.NeighboringRelation, direction: str
                  ) -> accounting.PairBounds:
    del relation
    with_it = np.array([1 - self.keep, self.keep])
    without = with_it[::-1]
    mixed = 0.5 * (np.outer(with_it, without) + np.outer(without, with_it)).ravel()
    plain = np.outer(without, without).ravel()
    return accounting.PairBounds.exact(accounting.DominatingPair.from_masses(
        *((mixed, plain) if direction == 'remove' else (plain, mixed))))
