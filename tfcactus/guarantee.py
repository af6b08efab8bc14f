"""Guarantees: the epsilon of released steps, and its statement in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
import dataclasses
from typing import Any, Callable

import attr
import dp_accounting

from tfcactus import _checks, _format, accounting, relations
from tfcactus.accounting import attacks, events
from tfcactus.accounting.attacks import AttackReport
from tfcactus.relations import Relation

_UNPROVEN = (
    'NOT a privacy guarantee: the exact account of one number, over all its '
    'changes up to the clip norm, applied to i.i.d. scalar noise on a clipped '
    'vector, in place of the moments accountant of the full shift that Alghamdi '
    'et al. (2022) apply to theirs. It holds for a scalar query only; the true '
    'epsilon of the vector is larger, often many times.')

_PAIRS_GIVEN = (
    'Part of the cost is that of a dominating pair that was handed in (by a '
    'DominatingPairDpEvent, or a SteppedDpEvent from outside of tfcactus). It is '
    'assumed, unchecked, that the pair dominates what was released, for all '
    'neighbours; and if continuous_pair made it, that log p - log q is continuous and '
    'monotone between breaks, and that the functions are right to the accuracy.')

_SEEDED = (
    'SEEDED ({}): whoever knows the seed can repeat that randomness and '
    'subtract it, and against them nothing is protected; an experiment, not a '
    'private release.')


@dataclasses.dataclass(frozen=True)
class Guarantee:
  """The privacy cost of a number of released steps.

  Attributes:
    lower: Lower bound on the epsilon of the dominating pair that is accounted for. For
      Gaussian and monotone scalar noise two neighbours attain it. (Under zero-out on
      samples of fixed size, and replace on Poisson samples with other noise, it bounds
      the epsilon of some neighbours; `upper` is proved for all, and less tight. With
      arithmetic='integer' the pair has room for rounding that neighbours may not use.)
    estimate: Best single estimate of epsilon; not a bound.
    upper: The epsilon that holds, which is the one to publish.
    delta: Delta of the guarantee.
    steps: Number of released steps (or epochs, see `statement`).
    neighboring_relation: 'add-or-remove-one', 'replace-one', or 'replace-special'
      (zero-out).
    accountant: Name of the accountant.
    proven: Whether `upper` is a guarantee.
    statement: What `upper` covers, and what it takes as public, in words.
    conditions: Unchecked conditions of the guarantee, sentences of the statement.
    seeded: Whether some of the randomness came from a seed. Whoever knows the seed can
      repeat it; the guarantee holds against all others, as its statement says.
    account: The accountant that holds all that was released, which `report` asks; None
      for a maximum of `sides`.
    sides: The guarantees for persons on the training and on the validation side, if
      this one is the maximum of both; each has an account of its own. Else empty.
  """

  lower: float
  estimate: float
  upper: float
  delta: float
  steps: int
  neighboring_relation: str
  accountant: str
  proven: bool
  statement: str
  conditions: tuple[str, ...] = ()
  seeded: bool = False
  account: accounting.PhiAccountant | None = dataclasses.field(
      default=None, repr=False, compare=False)
  sides: tuple[Guarantee, ...] = ()

  def __str__(self) -> str:
    if self.seeded:
      unseeded = dataclasses.replace(self, seeded=False)
      return f'{unseeded}, SEEDED: not against whoever knows the seed'
    if not self.proven:
      return (f'epsilon {_format.upper(self.upper)} at delta '
              f'{_format.upper(self.delta)} by {self.accountant}: {self.statement}')
    return (f'epsilon <= {_format.upper(self.upper)} at delta '
            f'{_format.upper(self.delta)} '
            f'({self.neighboring_relation}, {self.accountant})' +
            (', on conditions that its statement names' if self.conditions else ''))

  def given(self, *conditions: str) -> Guarantee:
    """Returns this guarantee, and its sides, on conditions that statements then say."""
    return dataclasses.replace(
        self, statement=' '.join((self.statement, *conditions)),
        conditions=(*self.conditions, *conditions),
        sides=tuple(side.given(*conditions) for side in self.sides))

  def seeded_by(self, what: str) -> Guarantee:
    """Returns this guarantee, and its sides, marked: a seed drew `what`, in words."""
    return dataclasses.replace(
        self, seeded=True, statement=f'{self.statement} {_SEEDED.format(what)}',
        sides=tuple(side.seeded_by(what) for side in self.sides))

  def report(self, *, prior: float = 0.5,
             false_positive: Sequence[float] = attacks.RATES) -> AttackReport:
    """Returns what a membership attack on the released steps can do at most.

    Args:
      prior: Probability that a record is in the data, before the attack.
      false_positive: False positive rates at which attacks are bounded.

    Returns:
      True positive rates, membership advantage, posteriors, and the mu of Gaussian
      differential privacy, each with proved bounds on both sides.

    Raises:
      ValueError: if the guarantee is not proven or a maximum of `sides`, or an argument
        is out of range.
    """
    return AttackReport.of(self.proven_account(), self.statement, prior=prior,
                           false_positive=false_positive)

  def proven_account(self) -> accounting.PhiAccountant:
    """Returns the accountant; ValueError if not proven, or a maximum of `sides`."""
    if not self.proven or self.account is None:
      raise ValueError(
          'Expected a proven guarantee with its account, got one '
          f'{"without an account" if self.proven else "that is not proven"}: {self}' + (
              '; ask each of its `sides`, of which it is the maximum' if self.sides else
              ''))
    return self.account


TARGETS: dict[str, Callable[[Any], tuple[float, Callable[[Guarantee], float]]]] = {
    'target_epsilon': lambda epsilon: (
        _checks.positive('target_epsilon', epsilon), lambda found: found.upper),
    'target_advantage': lambda advantage: (
        _checks.delta(advantage, 'target_advantage'),
        lambda found: found.proven_account().get_delta(0.0)),
    'target_tpr': lambda rates: (
        attacks.check_target(rates)[0], lambda found: attacks.true_positive_rate(
            found.proven_account(), float(rates[1])).upper)}
"""Functions by the argument of `for_training` that states a target. Each takes the
argument, and returns (limit, function from a guarantee to what must not exceed it)."""


class ReleasedStatistic:
  """Base class of `Release`, by which plans recognise results of `tfcactus.release`."""
  # Attributes alone would not tell: a PoissonSampledDpEvent has an `event` too.

  event: dp_accounting.DpEvent  # Event of the whole cost of the result.
  seeded: bool  # Whether whoever knows a seed can repeat the noise.


def release_events(releases: object, unit: str | None = None
                   ) -> tuple[dp_accounting.DpEvent, ...]:
  """Returns the events of releases; ValueError if they cannot be composed with a plan.

  `unit` is that of the plan; None does not check it.
  """
  if not isinstance(releases, (list, tuple)):
    raise ValueError(
        'Expected releases to be a list or tuple, of results of '
        f'tfcactus.release or DpEvents, got {releases!r}.')
  found = tuple(map(_release_event, releases))
  if len(splits := {event.split for event in validations(found) if event.by}) > 1:
    raise ValueError(
        f'Expected validation on the sides of one split, got {len(splits)} splits: a '
        'record may be on the validation side of several; use one split for all.')
  if unit:
    check_unit(found, unit)
  return found


def check_unit(event: object, unit: str) -> None:
  """Raises ValueError if a layer in events, at any depth, has another unit."""
  for_owners = unit != 'example'
  for part in _parts(event):
    if isinstance(part, accounting.AdaptedDpEvent) and (
        bool(part.of_units) != for_owners):
      raise ValueError(
          f'Expected layers adapted for the unit of the plan or account, {unit=}, got '
          f'one for {"owners of rows" if part.of_units else "rows"}. Neither covers '
          'the other: give units to both adapt and the batches, or to neither.')


def _parts(event: object) -> Iterator[object]:
  """Yields `event`, entries of lists and fields of events in it, at any depth."""
  yield event
  inside: Iterable[object] = ()
  if isinstance(event, (list, tuple)):
    inside = event
  elif isinstance(event, dp_accounting.DpEvent) and attr.has(type(event)):
    inside = (getattr(event, field.name) for field in attr.fields(type(event)))
  for part in inside:
    yield from _parts(part)


def _release_event(release: object) -> dp_accounting.DpEvent:
  """Returns the release's event; ValueError if seeded or not for `PhiAccountant`."""
  event = release
  if isinstance(release, ReleasedStatistic):
    if release.seeded:
      raise ValueError(
          'Expected releases drawn without a seed, got one that was: whoever '
          'knows the seed can take its noise off. Release it again with '
          'seed=None; in an experiment that claims no privacy, pass its event.')
    event = release.event
  if not isinstance(event, dp_accounting.DpEvent):
    raise ValueError(
        'Expected releases to hold results of tfcactus.release or DpEvents, got '
        f'{release!r}.')
  try:
    # Under the first relation that is proved for the event, if the event names such;
    # else under the default relation of `PhiAccountant`.
    accounting.PhiAccountant(*getattr(event, 'proved_relations', ())[:1]).compose(event)
  except (dp_accounting.UnsupportedEventError, ValueError, TypeError) as error:
    raise ValueError(
        'Expected releases whose cost PhiAccountant can compose, got '
        f'{event!r}: {error}') from error
  return event


