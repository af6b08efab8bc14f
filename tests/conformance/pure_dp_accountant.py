"""An example of an accountant of one's own: this file and a line in `accountants`."""

from __future__ import annotations

import math

from tfcactus.accounting.base import OneSidedAccountant
from tfcactus.accounting.composition.composition import Composition


class PureDPAccountant(OneSidedAccountant):
  """Basic composition of pure differential privacy: adds the largest losses."""

  def _epsilon(self, part: Composition, delta: float) -> float:
    return _largest_loss(part)

  def _delta(self, part: Composition, epsilon: float) -> float:
    return float(_largest_loss(part) > epsilon)


def _largest_loss(part: Composition) -> float:
  pairs = [(step.bounds().upper, count) for step, count in part.groups]
  return math.fsum(math.inf if pair.p_inf > 0 else count * float(max(pair.loss))
                   for pair, count in pairs)
