"""Optimizers that go where TensorFlow Privacy's DPKeras optimizers go."""

from __future__ import annotations

from typing import Any
from typing import Callable
from typing import List
from typing import Optional
from typing import Sequence
from typing import Type

import tensorflow as tf

from tfcactus import _checks
from tfcactus import noise as noise_lib
from tfcactus.keras import serialization
from tfcactus.keras.compat import versions
from tfcactus.keras.drop_in import example_gradients
from tfcactus.keras.drop_in import ledger as drop_in_ledger
from tfcactus.keras.ledger import ledger as ledger_lib
from tfcactus.keras.ledger import lineage
from tfcactus.keras.noise_addition import NoNoise
from tfcactus.keras.read_only import Fixed
from tfcactus.keras.tfp.query import TableNoiseQuery

_registered = versions.keras.saving.register_keras_serializable('tfcactus')


class DPOptimizer(Fixed):
  """What the private optimizers share; see `DPKerasSGDOptimizer`.

  Attributes:
    plan: The `PrivacyPlan` it was made from, or None.
    noise: The noise, in units of the clip norm.
    l2_norm_clip: The bound on the norm of each example's gradient.
    expected_batch_size: What the noisy sum is divided by.
  """

  _FIXED = dict.fromkeys(
      ('plan', 'noise', 'l2_norm_clip', 'expected_batch_size',
       'parts_per_step'),
      'Make another optimizer; what both release of one model is added up '
      'where one account covers it.')

  plan: Any

  @classmethod
  def from_plan(cls, plan: Any, *, seed: Optional[int] = None,
                **kwargs: Any) -> DPOptimizer:
    """Makes the optimizer with the noise, clip and batch size of a plan.

    Args:
      plan: A `PrivacyPlan`.
      seed: For repeatable experiments; None takes the system's entropy.
      **kwargs: For the base optimizer, such as learning_rate.

    Returns:
      The optimizer.
    """
    return cls(plan.l2_norm_clip, noise=plan.noise, plan=plan, seed=seed,
               expected_batch_size=plan.expected_batch_size, **kwargs)

  def __init__(self, l2_norm_clip: float,
               noise_multiplier: Optional[float] = None,
               num_microbatches: Optional[int] = None,
               gradient_accumulation_steps: int = 1, *,
               expected_batch_size: Optional[float] = None,
               noise: Optional[noise_lib.Noise] = None,
               seed: Optional[int] = None, plan: Any = None, **kwargs: Any):
    _check_batching(expected_batch_size, num_microbatches)
    parts = _checks.integer(
        'gradient_accumulation_steps', gradient_accumulation_steps, 1)
    if kwargs.get('loss_scale_factor') is not None:
      raise ValueError(
          'Expected loss_scale_factor=None, got '
          f'{kwargs["loss_scale_factor"]!r}: scaled gradients would be clipped '
          'as if they were larger; leave it out.')
    versions.check_optimizer_arguments(kwargs)
    super().__init__(**kwargs)
    self.plan = plan
    self.noise = _one_noise(noise, noise_multiplier)
    # Not by Keras' name: its own optimizers average, and know no noise.
    self.parts_per_step = parts
    self.expected_batch_size = float(expected_batch_size)
    self._query = TableNoiseQuery(
        self.noise if plan is None else plan, l2_norm_clip, seed=seed)
    self.l2_norm_clip = self._query.l2_norm_clip
    self._private = example_gradients.State()

  @property
  def seeded(self) -> bool:
    """Whether any noise came from a seed; see `NoiseSampler`."""
    return self._query.seeded or self._private.seeded

  @property
  def loaded_steps(self) -> int:
    """How many of the released steps a file told of."""
    return self._private.loaded_steps

  @property
  def released_steps(self) -> int:
    """How many noisy updates were made; restoring never lowers it."""
    released = self._private.released
    released.assign(tf.maximum(released, self.iterations))
    return int(tf.convert_to_tensor(released))  # It may be mirrored.

  def training_ledger(self, model: versions.keras.Model, plan: Any, batches: Any
                     ) -> ledger_lib.TrainingLedger:
    """As `HoldsLedger`: the ledger of a training that begins.

    Raises:
      ValueError: if something scales the loss, or the plan is not the one
        trained by, or there is none.
    """
    if model.optimizer is not self:
      example_gradients.refuse_scaling(
          f'it inside a {type(model.optimizer).__name__}')
    plan = plan or self.plan
    if plan is None:
      raise ValueError(
          'Expected plan with an optimizer that was not made from one, got '
          'None; use EpsilonCallback(plan, batches=...).')
    ledger_lib.check_same_plan(
        plan, self.plan, self.l2_norm_clip, self.noise.digest)
    return drop_in_ledger.DropInLedger(self, model, plan, batches)

  def _count_step(self, variables: Sequence[Any]) -> None:
    """Counts an update of `variables`, before it is made."""
    lineage.remember(variables, self)
    released = self._private.released
    released.assign(tf.maximum(released, self.iterations) + 1)

  @property
  def sound(self) -> bool:
    """False once any gradient was not finite, which voids the guarantee."""
    return bool(tf.convert_to_tensor(self._private.sound))

  def _compute_gradients(self, loss: Any, var_list: Any, grad_loss: Any = None,
                         tape: Optional[tf.GradientTape] = None) -> List[Any]:
    """Noisy averages of clipped gradients, from a loss per example."""
    del grad_loss
    if not callable(loss) and tape is None:
      raise ValueError(
          'Expected tape with a loss that is a tensor, got None; use '
          'minimize(loss, var_list, tape=tape) or pass a callable.')
    example_gradients.check_replicas()
    example_gradients.check_precision(self)
    tape = tape if tape is not None else tf.GradientTape()
    with tape:
      if callable(loss):
        if not callable(var_list):
          tape.watch([versions.tf_variable(v) for v in var_list])
        loss = loss()
      losses = example_gradients.loss_per_example(loss)
      var_list = var_list() if callable(var_list) else var_list
    var_list = tf.nest.flatten(var_list)
    sums, finite = example_gradients.clipped_sums(losses, var_list, tape, self._clip())
    self._private.own_up(finite)
    self._private.ready = True
    return list(zip(self._prepared(sums), var_list))

  def _clip(self) -> tf.Tensor:
    query = self._query
    return query.derive_sample_params(query.initial_global_state())

  def _prepared(self, sums: List[tf.Tensor]) -> List[tf.Tensor]:
    """Noisy averages; or the sums, where more are to be added first."""
    return sums if self.parts_per_step > 1 else self._averages(sums)

  def _averages(self, sums: List[tf.Tensor]) -> List[tf.Tensor]:
    """Adds the noise, and divides by the expected batch size."""
    state = self._query.initial_global_state()
    noisy = self._query.get_noised_result(sums, state)[0]
    return [part / self.expected_batch_size for part in noisy]

  def _check_ready(self) -> None:
    """Refuses gradients that did not come from here."""
    if not self._private.ready:
      example_gradients.check_precision(self)
      raise ValueError(
          'Expected gradients from minimize() of this optimizer, got others: '
          'gradients of a tape are neither clipped nor noisy. Call '
          'minimize(loss_per_example, variables, tape=tape), or use '
          'compile() and fit(). If you do, something scales the loss: '
          + example_gradients.UNSCALED)
    self._private.ready = False

  def _apply_when_complete(self, gradients: Sequence[tf.Tensor],
                           var_list: Sequence[Any],
                           apply: Callable[[List[tf.Tensor]], Any]) -> Any:
    """Updates by noisy averages, once a whole logical batch was seen."""
    if self.parts_per_step == 1:
      self._count_step(var_list)
      return apply(list(gradients))
    totals = self._private.add(gradients, var_list)

    def update():
      self._count_step(var_list)
      averages = self._averages(totals)
      with tf.control_dependencies(averages):
        self._private.clear()
      apply(averages)
      return tf.constant(True)

    complete = tf.equal(self._private.parts_seen % self.parts_per_step, 0)
    return tf.cond(complete, update, lambda: tf.constant(False))

  def get_gradients(self, loss: Any, params: Any) -> None:
    """Refused: Keras no longer calls it."""
    raise NotImplementedError(
        'Expected minimize(), got get_gradients(), which has no tape to take '
        'gradients per example from.')

  def get_config(self) -> Any:
    """Returns what `from_config` needs, what was released so far included."""
    config = super().get_config()
    config.update({
        'l2_norm_clip': self.l2_norm_clip,
        'noise': serialization.noise_config(self.noise),
        'plan': serialization.plan_config(self.plan),
        'expected_batch_size': self.expected_batch_size,
        'gradient_accumulation_steps': self.parts_per_step,
        'seeded': self.seeded,
        'released_steps': self.released_steps,
        'sound': self.sound,
    })
    return config

  @classmethod
  def from_config(cls, config: Any, custom_objects: Any = None) -> DPOptimizer:
    """Makes the optimizer anew, with fresh randomness.

    It counts the steps that were released when the config was made.
    """
    config = dict(config)
    released, sound, seeded, state = (
        config.pop(name, default) for name, default in (
            ('released_steps', 0), ('sound', True), ('seeded', False),
            ('state', None)))
    config['plan'] = serialization.plan_from(config.get('plan'))
    if isinstance(config.get('noise'), dict):
      config['noise'] = serialization.noise_from(config['noise'])
    made = super().from_config(config, custom_objects)
    made._private.seeded = seeded
    made._private.released.assign(released)
    made._private.loaded_steps = released
    made._private.sound.assign(sound)
    made._private.saved = state
    return made


