"""Rule for embeddings: gradients of the rows that an example looked up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import tensorflow as tf

from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.layers import base


class EmbeddingRule(base.LayerRule):
  """Rule for embeddings of integers."""

  layer_types = (keras.layers.Embedding,)

  def unsupported(self, layer: keras.layers.Layer) -> str:
    return 'sparse=True' if getattr(layer, 'sparse', False) else ''

  def forward(self, layer: keras.layers.Layer, call: Callable[..., Any],
              capture: base.Capture, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    return capture(inputs, call(inputs, *args, **kwargs))

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    return looked_up(call.layer.embeddings, call.saved, call.gradient)

  def numbers_per_example(self, layer: keras.layers.Layer,
                          output_shapes: Sequence[list[int]]) -> int:
    return 0  # Gradients are no larger than the outputs.


def looked_up(table: tf.Variable, ids: tf.Tensor, gradient: tf.Tensor
             ) -> base.Gradients:
  """Returns gradients of a table, (vocabulary, width), from those of its rows.

  `ids` are integers, (batch, ...); `gradient` is (batch, ..., width).
  """
  batch = ids.shape[0]
  ids = tf.reshape(tf.cast(ids, tf.int32), [batch, -1])
  values = tf.reshape(base.in_stored_dtype(gradient, table),
                      [batch, ids.shape[1], table.shape[1]])
  return [(table, forms.Rows.merged(ids, values, table.shape[0]))]
