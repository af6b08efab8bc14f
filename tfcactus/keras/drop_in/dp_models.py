"""Drop-in replacements for `DPModel` and `DPSequential` of TensorFlow Privacy."""

from __future__ import annotations

from typing import Any

from tfcactus.keras.compat import optimizers
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.drop_in import dp_optimizers
from tfcactus.keras.drop_in.optimizer import DPOptimizer


class _DPModel:
  """Mixin whose `compile` replaces a Keras optimizer by a drop-in DP optimizer."""

  def __init__(self, l2_norm_clip: float, noise_multiplier: float,
               num_microbatches: int | None = None, use_xla: bool = True,
               layer_registry: Any = None, *args: Any, **kwargs: Any):
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
        loss, or the model has regularizers or add_loss.
    """
    base: Any = super()
    added = getattr(self, 'losses', ()) if getattr(self, 'built', False) else ()
    if added:
      raise ValueError(
          'Expected a DPModel without regularizers and add_loss, got '
          f'{len(added)}: they would be added to the loss of each example, '
          'and clipped with it; put weight decay into the optimizer, or use '
          'tfcactus.keras.privatize.')
    base.compile(optimizer=self._private(optimizer), loss=_per_example(loss), **kwargs)

  def _private(self, optimizer: Any) -> Any:
    """Returns the drop-in DP version of a Keras optimizer or of its name."""
    if isinstance(optimizer, DPOptimizer):
      raise ValueError(
          'Expected an optimizer of Keras, which DPModel makes private, got '
          f'{optimizer!r}; pass tf.keras.optimizers.SGD, or compile a plain model.')
    plain = keras.optimizers.get(optimizer)
    kind = getattr(dp_optimizers, f'DPKeras{type(plain).__name__}Optimizer', None)
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
  found = keras.losses.get(loss)
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
