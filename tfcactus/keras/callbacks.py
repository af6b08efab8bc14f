"""Epsilon in the logs of `fit`, and a budget that stops training in time."""

from __future__ import annotations

import math
import sys
from typing import Any
from typing import Optional
from typing import Sequence
import warnings

import tensorflow as tf

from tfcactus import _checks
from tfcactus import _format
from tfcactus import relations
from tfcactus.keras import model as model_lib
from tfcactus.keras import run_card as run_card_lib
from tfcactus.keras.batches import DrawnBatches
from tfcactus.keras.checks import layers
from tfcactus.keras.checks import state_writes
from tfcactus.keras.compat import optimizers
from tfcactus.keras.compat import training
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.drop_in import example_gradients
from tfcactus.keras.drop_in import optimizer as optimizer_lib
from tfcactus.keras.drop_in import trace_check
from tfcactus.keras.ledger import lineage
from tfcactus.sampling import schemes
from tfcactus.sampling.schemes import Sampling
from tfcactus.sampling.schemes import Seeded


class EpsilonCallback(keras.callbacks.Callback):
  """Reports what was spent, and stops before a budget would be passed.

  After each epoch `logs` hold `epsilon` (the upper bound) and `delta`, and
  `clip_norm` where the plan has `adaptive_clipping`. The
  progress bar and the history show them; put this callback before CSVLogger
  and TensorBoard in the list, so that they see them too. Under an account that
  is not proven the key is `epsilon_unproven`; where noise or batches came from
  a seed, whose knowledge undoes the protection, it is `epsilon_seeded`.

  Steps are counted by what was released, in this and in earlier calls of
  `fit`. Where no guarantee is known, nothing is logged and a warning says why.

  With a drop-in optimizer in a plain Keras model nothing shows how batches are
  chosen: pass the `PoissonBatches` or `FixedSizeBatches` that `fit` is given as
  `batches`. It is your word that they are the same, and that steps of which a
  loaded file tells took such batches too. Steps are those of all drop-in
  optimizers that the model was trained by.

  Attributes:
    guarantee: The `Guarantee` after the last epoch, or None.
    reason: Why there is none, in words, or ''.
  """

  def __init__(self, plan: Any = None, *,
               batches: Optional[DrawnBatches] = None,
               target_epsilon: Optional[float] = None, verbose: int = 0,
               run_card: Any = None, every: Optional[int] = None,
               also: Sequence[str] = ()):
    """Initialises the callback.

    Args:
      plan: The `PrivacyPlan`; by default that of the model or the optimizer,
        and if they have one, no other.
      batches: For a drop-in optimizer, what `fit` is given.
      target_epsilon: Training stops after the last step at which the upper
        bound of epsilon is no larger (and at the latest after the steps that
        the plan accounts for).
      verbose: 1 to print the statement of the guarantee after each epoch.
      run_card: Path of a JSON file, written anew after each epoch, that says
        what ran and what it cost; for a `PrivateModel`, see `make_run_card`.
      every: Puts epsilon into the logs of batches too, after each so many.
      also: Names of neighbouring relations whose epsilon is shown beside, after
        each epoch, as `epsilon_replace` for 'replace', the one that protects
        attributes, and `epsilon_zero_out` for 'zero-out'.

    Raises:
      ValueError: if an argument is invalid.
    """
    super().__init__()
    if plan is not None and not hasattr(plan, 'guarantee'):
      raise ValueError(f'Expected plan to be a PrivacyPlan, got {plan!r}.')
    if batches is not None and not isinstance(batches, DrawnBatches):
      raise ValueError(
          'Expected batches to be PoissonBatches or FixedSizeBatches, got '
          f'{batches!r}.')
    self._given_plan = plan
    self._batches = batches
    self._target = (None if target_epsilon is None else
                    _checks.positive('target_epsilon', target_epsilon))
    self._verbose = verbose
    self._run_card = run_card
    self._also = {name: relations.check(name) for name in also}
    self._every = None if every is None else _checks.integer('every', every, 1)
    self._plan = None
    self._optimizer = None
    self._random: Optional[bool] = None
    self._max_steps = None
    self._warned = False
    self._checked = False
    self.guarantee = None
    self.reason = 'No step was released yet.'

  def on_train_begin(self, logs: Any = None) -> None:
    """Finds the plan and the number of steps the budget allows.

    Raises:
      ValueError: if training is not private at all, if the plan is not the one
        trained by, or if the budget cannot be kept or is spent.
    """
    del logs
    self._plan = self._find_plan()
    self._optimizer = self.model.optimizer
    self._random = None
    self._max_steps = None
    self._checked = False
    if self._run_card is not None and not self._is_private_model():
      raise ValueError(
          'Expected a PrivateModel with run_card, got a drop-in optimizer, '
          'which does not know its batches; use tfcactus.keras.privatize.')
    if self._target is None:
      return
    _check_steps_per_execution(self.model)
    ahead = self._ledger(ahead=True)
    self._max_steps = ahead.steps_within(self._plan, self._target)
    self._check_budget(ahead)

  def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
    """Refuses a step beyond the budget."""
    del batch, logs
    if self._spent():
      raise ValueError(
          f'Expected training to stop after {self._max_steps} steps, when the '
          f'budget target_epsilon={self._target} was spent, got one step more; '
          'something reset model.stop_training.')

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    """Stops training after the last step that the budget allows."""
    if self._spent():
      self.model.stop_training = True
    if self._every is not None and (batch + 1) % self._every == 0:
      self.guarantee, self.reason = self._ledger().guarantee(self._plan)
      if self.guarantee is not None and logs is not None:
        self._log(logs)

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    """Logs what was spent so far."""
    del epoch
    ledger = self._ledger()
    self.guarantee, self.reason = ledger.guarantee(self._plan)
    if self.guarantee is None:
      self._warn(self.reason)
    else:
      self._report(logs if logs is not None else {})
    if self._run_card is not None:
      run_card_lib.write(self.model, self._run_card)
    if (self._target is not None and
        ledger.sampling == Sampling.EACH_EXAMPLE_ONCE and
        not self._within(self._ledger(ahead=True))):
      self.model.stop_training = True

  def _log(self, logs: dict) -> None:
    """Puts what was spent, and the clip norm if it moves, into the logs."""
    logs[_log_name(self.guarantee)] = self.guarantee.upper
    logs['delta'] = self.guarantee.delta
    if hasattr(self.model, 'clip_norm'):
      logs['clip_norm'] = float(tf.convert_to_tensor(self.model.clip_norm))

  def _report(self, logs: dict) -> None:
    guarantee = self.guarantee
    self._log(logs)
    if not guarantee.proven:
      self._warn(guarantee.statement)
    for name, relation in self._also.items():
      self._report_beside(name, relation, logs)
    if self._verbose:
      sys.stdout.write(f'\n{guarantee}. {guarantee.statement}\n')

  def _report_beside(self, name: str, relation: Any, logs: dict) -> None:
    """Shows the epsilon of another neighbouring relation."""
    other, reason = self._ledger().guarantee(self._plan, relation)
    if other is None:
      self._warn(reason)
      return
    logs[f"{_log_name(other)}_{name.replace('-', '_')}"] = other.upper
    if self._verbose:
      sys.stdout.write(f'\n{other}. {other.statement}\n')

  def _warn(self, text: str) -> None:
    if not self._warned:
      warnings.warn(text, stacklevel=2)
    self._warned = True

  def _is_private_model(self) -> bool:
    return isinstance(self.model, model_lib.PrivateModel)

  def _find_plan(self) -> Any:
    """The plan that is trained by; refuses training that is not private."""
    source = self.model if self._is_private_model() else self.model.optimizer
    if isinstance(optimizers.unwrapped(source), optimizer_lib.DPOptimizer) and (
        not isinstance(source, optimizer_lib.DPOptimizer)):
      example_gradients.refuse_scaling(f'it inside a {type(source).__name__}')
    if not isinstance(
        source, (model_lib.PrivateModel, optimizer_lib.DPOptimizer)):
      raise ValueError(
          'Expected a PrivateModel or an optimizer of tfcactus.keras, got '
          f'{type(source).__name__}: this training is not private by tfcactus, '
          'and no epsilon can be reported.')
    plan = self._given_plan or source.plan
    if plan is None:
      raise ValueError(
          'Expected plan with an optimizer that was not made from one, got '
          'None; use EpsilonCallback(plan, batches=...).')
    trained = (source.plan if self._is_private_model() else source)
    _same('l2_norm_clip', plan.l2_norm_clip, trained.l2_norm_clip)
    _same('noise', plan.noise.digest, trained.noise.digest)
    if source.plan is not None:
      for name in _PLAN_FIELDS:
        _same(name, getattr(plan, name, None),
              getattr(source.plan, name, None))
    if not self._is_private_model() and self.model.built:
      self._check_vector(plan)
    return plan

  def _check_vector(self, plan: Any) -> None:
    plan.check_vector(sum(
        math.prod(v.shape) for v in self.model.trainable_variables))

  def _released(self) -> int:
    if self._is_private_model():
      return self.model.releases
    return lineage.drop_in_steps(self._optimizer, self.model).steps

  def _ledger(self, ahead: bool = False) -> schemes.Ledger:
    """What was released so far, or will be after one more step or epoch."""
    if self._is_private_model():
      return self.model.next_ledger() if ahead else self.model.ledger()
    if self.model.optimizer is not self._optimizer:
      return schemes.Ledger(Sampling.UNKNOWN, 1, note=_SWAPPED)
    found = lineage.drop_in_steps(self._optimizer, self.model)
    steps = found.steps + ahead
    problem = found.problem or self._drop_in_problem(found.steps)
    if problem:
      return schemes.Ledger(Sampling.UNKNOWN, steps, note=problem)
    if self._random is None and self.model.built:
      self._random = state_writes.draws_at_random(self.model)
    seeded = found.seeded | (
        Seeded.BATCHES if self._batches.seeded else Seeded.NOTHING)
    return schemes.Ledger(
        self._batches.sampling, steps, seeded=seeded,
        condition=_WORD + trace_check.ASSUMED + (
            _DRAWN if self._random else ''))

  def _drop_in_problem(self, steps: int) -> str:
    """Why no epsilon is known for the steps of drop-in optimizers, or ''."""
    if self._batches is None:
      return _NO_BATCHES
    self._batches.check_plan(self._plan)
    try:
      layers.check_model(self.model)
      if self.model.built:
        self._check_vector(self._plan)
        if not self._checked:  # Once for each trace that `fit` makes.
          trace_check.check_per_example(self.model, self._batches)
          self._checked = True
    except ValueError as error:
      return f'No epsilon: {error}'
    if self._optimizer.parts_per_step > 1:
      return _ACCUMULATED
    if not self._optimizer.sound:
      return _UNSOUND
    if steps - self._optimizer.loaded_steps > self._batches.draws:
      return _FEW_DRAWS
    return ''

  def _check_budget(self, ahead: schemes.Ledger) -> None:
    """Refuses to start what cannot keep the budget."""
    guarantee, reason = ahead.guarantee(self._plan)
    if guarantee is None:
      raise ValueError(
          f'Expected batches with a known account for target_epsilon='
          f'{self._target}, which cannot be kept otherwise. {reason}')
    if not guarantee.proven:
      raise ValueError(
          f'Expected a proven guarantee for target_epsilon={self._target}, '
          f'got: {guarantee.statement}')
    if guarantee.upper > self._target or self._spent():
      raise ValueError(
          f'Expected target_epsilon={self._target} to allow a step more, but '
          f'{ahead.steps - 1} were released and the next would bring epsilon '
          f'to {_format.upper(guarantee.upper)}; raise the budget or stop here.')

  def _within(self, ledger: schemes.Ledger) -> bool:
    guarantee, _ = ledger.guarantee(self._plan)
    return guarantee is not None and guarantee.upper <= self._target

  def _spent(self) -> bool:
    return (self._max_steps is not None and
            self._released() >= self._max_steps)


