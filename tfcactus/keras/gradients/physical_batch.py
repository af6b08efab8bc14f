"""Estimate of the physical batch that fits in memory; no guarantee rests on it.

The tensors of a pass are counted and compared with the memory that steps were measured
to take (benchmarks.step_memory).

Outputs of the lowest differentiated layer and of all layers above it stay until the
backward pass reaches them. Below that layer nothing is recorded: a frozen backbone
holds the inputs and outputs of one layer at a time. Per-example gradients stay until
the norm over all variables is known. Other needs of a rule are transient: a few of the
largest are in memory together.
"""

from __future__ import annotations

import math

import tensorflow as tf

from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import device_memory
from tfcactus.keras.gradients.layer_routes import Route, Routes

_HELD = 1.5
"""Measured memory of a row over counted memory: 1.2 to 1.5, and 1.8 for an LSTM, whose
rows are small (benchmarks.step_memory)."""

_AT_ONCE = 4
"""Layers whose transient tensors are in memory together, as cores run in parallel."""


def physical_rows(usual: float, model: keras.Model, routes: Routes,
                  views: int = 1) -> int:
  """Returns the rows of a physical batch that holds most draws if memory allows.

  `usual` bounds the size of most draws. A draw that takes several physical batches
  fills them. `views` is the number of passes per example.
  """
  numbers = max(1, views * numbers_per_example(model, routes))
  fitting = max(1, int(device_memory.for_steps() // (
      _HELD * numbers * _number_size(model))))
  parts = math.ceil(usual / fitting)
  rows = math.ceil(usual / parts)
  # Vector units work best on multiples of eight.
  return max(1, min(-(-rows // 8) * 8, fitting))


def numbers_per_example(model: keras.Model, routes: Routes) -> int:
  """Returns about how many numbers a pass holds at once per example."""
  outputs = [_outputs(route) for route in routes.layers]
  if routes.whole:
    return 2 * (_count(model.trainable_variables) + sum(outputs))
  first = next((index for index, route in enumerate(routes.layers)
                if route.rule is not None), len(outputs))
  kept = sum(outputs[first:])
  passing = [2 * size for size in outputs]
  largest = 0
  for index, route in enumerate(routes.layers):
    if route.rule is not None:
      needs = route.rule.numbers_per_example(route.layer, _shapes(route))
      gradients = min(needs, _count(route.layer.trainable_variables))
      kept += gradients
      largest = max(largest, gradients)
      passing[index] += needs - gradients
  # float64 sums are taken one variable at a time: twice its float32 gradients.
  return kept + max(sum(sorted(passing)[-_AT_ONCE:]), 2 * largest)


def _shapes(route: Route) -> list[list[int]]:
  return [shape[1:] for shape in models.output_shapes(route.layer)
          if None not in shape[1:]]


def _outputs(route: Route) -> int:
  return sum(math.prod(shape) for shape in _shapes(route))


def _count(variables: list[tf.Variable]) -> int:
  return sum(math.prod(variable.shape) for variable in variables)


def _number_size(model: keras.Model) -> int:
  """Returns the bytes per number of a model's widest trainable dtype."""
  sizes = [tf.as_dtype(each.dtype).size for each in model.trainable_variables]
  return max(sizes, default=4)
