"""Base classes of drop-in optimizers, and differences between Keras' optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
from typing import Any

import numpy as np
import tensorflow as tf

from tfcactus.keras.compat import models, patches
from tfcactus.keras.compat.versions import keras, KERAS_3
from tfcactus.keras.distribution import replicas

Optimizer: Any = object
"""Base class of drop-in optimizers' mixins: `Any` only to type checkers."""

_OPTIMIZERS = (keras.optimizers if KERAS_3 else keras.optimizers.legacy)
Adagrad = _OPTIMIZERS.Adagrad
Adam = _OPTIMIZERS.Adam
RMSprop = _OPTIMIZERS.RMSprop
SGD = _OPTIMIZERS.SGD

# Arguments of optimizers of Keras 3, and of optimizers of Keras 2 other than legacy.
_NOT_LEGACY = ('weight_decay', 'use_ema', 'ema_momentum',
               'ema_overwrite_frequency', 'jit_compile', 'loss_scale_factor')


def check_optimizer_arguments(arguments: Mapping[str, Any]) -> None:
  """Raises TypeError for arguments that this Keras lacks or silently ignores."""
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


def unwrapped(optimizer: Any) -> Any:
  """Returns the optimizer inside a LossScaleOptimizer, or the optimizer itself."""
  return getattr(optimizer, 'inner_optimizer', optimizer)


def bare_optimizer(model: keras.Model) -> Any:
  """Returns a model's optimizer, or None, without a LossScaleOptimizer around it."""
  # Keras 2 puts a LossScaleOptimizer around each optimizer under mixed_float16.
  return unwrapped(getattr(model, 'optimizer', None))


def make_variables(model: keras.Model, example: Any = None) -> None:
  """Creates the optimizer's variables of a compiled private model if its weights exist.

  TensorFlow traces a function again if its first trace creates variables. With several
  replicas the weights are made too, outside of the replicas, from `example`: (x, y,
  weights) of any examples, of which the shapes count, or None.
  """
  if replicas.number() > 1 and example is not None and not model.inner.built:
    model.inner(tf.nest.map_structure(tf.zeros_like, example[0]))
    model.built = True
  if model.built:
    optimizer = bare_optimizer(model)
    make = getattr(optimizer, 'build', None) or optimizer._create_all_weights  # pylint: disable=protected-access
    with tf.init_scope():
      make(model.inner.trainable_variables)


def state(optimizer: Any) -> list[Any]:
  """Returns an optimizer's variables except iterations and learning rates.

  Also leaves out iterations and learning rates of optimizers inside of it.
  """
  found = getattr(optimizer, 'variables', ())
  optimizers = [optimizer, *getattr(optimizer, 'optimizers', ())]
  public = {id(getattr(each, name, None)) for each in optimizers
            for name in ('_iterations', '_learning_rate')}
  return [each for each in (found() if callable(found) else found)
          if id(each) not in public]


def is_new(optimizer: Any, weights: Sequence[np.ndarray]) -> bool:
  """Returns whether an optimizer's variables are as Keras makes them.

  Keras fills each with zero or a number of the config, or copies a weight. A product of
  momenta (Nadam) begins at one.
  """
  numbers = [0, *(each for each in optimizer.get_config().values()
                  if type(each) in (int, float))]
  return all(
      any(np.all(value == np.asarray(number, value.dtype)) for number in numbers) or
      np.array_equal(value, np.ones([], value.dtype)) or
      any(np.array_equal(value, weight) for weight in weights)
      for value in map(models.values, state(optimizer)))


@contextlib.contextmanager
def swapping(callbacks: Iterable[Any], around: contextlib.ContextDecorator
            ) -> Iterator[None]:
  """Runs each swap of weights by Keras' `SwapEMAWeights` inside the context `around`.

  Does so until the block ends. `around` tells the ledger that the swapped weights are
  known.
  """
  # Methods that a subclass overrides run as they are.
  kind = getattr(keras.callbacks, 'SwapEMAWeights', None)
  with contextlib.ExitStack() as stack:
    for each in callbacks:
      for name in ('_swap_variables', '_finalize_ema_values'):
        method = getattr(kind, name, None)
        if method is not None and getattr(type(each), name, None) is method and (
            name not in vars(each)):
          stack.enter_context(patches.replaced(
              each, **{name: around(getattr(each, name))}))
    yield


def apply_averages(optimizer: keras.optimizers.Optimizer, averages: Sequence[tf.Tensor],
                   variables: Sequence[keras.Variable]) -> None:
  """Applies averaged, unscaled gradients, equal on all replicas, to variables."""
  with applying_sums():
    optimizer.apply_gradients(list(zip(averages, variables)), **sum_arguments())


def applying_sums() -> contextlib.AbstractContextManager[None]:
  """Makes Keras 3 take gradients as summed over replicas already, in the block."""
  return patches.summed.inside(True) if KERAS_3 and replicas.number() > 1 else (
      contextlib.nullcontext())


def sum_arguments() -> dict[str, Any]:
  """Returns arguments of `apply_gradients`, for gradients summed over replicas."""
  # Keras 3 learns it from `applying_sums`.
  return {} if KERAS_3 or replicas.number() == 1 else {
      'experimental_aggregate_gradients': False}


def needs_one_replica(optimizer: keras.optimizers.Optimizer) -> bool:
  """Returns whether there are several replicas, and an optimizer fails on them."""
  # Keras 3 updates averages and accumulators in conditionals, where replicas cannot
  # communicate.
  return KERAS_3 and replicas.number() > 1 and bool(
      optimizer.use_ema or optimizer.gradient_accumulation_steps)


def is_wrapped(optimizer: keras.optimizers.Optimizer) -> bool:
  """Returns whether an optimizer of Keras 2 is marked as inside LossScaleOptimizer."""
  return getattr(optimizer, '_is_wrapped_by_loss_scale_optimizer', False)


def drop_in_arguments(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
  """Returns an optimizer's arguments, for its drop-in version.

  Raises ValueError for arguments that the drop-in version lacks.
  """
  config = dict(optimizer.get_config())
  if config.get('gradient_accumulation_steps', 1) is None:
    del config['gradient_accumulation_steps']  # Drop-in versions take an integer.
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
