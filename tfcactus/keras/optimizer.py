"""Optimizers that go where TensorFlow Privacy's DPKeras optimizers go."""

from __future__ import annotations

from typing import Any
from typing import List
from typing import Optional
from typing import Tuple
from typing import Type

import tensorflow as tf

from tfcactus import _checks
from tfcactus import noise as noise_lib
from tfcactus.keras import _clip
from tfcactus.keras import _compat
from tfcactus.keras import _engine
from tfcactus.keras import _history
from tfcactus.keras.query import TableNoiseQuery
from tfcactus.keras.sampler import NoNoise

_ROWS = 16
"""Backward passes at once: enough to keep the cores busy, while memory stays
at this many batches of activations instead of batch-size many."""


class DPOptimizer:
  """What the private optimizers share; see `DPKerasSGDOptimizer`.

  Attributes:
    plan: The `PrivacyPlan` it was made from, or None.
    noise: The noise, in units of the clip norm.
    l2_norm_clip: The bound on the norm of each example's gradient.
    expected_batch_size: What the noisy sum is divided by.
    seeded: Whether the noise repeats; see `NoiseSampler`.
  """

  plan: Any = None

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

  @property
  def released_steps(self) -> int:
    """How many noisy updates were made; restoring never lowers it."""
    steps = tf.maximum(self._released, self.iterations)
    self._released.assign(steps)
    return int(steps)

  def _count_step(self, variables: List[tf.Variable]) -> None:
    """Counts an update of `variables`, before it is made."""
    _history.remember(variables, self)
    self._released.assign(tf.maximum(self._released, self.iterations) + 1)

  @property
  def sound(self) -> bool:
    """False once any gradient was not finite, which voids the guarantee."""
    return bool(tf.convert_to_tensor(self._sound))


