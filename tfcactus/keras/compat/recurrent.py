"""Recurrent layers: loops that a graph can follow, or none at all."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import functools
import inspect
from typing import Any, Callable

from tfcactus.keras.compat import graphs, models, patches
from tfcactus.keras.compat.versions import keras, KERAS_3

_CONVOLUTIONAL = (
    keras.layers.ConvLSTM1D, keras.layers.ConvLSTM2D, keras.layers.ConvLSTM3D)


@contextlib.contextmanager
def unrolled(model: keras.Model) -> Iterator[None]:
  """Unrolls a model's recurrent layers, whose loops cannot be vectorised."""
  with contextlib.ExitStack() as stack:
    for layer in [model, *models.flat_layers(model)]:
      if not isinstance(layer, keras.layers.RNN):
        continue
      if not KERAS_3 and isinstance(layer, _CONVOLUTIONAL):
        raise ValueError(
            f'Expected layers with gradients per example, got {layer.name!r}, a '
            f'{type(layer).__name__} that is vectorised (privacy_summary() says '
            'why): Keras 2 does not unroll it, and TensorFlow cannot vectorise its '
            "loop. Leave it to the engine 'auto', with channels_last, in a "
            'Sequential or functional model.')
      stack.enter_context(patches.replaced(
          layer, unroll=True, _could_use_gpu_kernel=False))
    yield


@contextlib.contextmanager
def as_loop(layer: keras.layers.Layer) -> Iterator[None]:
  """Runs a layer as a loop of its cell, not as a function with a kernel for GPUs."""
  more = {}
  if getattr(layer, '_could_use_gpu_kernel', False) and layer.dropout:
    more['call'] = graphs.without_autograph(
        functools.partial(_dropped, layer, layer.call))
  with patches.replaced(
      layer, unroll=False, use_cudnn=False, _could_use_gpu_kernel=False, **more):
    yield


def _dropped(layer: keras.layers.Layer, call: Callable[..., Any], inputs: Any,
             *args: Any, **kwargs: Any) -> Any:
  """Calls a layer of Keras 2 with other inputs dropped out at each time step."""
  # Keras does so where it may choose a kernel for GPUs. Cells keep one mask.
  given = inspect.signature(call).bind(inputs, *args, **kwargs).arguments
  sequences, *states = inputs if isinstance(inputs, list) else [inputs]
  layer.reset_dropout_mask()
  mask = layer.get_dropout_mask_for_cell(sequences, given.get('training'))
  layer.reset_dropout_mask()
  sequences = sequences if mask is None else sequences * mask
  with patches.replaced(layer.cell, dropout=0.0):
    return call([sequences, *states] if states else sequences, *args, **kwargs)
