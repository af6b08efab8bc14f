"""Saves and restores which variables a model trains, and its LoRA factors.

A layer that makes its inner layers itself, as backbones do, is loaded with all of them
trainable and without the factors of `enable_lora`. Keras saves their product within the
weights, and sets both factors to zero when it loads: so they would never be trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
import contextlib
import json
import math
import re
from typing import Any
import warnings

import numpy as np

from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras, KERAS_3

_TRAINED = 'trained'


def config(model: keras.Model) -> dict[str, Any] | None:
  """Returns which variables a model trains, for `restore`; None if it is not built.

  Returns {'layers': a `_layer_config` of each, 'variables': shapes of those trained}.
  """
  if not model.built:
    return None
  return {'layers': [_layer_config(layer) for layer in _all_layers(model)],
          'variables': _shapes(model)}


def restore(model: keras.Model, saved: Mapping[str, Any]) -> None:
  """Enables LoRA and sets `trainable` in a built model as in `saved`, a `config`.

  Changes nothing if layers differ in class, name or number of variables. Raises
  ValueError if the trained variables then have other shapes than the saved ones.
  """
  layers = _all_layers(model)
  if config(model) == saved:
    return
  if [_kind(each) for each in saved['layers']] == [
      _kind(_layer_config(layer)) for layer in layers]:
    for layer, wanted in zip(layers, saved['layers']):
      rank, alpha = wanted['lora']
      if rank is not None and not layer.lora_enabled:
        layer.enable_lora(rank)
      if rank is not None and alpha is not None:
        layer.lora_alpha = alpha  # `enable_lora` sets a default.
    # Not by `layer.trainable`, which would also set that of the layers inside.
    for layer, wanted in zip(layers, saved['layers']):
      layer.__dict__['_trainable'] = wanted['trainable']
      for variable, trained in zip(_own_variables(layer), wanted['variables']):
        variable.trainable = trained
  if _shapes(model) != saved['variables']:
    raise ValueError(
        f'Expected the loaded model to train {_counted(saved["variables"])}, as the '
        f'saved one did, got {_counted(_shapes(model))}: its layers are made anew, '
        'and in another way. Build it, freeze its layers and enable_lora as before, '
        'privatize(model, plan), then load_weights(file).')


def save(model: keras.Model, store: MutableMapping[str, Any]) -> None:
  """Writes to `store` which variables are trained, and LoRA weights and factors."""
  store[_TRAINED] = np.frombuffer(json.dumps(_shapes(model)).encode(), np.uint8)
  for key, variable in _lora_variables(model).items():
    store[key] = np.asarray(variable, np.float64 if (
        models.stored_dtype(variable).size > 4) else np.float32)


def load(model: keras.Model, store: Mapping[str, Any]) -> None:
  """Has layers with LoRA set weights and factors from `store` when Keras loads them.

  If the file lacks any of them in the right shape, all first factors stay as they were
  and the second ones are zero. Warns if the model of the file trained variables of
  other shapes.
  """
  if _TRAINED in store.keys():
    trained = json.loads(np.asarray(store[_TRAINED]).tobytes())
    if trained != _shapes(model):
      warnings.warn(
          f'The weights are of a run that trained {_counted(trained)}, and this model '
          f'trains {_counted(_shapes(model))}. To go on with that run, freeze the same '
          'layers and enable_lora before privatize.', stacklevel=2)
  known = _lora_variables(model)
  from_file = all(key in store.keys() and tuple(store[key].shape) == tuple(
      variable.shape) for key, variable in known.items())
  for number, layer in enumerate(_lora_layers(model)):
    weights, first, second = _keys(number)
    # Keras loads the weights and sets both factors to zero; the first one must stay.
    keys = [weights, first, second] if from_file else [first]
    values = {key: np.asarray((store if from_file else known)[key]) for key in keys}
    _load_later(layer, {key: known[key] for key in values}, values)


@contextlib.contextmanager
def loading(model: keras.Model) -> Iterator[None]:
  """Undoes after the block what `load` prepared, in layers that loaded no weights."""
  try:
    yield
  finally:
    for layer in _lora_layers(model):
      layer.__dict__.pop('load_own_variables', None)


def _load_later(layer: keras.layers.Layer, variables: Mapping[str, Any],
                values: Mapping[str, np.ndarray]) -> None:
  """Makes a layer assign `values` to `variables` once, after loading its weights."""

  def load_own_variables(store: Any) -> None:
    """Loads weights as the layer's class does, then assigns the values."""
    del layer.__dict__['load_own_variables']
    layer.load_own_variables(store)
    for key, variable in variables.items():
      variable.assign(values[key])

  layer.__dict__['load_own_variables'] = load_own_variables


def _all_layers(model: keras.Model) -> list[keras.layers.Layer]:
  """Returns a model and all its layers except inputs, in the order of creation."""
  return [model, *(layer for layer in models.flat_layers(model)
                   if not isinstance(layer, keras.layers.InputLayer))]


def _layer_config(layer: keras.layers.Layer) -> dict[str, Any]:
  """Returns which variables of a layer are trained, and LoRA's rank and alpha."""
  with_lora = getattr(layer, 'lora_enabled', False)
  return {
      'kind': type(layer).__name__, 'name': layer.name,
      'trainable': bool(layer.trainable),
      'lora': [getattr(layer, name, None) if with_lora else None
               for name in ('lora_rank', 'lora_alpha')],
      'variables': [bool(each.trainable) for each in _own_variables(layer)]}


def _kind(layer: Mapping[str, Any]) -> tuple[Any, ...]:
  """Returns (class, name, variables), the same before and after `enable_lora`."""
  factors = 2 * (layer['lora'][0] is not None)
  name = re.sub(r'_\d+$', '', layer['name'])  # Keras numbers the names.
  return layer['kind'], name, len(layer['variables']) - factors


def _own_variables(layer: keras.layers.Layer) -> list[Any]:
  """Returns a layer's own weights; [] under Keras 2, where one flag is for all."""
  if not KERAS_3:
    return []
  return [*layer._trainable_variables, *layer._non_trainable_variables]  # pylint: disable=protected-access


def _shapes(model: keras.Model) -> list[list[int]]:
  """Returns the shapes of all variables that a model trains."""
  return [list(variable.shape) for variable in model.trainable_variables]


def _counted(shapes: list[list[int]]) -> str:
  """Returns the numbers of variables and of weights with these shapes, in words."""
  return f'{len(shapes):,} variables of {sum(map(math.prod, shapes)):,} weights'


def _lora_layers(model: keras.Model) -> list[keras.layers.Layer]:
  """Returns all layers with LoRA whose weights are not quantised."""
  return [layer for layer in models.lora_layers(model)
          if not getattr(layer, 'quantization_mode', None)]


def _keys(number: int) -> list[str]:
  """Returns the names in a file: a LoRA layer's weights, first and second factor."""
  return [f'lora_{number}_{part}' for part in ('base', 'a', 'b')]


def _lora_variables(model: keras.Model) -> dict[str, Any]:
  """Returns weights and factors of all layers with LoRA, by their names in a file."""
  return {key: variable for number, layer in enumerate(_lora_layers(model))
          for key, variable in zip(_keys(number), models.lora_variables(layer))}
