"""The phi-function accountant behind dp_accounting's interface."""

from __future__ import annotations

import functools
import math
from typing import Any
from typing import Optional

import dp_accounting

from tfcactus import _checks
from tfcactus import noise as noise_lib
from tfcactus.privacy import dominating
from tfcactus.privacy import events
from tfcactus.privacy import lattice
from tfcactus.privacy import pair as pair_lib

_ADD_OR_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
_REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE

DIRECTIONS = ('both', 'add', 'remove')


class PhiAccountant(dp_accounting.PrivacyAccountant):
  """Composes exact phi functions of privacy losses, with two-sided bounds.

  `get_epsilon` and `get_delta` return upper bounds: never below the truth.
  `epsilon_bounds` and `delta_bounds` say how tight they are.

  Source: Zhu, Dong and Wang, "Optimal Accounting of Differential Privacy via
  Characteristic Function" (AISTATS 2022).
  """

  def __init__(
      self,
      neighboring_relation: dp_accounting.NeighboringRelation = _ADD_OR_REMOVE,
      *, direction: str = 'both'):
    """Initializes an empty account.

    Args:
      neighboring_relation: ADD_OR_REMOVE_ONE (sensitivity one) or REPLACE_ONE
        (sensitivity two).
      direction: For add/remove, which way neighbours differ: 'both' (the
        maximum of the two, the usual guarantee), 'add' or 'remove'.

    Raises:
      ValueError: for another relation or direction.
    """
    if neighboring_relation not in (_ADD_OR_REMOVE, _REPLACE):
      raise ValueError(
          'Expected neighboring_relation ADD_OR_REMOVE_ONE or REPLACE_ONE, got '
          f'{neighboring_relation}.')
    if direction not in DIRECTIONS:
      raise ValueError(
          f'Expected direction in {DIRECTIONS}, got direction={direction!r}.')
    if direction != 'both' and neighboring_relation == _REPLACE:
      raise ValueError(
          "Expected direction='both' for REPLACE_ONE, which is symmetric, got "
          f'direction={direction!r}.')
    super().__init__(neighboring_relation)
    self._direction = direction
    self._non_private = False
    # By event and sampling probability: the number of steps.
    self._counts: dict[tuple[Any, float], int] = {}

  def supports(self, event: dp_accounting.DpEvent) -> bool:
    """Whether `event` can be composed here; False for the unknown."""
    return self._maybe_compose(event, 1, False) is None

  def _maybe_compose(
      self, event: dp_accounting.DpEvent, count: int, do_compose: bool
  ) -> Optional[dp_accounting.PrivacyAccountant.CompositionErrorDetails]:
    if do_compose or count != 0:
      count = _checks.integer('count', count, 0 if not do_compose else 1)
    try:
      steps = list(_flatten(event, 1.0, self.neighboring_relation))
    except _Unsupported as error:
      return dp_accounting.PrivacyAccountant.CompositionErrorDetails(
          invalid_event=error.event, error_message=error.message)
    if do_compose:
      for noise, sampling_prob, repeats in steps:
        if noise is None:
          self._non_private |= repeats > 0
        elif repeats:
          key = (_NoiseKey(noise), sampling_prob)
          self._counts[key] = self._counts.get(key, 0) + repeats * count
    return None

  def epsilon_bounds(self, target_delta: float) -> lattice.Bounds:
    """Bounds on the least epsilon of everything composed so far.

    Args:
      target_delta: In (0, 1).

    Returns:
      (lower, estimate, upper) for the dominating pairs accounted; publish
      `upper`. All are inf if delta is below the mass of infinite losses.
    """
    target_delta = _checks.delta(target_delta, 'target_delta')
    return self._bounds(lambda part: part.epsilon(target_delta), math.inf)

  def delta_bounds(self, target_epsilon: float) -> lattice.Bounds:
    """Bounds on the least delta at `target_epsilon` >= 0."""
    target_epsilon = _checks.non_negative('target_epsilon', target_epsilon)
    return self._bounds(lambda part: part.delta(target_epsilon), 1.0)

  def get_epsilon(self, target_delta: float) -> float:
    """An upper bound on epsilon at `target_delta`."""
    return self.epsilon_bounds(target_delta).upper

  def get_delta(self, target_epsilon: float) -> float:
    """An upper bound on delta at `target_epsilon`."""
    return self.delta_bounds(target_epsilon).upper

  def _bounds(self, solve, worst: float) -> lattice.Bounds:
    if self._non_private:
      return lattice.Bounds(worst, worst, worst)
    if not self._counts:
      return lattice.Bounds(0.0, 0.0, 0.0)
    # Add and remove are composed separately; the larger is the guarantee.
    parts = [solve(part) for part in self._compositions()]
    return lattice.Bounds(*(max(getattr(part, name) for part in parts)
                            for name in ('lower', 'estimate', 'upper')))

  def _compositions(self) -> list[lattice.Composition]:
    if self.neighboring_relation == _REPLACE:
      return [lattice.Composition(tuple(
          (_base_pair(key, 2), count)
          for (key, _), count in self._counts.items()))]
    wanted = {'both': (0, 1), 'add': (0,), 'remove': (1,)}[self._direction]
    return [lattice.Composition(tuple(
        (_base_pair(key, 1).poisson(q)[side], count)
        for (key, q), count in self._counts.items())) for side in wanted]


