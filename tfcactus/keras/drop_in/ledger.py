"""The ledger (privacy account) of a model that a drop-in optimizer trains."""

from __future__ import annotations

import math
from typing import Any

from tfcactus import sampling
from tfcactus.keras.checks import refused_models
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.data.base import SampledBatches
from tfcactus.keras.distribution import replicas
from tfcactus.keras.drop_in import trace_check
from tfcactus.keras.ledger import counts, ledger as ledger_lib, lineage
from tfcactus.keras.ledger.counts import Record, Seeded
from tfcactus.plan import PrivacyPlan


class DropInLedger:
  """Ledger of the noisy updates that drop-in optimizers released from a model.

  An optimizer does not see how batches are chosen. The ledger trusts the caller, who
  names the batches, and the guarantee says so. Implements `TrainingLedger`.

  Attributes:
    plan: The `PrivacyPlan`.
    no_run_card: Error message that says why there is no run card.
    clip_norm: None: the clipping norm does not change.
  """

  no_run_card = (
      'Expected a PrivateModel with run_card, got a drop-in optimizer, '
      'which does not know its batches; use tfcactus.keras.privatize.')
  clip_norm = None

  def __init__(self, optimizer: Any, model: keras.Model,
               plan: PrivacyPlan, batches: SampledBatches | None):
    """Opens the ledger of a `fit` by a `DPOptimizer`.

    `batches` are those that the caller says `fit` takes, or None. Raises ValueError if
    they are drawn for a whole epoch, or if the noise does not protect the gradients of
    a built model.
    """
    if batches is not None and batches.scheme.draws_epochs:
      raise ValueError(
          'Expected batches each of which is a draw of its own for a drop-in '
          'optimizer, such as PoissonBatches, got batches that are drawn for a whole '
          f'epoch: {batches!r}. Take privatize(model, plan) for them.')
    self.plan = plan
    self._optimizer = optimizer
    self._model = model
    self._batches = batches
    self._draws: bool | None = None  # Whether the model draws; None until traced.
    # Earlier updates may have been counted by another plan.
    earlier = optimizer.counted_plans if optimizer.released_steps else frozenset()
    optimizer.counted_plans = earlier | {lineage.plan_number(plan)}
    self._make_ledger = ledger_lib.recent_ledgers(plan)
    self._check_vector()

  def _check_vector(self) -> None:
    """Raises ValueError if the noise does not protect gradients of a built model."""
    if self._model.built:
      self.plan.check_vector(sum(
          math.prod(v.shape) for v in self._model.trainable_variables))

  @property
  def released_steps(self) -> int:
    """Number of noisy updates by all drop-in optimizers of the model."""
    return _released(self._optimizer, self._model)[0]

  def ledger(self, ahead: int = 0) -> ledger_lib.Ledger:
    """Returns the ledger of all steps so far and `ahead` more.

    It has a note and no epsilon if batches, optimizer or workers hide the cost. Raises
    ValueError if the batches are not the plan's.
    """
    batches, optimizers = self._batches, list[Any]()
    steps = 1  # For steps that cannot be counted: without steps no note is shown.
    if self._model.optimizer is not self._optimizer:
      problem = _SWAPPED
    elif replicas.workers(self._model.distribute_strategy) > 1:
      problem = _WORKERS
    else:
      made, problem, optimizers = _released(self._optimizer, self._model)
      steps = made + ahead
      if not problem:
        problem = _NO_BATCHES if batches is None else self._problem(
            batches, made, optimizers)
    if problem or batches is None:
      return ledger_lib.Ledger(self.plan, counts.UNKNOWN, steps, note=problem)
    seeded = Seeded.of(any(each.seeded for each in optimizers), batches.seeded)
    return self._make_ledger(batches.scheme.code, steps, seeded=seeded, condition=(
        _ON_TRUST + trace_check.ASSUMED + (_SEEDS_UNSEEN if self._draws else '')))

  def _problem(self, batches: SampledBatches, made: int, optimizers: list[Any]) -> str:
    """Returns why no epsilon is known for `made` updates on these batches, or ''.

    Raises ValueError if the batches are not the plan's.
    """
    batches.check_plan(self.plan)
    if batches.part_of is not None:
      return _WORKERS
    # Without expected_batch_size an optimizer divides by the batch size, which may be
    # secret, or by a number of microbatches.
    if any(each.expected_batch_size is None for each in optimizers) and (
        not isinstance(batches.scheme, sampling.FixedSizeSampling)):
      return _SIZES.format(self.plan.expected_batch_size)
    if any(each.grouped for each in optimizers):
      return _GROUPED
    try:
      with replicas.scope(self._model.distribute_strategy):
        refused_models.check_model(self._model)
        self._check_vector()
        if self._model.built and self._draws is None:  # Once for each call of `fit`.
          self._draws = trace_check.check_per_example(self._model, batches)
    except ValueError as error:
      return f'No epsilon: {error}'
    if any(each.parts_per_step > 1 for each in optimizers):
      return _ACCUMULATED
    if not self._optimizer.sound:
      return _UNSOUND
    if made - sum(each.loaded_steps for each in optimizers) > batches.draws:
      return _FEW_DRAWS
    return ''


