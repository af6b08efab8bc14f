"""Refuses models that override train_step, compute_loss or make_train_function."""

from __future__ import annotations

from collections.abc import Sequence
import warnings

from tfcactus.keras.compat.versions import keras

_TRAINING = ('train_step', 'compute_loss', 'make_train_function')
_BESIDE = ('test_step', 'predict_step', 'compute_metrics')


def check_own_training(model: keras.Model) -> None:
  """Raises ValueError if a model overrides a training method; warns of other steps.

  Such a method may do anything besides calling the model and its compiled loss.
  """
  own = _overridden(model, _TRAINING)
  if own:
    cls = type(model).__name__
    raise ValueError(
        f'Expected a model that Keras trains, got {model.name!r} with '
        f'{cls}.{own[0]}, which a private step does not call: it clips the gradient '
        'of each example of the loss given to compile(). Have call() return what '
        'the loss needs, and write the loss as a function of targets and outputs '
        'for compile(); it may use weights. If the method changes nothing of what '
        f"is trained, take Keras' own back: class Plain({cls}): "
        f'{own[0]} = tf.keras.Model.{own[0]}.')
  beside = _overridden(model, _BESIDE)
  if beside:
    warnings.warn(
        f'{type(model).__name__} has its own {", ".join(beside)}, which evaluate() '
        'and predict() of the private model, and the logs of its fit(), do not '
        'call; those of private_model.inner do.', stacklevel=2)


def _overridden(model: keras.Model, names: Sequence[str]) -> list[str]:
  return [name for name in names if name in vars(model) or (
      getattr(type(model), name, None) is not getattr(keras.Model, name, None))]
