"""Helpers for fine-tuning: features of a frozen backbone, GroupNormalization, LoRA."""

from __future__ import annotations

import math
import os
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

from tfcactus import _checks
from tfcactus.keras import serialization
from tfcactus.keras.checks import state_writes
from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.data import data_sources
from tfcactus.keras.independence import graph_proof


def features(backbone: keras.Model, x: Any, batch_size: int = 64) -> np.ndarray:
  """Returns a frozen backbone's outputs for fixed examples, one row for each.

  A head trained privately on the features has the guarantee of its plan for the
  examples: this function proves that the backbone, in inference mode, computes each row
  from one example. The backbone must not have been trained on these private examples.

  Args:
    backbone: A Sequential or functional model of one output.
    x: Array of examples.
    batch_size: Number of examples to compute at once; the last batch is padded.

  Raises:
    ValueError: if `x` is no array of examples, or the backbone writes variables or may
      mix examples.
  """
  batch_size = _checks.integer('batch_size', batch_size, 1)
  x = data_sources.checked_array('x', x, texts=True)
  if not len(x):
    raise ValueError('Expected x with at least one example, got none.')
  # In the proof, a batch axis of length 1 would look like any other axis of length 1.
  shape = (max(2, batch_size), *x.shape[1:])
  run = tf.function(lambda rows: backbone(rows, training=False), autograph=False)
  graph = run.get_concrete_function(tf.TensorSpec(shape, x.dtype)).graph
  if len(graph.outputs) != 1:
    raise ValueError('Expected a backbone of one output, got one of '
                     f'{len(graph.outputs)}; make a model of one of them.')
  state_writes.check_graph(graph, 'backbones', backbone)
  found = graph_proof.first_dependence(
      graph, graph.inputs[:1], graph.outputs, shape[0])
  if found is not None:
    raise ValueError(
        'Expected a backbone in which each example is by itself, or of which that is '
        f'known, got {found.why}: one example would be in the features of others. '
        'Train it with tfcactus.keras.privatize, frozen, instead.')
  parts = []
  for start in range(0, len(x), shape[0]):
    rows = x[start:start + shape[0]]
    parts.append(run(tf.constant(data_sources.padded(rows, shape[0])))[:len(rows)])
  return np.concatenate([np.asarray(part) for part in parts])


def group_normalized(model: keras.Model, groups: int = 8) -> keras.Model:
  """Returns a copy of a model with GroupNormalization for each BatchNormalization.

  BatchNormalization cannot be trained privately: it mixes the examples of a batch and
  keeps their statistics without noise. The copy takes over all weights, including scale
  and shift of normalizations, but no moving statistics. The copy is a starting point
  for training: its outputs differ from those of the model.

  Args:
    model: A built Sequential or functional model; nested models are copied too.
    groups: Number of groups of channels; if it does not divide the channels, their
      greatest common divisor.

  Raises:
    ValueError: if the model is of another kind, or `groups` is below one.
  """
  groups = _checks.integer('groups', groups, 1)
  if not models.is_graph(model):
    raise ValueError(
        'Expected a built Sequential or functional model, whose layers can be '
        f'replaced, got {model!r}; write GroupNormalization where it is made.')
  copy = models.clone(model, lambda layer: _copied(layer, groups))
  for layer, old in zip(copy.layers, model.layers):
    if isinstance(old, keras.layers.BatchNormalization):
      layer.set_weights([np.asarray(value) for value in (
          old.gamma if old.scale else None, old.beta if old.center else None)
                         if value is not None])
    elif not models.is_graph(old):
      layer.set_weights(old.get_weights())
  _copy_trainable(copy, model)
  return copy


def merged(model: keras.Model) -> keras.Model:
  """Returns a copy of a model with its LoRA factors added into the weights.

  The copy computes what the model computes. It is for inference: layers that were
  frozen may be trainable in it. The guarantee of a private training holds for the copy
  too, since merging uses no data.

  Args:
    model: A built model that Keras can save, with layers after `enable_lora`; of a
      private model, its `inner`.

  Raises:
    ValueError: if the model is private, not built or without such layers.
  """
  if not isinstance(model, keras.Model) or isinstance(model, serialization.SavedModel):
    raise ValueError(
        f'Expected model to be a plain Keras model, got {model!r}; of a private model, '
        'merge private_model.inner.')
  if not model.built or not models.lora_layers(model):
    raise ValueError(
        'Expected a built model with layers after enable_lora(rank), got none in '
        f'{model.name!r}; a model without them needs no merging.')
  config = _without_lora(keras.saving.serialize_keras_object(model))
  # The config is of a model in this process, whose Lambda layers may run.
  copy = keras.saving.deserialize_keras_object(config, safe_mode=False)
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, 'merged.weights.h5')
    model.save_weights(path)  # Keras adds the factors to what it writes.
    copy.load_weights(path)
  return copy


def _without_lora(config: Any) -> Any:
  """Returns a config of Keras objects, nested or not, without the ranks of LoRA."""
  if isinstance(config, dict):
    return {key: None if key in ('lora_rank', 'lora_alpha') else _without_lora(value)
            for key, value in config.items()}
  if isinstance(config, (list, tuple)):
    return type(config)(map(_without_lora, config))
  return config


def _copy_trainable(copy: keras.Model, model: keras.Model) -> None:
  """Makes layers of a copy trainable or not, as those of the model."""
  for layer, old in zip(copy.layers, model.layers):
    layer.trainable = old.trainable
    if models.is_graph(old):  # Keras has set all layers inside of it, too.
      _copy_trainable(layer, old)


def _copied(layer: keras.layers.Layer, groups: int) -> keras.layers.Layer:
  """Returns a copy of a layer or nested model, normalized by groups, not by batches."""
  if models.is_graph(layer):
    return group_normalized(layer, groups)
  if not isinstance(layer, keras.layers.BatchNormalization):
    return type(layer).from_config(layer.get_config())
  axis = layer.axis if isinstance(layer.axis, int) else layer.axis[0]
  shape = models.output_shapes(layer)[0]
  channels = shape[axis]
  number = math.gcd(channels, groups)
  if number == channels and len(shape) == 2:
    number = 1  # A group of one entry would always be normalized to zero.
  config = layer.get_config()
  both = {key: config[key] for key in keras.layers.GroupNormalization().get_config()
          if key in config}
  return keras.layers.GroupNormalization.from_config(
      {**both, 'groups': number, 'axis': axis})