class _LegacyOptimizer(DPOptimizer):
  """Under Keras 2, whose `minimize` asks for gradients and applies them."""

  def get_config(self) -> Any:
    """As `DPOptimizer`, with slots: .keras files hold them nowhere else."""
    state = self._private.saved or (
        serialization.arrays_config(self.get_weights())
        if int(tf.convert_to_tensor(self.iterations))
        else None)
    return {**super().get_config(), 'state': state}

  def build(self, var_list: Sequence[Any]) -> None:
    """Creates the slots, and fills them if a config held their values."""
    with tf.init_scope():
      self._create_all_weights(var_list)
      if self._private.saved:
        self.set_weights(serialization.arrays_from(self._private.saved))
        self._private.saved = None

  def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any
                      ) -> Any:
    """Applies gradients made by `minimize`; refuses any others."""
    self._check_ready()
    gradients, var_list = zip(*grads_and_vars)
    self.build(var_list)
    base = super()
    return self._apply_when_complete(
        gradients, var_list, lambda averages: base.apply_gradients(
            list(zip(averages, var_list)), *args, **kwargs))


class _Keras3Optimizer(DPOptimizer):
  """Under Keras 3, whose `fit` scales the loss and applies its gradients."""

  def minimize(self, loss: Any, var_list: Any, grad_loss: Any = None,
               name: Any = None, tape: Optional[tf.GradientTape] = None) -> Any:
    """Updates variables by a loss per example.

    Args:
      loss: Shape (batch,), recorded on `tape`; or a function that returns it.
      var_list: Variables, or a function that returns them.
      grad_loss: Ignored.
      name: Ignored.
      tape: Recorded `loss`.
    """
    del name
    return self.apply_gradients(
        self._compute_gradients(loss, var_list, grad_loss, tape))

  def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
    """Remembers the loss that `fit` is about to differentiate.

    Args:
      loss: Per example.
    """
    example_gradients.check_replicas()
    example_gradients.check_precision(self)
    losses = example_gradients.loss_per_example(loss)
    if tf.executing_eagerly():
      raise ValueError(
          'Expected compile(run_eagerly=False) with a drop-in optimizer of '
          'Keras 3, got True: only a graph can be asked for gradients per '
          'example. Leave it out, or use tfcactus.keras.privatize.')
    self._private.losses = losses
    self._private.ready = True
    return tf.reduce_sum(losses)

  def apply(self, grads: Any, trainable_variables: Any = None) -> None:
    """Applies what `fit` or `minimize` made; refuses any other gradients."""
    self._check_ready()
    var_list = list(trainable_variables or self._trainable_variables)
    with tf.init_scope():
      if not self.built:
        self.build(var_list)
    losses, self._private.losses = self._private.losses, None
    if losses is not None:
      # In place of the gradients that were not clipped, which nothing runs.
      sums, finite = example_gradients.traced_sums(
          losses, [versions.tf_variable(v) for v in var_list], self._clip())
      self._private.own_up(finite)
      grads = self._prepared(sums)
    base = super()
    self._apply_when_complete(
        grads, var_list, lambda averages: base.apply(averages, var_list))


