"""Run card: a JSON record of a training run and its privacy cost."""

from __future__ import annotations

from collections.abc import Mapping
import contextlib
import dataclasses
import importlib.util
import json
import os
from typing import Any, TYPE_CHECKING

import tensorflow as tf

from tfcactus import _checks, _format, accounting, guarantee as guarantee_lib, relations
from tfcactus.guarantee import Guarantee
from tfcactus.keras.compat import models
from tfcactus.keras.distribution import replicas
from tfcactus.keras.ledger.counts import Seeded
from tfcactus.noise.table_file import PathLike
from tfcactus.plan import PrivacyPlan

if TYPE_CHECKING:
  from tfcactus.keras.ledger.ledger import Ledger
  from tfcactus.keras.model import PrivateModel

SUMS = (
    'float64, whatever TensorFlow rounds in float32 products; norms and sums of the '
    'same numbers; noisy sums on a grid of 2^-30 times their sensitivity, or times '
    'their noise if that is larger')
"""Statement on sums and release of clipped gradients (docs/soundness_numbers.md)."""

WHOLE_SUMS = (
    'float64, whatever TensorFlow rounds in float32 products; norms and sums of the '
    'same numbers; sums rounded to whole numbers, discrete Gaussian noise added as '
    'whole numbers, and all rounding counted in epsilon')
"""The statement for plans of arithmetic='integer' ("Whole numbers")."""

_BEFORE = '; steps made before the model was saved {} as their card says'
"""Added for a loaded model: its file does not say where noise was made, nor how far
rounding went."""

CHOICES = ' and choices of hyperparameters'
"""Taken off the card of a search, whose guarantee covers these choices."""

_FLOATS = ('rounding of the distribution of the noise, which is float64 and not '
           'real-valued (mode "float")')

_PLACES = ('gradients whose last bits change with the place of their example in the '
           'batch; frozen layers of huge weights can make that change large')

_METRICS = 'metrics and losses on the training data, printed or logged'

_STOPPING = f'early stopping{CHOICES} on the training data'

NOT_COVERED = (
    _METRICS,
    _STOPPING,
    'num_examples, sampling_prob and all else on this card, taken as public',
    'preparation of the data before the model (scales, vocabularies, features) beyond '
    'releases_beside',
    _FLOATS,
    _PLACES,
    'side channels such as timing')
"""Leaks and assumptions that the guarantee on a card does not cover."""


def not_covered(plan: PrivacyPlan) -> list[str]:
  """Returns the leaks and assumptions that the guarantee of a plan does not cover."""
  instead: dict[str, str] = {}
  if plan.counts_planned:
    held = bool(guarantee_lib.validations(plan.releases))
    noisy = ['the releases of PrivateValidation'] * held + (
        ['noisy_accuracy'] * (plan.noisy_accuracy is not None))
    data = 'training and validation data' if held else 'training data'
    instead = {
        _METRICS: f'metrics and losses without noise on {data}, printed or logged',
        _STOPPING: f'early stopping by anything but {" and ".join(noisy)}, and choices '
                   f'of hyperparameters on the {data}'}
  if plan.noisy_accuracy is not None:
    instead[_PLACES] = _PLACES.replace('gradients', 'gradients and right answers', 1)
  if plan.arithmetic == 'integer':
    instead[_FLOATS] = (
        'rounding of the distribution of the noise of releases_beside, which is float64'
        if not all(isinstance(event, accounting.DistanceDpEvent)
                   for event in plan.releases) else '')
  # A line that becomes '' is left out.
  return [each for each in (instead.get(line, line) for line in NOT_COVERED) if each]


def make_run_card(model: PrivateModel, *, rows_of_one: int | None = None
                  ) -> dict[str, Any]:
  """Returns the run card of a `PrivateModel`, ready for JSON.

  Without a guarantee, its 'epsilon' is None and 'reason' says why.

  Args:
    model: The model; the card accounts for all that it released so far.
    rows_of_one: As for `PrivacyPlan.guarantee`; adds the epsilon of so many rows.

  Raises:
    ValueError: if `model` is another one, or `rows_of_one` is below one.
  """
  if not hasattr(model, 'privacy_summary'):
    raise ValueError('Expected a PrivateModel, as privatize(model, plan) returns it, '
                     f'got {type(model).__name__}, of which no run card can be made.')
  if rows_of_one is not None:
    _checks.integer('rows_of_one', rows_of_one, 1)
  ledger = model.ledger()
  guarantee, reason = ledger.guarantee()
  card = _facts(model, ledger)
  if guarantee is None:
    return {**card, 'epsilon': None, 'reason': reason}
  if model.canaries is not None and model.canaries.steps:
    audit = model.audit(families=False)
    card['audit'] = {**audit.as_dict(), 'canaries': model.canaries.count,
                     'steps': model.canaries.steps, 'words': str(audit).splitlines()}
  card.update(cost(guarantee, ledger.guarantees()))
  if rows_of_one is not None:
    found, reason = ledger.guarantee(None, rows_of_one)
    card['rows_of_one'] = {'rows': int(rows_of_one), **(
        {'epsilon': None, 'reason': reason} if found is None else _cost(found))}
  return card


def cost(guarantee: Guarantee, others: Mapping[str, Guarantee]) -> dict[str, Any]:
  """Returns the entries on a guarantee, and on those of `others` by relation."""
  return {'delta': guarantee.delta, 'proven': guarantee.proven,
          'seeded': guarantee.seeded,
          'epsilon': {side: getattr(guarantee, side)
                      for side in ('lower', 'estimate', 'upper')},
          'neighboring_relation': guarantee.neighboring_relation,
          'by_relation': {label: _cost(other) for label, other in others.items()},
          'accountant': guarantee.accountant, 'statement': guarantee.statement}


