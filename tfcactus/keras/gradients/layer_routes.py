"""Routes: which layers of a model run as written, and which are vectorised.

Layers have no rules for gradients. Operations have: see `operations/rules.py`.

At first all layers run as written, and rules of operations give the gradients. A layer
in which the engine finds no proof that examples do not mix, or no rule, is vectorised:
it runs on batches of one. If that does not help, all layers whose classes are not
Keras' own are vectorised, and then the whole model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import re
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras


class Route(NamedTuple):
  """The way in which one layer runs in a private step.

  `reason` says why the layer is vectorised, or ''. `depth` is the number of enclosing
  layers that run as written.
  """

  layer: keras.layers.Layer
  vectorized: bool = False
  reason: str = ''
  depth: int = 0

  @property
  def by_operations(self) -> bool:
    """Returns whether rules of operations give gradients of the layer's own weights."""
    # `own_variables` fails for operations of Keras 3, which have no variables at all.
    return not self.vectorized and bool(models.trained_variables(self.layer)) and bool(
        own_variables(self.layer))

  def __str__(self) -> str:
    """Returns the route in words, as `Routes.summary` shows it."""
    if self.vectorized:
      return f'vectorised: {self.reason}' if self.reason else 'vectorised'
    if not models.trained_variables(self.layer):
      return 'no variables'
    return 'batched' if self.by_operations else 'batched: by its layers'


class Routes(NamedTuple):
  """The routes of all layers of a model.

  Attributes:
    layers: One route per layer, outer layers before inner ones. Layers inside one that
      is vectorised, or trains no weights, have none.
    groups: For each trainable variable, the number of the group in which 'per_layer'
      clipping clips its gradient: one for each layer and variable without a layer.
    whole: Why the whole model is vectorised, or ''.
    apart: {id: reason} of layers to vectorise because a proof or a rule failed in them.
    opened: Whether layers whose classes are not Keras' own run as written.
    trained: Ids of the trainable variables that the routes were decided for.
    lean: Whether kernel gradients written out would take too much memory.
    drawn: Number of examples in a draw, over all replicas, up to which the clipping
      margin is to cover the rounding of sums that Gram norms clip; infinite if Gram
      norms are not allowed.
    by_gram: {id: positions of an example} of the variables whose gradients have norms
      by Gram matrices; known once a step has been traced.
  """

  layers: list[Route]
  groups: list[int]
  whole: str = ''
  apart: Mapping[int, str] = {}
  opened: bool = True
  trained: tuple[int, ...] = ()
  lean: bool = False
  drawn: float = 0.0
  by_gram: Mapping[int, int] = {}

  def holds_for(self, model: keras.Model) -> bool:
    """Returns whether a model still trains the variables that the routes are for."""
    return self.trained == _ids(model)

  def summary(self) -> str:
    """Returns a line per layer: its route, and whether norms are by Gram matrices.

    A last line says why the whole model is vectorised, if it is.
    """
    names = [f'{"  " * r.depth}{r.layer.name} ({type(r.layer).__name__})'
             for r in self.layers]
    width, lines = max(map(len, names), default=0), []
    for name, route in zip(names, self.layers):
      by_gram = route.by_operations and any(
          id(each) in self.by_gram for each in own_variables(route.layer))
      lines.append(f'{name:{width}}  {route}' + by_gram * ', norms by Gram matrices')
    if self.whole:
      lines.append(f'The whole model is vectorised: {self.whole}.')
    return '\n'.join(lines)

  def vectorized(self) -> list[keras.layers.Layer]:
    """Returns the vectorised layers."""
    return [route.layer for route in self.layers if route.vectorized]


_ATTEMPTS = 4
"""Once so many layers are vectorised by failures, the next failure vectorises all
layers that are not of Keras."""


def routes(model: keras.Model, vectorize: bool = False,
           apart: Mapping[int, str] | None = None, opened: bool = True) -> Routes:
  """Decides the routes of a built model; `apart` and `opened` are as in `Routes`.

  `vectorize` asks for the whole model to be vectorised. The caller sets `lean` and
  `drawn`.
  """
  apart = apart or {}
  whole = 'asked for' if vectorize else ''
  # A subclassed model with weights of its own is itself a layer not of Keras.
  if not opened and not models.is_graph(model) and own_variables(model):
    whole = whole or (
        f'{own_variables(model)[0].name!r} belongs to the model itself, not to a '
        'layer')
  layers = _visited(_parts(model), apart, opened, 0, set())
  for route in layers:
    if route.vectorized and not whole:
      whole = _cannot_stand_alone(route.layer)
  result = Routes(layers, _layers_of(model), '', apart, opened, _ids(model))
  return wholly_vectorized(result, whole) if whole else result


def wholly_vectorized(given: Routes, reason: str) -> Routes:
  """Returns `given` for a model vectorised as a whole: routes of outermost layers."""
  return given._replace(whole=reason, layers=[
      route._replace(vectorized=True, reason=route.reason or 'as the whole model')
      if route.vectorized or models.trained_variables(route.layer) else route
      for route in given.layers if not route.depth])