def make_dp_optimizer_class(base: Type[Any]) -> Type[DPOptimizer]:
  """Returns a private subclass of a Keras optimizer.

  Args:
    base: A subclass of `tf.keras.optimizers.Optimizer`; under Keras 2, of
      `tf.keras.optimizers.legacy.Optimizer`.

  Returns:
    A class whose constructor takes the arguments of `DPKerasSGDOptimizer`.
  """
  hooks = versions.choose(keras_2=_LegacyOptimizer, keras_3=_Keras3Optimizer)

  class _DPOptimizer(hooks, base):
    """A private subclass of a Keras optimizer."""

  return _DPOptimizer


def _check_batching(expected_batch_size: Any, num_microbatches: Any) -> None:
  if expected_batch_size is None:
    raise ValueError(
        'Expected expected_batch_size (sampling_prob * num_examples), got '
        'none: the noisy sum is divided by this public constant, because '
        'dividing by the size of the batch that was drawn would reveal it.')
  _checks.positive('expected_batch_size', expected_batch_size)
  if num_microbatches not in (None, expected_batch_size):
    raise ValueError(
        'Expected num_microbatches=None (one example per microbatch), got '
        f'num_microbatches={num_microbatches!r}: under Poisson sampling '
        'one example more or less moves all others to other microbatches, '
        'so that larger ones have no bounded sensitivity.')


