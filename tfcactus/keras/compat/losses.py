"""Losses of a model: kinds of Keras losses, added losses, regularizers, metrics."""

from __future__ import annotations

from collections.abc import Iterable
import copy
import re
from typing import Any

import tensorflow as tf

from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras, KERAS_3

ACTIVITY_REGULARIZER: str = (
    'activity_regularizer' if KERAS_3 else '_activity_regularizer')
"""The attribute of a layer that holds its activity regularizer."""


def is_loss(loss: Any, names: Iterable[str]) -> bool:
  """Returns whether a loss is of a named Keras class, no subclass, or its function."""
  for name in names:
    kind = getattr(keras.losses, name, None)
    in_snake_case = re.sub('(?<!^)(?=[A-Z])', '_', name).lower()
    if kind is not None and (
        type(loss) is kind or loss is getattr(keras.losses, in_snake_case, kind)):
      return True
  return False


def takes_logits(loss: Any) -> bool:
  """Returns `from_logits` of a Keras loss; False, the default, for its function."""
  settings = getattr(loss, '_fn_kwargs', getattr(loss, 'fn_kwargs', None)) or {}
  return bool(settings.get('from_logits', False))


def function_of(loss: Any) -> Any:
  """Returns the function (targets, predictions) -> losses of a loss.

  For `ignore_class`, Keras 2 gathers the positions that count: their number depends on
  the labels, so that examples differ in shape. The function returned gathers none.
  """
  if not isinstance(loss, keras.losses.Loss):
    return loss
  settings = getattr(loss, '_fn_kwargs', None) or {}
  ignored = settings.get('ignore_class')
  if KERAS_3 or ignored is None:
    return loss.call
  plain = copy.copy(loss)  # Of a subclass too, with its own attributes.
  plain._fn_kwargs = {**settings, 'ignore_class': None}

  def call(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
    """Returns losses that are zero where labels are ignored, with the mask of Keras."""
    counts = tf.not_equal(labels, tf.cast(ignored, labels.dtype))
    losses = plain.call(tf.where(counts, labels, tf.zeros_like(labels)), predictions)
    if counts.shape.rank > losses.shape.rank:
      counts = counts[..., 0]
    losses = tf.where(counts, losses, tf.zeros_like(losses))
    losses._keras_mask = counts  # pylint: disable=protected-access
    return losses

  return call


def weight_penalties(model: keras.Model) -> list[tf.Tensor]:
  """Returns the losses of a model's weight regularizers at the present weights."""
  # Keras adds the same losses in `fit`. Under Keras 2 the result includes penalties of
  # frozen weights, whose gradient is zero, and functions, `add_loss(lambda: ...)`.
  if KERAS_3:
    return [v.regularizer(v) for v in model.trainable_variables
            if getattr(v, 'regularizer', None) is not None]
  layers = [model, *models.flat_layers(model)]
  found = [penalty() for layer in layers
           for penalty in getattr(layer, '_callable_losses', ())]
  return [value for value in found if value is not None]


def output_trackers(model: keras.Model, predictions: Any,
                    places: list[tuple[int, tuple[Any, ...]]]) -> list[Any]:
  """Returns the metric that logs each output's loss, or None where Keras logs none.

  `places` has, for each output with a loss, its index in `tf.nest.flatten(predictions)`
  and the keys and indices that lead to it.
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
      # For targets the predictions serve: only the structure is used. Copies, since
      # some versions remove outputs without a loss from dicts.
      targets, outputs = (tf.nest.map_structure(lambda each: each, predictions)
                          for _ in range(2))
      compiled.build(targets, outputs)
    except (KeyError, ValueError):  # Keras 3 cannot log losses of lists in dicts.
      return [None] * len(places)
  # If the losses are a dict, Keras' paths name outputs instead of giving their index.
  names = list(getattr(model, 'output_names', None) or ())
  named = [tuple(names[key] if isinstance(key, int) and key < len(names) else key
                 for key in path) for _, path in places]
  if not hasattr(compiled, '_flat_losses'):  # Keras 3.5 and others have no paths.
    by_name = {metric.name: metric for metric in compiled.metrics}
    return [by_name.get(f'{path[-1]}_loss') if path else None for path in named]
  by_path = {loss.path: metric for loss, metric in zip(
      compiled._flat_losses, compiled.metrics)}  # pylint: disable=protected-access
  return [by_path.get(path) or by_path.get(by_name)
          for (_, path), by_name in zip(places, named)]
