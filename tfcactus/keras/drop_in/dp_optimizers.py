"""Optimizers that go where TensorFlow Privacy's DPKeras optimizers go."""

from __future__ import annotations

from typing import Any
from typing import Optional
from typing import Type

from tfcactus.keras.compat import optimizers
from tfcactus.keras.compat import versions
from tfcactus.keras.drop_in import keras2
from tfcactus.keras.drop_in import keras3
from tfcactus.keras.drop_in.optimizer import DPOptimizer

_registered = versions.keras.saving.register_keras_serializable('tfcactus')


def make_dp_optimizer_class(base: Any) -> Type[DPOptimizer]:
  """Returns a private subclass of a Keras optimizer.

  Args:
    base: A subclass of `tf.keras.optimizers.Optimizer`; under Keras 2, of
      `tf.keras.optimizers.legacy.Optimizer`.

  Returns:
    A class whose constructor takes the arguments of `DPKerasSGDOptimizer`.
  """
  hooks: Any = versions.choose(
      keras_2=keras2.Keras2Optimizer, keras_3=keras3.Keras3Optimizer)

  class _DPOptimizer(hooks, base):
    """A private subclass of a Keras optimizer."""

  return _DPOptimizer


_SGD: Any = make_dp_optimizer_class(optimizers.SGD)
_Adam: Any = make_dp_optimizer_class(optimizers.Adam)
_Adagrad: Any = make_dp_optimizer_class(optimizers.Adagrad)
_RMSprop: Any = make_dp_optimizer_class(optimizers.RMSprop)


@_registered
class DPKerasSGDOptimizer(_SGD):
  """Private SGD: clipped gradients per example, noise once on their sum.

  Goes where `tensorflow_privacy.DPKerasSGDOptimizer` goes, in `compile` with a
  loss of reduction NONE.

  It sees a batch only through its losses and the graph they were traced in. Where
  that is shown to treat each example alone, one backward pass serves all of them;
  otherwise each has its own, and `tfcactus.keras.privatize` is many times faster. It
  cannot see the model either: layers or losses that mix examples, such as
  BatchNormalization, void the guarantee. `EpsilonCallback` traces the model and the
  loss, and reports none unless each operation is known to leave examples alone; that
  `fit` ran what was traced is assumed, and said with epsilon. And it cannot take an
  example out of the batch: one whose activations overflow spoils the gradients of all
  others, since 0 * NaN = NaN, so that the guarantee assumes that none does (`sound`
  is False from then on, and `EpsilonCallback` refuses). A model made by `privatize`
  needs no such assumption. Examples that hold NaN or infinity themselves are taken
  out by `PoissonBatches`.

  Args:
    l2_norm_clip: The bound on the norm of each example's gradient.
    noise_multiplier: Standard deviation of Gaussian noise over l2_norm_clip;
      0 for none, which protects nothing.
    num_microbatches: None: one example per microbatch. A number: the mean gradient
      of each microbatch is clipped, and the noisy sum is divided by it; where they
      hold several examples no epsilon is known, see docs/porting.md.
    gradient_accumulation_steps: Batches to a logical one: their clipped sums
      are added up, and noise is added once, to the sum of the last. No epsilon
      is known for it by `EpsilonCallback`.
    expected_batch_size: Of the logical batch, sampling_prob * num_examples, a
      public constant that the noisy sum is divided by. None for the size of the
      batches, which then must be one for all of them; under Poisson sampling it
      is required.
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
class DPKerasAdamOptimizer(_Adam):
  """Private Adam; arguments as `DPKerasSGDOptimizer` and of Keras' Adam."""


@_registered
class DPKerasAdagradOptimizer(_Adagrad):
  """Private Adagrad; arguments as `DPKerasSGDOptimizer` and Keras' Adagrad."""


@_registered
class DPKerasRMSpropOptimizer(_RMSprop):
  """Private RMSprop; arguments as `DPKerasSGDOptimizer` and Keras' RMSprop."""


def _vectorized(base: Any) -> Any:
  """As TensorFlow Privacy's: nothing is faster here, all are vectorised."""

  class _Vectorized(base):
    """Takes the arguments in the order of `VectorizedDPKerasSGDOptimizer`."""

    def __init__(self, l2_norm_clip: Any, noise_multiplier: Any = None,
                 num_microbatches: Optional[int] = None,
                 unconnected_gradients_to_zero: bool = False, *args: Any,
                 **kwargs: Any):
      del unconnected_gradients_to_zero  # They always are.
      super().__init__(l2_norm_clip, noise_multiplier, num_microbatches,
                       *args, **kwargs)

  return _Vectorized


_VectorizedSGD: Any = _vectorized(DPKerasSGDOptimizer)
_VectorizedAdam: Any = _vectorized(DPKerasAdamOptimizer)
_VectorizedAdagrad: Any = _vectorized(DPKerasAdagradOptimizer)


@_registered
class VectorizedDPKerasSGDOptimizer(_VectorizedSGD):
  """`DPKerasSGDOptimizer`, by the name and arguments of TensorFlow Privacy.

  Args:
    l2_norm_clip: As there, and all others.
    noise_multiplier: As there.
    num_microbatches: As there.
    unconnected_gradients_to_zero: Ignored: they are zero.
    **kwargs: As there.
  """


@_registered
class VectorizedDPKerasAdamOptimizer(_VectorizedAdam):
  """`DPKerasAdamOptimizer`; arguments as `VectorizedDPKerasSGDOptimizer`."""


@_registered
class VectorizedDPKerasAdagradOptimizer(_VectorizedAdagrad):
  """`DPKerasAdagradOptimizer`; arguments as `VectorizedDPKerasSGDOptimizer`."""