def _log_name(guarantee: Any) -> str:
  """What a number is called in logs, which hold no words beside it."""
  if not guarantee.proven:
    return 'epsilon_unproven'
  return 'epsilon_seeded' if guarantee.seeded else 'epsilon'


def _same(name: str, planned: Any, trained: Any) -> None:
  if planned != trained:
    raise ValueError(
        f'Expected the plan that is trained by, with {name}={trained!r}, got a '
        f'plan with {name}={planned!r}.')


def _check_steps_per_execution(model: keras.Model) -> None:
  steps = training.steps_per_execution(model)
  if steps != 1:
    raise ValueError(
        'Expected compile(steps_per_execution=1) with target_epsilon, so that '
        f'training can stop after any step, got {steps or "auto"}.')


_PLAN_FIELDS = ('num_examples', 'sampling_prob', 'steps', 'delta', 'dim',
                'accounting', 'adaptive_clipping', 'releases')

_WORD = (
    'It is the word of who trained, and not seen, that every step took a batch '
    'of those named, and that nothing but steps changed the weights.')

_DRAWN = (
    ' It holds against those who do not know what the model drew (Dropout and '
    'the like), by a generator of Keras whose seed is not seen here.')

_SWAPPED = (
    'No epsilon: the optimizer of the model is not the one that fit began '
    'with, so that steps may have been taken without privacy. Train a fresh '
    'model, and compile it before fit alone.')

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

_FEW_DRAWS = (
    'No epsilon: more steps were released than the given batches drew '
    'samples, so that training took other batches too.')
