"""Drop-in replacements for DPKeras optimizers and DP models of TensorFlow Privacy."""

from __future__ import annotations

from typing import Any

from tfcactus.keras.checks import refused_models
from tfcactus.keras.compat import optimizers, versions
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.drop_in import keras_hooks
from tfcactus.keras.drop_in.optimizer import DPOptimizer

_registered = keras.saving.register_keras_serializable('tfcactus')


def make_dp_optimizer_class(base: Any) -> type[DPOptimizer]:
  """Returns a DP subclass of a Keras optimizer, with `DPKerasSGDOptimizer`'s arguments.

  Under Keras 2 `base` is a subclass of `tf.keras.optimizers.legacy.Optimizer`.
  """
  hooks: Any = versions.choose(
      keras_2=keras_hooks.Keras2Optimizer, keras_3=keras_hooks.Keras3Optimizer)

  class _DPOptimizer(hooks, base):
    """A DP subclass of a Keras optimizer."""

  return _DPOptimizer


_SGD: Any = make_dp_optimizer_class(optimizers.SGD)
_Adam: Any = make_dp_optimizer_class(optimizers.Adam)
_Adagrad: Any = make_dp_optimizer_class(optimizers.Adagrad)
_RMSprop: Any = make_dp_optimizer_class(optimizers.RMSprop)


@_registered
class DPKerasSGDOptimizer(_SGD):
  """DP-SGD: clips per-example gradients, and adds noise once to their sum.

  Replaces `tensorflow_privacy.DPKerasSGDOptimizer` in `compile`, with a loss of
  reduction NONE.

  If the graph of the losses is proved to treat each example separately, one backward
  pass serves all examples. Otherwise each example takes a backward pass, and
  `tfcactus.keras.privatize` is many times faster.

  The optimizer cannot see the model: layers or losses that mix examples, such as
  BatchNormalization, void the guarantee. `EpsilonCallback` traces model and loss, and
  reports no epsilon unless each operation is known to keep examples separate. It
  assumes that `fit` ran what was traced, and the statement of epsilon says so.

  The guarantee assumes that no example's activations overflow: that would spoil the
  gradients of all others, since 0 * NaN = NaN. After such a step `sound` is False, and
  `EpsilonCallback` reports no epsilon. A model made by `privatize` needs no such
  assumption. `PoissonBatches` takes out examples that hold NaN or infinity themselves.

  Args:
    l2_norm_clip: The bound on the norm of each per-example gradient.
    noise_multiplier: Standard deviation of Gaussian noise over l2_norm_clip; 0 for no
      noise, which protects nothing.
    num_microbatches: None for one example per microbatch. For a number, the mean
      gradient of each microbatch is clipped, and the noisy sum is divided by the
      number; with several examples per microbatch no epsilon is known.
    gradient_accumulation_steps: Batches per logical batch. Their clipped sums are
      added up, and noise is added once, after the last. `EpsilonCallback` knows an
      epsilon for 1 only.
    expected_batch_size: Expected size of a logical batch, sampling_prob *
      num_examples: a public constant by which the noisy sum is divided; required under
      Poisson sampling. If None, the divisor is num_microbatches or else the batch
      size, and all batches must have one size.
    noise: Noise of `tfcactus.noise`, such as a table, instead of noise_multiplier.
    seed: Makes noise repeatable, for experiments; None takes the system's entropy.
    plan: Set by `from_plan`.
    **kwargs: For the base optimizer: learning_rate, momentum, ... The base is
      `tf.keras.optimizers.legacy.SGD` under Keras 2, else `tf.keras.optimizers.SGD`.

  Raises:
    TypeError: if an argument is not one of the base optimizer's.
    ValueError: if an argument is invalid or refused.
  """


@_registered
class DPKerasAdamOptimizer(_Adam):
  """DP-Adam; arguments of `DPKerasSGDOptimizer` and of Keras' Adam."""


@_registered
class DPKerasAdagradOptimizer(_Adagrad):
  """DP-Adagrad; arguments of `DPKerasSGDOptimizer` and of Keras' Adagrad."""


@_registered
class DPKerasRMSpropOptimizer(_RMSprop):
  """DP-RMSprop; arguments of `DPKerasSGDOptimizer` and of Keras' RMSprop."""


class _Vectorized(optimizers.Optimizer):
  """Mixin with the arguments of TensorFlow Privacy's Vectorized optimizers."""

  def __init__(self, l2_norm_clip: Any, noise_multiplier: Any = None,
               num_microbatches: int | None = None,
               unconnected_gradients_to_zero: bool = False, **kwargs: Any):
    """Initialises; raises ValueError if the fourth argument is no bool."""
    if not isinstance(unconnected_gradients_to_zero, bool):
      raise ValueError(
          'Expected unconnected_gradients_to_zero to be True or False, got '
          f'{unconnected_gradients_to_zero!r}; pass learning_rate and all further '
          'arguments by name.')
    super().__init__(l2_norm_clip, noise_multiplier, num_microbatches, **kwargs)