def _one_noise(noise: Optional[noise_lib.Noise],
               noise_multiplier: Optional[float]) -> noise_lib.Noise:
  if (noise is None) == (noise_multiplier is None):
    raise ValueError(
        'Expected either noise_multiplier (Gaussian) or noise (a table), got '
        f'noise_multiplier={noise_multiplier!r} and noise={noise!r}.')
  if noise is not None:
    return noise
  return noise_lib.Gaussian(noise_multiplier) if noise_multiplier else NoNoise()


@_registered
class DPKerasSGDOptimizer(make_dp_optimizer_class(versions.SGD)):
  """Private SGD: clipped gradients per example, noise once on their sum.

  Goes where `tensorflow_privacy.DPKerasSGDOptimizer` goes, in `compile` with a
  loss of reduction NONE. It divides by the expected batch size.

  It sees a batch only through its losses, so it takes one backward pass per
  example; `tfcactus.keras.privatize` is many times faster. It cannot see the
  model either: layers or losses that mix examples, such as BatchNormalization,
  void the guarantee. `EpsilonCallback` traces the model and the loss, and reports
  none unless each operation is known to leave examples alone; that `fit` ran
  what was traced is assumed, and said with epsilon. And it cannot take an example
  out of the batch: one whose activations overflow spoils the gradients of all
  others, since 0 * NaN = NaN, so that the guarantee assumes that none does
  (`sound` is False from then on, and `EpsilonCallback` refuses). A model made
  by `privatize` needs no such assumption. Examples that hold NaN or infinity
  themselves are taken out by `PoissonBatches`.

  Args:
    l2_norm_clip: The bound on the norm of each example's gradient.
    noise_multiplier: Standard deviation of Gaussian noise over l2_norm_clip;
      0 for none, which protects nothing.
    num_microbatches: None: one example per microbatch; others are refused.
    gradient_accumulation_steps: Batches to a logical one: their clipped sums
      are added up, and noise is added once, to the sum of the last. No epsilon
      is known for it by `EpsilonCallback`.
    expected_batch_size: Of the logical batch, sampling_prob * num_examples, a
      public constant that the noisy sum is divided by. Required.
    noise: A noise table, instead of noise_multiplier.
    seed: For repeatable experiments; None takes the system's entropy.
    plan: Set by `from_plan`.
    **kwargs: For the base optimizer: learning_rate, momentum, ... Under Keras
      2 that is `tf.keras.optimizers.legacy.SGD`, otherwise
      `tf.keras.optimizers.SGD`.

  Raises:
    TypeError: if an argument is not one of the base optimizer's.
    ValueError: if an argument is invalid or refused.
  """


@_registered
class DPKerasAdamOptimizer(make_dp_optimizer_class(versions.Adam)):
  """Private Adam; arguments as `DPKerasSGDOptimizer` and of Keras' Adam."""


@_registered
class DPKerasAdagradOptimizer(make_dp_optimizer_class(versions.Adagrad)):
  """Private Adagrad; arguments as `DPKerasSGDOptimizer` and Keras' Adagrad."""


@_registered
class DPKerasRMSpropOptimizer(make_dp_optimizer_class(versions.RMSprop)):
  """Private RMSprop; arguments as `DPKerasSGDOptimizer` and Keras' RMSprop."""
