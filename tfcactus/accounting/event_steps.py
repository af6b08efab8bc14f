"""Conversion (no accountant) of DpEvents to steps, which accountants compose.

A step is a mechanism together with the sample of records that it runs on.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator
import dataclasses
import functools
import math
from typing import Any, Callable, Optional, TypeVar

import dp_accounting
import numpy as np

from tfcactus import _checks, noise as noise_lib, relations
from tfcactus.accounting import events
from tfcactus.accounting.composition.composition import StepLoss
from tfcactus.accounting.composition.losses.allocated import AllocatedGaussian
from tfcactus.accounting.composition.losses.gaussian import GaussianLoss
from tfcactus.accounting.composition.losses.grouped import GroupedGaussian
from tfcactus.accounting.composition.losses.laplace import LaplaceLoss
from tfcactus.noise import base as noise_base, gaussian
from tfcactus.pairs import allocation, dominating_pair as pair_lib, envelope, groups

_Value = TypeVar('_Value')


class Unsupported(Exception):
  """Raised for an event that cannot be composed; names the event and the reason."""

  def __init__(self, event: dp_accounting.DpEvent, message: str):
    super().__init__(message)
    self.event = event


@dataclasses.dataclass(frozen=True)
class Sample:
  """The sample of records that a step uses, and the neighbouring relation."""

  # A zeroed record counts as removed, a restored one as added.
  relation: dp_accounting.NeighboringRelation
  sampling_prob: float = 1.0  # Expected share of the records in the sample.
  fixed_size: bool = False  # Whether the sample has a fixed size; else Poisson.
  # Number of records in which neighbours differ: all the rows of one person.
  rows: int = 1
  # For several rows and a fixed size, (size of the sample, number of records).
  drawn: tuple[int, int] | None = None

  @property
  def displaces(self) -> bool:
    """Returns whether a record that enters the sample displaces another one."""
    return self.fixed_size and self.relation != relations.ZERO_OUT

  def check_rows(self, event: dp_accounting.DpEvent) -> None:
    """Raises Unsupported unless noise on the sample has an exact account for `rows`."""
    if self.rows == 1:
      return
    too_few = self.drawn is not None and self.drawn[0] > self.drawn[1] - self.rows
    if self.fixed_size and (self.relation != relations.ADD_OR_REMOVE or too_few):
      raise Unsupported(
          event, 'several rows have an exact account under samples of fixed size only '
          'if they are added or removed, and the other records are enough for a sample')
    if self.sampling_prob < 1 and self.relation == relations.REPLACE:
      raise Unsupported(event, 'several replaced rows have no exact account in samples')

  @property
  def log_weights(self) -> np.ndarray:
    """Logs of the probabilities that j = 0, ..., `rows` rows are in the sample."""
    if self.drawn is not None:
      return groups.fixed_size_weights(self.rows, *self.drawn)
    return groups.poisson_weights(self.rows, self.sampling_prob)


LEAST_PROB = 1e-300
"""Least probability of a record in a sample: products of smaller probabilities lose
digits, and may vanish."""

MERGED_ROUNDOFF = 1e-14
"""Bound on the relative error of the joint noise multiplier of merged Gaussians. Their
precisions have 2.5 EPS: a power, a count, a product and `fsum`; the root adds EPS."""


class EventStep:
  """One kind of step; equal steps cost the same and are counted together."""


class PairedStep(EventStep, abc.ABC):
  """A step whose dominating pairs are known."""

  @abc.abstractmethod
  def loss(self, direction: str) -> StepLoss:
    """Returns the privacy loss; `direction` is 'add', 'remove' or 'replace'."""


@dataclasses.dataclass(frozen=True)
class NoiseStep(PairedStep):
  """Noise on a sample of the records; `noise` is for a query of sensitivity one."""

  noise: noise_lib.Noise
  sample: Sample

  def loss(self, direction: str) -> StepLoss:
    """Returns the loss by sample and relation, with a closed form if one is known."""
    sample, noise = self.sample, self.noise
    prob, replace = sample.sampling_prob, direction == 'replace'
    if sample.rows > 1 and (prob < 1 or sample.fixed_size):
      return self._of_rows(direction)
    if prob < 1 and sample.fixed_size and not sample.displaces:
      bounds = _cached(type(noise).zeroed_pair, noise, prob)
      return StepLoss.of(bounds if direction == 'remove' else bounds.reversed())
    if prob < 1 and replace and not sample.fixed_size:
      return StepLoss.of(_cached(type(noise).replaced_pair, noise, prob))
    # A record that replaces or displaces another moves a query by two sensitivities.
    shift = sample.rows * (2 if replace or sample.fixed_size else 1)
    # Noise is symmetric: without sampling its pair serves both directions. The reversed
    # pair is wider: Q-mass that was lost by raising losses has infinite losses there.
    pair_direction = 'replace' if prob == 1 else direction
    if noise.gaussian_std is None:
      bounds = _sampled(noise_base.known_pair(noise, shift), prob, pair_direction)
      scalar = LaplaceLoss(shift / noise.scale) if prob == 1 and isinstance(
          noise, noise_lib.Laplace) else None
      return StepLoss(lambda cells: bounds, scalar=scalar)
    mu = shift / noise.gaussian_std
    loss = None if prob < 1 and replace else (
        GaussianLoss(mu, prob, 'add' if direction == 'add' else 'remove'))
    return StepLoss(lambda cells: _sampled(
        gaussian.shifted_pair(mu, cells), prob, pair_direction), loss)

  def _of_rows(self, direction: str) -> StepLoss:
    """Returns the privacy loss of a person with `sample.rows` rows (group privacy)."""
    # In a sample of fixed size a row also takes the place of another: it moves a query
    # by two sensitivities.
    sample, each = self.sample, 2 if self.sample.fixed_size else 1
    if self.noise.gaussian_std is not None:
      loss = GroupedGaussian.of(
          each / self.noise.gaussian_std, sample.log_weights, direction)
      return StepLoss(loss.pair_bounds, loss)
    bounds = _grouped(self.noise, each, sample)
    return StepLoss.of(bounds if direction == 'remove' else bounds.reversed())


@dataclasses.dataclass(frozen=True)
class AllocatedStep(PairedStep):
  """The mechanism `one` on an epoch's batches; a record enters one at random."""

  one: NoiseStep | PairStep
  num_batches: int

  def loss(self, direction: str) -> StepLoss:
    """Returns the loss of the epoch, of Gaussian noise in closed form too."""
    std = self.one.noise.gaussian_std if isinstance(self.one, NoiseStep) else None
    if std is None:
      return StepLoss.of(_allocated(self.one, self.num_batches, direction))
    mu, bins = 1 / std, self.num_batches
    # A pilot of few cells takes fewer nodes; any number of nodes is sound.
    return StepLoss(
        lambda cells: gaussian.allocated_pair(
            mu, bins, direction, min(max(cells // 16, 256), allocation.NODES)),
        AllocatedGaussian(mu, bins, direction))


@dataclasses.dataclass(frozen=True)
class PairStep(PairedStep):
  """A mechanism known by bounds on its pair; equal if sample and pair objects are."""

  bounds: pair_lib.PairBounds
  sample: Sample

  def loss(self, direction: str) -> StepLoss:
    return StepLoss.of(_sampled(self.bounds, self.sample.sampling_prob, direction))


def change_shares(steps: Iterable[EventStep | None]) -> bool:
  """Returns whether rows that are added or removed change the share of the others.

  They do under samples of fixed size. The account of one row then does not serve
  several.
  """
  return any(
      step.sample.fixed_size and step.sample.relation == relations.ADD_OR_REMOVE
      for step in steps if isinstance(step, (NoiseStep, PairStep)))


@dataclasses.dataclass(frozen=True)
class SchemeStep(PairedStep):
  """A step of an event that supplies its own pairs, proved for `relation`."""

  event: events.SteppedDpEvent
  relation: dp_accounting.NeighboringRelation

  def loss(self, direction: str) -> StepLoss:
    return StepLoss.of(_cached(
        type(self.event).pair_bounds, self.event, self.relation, direction))


@functools.lru_cache(maxsize=64)
def _cached(make: Callable[..., pair_lib.PairBounds], *args: object
            ) -> pair_lib.PairBounds:
  """Returns the bounds make(*args), cached by equality of the arguments."""
  return make(*args)


@functools.lru_cache(maxsize=32)
def _grouped(noise: noise_lib.Noise, each: int, sample: Sample) -> pair_lib.PairBounds:
  """Returns bounds on the pair (with a person's rows, without them), cached."""
  # Each row in the sample shifts the query by `each` sensitivities.
  weights, beyond = groups.most_likely(np.exp(sample.log_weights))
  # Noise is symmetric: its pair is that of its own reverse.
  return groups.mean_of([noise_base.known_pair(noise, each * rows)
                         for rows in range(1, weights.size)], weights, beyond)


@functools.lru_cache(maxsize=32)
def _allocated(one: NoiseStep | PairStep, num_batches: int, direction: str
               ) -> pair_lib.PairBounds:
  """Returns bounds on the pair of an epoch of random allocation, cached."""
  # `allocated` takes a pair with the record in P. A `PairStep` has the record in Q.
  with_it = (noise_base.known_pair(one.noise, 1) if isinstance(one, NoiseStep) else
             one.bounds.reversed())
  return allocation.allocated(with_it, num_batches, direction)


def _sampled(base: pair_lib.PairBounds, prob: float, direction: str
             ) -> pair_lib.PairBounds:
  """Returns bounds on the pair of a mechanism that runs on a sample of the records."""
  # `base` bounds the pair on all records: for an added record under Poisson sampling,
  # for a replaced record under fixed-size sampling or direction 'replace'. Source: Zhu,
  # Dong and Wang (2022), section 4.1, and Proposition 29 for fixed size.
  if direction == 'replace' and prob == 1:
    return base
  add, remove = base.poisson(prob)
  if direction == 'replace':  # Proposition 29: the larger of the two profiles.
    return envelope.envelope_of([add, remove])
  return add if direction == 'add' else remove


Steps = Iterator[tuple[Optional[EventStep], int]]
"""Pairs (step, number of repetitions); the step is None if it protects nothing."""


@functools.singledispatch
def steps_of(event: dp_accounting.DpEvent, sample: Sample) -> Steps:
  """Yields (step, repetitions) of an event; raises Unsupported if none is proved."""
  # This default takes an event as noise; other kinds of events are registered below.
  noise = _checked(event, noise_lib.of_event, event)
  if noise is None:
    raise Unsupported(event, 'unknown kind of event')
  if noise.noise_multiplier == 0:
    yield None, 1
  else:
    sample.check_rows(event)
    yield NoiseStep(_checked(event, noise_lib.check, noise), sample), 1


steps_of.register(dp_accounting.NoOpDpEvent, lambda event, sample: iter(()))
steps_of.register(
    dp_accounting.NonPrivateDpEvent, lambda event, sample: iter([(None, 1)]))


@steps_of.register(dp_accounting.SelfComposedDpEvent)
def _(event: dp_accounting.SelfComposedDpEvent, sample: Sample) -> Steps:
  """Yields the steps of the repeated event, with their repetitions times `count`."""
  count = _checked(event, _checks.count, 'count', event.count, 0)
  _refuse_releases_of_one_sample(event, sample, several=count > 1)
  for step, repeats in steps_of(event.event, sample):
    if repeats * count > _checks.LARGEST_COUNT:
      raise Unsupported(event, 'more than 2^53 releases')
    yield step, repeats * count


@steps_of.register(dp_accounting.ComposedDpEvent)
def _(event: dp_accounting.ComposedDpEvent, sample: Sample) -> Steps:
  """Yields the steps of all composed events in turn."""
  if not isinstance(event.events, (list, tuple)):
    raise Unsupported(event, 'its events are not a list')
  _refuse_releases_of_one_sample(event, sample, several=len(event.events) > 1)
  for part in event.events:
    yield from steps_of(part, sample)


@steps_of.register(dp_accounting.PoissonSampledDpEvent)
def _(event: dp_accounting.PoissonSampledDpEvent, sample: Sample) -> Steps:
  """Returns the steps of the inner event on a Poisson sample of `sample`."""
  prob = _checked(event, _checks.non_negative, 'sampling_probability',
                  event.sampling_probability)
  if prob > 1:
    raise Unsupported(event, 'the sampling probability is not in [0, 1]')
  return _steps_of_sample(event, prob, None, sample)


@steps_of.register(dp_accounting.SampledWithoutReplacementDpEvent)
def _(event: dp_accounting.SampledWithoutReplacementDpEvent, sample: Sample) -> Steps:
  """Returns the steps of the inner event on a sample of fixed size of `sample`."""
  total = _checked(event, _checks.count, 'source_dataset_size',
                   event.source_dataset_size)
  taken = _checked(event, _checks.integer, 'sample_size', event.sample_size, 0)
  if taken > total:
    raise Unsupported(event, 'the sample size is not within the data size')
  return _steps_of_sample(event, taken / total, (taken, total), sample)


@steps_of.register(events.DominatingPairDpEvent)
def _(event: events.DominatingPairDpEvent, sample: Sample) -> Steps:
  """Yields one step if the pair's relation fits the neighbours of the sample."""
  _refuse_rows(event, sample)
  # If a record displaces another, neighbouring samples differ by a replacement.
  wanted = relations.REPLACE if sample.displaces else sample.relation
  if event.neighboring_relation != wanted:
    raise Unsupported(event, f'its pair is for {event.neighboring_relation.name}')
  # If a sample may lack the differing record, the cost depends on outputs with the
  # record against outputs without, which a pair for this relation does not give.
  poisson_replace = sample.relation == relations.REPLACE and not sample.fixed_size
  if sample.sampling_prob < 1 and (
      sample.relation == relations.ZERO_OUT or poisson_replace):
    scheme = 'fixed-size' if sample.fixed_size else 'Poisson'
    raise Unsupported(
        event, f'its pair has no proved account for {sample.relation.name} under '
        f'{scheme} sampling; use ADD_OR_REMOVE_ONE, or an event of noise')
  yield PairStep(event.bounds, sample), 1


@steps_of.register(events.SteppedDpEvent)
def _(event: events.SteppedDpEvent, sample: Sample) -> Steps:
  """Yields one step, whose pairs the event supplies."""
  _check_own_sample(event, sample)
  yield SchemeStep(event, sample.relation), 1


@steps_of.register(events.DistanceDpEvent)
def _(event: events.DistanceDpEvent, sample: Sample) -> Steps:
  """Yields the step of the noise, and one of the leak that covers the distance."""
  if sample != Sample(sample.relation, rows=sample.rows):
    raise Unsupported(event, 'noise in whole numbers has no proof for samples')
  yield from steps_of(event.event, sample)
  # A leak of one or more protects nothing: its step is None.
  leak = event.leak(sample.rows * (2 if sample.relation == relations.REPLACE else 1))
  yield (SchemeStep(events.ThresholdDpEvent(leak), sample.relation) if leak < 1 else
         None), 1


@steps_of.register(events.RandomAllocationDpEvent)
def _(event: events.RandomAllocationDpEvent, sample: Sample) -> Steps:
  """Returns one step for an epoch; the event's own steps if one batch, or no noise."""
  _check_own_sample(event, sample)
  steps = list(steps_of(_merged(event.event), sample))
  if event.num_batches == 1 or all(step is None for step, _ in steps):
    return iter(steps)
  (step, count), *more = steps
  if isinstance(step, PairStep) and sample.relation == relations.ZERO_OUT:
    # A zeroed record may change its batch, and so show which one it is in.
    raise Unsupported(
        event, 'its pair has no proved account for REPLACE_SPECIAL under random '
        'allocation; use ADD_OR_REMOVE_ONE, or an event of noise')
  if isinstance(step, (NoiseStep, PairStep)) and step.sample == sample and (
      count == 1 and not more):
    return iter([(AllocatedStep(step, event.num_batches), 1)])
  raise Unsupported(event, 'random allocation has a proof for one release of each '
                    'whole batch, or several with Gaussian noise; release one query of '
                    'a batch')


@steps_of.register(events.ValidationDpEvent)
def _(event: events.ValidationDpEvent, sample: Sample) -> Steps:
  """Returns the steps of all planned releases, as if every record took part."""
  if event.by:
    _checked(event, events.check_split, event.by, sample.relation)
  return steps_of(event.all_releases, sample)


def _random_allocation(event: Any, sample: Sample) -> Steps:
  """Returns the steps of dp_accounting's own event of random allocation."""
  if _checked(event, _checks.integer, 'num_selected', event.num_selected, 1) > 1:
    raise Unsupported(event, 'records that enter several of the batches have no proof')
  return steps_of(_checked(event, events.RandomAllocationDpEvent, event.num_steps,
                           event.event), sample)


def _randomized_response(event: Any, sample: Sample) -> Steps:
  """Returns the steps of dp_accounting's own event of randomized response."""
  return steps_of(_checked(event, events.randomized_response_event,
                         event.noise_parameter, event.num_buckets), sample)


for _name, _convert in (('RandomAllocationDpEvent', _random_allocation),
                        ('RandomizedResponseDpEvent', _randomized_response)):
  if hasattr(dp_accounting, _name):  # Newer releases have it.
    steps_of.register(getattr(dp_accounting, _name))(_convert)


def _steps_of_sample(event: dp_accounting.DpEvent, prob: float,
                     drawn: tuple[int, int] | None, outer: Sample) -> Steps:
  """Returns the steps of an event that samples a share `prob` of the `outer` sample."""
  # `drawn` is (size of the sample, number of records) for a fixed size, None: Poisson.
  fixed_size = drawn is not None
  if outer.fixed_size or (fixed_size and outer.sampling_prob < 1):
    raise Unsupported(event, 'samples of samples are accounted for Poisson only')
  if prob == 0:
    return iter(())
  prob *= outer.sampling_prob
  if prob < LEAST_PROB:
    raise Unsupported(
        event, f'a record is sampled with a probability below {LEAST_PROB:g}')
  # If the sample is all records, only added or removed ones displace others.
  fixed_size = fixed_size and (prob < 1 or outer.relation == relations.ADD_OR_REMOVE)
  return steps_of(event.event if prob == 1 else _merged(event.event), Sample(
      outer.relation, prob, fixed_size, outer.rows,
      drawn if fixed_size and outer.rows > 1 else None))


def _check_own_sample(
    event: events.SteppedDpEvent | events.RandomAllocationDpEvent,
    sample: Sample) -> None:
  """Raises Unsupported for several rows, another sample, or an unproved relation."""
  _refuse_rows(event, sample)
  if sample != Sample(sample.relation):
    raise Unsupported(
        event, 'it says what it samples itself; it is not sampled once more')
  if sample.relation not in event.proved_relations:
    proved = ', '.join(relation.name for relation in event.proved_relations)
    raise Unsupported(
        event, f'its steps have a proof for {proved}, none for {sample.relation.name}')


def _refuse_rows(event: dp_accounting.DpEvent, sample: Sample) -> None:
  """Raises Unsupported if a person may have several rows."""
  if sample.rows > 1:
    raise Unsupported(event, 'its pairs are for one row')


def _refuse_releases_of_one_sample(event: dp_accounting.DpEvent, sample: Sample, *,
                                   several: bool) -> None:
  """Raises Unsupported if several releases read one subsample: they are one step."""
  if several and sample.sampling_prob < 1:
    raise Unsupported(
        event, 'several releases from one sample are one step; only Gaussians '
        'can be merged. Sample anew for each release, or release one query')


def _checked(event: dp_accounting.DpEvent, check: Callable[..., _Value],
             *args: object) -> _Value:
  """Returns `check(*args)`; turns ValueError into Unsupported."""
  try:
    return check(*args)
  except ValueError as error:
    raise Unsupported(event, str(error)) from error


def _merged(event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
  """Returns one Gaussian event for a composition of Gaussians; all else unchanged."""
  # Precisions (1 / variance) add; the sum's noise is rounded down, so that epsilon is
  # rounded up. Nothing composed is a NoOpDpEvent.
  if not isinstance(event, (dp_accounting.SelfComposedDpEvent,
                            dp_accounting.ComposedDpEvent)):
    return event
  whole = Sample(relations.ADD_OR_REMOVE)
  try:
    steps = [(step, count) for step, count in steps_of(event, whole) if count]
  except Unsupported:
    return event
  precisions = [
      count * step.noise.gaussian_std**-2 for step, count in steps
      if isinstance(step, NoiseStep) and step.sample == whole and
      step.noise.gaussian_std is not None]
  if len(precisions) < len(steps):
    return event
  if not precisions:
    return dp_accounting.NoOpDpEvent()
  return dp_accounting.GaussianDpEvent(
      math.fsum(precisions)**-0.5 * (1 - MERGED_ROUNDOFF))
