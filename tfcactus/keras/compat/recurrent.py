"""Recurrent layers: loops that a graph can follow, or none at all."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import functools
import inspect
from typing import Any, Callable

import tensorflow as tf

from tfcactus.keras.compat import graphs, models, patches
from tfcactus.keras.compat.versions import keras, KERAS_3

_CONVOLUTIONAL = (
    keras.layers.ConvLSTM1D, keras.layers.ConvLSTM2D, keras.layers.ConvLSTM3D)


@contextlib.contextmanager
def unrolled(model: keras.Model) -> Iterator[None]:
  """Unrolls a model's recurrent layers, whose loops cannot be vectorised, in the block.

  Raises ValueError for ConvLSTM layers of Keras 2. The layers refuse ragged sequences.
  """
  with contextlib.ExitStack() as stack:
    for layer in [model, *models.flat_layers(model)]:
      if not isinstance(layer, keras.layers.RNN):
        continue
      if not KERAS_3 and isinstance(layer, _CONVOLUTIONAL):
        raise ValueError(
            f'Expected layers with gradients per example, got {layer.name!r}, a '
            f'{type(layer).__name__} that is vectorised (privacy_summary() says '
            'why): Keras 2 does not unroll it, and TensorFlow cannot vectorise its '
            "loop. Leave it to the engine 'auto', and change what the reason names.")
      stack.enter_context(patches.replaced(
          layer, unroll=True, _could_use_gpu_kernel=False, **_dense_only(layer)))
    yield


def _dense_only(layer: keras.layers.Layer) -> dict[str, Callable[..., None]]:
  """Returns {name: replacement} of Keras 2's check: ragged sequences are refused."""

  def check(is_ragged: bool, mask: Any) -> None:
    """Raises ValueError for ragged sequences, whatever the mask."""
    del mask
    if is_ragged:
      raise ValueError(
          f'Expected sequences in a dense tensor for {layer.name!r}, got a '
          'RaggedTensor: Keras pads it to the longest sequence of the batch, so that '
          'the other examples set the number of steps. Pad to a fixed length, '
          'to_tensor(shape=...), and mask the padding: Embedding(mask_zero=True), or '
          'keras.layers.Masking.')

  return {'_validate_args_if_ragged': check}


@contextlib.contextmanager
def as_loops(model: keras.Model) -> Iterator[None]:
  """Runs recurrent layers as loops, in the block; they refuse ragged sequences."""
  with contextlib.ExitStack() as stack:
    for layer in models.flat_layers(model):
      if isinstance(layer, keras.layers.RNN):
        stack.enter_context(patches.replaced(
            layer, unroll=False, use_cudnn=False, _could_use_gpu_kernel=False,
            **_in_loops(layer)))
        for cell in models.flat_layers(layer):
          if hasattr(cell, '_dropout_mask_cache'):
            stack.enter_context(patches.replaced(
                cell, _dropout_mask_cache=_Masks(cell, 'dropout'),
                _recurrent_dropout_mask_cache=_Masks(cell, 'recurrent_dropout')))
    yield


def _in_loops(layer: keras.layers.Layer) -> dict[str, Any]:
  """Returns {name: replacement} of methods of a layer that runs as a loop."""
  methods: dict[str, Any] = _dense_only(layer)
  if isinstance(layer, _CONVOLUTIONAL) and not KERAS_3:
    methods['get_initial_state'] = functools.partial(_zeros, layer.get_initial_state)
  if getattr(layer, '_could_use_gpu_kernel', False) and layer.dropout:
    methods['call'] = graphs.without_autograph(
        functools.partial(_dropped, layer, layer.call))
  return methods


class _Masks(dict[str, Any]):
  """Dropout masks of a cell of Keras 2, drawn before its loop for all time steps.

  Replaces Keras' cache, which would draw another mask inside the graph of the loop.
  """

  def __init__(self, cell: keras.layers.Layer, kind: str):
    super().__init__()
    self._make = getattr(cell, f'_create_{kind}_mask')

  def setdefault(self, *, kwargs: Any) -> Any:  # type: ignore[override]
    """Returns the masks, which Keras' first call, outside of the loop, has made."""
    if not self:
      self['made'] = self._make(**kwargs)
    return self['made']


def _dropped(layer: keras.layers.Layer, call: Callable[..., Any], inputs: Any,
             *args: Any, **kwargs: Any) -> Any:
  """Calls a layer of Keras 2 with another dropout mask for each time step."""
  # Keras does so where it may choose a kernel for GPUs. A cell in a loop would keep one
  # mask for all steps.
  given = inspect.signature(call).bind(inputs, *args, **kwargs).arguments
  sequences, *states = inputs if isinstance(inputs, list) else [inputs]
  layer.reset_dropout_mask()
  mask = layer.get_dropout_mask_for_cell(sequences, given.get('training'))
  layer.reset_dropout_mask()
  sequences = sequences if mask is None else sequences * mask
  with patches.replaced(layer.cell, dropout=0.0):
    return call([sequences, *states] if states else sequences, *args, **kwargs)


def _zeros(states_of: Callable[..., Any], inputs: tf.Tensor) -> Any:
  """Returns zeros for initial states that Keras 2 makes by a convolution of zeros."""
  return tf.nest.map_structure(
      lambda each: tf.zeros(each.shape, each.dtype) if each.shape.is_fully_defined()
      else each, states_of(inputs))
