"""Refuses models for their layers, regularizers, inputs, devices or methods.

Errors name the layer, the method or the argument, and the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import warnings

from tfcactus import _checks
from tfcactus.keras.checks import state_writes
from tfcactus.keras.compat import models, versions
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.distribution import replicas


def check_model(model: keras.Model) -> None:
  """Raises ValueError if a drop-in optimizer cannot train the model privately."""
  check_layers(model)
  if model.built:
    state_writes.check_no_writes(model)


def check_layers(model: keras.Model, half: bool = False, losses: bool = False) -> None:
  """Raises ValueError for layers that mix examples, regularizers and added losses.

  Added losses are found in built models only. Also raises for variables that
  `replicas.check_devices` refuses. `half` allows float16, if gradients are unscaled
  before clipping. `losses` allows added losses and regularizers, if the caller handles
  them.
  """
  replicas.check_devices([models.tf_variable(v) for v in model.trainable_variables])
  for layer in models.flat_layers(model):
    _check_layer(layer, half)
  if not losses:
    check_no_penalties(model)


def check_no_penalties(model: keras.Model) -> None:
  """Raises ValueError for regularizers, and for added losses of a built model."""
  for layer in models.flat_layers(model):
    for name in _REGULARIZERS:
      if getattr(layer, name, None) is not None:
        raise ValueError(
            f'Expected a model without regularizers, got {name} in layer '
            f'{layer.name!r}: its gradient would be clipped with each example\'s. '
            'Put weight decay into the optimizer (weight_decay=...), or use '
            'tfcactus.keras.privatize, which adds it after the noise.')
  if model.built and model.losses:
    raise ValueError(
        f'Expected a model without add_loss, got {len(model.losses)} added '
        'loss(es), which are not clipped per example; use '
        'tfcactus.keras.privatize, which clips them with their example, or put '
        'weight decay into the optimizer (weight_decay=...).')


def check_arguments(model: object, plan: object, private: type) -> None:
  """Raises ValueError unless given a plan and a Keras model, not of class `private`.

  Also raises it for a strategy that `replicas.check_devices` refuses.
  """
  replicas.check_devices()
  versions.check_same_keras('model', model)
  if not isinstance(model, keras.Model) or isinstance(model, private):
    raise ValueError(
        f'Expected model to be a Keras model that is not private yet, got {model!r}.')
  _checks.plan(plan)


def check_planned(plan: object, others: Mapping[str, object]) -> None:
  """Raises TypeError if there is no plan, or `others`: unknown keyword arguments."""
  if others or plan is None:
    given = ', '.join(f'{name}={value!r}' for name, value in others.items())
    raise TypeError(
        f'Expected privatize(model, plan), got {given or "no plan"}: noise, clipping '
        'norm, sampling and delta belong into a PrivacyPlan. Write plan = '
        'tfcactus.PrivacyPlan.for_training(noise=tfcactus.Gaussian(1.1), '
        'l2_norm_clip=1.0, batch_size=256, epochs=15, num_examples=len(x), '
        'delta=1e-5), or target_epsilon=2.0 instead of noise. Beside the plan '
        'privatize takes seed, physical_batch_size, engine, journal, clipping, '
        'augmentation_multiplicity, split_noise, local_steps, local_learning_rate, '
        'audit, account, account_label and randomness.')


def _check_layer(layer: keras.layers.Layer, half: bool) -> None:
  """Raises ValueError for mixed examples, kept state, or float16 unless `half`."""
  if models.splits_texts(layer) and not models.has_fixed_length(layer):
    raise ValueError(
        f'Expected texts of one length, got {layer.name!r}, a TextVectorization '
        'without output_sequence_length: the longest text of a batch would set the '
        'length of all others. Give it output_sequence_length=..., without '
        'ragged=True, or an output_mode such as "multi_hot".')
  if any('BatchNorm' in cls.__name__ for cls in type(layer).__mro__) and (
      layer.trainable or models.mixes_when_frozen(layer)):
    raise ValueError(
        f'Expected layers that treat each example alone, got {layer.name!r}, a '
        'BatchNormalization: it mixes the examples of a batch and keeps their '
        'statistics without noise. Use GroupNormalization or '
        'LayerNormalization (tfcactus.keras.fine_tuning.group_normalized(model) '
        'copies a model with the former), or freeze it (layer.trainable = False).')
  if getattr(layer, 'stateful', False) and isinstance(layer, keras.layers.RNN):
    raise ValueError(
        f'Expected layers without state, got {layer.name!r} with stateful='
        'True, which carries one example\'s state to another; use '
        'stateful=False.')
  if not half and getattr(layer, 'compute_dtype', None) == 'float16':
    raise ValueError(
        f'Expected layers that compute in float32 or bfloat16, got '
        f'{layer.name!r} in float16: its loss scaling would scale gradients '
        'before they are clipped. Use the policy "mixed_bfloat16", or '
        'tfcactus.keras.privatize, which unscales them first.')


_REGULARIZERS = (
    'kernel_regularizer', 'bias_regularizer', 'activity_regularizer',
    'embeddings_regularizer', 'beta_regularizer', 'gamma_regularizer',
    'recurrent_regularizer', 'depthwise_regularizer', 'pointwise_regularizer')
"""Names of attributes of a layer that hold regularizers."""


def check_own_training(model: keras.Model) -> None:
  """Raises ValueError for overridden methods in `TRAINING`; warns of `_BESIDE`."""
  # Such a method may do anything besides calling the model and its compiled loss.
  own = overridden(model, TRAINING)
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
  beside = overridden(model, _BESIDE)
  if beside:
    warnings.warn(
        f'{type(model).__name__} has its own {", ".join(beside)}, which evaluate() '
        'and predict() of the private model, and the logs of its fit(), do not '
        'call; those of private_model.inner do.', stacklevel=2)


def overridden(model: keras.Model, names: Sequence[str]) -> list[str]:
  """Returns the names of those methods that a model or its class overrides."""
  return [name for name in names if name in vars(model) or (
      getattr(type(model), name, None) is not getattr(keras.Model, name, None))]


TRAINING = ('train_step', 'compute_loss', 'make_train_function')
"""Methods with which Keras trains; models that override one are refused."""

_BESIDE = ('test_step', 'predict_step', 'compute_metrics')
"""Methods that a private model does not call either; own ones cause a warning."""
