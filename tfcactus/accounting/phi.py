"""Accountant by characteristic functions of privacy losses: lower and upper bounds."""

from __future__ import annotations

import math

import dp_accounting

from tfcactus import _checks, relations
from tfcactus.accounting import base, event_steps
from tfcactus.accounting.bounds import Bounds
from tfcactus.accounting.composition.composition import Composition
from tfcactus.accounting.composition.repeated import Repeated
from tfcactus.pairs import groups

_SHARES = (1e-9, 1e-6, 1e-3, 0.5)
"""Shares of delta that are set aside for a distance; the first that suffices counts."""


class PhiAccountant(base.TwoSidedAccountant):
  """Accountant that composes characteristic functions (phi) of privacy losses.

  In the field's terms it is an accountant by privacy loss distributions (PLD, PRV).
  `get_epsilon` and `get_delta` return upper bounds, `epsilon_bounds` and `delta_bounds`
  lower ones too. Steps may differ, as in noise schedules.

  Source: Zhu, Dong and Wang, "Optimal Accounting of Differential Privacy via
  Characteristic Function" (AISTATS 2022).
  """

  def __init__(
      self,
      neighboring_relation: dp_accounting.NeighboringRelation = (
          relations.ADD_OR_REMOVE),
      *, direction: str = 'both', rows_of_one: int = 1, sampled_alike: bool = True,
      distance: float = 0.0):
    """Initializes an empty account.

    Args:
      neighboring_relation: As for `PairAccountant`.
      direction: As for `PairAccountant`.
      rows_of_one: Number k of rows that one person may have (group privacy). Neighbours
        then differ in up to k records: all added or removed, all zeroed, or all
        replaced. The account is exact for noise on all records; on Poisson samples, for
        rows added, removed or zeroed; on samples of fixed size, for rows added or
        removed. If one event is none of these, the power curve of all events is applied
        k times. That has no proof for added or removed rows with samples of fixed size:
        epsilon and delta then raise ValueError.
      sampled_alike: Whether each event describes how all rows of a person are sampled
        together. False if it describes each row by itself, as if the person's other
        rows were in other batches of the epoch; no account of k > 1 is then exact.
      distance: Bound on the total variation distance between all that is released and
        all that the events describe, for the same data. Bounds then hold for what is
        released: delta grows by (1 + e^epsilon) times the distance.

    Raises:
      ValueError: if an argument is out of range; rows_of_one is at most 1000.
    """
    super().__init__(neighboring_relation, direction=direction)
    self.rows_of_one = _checks.integer('rows_of_one', rows_of_one, 1)
    if self.rows_of_one > groups.MOST_ROWS:
      raise ValueError(
          f'Expected rows_of_one of at most {groups.MOST_ROWS}, got {rows_of_one!r}: '
          'sample persons in place of rows, or let each person have fewer rows.')
    self.distance = _checks.non_negative('distance', distance)
    # The exact account of all rows of a person together; None if there is none.
    self._together: PhiAccountant | None = None
    if self.rows_of_one > 1 and sampled_alike:
      self._together = PhiAccountant(self.neighboring_relation, direction=direction)
      self._together._sample = event_steps.Sample(
          self.neighboring_relation, rows=self.rows_of_one)

  def _maybe_compose(
      self, event: dp_accounting.DpEvent, count: int, do_compose: bool
  ) -> dp_accounting.PrivacyAccountant.CompositionErrorDetails | None:
    """Composes an event as the base class, also for all rows of a person if proved."""
    error = super()._maybe_compose(event, count, do_compose)
    if error is None and do_compose and self._together is not None:
      failed = self._together._maybe_compose(event, count, True) is not None
      if failed or self._together.non_private:
        self._together = None
    return error

  def _steps(self) -> dict[event_steps.EventStep, int]:
    """Returns {step: count}, of all rows of a person if that is exact."""
    return self._counts if self._together is None else self._together._counts

  def _epsilon_bounds(self, part: Composition, delta: float) -> Bounds:
    """Returns bounds on epsilon of what is released; (0, inf) at a large `distance`."""
    account = self._of_rows(part)
    if not self.distance:
      return account.epsilon(delta)
    # (1 - share) delta is for the events, the share is for the distance. Conversely, if
    # delta holds for what is released, (1 + share) delta holds for the events.
    for share in _SHARES:
      bounds = account.epsilon(delta * (1 - share))
      if self._added_delta(bounds.upper) < 0.99 * share * delta:
        more = delta * (1 + share)
        return bounds._replace(lower=account.epsilon(more).lower if more < 1 else 0.0)
    return Bounds(0.0, math.inf, math.inf)

  def _delta_bounds(self, part: Composition, epsilon: float) -> Bounds:
    lower, estimate, upper = self._of_rows(part).delta(epsilon)
    added = self._added_delta(epsilon)
    return Bounds(max(lower - added, 0.0), estimate, min(upper + added, 1.0))

  def _added_delta(self, epsilon: float) -> float:
    """Returns (1 + e^epsilon) `distance`, rounded up; inf from epsilon 700 on."""
    if not self.distance:
      return 0.0
    if epsilon >= 700:
      return math.inf
    return 1.01 * self.distance * (1 + math.exp(epsilon))

  def _of_rows(self, part: Composition) -> Composition | Repeated:
    """Returns bounds of `part` for all rows of a person; ValueError if none is proved.

    They apply the power curve of `part` `rows_of_one` times, unless `_steps` made
    `part` of exact events of all rows.
    """
    if self.rows_of_one == 1 or self._together is not None:
      return part
    if event_steps.change_shares(self._counts):
      raise ValueError(
          f'Expected rows_of_one=1, got {self.rows_of_one}: rows that are added or '
          'removed under samples of fixed size change the share of the others. They '
          'have an account for noise on the samples only, if the other records are '
          'enough for a sample. Use neighboring_relation zero-out, or Poisson samples.')
    return part.repeated(self.rows_of_one)

  def _stays_below(self, part: Composition, epsilon: float, delta: float) -> bool:
    delta -= self._added_delta(epsilon)
    return delta > 0 and self._of_rows(part).stays_below(epsilon, delta)
