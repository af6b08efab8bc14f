"""Right answers of a step, counted so that each example adds a bounded number."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfcactus.keras.checks import example_losses
from tfcactus.keras.checks.output_losses import OutputLosses
from tfcactus.keras.gradients import batched_pass
from tfcactus.keras.gradients.engine import BatchResult

FINENESS = 2.0**-20
"""A record or example adds a multiple of this, so that sums in float64 are exact."""


def count(losses: OutputLosses, output: str | int | None, batch: BatchResult, each: int
         ) -> tf.Tensor:
  """Returns the sum over examples of their share of right answers minus 1/2, float64.

  An example adds a number in [-1/2, 1/2]: the mean over its positions, without those
  that a mask or a weight of zero leaves out, and over its `each` rows. Rows of weight
  zero, and of losses that are not finite, add nothing. `output` is that of
  `NoisyAccuracy`. Raises ValueError if it does not name one output with a loss.

  The engine has proved that a row's outputs and losses depend on that row alone. So
  does a mask, which enters the loss.
  """
  # The output's index among losses and among outputs, its target, and weights in it.
  term, place, target, position_weights = losses.answered(
      output, batch.targets, batch.predictions)
  values = tf.cast(accuracy(
      target, tf.nest.flatten(batch.predictions)[place]), tf.float64) - 0.5
  values = example_losses.mean_per_example(
      values, batch.masks[place],
      None if position_weights is None else tf.not_equal(position_weights, 0))
  weights, own_losses = ((part if part.shape.rank == 1 else part[:, term])
                         for part in (batch.weights, batch.losses))
  used = tf.logical_and(
      batched_pass.takes_part(weights), tf.math.is_finite(own_losses))
  # Rows of one example are neighbours. Rounded, they have the same sum in any order.
  values = tf.round(values / FINENESS) * FINENESS
  values, used = (tf.reshape(part, [-1, each]) for part in (
      tf.where(used, values, tf.zeros_like(values)), tf.cast(used, tf.float64)))
  means = tf.math.divide_no_nan(tf.reduce_sum(values, 1), tf.reduce_sum(used, 1))
  return tf.reduce_sum(tf.round(
      tf.clip_by_value(means, -0.5, 0.5) / FINENESS)) * FINENESS


def accuracy(y: Any, outputs: Any) -> tf.Tensor:
  """Returns 1 for right answers and 0 for wrong ones, as Keras' metric 'accuracy'.

  The result is float32, in the shape of `outputs` without the last axis; outputs of
  shape (rows,) keep theirs. Raises ValueError for targets that do not fit one output.
  """
  if not tf.is_tensor(outputs) or not tf.is_tensor(y):
    raise ValueError('Expected one output, with targets, for the accuracy, got several '
                     'or none; use (name, function, bound) as a metric.')
  if outputs.shape[-1] == 1 or outputs.shape.rank == 1:
    targets, answers = (part.shape[1:].num_elements() for part in (y, outputs))
    if targets != answers and None not in (targets, answers):
      # Without this check `reshape` would fail after the step was counted.
      raise ValueError(_SHAPES.format(outputs.shape, y.shape))
    y = tf.reshape(y, tf.shape(outputs))
    right = tf.equal(outputs > 0.5, tf.cast(y, outputs.dtype) > 0.5)
    return tf.cast(right[..., 0] if outputs.shape.rank > 1 else right, tf.float32)
  if y.shape.rank == outputs.shape.rank and y.shape[-1] == outputs.shape[-1]:
    y = tf.argmax(y, -1)
  elif y.shape.rank == outputs.shape.rank:
    y = y[..., 0]
  if y.shape.rank != outputs.shape.rank - 1:  # `equal` would broadcast rows.
    raise ValueError(_SHAPES.format(outputs.shape, y.shape))
  return tf.cast(tf.equal(tf.cast(y, tf.int64), tf.argmax(outputs, -1)), tf.float32)


_SHAPES = (
    'Expected a label, or a one-hot row, for each answer of the model, whose outputs '
    'have shape {}, for the accuracy, got targets of shape {}; use (name, function, '
    'bound) as a metric of validation.')