def after_failure(model: keras.Model, failed: Routes, reason: str,
                  layers: Sequence[keras.layers.Layer | None] = ()) -> Routes:
  """Returns the routes to try after `failed` ones.

  `reason` says why they failed; `layers` are to blame. An empty sequence, or None in
  it, stands for unknown layers. Vectorises `layers`; if that cannot help, all layers
  that are not of Keras; else the whole model.
  """
  if layers and None not in layers and len(failed.apart) < _ATTEMPTS:
    next_ones = routes(model, False, {
        **failed.apart, **{id(layer): reason for layer in layers}}, failed.opened)
    reason = f'{reason}; {next_ones.whole}' if next_ones.whole else reason
  else:
    next_ones = routes(model, False, failed.apart, opened=False)
  # Routes that vectorise the same layers would fail again.
  if next_ones.whole or next_ones.vectorized() == failed.vectorized():
    return wholly_vectorized(failed, reason)
  return next_ones._replace(lean=failed.lean, drawn=failed.drawn)


def layer_of(given: Routes, operation: str, variable: tf.Variable | None = None
             ) -> keras.layers.Layer | None:
  """Returns the innermost layer named in a TensorFlow operation's name, or None.

  Skips vectorised layers, and layers that do not hold `variable` if one is given: they
  are not to blame for the operation.
  """
  # The last part is the operation's own name, which may be that of a layer by chance.
  scopes = operation.split('/')[:-1]
  layers = [route.layer for route in given.layers if not route.vectorized and any(
      re.fullmatch(re.escape(route.layer.name) + r'(_\d+)?', scope)
      for scope in scopes)]
  if variable is not None:
    layers = [layer for layer in layers
              if any(each is variable for each in models.trained_variables(layer))]
  return layers[-1] if layers else None


def adder_of(given: Routes, layer: keras.layers.Layer) -> keras.layers.Layer | None:
  """Returns the innermost unvectorised layer that is or contains `layer`, or None.

  `layer` added a loss for several examples; vectorising the result gives one for each.
  """
  around = [route.layer for route in given.layers if not route.vectorized and
            isinstance(route.layer, keras.layers.Layer) and any(
                each is layer for each in (
                    route.layer, *models.flat_layers(route.layer)))]
  return around[-1] if around else None


def _parts(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
  """Returns the direct inner layers of a layer or model."""
  if models.is_graph(layer):
    return models.graph_layers(layer)
  return models.direct_layers(layer)


def _visited(parts: Iterable[keras.layers.Layer], apart: Mapping[int, str],
             opened: bool, depth: int, seen: set[int]) -> list[Route]:
  """Returns the routes of `parts`, and of layers inside those that run as written.

  `depth` is the number of layers around them. Layers with ids in `seen` are skipped.
  """
  result = []
  for layer in parts:
    if id(layer) in seen:
      continue
    seen.add(id(layer))
    trained, reason = bool(models.trained_variables(layer)), apart.get(id(layer))
    if reason is None and trained and not opened and not _of_keras(layer):
      reason = f'{type(layer).__name__} is not a class of Keras, and a proof failed'
    result.append(Route(layer, reason is not None, reason or '', depth))
    if trained and reason is None:
      result.extend(_visited(_parts(layer), apart, opened, depth + 1, seen))
  return result


def _of_keras(layer: keras.layers.Layer) -> bool:
  """Returns whether the classes of a layer, and of cells of an RNN, are Keras' own."""
  cells = models.flat_layers(layer) if isinstance(layer, keras.layers.RNN) else []
  return all(type(each).__module__.startswith(f'{keras.__name__}.')
             for each in [layer, *cells])


def own_variables(layer: keras.layers.Layer) -> list[tf.Variable]:
  """Returns a layer's trainable variables that belong to no inner layer."""
  inner = {id(variable) for each in models.flat_layers(layer)
           for variable in models.trained_variables(each)}
  return [variable for variable in models.trained_variables(layer)
          if id(variable) not in inner]


def _layers_of(model: keras.Model) -> list[int]:
  """Returns each trainable variable's group: the number of the first layer with it.

  A variable that no layer of the graph holds has a negative number of its own.
  """
  owner: dict[int, int] = {}
  for i, layer in enumerate(models.graph_layers(model)):
    for variable in models.trained_variables(layer):
      owner.setdefault(id(variable), i)
  return [owner.get(id(variable), -1 - i)
          for i, variable in enumerate(model.trainable_variables)]


def _ids(model: keras.Model) -> tuple[int, ...]:
  """Returns the ids of a model's trainable variables."""
  return tuple(id(variable) for variable in model.trainable_variables)


def _cannot_stand_alone(layer: keras.layers.Layer) -> str:
  """Returns why a layer cannot be vectorised unless the whole model is, or ''."""
  if models.is_bare_operation(layer):
    return (f'{layer.name!r} is an operation outside of layers; write it as a '
            'layer (Add, Multiply, Reshape, ...) to have it batched')
  for arguments in models.call_arguments(layer):
    if any(isinstance(value, (tf.Tensor, np.ndarray)) and
           not keras.backend.is_keras_tensor(value)
           for value in tf.nest.flatten(arguments)):
      return f'{layer.name!r} is called with a constant tensor'
  return ''
