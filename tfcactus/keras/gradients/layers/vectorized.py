"""Any other layer: its pass over one example, vectorised over examples."""

from __future__ import annotations

from typing import Any
from typing import Callable

import tensorflow as tf

from tfcactus.keras import example_seeds
from tfcactus.keras import vectorization
from tfcactus.keras.compat import models
from tfcactus.keras.compat import patches
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import added_losses
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.layers import base


class VectorizedRule(base.LayerRule):
  """Runs a layer on batches of one; its gradient runs it once more.

  No example can meet another in the layer, whatever it does.
  """

  def forward(self, layer: keras.layers.Layer, call: Callable[..., Any],
              capture: base.Capture, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    flat = tf.nest.flatten((inputs, args, kwargs))
    mapped = [i for i, value in enumerate(flat) if tf.is_tensor(value)]

    def one(values: Any) -> Any:
      *values, seed = values
      filled = list(flat)
      for i, value in zip(mapped, values):
        filled[i] = value[None]
      first, others, named = tf.nest.pack_sequence_as(
          (inputs, args, kwargs), filled)
      with patches.drawing(layer, example_seeds.counting(seed)), (
          added_losses.of_one(layer)) as added:
        outputs = call(first, *others, **named)
      total = added.total()
      return outputs, ([] if total is None else [total[None]])

    values = [flat[i] for i in mapped]
    values.append(_row_seeds(values[0].shape[0]))
    found = vectorization.over_rows(
        lambda row: tf.nest.map_structure(lambda out: out[0], one(row)),
        values)
    if layer.trainable_variables:
      found = tf.nest.pack_sequence_as(found, [
          capture((one, values, i), out) if out.dtype.is_floating else out
          for i, out in enumerate(tf.nest.flatten(found))])
    outputs, added = found
    for each in added:
      layer.add_loss(each)  # Which collects one for each row.
    return outputs

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    one, values, place = call.saved
    variables = models.tf_variables(call.layer)

    def gradient(row: Any) -> Any:
      values, upstream = row
      with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(variables)
        outputs = tf.nest.flatten(one(values))[place]
      found = tape.gradient(
          outputs, variables, tf.cast(upstream[None], outputs.dtype),
          unconnected_gradients=tf.UnconnectedGradients.ZERO)
      return [tf.convert_to_tensor(each) for each in found]

    found = vectorization.over_rows(gradient, (values, call.gradient))
    return [(variable, forms.Dense(each, variable.shape)) for variable, each
            in zip(call.layer.trainable_variables, found)]


def _row_seeds(rows: int) -> tf.Tensor:
  # Whatever rows hold, their seeds are alike: secret and independent.
  if vectorization.is_standing_in():
    return tf.zeros([rows, 2], tf.int64)
  return example_seeds.row_seeds(rows)