def make_dp_optimizer_class(base: Type[tf.keras.optimizers.legacy.Optimizer]
                           ) -> Type[DPOptimizer]:
  """Returns a private subclass of a legacy Keras optimizer.

  Args:
    base: A subclass of `tf.keras.optimizers.legacy.Optimizer`.

  Returns:
    A class whose constructor takes the arguments of `DPKerasSGDOptimizer`.
  """

  class _DPOptimizer(DPOptimizer, base):
    """A private subclass of a legacy Keras optimizer."""

    def __init__(self, l2_norm_clip: float,
                 noise_multiplier: Optional[float] = None,
                 num_microbatches: Optional[int] = None,
                 gradient_accumulation_steps: int = 1, *,
                 expected_batch_size: Optional[float] = None,
                 noise: Optional[noise_lib.Noise] = None,
                 seed: Optional[int] = None, plan: Any = None, **kwargs: Any):
      self._check_batching(expected_batch_size, num_microbatches)
      self.gradient_accumulation_steps = _checks.integer(
          'gradient_accumulation_steps', gradient_accumulation_steps, 1)
      super().__init__(**kwargs)
      self.plan = plan
      self.noise = _one_noise(noise, noise_multiplier)
      self.expected_batch_size = float(expected_batch_size)
      if plan is None:
        self._query = TableNoiseQuery(self.noise, l2_norm_clip, seed=seed)
      else:
        self._query = TableNoiseQuery(plan, l2_norm_clip, seed=seed)
      self.l2_norm_clip = self._query.l2_norm_clip
      self.seeded = self._query.seeded
      self._noised = False
      # Sums without noise: in no checkpoint, which legacy optimizers ensure by
      # tracking slots only.
      self._pending = None
      with tf.init_scope():
        self._parts_seen = tf.Variable(0, trainable=False, dtype=tf.int64,
                                       name='parts_seen')
        self._sound = tf.Variable(True, trainable=False, name='sound')
        # Untracked: checkpoints restore `iterations`, also to fewer.
        self._released = tf.Variable(0, trainable=False, dtype=tf.int64)

    def _check_batching(self, expected_batch_size, num_microbatches):
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

    def _compute_gradients(self, loss, var_list, grad_loss=None, tape=None):
      """Noisy averages of clipped gradients, from a loss per example."""
      del grad_loss
      if not callable(loss) and tape is None:
        raise ValueError(
            'Expected tape with a loss that is a tensor, got None; use '
            'minimize(loss, var_list, tape=tape) or pass a callable.')
      _check_replicas()
      tape = tape if tape is not None else tf.GradientTape()
      with tape:
        if callable(loss):
          if not callable(var_list):
            tape.watch(var_list)
          loss = loss()
        losses = _loss_per_example(loss)
        var_list = var_list() if callable(var_list) else var_list
      var_list = tf.nest.flatten(var_list)
      with tf.name_scope(self._name + '/gradients'):
        sums = self._sums(losses, var_list, tape)
        if self.gradient_accumulation_steps == 1:
          sums = self._averages(sums)
      self._noised = True
      return list(zip(sums, var_list))

    def _sums(self, losses: tf.Tensor, var_list: List[tf.Variable],
              tape: tf.GradientTape) -> List[tf.Tensor]:
      """Sums of clipped gradients, in the shapes of `var_list`."""
      state = self._query.initial_global_state()
      sums, finite = _clipped_sums(
          losses, var_list, tape, self._query.derive_sample_params(state))
      self._sound.assign(tf.logical_and(self._sound, finite))
      return sums

    def _averages(self, sums: List[tf.Tensor]) -> List[tf.Tensor]:
      """Adds the noise, and divides by the expected batch size."""
      state = self._query.initial_global_state()
      noisy = self._query.get_noised_result(sums, state)[0]
      return [part / self.expected_batch_size for part in noisy]

    def _apply_once_complete(self, grads_and_vars, *args, **kwargs):
      """Adds up sums, and updates when a whole logical batch was seen."""
      sums, var_list = zip(*grads_and_vars)
      with tf.init_scope():
        if self._pending is None:
          self._pending = [tf.Variable(tf.zeros(v.shape, v.dtype),
                                       trainable=False) for v in var_list]
        self._create_all_weights(var_list)
      seen = self._parts_seen.assign_add(1)
      totals = [pending.assign_add(part)
                for pending, part in zip(self._pending, sums)]

      def update():
        self._count_step(var_list)
        averages = self._averages(totals)
        with tf.control_dependencies(averages):
          for pending in self._pending:
            pending.assign(tf.zeros_like(pending))
        super(_DPOptimizer, self).apply_gradients(
            list(zip(averages, var_list)), *args, **kwargs)
        return tf.constant(True)

      return tf.cond(tf.equal(seen % self.gradient_accumulation_steps, 0),
                     update, lambda: tf.constant(False))

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
      """Applies gradients made by `minimize`; refuses any others."""
      if not self._noised:
        raise ValueError(
            'Expected gradients from minimize() of this optimizer, got others: '
            'gradients of a tape are neither clipped nor noisy. Call '
            'minimize(loss_per_example, variables, tape=tape), or use '
            'compile() and fit().')
      self._noised = False
      grads_and_vars = list(grads_and_vars)
      if self.gradient_accumulation_steps > 1:
        return self._apply_once_complete(grads_and_vars, *args, **kwargs)
      self._count_step([variable for _, variable in grads_and_vars])
      return super().apply_gradients(grads_and_vars, *args, **kwargs)

    def get_gradients(self, loss, params):
      """Refused: Keras no longer calls it."""
      raise NotImplementedError(
          'Expected minimize(), got get_gradients(), which has no tape to take '
          'gradients per example from.')

    def get_config(self):
      """Returns what `from_config` needs, for closed-form Gaussian noise."""
      config = super().get_config()
      gaussian = isinstance(self.noise, (noise_lib.Gaussian, NoNoise))
      config.update({
          'l2_norm_clip': self.l2_norm_clip,
          'noise_multiplier': self.noise.noise_multiplier if gaussian else None,
          'noise_digest': self.noise.digest,
          'expected_batch_size': self.expected_batch_size,
          'gradient_accumulation_steps': self.gradient_accumulation_steps,
      })
      return config

    @classmethod
    def from_config(cls, config, custom_objects=None):
      """Makes the optimizer anew, with fresh randomness.

      Raises:
        ValueError: if its noise was a table, which a config does not hold.
      """
      config = dict(config)
      digest = config.pop('noise_digest', None)
      if config.get('noise_multiplier') is None and 'noise' not in config:
        raise ValueError(
            'Expected Gaussian noise in an optimizer config, got the noise '
            f'table {digest}, which a config does not hold; load the table '
            f'with tfcactus.noise.load and build {cls.__name__}(noise=table, '
            '...).')
      return super().from_config(config, custom_objects)

  return _DPOptimizer


