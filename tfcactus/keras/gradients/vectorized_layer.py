"""Layers that run on one example at a time, vectorised over the batch."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from typing import Any, Callable

import tensorflow as tf

from tfcactus.keras.compat import (
  graphs,
  masks,
  models,
  patches,
  recurrent,
  vectorization,
)
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import added_losses, forms
from tfcactus.keras.noise import random_bits

Capture = Callable[[Any, tf.Tensor], tf.Tensor]
"""(value to save for `gradients`, output) -> the output that the layer returns."""

_CUT = '_tfcactus_cut'
"""Attribute of an output of which `call` keeps the first row of each example."""


@contextlib.contextmanager
def named(layer: keras.layers.Layer, reason: str) -> Iterator[None]:
  """Turns failures to vectorise a layer into ValueErrors with its name and a remedy.

  `reason` is why the layer is vectorised. In an analysis, in which nothing is
  vectorised, errors pass as they are.
  """
  try:
    yield
  except vectorization.FAILURES as error:
    if vectorization.is_standing_in():
      raise  # The layer's own code has failed.
    own = vectorization.own_words(error)
    if own:
      raise ValueError(own if repr(layer.name) in own else (
          f'{own} It is in {layer.name!r}, which is vectorised: {reason}.')) from error
    words = str(error).strip().splitlines() or [type(error).__name__]
    raise ValueError(
        f'Expected layers that can be batched or vectorised, got {layer.name!r}: it '
        f'is not batched, since {reason}, and TensorFlow cannot vectorise it '
        f'({words[-1].strip(" .")}). TensorFlow vectorises neither loops inside of '
        'loops nor gradients of gradients through a loop. Write such loops in Python, '
        'for step in range(...).') from error


def call(layer: keras.layers.Layer, own: Callable[..., Any], capture: Capture,
         inputs: Any, *args: Any, **kwargs: Any) -> Any:
  """Returns the results of `own`, a layer's call, on each row of all tensors, stacked.

  Every tensor among the arguments has a row per example. Of several rows of a result
  for one example the first is kept (see `is_cut`). `capture` gets each real or complex
  result if the layer trains weights.
  """
  flat = tf.nest.flatten((inputs, args, kwargs))
  mapped = [i for i, value in enumerate(flat) if tf.is_tensor(value)]
  masked = [i for i in mapped if masks.mask_of(flat[i]) is not None]
  taken_off, cut, own_gradients = set[int](), set[int](), False
  structure: Any = None  # Of the outputs, with False in place of None.

  def one(values: Any) -> Any:
    """Returns an example's outputs and added losses from (tensors, masks, seed)."""
    nonlocal own_gradients, structure
    rows, row_masks, seed = values
    filled = list(flat)
    for i, value in zip(mapped, rows):
      filled[i] = value[None]
    for i, mask in zip(masked, row_masks):
      masks.put(filled[i], mask[None])
    first, others, named = tf.nest.pack_sequence_as((inputs, args, kwargs), filled)
    with patches.drawing(layer, random_bits.counting(seed)), (
        recurrent.unrolled(layer)), added_losses.of_one(layer) as added:
      outputs = own(first, *others, **named)
    taken_off.update(i for i in masked if masks.mask_of(filled[i]) is None)
    own_gradients |= graphs.have_own_gradients([tf.compat.v1.get_default_graph()])
    total = added.total()
    structure = tf.nest.map_structure(lambda out: out is not None, outputs)
    outputs = [out for out in tf.nest.flatten(outputs) if out is not None]
    cut.update(i for i, out in enumerate(outputs)
               if out.shape.rank and (out.shape[0] or 1) > 1)
    return outputs, ([] if total is None else [total[None]])

  values = ([flat[i] for i in mapped], [masks.mask_of(flat[i]) for i in masked],
            random_bits.row_seeds(flat[mapped[0]].shape[0]))
  outputs, carried, added = vectorization.over_rows(
      lambda row: _first_rows(*one(row)), values)
  if own_gradients and not vectorization.is_standing_in():
    outputs, added = _by_own_gradients(one, values, (outputs, added))
  outputs = masks.put_rows(outputs, carried)
  for i in taken_off:  # Attention of Keras 3 removes masks of its inputs.
    masks.put(flat[i], None)
  if models.trained_variables(layer):
    outputs, added = _captured(capture, (one, values), (outputs, added))
  for each in added:
    layer.add_loss(each)  # `added_losses` collects one loss per row.
  return _structured(outputs, structure, cut)


