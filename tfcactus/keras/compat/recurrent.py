"""Recurrent layers: their arguments, cells, dropout masks and return values."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import inspect
from typing import Any, Callable, NamedTuple, Optional

import tensorflow as tf

from tfcactus.keras.compat import models, patches
from tfcactus.keras.compat.versions import keras, KERAS_3

CONVOLUTIONAL = (
    keras.layers.ConvLSTM1D, keras.layers.ConvLSTM2D, keras.layers.ConvLSTM3D)

Masks = Optional[list[tf.Tensor]]
"""Dropout masks, one per gate or one for all gates; None for no dropout."""


class Arguments(NamedTuple):
  """The arguments of a recurrent layer's call."""

  sequences: tf.Tensor  # Shape (rows, time, ...).
  # Initial states of all cells, concatenated in a list; None for zeros.
  states: list[tf.Tensor] | None
  mask: tf.Tensor | None  # Booleans, shape (rows, time), or None.
  training: Any  # Whether dropout is on; may be None under Keras 2.


def arguments(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Arguments:
  """Returns the arguments of a layer's `call`, positional or not."""
  bound = inspect.signature(call).bind(*args, **kwargs).arguments
  sequences = bound.get('sequences' if KERAS_3 else 'inputs')
  states = bound.get('initial_state')
  if isinstance(sequences, list):  # Keras 2 may pass states as inputs.
    sequences, *more = sequences
    states = more or states
  if isinstance(sequences, tf.RaggedTensor):
    raise ValueError(
        'Expected sequences in a dense tensor, got a RaggedTensor, of which '
        'gradients per example are not known; pad them (to_tensor()) and mask '
        'the padding (mask_zero=True, or keras.layers.Masking).')
  mask = next(iter(tf.nest.flatten(bound.get('mask'))), None)
  return Arguments(
      sequences, None if states is None else tf.nest.flatten(states),
      None if mask is None else tf.cast(mask, tf.bool), bound.get('training'))


def cells(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
  """Returns the cells of a recurrent layer, in the order of their calls."""
  cell = layer.cell
  return list(cell.cells) if type(cell) is keras.layers.StackedRNNCells else [cell]


def is_convolution(cell: keras.layers.Layer) -> bool:
  """Returns whether a cell belongs to a ConvLSTM; Keras does not export its class."""
  kind = type(cell)
  return kind.__name__ == 'ConvLSTMCell' and (
      kind.__module__.startswith(keras.__name__ + '.'))


def unusual_call(layer: keras.layers.Layer) -> str:
  """Returns a setting that no rule covers, as not every Keras has it; or ''."""
  if getattr(layer, 'time_major', False):
    return 'time_major=True'
  if getattr(layer.cell, 'reverse_state_order', False):
    return 'reverse_state_order=True'
  return 'constants' if getattr(layer, '_num_constants', 0) else ''


def zeroes_masked(layer: keras.layers.Layer) -> bool:
  """Returns whether outputs of masked steps are zeros, not the previous output."""
  # Keras 2 ignores the setting in convolutional layers.
  ignored = not KERAS_3 and isinstance(layer, CONVOLUTIONAL)
  return bool(layer.zero_output_for_mask) and not ignored


def dropped(layer: keras.layers.Layer, sequences: tf.Tensor, training: Any
           ) -> tf.Tensor | None:
  """Returns the inputs after dropout if every time step has its own mask, else None."""
  # Keras 2 draws such masks in layers for which it may choose a GPU kernel.
  if not getattr(layer, '_could_use_gpu_kernel', False) or not layer.dropout:
    return None
  layer.reset_dropout_mask()
  mask = layer.get_dropout_mask_for_cell(sequences, training)
  layer.reset_dropout_mask()
  return sequences * mask


def dropout_masks(cell: keras.layers.Layer, gates: int, name: str,
                  values: tf.Tensor, training: Any) -> Masks:
  """Returns a cell's dropout masks, one per gate or for all; None without dropout."""
  # They are the same at all time steps. `values` is the tensor that is masked at one.
  if not 0 < getattr(cell, name) < 1 or KERAS_3 and not training:
    return None
  per_gate = is_convolution(cell) or getattr(cell, 'implementation', 2) == 1
  count = gates if per_gate else 1
  _forget_masks(cell)
  if KERAS_3:
    made = getattr(cell, f'get_{name}_mask')(values)
  else:
    made = getattr(cell, f'get_{name}_mask_for_cell')(values, training, count)
  _forget_masks(cell)
  return list(made)[:count] if isinstance(made, (list, tuple)) else [made]


def _forget_masks(cell: keras.layers.Layer) -> None:
  """Removes the dropout masks that a cell has cached."""
  cell.reset_dropout_mask()
  cell.reset_recurrent_dropout_mask()


@contextlib.contextmanager
def unrolled(model: keras.Model) -> Iterator[None]:
  """Unrolls a model's recurrent layers, whose loops cannot be vectorised."""
  with contextlib.ExitStack() as stack:
    for layer in [model, *models.flat_layers(model)]:
      if not isinstance(layer, keras.layers.RNN):
        continue
      if not KERAS_3 and isinstance(layer, CONVOLUTIONAL):
        raise ValueError(
            f'Expected layers with gradients per example, got {layer.name!r}, a '
            f'{type(layer).__name__} that is vectorised (privacy_summary() says '
            'why): Keras 2 does not unroll it, and TensorFlow cannot vectorise its '
            "loop. Leave it to the engine 'auto', with channels_last, in a "
            'Sequential or functional model.')
      stack.enter_context(patches.replaced(
          layer, unroll=True, _could_use_gpu_kernel=False))
    yield


def returned(layer: keras.layers.Layer, output: tf.Tensor, states: list[Any]) -> Any:
  """Returns the output, and final states (a list per cell) if `call` returns them."""
  if KERAS_3:
    output = tf.cast(output, layer.compute_dtype)
    states = tf.nest.map_structure(
        lambda state: tf.cast(state, layer.compute_dtype), states)
  if not layer.return_state:
    return output
  if len(states) == 1:
    states = states[0]
  return (output, *states) if KERAS_3 else [output, *states]
