"""The one place that asks for versions: which Keras this package runs on."""

from __future__ import annotations

from typing import Any
from typing import List

import tensorflow as tf

_OLDEST = (2, 14)
_FIRST_UNSUPPORTED = (2, 16)


def check_version(version: str) -> None:
  """Refuses a TensorFlow whose `tf.keras` is not a supported Keras 2.

  Args:
    version: A TensorFlow version such as "2.15.1".

  Raises:
    ImportError: if it is older than 2.14, or 2.16 and later (Keras 3).
  """
  parts = tuple(int(part) for part in version.split('.')[:2])
  if _OLDEST <= parts < _FIRST_UNSUPPORTED:
    return
  why = ('its tf.keras is Keras 3, which tfcactus.keras does not support yet'
         if parts >= _FIRST_UNSUPPORTED else 'it is too old')
  raise ImportError(
      f'Expected TensorFlow 2.14 or 2.15, got TensorFlow {version}: {why}. '
      'Install "tensorflow>=2.14,<2.16".')


check_version(tf.__version__)
keras = tf.keras
LegacyAdagrad = tf.keras.optimizers.legacy.Adagrad
LegacyAdam = tf.keras.optimizers.legacy.Adam
LegacySGD = tf.keras.optimizers.legacy.SGD
LegacyRMSprop = tf.keras.optimizers.legacy.RMSprop
RANDOM_LAYERS = (
    keras.layers.Dropout, keras.layers.GaussianNoise,
    keras.layers.GaussianDropout, keras.layers.AlphaDropout, keras.layers.Lambda)
_FUNCTIONAL = type(keras.Model(*[keras.Input((1,))] * 2))


def is_graph(model: Any) -> bool:
  """Whether a model is nothing but its layers: Sequential or functional.

  True for the classes themselves only, as a subclass may override `call`.
  """
  if type(model) is keras.Sequential:
    return model.built
  return type(model) is _FUNCTIONAL


def graph_layers(model: Any) -> List[Any]:
  """The layers a model is made of, models inside it opened up."""
  found = {}
  for layer in model.layers:
    inner = graph_layers(layer) if is_graph(layer) else [layer]
    found.update((id(part), part) for part in inner)
  return list(found.values())


def call_arguments(layer: Any) -> List[Any]:
  """What a layer was called with, at each place of a functional model."""
  return [(node.call_args, node.call_kwargs) for node in layer.inbound_nodes]


def output_shapes(layer: Any) -> List[Any]:
  """Shapes of a layer's output at each place of a functional model."""
  shapes = []
  for node in layer.inbound_nodes:
    shapes += [out.shape.as_list() for out in tf.nest.flatten(node.outputs)]
  return shapes
