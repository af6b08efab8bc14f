"""Contributions of units in simulated federated learning: local steps of plain SGD.

A unit, such as a user, starts from the weights of the model and takes some steps of SGD
on its mean loss. Weights before minus weights after take the place of its gradient, and
are clipped, so rows of one unit may mix. The steps run in the model's own variables,
unit by unit. Each unit starts from the same bits, to which the weights are restored
before anything is released. So no unit's difference depends on another unit.

Constraints of weights (`kernel_constraint=`) do not act on local steps. Keras applies
them after the noisy average has moved the weights.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfcactus import _checks
from tfcactus.keras.checks.example_losses import LossFn
from tfcactus.keras.compat import graphs, models, patches
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import added_losses, batched_pass, forms
from tfcactus.keras.noise import random_bits


class LocalSteps(NamedTuple):
  """SGD steps that each unit (such as a user) takes: their number and learning rate."""

  number: int
  learning_rate: float

  @classmethod
  def checked(cls, number: Any, learning_rate: Any) -> LocalSteps | None:
    """Returns the steps, or None if both arguments are None.

    Raises ValueError if one is missing, the number is no integer from 1 on, or the
    learning rate is not positive.
    """
    if number is None and learning_rate is None:
      return None
    if number is None or learning_rate is None:
      raise ValueError(
          'Expected both local_steps and local_learning_rate or neither, got '
          f'local_steps={number!r}, local_learning_rate={learning_rate!r}.')
    return cls(_checks.integer('local_steps', number, 1),
               _checks.positive('local_learning_rate', learning_rate))

  def run(self, model: keras.Model, compute_loss: LossFn, batch: batched_pass.Batch,
          each: int) -> batched_pass.PassResult:
    """Returns weights before minus after the steps, per unit of `each` rows.

    These differences take the place of gradients. A row whose gradient is not finite
    has its unit dropped, in general even if the row has weight zero (0 * NaN = NaN).
    Predictions and losses, one per row, are those of a pass over the whole batch before
    the steps, in which units may mix: they serve logs only. Raises ValueError if layers
    add losses, or there is no loss.
    """
    units = batch[2].shape[0] // each
    variables = models.tf_variables(model)
    starts = [tf.identity(variable.read_value()) for variable in variables]
    seeds = tf.reshape(random_bits.row_seeds(units * self.number),
                       [units, self.number, 2])

    @graphs.without_autograph
    def difference(unit: tf.Tensor) -> list[tf.Tensor]:
      """Returns the weights before minus after the steps of a unit; restores them."""
      rows = tf.nest.map_structure(lambda part: tf.ensure_shape(
          part[unit * each:(unit + 1) * each], [each, *part.shape[1:]]), batch)

      def step(number: tf.Tensor) -> list[tf.Tensor]:
        """Takes one step and returns the number of the next."""
        with patches.drawing(model, random_bits.counting(seeds[unit, number])):
          self._step(model, compute_loss, rows, variables)
        return [number + 1]

      tf.while_loop(lambda number: number < self.number,
                    graphs.without_autograph(step), [0])
      differences = [start - variable.read_value()
                     for start, variable in zip(starts, variables)]
      for start, variable in zip(starts, variables):
        variable.assign(start)
      return differences

    predictions, losses = _forward(model, compute_loss, batch)
    # One unit at a time: all of them move the same variables.
    differences = tf.map_fn(
        difference, tf.range(units), parallel_iterations=1, fn_output_signature=[
            tf.TensorSpec(start.shape, start.dtype) for start in starts])
    return batched_pass.PassResult(
        [forms.Dense(each, each.shape[1:]) for each in differences], predictions,
        losses)

  def _step(self, model: keras.Model, compute_loss: LossFn,
            rows: batched_pass.Batch, variables: list[tf.Variable]) -> None:
    """Moves the weights by one step of SGD on the mean loss of a unit's `rows`.

    The mean is the sum of weighted losses divided by the number of rows of nonzero
    weight.
    """
    count = tf.math.count_nonzero(batched_pass.takes_part(rows[2]))
    scale = batched_pass.loss_scale(model)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(variables)
      _, losses = _forward(model, compute_loss, rows)
      weighted = batched_pass.weighted_losses(losses, rows[2], None)
      total = tf.reduce_sum(weighted) / tf.cast(tf.maximum(count, 1), weighted.dtype)
      total = tf.cast(total, tf.float32) * scale if scale != 1 else total
    for variable, gradient in zip(variables, tape.gradient(
        total, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)):
      gradient = batched_pass.unscaled(tf.convert_to_tensor(gradient), scale)
      variable.assign_sub(tf.cast(self.learning_rate * gradient, variable.dtype))


def _forward(model: keras.Model, compute_loss: LossFn, batch: batched_pass.Batch
            ) -> tuple[Any, tf.Tensor]:
  """Returns predictions and losses; ValueError if layers add losses, or for no loss."""
  with added_losses.of_one(model) as added:
    predictions = model(batch[0], training=True)
  losses = compute_loss(batch[1], predictions)
  if losses is None or added.total() is not None:
    raise ValueError(
        'Expected a loss in compile() and layers that add none with local_steps, got '
        'layers that add_loss or no loss; leave out local_steps, or write all losses '
        'as functions of targets and outputs.')
  return predictions, losses
