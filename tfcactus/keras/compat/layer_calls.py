"""Runs layers of some kinds in ways that proofs can follow, inside a `with` block.

TimeDistributed and Bidirectional run as layers on a whole batch. `TextVectorization`
splits texts into a ragged tensor of words, and `HashedCrossing` crosses features in
sparse tensors: each example goes through such a layer alone, in TensorFlow's MapDefun,
where examples cannot mix. For recurrent layers see `recurrent`.
"""

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
  """Runs TimeDistributed, Bidirectional and recurrent layers so that proofs can follow.

  In the block, TimeDistributed runs time steps as rows of a batch, Bidirectional runs
  its two layers (in Keras 3 it may run one fused kernel instead), and recurrent layers
  run as `recurrent.as_loops` says.
  """
  never = {name: lambda *args, **kwargs: False for name in (
      '_can_attempt_fused_lstm', '_can_attempt_fused_gru')}
  with contextlib.ExitStack() as stack:
    for layer in models.flat_layers(model):
      if type(layer) is keras.layers.TimeDistributed:
        stack.enter_context(called_by(_over_steps, layer))
      elif isinstance(layer, keras.layers.Bidirectional):
        stack.enter_context(patches.replaced(layer, **never))
    stack.enter_context(recurrent.as_loops(model))
    yield


@contextlib.contextmanager
def one_by_one(model: keras.Model) -> Iterator[None]:
  """Runs a model's ragged and sparse layers on one example at a time."""
  with contextlib.ExitStack() as stack:
    for layer in models.flat_layers(model):
      if models.splits_texts(layer) or isinstance(layer, keras.layers.HashedCrossing):
        stack.enter_context(called_by(_each, layer))
    yield


def called_by(function: Callable[..., Any], layer: keras.layers.Layer
             ) -> contextlib.AbstractContextManager[None]:
  """Replaces `layer.call` by `function(layer, layer.call, ...)` inside the block."""
  return patches.replaced(layer, call=graphs.without_autograph(
      functools.partial(function, layer, layer.call)))


def _over_steps(layer: keras.layers.Layer, call: Callable[..., Any], *args: Any,
                **kwargs: Any) -> Any:
  """Returns a TimeDistributed's outputs: its inner layer's on (batch * steps, ...).

  Raises ValueError unless the number of steps is static.
  """
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


def _each(layer: keras.layers.Layer, call: Callable[..., Any], inputs: Any, *args: Any,
          **kwargs: Any) -> tf.Tensor:
  """Returns a layer's outputs, computed row by row; they are dense, of one shape."""
  call, rows = graphs.as_keras_calls(call), tf.nest.flatten(inputs)

  def one(*row: tf.Tensor) -> Any:
    """Returns the output of one example, without the batch axis."""
    found = call(tf.nest.pack_sequence_as(inputs, [each[None] for each in row]), *args,
                 **kwargs)
    return found[0] if isinstance(found, tf.Tensor) else found

  traced = tf.function(one, autograph=False).get_concrete_function(
      *[tf.TensorSpec(each.shape[1:], each.dtype) for each in rows])
  output = traced.structured_outputs
  if not isinstance(output, tf.Tensor) or not output.shape.is_fully_defined():
    raise ValueError(
        f'Expected outputs of one shape for all examples, got {output} of layer '
        f'{layer.name!r}; give a TextVectorization output_sequence_length=..., and '
        'leave out ragged=True and sparse=True.')
  stacked, = tf.raw_ops.MapDefun(
      arguments=rows, captured_inputs=traced.captured_inputs,
      output_types=[output.dtype], output_shapes=[output.shape], f=traced)
  return tf.ensure_shape(stacked, rows[0].shape[:1] + output.shape)