def _facts(model: PrivateModel, ledger: Ledger) -> dict[str, Any]:
  """Returns the entries of the card other than the privacy cost."""
  plan, strategy = model.plan, model.plan.strategy
  return {
      'privacy_unit': relations.in_units(
          'one example of the training set', plan.unit),
      'num_examples': plan.num_examples,
      'sampling_prob': plan.sampling_prob,
      'expected_batch_size': plan.expected_batch_size,
      'sampling': ledger.sampling_name,
      'released_steps': ledger.steps,
      'epochs_begun': ledger.epochs,
      'l2_norm_clip': plan.l2_norm_clip,
      'clipping': model.clipping,
      'augmentation_multiplicity': model.augmentation_multiplicity,
      'adaptive_clipping': (None if plan.adaptive_clipping is None else
                            dataclasses.asdict(plan.adaptive_clipping)),
      'noisy_accuracy': (None if plan.noisy_accuracy is None else
                         dataclasses.asdict(plan.noisy_accuracy)),
      'correlation': None if strategy is None else {
          'kind': strategy.kind, 'bands': strategy.bands, 'digest': strategy.digest},
      'target_epsilon': plan.target_epsilon,
      'noise': plan.noise.name,
      'noise_multiplier': plan.noise.noise_multiplier,
      'table_digest': plan.noise.digest,
      'releases_beside': [repr(event) for event in plan.releases],
      'mode': plan.arithmetic,
      'sums': _sums(plan) + (
          _BEFORE.format('rounded sums') if model._ledger.counter.loaded else ''),
      'randomness': _randomness(model),
      'layers': model.privacy_summary().splitlines(),
      'not_covered': [*not_covered(plan), *_rounding(model), *_preparation(model)],
      'tensorflow': tf.__version__,
      'replicas': replicas.number(model.distribute_strategy),
      'workers': replicas.workers(model.distribute_strategy),
      'split_noise': model.split_noise,
      'local_steps': model.local_steps,
      'local_learning_rate': model.local_learning_rate,
  }


def _sums(plan: PrivacyPlan) -> str:
  """Returns the statement on sums of gradients under a plan."""
  if plan.arithmetic == 'float':
    return SUMS
  return WHOLE_SUMS if plan.groups == 1 else WHOLE_SUMS.replace(
      'sums rounded', 'sums multiplied by the matrix of the correlation and rounded', 1)


def _cost(guarantee: Guarantee) -> dict[str, Any]:
  """Returns the bounds on epsilon and the statement of a further guarantee."""
  return {name: getattr(guarantee, name) for name in ('upper', 'lower', 'statement')}


def _rounding(model: PrivateModel) -> list[str]:
  """Returns [a line on rounding beyond the clipping margin], or []."""
  excess = model._step.excess
  return [
      'rounding of sums beyond the margin below the clipping norm '
      '(docs/soundness_numbers.md): '
      f'{relations.in_units("one example", model.plan.unit)} may change a '
      f'sum by up to {_format.upper(excess, 2)} clipping norms more than epsilon counts'
  ] if excess else []


def _preparation(model: PrivateModel) -> list[str]:
  """Returns [a line on layers whose values of `adapt` no release covers], or []."""
  covered = {event.digest for event in model.plan.releases
             if isinstance(event, accounting.AdaptedDpEvent)}
  found: dict[str, str] = {}  # TextVectorization comes before the lookup inside it.
  for layer in models.flat_layers(model.inner):
    found.setdefault(models.preparation(layer), layer.name)
  names = [name for digest, name in found.items() if digest and digest not in covered]
  return [f'what the layers {", ".join(names)} hold of data (vocabularies, bins, means '
          'and variances): public, or queries outside of the guarantee unless '
          'adapted by tfcactus.keras.adapt'] if names else []


def _randomness(model: PrivateModel) -> str:
  """Returns where the randomness of noise and batches came from, in words."""
  seeded = Seeded.of(model.seeded, model.seeded_batches)
  if seeded:
    return (f'SEEDED ({seeded.words()}): an experiment that can be '
            'repeated, not a private release')
  words = 'AES-256 in counter mode, keyed by the operating system'
  if model.randomness == 'device':
    words += ('; noise from ChaCha20 (RFC 8439) on the device, under keys that this '
              'stream makes, one for each step')
  return words + (_BEFORE.format('drew noise') if model._ledger.counter.loaded else '')


def check_path(path: PathLike) -> None:
  """Raises ValueError unless the path names a file in a folder that exists."""
  path = _checks.path('run_card', path)
  folder = os.path.dirname(os.path.abspath(path))
  if not os.path.isdir(folder):
    raise ValueError(
        f'Expected run_card in a folder that exists, got {path!r}; make the '
        f'folder before training: os.makedirs({folder!r}).')
  if os.path.isdir(path) or not os.path.basename(path):
    raise ValueError(
        f'Expected run_card to be the path of a file, got the folder {path!r}; add a '
        'name, such as card.json.')


def write(model: PrivateModel, path: PathLike, *, rows_of_one: int | None = None
          ) -> None:
  """Writes the run card of a model as JSON, atomically; as `make_run_card`.

  Beside it, writes a picture of an audit, if there is one and matplotlib is installed.
  """
  path = os.fspath(path)
  with open(f'{path}.part', 'w', encoding='utf-8') as file:
    json.dump(make_run_card(model, rows_of_one=rows_of_one), file, indent=2)
    file.write('\n')
  os.replace(f'{path}.part', path)
  if model.canaries is not None and importlib.util.find_spec('matplotlib'):
    with contextlib.suppress(ValueError):  # No guarantee, or no step.
      model.audit(families=False).picture(f'{path}.audit.png')
