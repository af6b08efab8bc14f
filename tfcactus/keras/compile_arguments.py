"""Checks of the arguments of a private model's `compile`."""

from __future__ import annotations

from tfcactus import _checks
from tfcactus.keras import tfp
from tfcactus.keras.compat import optimizers, versions
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.drop_in import optimizer as optimizer_lib


def check_arguments(steps_per_execution: object, jit_compile: object) -> None:
  """Raises ValueError unless steps_per_execution is None or >= 1, or for XLA.

  Lets jit_compile='auto' pass: `PrivateModel.compile` takes it as False.
  """
  if steps_per_execution is not None:
    _checks.integer('steps_per_execution', steps_per_execution, 1)
  if jit_compile and jit_compile != 'auto':
    raise ValueError(
        f'Expected jit_compile=False, got {jit_compile!r}: XLA may compute a gradient '
        'twice, rounded differently, for its norm and for the sum. Leave it out; noise '
        'on the device is compiled by itself.')


def check_compiled(losses: object, model: keras.Model) -> None:
  """Raises ValueError if `losses` is None: no `compile` of a private model set them.

  `model` is the inner model, which may have been compiled by itself.
  """
  if losses is None:
    before = '' if getattr(model, 'optimizer', None) is None else (
        f' {model.name!r} was compiled before, which the private model does not take '
        'over.')
    raise ValueError(
        'Expected compile(...) of the private model before fit, got one that is not '
        f'compiled.{before} Write model = privatize(model, plan), then '
        'model.compile(optimizer, loss), then model.fit(batches).')


def ordinary_optimizer(optimizer: object) -> keras.optimizers.Optimizer:
  """Returns the Keras optimizer for a name, a config or an optimizer, checked."""
  versions.check_same_keras('optimizer', optimizer)
  found = keras.optimizers.get(optimizer)
  check_optimizer(found)
  return found


def check_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
  """Raises ValueError for an optimizer, or one inside it, that spoils noisy averages.

  Refused are optimizers that add noise themselves, divide by a loss_scale_factor, or
  fail under the current strategy of several replicas.
  """
  inner = optimizers.unwrapped(optimizer)
  if isinstance(inner, optimizer_lib.DPOptimizer) or (
      tfp.is_foreign_dp_optimizer(inner)):
    raise ValueError(
        f'Expected an ordinary Keras optimizer, got {type(inner).__name__}:'
        ' a private model adds the noise itself, and it would be added twice; '
        'use tf.keras.optimizers.SGD or Adam.')
  if optimizers.needs_one_replica(inner):
    raise ValueError(
        'Expected an optimizer of use_ema=False and gradient_accumulation_steps=None '
        'under a strategy of several replicas, where Keras 3 cannot run either, got '
        f'use_ema={inner.use_ema!r} and gradient_accumulation_steps='
        f'{inner.gradient_accumulation_steps!r}; leave them out (larger batches are '
        'split by physical_batch_size), or train on one device.')
  factor = getattr(inner, 'loss_scale_factor', None)
  if factor is not None:
    raise ValueError(
        f'Expected an optimizer of loss_scale_factor=None, got {factor!r}: a '
        'private model applies noisy averages that are not scaled, and the '
        'optimizer would divide them by it. Leave it out: float16 gradients '
        'are scaled here, and unscaled before they are clipped.')
