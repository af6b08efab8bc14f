"""Base class of all drop-in optimizers, under Keras 2 and Keras 3."""

from __future__ import annotations

from collections.abc import Sequence
import functools
from typing import Any, Callable

import tensorflow as tf

from tfcactus import _checks, noise as noise_lib
from tfcactus._checks import Fixed
from tfcactus.keras import serialization
from tfcactus.keras.checks import example_losses
from tfcactus.keras.compat import models, optimizers, precision, training
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.distribution import replicas
from tfcactus.keras.drop_in import (
  clipped_sums,
  ledger as drop_in_ledger,
  operation_gradients,
)
from tfcactus.keras.drop_in.state import Batching, State
from tfcactus.keras.ledger import ledger as ledger_lib, lineage
from tfcactus.keras.noise.noise_addition import NoiseSampler
from tfcactus.plan import PrivacyPlan


class DPOptimizer(Fixed, optimizers.Optimizer):
  """Base class of optimizers that clip, sum and add noise; Keras calls `keras_hooks`.

  For the arguments see `DPKerasSGDOptimizer`.

  Attributes:
    plan: The `PrivacyPlan` from which the optimizer was made, or None.
    noise: The noise, in units of the clipping norm.
    l2_norm_clip: The bound on the norm of each per-example gradient.
    expected_batch_size: Divisor of the noisy sum; None if the divisor is the number of
      microbatches, or the size that all batches have, times `parts_per_step`.
    num_microbatches: Number of microbatches per batch; None for one per example.
    parts_per_step: Batches per update, given as gradient_accumulation_steps.
    counted_plans: Numbers of the plans by which ledgers counted its updates.
  """

  counted_plans: frozenset[int] = frozenset()
  _FIXED = dict.fromkeys(
      ('plan', 'noise', 'l2_norm_clip', 'expected_batch_size', 'num_microbatches',
       'parts_per_step', 'loaded_steps', 'released_steps'),
      'Make another optimizer; what both release of one model is added up '
      'where one account covers it.')

  plan: PrivacyPlan | None

  @classmethod
  def from_plan(cls, plan: PrivacyPlan, *, seed: int | None = None,
                **kwargs: Any) -> DPOptimizer:
    """Returns an optimizer with the noise, clipping norm and batch size of a plan.

    Args:
      plan: A `PrivacyPlan`.
      seed: Makes noise repeatable, for experiments; None takes the system's entropy.
      **kwargs: For the base optimizer, such as learning_rate.

    Raises:
      ValueError: if only `privatize` can train by the plan.
    """
    _checks.plan(plan)
    return cls(plan.l2_norm_clip, noise=plan.noise, plan=plan, seed=seed,
               expected_batch_size=plan.expected_batch_size, **kwargs)

  def __init__(self, l2_norm_clip: float,
               noise_multiplier: float | None = None,
               num_microbatches: int | None = None,
               gradient_accumulation_steps: int = 1, *,
               expected_batch_size: float | None = None,
               noise: noise_lib.Noise | None = None,
               seed: int | None = None, plan: PrivacyPlan | None = None,
               **kwargs: Any):
    """Initialises; arguments and errors are those of `DPKerasSGDOptimizer`."""
    parts = _checks.integer(
        'gradient_accumulation_steps', gradient_accumulation_steps, 1)
    batching = Batching(expected_batch_size, num_microbatches, parts)
    _check_factor(kwargs.get('loss_scale_factor'))
    if 'audit' in kwargs:
      raise ValueError(
          'Expected no audit= with a drop-in optimizer, which sees losses of batches '
          'that others drew: its canaries would be drawn and clipped apart, and their '
          'audit would say nothing of the draws and the clipping of the examples. Use '
          'tfcactus.keras.privatize(model, plan, audit=...), or '
          'hide canaries among the examples and pass their scores to '
          'tfcactus.audit.audit_scores.')
    optimizers.check_optimizer_arguments(kwargs)
    super().__init__(**kwargs)
    self.plan = None if plan is None else _checks.plan(plan)
    self.noise = _one_noise(noise, noise_multiplier, plan)
    # Under the name gradient_accumulation_steps, Keras would average without noise.
    self.parts_per_step = parts
    self.expected_batch_size = batching.expected
    self.num_microbatches = batching.microbatches
    self._sampler = NoiseSampler(self.noise, seed=seed)
    self.l2_norm_clip = _one_clip(l2_norm_clip, plan)
    self._private = State(batching)

  @property
  def seeded(self) -> bool:
    """True if a seed made the noise of at least one step; see `NoiseSampler`."""
    return self._sampler.seeded or self._private.seeded

  @property
  def loaded_steps(self) -> int:
    """Number of released steps that were loaded from a config."""
    return self._private.loaded_steps

  @property
  def released_steps(self) -> int:
    """Number of noisy updates made, at least Keras' `iterations`; never decreases."""
    released = self._private.released
    released.assign(tf.maximum(tf.convert_to_tensor(released),
                               tf.convert_to_tensor(self.iterations)))
    return training.number(released)

  def training_ledger(self, model: keras.Model, plan: PrivacyPlan | None,
                      batches: Any) -> ledger_lib.TrainingLedger:
    """Returns the `DropInLedger` of a `fit`; `plan` None stands for the optimizer's.

    Raises ValueError if the model has another optimizer, if neither plan is given, if
    `check_same_plan` raises it, or if the plan's noise does not protect the model.
    """
    if model.optimizer is not self:
      _refuse_scaling(f'it inside a {type(model.optimizer).__name__}')
    plan = plan or self.plan
    if plan is None:
      raise ValueError(
          'Expected plan with an optimizer that was not made from one, got '
          'None; use EpsilonCallback(plan, batches=...).')
    ledger_lib.check_same_plan(
        plan, self.plan, self.l2_norm_clip, self.noise.digest)
    return drop_in_ledger.DropInLedger(self, model, plan, batches)

  def _count_step(self, variables: Sequence[tf.Variable]) -> None:
    """Counts an update of `variables` before it is made."""
    lineage.remember(variables, self)
    self._private.count(self.iterations)

  def _remember_loaded(self, variables: Sequence[tf.Variable]) -> None:
    """Has variables remember this optimizer if steps were loaded with it."""
    if self.loaded_steps:  # `compile` may give the model another optimizer.
      lineage.remember(variables, self)

  @property
  def sound(self) -> bool:
    """True if all gradients were finite. False voids the guarantee."""
    return bool(tf.convert_to_tensor(self._private.sound))

  @property
  def grouped(self) -> bool:
    """True if at least one microbatch held more than one example."""
    return bool(tf.convert_to_tensor(self._private.batching.grouped))

  def _compute_gradients(self, loss: Any, var_list: Sequence[tf.Variable],
                         grad_loss: Any = None,
                         tape: tf.GradientTape | None = None
                        ) -> list[tuple[tf.Tensor, tf.Variable]]:
    """Returns (noisy average, or clipped sum to accumulate; variable) per variable."""
    del grad_loss
    if not callable(loss) and tape is None:
      raise ValueError(
          'Expected tape with a loss that is a tensor, got None; use '
          'minimize(loss, var_list, tape=tape) or pass a callable.')
    self._check_replicas()
    self._check_unscaled()
    tape = tape if tape is not None else tf.GradientTape()
    with tape:
      if callable(loss):
        if not callable(var_list):
          tape.watch([models.tf_variable(v) for v in var_list])
        loss = loss()
      losses = self._private.batching.split(example_losses.mean_per_example(loss))
      var_list = var_list() if callable(var_list) else var_list
    var_list = tf.nest.flatten(var_list)
    sums, finite = operation_gradients.clipped_sums(
        losses, var_list, self._clip(), lambda: clipped_sums.by_tape(
            losses.of_microbatches, var_list, tape, self._clip()), tape)
    self._private.note_finite(finite)
    self._private.here.ready = True
    return list(zip(self._prepared(sums, var_list), var_list))

  def _clip(self) -> tf.Tensor:
    """Returns the clipping norm as a float64 scalar."""
    return tf.constant(self.l2_norm_clip, tf.float64)

  def _prepared(self, sums: list[tf.Tensor], var_list: Sequence[tf.Variable]
               ) -> list[tf.Tensor]:
    """Returns noisy averages of clipped sums, or the sums if they accumulate."""
    return sums if self.parts_per_step > 1 else self._averages(sums, var_list)

  def _averages(self, sums: list[tf.Tensor], var_list: Sequence[tf.Variable]
               ) -> list[tf.Tensor]:
    """Returns noisy averages of float64 `sums`, in the variables' dtypes."""
    dim = sum(part.shape.num_elements() or 0 for part in sums)
    if self.plan is None:
      self.noise.check_dim(dim)
    else:
      self.plan.check_vector(dim)
    shares = sums
    if replicas.is_first():  # One replica adds the noise for all.
      # In float64 too: were the noisy share rounded to float32, the total could show
      # finer bits of the shares without noise.
      shares = self._sampler.add_to(sums, self._clip())
    totals = replicas.summed(shares, sums, functools.partial(
        precision.rounded_to_grid, scale=self._sampler.grid_scale(self._clip())))
    return [tf.cast(self._private.batching.divided(total), var.dtype)
            for total, var in zip(totals, var_list)]

  def _check_replicas(self) -> None:
    """Raises ValueError for a strategy that options or `check_devices` do not allow."""
    replicas.check_devices()
    if replicas.number() > 1 and (
        self.expected_batch_size is None or self.parts_per_step > 1):
      raise ValueError(
          'Expected expected_batch_size, and gradient_accumulation_steps=1, with '
          f'num_replicas_in_sync={replicas.number()}, each of which sees a share of a '
          f'batch, got expected_batch_size={self.expected_batch_size!r} and '
          f'gradient_accumulation_steps={self.parts_per_step!r}; pass the expected '
          'size of whole batches as expected_batch_size (without num_microbatches), '
          'or use tfcactus.keras.privatize.')

  def _check_unscaled(self) -> None:
    """Raises ValueError if Keras or the optimizer is known to scale losses."""
    policy = keras.mixed_precision.global_policy().name
    if policy == 'mixed_float16':
      _refuse_scaling(f'the policy {policy!r}')
    if optimizers.is_wrapped(self):
      _refuse_scaling('it inside a LossScaleOptimizer')
    _check_factor(getattr(self, 'loss_scale_factor', None))

  def _check_ready(self) -> None:
    """Raises ValueError unless gradients were made since any were last applied."""
    if not self._private.here.ready:
      self._check_unscaled()
      raise ValueError(
          'Expected gradients from minimize() of this optimizer, got others: '
          'gradients of a tape are neither clipped nor noisy. Call '
          'minimize(loss_per_example, variables, tape=tape), or use '
          'compile() and fit(). If you do, something scales the loss: '
          + _UNSCALED)
    self._private.here.ready = False  # Each gradient is applied once.

  def _apply_when_complete(self, gradients: Sequence[tf.Tensor],
                           var_list: Sequence[tf.Variable],
                           apply: Callable[[list[tf.Tensor]], object]) -> Any:
    """Calls `apply` on noisy averages once `gradients` complete a logical batch.

    `gradients`, from `_prepared`, are of one batch. Returns what `apply` returns;
    with accumulation, a bool tensor: whether `apply` ran.
    """
    if self.parts_per_step == 1:
      self._count_step(var_list)
      return apply(list(gradients))
    totals = self._private.add(gradients, var_list)

    def update() -> tf.Tensor:
      """Updates the variables by the totals with noise; clears the totals."""
      self._count_step(var_list)
      averages = self._averages(totals, var_list)
      with tf.control_dependencies(averages):
        self._private.clear()
      apply(averages)
      return tf.constant(True)

    complete = tf.equal(self._private.parts_seen % self.parts_per_step, 0)
    return tf.cond(complete, update, lambda: tf.constant(False))

  def get_gradients(self, loss: Any, params: Any) -> None:
    """Raises NotImplementedError: Keras no longer calls this method."""
    raise NotImplementedError(
        'Expected minimize(), got get_gradients(), which has no tape to take '
        'gradients per example from.')

  def get_config(self) -> Any:
    """Returns the arguments of `from_config`, with the steps released so far."""
    config = super().get_config()
    config.update({
        'l2_norm_clip': self.l2_norm_clip,
        'noise': noise_lib.to_config(self.noise),
        'plan': serialization.plan_config(self.plan),
        'expected_batch_size': self.expected_batch_size,
        'num_microbatches': self.num_microbatches,
        'gradient_accumulation_steps': self.parts_per_step,
        'seeded': self.seeded,
        'released_steps': self.released_steps,
        'sound': self.sound,
        'grouped': self.grouped,
        'counted_plans': sorted(self.counted_plans),
    })
    return config

  @classmethod
  def from_config(cls, config: Any, custom_objects: Any = None) -> DPOptimizer:
    """Returns an optimizer with fresh randomness, and the counts in the config."""
    config = dict(config)
    released, sound = config.pop('released_steps', 0), config.pop('sound', True)
    grouped, seeded = config.pop('grouped', False), config.pop('seeded', False)
    state, plans = config.pop('state', None), config.pop('counted_plans', ())
    config['plan'] = serialization.plan_from(config.get('plan'))
    if isinstance(config.get('noise'), dict):
      config['noise'] = noise_lib.from_config(config['noise'])
    made = super().from_config(config, custom_objects)
    made._private.seeded = seeded
    made._private.released.assign(released)
    made._private.loaded_steps = released
    made._private.sound.assign(sound)
    made._private.batching.grouped.assign(grouped)
    made._private.saved = state
    made.counted_plans = frozenset(plans)
    return made