def _released(optimizer: Any, model: keras.Model) -> tuple[int, str, list[Any]]:
  """Returns (updates of a model, why no account covers all or '', their optimizers)."""
  earlier: list[Any] = [
      trainer for trainer in lineage.trainers(
          model.trainable_variables if model.built else ())
      if trainer is not optimizer and trainer.released_steps]
  own = optimizer.released_steps
  problem = _OTHER_PLAN.format(own) if own and len(_plans(optimizer)) > 1 else ''
  optimizers = [optimizer]
  for trainer in earlier:  # A `Record` counts steps of a `PrivateModel`.
    if isinstance(trainer, Record) or (
        trainer.noise.digest != optimizer.noise.digest or
        trainer.l2_norm_clip != optimizer.l2_norm_clip or
        len(_plans(trainer) | _plans(optimizer)) > 1):
      problem = problem or _OTHER_PLAN.format(trainer.released_steps)
    elif not trainer.sound:
      problem = problem or _EARLIER_UNSOUND
    else:
      optimizers.append(trainer)
  return own + sum(each.released_steps for each in earlier), problem, optimizers


def _plans(optimizer: Any) -> frozenset[int]:
  """Returns the numbers of the plans by which an optimizer's updates were counted."""
  own = {lineage.plan_number(optimizer.plan)} if optimizer.plan else set()
  return optimizer.counted_plans | own


_OTHER_PLAN = (
    'No epsilon: {} earlier steps were released from this model by another plan, '
    'and one epsilon for all of them is not known. Add the epsilon and delta of '
    'both trainings by hand, or train a fresh model.')

_EARLIER_UNSOUND = (
    'No epsilon: under an earlier optimizer a gradient was not finite, '
    'beyond the sensitivity accounted for. Train a fresh model.')

_ON_TRUST = (
    'Nothing checks the word of who trained that every step took a batch of those '
    'named, and that nothing but steps changed the weights.')

_SEEDS_UNSEEN = (
    ' It holds against those who do not know what the model drew (Dropout and '
    'the like), by a generator of Keras whose seed is not seen here.')

_SWAPPED = (
    'No epsilon: the optimizer of the model is not the one that fit began '
    'with, so that steps may have been taken without privacy. Train a fresh '
    'model, and compile it before fit alone.')

_WORKERS = (
    'No epsilon: with a drop-in optimizer Keras deals the batches of several workers '
    'out by itself, each drawing its own, so that an example can be in a step several '
    'times. Use tfcactus.keras.privatize(model, plan), whose workers draw together.')

_NO_BATCHES = (
    'No epsilon: with a drop-in optimizer the callback cannot see how batches '
    'are chosen, and epsilon depends on it. Train with fit(batches) on '
    'PoissonBatches and pass them: EpsilonCallback(plan, batches=batches); or '
    'use tfcactus.keras.privatize(model, plan).')

_UNSOUND = (
    'No epsilon: a gradient was not finite, and behind a drop-in optimizer '
    'that spoils those of the whole batch, beyond the sensitivity accounted '
    'for. Use tfcactus.keras.privatize(model, plan), which drops that example '
    'alone.')

_ACCUMULATED = (
    'No epsilon: with gradient_accumulation_steps an example can be in several '
    'of the samples that one noisy sum adds up, so that it counts several times '
    'the clip norm. Use tfcactus.keras.privatize(model, plan), which splits one '
    'sample over physical batches.')

_SIZES = (
    'No epsilon: the optimizer divides by the size of its batches, or by their '
    'microbatches, and samples of random size tell by it who was drawn. Make it '
    'with expected_batch_size={:g} and without num_microbatches.')

_GROUPED = (
    'No epsilon: means over microbatches of several examples were clipped. One '
    'example in place of another moves such a mean by up to twice the clip norm; one '
    'more, one less or one drawn in place of another moves those that follow to other '
    'microbatches too, which nothing bounds. Leave out num_microbatches to have each '
    'example clipped.')

_FEW_DRAWS = (
    'No epsilon: more steps were released than the given batches drew '
    'samples, so that training took other batches too.')
