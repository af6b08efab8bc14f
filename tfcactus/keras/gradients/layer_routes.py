"""How each layer's per-example gradients are taken, decided up front.

A batch goes through the model at once only if every layer in it is known to
treat each example alone. What is not known is vectorised: run on batches of
one, so that it cannot mix examples whatever it does.
"""

from __future__ import annotations

from typing import Any
from typing import Dict
from typing import List
from typing import NamedTuple
from typing import Optional
from typing import Tuple

import numpy as np
import tensorflow as tf

from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import layers
from tfcactus.keras.gradients.layers import normalization
from tfcactus.keras.gradients.layers.base import LayerRule


class Route(NamedTuple):
  """How one layer is run in a private step.

  Attributes:
    layer: The layer.
    rule: By which it is run; None if it has no variables that are trained, and
      is known to treat each example alone.
    reason: Why it is vectorised, or ''.
  """

  layer: keras.layers.Layer
  rule: Optional[LayerRule]
  reason: str = ''

  @property
  def vectorized(self) -> bool:
    """Whether it is run on batches of one."""
    return self.rule is layers.VECTORIZED

  def __str__(self) -> str:
    if self.rule is None:
      return 'no variables'
    method = 'vectorised' if self.vectorized else 'batched'
    return f'{method}: {self.reason}' if self.reason else method


class Routes(NamedTuple):
  """The routes of all layers of a model.

  Attributes:
    layers: One `Route` for each layer.
    groups: For each trainable variable, the number of the layer it belongs to.
    whole: Why the whole model is vectorised, or ''.
  """

  layers: List[Route]
  groups: List[int]
  whole: str = ''

  def summary(self) -> str:
    """One line for each layer, and why any is vectorised."""
    rows = [f'{r.layer.name} ({type(r.layer).__name__})' for r in self.layers]
    width = max(map(len, rows), default=0)
    lines = [f'{name:{width}}  {route}' for name, route in zip(rows, self.layers)]
    if self.whole:
      lines.append(f'The whole model is vectorised: {self.whole}.')
    return '\n'.join(lines)

  def differentiated(self) -> List[Tuple[Any, LayerRule]]:
    """The layers that are run by a rule, with their rules."""
    return [(route.layer, route.rule) for route in self.layers
            if route.rule is not None]


_NAMES = (
    'Activation', 'ActivityRegularization', 'Add', 'AlphaDropout', 'Average',
    'AveragePooling1D', 'AveragePooling2D', 'Cropping1D', 'Cropping2D',
    'Dropout', 'ELU', 'Flatten', 'GaussianDropout', 'GaussianNoise',
    'GlobalAveragePooling1D', 'GlobalAveragePooling2D', 'GlobalMaxPooling1D',
    'GlobalMaxPooling2D', 'InputLayer', 'LeakyReLU', 'Masking', 'MaxPooling1D',
    'MaxPooling2D', 'Maximum', 'Minimum', 'Multiply', 'Permute', 'ReLU',
    'RepeatVector', 'Rescaling', 'Reshape', 'SpatialDropout1D',
    'SpatialDropout2D', 'Subtract', 'ThresholdedReLU', 'UpSampling1D',
    'UpSampling2D', 'ZeroPadding1D', 'ZeroPadding2D')
_WITHOUT_VARIABLES = models.layer_classes(_NAMES)
"""Layers without variables that treat each example alone, at any settings."""

_ELEMENTWISE = {
    keras.activations.get(name) for name in (
        'elu', 'exponential', 'gelu', 'hard_sigmoid', 'linear', 'relu', 'selu',
        'sigmoid', 'softplus', 'softsign', 'swish', 'tanh', 'softmax')
} | {tf.nn.relu, tf.nn.tanh, tf.nn.gelu, tf.nn.silu, tf.nn.relu6, tf.nn.elu,
     tf.nn.leaky_relu, tf.nn.sigmoid, tf.nn.softmax, tf.nn.selu,
     tf.nn.softplus, tf.math.tanh, tf.math.sigmoid}
"""Activations known to treat each example alone."""


