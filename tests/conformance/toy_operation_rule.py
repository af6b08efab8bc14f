"""An example of an operation with its rule, and a layer that uses it, in one file."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.operations.rules import Rule
from tfcactus.keras.gradients.operations.uses import no_rule, Use


class Cells(tf.keras.layers.Layer):
  """Looks up cells of a grid of weights, at pairs of numbers."""

  def build(self, shape: Any) -> None:
    self.grid = self.add_weight(name='grid', shape=(3, 4, 2))

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    cells = tf.cast(tf.abs(inputs), tf.int32) % [3, 4]
    grid = tf.convert_to_tensor(self.grid)
    return tf.gather_nd(tf.cast(grid, self.compute_dtype), cells)


def gather_nd(use: Use) -> Rule:
  """Rule for GatherNd: gradients of the cells that an example looked up."""
  if use.place != 0 or list(use.data) != [1]:
    raise no_rule(use.core)
  axes = use.shape(1)[-1]
  sizes, width = use.made[:axes], int(np.prod(use.made[axes:]))

  def rule(operands: dict[int, tf.Tensor], upstream: tf.Tensor) -> forms.GradientForm:
    ids = tf.zeros(operands[1].shape[:-1], tf.int32)
    for size, place in zip(sizes, tf.unstack(operands[1], axis=-1)):
      ids = ids * size + tf.cast(place, tf.int32)
    rows = upstream.shape[0]
    return forms.Rows.merged(
        tf.reshape(ids, [rows, -1]), tf.reshape(upstream, [rows, -1, width]),
        int(np.prod(sizes))).reshaped(use.made)

  return rule
