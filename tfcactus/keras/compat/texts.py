"""Layers that compute in ragged or sparse tensors, run on one example at a time.

`TextVectorization` splits texts into a ragged tensor of words, and `HashedCrossing`
crosses features in sparse tensors. Each example goes through such a layer alone, in
TensorFlow's MapDefun, where examples cannot mix: no proof follows such code.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import functools
from typing import Any, Callable

import tensorflow as tf

from tfcactus.keras.compat import graphs, models, patches
from tfcactus.keras.compat.versions import keras


@contextlib.contextmanager
def one_by_one(model: keras.Model) -> Iterator[None]:
  """Runs a model's ragged and sparse layers on one example at a time, in the block."""
  with contextlib.ExitStack() as stack:
    for layer in models.flat_layers(model):
      if models.splits_texts(layer) or isinstance(layer, keras.layers.HashedCrossing):
        stack.enter_context(patches.replaced(layer, call=graphs.without_autograph(
            functools.partial(_each, layer, layer.call))))
    yield


def _each(layer: keras.layers.Layer, call: Callable[..., Any], inputs: Any, *args: Any,
          **kwargs: Any) -> tf.Tensor:
  """Returns a layer's outputs row by row, stacked; they are dense, of one shape."""
  call, rows = graphs.as_keras_calls(call), tf.nest.flatten(inputs)

  def one(*row: tf.Tensor) -> Any:
    """Returns the output of one example, without the batch axis."""
    found = call(tf.nest.pack_sequence_as(inputs, [each[None] for each in row]), *args,
                 **kwargs)
    return found[0] if isinstance(found, tf.Tensor) else found

  traced = tf.function(one, autograph=False).get_concrete_function(
      *[tf.TensorSpec(each.shape[1:], each.dtype) for each in rows])
  made = traced.structured_outputs
  if not isinstance(made, tf.Tensor) or not made.shape.is_fully_defined():
    raise ValueError(
        f'Expected outputs of one shape for all examples, got {made} of layer '
        f'{layer.name!r}; give a TextVectorization output_sequence_length=..., and '
        'leave out ragged=True and sparse=True.')
  found, = tf.raw_ops.MapDefun(
      arguments=rows, captured_inputs=traced.captured_inputs,
      output_types=[made.dtype], output_shapes=[made.shape], f=traced)
  return tf.ensure_shape(found, rows[0].shape[:1] + made.shape)
