"""The physical batch that fits in memory: an estimate; no guarantee rests on it.

The memory is that of the device; what a physical batch takes of it is counted, and
held against what steps were measured to take (benchmarks.step_memory).

Of a layer whose gradients are taken, or that lies above one, the outputs stay until
the backward pass has come by. Below the lowest of them nothing is recorded, so that a
frozen backbone holds what one of its layers takes in and gives out. Each example's
gradients stay until the norm over all of them is known. What else a rule needs goes
again with it: a few of the largest are there at once.
"""

from __future__ import annotations

import math
from typing import List

import tensorflow as tf

from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import device_memory
from tfcactus.keras.gradients.layer_routes import Route
from tfcactus.keras.gradients.layer_routes import Routes

_HELD = 1.5
"""Memory that rows take by what is counted here: 1.2 to 1.5 of it were measured, and
1.8 of an LSTM, whose rows are small (benchmarks.step_memory)."""

_AT_ONCE = 4
"""Layers whose passing needs are there at once, on the cores at work."""


def physical_rows(usual: float, model: keras.Model, routes: Routes,
                  views: int = 1) -> int:
  """A physical batch that holds most draws, as far as memory allows.

  Args:
    usual: Examples that most draws stay below.
    model: A built model.
    routes: Its routes.
    views: How often each example goes through the model.

  Returns:
    A number of rows; a draw that takes several physical batches fills them.
  """
  numbers = max(1, views * numbers_per_example(model, routes))
  fitting = max(1, int(device_memory.for_steps() // (
      _HELD * numbers * _number_size(model))))
  parts = math.ceil(usual / fitting)
  rows = math.ceil(usual / parts)
  # Whole eights: what vector units like.
  return max(1, min(-(-rows // 8) * 8, fitting))


def numbers_per_example(model: keras.Model, routes: Routes) -> int:
  """About how many numbers a pass holds for each example at once."""
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
  # Sums are taken of one variable's gradients after the other, in float64.
  return kept + max(sum(sorted(passing)[-_AT_ONCE:]), 2 * largest)


def _shapes(route: Route) -> List[List[int]]:
  return [shape[1:] for shape in models.output_shapes(route.layer)
          if None not in shape[1:]]


def _outputs(route: Route) -> int:
  return sum(math.prod(shape) for shape in _shapes(route))


def _count(variables: List[tf.Variable]) -> int:
  return sum(math.prod(variable.shape) for variable in variables)


def _number_size(model: keras.Model) -> int:
  """Bytes of the widest numbers that a model computes gradients with."""
  sizes = [tf.as_dtype(each.dtype).size for each in model.trainable_variables]
  return max(sizes, default=4)
