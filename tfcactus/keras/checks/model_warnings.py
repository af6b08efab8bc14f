"""Warns of models that train badly, or whose noisy accuracy means nothing."""

from __future__ import annotations

import re
from typing import Any
import warnings

import tensorflow as tf

from tfcactus.keras.compat import losses as compat, models
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.independence import dependence, graph_proof

_CROSSENTROPIES = (
    'BinaryCrossentropy', 'BinaryFocalCrossentropy', 'CategoricalCrossentropy',
    'CategoricalFocalCrossentropy', 'SparseCategoricalCrossentropy')
"""Losses that take probabilities, or logits with from_logits=True."""

_OF_NUMBERS = (
    'CosineSimilarity', 'Huber', 'LogCosh', 'MeanAbsoluteError',
    'MeanAbsolutePercentageError', 'MeanSquaredError', 'MeanSquaredLogarithmicError',
    'Poisson')
"""Losses of regressions."""

_PROBABILITIES = (keras.activations.softmax, keras.activations.sigmoid)
"""Activations whose outputs are probabilities."""


def warn_of_losses(model: keras.Model, losses: Any, accuracy: object) -> None:
  """Warns of losses that do not fit a model's activations, or not a noisy accuracy.

  `losses` is the argument of `compile`, `accuracy` the plan's `NoisyAccuracy` or None.
  """
  _warn_of_activations(model, losses)
  if accuracy is not None:
    _warn_of_regression(model, losses)


def _warn_of_activations(model: keras.Model, losses: Any) -> None:
  """Warns if a loss takes linear outputs for probabilities, or the reverse."""
  # `losses` is one loss for all outputs, or one for each. Silent for a dict of losses,
  # and if the activation of an output is not known, as in subclassed models.
  layers = models.last_layers(model)
  given = list(losses) if isinstance(losses, (list, tuple)) else [losses] * len(layers)
  for layer, loss in zip(layers, given):
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    activation = getattr(layer, 'activation', None)
    if activation is None or not compat.is_loss(loss, _CROSSENTROPIES):
      continue
    logits = compat.takes_logits(loss)
    name = getattr(loss, 'name', None) or loss.__name__
    if activation is keras.activations.linear and not logits:
      warnings.warn(
          f'Expected probabilities from layer {layer.name!r} with the loss {name} of '
          'from_logits=False, got a linear activation, whose outputs are logits: '
          'training goes wrong without an error. Pass a loss of from_logits=True, or '
          "end the model in 'softmax' or 'sigmoid'.", stacklevel=4)
    if logits and activation in _PROBABILITIES:
      warnings.warn(
          f'Expected logits from layer {layer.name!r} with the loss {name} of '
          f'from_logits=True, got probabilities ({activation.__name__}), which the '
          'loss normalises again: training is slow without an error. Leave out '
          'from_logits=True, or the activation.', stacklevel=4)


def _warn_of_regression(model: keras.Model, losses: Any) -> None:
  """Warns if a noisy accuracy counts answers of a model that predicts numbers."""
  # Silent unless all losses are of regressions, and no output is known to be a
  # probability, as where the squared error of probabilities is the loss.
  given = [keras.losses.get(each) for each in tf.nest.flatten(losses)
           if each is not None]
  probabilities = any(getattr(layer, 'activation', None) in _PROBABILITIES
                      for layer in models.last_layers(model))
  if given and not probabilities and all(
      compat.is_loss(loss, _OF_NUMBERS) for loss in given):
    warnings.warn(
        f'Expected a classifier with noisy_accuracy, got the loss {losses!r} of a '
        'regression: the accuracy compares outputs above 1/2 with targets above 1/2, '
        'or the largest of several, which says nothing of numbers. Leave '
        'noisy_accuracy out of the plan: it costs noise.', stacklevel=4)


def warn_of_batch_statistics(model: keras.Model, graph: tf.Graph) -> None:
  """Warns, with the layer's name, if a built model reduces over the batch axis.

  `graph` is the model's pass, from `state_writes.check_no_writes`.
  """
  # Each example goes through such a layer alone in training, so that the statistic is
  # that of one example. Silent if the model cannot be analysed.
  examples = graph.inputs[:len(tf.nest.flatten(models.input_spec(model)))]
  try:
    found = graph_proof.first_dependence(graph, examples, [
        each for each in tf.nest.flatten(graph.structured_outputs[0])
        if tf.is_tensor(each)])
  except (ValueError, TypeError, NotImplementedError, tf.errors.OpError):
    return  # The engine tells what stands in the way of training.
  if found is None or found.dependence != dependence.Dependence.MIXED or (
      'goes over the examples' not in found.why):
    return
  reducing = [op for op in graph.get_operations() if op.name == found.operation]
  if reducing and not reducing[0].outputs[0].dtype.is_floating:
    return  # Such as the largest label, by which CategoryEncoding counts its bins.
  places = found.operation.split('/')
  layer = next((each.name for each in reversed(models.flat_layers(model)) if any(
      re.fullmatch(re.escape(each.name) + r'(_\d+)?', place) for place in places)),
               model.name)
  warnings.warn(
      f'Layer {layer!r} computes a statistic over the batch ({found.why}). In private '
      'training each example goes through the layer alone: its mean over the batch is '
      'the example itself, and z - mean(z, axis=0) is zero. In evaluate and predict it '
      'is the mean over the whole batch. Take LayerNormalization or '
      'GroupNormalization, or reduce the last axis (axis=-1).', stacklevel=4)
