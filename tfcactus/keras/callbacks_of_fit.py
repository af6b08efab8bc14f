"""Callbacks that `fit` of a private model adds by itself.

`Limit` stops `fit` at a target epsilon, `StopAtSlotEnd` at the end of an account's
slot; `NoisyAccuracyLog` logs a plan's noisy accuracy.
"""

from __future__ import annotations

import math
from typing import Any
import warnings

import tensorflow as tf

from tfcactus import _format, guarantee as guarantee_lib, sampling, step_counts
from tfcactus.keras.compat import training as compat
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.ledger.counts import Trusted
from tfcactus.keras.ledger.ledger import HoldsLedger, TrainingLedger
from tfcactus.keras.ledger.model_ledger import ModelLedger
from tfcactus.keras.ledger.paid_steps import PaidSteps
from tfcactus.keras.step.clip_norm import ClipNorm

NOISY_ACCURACY = 'noisy_accuracy'
"""Key of the noisy accuracy in the logs."""

_RELEASED = ('epsilon', 'delta', 'clip_norm', NOISY_ACCURACY, 'val_private_')
"""Prefixes of the names of logs that are computed from what was released."""

_GO_ON = (
    'To go on, privatize(model.inner, dataclasses.replace(model.plan, '
    'target_epsilon=..., steps=...)) with a larger target, or None for no limit.')


