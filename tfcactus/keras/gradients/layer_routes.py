"""Which way each layer's gradients per example are taken, decided up front.

A batch goes through the model at once only if every layer in it is known to
treat each example alone. What is not known is vectorised: run on batches of
one, so that it cannot mix examples whatever it does.
"""

from __future__ import annotations

import enum
import math
from typing import Any
from typing import Dict
from typing import List
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfcactus.keras.compat import versions
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients.layers import rules


class Way(enum.Enum):
  """How a layer's gradients per example are taken."""

  PASS = 'no variables'
  BATCHED = 'batched'
  VECTORIZED = 'vectorised'


class Route(NamedTuple):
  """The way of one layer.

  Attributes:
    layer: The layer.
    way: Its way.
    reason: Why it is vectorised, or ''.
  """

  layer: Any
  way: Way
  reason: str = ''


class Routes(NamedTuple):
  """The ways of all layers of a model.

  Attributes:
    layers: One `Route` for each layer.
    whole: Why the whole model is vectorised, or ''.
  """

  layers: List[Route]
  whole: str = ''

  def summary(self) -> str:
    """One line for each layer, and why any is vectorised."""
    rows = [f'{r.layer.name} ({type(r.layer).__name__})' for r in self.layers]
    width = max(map(len, rows), default=0)
    lines = [
        f'{name:{width}}  {route.way.value}' +
        (f': {route.reason}' if route.reason else '')
        for name, route in zip(rows, self.layers)]
    if self.whole:
      lines.append(f'The whole model is vectorised: {self.whole}.')
    return '\n'.join(lines)

  def taken(self) -> Dict[int, Route]:
    """Routes of the layers that are run by a rule, by the id of the layer."""
    return {id(route.layer): route for route in self.layers
            if route.way != Way.PASS}


_KNOWN = (
    'Activation', 'ActivityRegularization', 'Add', 'AlphaDropout', 'Average',
    'AveragePooling1D', 'AveragePooling2D', 'Cropping1D', 'Cropping2D',
    'Dropout', 'ELU', 'Flatten', 'GaussianDropout', 'GaussianNoise',
    'GlobalAveragePooling1D', 'GlobalAveragePooling2D', 'GlobalMaxPooling1D',
    'GlobalMaxPooling2D', 'InputLayer', 'LeakyReLU', 'Masking', 'MaxPooling1D',
    'MaxPooling2D', 'Maximum', 'Minimum', 'Multiply', 'Permute', 'ReLU',
    'RepeatVector', 'Rescaling', 'Reshape', 'SpatialDropout1D',
    'SpatialDropout2D', 'Subtract', 'ThresholdedReLU', 'UpSampling1D',
    'UpSampling2D', 'ZeroPadding1D', 'ZeroPadding2D')
_PASSING = versions.layer_classes(_KNOWN)
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
  """Decides the ways of all layers.

  Args:
    model: A built model.
    vectorize: Whether to vectorise the whole model in any case.
  """
  found = [_route(layer) for layer in versions.graph_layers(model)]
  whole = 'asked for' if vectorize else ''
  if not versions.is_graph(model):
    whole = whole or (
        'it is no Sequential or functional model, so that nothing tells what '
        'happens between its layers')
  for route in found:
    if route.way == Way.VECTORIZED and not whole:
      whole = _cannot_stand_alone(route.layer)
  if whole:
    found = [r if r.way == Way.PASS and not _variables(r.layer) else
             Route(r.layer, Way.VECTORIZED, r.reason or 'as the whole model')
             for r in found]
  return Routes(found, whole)


def layers_of(model: keras.Model) -> List[int]:
  """For each trainable variable, the number of the layer it belongs to."""
  owner = {}
  for i, layer in enumerate(versions.graph_layers(model)):
    for variable in _variables(layer):
      owner.setdefault(id(variable), i)
  variables = model.trainable_variables
  # A variable of no layer stands for itself.
  return [owner.get(id(v), -1 - i) for i, v in enumerate(variables)]


def _variables(layer: Any) -> List[tf.Variable]:
  """Those that are trained; an operation of Keras 3 has none."""
  return getattr(layer, 'trainable_variables', [])


def _route(layer: Any) -> Route:
  kind = type(layer)
  if versions.is_bare_operation(layer):
    return Route(layer, Way.VECTORIZED, 'no layer')
  if versions.is_scaled(layer):
    return Route(layer, Way.VECTORIZED, 'its weights are composed')
  if not _known_activation(layer):
    return Route(layer, Way.VECTORIZED, 'its activation is a function of yours')
  rule = rules.RULES.get(kind)
  if rule is not None:
    reason = rule.unfit(layer)
    if reason:
      return Route(layer, Way.VECTORIZED, reason)
    trains = bool(_variables(layer))
    return Route(layer, Way.BATCHED if trains else Way.PASS)
  if kind in _PASSING:
    return Route(layer, Way.PASS)
  if kind in (keras.layers.Concatenate, keras.layers.Softmax) and (
      not rules.over_batch(layer)):
    return Route(layer, Way.PASS)
  if kind is keras.layers.BatchNormalization and not layer.trainable:
    return Route(layer, Way.PASS)
  return Route(layer, Way.VECTORIZED, f'no rule for {kind.__name__}')


def _known_activation(layer: Any) -> bool:
  activation = getattr(layer, 'activation', None)
  if activation is None or type(layer) not in _PASSING | set(rules.RULES):
    return True
  if type(activation) in _PASSING:
    return _known_activation(activation)  # Which may have one of its own.
  return activation in _ELEMENTWISE


def _cannot_stand_alone(layer: Any) -> str:
  """Why a layer cannot be vectorised by itself, or ''."""
  if versions.is_bare_operation(layer):
    return (f'{layer.name!r} is an operation outside of layers; write it as a '
            'layer (Add, Multiply, Reshape, ...) for the fast way')
  for part in [layer, *versions.flat_layers(layer)]:
    random = isinstance(part, versions.RANDOM_LAYERS) or (
        versions.generators(part))
    if random and getattr(part, 'rate', getattr(part, 'dropout', 1)):
      return (f'{layer.name!r} is random ({part.name!r}), and its gradient '
              'would see another draw than its output')
  for arguments in versions.call_arguments(layer):
    if any(isinstance(value, (tf.Tensor, np.ndarray)) and
           not keras.backend.is_keras_tensor(value)
           for value in tf.nest.flatten(arguments)):
      return f'{layer.name!r} is called with a constant tensor'
  return ''


def numbers_per_example(model: keras.Model, found: Routes) -> int:
  """About how many float32 numbers a pass holds for each example at once."""
  if found.whole:
    variables = model.trainable_variables
    return 2 * sum(math.prod(v.shape) for v in variables)
  return sum(_layer_numbers(route) for route in found.layers)


def _layer_numbers(route: Route) -> int:
  """Outputs with their gradients, patches, and gradients per example."""
  layer = route.layer
  shapes = [shape[1:] for shape in versions.output_shapes(layer)
            if None not in shape[1:]]
  count = 2 * sum(int(np.prod(shape)) for shape in shapes)
  products = (type(layer) is keras.layers.Embedding or
              type(layer) is keras.layers.Dense and
              all(len(shape) == 1 for shape in shapes))
  if route.way == Way.VECTORIZED or not products:
    count += sum(math.prod(v.shape) for v in _variables(layer))
  if type(layer) in (keras.layers.Conv1D, keras.layers.Conv2D) and layer.built:
    depth = math.prod(layer.kernel.shape[:-1])
    count += depth * sum(int(np.prod(shape[:-1])) for shape in shapes)
  return count
