"""Any other layer: its pass over one example, vectorised over examples."""

from __future__ import annotations

from typing import Any
from typing import Callable
from typing import Dict
from typing import Set
from typing import Tuple

import tensorflow as tf

from tfcactus.keras import example_seeds
from tfcactus.keras import vectorization
from tfcactus.keras.compat import masks
from tfcactus.keras.compat import models
from tfcactus.keras.compat import patches
from tfcactus.keras.compat import recurrent
from tfcactus.keras.compat.versions import keras
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
    masked = [i for i in mapped if masks.mask_of(flat[i]) is not None]
    taken_off: Set[int] = set()

    def one(values: Any) -> Any:
      rows, row_masks, seed = values
      filled = list(flat)
      for i, value in zip(mapped, rows):
        filled[i] = value[None]
      for i, mask in zip(masked, row_masks):
        masks.put(filled[i], mask[None])
      first, others, named = tf.nest.pack_sequence_as(
          (inputs, args, kwargs), filled)
      with patches.drawing(layer, example_seeds.counting(seed)), (
          recurrent.unrolled(layer)):
        outputs = call(first, *others, **named)
      taken_off.update(i for i in masked if masks.mask_of(filled[i]) is None)
      return outputs

    values = ([flat[i] for i in mapped], [masks.mask_of(flat[i]) for i in masked],
              _row_seeds(flat[mapped[0]].shape[0]))
    outputs = vectorization.over_rows(
        lambda row: _first_rows(one(row)), values)
    outputs = _with_masks(*outputs)
    for i in taken_off:  # As attention of Keras 3 does.
      masks.put(flat[i], None)
    if not layer.trainable_variables:
      return outputs
    captured = [
        masks.put(capture((one, values, i), out), masks.mask_of(out))
        if out.dtype.is_floating else out
        for i, out in enumerate(tf.nest.flatten(outputs))]
    return tf.nest.pack_sequence_as(outputs, captured)

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
      return [forms.of_example(each) for each in found]

    found = vectorization.over_rows(gradient, (values, call.gradient))
    return [(variable, forms.of_examples(each, variable.shape)) for variable, each
            in zip(call.layer.trainable_variables, found)]


def _first_rows(outputs: Any) -> Tuple[Any, Dict[str, tf.Tensor]]:
  """What a layer returned for one example, and the masks that it put on that."""
  carried = {str(i): masks.mask_of(out)
             for i, out in enumerate(tf.nest.flatten(outputs))}
  return (tf.nest.map_structure(lambda out: out[0], outputs),
          {i: mask[0] for i, mask in carried.items() if mask is not None})


def _with_masks(outputs: Any, found: Dict[str, tf.Tensor]) -> Any:
  return tf.nest.pack_sequence_as(outputs, [
      masks.put(out, found.get(str(i)))
      for i, out in enumerate(tf.nest.flatten(outputs))])


def _row_seeds(rows: int) -> tf.Tensor:
  # Whatever rows hold, their seeds are alike: secret and independent.
  if vectorization.is_standing_in():
    return tf.zeros([rows, 2], tf.int64)
  return example_seeds.row_seeds(rows)