class Limit(keras.callbacks.Callback):
  """Callback that stops one call of `fit` before epsilon passes a target.

  Without a target it warns once if training passes the steps of the plan.
  """

  _supports_tf_logs = True

  def __init__(self, training: TrainingLedger, target: float | None = None):
    """Initialises the callback for a `target`, an upper bound on epsilon.

    None takes the plan's target: dropped, with a warning, without a proven account.
    """
    super().__init__()
    self._training = training
    self._given = target
    self._goal = training.plan.target_epsilon if target is None else target
    self._target: float | None = None  # `_goal`, once an account is known to keep it.
    self._max_steps: int | None = None  # Steps that `_target` allows, if steps count.
    self._epoch = self._released = 0
    self._stopped = self._find_later = False

  def on_train_begin(self, logs: Any = None) -> None:
    """Finds the number of allowed steps, or leaves that to the first step."""
    if self._goal is not None and compat.steps_per_execution(self.model) is None:
      raise ValueError(
          f'Expected compile(steps_per_execution=1) with target_epsilon={self._goal}, '
          "so that training can stop in time, got 'auto'.")
    self._stopped, self._target, self._max_steps = False, None, None
    self._released = self._training.released_steps
    # A drop-in optimizer's account needs the weights, which the first step makes.
    self._find_later = self._goal is not None and self._given is None and not (
        self.model.built or isinstance(self.model, HoldsLedger))
    if not self._find_later:
      self._find(ahead=1)
    elif self._goal is not None and (
        first := self._training.plan.guarantee(1).upper) > self._goal:
      raise ValueError(
          f'Expected target_epsilon={self._goal} of the plan to allow a step, got a '
          f'plan whose first step costs {_format.upper(first)}; plan more noise, or a '
          'larger target.')

  def _find(self, ahead: int) -> None:
    """Finds how many steps the target, if any, allows.

    Raises ValueError if it does not allow `ahead` more than were released. Only warns
    if the target is the plan's and the batches have no proven guarantee.
    """
    self._find_later, target = False, self._goal
    if target is None:
      return
    coming = self._training.ledger(ahead)
    guarantee, reason = coming.guarantee()
    if guarantee is None or not guarantee.proven:
      reason = guarantee.statement if guarantee else reason
      if self._given is not None:
        raise ValueError(
            'Expected batches with a proven guarantee for target_epsilon='
            f'{target}, which cannot be kept otherwise. {reason}')
      warnings.warn(f'Nothing keeps target_epsilon={target} of the plan in this fit. '
                    f'{reason}', stacklevel=2)
      return
    self._target, self._max_steps = target, coming.steps_within(target)
    if guarantee.upper > target:
      remedy = f'. {_GO_ON}' if self._given is None else (
          '; raise the budget or stop here.')
      raise ValueError(
          f'Expected target_epsilon={target} to allow a step more, but '
          f'{coming.steps - ahead} were released and '
          f'{"the next would bring" if ahead else "brought"} epsilon '
          f'to {_format.upper(guarantee.upper)}{remedy}')
    # The target allows more, but the plan does not: `steps_within` gives no more steps
    # than the plan has.
    if self._max_steps is not None and coming.steps > self._max_steps:
      raise ValueError(
          f'Expected a plan of more than {self._max_steps} steps with target_epsilon='
          f'{target}, got one whose steps were all released; stop here, or go on by '
          'privatize(model.inner, plan) of a plan that differs in steps alone, such as '
          'dataclasses.replace(plan, steps=...).')

  def _steps_beyond(self, done: int) -> int:
    """Returns how many steps the next execution makes, if it passes the target, else 0.

    `done` steps of the current epoch were made before.
    """
    if self._max_steps is None:
      return 0
    coming = self._next(done)
    return coming if self._training.released_steps + coming > self._max_steps else 0

  def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
    """Remembers the epoch's number, for `_stop`; ValueError if `fit` did not stop."""
    if self._stopped:
      raise ValueError(
          f'Expected training to stop before epoch {epoch + 1}, which would pass '
          f'target_epsilon={self._target}, got it: something reset '
          'model.stop_training.')
    self._epoch = epoch

  def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
    """Raises ValueError before an execution (steps run together) beyond the target."""
    if self._find_later and self._next(batch) > 1:
      raise ValueError(
          f'Expected a built model with target_epsilon={self._goal} of the plan where '
          'an execution takes several steps, so that the steps that it allows are '
          'known before the first, got one that never saw an input; call '
          'build(input_shape), or compile(steps_per_execution=1).')
    coming = self._steps_beyond(batch)
    if coming:
      raise ValueError(
          f'Expected training to stop after {self._max_steps} steps, when the '
          f'budget target_epsilon={self._target} is spent, got {coming} more after '
          f'{self._training.released_steps}; something reset model.stop_training, or '
          'an execution takes several steps: compile(steps_per_execution=1).')

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    """Stops training after the last execution that the target allows."""
    if self._find_later:  # After the first step of a drop-in optimizer.
      self._find(ahead=0)
    if self._steps_beyond(batch + 1):
      self._stop(within_epoch=batch + 1 < (self.params.get('steps') or 0))

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    """Stops training if the next epoch or its first execution would pass the target.

    Without a target, warns after the epoch that passes the plan's steps.
    """
    if self._target is not None:
      passes = self._steps_beyond(0) > 0
      # Where epochs count as a whole, `_max_steps` is None: ask for the next epoch.
      if not passes and self._training.ledger().counts_epochs:
        guarantee, _ = self._training.ledger(ahead=1).guarantee()
        passes = guarantee is None or guarantee.upper > self._target
      if passes:
        self._stop(within_epoch=False)
      return
    before, planned = self._released, self._training.plan.steps
    self._released = self._training.released_steps
    if before <= planned < self._released:
      warnings.warn(
          f'Released {self._released} steps, beyond steps={planned} of the plan: '
          'epsilon is above what plan.guarantee() says. EpsilonCallback shows it; a '
          'target_epsilon of the plan ends fit in time.', stacklevel=2)

  def on_train_end(self, logs: Any = None) -> None:
    """Warns if the plan's target or steps ended training."""
    plan = self._training.plan
    if self._stopped and self._given is None:
      guarantee, _ = self._training.ledger().guarantee()
      warnings.warn(
          f'Stopped fit after {self._training.released_steps} steps in all, at '
          f'{guarantee}: more would pass target_epsilon={plan.target_epsilon} or '
          f'steps={plan.steps} of the plan. {_GO_ON}', stacklevel=2)

  def _next(self, done: int) -> int:
    """Returns the steps of the next execution, after `done` steps of an epoch."""
    left = self.params.get('steps')
    if left and done != left:  # Else the next execution begins another epoch.
      left -= done
    return compat.next_steps(self.model, left)

  def _stop(self, within_epoch: bool) -> None:
    """Stops training if `fit` has steps left, `within_epoch` in the current epoch."""
    if within_epoch or self._epoch + 1 < self.params['epochs']:
      self._stopped = self.model.stop_training = True


