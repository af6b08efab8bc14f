"""From DpEvents to steps: what was released, on which sample of the records."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any
from typing import Callable
from typing import Iterator
from typing import Optional

import dp_accounting

from tfcactus import _checks
from tfcactus import noise as noise_lib
from tfcactus import relations
from tfcactus.accounting import events
from tfcactus.accounting.composition.composition import Step
from tfcactus.accounting.composition.losses.gaussian import GaussianLoss
from tfcactus.noise import base as noise_base
from tfcactus.noise import gaussian_pairs
from tfcactus.pairs import dominating_pair as pair_lib
from tfcactus.pairs import envelope

MAX_COUNT = 2**53
"""Releases of one kind, at most: a float64 holds all numbers up to here."""

_REPLACE = relations.REPLACE
_ZERO_OUT = relations.ZERO_OUT


class Unsupported(Exception):
  """Names the event that cannot be composed, and why."""

  def __init__(self, event: Any, message: str):
    super().__init__(message)
    self.event = event
    self.message = message


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
  """What is released: noise, or a mechanism known by its pair."""

  noise: Optional[noise_lib.Noise] = None
  pair: Optional[pair_lib.DominatingPair] = None

  @property
  def _key(self) -> Any:
    return self.noise.digest if self.noise is not None else id(self.pair)

  def __eq__(self, other: object) -> bool:
    return isinstance(other, Source) and self._key == other._key

  def __hash__(self) -> int:
    return hash(self._key)


@dataclasses.dataclass(frozen=True)
class Release:
  """One step: a source on a sample of the records.

  Attributes:
    source: What is released.
    sampling_prob: The share of records in the sample.
    fixed_size: Whether the sample's size is fixed; else Poisson.
    relation: The neighbouring relation. A zeroed record counts as removed, a
      restored one as added.
  """

  source: Source
  sampling_prob: float = 1.0
  fixed_size: bool = False
  relation: dp_accounting.NeighboringRelation = relations.ADD_OR_REMOVE

  def step(self, direction: str) -> Step:
    """The step's privacy loss.

    Args:
      direction: 'add', 'remove' or 'replace'.
    """
    if self.sampling_prob < 1 and self.fixed_size and self.relation == _ZERO_OUT:
      return Step.of(_zeroed(self, direction))
    if self.sampling_prob < 1 and direction == 'replace' and not self.fixed_size:
      return Step.of(_replaced(self.source.noise, self.sampling_prob))
    shift = 2 if direction == 'replace' or self.fixed_size else 1
    noise = self.source.noise
    loss = None
    std = None if noise is None else noise.gaussian_std
    if std is not None and not (direction == 'replace' and self.sampling_prob < 1):
      mu = shift / std
      loss = GaussianLoss(mu, self.sampling_prob,
                          'add' if direction == 'add' else 'remove')
      make_base = functools.partial(gaussian_pairs.shifted, mu)
    else:
      base = _base_bounds(self.source, shift)
      make_base = lambda cells: base
    if noise is not None and self.sampling_prob == 1:
      # Noise is symmetric: the pair serves both directions, and its reverse,
      # from which mass at infinity hides, is not needed.
      return Step(make_base, loss)
    return Step(lambda cells: _sampled(
        make_base(cells), self.sampling_prob, direction), loss)


@functools.lru_cache(maxsize=32)
def _replaced(noise: noise_lib.Noise, sampling_prob: float) -> pair_lib.PairBounds:
  return noise.replaced_pair(sampling_prob)


@functools.lru_cache(maxsize=32)
def _zeroed_pair(noise: noise_lib.Noise, sampling_prob: float
                 ) -> pair_lib.PairBounds:
  return noise.zeroed_pair(sampling_prob)


def _zeroed(release: Release, direction: str) -> pair_lib.PairBounds:
  bounds = _zeroed_pair(release.source.noise, release.sampling_prob)
  return bounds if direction == 'remove' else bounds.reversed()


@functools.lru_cache(maxsize=32)
def _base_bounds(source: Source, shift: int) -> pair_lib.PairBounds:
  if source.pair is not None:
    return pair_lib.PairBounds.exact(source.pair)
  return noise_base.known_pair(source.noise, shift)


def _sampled(base: pair_lib.PairBounds, prob: float, direction: str
             ) -> pair_lib.PairBounds:
  """The step's pair from the base pair.

  Source: Zhu, Dong and Wang (2022): the amplification theorem of section 4.1,
  and Proposition 29 for records that are replaced under fixed-size sampling.
  """
  if direction == 'replace' and prob == 1:
    return base
  add, remove = base.poisson(prob)
  if direction == 'replace':
    return envelope.envelope_of([add, remove])
  return add if direction == 'add' else remove


def releases(event: Any, relation: dp_accounting.NeighboringRelation
             ) -> Iterator[tuple[Optional[Release], int]]:
  """Yields (release, repeats) for each kind of step; None protects nothing.

  Raises:
    Unsupported: for an event with no proved account.
  """
  yield from _flatten(event, Release(Source(), relation=relation), relation)


def _flatten(event: Any, sample: Release,
             relation: dp_accounting.NeighboringRelation
             ) -> Iterator[tuple[Optional[Release], int]]:
  if isinstance(event, dp_accounting.NoOpDpEvent):
    return
  if isinstance(event, dp_accounting.NonPrivateDpEvent):
    yield None, 1
  elif isinstance(event, dp_accounting.SelfComposedDpEvent):
    count = _count(event)
    _refuse_joint(event, sample, count > 1)
    for release, repeats in _flatten(event.event, sample, relation):
      yield release, repeats * count
  elif isinstance(event, dp_accounting.ComposedDpEvent):
    if not isinstance(event.events, (list, tuple)):
      raise Unsupported(event, 'its events are not a list')
    _refuse_joint(event, sample, len(event.events) > 1)
    for part in event.events:
      yield from _flatten(part, sample, relation)
  elif isinstance(event, (dp_accounting.PoissonSampledDpEvent,
                          dp_accounting.SampledWithoutReplacementDpEvent)):
    inner = _sample_of(event, sample, relation)
    if inner is not None:
      yield from _flatten(_merged(event.event) if inner.sampling_prob < 1
                          else event.event, inner, relation)
  else:
    source = _source_of(event, _base_relation(sample))
    if source is not None and source.pair is not None:
      _check_sampled_pair(event, sample)
    yield (None if source is None else
           dataclasses.replace(sample, source=source)), 1


def _base_relation(sample: Release) -> dp_accounting.NeighboringRelation:
  """The relation that a mechanism's own pair has to be for."""
  # In a sample of fixed size a record that enters displaces another.
  displaced = sample.fixed_size and sample.relation != _ZERO_OUT
  return _REPLACE if displaced else sample.relation


