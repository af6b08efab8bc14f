"""Accountant by characteristic functions of privacy losses: lower and upper bounds."""

from __future__ import annotations

from tfcactus.accounting import base
from tfcactus.accounting.bounds import Bounds
from tfcactus.accounting.composition.composition import Composition


class PhiAccountant(base.TwoSidedAccountant):
  """Accountant that composes characteristic functions (phi) of privacy losses.

  In the field's terms it is an accountant by privacy loss distributions (PLD, PRV).

  `get_epsilon` and `get_delta` return upper bounds. `epsilon_bounds` and
  `delta_bounds` return lower bounds too, which show how tight the upper ones are.

  Source: Zhu, Dong and Wang, "Optimal Accounting of Differential Privacy via
  Characteristic Function" (AISTATS 2022).
  """

  def _epsilon_bounds(self, part: Composition, delta: float) -> Bounds:
    return part.epsilon(delta)

  def _delta_bounds(self, part: Composition, epsilon: float) -> Bounds:
    return part.delta(epsilon)

  def _stays_below(self, part: Composition, epsilon: float, delta: float) -> bool:
    return part.stays_below(epsilon, delta)
