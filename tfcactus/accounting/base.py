"""Base classes of accountants, whose subclasses bound one direction at a time."""

from __future__ import annotations

import abc
from collections.abc import Iterator
import contextlib
import math
from typing import Callable

import dp_accounting
import numpy as np

from tfcactus import _checks, relations
from tfcactus.accounting import event_steps
from tfcactus.accounting.bounds import Bounds
from tfcactus.accounting.composition.composition import Composition


class PairAccountant(dp_accounting.PrivacyAccountant):
  """Accountant that turns events into compositions of dominating pairs.

  Attributes:
    direction: How neighbours differ: 'both', 'add' or 'remove'.
    non_private: Whether a composed event protects nothing, as one without noise.
  """

  # Class of the steps that the accountant can compose; it refuses others.
  _takes: type[event_steps.EventStep] = event_steps.PairedStep
  _kept: dict[str, Composition] | None = None  # The compositions of `composed_once`.

  def __init__(
      self,
      neighboring_relation: dp_accounting.NeighboringRelation = (
          relations.ADD_OR_REMOVE),
      *, direction: str = 'both'):
    """Initializes an empty account.

    Args:
      neighboring_relation: ADD_OR_REMOVE_ONE (sensitivity one), REPLACE_ONE
        (sensitivity two), or REPLACE_SPECIAL (zero-out: a record is replaced by one
        that contributes zero to every query; sensitivity one). Zero-out keeps the
        size of the data; add-or-remove has to assume that the size is public.
      direction: How one of two neighbours comes from the other: 'add' or 'remove' (of a
        record), or 'both', the maximum of the two, which a guarantee needs. A zeroed
        record counts as removed, a restored one as added.

    Raises:
      ValueError: for another relation or direction, or one direction under REPLACE_ONE.
    """
    neighboring_relation = relations.check(neighboring_relation)
    _checks.choice('direction', direction, ('both', 'add', 'remove'))
    if direction != 'both' and neighboring_relation == relations.REPLACE:
      raise ValueError(
          "Expected direction='both' for REPLACE_ONE, which is symmetric, got "
          f'direction={direction!r}.')
    super().__init__(neighboring_relation)
    self.direction = direction
    self._sample = event_steps.Sample(neighboring_relation)
    self.non_private = False
    self._counts: dict[event_steps.EventStep, int] = {}

  def check_both(self) -> None:
    """Raises ValueError unless the direction is 'both'."""
    if self.direction != 'both':
      raise ValueError(
          "Expected an accountant of direction 'both', got direction="
          f'{self.direction!r}; one direction alone is no guarantee.')

  def compose(self, event: dp_accounting.DpEvent, count: int = 1) -> PairAccountant:
    """Adds an event `count` times; returns this accountant."""
    # dp_accounting takes integers of Python only.
    return super().compose(
        event, int(count) if isinstance(count, np.integer) else count)

  def supports(self, event: dp_accounting.DpEvent) -> bool:
    """Returns whether `event` can be composed; False for unknown events."""
    return self._maybe_compose(event, 1, False) is None

  def _maybe_compose(
      self, event: dp_accounting.DpEvent, count: int, do_compose: bool
  ) -> dp_accounting.PrivacyAccountant.CompositionErrorDetails | None:
    """Returns why `event` cannot be composed, or None; then adds it if `do_compose`."""
    count = _checks.integer('count', count, 1 if do_compose else 0)
    counts, non_private = dict(self._counts), self.non_private
    try:
      for step, repeats in event_steps.steps_of(event, self._sample):
        if step is None:  # A release without noise.
          non_private |= repeats > 0
        elif not isinstance(step, self._takes):
          raise event_steps.Unsupported(event, f'{step} has no dominating pair')
        elif repeats:
          counts[step] = counts.get(step, 0) + repeats * count
      if max(counts.values(), default=0) > _checks.LARGEST_COUNT:
        raise event_steps.Unsupported(event, 'more than 2^53 releases of one kind')
    except event_steps.Unsupported as error:
      return dp_accounting.PrivacyAccountant.CompositionErrorDetails(
          invalid_event=error.event, error_message=str(error))
    if do_compose:
      self._counts, self.non_private = counts, non_private
    return None

  def _steps(self) -> dict[event_steps.EventStep, int]:
    """Returns {step: count} of the steps to compose."""
    return self._counts

  def compositions(self) -> dict[str, Composition]:
    """Returns {'add', 'remove' or 'replace': composition}; {} if no step has a pair."""
    if self._kept is not None:
      return self._kept
    counts = [(step, count) for step, count in self._steps().items()
              if isinstance(step, event_steps.PairedStep)]
    if not counts:
      return {}
    wanted = (['replace'] if self.neighboring_relation == relations.REPLACE else
              ['remove', 'add'] if self.direction == 'both' else [self.direction])
    return {direction: Composition([(step.loss(direction), count)
                                    for step, count in counts]) for direction in wanted}

  @contextlib.contextmanager
  def composed_once(self) -> Iterator[None]:
    """Keeps the compositions, with what they compute, for many questions in a block.

    Nothing may be composed in the block. After it they are let go: they may be large.
    """
    outer, self._kept = self._kept, self.compositions()
    try:
      yield
    finally:
      self._kept = outer


