"""Private tuning: the best of a secret number of private runs, in one guarantee."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import dataclasses
import functools
import gc
import logging
import math
import os
from typing import Any, Callable, Union
import warnings

import dp_accounting
import numpy as np

from tfcactus import _checks, accounting, relations, sampling as sampling_lib
from tfcactus.accounting import calibration, run_laws
from tfcactus.arithmetic import check_float, NO_DISTANCE
from tfcactus.data_account import DataAccount
from tfcactus.guarantee import Guarantee, release_events, search_guarantee
from tfcactus.keras import run_card
from tfcactus.keras.compat import models, training
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.data import batches as batches_lib, data_sources, units as units_lib
from tfcactus.keras.data.data_sources import ExampleData, Rows
from tfcactus.keras.hyperparameters import HyperParameters, Path
from tfcactus.keras.ledger.counts import Counts
from tfcactus.keras.ledger.journal import Journal
from tfcactus.keras.model import PrivateModel, privatize
from tfcactus.keras.validation import PrivateValidation
from tfcactus.noise import Gaussian
from tfcactus.noise.table_file import PathLike
from tfcactus.plan import PrivacyPlan
from tfcactus.randomness import KeyStream
from tfcactus.relations import Relation

MOST_PLANS = 64
"""Largest number of outcomes of the discrete draws of `plan`."""

_TOLERANCE = 1e-3
"""Relative tolerance of the noise, which is never too small."""

_PART = 0.7
"""Each plan's noise is first calibrated for this part of the target, so that all runs
cost the same. One factor then scales all noise. The part affects utility only."""

_SEARCHES = 1
"""The segment of a journal's counts that counts searches in place of steps."""

_OPTIONS = ('augmentation_multiplicity', 'clipping', 'engine', 'physical_batch_size')

Validation = Union[PrivateValidation, tuple[Any, Any], Callable[[PrivateModel], float]]

_Arguments = dict[str, Any]  # Arguments of `PrivacyPlan.for_training`, by name.
_Account = tuple[dict[str, PrivacyPlan], Guarantee, dp_accounting.DpEvent]
"""Plans by the `_key` of their arguments; guarantee and event of the search."""


@dataclasses.dataclass(frozen=True)
class Found:
  """The winner of a search.

  Attributes:
    model: The trained `PrivateModel`. It reports no epsilon of its own.
    values: Its settings, by name.
    score: Its score; larger is better.
    guarantee: The `Guarantee` of the search: of model, values and score together.
    sampling: Name of the sampling of its batches.
  """

  model: PrivateModel
  values: dict[str, Any]
  score: float
  guarantee: Guarantee
  sampling: str

  def run_card(self) -> dict[str, Any]:
    """Returns the run card of the model, with the guarantee of the search."""
    found = self.guarantee
    card = {**run_card.make_run_card(self.model), **run_card.cost(
        found, {found.neighboring_relation: found}), 'settings': self.values,
            'score': self.score, 'sampling': self.sampling}
    card['not_covered'] = [
        each.replace(run_card.CHOICES, '') for each in card['not_covered']]
    # These are of one run.
    return {name: each for name, each in card.items() if name not in (
        'reason', 'target_epsilon')}