def _check_sampled_pair(event: Any, sample: Release) -> None:
  """Refuses a pair that says nothing of a sample without the record.

  Where a sample may lack the record of either neighbour, what it costs follows
  from how samples with it differ from those without, not from each other.
  """
  poisson_replace = sample.relation == _REPLACE and not sample.fixed_size
  if sample.sampling_prob < 1 and (
      sample.relation == _ZERO_OUT or poisson_replace):
    scheme = 'fixed-size' if sample.fixed_size else 'Poisson'
    raise Unsupported(
        event, f'its pair has no proved account for {sample.relation.name} under '
        f'{scheme} sampling; use ADD_OR_REMOVE_ONE, or an event of noise')


def _sample_of(event: Any, outer: Release,
               relation: dp_accounting.NeighboringRelation
               ) -> Optional[Release]:
  """The sampling an event adds; None if it takes no record at all."""
  fixed = isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent)
  if fixed:
    total = _checked(event, _checks.integer, 'source_dataset_size',
                     event.source_dataset_size, 1)
    taken = _checked(event, _checks.integer, 'sample_size', event.sample_size, 0)
    if taken > total:
      raise Unsupported(event, 'the sample size is not within the data size')
    prob = taken / total
  else:
    prob = _checked(event, _checks.non_negative, 'sampling_probability',
                    event.sampling_probability)
    if prob > 1:
      raise Unsupported(event, 'the sampling probability is not in [0, 1]')
  if outer.fixed_size or (fixed and outer.sampling_prob < 1):
    raise Unsupported(event, 'samples of samples are accounted for Poisson only')
  prob *= outer.sampling_prob
  if prob == 0:
    return None
  # With all records in the sample, only adding one displaces another.
  fixed = fixed and (prob < 1 or relation == relations.ADD_OR_REMOVE)
  return dataclasses.replace(outer, sampling_prob=prob, fixed_size=fixed)