class OneSidedAccountant(PairAccountant):
  """Accountant whose method has upper bounds on epsilon and delta only."""

  def get_epsilon(self, target_delta: float) -> float:
    """Returns an upper bound on epsilon at `target_delta` in (0, 1)."""
    delta = _checks.delta(target_delta, 'target_delta')
    return self._worst(lambda part: self._epsilon(part, delta), math.inf)

  def get_delta(self, target_epsilon: float) -> float:
    """Returns an upper bound on delta at `target_epsilon` >= 0."""
    epsilon = _checks.non_negative('target_epsilon', target_epsilon)
    return self._worst(lambda part: self._delta(part, epsilon), 1.0)

  @abc.abstractmethod
  def _epsilon(self, part: Composition, delta: float) -> float:
    """Returns an upper bound on epsilon of a composition in one direction."""

  @abc.abstractmethod
  def _delta(self, part: Composition, epsilon: float) -> float:
    """Returns an upper bound on delta of a composition in one direction."""

  def _worst(self, solve: Callable[[Composition], float], non_private: float) -> float:
    """Returns the largest `solve(part)`, or 0; `non_private` if `self.non_private`."""
    if self.non_private:
      return non_private
    return max(map(solve, self.compositions().values()), default=0.0)


class TwoSidedAccountant(PairAccountant):
  """Accountant with lower and upper bounds; `get_...` methods return the upper ones."""

  def epsilon_bounds(self, target_delta: float) -> Bounds:
    """Returns bounds on the least epsilon at `target_delta` in (0, 1); publish `upper`.

    They are for the dominating pairs accounted. `upper` is inf if an event protects
    nothing, or if losses are infinite with a probability above delta.
    """
    delta = _checks.delta(target_delta, 'target_delta')
    return self._worst(
        lambda part: self._epsilon_bounds(part, delta), math.inf,
        lambda part, epsilon: self._stays_below(part, epsilon, delta))

  def delta_bounds(self, target_epsilon: float) -> Bounds:
    """Returns bounds on the least delta at `target_epsilon` >= 0."""
    epsilon = _checks.non_negative('target_epsilon', target_epsilon)
    return self._worst(
        lambda part: self._delta_bounds(part, epsilon), 1.0,
        lambda part, delta: delta < 1 and self._stays_below(part, epsilon, delta))

  def get_epsilon(self, target_delta: float) -> float:
    """Returns an upper bound on epsilon at `target_delta` in (0, 1)."""
    return self.epsilon_bounds(target_delta).upper

  def get_delta(self, target_epsilon: float) -> float:
    """Returns an upper bound on delta at `target_epsilon` >= 0."""
    return self.delta_bounds(target_epsilon).upper

  @abc.abstractmethod
  def _epsilon_bounds(self, part: Composition, delta: float) -> Bounds:
    """Returns bounds on epsilon of a composition in one direction."""

  @abc.abstractmethod
  def _delta_bounds(self, part: Composition, epsilon: float) -> Bounds:
    """Returns bounds on delta of a composition in one direction."""

  def _stays_below(self, part: Composition, epsilon: float, delta: float) -> bool:
    """Returns True if a cheap test proves (epsilon, delta)-DP; False proves nothing."""
    del part, epsilon, delta
    return False

  def _worst(self, solve: Callable[[Composition], Bounds], non_private: float,
             stays_below: Callable[[Composition, float], bool]) -> Bounds:
    """Returns the largest bounds by `solve` over all directions; zeros for no steps."""
    # `non_private` is the largest possible value, that of an event without noise.
    # `stays_below(part, x)` is True only if it is proved that the value is at most x.
    if self.non_private:
      return Bounds(non_private, non_private, non_private)
    best = Bounds(0.0, 0.0, 0.0)
    for part in self.compositions().values():
      # A direction that is proved to be the smaller one needs no bounds.
      if not (best.lower > 0 and stays_below(part, best.lower)):
        bounds = solve(part)
        if any(map(math.isnan, bounds)):  # NaN proves nothing.
          bounds = Bounds(0.0, non_private, non_private)
        best = Bounds(*map(max, best, bounds))
    return best
