"""Records, per variable, which trainers released updates from it.

A trainer counts releases: the `Record` of a private model, or a drop-in optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable
import hashlib
import json
from typing import Any

import dp_accounting
import tensorflow as tf

from tfcactus.accounting import event_configs
from tfcactus.keras.compat import models, training
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.ledger.counts import Record
from tfcactus.plan import PrivacyPlan

_ATTRIBUTE = '_tfcactus_trainers'
"""Attribute of a variable that holds the list of its trainers."""


def remember(variables: Iterable[tf.Variable], trainer: Any) -> None:
  """Records on each variable that `trainer` counts releases from it.

  Variables hold this, and not the model, which is easily wrapped in another one. Copies
  of the values alone (get_weights, a weights file of the wrapped model) lose it.
  """
  for variable in variables:
    seen = trainers([variable])
    if not any(other is trainer for other in seen):
      setattr(variable, _ATTRIBUTE, seen + [trainer])


def trainers(variables: Iterable[tf.Variable]) -> list[Any]:
  """Returns all distinct trainers that count releases from any of the variables."""
  found: dict[int, Any] = {}
  for variable in variables:
    found.update((id(each), each) for each in getattr(variable, _ATTRIBUTE, ()))
  return list(found.values())


def plan_number(plan: PrivacyPlan) -> int:
  """Returns a positive int64, a hash of the fields that set what steps cost.

  A plan of another number may not take over the steps: its epsilon could be too small.
  """
  correlation = () if plan.strategy is None else (plan.strategy.digest,)
  unit = () if plan.unit == 'example' else (plan.unit,)
  whole = () if plan.arithmetic == 'float' else (plan.arithmetic, plan.dim)
  # Where all planned steps count, no plan of fewer may take over the steps.
  counted = () if not plan.counts_planned else (
      plan.noisy_accuracy, plan.steps, plan.target_epsilon, plan.delta)
  text = repr((plan.noise.digest, plan.sampling_prob, plan.num_examples,
               plan.l2_norm_clip, plan.adaptive_clipping, *correlation, *unit, *whole,
               *counted, *sorted(map(_event_text, plan.releases))))
  return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], 'big') + 1


def _event_text(event: dp_accounting.DpEvent) -> str:
  """Returns text that tells an event from others, the same after saving and loading."""
  try:
    return json.dumps(event_configs.event_config(event), sort_keys=True)
  except (TypeError, ValueError):  # The event cannot be saved, so nothing is loaded.
    return repr(event)


def problem(record: Record, model: keras.Model, plan: PrivacyPlan) -> str:
  """Returns why the record gives no epsilon, or ''. Call `merge_counts` before."""
  if record.ended:
    return record.ended
  number = training.number(record.counters['plan_number'])
  if record.released_steps and number != plan_number(plan):
    return _OTHER_PLAN
  if any(other is not record and other.released_steps
         for other in trainers(models.weights(model) if model.built else ())):
    return _OTHER_TRAINER
  return '' if record.knows(model) else _CHANGED


def find_record(model: keras.Model, plan: PrivacyPlan) -> Record:
  """Returns the model's record, or a new one; ValueError if others released steps."""
  record = None
  known = trainers(models.weights(model) if model.built else ())
  optimizer = getattr(model, 'optimizer', None)
  # The variables of a loaded model do not remember their drop-in optimizer.
  if hasattr(optimizer, 'released_steps'):
    known.append(optimizer)
  for trainer in known:
    if not trainer.released_steps:
      continue
    if (record is not None or not isinstance(trainer, Record) or
        training.number(trainer.counters['plan_number']) != plan_number(plan)):
      raise ValueError(
          'Expected a model that was not trained privately by another plan, private '
          f'model or drop-in optimizer, got {model.name!r}, from which '
          f'{trainer.released_steps} steps were released already, and one epsilon for '
          'all of them is not known. '
          'Go on with the model and plan that it was trained by; or start from a '
          'copy, keras.models.clone_model and set_weights, and add its epsilon '
          'and delta to those of the first training.')
    record = trainer
  return record or Record(plan_number(plan), plan.counts_planned)


_OTHER_PLAN = (
    'No epsilon: steps were released under a plan with another noise, clip '
    'norm, sampling_prob, num_examples, correlation, unit, arithmetic, noisy_accuracy '
    'or releases than this one, or, where all planned steps count, with other steps, '
    'target_epsilon or delta. Build the model with the plan that it was trained by, or '
    'train a fresh one. (If no private model of this process had the weights that '
    'set_weights got, they may be averages, and copies that are in memory count: set '
    'public weights before privatize.)')

_OTHER_TRAINER = (
    'No epsilon: steps were released from the same variables by another '
    'optimizer or private model, and one epsilon for all of them is not known. '
    'Train a fresh model, by one of them.')

_CHANGED = (
    'No epsilon: the weights changed outside of the steps of fit, or moments and '
    'averages in the optimizer did, or a vocabulary or bins of a layer, as by a '
    'callback, by adapt, or by training the wrapped model, so that they may come from '
    'private examples. Train a fresh model, and change weights by methods of the '
    'private model alone (set_weights, load_weights).')