class PrivateSearch:
  """A search for hyperparameters: the best of a secret number of private runs.

  Each run draws its settings, trains a new model by its own plan, and has a score. Only
  the winner is shown. The number of runs, their time and the other runs have to stay
  secret: training is silent, except what TensorFlow's C++ code logs, and other models
  are deleted. A run with an exception, or without a finite score, cannot win.

  Attributes:
    guarantee: The `Guarantee` of the search.
    event: The cost of a search and of `releases`, as if records were on both sides of
      a split.
    plans: {text of the arguments that affect the cost: plan of a run, of norm 1}.
  """

  def __init__(self, build: Callable[[Any], keras.Model],
               plan: Callable[[Any], _Arguments] | _Arguments, *,
               target_epsilon: float, delta: float, validation: Validation,
               objective: str | tuple[str, str] = 'val_accuracy',
               runs: run_laws.RunLaw | None = None,
               neighboring_relation: Relation = 'add-or-remove',
               batches: Callable[[ExampleData, PrivacyPlan], Any] | None = None,
               releases: Any = (), searches: int = 1, journal: PathLike | None = None,
               **options: Any):
    """Chooses the noise of each plan so that the search keeps the target.

    Args:
      build: Function of `hp`, a `HyperParameters`, that returns a new compiled Keras
        model, as for KerasTuner.
      plan: Dict of epochs, batch_size, l2_norm_clip and more for
        `PrivacyPlan.for_training`, but not noise, target, delta, releases, accounting
        or arithmetic='integer'; or a function of `hp` that returns it, with at most
        `MOST_PLANS` outcomes of `Choice`, `Boolean`, `Int` and `Float` with steps. A
        `Float` without steps may set `l2_norm_clip` only.
      target_epsilon: Largest epsilon of the whole search at `delta`.
      delta: Delta of the whole search.
      validation: A `PrivateValidation` with a public num_examples; its last release
        in a run is the score. Or public data (x, y). Or a function of the model that
        returns a number, larger if better, from no private data; needs no objective.
      objective: Metric with prefix 'val_' or 'val_private_', of accuracy or loss; or
        (metric, 'max' or 'min').
      runs: Law of the number of runs; by default `LogarithmicRuns(mean=10)`.
      neighboring_relation: As for `search_guarantee`.
      batches: Function of (data, plan) that returns batches; by default the plan's.
      releases: Statistics of the same records, as for `PrivacyPlan`, counted once.
      searches: Most searches that the target covers; one that was broken off counts.
      journal: Path of a file that counts searches before they begin; see `Journal`.
      **options: Arguments of `privatize`, those of `_OPTIONS` only.

    Raises:
      ValueError: if an argument is out of range, or the target cannot be kept.
    """
    _check_options(build, options)
    self._build, self._options, self._journal = build, options, journal
    self._plan = plan if callable(plan) else lambda hp: dict(plan)
    self._private = validation if isinstance(validation, PrivateValidation) else None
    self._score = _score(validation, objective)
    self._batches = batches or _default_batches
    self._runs = run_laws.LogarithmicRuns(10) if runs is None else runs
    self._delta, self._releases = _checks.delta(delta), release_events(releases)
    self._relation = relations.check(neighboring_relation)
    self._searches = _checks.integer('searches', searches, 1)
    self._begun, self._outcomes = 0, dict(_outcomes(self._plan))
    self.plans, self.guarantee, self.event = self._calibrated(
        _checks.positive('target_epsilon', target_epsilon))

  def _calibrated(self, target: float) -> _Account:
    """Returns plans of about equal epsilon, and guarantee and event of the search."""
    shares: dict[str, float] = {}  # The probability of each plan.
    for key, share, _ in self._outcomes.values():
      shares[key] = shares.get(key, 0.0) + share
    arguments = {key: found for key, _, found in self._outcomes.values()}
    start = {key: PrivacyPlan.for_training(**{
        **each, 'l2_norm_clip': 1.0, 'delta': self._delta,
        'target_epsilon': _PART * target}) for key, each in arguments.items()}
    for key, each in arguments.items():
      _scheme(start[key], each).check_relation(self._relation)
      if self._private is not None:
        self._private.check_epochs(each['epochs'])
    event = None if self._private is None else self._private.event
    # Without a split, the same person may be in training and validation.
    in_runs = [event.all_releases] if event and not event.by else []
    held_out = event if event and event.by else None

    @functools.cache
    def account_of(factor: float) -> _Account:
      """Returns plans with `factor` times the noise of `start`, and their cost."""
      plans = {key: dataclasses.replace(
          plan, target_epsilon=None, noise=Gaussian(
              factor * plan.noise.noise_multiplier)) for key, plan in start.items()}
      events = [(share, dp_accounting.ComposedDpEvent([
          _event(plans[key], arguments[key]), *in_runs]))
                for key, share in shares.items()]
      search = accounting.SearchDpEvent(
          self._runs, events if len(events) > 1 else events[0][1],
          score='public' if event is None else 'released')
      # With a split, the releases of validation are a search on the other side.
      scores = [accounting.SearchDpEvent(
          self._runs, held_out.all_releases, score='released')] if held_out else []
      return plans, search_guarantee(
          search, self._delta, self._relation, searches=self._searches,
          releases=self._releases, validation=held_out,
          ), dp_accounting.ComposedDpEvent([search, *scores, *self._releases])

    return account_of(calibration.calibrate_noise(
        target, lambda factor: account_of(factor)[1].upper, low=0.1, high=100.0,
        tolerance=_TOLERANCE, name='factor of the noise'))

  def search(self, x: Any, y: Any = None, *, account: DataAccount | None = None,
             account_label: str = 'search') -> Found | None:
    """Runs the search and returns the winner; None if no run had a score.

    Two models of random settings, and an epoch on zeros (unless data are `UnitData`),
    show mistakes in `build` before the search counts. Each run has new seeds of Python,
    NumPy and TensorFlow, and layer names of a new process: neither tells its number.

    Args:
      x: Examples, as for `PoissonBatches`; so is `y`.
      account: An account that `event` is entered in before the first run.
      account_label: The label of the entry.

    Raises:
      ValueError: if an argument or a run does not fit the plans, or the target or the
        account covers no further search.
    """
    stream = KeyStream()
    data = units_lib.open_data(x, y)
    self._rehearse(stream, data)
    with self._counted(account, account_label), _quiet():
      try:
        return best_of(self._runs, lambda: self._run(stream, data), stream)
      finally:
        if self._private is not None:
          self._private.forget()  # The last run may have lost.
        gc.collect()

  def _rehearse(self, stream: KeyStream, data: ExampleData) -> None:
    """Makes two trial models: an error that all runs would make is raised here."""
    zeros = None if isinstance(data, units_lib.UnitData) else _Zeros(data)
    with models.apart():
      first = self._trained(self._settings(stream), zeros, {'epochs': 1})
      second = self._trained(self._settings(stream), None, {})
    if {id(each) for each in models.weights(first.inner)} & {
        id(each) for each in models.weights(second.inner)}:
      raise ValueError('Expected build(hp) to return a new model each time, got two '
                       'that share variables; make all layers inside build.')
    if self._private is None:
      self._score(first)

  def _run(self, stream: KeyStream, data: ExampleData) -> tuple[float, Found | None]:
    """Returns (score, result); (-inf, None) after errors. Raises _UnaccountedError."""
    gc.collect()  # Deletes the model of the run before.
    keras.utils.set_random_seed(int(stream.integers(2**31, 1)[0]))
    hp = self._settings(stream)
    try:
      with models.apart():
        model = self._trained(hp, data, {})
      score = float(self._score(model))
      model.history = None  # Losses on private data, without noise.
      model.reset_metrics()
      model.train_function = None  # `apart` has freed functions that it calls.
    except _UnaccountedError:
      raise
    except Exception:  # pylint: disable=broad-except
      return -math.inf, None
    found = Found(model, hp.values, score, self.guarantee, model.ledger().sampling_name)
    model._ledger.record.end(_WON)  # pylint: disable=protected-access
    return score, found

  def _settings(self, stream: KeyStream) -> HyperParameters:
    """Returns settings of a run, each drawn when `plan` or `build` asks for it."""
    return HyperParameters(lambda count: int(stream.integers(count, 1)[0]),
                           lambda: float(stream.uniforms(1)[0]))

  def _trained(self, hp: HyperParameters, data: ExampleData | None,
               shorter: dict[str, Any]) -> PrivateModel:
    """Returns a model, trained on `data` if any; `shorter` is {} or {'epochs': n}."""
    arguments = self._plan(hp)
    plan = self._planned(arguments, hp.path)
    inner = self._build(hp)
    if not isinstance(inner, keras.Model) or getattr(inner, 'optimizer', None) is None:
      raise ValueError('Expected build(hp) to return a compiled Keras model, got '
                       f'{inner!r}; call model.compile(optimizer, loss, metrics=...).')
    callbacks = []
    if self._private is not None and not shorter and data is not None:
      plan = dataclasses.replace(plan, releases=(self._private.event,))
      callbacks = [self._private]
    model = privatize(inner, plan, **self._options)
    model.compile(**training.compiled_with(inner))
    if data is not None:
      model.fit(self._batches(data, plan), verbose=0, callbacks=callbacks, **(
          shorter or {'epochs': arguments['epochs']}))
      self._check_counted(model, arguments)
    return model

  def _planned(self, arguments: _Arguments, path: Path) -> PrivacyPlan:
    """Returns the plan of a run; raises unless its cost is accounted for.

    `path` has the discrete draws. They must fix all but l2_norm_clip, which is free.
    """
    key = self._outcomes[path][0] if path in self._outcomes else ''
    if key != _key(arguments):
      raise _UnaccountedError(
          'Expected plan(hp) to depend on Choice, Boolean, Int and Float with steps '
          f'alone, got {arguments!r}; l2_norm_clip alone may depend on any Float.')
    return dataclasses.replace(
        self.plans[key], l2_norm_clip=arguments['l2_norm_clip'])

  def _check_counted(self, model: PrivateModel, arguments: _Arguments) -> None:
    """Raises unless all that a model released is in the cost of its plan."""
    plan, ledger = model.plan, model.ledger()
    scheme = _scheme(plan, arguments)
    if ledger.scheme is not scheme or ledger.seeded or ledger.condition or (
        ledger.steps > plan.steps or ledger.epochs > arguments['epochs']):
      raise _UnaccountedError(
          f'Expected unseeded batches by {scheme.__name__} for at most {plan.steps} '
          f'steps, which the guarantee counts, got {ledger!r}. {ledger.note} Pass '
          'batches=, a function of (data, plan), or sampling= in plan.')

  @contextlib.contextmanager
  def _counted(self, account: DataAccount | None, label: str) -> Iterator[None]:
    """Counts a search before it begins; ValueError if target or account is spent."""
    plan = next(iter(self.plans.values()))
    # The journal counts searches in place of steps.
    journal = None if self._journal is None else Journal(self._journal, plan, block=1)
    try:
      begun = max(self._begun, journal.entry.released_steps if journal else 0)
      if begun >= self._searches:
        raise ValueError(
            f'Expected at most searches={self._searches} searches, which the target '
            f'covers, got another: {begun} began before, and one that was broken off '
            'counts. Make a PrivateSearch with another journal, and add its epsilon '
            'and delta to those of this one; or plan several searches from the start.')
      if account is not None:
        if not isinstance(account, DataAccount):
          raise ValueError(f'Expected account to be a DataAccount, got {account!r}.')
        account.spend(self.event, label=label, unit=plan.unit)
      self._begun = begun + 1
      if journal:
        journal.reserve(Counts().later(_SEARCHES, self._begun), _SEARCHES)
      yield
    finally:
      if journal:
        journal.close()


