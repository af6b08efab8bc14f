"""Where each Keras keeps added losses, regularizers and trackers of losses."""

from __future__ import annotations

from typing import Any
from typing import List
from typing import Tuple

import tensorflow as tf

from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.compat.versions import KERAS_3

ACTIVITY_REGULARIZER: str = (
    'activity_regularizer' if KERAS_3 else '_activity_regularizer')
"""The attribute of a layer that a call of it asks."""


def weight_penalties(model: keras.Model) -> List[tf.Tensor]:
  """What the weight regularizers of a model give for its weights as they are.

  Those that Keras itself would add to the loss: Keras 2 counts frozen weights
  too, whose gradient is none. In it they also are losses added by functions of
  nothing, `add_loss(lambda: ...)`.
  """
  if KERAS_3:
    return [v.regularizer(v) for v in model.trainable_variables
            if getattr(v, 'regularizer', None) is not None]
  layers = [model, *models.flat_layers(model)]
  found = [penalty() for layer in layers
           for penalty in getattr(layer, '_callable_losses', ())]
  return [value for value in found if value is not None]


def output_trackers(model: keras.Model, predictions: Any,
                    places: List[Tuple[int, Tuple[Any, ...]]]) -> List[Any]:
  """The metrics by which a compiled model logs the loss of each output.

  Args:
    model: The compiled model.
    predictions: What it returned.
    places: For each output with a loss, its place in `tf.nest.flatten` of the
      predictions and the keys and indices that lead there.

  Returns:
    A metric for each, or None where Keras logs none.
  """
  if not KERAS_3:
    if not model.compiled_loss.built:
      model.compiled_loss.build(predictions)
    found = tf.nest.flatten(model.compiled_loss._per_output_metrics)  # pylint: disable=protected-access
    return [found[place] if place < len(found) else None for place, _ in places]
  compiled = model._compile_loss  # pylint: disable=protected-access
  if compiled is None:
    return [None] * len(places)
  if not compiled.built:
    try:
      # It asks targets for their structure, and predictions have the same. Some
      # versions take what has no loss out of dicts.
      compiled.build(*(tf.nest.map_structure(lambda each: each, predictions)
                       for _ in range(2)))
    except (KeyError, ValueError):  # Of lists in dicts Keras 3 cannot log losses.
      return [None] * len(places)
  # Lists are known by names, where losses are a dict.
  names = list(getattr(model, 'output_names', None) or ())
  named = [tuple(names[key] if isinstance(key, int) and key < len(names) else key
                 for key in path) for _, path in places]
  if not hasattr(compiled, '_flat_losses'):  # Such as Keras 3.5, which knows no paths.
    by_name = {metric.name: metric for metric in compiled.metrics}
    return [by_name.get(f'{path[-1]}_loss') if path else None for path in named]
  by_path = {loss.path: metric for loss, metric in zip(
      compiled._flat_losses, compiled.metrics)}  # pylint: disable=protected-access
  return [by_path.get(path) or by_path.get(other)
          for (_, path), other in zip(places, named)]
