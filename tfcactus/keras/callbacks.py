"""Callbacks that log epsilon during `fit`, and stop it before epsilon passes a target.

`Limit` stops training at the `target_epsilon` of `EpsilonCallback`, or at the limit of
the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
import sys
from typing import Any
import warnings

import dp_accounting

from tfcactus import _checks, _format, relations
from tfcactus.guarantee import Guarantee
from tfcactus.keras import run_card as run_card_lib
from tfcactus.keras.compat import optimizers, training
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.data.sampled_batches import SampledBatches
from tfcactus.keras.distribution import replicas
from tfcactus.keras.ledger.ledger import HoldsLedger, Ledger, TrainingLedger
from tfcactus.noise.table_file import PathLike
from tfcactus.plan import PrivacyPlan

_GO_ON = (
    'To go on, privatize(model.inner, dataclasses.replace(model.plan, '
    'target_epsilon=..., steps=...)) with a larger target, or None for no limit.')


class EpsilonCallback(keras.callbacks.Callback):
  """Callback that logs the epsilon spent, and stops training before a budget is passed.

  After each epoch `logs` hold `epsilon` (the upper bound) and `delta`, and `clip_norm`
  if the plan has `adaptive_clipping`. The progress bar, the history, CSVLogger and
  TensorBoard show them: `fit` of a `PrivateModel` runs this callback first; for a
  drop-in optimizer, put it first in the list. The key is `epsilon_unproven` if the
  account is not proven, and `epsilon_seeded` if noise or batches came from a seed,
  whose knowledge undoes the protection.

  The account covers all steps released in this and in earlier calls of `fit`. If no
  guarantee is known, the callback logs nothing and warns with the reason.

  A drop-in optimizer in a plain Keras model does not show how batches are chosen: pass
  the `PoissonBatches` or `FixedSizeBatches` of `fit` as `batches`. The account relies
  on your word that `fit` gets these batches, and that steps recorded in a loaded file
  used such batches too. It covers the steps of all drop-in optimizers of the model.

  Attributes:
    target_epsilon: The budget given, or None.
    guarantee: The `Guarantee` after the last epoch, or None.
    reason: The reason in words if there is no guarantee, or ''.
  """

  writes_logs = True
  """Tells `fit` of a `PrivateModel` to run this callback before readers of logs."""
  guarantee: Guarantee | None

  def __init__(self, plan: PrivacyPlan | None = None, *,
               batches: SampledBatches | None = None,
               target_epsilon: float | None = None, verbose: int = 0,
               run_card: PathLike | None = None, every: int | None = None,
               also: Sequence[str] = ()):
    """Initialises the callback.

    Args:
      plan: The `PrivacyPlan`; by default that of the model or the optimizer. If either
        has a plan, another is refused.
      batches: For a drop-in optimizer, the batches given to `fit`.
      target_epsilon: Training stops after the last step at which the upper bound of
        epsilon is no larger, and at the latest after the plan's steps. Replaces the
        plan's target in this `fit`; None keeps that target.
      verbose: 1 to print the statement of the guarantee after each epoch.
      run_card: Path of a JSON file, rewritten after each epoch, that records the
        training and its cost; `PrivateModel` only, see `make_run_card`.
      every: Also logs epsilon after every so many batches.
      also: Names of further neighbouring relations, logged after each epoch: 'replace',
        which protects attributes, as `epsilon_replace`, and 'zero-out' as
        `epsilon_zero_out`.

    Raises:
      ValueError: if an argument is invalid.
    """
    super().__init__()
    if plan is not None and not hasattr(plan, 'guarantee'):
      raise ValueError(f'Expected plan to be a PrivacyPlan, got {plan!r}.')
    if batches is not None and (not isinstance(batches, SampledBatches) or
                                batches.scheme.draws_epochs):
      raise ValueError(
          'Expected batches to be PoissonBatches or FixedSizeBatches, each of '
          f'which is a draw of its own, got {batches!r}.')
    self._given_plan = plan
    self._batches = batches
    self.target_epsilon = (None if target_epsilon is None else
                           _checks.positive('target_epsilon', target_epsilon))
    self._verbose = verbose
    self._run_card = run_card
    self._also = {name: relations.check(name) for name in also}
    self._every = None if every is None else _checks.integer('every', every, 1)
    self._limit = keras.callbacks.Callback()  # Stops nothing.
    self._warned = False
    self.guarantee = None
    self.reason = 'No step was released yet.'

  def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
    """Finds the plan and the number of steps that the budget allows.

    Raises ValueError if training is not private, the plan is not the one trained by, or
    the budget cannot be kept or is spent.
    """
    self._limit = keras.callbacks.Callback()
    self._training = _open_ledger(self.model, self._given_plan, self._batches)
    if self._run_card is not None and self._training.no_run_card:
      raise ValueError(self._training.no_run_card)
    if self.target_epsilon is not None:
      _check_steps_per_execution(self.model)
    elif isinstance(self.model, HoldsLedger):
      return  # Its own fit keeps the target of the plan.
    self._limit = Limit(self._training, self.target_epsilon)
    self._limit.set_model(self.model)
    self._limit.set_params(self.params)
    self._limit.on_train_begin(logs)

  def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
    """Passes the call on to the limit, if there is one."""
    self._limit.on_epoch_begin(epoch, logs)

  def on_train_batch_begin(self, batch: int,
                           logs: dict[str, Any] | None = None) -> None:
    """Raises ValueError before a step beyond the budget."""
    self._limit.on_train_batch_begin(batch, logs)

  def on_train_batch_end(self, batch: int,
                         logs: dict[str, Any] | None = None) -> None:
    """Stops after the last step within the budget; logs epsilon if `every` is set."""
    self._limit.on_train_batch_end(batch, logs)
    if self._every is not None and (batch + 1) % self._every == 0:
      self.guarantee, self.reason = self._training.ledger().guarantee()
      if self.guarantee is not None and logs is not None:
        self._log(self.guarantee, logs)

  def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None
                  ) -> None:
    """Logs the epsilon spent so far and writes the run card."""
    ledger = self._training.ledger()
    self.guarantee, self.reason = ledger.guarantee()
    if self.guarantee is None:
      self._warn(self.reason)
    else:
      self._report(ledger, self.guarantee, {} if logs is None else logs)
    if self._run_card is not None and (
        replicas.worker(self.model.distribute_strategy) == 0):
      run_card_lib.write(self.model, self._run_card)
    self._limit.on_epoch_end(epoch, logs)

  def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
    """Warns if the target of the plan ended training."""
    self._limit.on_train_end(logs)

  def _log(self, guarantee: Guarantee, logs: dict[str, Any]) -> None:
    """Writes epsilon, delta, and the clip norm if it adapts, into the logs."""
    logs[_log_name(guarantee)] = guarantee.upper
    logs['delta'] = guarantee.delta
    if self._training.clip_norm is not None:
      logs['clip_norm'] = self._training.clip_norm

  def _report(self, ledger: Ledger, guarantee: Guarantee, logs: dict[str, Any]
             ) -> None:
    """Logs epsilon for all requested relations, and prints it if verbose."""
    self._log(guarantee, logs)
    if not guarantee.proven:
      self._warn(guarantee.statement)
    for name, relation in self._also.items():
      self._report_beside(ledger, name, relation, logs)
    if self._verbose:
      sys.stdout.write(f'\n{guarantee}. {guarantee.statement}\n')

  def _report_beside(self, ledger: Ledger, name: str,
                     relation: dp_accounting.NeighboringRelation,
                     logs: dict[str, Any]) -> None:
    """Logs epsilon for a further neighbouring relation."""
    other, reason = ledger.guarantee(relation)
    if other is None:
      self._warn(reason)
      return
    logs[f"{_log_name(other)}_{name.replace('-', '_')}"] = other.upper
    if self._verbose:
      sys.stdout.write(f'\n{other}. {other.statement}\n')

  def _warn(self, text: str) -> None:
    """Warns, unless this callback has warned before."""
    if not self._warned:
      warnings.warn(text, stacklevel=2)
    self._warned = True


def _open_ledger(model: keras.Model, plan: PrivacyPlan | None,
                 batches: SampledBatches | None) -> TrainingLedger:
  """Returns the ledger of this training; ValueError if training is not private."""
  for holder in (model, optimizers.unwrapped(model.optimizer)):
    if isinstance(holder, HoldsLedger):
      return holder.training_ledger(model, plan, batches)
  raise ValueError(
      'Expected a PrivateModel or an optimizer of tfcactus.keras, got '
      f'{type(model.optimizer).__name__}: this training is not private by '
      'tfcactus, and no epsilon can be reported.')


def _log_name(guarantee: Guarantee) -> str:
  """Returns the key of epsilon in logs, which marks unproven and seeded numbers."""
  if not guarantee.proven:
    return 'epsilon_unproven'
  return 'epsilon_seeded' if guarantee.seeded else 'epsilon'


def _check_steps_per_execution(model: keras.Model) -> None:
  """Raises ValueError if an execution takes several steps, or 'auto'."""
  steps = training.steps_per_execution(model)
  if steps != 1:
    raise ValueError(
        'Expected compile(steps_per_execution=1) with target_epsilon, so that '
        f'training can stop after any step, got {steps or "auto"}.')


class Limit(keras.callbacks.Callback):
  """Callback that stops one call of `fit` before epsilon passes a target.

  Without a target it warns once if training passes the steps of the plan.
  """

  _supports_tf_logs = True

  def __init__(self, training: TrainingLedger, target: float | None = None):
    """Initialises the callback.

    `target` bounds the upper bound of epsilon. None takes the plan's target, which is
    dropped with a warning if the batches have no proven account.
    """
    super().__init__()
    self._training = training
    self._given = target
    self._budget: _Budget | None = None
    self._epoch = self._released = 0
    self._cut = self._late = False

  def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
    """Finds the number of steps that the target allows; ValueError if none."""
    del logs
    self._cut, self._budget = False, None
    self._released = self._training.released_steps
    # A drop-in optimizer's account needs the weights, which the first step makes.
    self._late = self._given is None and not (
        self.model.built or isinstance(self.model, HoldsLedger))
    if not self._late:
      self._find()

  def _find(self) -> None:
    """Finds the number of steps that the target allows; ValueError if none."""
    self._late, target = False, self._training.plan.target_epsilon
    if self._given is not None:
      self._budget = _Budget(self._training, self._given)
    elif target is not None:
      guarantee, reason = self._training.ledger(ahead=1).guarantee()
      if guarantee is None or not guarantee.proven:
        warnings.warn(
            f'Nothing keeps target_epsilon={target} of the plan in this fit. '
            f'{reason or guarantee and guarantee.statement}', stacklevel=2)
      else:
        self._budget = _Budget(self._training, target, f'. {_GO_ON}')

  def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
    del logs
    self._epoch = epoch

  def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None
                          ) -> None:
    """Raises ValueError before an execution that would pass the target."""
    del logs
    if self._budget is not None:
      self._budget.check(self._next(batch))

  def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None
                        ) -> None:
    """Stops training after the last execution that the target allows."""
    del logs
    if self._late and self._training.released_steps < self._training.plan.steps:
      self._find()
    if self._budget is not None and self._budget.spent(self._next(batch + 1)):
      self._stop(batch + 1 < (self.params.get('steps') or 0))

  def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
    """Stops training if the next epoch or its next execution would pass the target."""
    del epoch, logs
    if self._budget is None:
      self._warn_beyond()
    elif self._budget.ends_with_epoch(self._training.ledger()) or (
        self._budget.spent(self._next(0))):
      self._stop(False)

  def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
    """Warns if the plan's target or steps ended training."""
    del logs
    plan = self._training.plan
    if self._cut and self._given is None:
      guarantee, _ = self._training.ledger().guarantee()
      warnings.warn(
          f'Stopped fit after {self._training.released_steps} steps in all, at '
          f'{guarantee}: more would pass target_epsilon={plan.target_epsilon} or '
          f'steps={plan.steps} of the plan. {_GO_ON}', stacklevel=2)

  def _warn_beyond(self) -> None:
    """Warns after the epoch in which training passes the steps of the plan."""
    before, planned = self._released, self._training.plan.steps
    self._released = self._training.released_steps
    if before <= planned < self._released:
      warnings.warn(
          f'Released {self._released} steps, beyond steps={planned} of the plan: '
          'epsilon is above what plan.guarantee() says. EpsilonCallback shows it; a '
          'target_epsilon of the plan ends fit in time.', stacklevel=2)

  def _next(self, done: int) -> int:
    """Returns the length of the next execution in steps, `done` steps into an epoch."""
    steps = self.params.get('steps')
    return training.next_steps(self.model, steps and (steps - done or steps))

  def _stop(self, within_epoch: bool) -> None:
    """Stops training if `fit` was asked for more steps."""
    if within_epoch or self._epoch + 1 < self.params['epochs']:
      self._cut = self.model.stop_training = True


