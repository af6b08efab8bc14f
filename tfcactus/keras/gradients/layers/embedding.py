"""Rules for embeddings: gradients of the rows that an example looked up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import tensorflow as tf

from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.layers import base


class EmbeddingRule(base.LayerRule):
  """Rule for embeddings of integers."""

  layer_types = (keras.layers.Embedding,)

  def unsupported(self, layer: keras.layers.Layer) -> str:
    """Returns a reason for layers with sparse gradients, else ''."""
    return 'sparse=True' if getattr(layer, 'sparse', False) else ''

  def forward(self, layer: keras.layers.Layer, call: Callable[..., Any],
              capture: base.Capture, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Captures the looked-up rows and saves their ids."""
    return capture(inputs, call(inputs, *args, **kwargs))

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    """Returns gradients of the looked-up rows."""
    return looked_up(call.layer.embeddings, call.saved, call.gradient)

  def numbers_per_example(self, layer: keras.layers.Layer,
                          output_shapes: Sequence[list[int]]) -> int:
    return 0  # Gradients are no larger than the outputs.


class ReversibleEmbeddingRule(base.LayerRule):
  """Rule for ReversibleEmbedding, whose table also projects back if it is tied.

  The gradients have looked-up rows only. If the table projects back, they are products
  of inputs and output gradients.
  """

  layer_types = tuple(models.layer_classes(['ReversibleEmbedding']))

  def unsupported(self, layer: keras.layers.Layer) -> str:
    """Returns the name of an option that the rule does not cover, or ''."""
    if layer.logit_soft_cap is not None:
      return 'logit_soft_cap'
    return '' if layer.reverse_dtype is None else 'reverse_dtype'

  def forward(self, layer: keras.layers.Layer, call: Callable[..., Any],
              capture: base.Capture, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Captures the outputs; saves the inputs and whether the call projects back."""
    reverse = args[0] if args else kwargs.get('reverse', False)
    return capture((inputs, bool(reverse)), call(inputs, *args, **kwargs))

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    """Returns gradients of the table that the call used."""
    layer = call.layer
    inputs, reverse = call.saved
    if not reverse:
      return looked_up(layer.embeddings, inputs, call.gradient)
    table = layer.embeddings if layer.tie_weights else layer.reverse_embeddings
    inputs = base.layer_inputs(call._replace(saved=inputs), table)
    outputs = base.in_stored_dtype(call.gradient, table)
    if layer.tie_weights:
      inputs, outputs = outputs, inputs
    return [(table, base.products(inputs, outputs))]

  def numbers_per_example(self, layer: keras.layers.Layer,
                          output_shapes: Sequence[list[int]]) -> int:
    """Counts two dense gradients: a tied table both looks up and projects back."""
    return 2 * super().numbers_per_example(layer, output_shapes)


def looked_up(table: tf.Variable, ids: tf.Tensor, gradient: tf.Tensor
             ) -> base.Gradients:
  """Returns a table's gradients from `ids` (batch, ...) and the rows' gradients."""
  batch = ids.shape[0]
  ids = tf.reshape(tf.cast(ids, tf.int32), [batch, -1])
  values = tf.reshape(base.in_stored_dtype(gradient, table),
                      [batch, ids.shape[1], table.shape[1]])
  return [(table, forms.Rows.merged(ids, values, table.shape[0]))]
