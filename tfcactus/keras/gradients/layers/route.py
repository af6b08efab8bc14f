"""The route of one layer: batched, by its rule or as written, or vectorised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients.layers.base import LayerRule
from tfcactus.keras.gradients.layers.vectorized import VectorizedRule

VECTORIZED = VectorizedRule()
"""Rule for layers that run on batches of one."""


class Route(NamedTuple):
  """The way in which one layer runs in a private step.

  `rule` is None if the layer runs as written; `reason` says why it is vectorised, or
  ''. `depth` is the number of enclosing layers that run as written.
  """

  layer: keras.layers.Layer
  rule: LayerRule | None
  reason: str = ''
  depth: int = 0

  @property
  def vectorized(self) -> bool:
    """Returns whether the layer runs on batches of one."""
    return self.rule is VECTORIZED

  @property
  def by_operations(self) -> bool:
    """Returns whether rules of operations answer for weights of the layer."""
    # Operations of Keras 3 have no inner layers to ask.
    return self.rule is None and bool(models.trained_variables(self.layer)) and bool(
        own_variables(self.layer))

  def __str__(self) -> str:
    """Returns the route in words, as `Routes.summary` shows it."""
    if self.rule is None and not models.trained_variables(self.layer):
      return 'no variables'
    if self.rule is None:
      return 'batched' if self.by_operations else 'batched: by its layers'
    method = 'vectorised' if self.vectorized else 'batched'
    return f'{method}: {self.reason}' if self.reason else method


def route_of(layer: keras.layers.Layer, rule: LayerRule | None,
             apart: Mapping[int, str] | None = None, opened: bool = True) -> Route:
  """Decides the route of a layer, or operation of Keras 3; `rule` is its rule or None.

  `apart` maps ids of layers that must be vectorised to the reasons. `opened` tells
  whether a layer that is not of Keras runs as written (inner layers then have routes of
  their own).
  """
  apart = apart or {}
  if id(layer) in apart:
    return Route(layer, VECTORIZED, apart[id(layer)])
  if rule is None:
    known = opened or type(layer).__module__.startswith(f'{keras.__name__}.')
    # Recurrent layers may have a cell of one's own.
    if not models.trained_variables(layer) or opened or known and not isinstance(
        layer, keras.layers.RNN):
      return Route(layer, None)
    return Route(layer, VECTORIZED, f'no rule for {type(layer).__name__}')
  reason = rule.unsupported(layer)
  if not models.trained_variables(layer) and not rule.also_frozen or (
      reason and opened and isinstance(layer, keras.layers.RNN)):
    return Route(layer, None)  # Rules of operations look into the loop of an own cell.
  return Route(layer, VECTORIZED, reason) if reason else Route(layer, rule)


def own_variables(layer: keras.layers.Layer) -> list[tf.Variable]:
  """Returns a layer's trainable variables that belong to no inner layer."""
  inner = {id(variable) for each in models.flat_layers(layer)
           for variable in models.trained_variables(each)}
  return [variable for variable in models.trained_variables(layer)
          if id(variable) not in inner]
