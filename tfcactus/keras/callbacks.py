"""Callbacks for users: `EpsilonCallback` logs epsilon during `fit`.

`PrivateValidation` and `PrivateEarlyStopping` are in validation.py, and the callbacks
that `fit` adds by itself in callbacks_of_fit.py.
"""

from __future__ import annotations

from collections.abc import Sequence
import sys
from typing import Any
import warnings

from tfcactus import _checks, relations
from tfcactus.guarantee import Guarantee
from tfcactus.keras import callbacks_of_fit, run_card as run_card_lib
from tfcactus.keras.compat import optimizers, training
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.data.base import SampledBatches
from tfcactus.keras.distribution import replicas
from tfcactus.keras.ledger.ledger import HoldsLedger, Ledger, TrainingLedger
from tfcactus.noise.table_file import PathLike
from tfcactus.plan import PrivacyPlan


class EpsilonCallback(keras.callbacks.Callback):
  """Callback that logs the epsilon spent, and stops training before a budget is passed.

  After each epoch `logs` hold `epsilon` (the upper bound) and `delta`, and `clip_norm`
  if the plan has `adaptive_clipping`. `fit` of a `PrivateModel` runs this callback
  before those that read logs; for a drop-in optimizer, put it first in the list. The
  key is `epsilon_unproven` if the account is not proven, and `epsilon_seeded` if noise
  or batches came from a seed: whoever knows the seed can undo the protection.

  The account covers all steps released in this and in earlier calls of `fit`. If no
  guarantee is known, the callback logs nothing and warns with the reason.

  A drop-in optimizer in a plain Keras model does not show how batches are chosen: pass
  the `PoissonBatches` or `FixedSizeBatches` of `fit` as `batches`. The account trusts
  you that `fit` gets these batches, and that steps recorded in a loaded file used such
  batches too. It covers the steps of all drop-in optimizers of the model.

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
               also: Sequence[str] = (), rows_of_one: int | None = None):
    """Initialises the callback.

    Args:
      plan: The `PrivacyPlan`; by default that of the model or the optimizer. If either
        has a plan, another is refused.
      batches: For a drop-in optimizer, the batches given to `fit`.
      target_epsilon: Training stops before the upper bound on epsilon exceeds this
        number, and at the latest after the plan's steps. Replaces the plan's target in
        this `fit`; None keeps that target.
      verbose: 1 to print the statement of the guarantee after each epoch.
      run_card: Path of a JSON file, rewritten after each epoch, that records the
        training and its cost; `PrivateModel` only, see `make_run_card`.
      every: Also logs epsilon after every so many batches of an epoch, or after the
        execution (`steps_per_execution`) in which they end.
      also: Names of further neighbouring relations, logged after each epoch: 'replace',
        which protects attributes, is logged as `epsilon_replace`, and 'zero-out' as
        `epsilon_zero_out`.
      rows_of_one: Largest number k of rows of one person. The epsilon of all of them
        together is also logged after each epoch, as `epsilon_k_rows`, and written to
        the run card; see `PrivacyPlan.guarantee`.

    Raises:
      ValueError: if an argument is invalid.
    """
    super().__init__()
    if batches is not None and (not isinstance(batches, SampledBatches) or
                                batches.scheme.draws_epochs):
      raise ValueError(
          'Expected batches to be PoissonBatches or FixedSizeBatches, each of '
          f'which is a draw of its own, got {type(batches).__name__}.')
    self._given_plan = None if plan is None else _checks.plan(plan)
    self._batches = batches
    self.target_epsilon = (None if target_epsilon is None else
                           _checks.positive('target_epsilon', target_epsilon))
    self._verbose = verbose
    self._run_card = run_card
    self._also = [relations.check(each) for each in _checks.items(
        'also', also, 'relations')]
    self._rows_of_one = None if rows_of_one is None else (
        _checks.integer('rows_of_one', rows_of_one, 1))
    self._every = None if every is None else _checks.integer('every', every, 1)
    self._warned = False
    self.guarantee = None
    self.reason = 'No step was released yet.'

  def on_train_begin(self, logs: Any = None) -> None:
    """Finds the plan and the number of steps that the budget allows.

    Raises ValueError if training is not private or has another plan, if a run card
    cannot be made or written, or if the budget cannot be kept or is spent.
    """
    self._limit = keras.callbacks.Callback()  # Stops nothing, until replaced below.
    self._training = _open_ledger(self.model, self._given_plan, self._batches)
    if self._run_card is not None and self._training.no_run_card:
      raise ValueError(self._training.no_run_card)
    self._card = self._run_card if (  # The path, on the chief.
        replicas.worker(self.model.distribute_strategy) == 0) else None
    if self._card is not None:
      run_card_lib.check_path(self._card)
    if self.target_epsilon is not None:
      steps = training.steps_per_execution(self.model)
      if steps != 1:
        raise ValueError(
            'Expected compile(steps_per_execution=1) with target_epsilon, so that '
            f'training can stop after any step, got {steps or "auto"}.')
      if self._training.plan.counts_planned:
        raise ValueError(
            'Expected target_epsilon of the plan with private validation or '
            'noisy_accuracy, under which all steps that the plan allows count however '
            'training ends, got '
            f'EpsilonCallback(target_epsilon={self.target_epsilon}); use '
            'dataclasses.replace(plan, target_epsilon=...).')
    elif isinstance(self.model, HoldsLedger):
      return  # The fit of a PrivateModel keeps the target of the plan itself.
    self._limit = callbacks_of_fit.Limit(self._training, self.target_epsilon)
    self._limit.set_model(self.model)
    self._limit.set_params(self.params)
    self._limit.on_train_begin(logs)

  def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
    """Passes the call on to the limit."""
    self._logged = 0  # How many times `every` batches of the epoch have ended.
    self._limit.on_epoch_begin(epoch, logs)

  def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
    """Raises ValueError before a step beyond the budget."""
    self._limit.on_train_batch_begin(batch, logs)

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    """Stops after the last step of the budget; logs epsilon after `every` batches."""
    self._limit.on_train_batch_end(batch, logs)
    # Keras calls this once for each execution, which may be of several batches.
    if self._every is not None and (batch + 1) // self._every > self._logged:
      self._logged = (batch + 1) // self._every
      self.guarantee, self.reason = self._training.ledger().guarantee()
      if self.guarantee is not None and logs is not None:
        self._log(self.guarantee, logs)

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    """Logs epsilon and writes the run card; stops before an epoch beyond the budget."""
    ledger = self._training.ledger()
    self.guarantee, self.reason = ledger.guarantee()
    if self.guarantee is None:
      self._warn(self.reason)
    else:
      self._report(ledger, self.guarantee, {} if logs is None else logs)
    if self._card is not None:
      run_card_lib.write(self.model, self._card, rows_of_one=self._rows_of_one)
    self._limit.on_epoch_end(epoch, logs)

  def on_train_end(self, logs: Any = None) -> None:
    """Warns if the plan's target or steps ended training."""
    self._limit.on_train_end(logs)

  def _log(self, guarantee: Guarantee, logs: dict[str, Any]) -> None:
    """Writes epsilon, delta, and an adaptive clipping norm into the logs."""
    logs[_log_name(guarantee)] = guarantee.upper
    logs['delta'] = guarantee.delta
    if self._training.clip_norm is not None:
      logs['clip_norm'] = self._training.clip_norm

  def _report(self, ledger: Ledger, guarantee: Guarantee, logs: dict[str, Any]
             ) -> None:
    """Logs all guarantees asked for, and prints them if verbose.

    Warns if one is not proven, or does not exist.
    """
    self._log(guarantee, logs)
    if not guarantee.proven:
      self._warn(guarantee.statement)
    found = [guarantee]
    names = {relation: name for name, relation in relations.NAMES.items()}
    further: list[tuple[str, Any, int]] = [
        (names[relation].replace('-', '_'), relation, 1) for relation in self._also]
    if self._rows_of_one is not None:
      further.append((f'{self._rows_of_one}_rows', None, self._rows_of_one))
    for name, relation, rows in further:
      other, reason = ledger.guarantee(relation, rows)
      if other is None:
        self._warn(reason)
      else:
        logs[f'{_log_name(other)}_{name}'] = other.upper
        found.append(other)
    for each in found if self._verbose else ():
      sys.stdout.write(f'\n{each}. {each.statement}\n')

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
  """Returns the key under which to log epsilon; it marks unproven and seeded ones."""
  if not guarantee.proven:
    return 'epsilon_unproven'
  return 'epsilon_seeded' if guarantee.seeded else 'epsilon'