def _scheme(plan: PrivacyPlan, arguments: _Arguments
            ) -> type[sampling_lib.SamplingScheme]:
  """Returns the kind of sampling of a plan with these arguments."""
  return sampling_lib.suitable(
      arguments.get('sampling'), getattr(plan.strategy, 'bands', None))


def _event(plan: PrivacyPlan, arguments: _Arguments) -> dp_accounting.DpEvent:
  """Returns the event of all planned steps; ValueError for arithmetic='integer'."""
  check_float(plan, 'a private search', NO_DISTANCE)
  scheme, steps = _scheme(plan, arguments).of_plan(plan), plan.steps
  draws = -(-steps // scheme.batches_per_epoch) if scheme.draws_epochs else steps
  return dp_accounting.SelfComposedDpEvent(
      scheme.event(accounting.noise_event(plan.noise)), draws)


class _UnaccountedError(ValueError):
  """A run whose cost the guarantee of the search does not count."""


class _Zeros(ExampleData):
  """Examples of zeros or empty texts, in the number, shapes and dtypes of `data`."""

  def __init__(self, data: ExampleData):
    self.num_examples, self.specs = data.num_examples, data.specs

  def rows(self, index: np.ndarray) -> Rows:
    return data_sources.zero_rows(self.specs, index.size)


def best_of(runs: run_laws.RunLaw, run: Callable[[], tuple[float, Any]],
            stream: KeyStream) -> Any:
  """Returns the result of highest finite score of a secret number of runs, or None.

  `run` makes a run and returns (score, result). `stream` draws the number of runs by
  the law `runs`, and the winner among equal scores.
  """
  best: tuple[float, int, Any] = (-math.inf, -1, None)  # Score, random tie, result.
  for _ in range(runs.quantile(float(stream.uniforms(1)[0]))):
    score, result = run()
    tie = int(stream.words(1)[0])
    if math.isfinite(score) and (score, tie) > best[:2]:
      best = score, tie, result
  return best[2]


def _outcomes(plan: Callable[[Any], _Arguments]
             ) -> Iterator[tuple[Path, tuple[str, float, _Arguments]]]:
  """Yields (path, (key, probability, arguments)) by outcome; ValueError above 64."""
  # Walks the tree of draws: the first draws take the indices `forced`. Later draws take
  # index 0, and their other indices wait. NaN stands for a `Float` without steps.
  waiting, found = [list[int]()], 0
  while waiting:
    forced = waiting.pop()
    pick = functools.partial(lambda indices, count: next(indices, 0), iter(forced))
    hp = HyperParameters(pick, lambda: math.nan)
    arguments = plan(hp)
    yield hp.path, (_key(arguments), 1 / math.prod(n for _, n, _ in hp.path), arguments)
    found += 1
    chosen = [index for _, _, index in hp.path]
    for place in range(len(forced), len(chosen)):
      if found + len(waiting) + hp.path[place][1] > MOST_PLANS + 1:
        raise ValueError(
            f'Expected plan(hp) of at most {MOST_PLANS} outcomes, each of which has a '
            'cost to account for, got more; use Choice of fewer values, or steps.')
      waiting += [[*chosen[:place], index] for index in range(1, hp.path[place][1])]


def _key(arguments: _Arguments) -> str:
  """Returns the arguments that affect a plan's cost, as text; ValueError if invalid."""
  fixed = {'noise', 'target_epsilon', 'target_advantage', 'target_tpr', 'delta',
           'releases', 'accounting'}
  needed = {'epochs', 'batch_size', 'l2_norm_clip'}
  if not isinstance(arguments, dict) or fixed & set(arguments) or (
      not needed <= set(arguments)) or not all(
          isinstance(name, str) for name in arguments):
    raise ValueError(
        f'Expected plan to be, or to return, a dict with {", ".join(sorted(needed))} '
        'and other arguments of PrivacyPlan.for_training by name, without '
        f'{", ".join(sorted(fixed))}, got {arguments!r}.')
  return repr(sorted((name, value) for name, value in arguments.items()
                     if name != 'l2_norm_clip'))


def _check_options(build: object, options: dict[str, Any]) -> None:
  """Raises ValueError unless `build` is a function and options are `_OPTIONS`."""
  if not callable(build) or set(options) - set(_OPTIONS):
    raise ValueError(
        f'Expected build to be a function of hp, and options among '
        f'{", ".join(_OPTIONS)}, got build={build!r} and options '
        f'{", ".join(options) or "none"}. Each run draws its settings anew, and the '
        'number of runs is secret (runs=): for a grid, Bayesian search, a known number '
        'of trials or a seed, all runs count.')


def _default_batches(data: ExampleData, plan: PrivacyPlan) -> Any:
  """Returns the batches that a plan without `sampling` accounts for."""
  if plan.strategy is not None:
    return batches_lib.CyclicBatches(data, plan=plan)
  return batches_lib.PoissonBatches(data, sampling_prob=plan.sampling_prob)


def _score(validation: Validation, objective: str | tuple[str, str]
           ) -> Callable[[PrivateModel], float]:
  """Returns the function that scores a model, larger if better; or ValueError."""
  if callable(validation) and not isinstance(validation, PrivateValidation):
    return validation
  if isinstance(objective, str):
    objective = (objective, {'loss': 'min', 'accuracy': 'max'}.get(
        objective.rsplit('_', 1)[-1], ''))
  known = isinstance(objective, (tuple, list)) and len(objective) == 2
  name, direction = (str(objective[0]), objective[1]) if known else ('', '')
  if isinstance(validation, PrivateValidation) and (
      validation.num_examples is None or not name.startswith('val_private_')):
    raise ValueError(
        "Expected an objective of the PrivateValidation, such as 'val_private_"
        "accuracy', and a public num_examples for it, got "
        f'objective={objective!r} and num_examples={validation.num_examples!r}.')
  if not name.startswith('val_') or direction not in ('min', 'max'):
    raise ValueError(
        "Expected objective='val_accuracy', 'val_loss' or (name, 'min' or 'max'), such "
        f"as ('val_auc', 'max'), got {objective!r}. A score that reads the training "
        'data without noise has no account: the best of fair coins, which cost nothing '
        'each, in a logarithmic number of mean ten, can cost epsilon 1.487.')
  sign = 1 if direction == 'max' else -1
  if isinstance(validation, PrivateValidation):
    return lambda model: sign * model.history.history[name][-1]
  if not (isinstance(validation, tuple) and len(validation) == 2):
    raise ValueError(
        'Expected validation to be a PrivateValidation, public data (x, y), or a '
        f'function of the model, got {type(validation).__name__}.')

  def score(model: PrivateModel) -> float:
    """Returns the metric on the validation data, or minus it if less is better."""
    found = model.evaluate(*validation, verbose=0, return_dict=True)
    if name[4:] not in found:
      raise ValueError(f'Expected objective={name!r} to be a metric of compile(...), '
                       f'got {", ".join(f"val_{each}" for each in found)}.')
    return sign * float(found[name[4:]])

  return score


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Discards what Python code prints, warns of or logs."""
  level = logging.root.manager.disable
  with open(os.devnull, 'w', encoding='utf-8') as sink, warnings.catch_warnings(), (
      contextlib.redirect_stdout(sink)), contextlib.redirect_stderr(sink):
    warnings.simplefilter('ignore')
    logging.disable(logging.CRITICAL)
    try:
      yield
    finally:
      logging.disable(level)


_WON = (
    'No epsilon of this training alone: the model won a search, whose guarantee is '
    'that of the search.')
