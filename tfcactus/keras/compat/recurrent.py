"""How each Keras calls its recurrent layers, and what they hand back."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any
from typing import Callable
from typing import Iterator
from typing import List
from typing import NamedTuple
from typing import Optional

import tensorflow as tf

from tfcactus.keras.compat import models
from tfcactus.keras.compat import patches
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.compat.versions import KERAS_3

CONVOLUTIONAL = (
    keras.layers.ConvLSTM1D, keras.layers.ConvLSTM2D, keras.layers.ConvLSTM3D)

Masks = Optional[List[tf.Tensor]]
"""What values are multiplied by before each gate's kernel; None for nothing."""


class Arguments(NamedTuple):
  """What a recurrent layer is called with.

  Attributes:
    sequences: Shape (rows, time, ...).
    states: Initial ones of all cells, one after another; None for zeros.
    mask: Booleans, shape (rows, time), or None.
    training: Whether dropout is on; may be None under Keras 2.
  """

  sequences: tf.Tensor
  states: Optional[List[tf.Tensor]]
  mask: Optional[tf.Tensor]
  training: Any


def arguments(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Arguments:
  """The arguments of a layer's `call`, however they are given."""
  bound = inspect.signature(call).bind(*args, **kwargs).arguments
  sequences = bound.get('sequences' if KERAS_3 else 'inputs')
  states = bound.get('initial_state')
  if isinstance(sequences, list):  # Where Keras 2 has states as inputs.
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


def cells(layer: keras.layers.Layer) -> List[keras.layers.Layer]:
  """The cells of a recurrent layer, in the order of their calls."""
  cell = layer.cell
  return list(cell.cells) if type(cell) is keras.layers.StackedRNNCells else [cell]


def is_convolution(cell: keras.layers.Layer) -> bool:
  """Whether it is the cell of a ConvLSTM, which Keras does not export."""
  kind = type(cell)
  return kind.__name__ == 'ConvLSTMCell' and (
      kind.__module__.startswith(keras.__name__ + '.'))


def unusual_call(layer: keras.layers.Layer) -> str:
  """What of a layer's settings only one Keras has, or ''."""
  if getattr(layer, 'time_major', False):
    return 'time_major=True'
  if getattr(layer.cell, 'reverse_state_order', False):
    return 'reverse_state_order=True'
  return 'constants' if getattr(layer, '_num_constants', 0) else ''


def zeroes_masked(layer: keras.layers.Layer) -> bool:
  """Whether outputs of masked steps are zeros, not those of the step before."""
  # Keras 2 overlooks it where it convolves.
  ignored = not KERAS_3 and isinstance(layer, CONVOLUTIONAL)
  return bool(layer.zero_output_for_mask) and not ignored


def dropped(layer: keras.layers.Layer, sequences: tf.Tensor, training: Any
           ) -> Optional[tf.Tensor]:
  """Inputs after a dropout of each step's own, if that is what the layer does."""
  # Keras 2 does, where it might have used another kernel.
  if not getattr(layer, '_could_use_gpu_kernel', False) or not layer.dropout:
    return None
  layer.reset_dropout_mask()
  mask = layer.get_dropout_mask_for_cell(sequences, training)
  layer.reset_dropout_mask()
  return sequences * mask


def dropout_masks(cell: keras.layers.Layer, gates: int, name: str,
                  values: tf.Tensor, training: Any) -> Masks:
  """A cell's own masks, for all time steps.

  Args:
    cell: The cell.
    gates: How many it has.
    name: 'dropout' or 'recurrent_dropout'.
    values: What is masked, of one time step.
    training: As the layer is called with.

  Returns:
    A mask for each gate, or one for all of them.
  """
  if not 0 < getattr(cell, name) < 1 or KERAS_3 and not training:
    return None
  each = is_convolution(cell) or getattr(cell, 'implementation', 2) == 1
  count = gates if each else 1
  _forget_masks(cell)
  if KERAS_3:
    made = getattr(cell, f'get_{name}_mask')(values)
  else:
    made = getattr(cell, f'get_{name}_mask_for_cell')(values, training, count)
  _forget_masks(cell)
  return list(made)[:count] if isinstance(made, (list, tuple)) else [made]


def _forget_masks(cell: keras.layers.Layer) -> None:
  cell.reset_dropout_mask()
  cell.reset_recurrent_dropout_mask()


@contextlib.contextmanager
def unrolled(model: keras.Model) -> Iterator[None]:
  """Has recurrent layers of a model, or a layer, write out their steps for a while.

  Gradients per example cannot be taken by vectorising through their loops.

  Raises:
    ValueError: if one of them always goes through a loop.
  """
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


def returned(layer: keras.layers.Layer, output: tf.Tensor, states: List[Any]) -> Any:
  """What the layer's `call` returns.

  Args:
    layer: The layer.
    output: Of the last step, or of all.
    states: Of each cell, a list.
  """
  if KERAS_3:
    output = tf.cast(output, layer.compute_dtype)
    states = tf.nest.map_structure(
        lambda state: tf.cast(state, layer.compute_dtype), states)
  if not layer.return_state:
    return output
  if len(states) == 1:
    states = states[0]
  return (output, *states) if KERAS_3 else [output, *states]


@contextlib.contextmanager
def unfused(layer: keras.layers.Layer) -> Iterator[None]:
  """Has a Bidirectional call its layers for a while.

  Keras 3 may go around them, where it finds a kernel for both.
  """
  around = {name: lambda *args, **kwargs: False for name in (
      '_can_attempt_fused_lstm', '_can_attempt_fused_gru')}
  with patches.replaced(layer, **around):
    yield
