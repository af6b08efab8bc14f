"""Models by the names of TensorFlow Privacy's: a plain model, compiled privately."""

from __future__ import annotations

from typing import Any
from typing import Optional

from tfcactus.keras.compat import optimizers
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.drop_in import dp_optimizers
from tfcactus.keras.drop_in.optimizer import DPOptimizer


class _DPModel:
  """Compiles by a drop-in optimizer made of the one that it is given."""

  def __init__(self, l2_norm_clip: float, noise_multiplier: float,
               num_microbatches: Optional[int] = None, use_xla: bool = True,
               layer_registry: Any = None, *args: Any, **kwargs: Any):
    del use_xla, layer_registry  # They change the speed there, and nothing here.
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
    """As any model's, with an optimizer and a loss that are not private.

    Args:
      optimizer: SGD, Adam, Adagrad or RMSprop of Keras.
      loss: One loss of Keras; its reduction is ignored.
      **kwargs: As any model's.

    Raises:
      ValueError: if there is no drop-in optimizer for it, or no such loss.
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
  """A loss of Keras without reduction."""
  found = keras.losses.get(loss)
  if not isinstance(found, keras.losses.Loss):
    raise ValueError(
        "Expected a loss of Keras, such as tf.keras.losses.MeanSquaredError(), got "
        f'{loss!r}; tfcactus.keras.privatize takes any function.')
  return type(found).from_config({**found.get_config(), 'reduction': 'none'})


class DPModel(_DPModel, keras.Model):
  """Goes where `tensorflow_privacy.DPModel` goes.

  It trains by a drop-in optimizer, of which all that `DPKerasSGDOptimizer` says is
  true; `tfcactus.keras.privatize` is faster, and knows its batches.

  Args:
    l2_norm_clip: The bound on the norm of each example's gradient.
    noise_multiplier: Standard deviation of Gaussian noise over l2_norm_clip.
    num_microbatches: As for `DPKerasSGDOptimizer`.
    use_xla: Ignored.
    layer_registry: Ignored.
    expected_batch_size: As for `DPKerasSGDOptimizer`.
    *args: As for the Keras model.
    **kwargs: As for the Keras model.
  """


class DPSequential(_DPModel, keras.Sequential):
  """Goes where `tensorflow_privacy.DPSequential` goes; arguments as `DPModel`."""