def validations(releases: Iterable[object]) -> list[accounting.ValidationDpEvent]:
  """Returns the events of releases on validation records, out of all `releases`."""
  return [event for event in releases
          if isinstance(event, accounting.ValidationDpEvent)]


def default_relation(given: Relation | None,
                     proved: Sequence[dp_accounting.NeighboringRelation],
                     releases: Iterable[object]) -> Relation:
  """Returns `given`; if None, the first of `proved` that is proved for validations too.

  Returns the first of `proved` if none is.
  """
  if given is not None:
    return given
  for relation in proved:
    if all(relation in event.proved_relations for event in validations(releases)):
      return relation
  return proved[0]


def words_beside(releases: Sequence[object]) -> tuple[str, str]:
  """Returns words for the data of a plan, and a sentence that counts its releases.

  The sentence is '' without releases. It leaves out validations on one side of a split,
  about which `_of_sides` writes a sentence.
  """
  validated = validations(releases)
  count = len(releases) - sum(1 for event in validated if event.by)
  return 'the training and validation data' if validated else 'the training set', (
      f' Covers {_statistics(count)} released beside the training.' if count else '')


def _statistics(count: int) -> str:
  """Returns '1 statistic', '2 statistics' and so on."""
  return f'{count} statistic' + 's' * (count > 1)


