"""Stops `fit` before epsilon passes the target of a callback or of the plan."""

from __future__ import annotations

from typing import Any
import warnings

from tfcactus import _format
from tfcactus.keras.compat import training as compat
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.ledger.ledger import HoldsLedger, TrainingLedger

_GO_ON = (
    'To go on, privatize(model.inner, dataclasses.replace(model.plan, '
    'target_epsilon=..., steps=...)) with a larger target, or None for no limit.')


class Limit(keras.callbacks.Callback):
  """Callback that stops one call of `fit` before epsilon passes a target.

  Without a target it warns once if training passes the steps of the plan.
  """

  _supports_tf_logs = True

  def __init__(self, training: TrainingLedger, target: float | None = None):
    """Initialises the callback.

    `target` is the largest allowed upper bound on epsilon. None takes the plan's
    target, which is dropped with a warning if the batches have no proven account.
    """
    super().__init__()
    self._training = training
    self._given = target
    self._goal = training.plan.target_epsilon if target is None else target
    self._target: float | None = None  # `_goal`, once it is known that it is kept.
    self._max_steps: int | None = None  # The steps that it allows, if steps count.
    self._epoch = self._released = 0
    self._stopped = self._find_later = False

  def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
    """Finds the number of allowed steps, or leaves that to the first step.

    Raises ValueError if a target allows no step; see `_find`.
    """
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
    if self._max_steps is not None and coming.steps > self._max_steps:
      raise ValueError(
          f'Expected a plan of more than {self._max_steps} steps with target_epsilon='
          f'{target}, got one whose steps were all released; stop here, or go on by '
          'privatize(model.inner, plan) of a plan that differs in steps alone, such as '
          'dataclasses.replace(plan, steps=...).')

  def _beyond(self, done: int) -> int:
    """Returns how many steps the next execution makes, if it passes the target, else 0.

    `done` steps of the current epoch were made before.
    """
    if self._max_steps is None:
      return 0
    coming = self._next(done)
    return coming if self._training.released_steps + coming > self._max_steps else 0

  def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
    """Remembers the number of the epoch, by which `_stop` sees whether more follow."""
    self._epoch = epoch

  def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None
                          ) -> None:
    """Raises ValueError before an execution (steps run together) beyond the target."""
    if self._find_later and self._next(batch) > 1:
      raise ValueError(
          f'Expected a built model with target_epsilon={self._goal} of the plan where '
          'an execution takes several steps, so that the steps that it allows are '
          'known before the first, got one that never saw an input; call '
          'build(input_shape), or compile(steps_per_execution=1).')
    coming = self._beyond(batch)
    if coming:
      raise ValueError(
          f'Expected training to stop after {self._max_steps} steps, when the '
          f'budget target_epsilon={self._target} is spent, got {coming} more after '
          f'{self._training.released_steps}; something reset model.stop_training, or '
          'an execution takes several steps: compile(steps_per_execution=1).')

  def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None
                        ) -> None:
    """Stops training after the last execution that the target allows.

    If `on_train_begin` could not find how many steps the target allows, as for a
    drop-in optimizer of an unbuilt model, finds it after the first step.
    """
    if self._find_later:
      self._find(ahead=0)
    if self._beyond(batch + 1):
      self._stop(within_epoch=batch + 1 < (self.params.get('steps') or 0))

  def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
    """Stops training if the next epoch or its first execution would pass the target.

    Without a target, warns if the epoch passed the plan's steps.
    """
    if self._target is None:
      self._warn_beyond()
    elif self._beyond(0) or (
        self._training.ledger().counts_epochs and self._ends(self._target)):
      self._stop(within_epoch=False)

  def _ends(self, target: float) -> bool:
    """Returns whether a step of another epoch, where epochs count, passes `target`."""
    guarantee, _ = self._training.ledger(ahead=1).guarantee()
    return guarantee is None or guarantee.upper > target

  def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
    """Warns if the plan's target or steps ended training."""
    plan = self._training.plan
    if self._stopped and self._given is None:
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
    """Returns the steps of the next execution, after `done` steps of an epoch."""
    # After the last step of an epoch, the next execution begins another epoch.
    steps = self.params.get('steps')
    return compat.next_steps(self.model, steps and (steps - done or steps))

  def _stop(self, within_epoch: bool) -> None:
    """Stops training if `fit` has steps left, `within_epoch` in the current epoch."""
    if within_epoch or self._epoch + 1 < self.params['epochs']:
      self._stopped = self.model.stop_training = True