@_registered
class VectorizedDPKerasSGDOptimizer(_Vectorized, DPKerasSGDOptimizer):
  """`DPKerasSGDOptimizer` with the name and arguments of TensorFlow Privacy.

  The fourth argument, unconnected_gradients_to_zero, has no effect: such gradients are
  always zero. Pass all further arguments by name.
  """


@_registered
class VectorizedDPKerasAdamOptimizer(_Vectorized, DPKerasAdamOptimizer):
  """`DPKerasAdamOptimizer`; arguments as `VectorizedDPKerasSGDOptimizer`."""


@_registered
class VectorizedDPKerasAdagradOptimizer(_Vectorized, DPKerasAdagradOptimizer):
  """`DPKerasAdagradOptimizer`; arguments as `VectorizedDPKerasSGDOptimizer`."""


class _DPModel:
  """Mixin whose `compile` replaces a Keras optimizer by a drop-in DP optimizer."""

  def __init__(self, l2_norm_clip: float, noise_multiplier: float,
               num_microbatches: int | None = None, use_xla: bool = True,
               layer_registry: Any = None, *args: Any, **kwargs: Any):
    """Initialises; see `DPModel`. ValueError if num_microbatches is no integer."""
    del use_xla, layer_registry  # Options for speed in TensorFlow Privacy.
    if num_microbatches is not None and (
        isinstance(num_microbatches, bool) or not isinstance(num_microbatches, int)):
      raise ValueError(
          'Expected num_microbatches to be an integer or None, got '
          f'{num_microbatches!r}; pass use_xla by name.')
    expected_batch_size = kwargs.pop('expected_batch_size', None)
    super().__init__(*args, **kwargs)
    self._l2_norm_clip = l2_norm_clip
    self._noise_multiplier = noise_multiplier
    self._num_microbatches = num_microbatches
    self._expected_batch_size = expected_batch_size

  def compile(self, optimizer: Any = 'rmsprop', loss: Any = None, **kwargs: Any
             ) -> None:
    """Compiles the model with a DP version of `optimizer`.

    Args:
      optimizer: SGD, Adam, Adagrad or RMSprop of Keras, or its name.
      loss: One Keras loss, computed per example: its reduction is ignored.
      **kwargs: Other arguments of `keras.Model.compile`.

    Raises:
      ValueError: if the optimizer has no drop-in version, the loss is not one Keras
        loss, a layer has a regularizer, or the built model has added losses.
    """
    refused_models.check_no_penalties(self)
    base: Any = super()
    base.compile(
        optimizer=self._dp_version(optimizer), loss=_per_example(loss), **kwargs)

  def _dp_version(self, optimizer: Any) -> Any:
    """Returns the DP version of a Keras optimizer or its name; ValueError if none."""
    if isinstance(optimizer, DPOptimizer):
      raise ValueError(
          'Expected an optimizer of Keras, which DPModel makes private, got '
          f'{optimizer!r}; pass tf.keras.optimizers.SGD, or compile a plain model.')
    plain = keras.optimizers.get(optimizer)
    kind = globals().get(f'DPKeras{type(plain).__name__}Optimizer')
    if kind is None:
      raise ValueError(
          'Expected SGD, Adam, Adagrad or RMSprop in DPModel.compile(), got '
          f'{optimizer!r}; tfcactus.keras.privatize takes any optimizer.')
    return kind(
        l2_norm_clip=self._l2_norm_clip, noise_multiplier=self._noise_multiplier,
        num_microbatches=self._num_microbatches,
        expected_batch_size=self._expected_batch_size,
        **optimizers.drop_in_arguments(plain))


def _per_example(loss: Any) -> Any:
  """Returns a copy of a Keras loss without reduction; ValueError for other losses."""
  found = keras.losses.get(loss) if isinstance(loss, str) else loss
  if not isinstance(found, keras.losses.Loss):
    raise ValueError(
        "Expected a loss of Keras, such as tf.keras.losses.MeanSquaredError(), got "
        f'{loss!r}; tfcactus.keras.privatize takes any function.')
  return type(found).from_config({**found.get_config(), 'reduction': 'none'})


class DPModel(_DPModel, keras.Model):
  """Keras model with a drop-in DP optimizer, in place of `tensorflow_privacy.DPModel`.

  The limits that `DPKerasSGDOptimizer` describes hold for this model too.
  `tfcactus.keras.privatize` is faster, and knows its batches.

  Args:
    l2_norm_clip: The bound on the norm of each per-example gradient.
    noise_multiplier: Standard deviation of Gaussian noise over l2_norm_clip.
    num_microbatches: See `DPKerasSGDOptimizer`.
    use_xla: Ignored.
    layer_registry: Ignored.
    expected_batch_size: See `DPKerasSGDOptimizer`.
    *args: Arguments of `keras.Model`.
    **kwargs: Arguments of `keras.Model`.
  """


class DPSequential(_DPModel, keras.Sequential):
  """Sequential model in place of `tensorflow_privacy.DPSequential`; see `DPModel`."""