def conditions(event: object) -> list[str]:
  """Returns conditions, in words, of searches and of pairs that a user gave."""
  found = []
  for part in _parts(event):
    if isinstance(part, accounting.DominatingPairDpEvent) or (
        isinstance(part, accounting.SteppedDpEvent) and
        type(part).__module__.split('.')[0] != __package__):
      found.append(_PAIRS_GIVEN)
    elif isinstance(part, accounting.SearchDpEvent):
      found.append(part.condition)
  return found


def guarantee(event: dp_accounting.DpEvent, count: int, delta: float,
              relation: Relation, *, statement: str,
              releases: Iterable[dp_accounting.DpEvent] = (),
              proven: bool = True, rows_of_one: int = 1,
              sampled_alike: bool = True, distance: float = 0.0) -> Guarantee:
  """Returns the guarantee of an event that was released `count` times, and `releases`.

  `statement` tells what was released and what is taken as public. If `proven` is False
  the numbers are no guarantee, which the statement then says. `rows_of_one`,
  `sampled_alike` and `distance` are those of `PhiAccountant`. The result has conditions
  for searches and for dominating pairs that a user gave. If releases are on one side of
  a split, and persons have one row, the guarantee is the maximum of both sides. Raises
  ValueError if a release has no known cost for the relation.
  """
  relation, releases = relations.check(relation), tuple(releases)
  split = [each for each in validations(releases) if each.by]
  for validation in split:
    events.check_split(validation.by, relation)
  # A person with several rows may be on both sides: then all releases add up.
  if split and rows_of_one == 1:
    beside = [each for each in releases if each not in split]
    training_side = guarantee(
        event, count, delta, relation, statement=statement, releases=beside,
        proven=proven, sampled_alike=sampled_alike, distance=distance)
    validation_side = guarantee(
        event, 0, delta, relation, proven=proven, sampled_alike=sampled_alike,
        statement='For any one record on the validation side: all planned releases of '
        'validation.', releases=[*beside, *(each.all_releases for each in split)])
    return _of_sides(split, training_side, validation_side)
  accountant = accounting.PhiAccountant(
      relation, rows_of_one=rows_of_one, sampled_alike=sampled_alike,
      distance=distance if count else 0.0)
  if count:
    accountant.compose(event, count)
  for release in releases:
    if not accountant.supports(release):
      raise ValueError(
          f'Expected releases with a known cost for {relations.label(relation)}'
          f', got {release!r}.')
    accountant.compose(release)
  bounds = accountant.epsilon_bounds(delta)
  found = Guarantee(
      float(bounds.lower), float(bounds.estimate), float(bounds.upper), delta, count,
      relations.label(relation), accountant='tfcactus PhiAccountant', proven=proven,
      account=accountant,
      statement=statement if proven else f'{_UNPROVEN} {statement}')
  return found.given(*dict.fromkeys(conditions(
      [*releases, event] if count else releases)))


