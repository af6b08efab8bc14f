"""Runs TimeDistributed and Bidirectional layers in a way that proofs can follow."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import functools
import inspect
from typing import Any, Callable

import tensorflow as tf

from tfcactus.keras.compat import graphs, models, patches, recurrent
from tfcactus.keras.compat.versions import keras


@contextlib.contextmanager
def batched(model: keras.Model) -> Iterator[None]:
  """Runs time steps as rows of a batch, and both directions as layers, in the block.

  Without this a Bidirectional of Keras 3 may run one fused kernel, not its layers. Also
  runs recurrent layers `as_loops`.
  """
  never = {name: lambda *args, **kwargs: False for name in (
      '_can_attempt_fused_lstm', '_can_attempt_fused_gru')}
  with contextlib.ExitStack() as stack:
    for layer in models.flat_layers(model):
      if type(layer) is keras.layers.TimeDistributed:
        stack.enter_context(patches.replaced(layer, call=graphs.without_autograph(
            functools.partial(_over_steps, layer, layer.call))))
      elif isinstance(layer, keras.layers.Bidirectional):
        stack.enter_context(patches.replaced(layer, **never))
    stack.enter_context(recurrent.as_loops(model))
    yield


def _over_steps(layer: keras.layers.Layer, call: Callable[..., Any], *args: Any,
                **kwargs: Any) -> Any:
  """Calls the inner layer on the time steps of all examples; their number is static."""
  given = inspect.signature(call).bind(*args, **kwargs).arguments
  sequences, inner = given['inputs'], layer.layer
  shape = tf.nest.flatten(sequences)[0].shape
  rows, steps = shape[:2]
  if steps is None:
    raise ValueError(
        f'Expected sequences of a known number of steps for {layer.name!r}, got '
        f'shape {shape}; pad them to one length.')
  takes = inspect.signature(inner.call).parameters
  named = {name: _folded(given[name]) if tf.is_tensor(given[name]) else given[name]
           for name in ('training', 'mask')
           if name in takes and given.get(name) is not None}
  outputs = inner(tf.nest.map_structure(_folded, sequences), **named)
  return tf.nest.map_structure(
      lambda each: tf.reshape(each, [rows, steps, *each.shape[1:]]), outputs)


def _folded(values: tf.Tensor) -> tf.Tensor:
  """Reshapes (rows, time, ...) to (rows * time, ...)."""
  return tf.reshape(values, [values.shape[0] * values.shape[1], *values.shape[2:]])