class _Budget:
  """An upper limit on epsilon for one call of `fit`."""

  def __init__(self, training: TrainingLedger, target: float,
               remedy: str = '; raise the budget or stop here.'):
    """Finds the steps that `target` allows, at least one; `remedy` ends the error."""
    self._training = training
    self._target = target
    ahead = training.ledger(ahead=1)
    self._max_steps = ahead.steps_within(target)
    guarantee, reason = ahead.guarantee()
    if guarantee is None:
      raise ValueError(
          f'Expected batches with a known account for target_epsilon={target}, '
          f'which cannot be kept otherwise. {reason}')
    if not guarantee.proven:
      raise ValueError(
          f'Expected a proven guarantee for target_epsilon={target}, got: '
          f'{guarantee.statement}')
    if guarantee.upper > target:
      raise ValueError(
          f'Expected target_epsilon={target} to allow a step more, but '
          f'{ahead.steps - 1} were released and the next would bring epsilon '
          f'to {_format.upper(guarantee.upper)}{remedy}')
    if self.spent():
      raise ValueError(
          f'Expected a plan of more than {self._max_steps} steps with target_epsilon='
          f'{target}, got one whose steps were all released; stop here, or go on by '
          'privatize(model.inner, plan) of a plan that differs in steps alone, such as '
          'dataclasses.replace(plan, steps=...).')

  def spent(self, coming: int = 1) -> bool:
    """Returns whether `coming` further steps would exceed the allowed number."""
    return (self._max_steps is not None and
            self._training.released_steps + coming > self._max_steps)

  def check(self, coming: int) -> None:
    """Raises ValueError if `coming` further steps would exceed the allowed number."""
    if self.spent(coming):
      raise ValueError(
          f'Expected training to stop after {self._max_steps} steps, when the '
          f'budget target_epsilon={self._target} is spent, got {coming} more after '
          f'{self._training.released_steps}; something reset model.stop_training, or '
          'an execution takes several steps: compile(steps_per_execution=1).')

  def ends_with_epoch(self, ledger: Ledger) -> bool:
    """Returns whether epochs are counted and the next one would pass the target."""
    if not ledger.counts_epochs:
      return False
    guarantee, _ = self._training.ledger(ahead=1).guarantee()
    return guarantee is None or guarantee.upper > self._target