def _checked(event: Any, check: Callable[..., Any], *args: Any) -> Any:
  """A field of an event, or the reason why it cannot be composed."""
  try:
    return check(*args)
  except ValueError as error:
    raise Unsupported(event, str(error)) from error


def _count(event: dp_accounting.SelfComposedDpEvent) -> int:
  count = _checked(event, _checks.integer, 'count', event.count, 0)
  if count > MAX_COUNT:
    raise Unsupported(event, f'more than 2^53 releases, count={count}')
  return count


def _merged(event: Any) -> dp_accounting.DpEvent:
  """Several Gaussian releases from one sample are one, of joint precision."""
  if not isinstance(event, (dp_accounting.SelfComposedDpEvent,
                            dp_accounting.ComposedDpEvent)):
    return event
  precision = _precision(event)
  if precision is None:
    return event
  if precision == 0:
    return dp_accounting.NoOpDpEvent()
  # Down by what the sums above may have rounded up.
  return dp_accounting.GaussianDpEvent(precision**-0.5 * (1 - 1e-14))


def _precision(event: Any) -> Optional[float]:
  """The sum of 1 / sigma^2 of nothing but Gaussian releases, else None."""
  if isinstance(event, dp_accounting.NoOpDpEvent):
    return 0.0
  if isinstance(event, dp_accounting.GaussianDpEvent):
    source = _source_of(event, _REPLACE)
    return None if source is None else source.noise.noise_multiplier**-2
  if isinstance(event, dp_accounting.SelfComposedDpEvent):
    count = _count(event)
    inner = _precision(event.event)
    return None if inner is None else count * inner
  if isinstance(event, dp_accounting.ComposedDpEvent) and isinstance(
      event.events, (list, tuple)):
    parts = [_precision(part) for part in event.events]
    return None if None in parts else math.fsum(parts)
  return None


def _refuse_joint(event: Any, sample: Release, several: bool) -> None:
  if several and sample.sampling_prob < 1:
    raise Unsupported(
        event, 'several releases from one sample are one step; only Gaussians '
        'can be merged. Sample anew for each release, or release one query')


def _source_of(event: Any, relation: dp_accounting.NeighboringRelation
               ) -> Optional[Source]:
  """The source of a single release; None where nothing is protected."""
  if isinstance(event, events.DominatingPairDpEvent):
    if event.neighboring_relation != relation:
      raise Unsupported(
          event, f'its pair is for {event.neighboring_relation.name}')
    return Source(pair=event.pair)
  # A dp_accounting event that its newer releases have.
  if type(event).__name__ == 'RandomizedResponseDpEvent':
    try:
      return _source_of(events.randomized_response_event(
          event.noise_parameter, event.num_buckets), relation)
    except ValueError as error:
      raise Unsupported(event, str(error)) from error
  noise = _checked(event, noise_lib.of_event, event)
  if noise is None:
    raise Unsupported(event, 'unknown kind of event')
  if not noise.noise_multiplier:
    return None
  return Source(noise=_checked(event, noise_lib.check, noise))