class _Unsupported(Exception):
  """Names the event that cannot be composed, and why."""

  def __init__(self, event: Any, message: str):
    super().__init__(message)
    self.event = event
    self.message = message


class _NoiseKey:
  """Noise hashed by what it draws."""

  def __init__(self, noise: noise_lib.Noise):
    self.noise = noise

  def __eq__(self, other: object) -> bool:
    return isinstance(other, _NoiseKey) and (
        self.noise.digest == other.noise.digest)

  def __hash__(self) -> int:
    return hash(self.noise.digest)


@functools.lru_cache(maxsize=32)
def _base_pair(key: _NoiseKey, shift: int) -> pair_lib.PairBounds:
  return dominating.dominating_pair(key.noise, shift=shift)


def _flatten(event: Any, sampling_prob: float,
             relation: dp_accounting.NeighboringRelation):
  """Yields (noise or None, sampling probability, repeats) for each step."""
  if isinstance(event, dp_accounting.NoOpDpEvent):
    return
  if isinstance(event, dp_accounting.NonPrivateDpEvent):
    yield None, 1.0, 1
  elif isinstance(event, dp_accounting.SelfComposedDpEvent):
    _refuse_joint(event, sampling_prob, event.count != 1)
    for noise, prob, repeats in _flatten(event.event, sampling_prob, relation):
      yield noise, prob, repeats * event.count
  elif isinstance(event, dp_accounting.ComposedDpEvent):
    _refuse_joint(event, sampling_prob, len(event.events) != 1)
    for part in event.events:
      yield from _flatten(part, sampling_prob, relation)
  elif isinstance(event, dp_accounting.PoissonSampledDpEvent):
    yield from _flatten_poisson(event, sampling_prob, relation)
  else:
    yield _noise_of(event), sampling_prob, 1


def _flatten_poisson(event: dp_accounting.PoissonSampledDpEvent,
                     sampling_prob: float,
                     relation: dp_accounting.NeighboringRelation):
  inner = event.event
  if not 0 <= event.sampling_probability <= 1:
    raise _Unsupported(event, 'the sampling probability is not in [0, 1]')
  prob = sampling_prob * event.sampling_probability
  if prob == 0:
    return
  if relation == _REPLACE and prob < 1:
    raise _Unsupported(
        event, 'Poisson sampling has no proved account for the replace '
        'relation; use ADD_OR_REMOVE_ONE')
  merged = _merge_gaussians(inner) if prob < 1 else None
  yield from _flatten(merged or inner, prob, relation)


def _merge_gaussians(event: Any) -> Optional[dp_accounting.DpEvent]:
  """Several Gaussian releases from one sample are one, of combined precision."""
  if isinstance(event, dp_accounting.SelfComposedDpEvent):
    parts = [(event.event, event.count)]
  elif isinstance(event, dp_accounting.ComposedDpEvent):
    parts = [(part, 1) for part in event.events]
  else:
    return None
  precision = 0.0
  for part, count in parts:
    part = _merge_gaussians(part) or part
    if not isinstance(part, dp_accounting.GaussianDpEvent) or (
        part.noise_multiplier <= 0):
      return None
    precision += count / part.noise_multiplier**2
  return dp_accounting.GaussianDpEvent(precision**-0.5) if precision else None


def _refuse_joint(event: Any, sampling_prob: float, several: bool) -> None:
  if several and sampling_prob < 1:
    raise _Unsupported(
        event, 'several releases from one sample are one step; only Gaussians '
        'can be merged. Sample anew for each release, or release one query')


def _noise_of(event: Any) -> Optional[noise_lib.Noise]:
  """The noise of a single release; None where nothing is protected."""
  if isinstance(event, events.NoiseTableDpEvent):
    return event.noise
  for kind, build in ((dp_accounting.GaussianDpEvent, noise_lib.Gaussian),
                      (dp_accounting.LaplaceDpEvent, noise_lib.Laplace)):
    if isinstance(event, kind):
      if event.noise_multiplier == 0:
        return None
      try:
        return build(event.noise_multiplier)
      except ValueError as error:
        raise _Unsupported(event, str(error)) from error
  raise _Unsupported(event, 'unknown kind of event')
