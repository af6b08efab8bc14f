"""The phi-function accountant behind dp_accounting's interface."""

from __future__ import annotations

import math
from typing import Callable
from typing import Optional

import dp_accounting

from tfcactus import _checks
from tfcactus import relations
from tfcactus.accounting import event_steps
from tfcactus.accounting.bounds import Bounds
from tfcactus.accounting.composition import composition

_ONE_SIDED = (
    'Expected {}, got a request for two-sided bounds, which {} does not give; use '
    'PhiAccountant.')

DIRECTIONS = ('both', 'add', 'remove')


class PairAccountant(dp_accounting.PrivacyAccountant):
  """Turns events into dominating pairs; what they cost is a subclass's to say.

  A subclass gives `get_epsilon` and `get_delta`, upper bounds of its own method;
  two-sided bounds only if its method has them.
  """

  def __init__(
      self,
      neighboring_relation: dp_accounting.NeighboringRelation = (
          relations.ADD_OR_REMOVE),
      *, direction: str = 'both'):
    """Initializes an empty account.

    Args:
      neighboring_relation: ADD_OR_REMOVE_ONE (sensitivity one), REPLACE_ONE
        (sensitivity two), or REPLACE_SPECIAL, where a record is replaced by one
        that contributes zero to every query (sensitivity one): the size of the
        data is then no secret, which add-or-remove has to assume.
      direction: For the relations other than REPLACE_ONE, which way neighbours
        differ: 'both' (the maximum of the two, the usual guarantee), 'add' or
        'remove'. A zeroed record is removed, a restored one added.

    Raises:
      ValueError: for another relation or direction.
    """
    neighboring_relation = relations.check(neighboring_relation)
    if direction not in DIRECTIONS:
      raise ValueError(
          f'Expected direction in {DIRECTIONS}, got direction={direction!r}.')
    if direction != 'both' and neighboring_relation == relations.REPLACE:
      raise ValueError(
          "Expected direction='both' for REPLACE_ONE, which is symmetric, got "
          f'direction={direction!r}.')
    super().__init__(neighboring_relation)
    self.direction = direction
    self._non_private = False
    self._counts: dict[event_steps.Release, int] = {}

  def supports(self, event: dp_accounting.DpEvent) -> bool:
    """Whether `event` can be composed here; False for the unknown."""
    return self._maybe_compose(event, 1, False) is None

  def _maybe_compose(
      self, event: dp_accounting.DpEvent, count: int, do_compose: bool
  ) -> Optional[dp_accounting.PrivacyAccountant.CompositionErrorDetails]:
    if do_compose or count != 0:
      count = _checks.integer('count', count, 0 if not do_compose else 1)
    try:
      releases = list(event_steps.releases(event, self.neighboring_relation))
    except event_steps.Unsupported as error:
      return dp_accounting.PrivacyAccountant.CompositionErrorDetails(
          invalid_event=error.event, error_message=error.message)
    counts, non_private = dict(self._counts), self._non_private
    for release, repeats in releases:
      if release is None:
        non_private |= repeats > 0
      elif repeats:
        counts[release] = counts.get(release, 0) + repeats * count
    if max(counts.values(), default=0) > event_steps.MAX_COUNT:
      return dp_accounting.PrivacyAccountant.CompositionErrorDetails(
          invalid_event=event,
          error_message='more than 2^53 releases of one kind')
    if do_compose:
      self._counts, self._non_private = counts, non_private
    return None

  def epsilon_bounds(self, target_delta: float) -> Bounds:
    """Refused where the method bounds epsilon from above only."""
    raise NotImplementedError(_ONE_SIDED.format('get_epsilon', type(self).__name__))

  def delta_bounds(self, target_epsilon: float) -> Bounds:
    """Refused where the method bounds delta from above only."""
    raise NotImplementedError(_ONE_SIDED.format('get_delta', type(self).__name__))

  def _bounds(self, solve: Callable[[composition.Composition], Bounds],
              worst: float,
              stays_below: Callable[[composition.Composition, float], bool] = (
                  lambda part, value: False)) -> Bounds:
    """The larger of both directions' bounds, which is the guarantee."""
    if self._non_private:
      return Bounds(worst, worst, worst)
    best = Bounds(0.0, 0.0, 0.0)
    if self._counts:
      for part in self.compositions().values():
        # The smaller direction need not be known, only shown to be smaller.
        if not (best.lower > 0 and stays_below(part, best.lower)):
          best = Bounds(*map(max, best, solve(part)))
    return best

  def compositions(self) -> dict[str, composition.Composition]:
    """What was composed, by direction ('replace' has one)."""
    if self.neighboring_relation == relations.REPLACE:
      wanted = ('replace',)
    else:
      wanted = ('remove', 'add') if self.direction == 'both' else (
          self.direction,)
    return {direction: composition.Composition(tuple(
        (release.step(direction), count)
        for release, count in self._counts.items())) for direction in wanted}


class PhiAccountant(PairAccountant):
  """Composes exact phi functions of privacy losses, with two-sided bounds.

  `get_epsilon` and `get_delta` return upper bounds: never below the truth.
  `epsilon_bounds` and `delta_bounds` say how tight they are.

  Source: Zhu, Dong and Wang, "Optimal Accounting of Differential Privacy via
  Characteristic Function" (AISTATS 2022).
  """

  def epsilon_bounds(self, target_delta: float) -> Bounds:
    """Bounds on the least epsilon of everything composed so far.

    Args:
      target_delta: In (0, 1).

    Returns:
      (lower, estimate, upper) for the dominating pairs accounted; publish
      `upper`. All are inf if delta is below the mass of infinite losses.
    """
    target_delta = _checks.delta(target_delta, 'target_delta')
    return self._bounds(
        lambda part: part.epsilon(target_delta), math.inf,
        lambda part, epsilon: part.stays_below(epsilon, target_delta))

  def delta_bounds(self, target_epsilon: float) -> Bounds:
    """Bounds on the least delta at `target_epsilon` >= 0."""
    target_epsilon = _checks.non_negative('target_epsilon', target_epsilon)
    return self._bounds(lambda part: part.delta(target_epsilon), 1.0,
                        lambda part, delta: 0 < delta < 1 and part.stays_below(
                            target_epsilon, delta))

  def get_epsilon(self, target_delta: float) -> float:
    """An upper bound on epsilon at `target_delta`."""
    return self.epsilon_bounds(target_delta).upper

  def get_delta(self, target_epsilon: float) -> float:
    """An upper bound on delta at `target_epsilon`."""
    return self.delta_bounds(target_epsilon).upper