class NoisyAccuracyLog(keras.callbacks.Callback):
  """Callback that logs the noisy accuracy of each epoch.

  `logs` get `noisy_accuracy`: the sum of the epoch's noisy counts of right answers,
  each less half of the answers, over the expected number of examples drawn (at most
  all, in passes that use each example once), plus 1/2. `noisy_accuracy_error` bounds
  its standard error: the noise, and the chance of which examples are drawn. Both are
  computed from what the steps released, and from public numbers.
  """

  writes_logs = True
  """Tells `fit` of a `PrivateModel` to run this callback before readers of logs."""

  def __init__(self, norm: ClipNorm, ledger: ModelLedger):
    """Initialises the callback of a model whose plan has a `NoisyAccuracy`."""
    super().__init__()
    self._norm = norm
    self._ledger = ledger

  def on_train_begin(self, logs: Any = None) -> None:
    """Tells `PrivateEarlyStopping` that the log is a release."""
    self._ledger.counter.private_logs |= {
        NOISY_ACCURACY: self._ledger.plan.noisy_accuracy}

  def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
    """Remembers the counts of earlier steps."""
    self._before = tf.convert_to_tensor(self._norm.answers).numpy()

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    """Logs accuracy and error, if the epoch released a step."""
    logs = {} if logs is None else logs
    plan = self._ledger.plan
    total, steps = tf.convert_to_tensor(self._norm.answers).numpy() - self._before
    if not steps:
      return
    drawn, noise = steps * plan.expected_batch_size, step_counts.stddevs(plan)
    scheme = sampling.of_code(self._ledger.counter.coming()[0])
    if scheme is not None and scheme.draws_epochs:  # An epoch draws each once.
      drawn = min(drawn, plan.num_examples)
    logs[NOISY_ACCURACY] = float(total / drawn + 0.5)
    # Of n examples, each drawn with probability q, the count has variance n q / 4 at
    # most. Draws of fixed size, and those without repetition, vary less.
    logs[f'{NOISY_ACCURACY}_error'] = math.sqrt(
        steps * noise['count_stddev']**2 + drawn / 4) / drawn


class StopAtSlotEnd(keras.callbacks.Callback):
  """Stops `fit` where the slot of an account has no step, or epoch, left."""

  _supports_tf_logs = True  # Keras then leaves the logs, not read here, as they are.

  def __init__(self, paid: PaidSteps):
    """Initialises the callback for a `fit` that takes its steps from `paid`."""
    super().__init__()
    self._paid = paid

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    """Stops within an epoch if the slot has no step left."""
    steps = self.params.get('steps')
    last = steps and batch + 1 >= steps  # `on_epoch_end` follows.
    self._stop(self._paid.stops(after_step=True) and not last)

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    """Stops before a further epoch if the slot is used up."""
    self._stop(self._paid.stops(after_step=False) and epoch + 1 < self.params['epochs'])

  def _stop(self, now: bool) -> None:
    """Stops training with a warning if `now`."""
    if now and not self.model.stop_training:
      warnings.warn(
          f'Stopped fit: the slot {self._paid.label!r} of the account is used up.',
          stacklevel=2)
      self.model.stop_training = True


def in_order(given: list[Any], ledger: ModelLedger, norm: ClipNorm,
             paid: PaidSteps | None) -> list[Any]:
  """Returns the callbacks of a `fit` in the order to run: first those that write logs.

  Adds those of this file that the plan, or the account of `paid`, needs. A `given`
  callback with a target_epsilon replaces `Limit`. Warns of callbacks that act by logs
  without noise; guarantees then say that these are not covered.
  """
  if _warn_of_monitors(given, bool(guarantee_lib.validations(ledger.plan.releases))):
    ledger.record.trust(Trusted.LOGS)
  log = [] if ledger.plan.noisy_accuracy is None else [NoisyAccuracyLog(norm, ledger)]
  stops = [] if paid is None else [StopAtSlotEnd(paid)]
  if all(getattr(each, 'target_epsilon', None) is None for each in given):
    stops = [Limit(ledger), *stops]
  return [*sorted([*log, *given], key=lambda each: not getattr(
      each, 'writes_logs', False)), *stops]


def _warn_of_monitors(given: list[Any], held_out: bool) -> bool:
  """Warns of callbacks that monitor logs without noise; returns whether there are any.

  `held_out` tells whether logs of validation data (val_) are of private examples too.
  """
  covered = _RELEASED if held_out else (*_RELEASED, 'val_')
  found = sorted(f'{type(each).__name__} by {each.monitor!r}' for each in given if (
      isinstance(getattr(each, 'monitor', None), str) and
      getattr(each, 'save_best_only', True) and not each.monitor.startswith(covered)))
  if found:
    warnings.warn(
        f'Expected callbacks that act by logs with noise, got {", ".join(found)}, a '
        'log of private examples without noise: learning rates, the end of training '
        'and the choice of weights then tell of single examples, which epsilon does '
        'not cover. Monitor noisy_accuracy of the plan or a log of PrivateValidation, '
        'or leave the callback out.', stacklevel=4)
  return bool(found)