def _one_clip(l2_norm_clip: float, plan: PrivacyPlan | None) -> float:
  """Returns the clipping norm, that of the plan if any.

  Raises ValueError if `l2_norm_clip` is invalid, or another than the plan's; or if a
  drop-in optimizer cannot train by the plan.
  """
  if plan is None:
    return _checks.clip_norm(l2_norm_clip)
  if l2_norm_clip not in (None, plan.l2_norm_clip):
    raise ValueError(
        f'Expected l2_norm_clip={plan.l2_norm_clip!r} as in the plan, got '
        f'l2_norm_clip={l2_norm_clip!r}; leave it out.')
  plan.check_drop_in()
  return plan.l2_norm_clip


def _one_noise(noise: noise_lib.Noise | None, noise_multiplier: float | None,
               plan: PrivacyPlan | None) -> noise_lib.Noise:
  """Returns `noise`, or Gaussian noise of `noise_multiplier`.

  Raises ValueError if both or none are given, or if the noise is not the plan's.
  """
  if (noise is None) == (noise_multiplier is None):
    raise ValueError(
        'Expected either noise_multiplier (Gaussian) or noise (a table), got '
        f'noise_multiplier={noise_multiplier!r} and noise={noise!r}.')
  if noise is None:
    multiplier = _checks.real('noise_multiplier', noise_multiplier)
    noise = noise_lib.Gaussian(multiplier) if multiplier else noise_lib.NoNoise()
  if plan is not None and getattr(noise, 'digest', None) != plan.noise.digest:
    raise ValueError(
        f'Expected noise={plan.noise!r} as in the plan, got {noise!r}; use '
        'from_plan(plan).')
  return noise


def _check_factor(factor: float | None) -> None:
  """Raises ValueError if an optimizer is given a loss_scale_factor."""
  if factor is not None:
    raise ValueError(
        f'Expected loss_scale_factor=None, got loss_scale_factor={factor!r}: scaled '
        'gradients would be clipped as if they were larger; leave it out.')


def _refuse_scaling(got: str) -> None:
  """Raises ValueError; `got` names what scales the loss."""
  raise ValueError(
      f'Expected a drop-in optimizer whose loss nothing scales, got {got}: '
      'scaled gradients would be clipped as if they were larger, and then '
      'unscaled. ' + _UNSCALED)


_UNSCALED = (
    'Keras puts a LossScaleOptimizer around the optimizer of a model that was '
    'made under the policy "mixed_float16". Make it under "float32" or '
    '"mixed_bfloat16", or use tfcactus.keras.privatize, which unscales '
    'gradients before it clips them.')