def routes(model: keras.Model, vectorize: bool = False) -> Routes:
  """Decides the routes of all layers.

  Args:
    model: A built model.
    vectorize: Whether to vectorise the whole model in any case.
  """
  found = [route_of(layer) for layer in models.graph_layers(model)]
  whole = 'asked for' if vectorize else ''
  if not models.is_graph(model):
    whole = whole or (
        'it is no Sequential or functional model, so that nothing tells what '
        'happens between its layers')
  for route in found:
    if route.vectorized and not whole:
      whole = _cannot_stand_alone(route.layer)
  made = Routes(found, _layers_of(model))
  return wholly_vectorized(made, whole) if whole else made


def wholly_vectorized(given: Routes, reason: str) -> Routes:
  """The routes of a model that is vectorised as a whole, and why it is."""
  return given._replace(whole=reason, layers=[
      r if r.rule is None and not _variables(r.layer) else
      Route(r.layer, layers.VECTORIZED, r.reason or 'as the whole model')
      for r in given.layers])


def _layers_of(model: keras.Model) -> List[int]:
  """For each trainable variable, the number of the layer it belongs to."""
  owner: Dict[int, int] = {}
  for i, layer in enumerate(models.graph_layers(model)):
    for variable in _variables(layer):
      owner.setdefault(id(variable), i)
  variables = model.trainable_variables
  # A variable of no layer stands for itself.
  return [owner.get(id(v), -1 - i) for i, v in enumerate(variables)]


def _variables(layer: keras.layers.Layer) -> List[tf.Variable]:
  """Those that are trained; an operation of Keras 3 has none."""
  return getattr(layer, 'trainable_variables', [])


def route_of(layer: keras.layers.Layer) -> Route:
  """Decides the route of one layer."""
  rule = layers.rule_for(layer)
  reason = _why_vectorized(layer, rule)
  if reason:
    return Route(layer, layers.VECTORIZED, reason)
  needed = _variables(layer) or (rule is not None and rule.also_frozen)
  return Route(layer, rule if needed else None)


def _why_vectorized(layer: keras.layers.Layer, rule: Optional[LayerRule]) -> str:
  """Why a layer cannot be run on a whole batch, or ''."""
  if models.is_bare_operation(layer):
    return 'no layer'
  if models.is_quantized(layer):
    return 'its weights are quantised'
  if not _known_activation(layer):
    return 'its activation is a function of yours'
  if rule is not None:
    return rule.unsupported(layer)
  kind = type(layer)
  if kind in (keras.layers.Concatenate, keras.layers.Softmax):
    known = not normalization.over_batch(layer)
  elif kind is keras.layers.BatchNormalization:
    known = not layer.trainable
  else:
    known = kind in _WITHOUT_VARIABLES
  return '' if known else f'no rule for {kind.__name__}'


def _known_activation(layer: keras.layers.Layer) -> bool:
  activation = getattr(layer, 'activation', None)
  if activation is None or isinstance(layer, keras.layers.RNN) or (
      type(layer) not in _WITHOUT_VARIABLES and layers.rule_for(layer) is None):
    return True  # Those of recurrent layers are proved to be, where they are traced.
  if type(activation) in _WITHOUT_VARIABLES:
    return _known_activation(activation)  # Which may have one of its own.
  return activation in _ELEMENTWISE


def _cannot_stand_alone(layer: keras.layers.Layer) -> str:
  """Why a layer cannot be vectorised by itself, or ''."""
  if models.is_bare_operation(layer):
    return (f'{layer.name!r} is an operation outside of layers; write it as a '
            'layer (Add, Multiply, Reshape, ...) to have it batched')
  for inner in [layer, *models.flat_layers(layer)]:
    random = isinstance(inner, models.RANDOM_LAYERS) or (
        models.generators(inner))
    rate: Any = getattr(inner, 'rate', getattr(inner, 'dropout', 1))
    if random and rate:
      return (f'{layer.name!r} is random ({inner.name!r}), and its gradient '
              'would see another draw than its output')
  for arguments in models.call_arguments(layer):
    if any(isinstance(value, (tf.Tensor, np.ndarray)) and
           not keras.backend.is_keras_tensor(value)
           for value in tf.nest.flatten(arguments)):
      return f'{layer.name!r} is called with a constant tensor'
  return ''
