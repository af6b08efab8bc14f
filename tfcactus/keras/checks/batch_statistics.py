"""Warns of handmade statistics over a batch, such as `z - mean(z, axis=0)`."""

from __future__ import annotations

import re
import warnings

import tensorflow as tf

from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.independence import dependence, graph_proof


def warn(model: keras.Model, graph: tf.Graph) -> None:
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
  whole = [op for op in graph.get_operations() if op.name == found.operation]
  if whole and not whole[0].outputs[0].dtype.is_floating:
    return  # Such as the largest label, which CategoryEncoding makes bins of.
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