def _of_sides(split: Sequence[accounting.ValidationDpEvent], training: Guarantee,
              validation: Guarantee) -> Guarantee:
  """Returns the maximum of the guarantees of both sides, with a statement for both."""
  note = (
      f'A split by {split[0].by} puts each record on one side, and only that side '
      f'costs it anything: epsilon <= {_format.upper(training.upper)} for who is on '
      f'the training side, and epsilon <= {_format.upper(validation.upper)} for who is '
      f'on the validation side, by {sum(each.releases for each in split)} planned '
      'releases of validation. The guarantee is the maximum.')
  return dataclasses.replace(
      training, account=None, sides=(training, validation),
      conditions=tuple(dict.fromkeys((*training.conditions, *validation.conditions))),
      statement=' '.join((training.statement, note, *(
          each for each in validation.conditions if each not in training.conditions))),
      **{side: max(getattr(training, side), getattr(validation, side))
         for side in ('lower', 'estimate', 'upper')})


def search_guarantee(search: accounting.SearchDpEvent, delta: float,
                     neighboring_relation: Relation, *, searches: int = 1,
                     releases: Iterable[dp_accounting.DpEvent] = (),
                     validation: accounting.ValidationDpEvent | None = None
                     ) -> Guarantee:
  """Returns the guarantee of a search: the best of a secret number of runs.

  Args:
    search: The search; accountants compose it with other events too.
    delta: In (0, 1).
    neighboring_relation: As for `tfcactus.relations.check`.
    searches: Number of such searches of the same records.
    releases: Events of further releases.
    validation: Event of the validation in each run, on the other side of a split than
      all else that runs read. The guarantee is then the maximum of both sides.

  Returns:
    The guarantee, on the conditions of the search.

  Raises:
    ValueError: if an argument is out of range, a run has no account for the relation,
      or `releases` have a validation.
  """
  if not isinstance(search, accounting.SearchDpEvent):
    raise ValueError(f'Expected search to be a SearchDpEvent, got {search!r}.')
  relation = relations.check(neighboring_relation)
  releases = _checks.items('releases', releases, 'DpEvents')
  searches = _checks.count('searches', searches)
  if relation not in search.proved_relations:
    raise ValueError('Expected runs with an account for '
                     f'{relations.label(relation)}, got {search.event!r}.')
  if validation is not None:
    _checks.instance('validation', validation, accounting.ValidationDpEvent,
                     'give the event of a PrivateValidation')
    events.check_split(validation.by, relation)
    # On its side a run releases the validation, of which the score is a function.
    return _of_sides([validation], *(search_guarantee(
        each, delta, relation, searches=searches, releases=releases)
        for each in (search, accounting.SearchDpEvent(
            search.runs, validation.all_releases, score='released'))))
  if validations(releases):
    raise ValueError('Expected releases without validation, got one; give the '
                     'PrivateValidation of runs as validation=, which counts all runs.')
  shown = 'one result of a search' if searches == 1 else (
      f'the results of {searches} searches, one each')
  beside = f', and {_statistics(len(releases))} released beside it' if releases else ''
  return guarantee(search, searches, _checks.delta(delta), relation, statement=(
      f'{relations.protected(relation, "record", "the data")}: {shown}{beside}. ' +
      relations.public(relation, 'The law of the number of runs and all that a run '
                       'takes as public', 'record') + '.'), releases=releases)