def gradients(layer: keras.layers.Layer, saved: Any, upstream: tf.Tensor
             ) -> list[tuple[keras.Variable, forms.GradientForm]]:
  """Returns per-example gradients of a layer's variables through one output.

  Runs the layer again on each example, under a tape. `saved` was captured with the
  output, whose gradient is `upstream`.
  """
  one, values, place = saved
  trained = models.trained_variables(layer)
  variables = [models.local(models.tf_variable(each)) for each in trained]

  def of_row(row: Any) -> Any:
    """Returns one example's gradients of the layer's variables, as tensors."""
    values, gradient = row
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(variables)
      outputs = _first_row(tf.nest.flatten(one(values))[place])
    found = tape.gradient(
        outputs, variables, tf.cast(gradient[None], outputs.dtype),
        unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return [forms.of_example(each) for each in found]

  return [(variable, forms.of_examples(each, variable.shape)) for variable, each
          in zip(trained, vectorization.over_rows(of_row, (values, upstream)))]


def is_cut(output: tf.Tensor) -> bool:
  """Returns whether `call` left out all but the first row of each example."""
  return hasattr(output, _CUT)


def _structured(outputs: list[tf.Tensor], structure: Any, cut: set[int]) -> Any:
  """Returns outputs, and None where `structure` is False; marks those of places `cut`.

  KerasHub's attention returns None for a cache not given to it.
  """
  for i in cut:
    setattr(outputs[i], _CUT, True)
  left = iter(outputs)
  return tf.nest.map_structure(
      lambda exists: next(left) if exists else None, structure)


def _first_rows(outputs: list[tf.Tensor], added: list[tf.Tensor]
               ) -> tuple[list[tf.Tensor], dict[str, tf.Tensor], list[tf.Tensor]]:
  """Returns a layer's outputs, their masks and added losses without batch axis."""
  return [out[0] for out in outputs], masks.of_one(outputs), [x[0] for x in added]


def _first_row(output: tf.Tensor) -> tf.Tensor:
  """Returns the row of an example's output that `call` keeps, with the batch axis."""
  return output if output.shape[0] == 1 else output[:1]


def _captured(capture: Capture, saved: Any, outputs: Any) -> Any:
  """Returns outputs; those that may have a gradient come from `capture`.

  `capture` gets (*saved, flat index of the output), which `gradients` takes, too.
  """
  return tf.nest.pack_sequence_as(outputs, [
      masks.put(capture((*saved, i), out), masks.mask_of(out))
      if graphs.is_differentiable(out.dtype) else out
      for i, out in enumerate(tf.nest.flatten(outputs))])


def _by_own_gradients(one: Callable[[Any], Any], values: Any, outputs: Any) -> Any:
  """Returns `outputs`, of `one` on rows of `values`, with their custom gradients."""
  # `tf.vectorized_map` drops gradients that `tf.custom_gradient` defines, so the
  # backward pass runs `one` again on each example. values[0] has the layer's inputs.
  flat = tf.nest.flatten(outputs)
  places = [i for i, out in enumerate(flat) if graphs.is_differentiable(out.dtype)]
  inputs = [each for each in values[0] if graphs.is_differentiable(each.dtype)]

  def pulled_back(row: Any) -> Any:
    """Returns the gradients with respect to an example's real and complex inputs."""
    (rows, *others), upstream = row
    inputs = [each for each in rows if graphs.is_differentiable(each.dtype)]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(inputs)
      results = tf.nest.flatten(one((rows, *others)))
    return tape.gradient(
        [_first_row(results[i]) for i in places], inputs,
        [each[None] for each in upstream],
        unconnected_gradients=tf.UnconnectedGradients.ZERO)

  @tf.custom_gradient
  def with_input_gradients(*tensors: tf.Tensor) -> Any:
    """Returns the outputs, given the inputs and then the outputs."""

    def gradient(*upstream: tf.Tensor) -> Any:
      """Returns gradients with respect to `tensors`, given those of the outputs."""
      return (*vectorization.over_rows(pulled_back, (values, list(upstream))),
              # The outputs come through tf.stop_gradient: their gradients are unused.
              *(tf.zeros_like(each) for each in upstream))

    return [tf.identity(each) for each in tensors[len(inputs):]], gradient

  connected = with_input_gradients(
      *inputs, *(tf.stop_gradient(flat[i]) for i in places))
  for i, out in zip(places, tf.nest.flatten(connected)):
    flat[i] = out
  return tf.nest.pack_sequence_as(outputs, flat)
