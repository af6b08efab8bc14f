"""Differences between versions of Keras in `compile`, `fit` and saving."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from tfcactus.keras.compat import patches
from tfcactus.keras.compat.versions import keras, KERAS_3
from tfcactus.keras.distribution import replicas


def counter(value: float | list[float] | np.ndarray, name: str, dtype: str = 'int64'
            ) -> Any:
  """Returns a variable that Keras saves with the weights of the model that holds it."""
  if KERAS_3:
    return keras.Variable(value, dtype=dtype, trainable=False, autocast=False,
                          name=name)
  return tf.Variable(value, dtype=dtype, trainable=False, name=name)


def number(variable: Any) -> int:
  """Returns the value of an integer variable, which may have a copy per replica."""
  return int(tf.convert_to_tensor(variable))


def compile_arguments(**arguments: Any) -> Any:
  """Returns arguments for `Model.compile`; under Keras 3 only those not None."""
  # Automatic loss scaling of Keras 3 is off, because gradients have to be unscaled
  # before they are clipped.
  if not KERAS_3:
    return arguments
  given = {k: v for k, v in arguments.items() if v is not None}
  return {'auto_scale_loss': False, **given}


def compiled_with(model: keras.Model) -> dict[str, Any]:
  """Returns optimizer, loss, metrics and weights given to `compile`, if not None."""
  found = model._compile_config.config  # pylint: disable=protected-access
  return {name: found[name] for name in (
      'optimizer', 'loss', 'metrics', 'loss_weights', 'weighted_metrics')
          if found.get(name) is not None}


def remember_inputs(model: keras.Model, inputs: Any) -> None:
  """Records a model's inputs for `tf.saved_model.save`; Keras 3 needs no record."""
  if not KERAS_3:
    model._set_save_spec(inputs)  # pylint: disable=protected-access


def make_variables(function: Callable[..., Any], arguments: Any) -> None:
  """Creates the variables of a function in a separate trace, which is never run.

  Call this inside the trace that will call `function(*arguments)`, which TensorFlow
  would trace again if it created variables. Does nothing in eager mode and under a
  strategy.
  """
  if tf.executing_eagerly() or tf.distribute.has_strategy():
    return
  specs = tf.nest.map_structure(
      lambda each: tf.TensorSpec(each.shape, each.dtype) if tf.is_tensor(each) else
      each, arguments)
  with tf.init_scope():
    if tf.executing_eagerly():
      tf.function(function, autograph=False).get_concrete_function(*specs)


@contextlib.contextmanager
def built_on(model: keras.Model, batch: Any) -> Iterator[None]:
  """Builds metrics and optimizer slots in `fit` from a given `batch`, not from data.

  `batch` is (x, y, weights) of a few rows of any values. Acts only where Keras 3 would
  consume a first batch of data: on several replicas. On several workers, also makes
  Keras 3 average logs, see `averaged_logs`.
  """
  if not KERAS_3 or batch is None or replicas.number(model.distribute_strategy) == 1:
    yield
    return
  build = model._maybe_symbolic_build  # pylint: disable=protected-access

  def build_on(iterator: Any = None, data_batch: Any = None) -> None:
    """Builds from `batch` where Keras would take a first batch of data."""
    # Without weights, which building does not need: where losses are of tokens,
    # (rows, tokens), Keras 3 takes no weights of rows.
    build(data_batch=data_batch if iterator is None else batch[:2])

  with patches.replaced(model, _maybe_symbolic_build=build_on), (
      patches.averaged_logs().inside(True) if isinstance(
          model.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy) else
      contextlib.nullcontext()):
    yield


def log_loss(model: keras.Model, losses: tf.Tensor) -> None:
  """Updates the loss that `fit` logs, the mean of `losses` of shape (batch,)."""
  tracker = [metric for metric in model.metrics if metric.name == 'loss'][0]
  tracker.update_state(losses)


def steps_per_execution(model: keras.Model) -> int | None:
  """Returns how many steps one execution takes; None if the number may vary."""
  # For 'auto' Keras 2 sets the first of these attributes from TensorFlow 2.15 on, the
  # second in earlier versions.
  if getattr(model, '_autotune_steps_per_execution', False) or (
      getattr(model, '_steps_per_execution_tuner', None) is not None):
    return None
  steps = (model.steps_per_execution if KERAS_3 else
           getattr(model, '_steps_per_execution', None))
  if isinstance(steps, str):  # 'auto'
    return None
  return 1 if steps is None else number(steps)


def next_steps(model: keras.Model, left: int | None) -> int:
  """Returns the steps of the next execution, with `left` steps left in the epoch."""
  steps = steps_per_execution(model) or 1
  # Keras 3 runs whole executions, past the end of an epoch.
  return steps if KERAS_3 or left is None else min(steps, left)
