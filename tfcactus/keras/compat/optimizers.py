"""The optimizers that drop-in ones stand on, in each Keras."""

from __future__ import annotations

import contextlib
from typing import Any
from typing import ContextManager
from typing import Dict
from typing import Mapping
from typing import Sequence

import tensorflow as tf

from tfcactus.keras import replicas
from tfcactus.keras.compat import patches
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.compat.versions import KERAS_3

Optimizer: Any = object
"""To the mixins of drop-in optimizers, the one that they are mixed into."""

_OPTIMIZERS = (keras.optimizers if KERAS_3 else keras.optimizers.legacy)
Adagrad = _OPTIMIZERS.Adagrad
Adam = _OPTIMIZERS.Adam
RMSprop = _OPTIMIZERS.RMSprop
SGD = _OPTIMIZERS.SGD

# Of the optimizers of Keras 3, and of those of Keras 2 that are not legacy.
_NOT_LEGACY = ('weight_decay', 'use_ema', 'ema_momentum',
               'ema_overwrite_frequency', 'jit_compile', 'loss_scale_factor')


def check_optimizer_arguments(arguments: Mapping[str, Any]) -> None:
  """Refuses what the Keras at hand has no meaning for, or silently ignores.

  Args:
    arguments: For the base of a drop-in optimizer, by name.

  Raises:
    TypeError: naming what to pass instead.
  """
  for name in _NOT_LEGACY:
    if name in arguments and not KERAS_3:
      raise TypeError(
          f'Expected arguments of tf.keras.optimizers.legacy, got {name}='
          f'{arguments[name]!r}: under Keras 2 drop-in optimizers stand on its '
          'legacy ones, which have no such argument. Leave it out, or use '
          'tfcactus.keras.privatize, which trains with any optimizer.')
  if KERAS_3 and arguments.get('lr') is not None:
    raise TypeError(
        f'Expected learning_rate, got lr={arguments["lr"]!r}, the name that '
        f'Keras 2 had for it; pass learning_rate={arguments["lr"]!r}.')
  if KERAS_3 and arguments.get('decay'):
    raise TypeError(
        f'Expected no decay, which Keras 3 ignores, got decay='
        f'{arguments["decay"]!r}; pass learning_rate=tf.keras.optimizers.'
        'schedules.InverseTimeDecay(learning_rate, decay_steps=1, '
        f'decay_rate={arguments["decay"]!r}), which is the same.')


def unwrapped(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
  """An optimizer without loss scaling around it."""
  return getattr(optimizer, 'inner_optimizer', optimizer)


def bare_optimizer(model: keras.Model) -> keras.optimizers.Optimizer:
  """The optimizer of a model, without loss scaling around it."""
  # Keras 2 wraps it under mixed_float16, whatever it is told.
  return unwrapped(model.optimizer)


def make_variables(model: keras.Model, example: Any = None) -> None:
  """Has the optimizer of a private model make its variables, where it has a way to.

  What makes variables while TensorFlow traces it is traced again.

  Args:
    model: A `PrivateModel`; it may yet have neither weights nor an optimizer.
    example: (x, y, weights) of any examples, if they are known: replicas need weights
      that are made outside of them.
  """
  if replicas.number() > 1 and example is not None and not model.inner.built:
    model.inner(tf.nest.map_structure(tf.convert_to_tensor, example[0]))
    model.built = True
  optimizer = bare_optimizer(model)
  if model.built and hasattr(optimizer, 'build'):
    optimizer.build(model.inner.trainable_variables)


def apply_averages(optimizer: keras.optimizers.Optimizer, averages: Sequence[tf.Tensor],
                   variables: Sequence[keras.Variable]) -> None:
  """Updates variables by averages that are the same on all replicas.

  Args:
    optimizer: Of Keras, legacy or not, without loss scaling around it.
    averages: One for each variable.
    variables: Those trained.
  """
  with applying_sums():
    optimizer.apply_gradients(list(zip(averages, variables)), **of_sums())


def applying_sums() -> ContextManager[None]:
  """Has optimizers of Keras 3 take gradients as sums over all replicas already."""
  return patches.applying_sums() if KERAS_3 and replicas.number() > 1 else (
      contextlib.nullcontext())


def of_sums() -> Dict[str, Any]:
  """Arguments by which optimizers of Keras 2 do."""
  return {} if KERAS_3 or replicas.number() == 1 else {
      'experimental_aggregate_gradients': False}


def needs_one_replica(optimizer: keras.optimizers.Optimizer) -> bool:
  """Whether an optimizer does what fails under a strategy of several replicas.

  Keras 3 has conditionals there, inside of which replicas cannot meet.
  """
  return KERAS_3 and replicas.number() > 1 and bool(
      optimizer.use_ema or optimizer.gradient_accumulation_steps)


def is_wrapped(optimizer: keras.optimizers.Optimizer) -> bool:
  """Whether loss scaling is around an optimizer, where it can know that.

  Keras 2 tells it. Keras 3 does not, and asks it for no gradients either.
  """
  return getattr(optimizer, '_is_wrapped_by_loss_scale_optimizer', False)


def drop_in_arguments(optimizer: keras.optimizers.Optimizer) -> Dict[str, Any]:
  """The arguments of a drop-in optimizer that does what a plain one does.

  Args:
    optimizer: Of Keras; under Keras 2, legacy or not.

  Raises:
    ValueError: if the base of drop-in optimizers has no such argument.
  """
  config = dict(optimizer.get_config())
  if config.get('gradient_accumulation_steps', 1) is None:
    del config['gradient_accumulation_steps']
  schedule = config.get('learning_rate')
  if isinstance(schedule, dict):
    config['learning_rate'] = keras.optimizers.schedules.deserialize(schedule)
  if KERAS_3 or isinstance(optimizer, keras.optimizers.legacy.Optimizer):
    return config
  unsupported = {name: config[name] for name in (
      'weight_decay', 'clipnorm', 'clipvalue', 'global_clipnorm', 'use_ema')
                 if config.get(name)}
  if unsupported:
    raise ValueError(
        'Expected an optimizer with none of what the legacy ones lack, on which '
        f'drop-in optimizers of Keras 2 stand, got {unsupported!r}; use '
        'tfcactus.keras.privatize, which trains with any optimizer.')
  for name in (*_NOT_LEGACY, 'is_legacy_optimizer', 'clipnorm', 'clipvalue',
               'global_clipnorm'):
    config.pop(name, None)
  return config