def _one_noise(noise: Optional[noise_lib.Noise],
               noise_multiplier: Optional[float]) -> noise_lib.Noise:
  if (noise is None) == (noise_multiplier is None):
    raise ValueError(
        'Expected either noise_multiplier (Gaussian) or noise (a table), got '
        f'noise_multiplier={noise_multiplier!r} and noise={noise!r}.')
  if noise is not None:
    return noise
  return noise_lib.Gaussian(noise_multiplier) if noise_multiplier else NoNoise()


def _loss_per_example(loss: tf.Tensor) -> tf.Tensor:
  """Losses of shape (batch,); refuses a loss reduced over the batch."""
  loss = tf.convert_to_tensor(loss)
  if loss.shape.rank == 0:
    raise ValueError(
        'Expected a loss per example, got one number for the whole batch, '
        'whose gradient cannot be clipped per example; build the loss with '
        'reduction=tf.keras.losses.Reduction.NONE.')
  if loss.shape.rank is None:
    raise ValueError('Expected a loss of known rank, got a loss of any rank.')
  return tf.reduce_mean(loss, axis=list(range(1, loss.shape.rank)))


def _clipped_sums(losses: tf.Tensor, var_list: List[tf.Variable],
                  tape: tf.GradientTape, l2_norm_clip: tf.Tensor
                 ) -> Tuple[List[tf.Tensor], tf.Tensor]:
  """Sums of clipped gradients of each loss, and whether all were finite.

  Not by tape.jacobian(parallel_iterations=...): a tape that is not persistent,
  as Keras' are, gives it zeros for all but the first tile, silently.
  """
  batch = tf.shape(losses)[0]

  def row(index):
    # Rows past the batch are zeros, and so are their gradients.
    picked = tape.gradient(
        losses, var_list, tf.one_hot(index, batch, dtype=losses.dtype),
        unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return [tf.convert_to_tensor(part) for part in picked]

  def tile(indices):
    with _engine.quiet_vectorization():
      rows = tf.vectorized_map(row, indices, warn=False)
    rows = [tf.ensure_shape(part, [None] + var.shape)
            for part, var in zip(rows, var_list)]
    finite = [tf.reduce_all(tf.math.is_finite(part)) for part in rows]
    return (_clip.clipped_sums(rows, l2_norm_clip),
            tf.reduce_all(tf.stack(finite)))

  if tf.executing_eagerly():
    # A second tile would ask the tape again.
    return tile(tf.range(tf.maximum(batch, 1)))

  def body(start, sums, finite):
    more, fine = tile(start + tf.range(_ROWS))
    return (start + _ROWS, [a + b for a, b in zip(sums, more)],
            tf.logical_and(finite, fine))

  zeros = [tf.zeros(var.shape, var.dtype) for var in var_list]
  _, sums, finite = tf.while_loop(
      lambda start, *_: start < batch, body,
      (0, zeros, tf.constant(True)), parallel_iterations=1)
  return sums, finite


def _check_replicas() -> None:
  replicas = tf.distribute.get_strategy().num_replicas_in_sync
  if replicas > 1:
    raise ValueError(
        f'Expected one replica, got a distribution strategy with {replicas}: '
        'each would add its own noise. Train outside the strategy.')


class DPKerasSGDOptimizer(make_dp_optimizer_class(_compat.LegacySGD)):
  """Private SGD: clipped gradients per example, noise once on their sum.

  Goes where `tensorflow_privacy.DPKerasSGDOptimizer` goes, in `compile` with a
  loss of reduction NONE. It divides by the expected batch size.

  It sees a batch only through its losses, so it takes one backward pass per
  example; `tfcactus.keras.privatize` is many times faster. It cannot see the
  model either: layers that mix examples, such as BatchNormalization, void the
  guarantee (`EpsilonCallback` refuses them). And it cannot take an example out
  of the batch: one whose activations overflow spoils the gradients of all
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
    **kwargs: For the base optimizer: learning_rate, momentum, ...

  Raises:
    ValueError: if an argument is invalid or refused.
  """


class DPKerasAdamOptimizer(make_dp_optimizer_class(_compat.LegacyAdam)):
  """Private Adam; arguments as `DPKerasSGDOptimizer` and of Keras' Adam."""


class DPKerasAdagradOptimizer(make_dp_optimizer_class(_compat.LegacyAdagrad)):
  """Private Adagrad; arguments as `DPKerasSGDOptimizer` and Keras' Adagrad."""


class DPKerasRMSpropOptimizer(make_dp_optimizer_class(_compat.LegacyRMSprop)):
  """Private RMSprop; arguments as `DPKerasSGDOptimizer` and Keras' RMSprop."""
