"""Logs of a step: losses and metrics of the examples drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfcactus.keras.callbacks_of_fit import NOISY_ACCURACY
from tfcactus.keras.checks.output_losses import OutputLosses
from tfcactus.keras.compat import losses as compat, masks, training
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import batched_pass
from tfcactus.keras.gradients.engine import BatchResult


def update(model: keras.Model, losses: OutputLosses, x: Any, y: Any,
           weights: tf.Tensor, batch: BatchResult, penalty: tf.Tensor) -> Any:
  """Updates loss and metrics on the examples drawn; returns logs.

  Leaves out padding, examples of weight zero, and those whose loss is not finite.
  `x`, `y` (in the user's structure) and `weights` (as `losses` returns them) are a
  logical batch, and `batch` the result of a step on it. `penalty`, the loss of weight
  regularizers, is added to each example's loss. Raises ValueError, while the first step
  is traced, if a metric has the name of the noisy accuracy that the plan releases.
  """
  rows = tf.shape(weights)[0]
  finite = tf.math.is_finite(batch.losses[:rows])
  if finite.shape.rank == 2:
    finite = tf.reduce_all(finite, 1)
  # The step appended rows of padding; `shown` has rows of the logical batch only.
  shown = tf.where(tf.logical_and(batched_pass.takes_part(weights), finite))[:, 0]
  y, predictions, carried, values, added, targets, weights = tf.nest.map_structure(
      lambda part: None if part is None else tf.gather(part, shown),
      (y, batch.predictions, batch.masks, batch.losses, batch.added, batch.targets,
       weights))

  def log(x: Any, y: Any, predictions: Any, carried: Any, parts: Any, targets: Any,
          penalty: tf.Tensor) -> Any:
    """Logs the examples drawn; `carried` are masks, `parts` as in `_log_losses`."""
    masks.put_all(predictions, carried)  # Keras metrics read masks off predictions.
    _log_losses(model, losses, predictions, parts, penalty)
    return model.compute_metrics(
        x, y, predictions, _expanded(
            losses.metric_weights(parts[-1], predictions, targets), carried))

  given = (x, y, predictions, carried, (values, added, weights), targets, penalty)
  training.make_variables(log, given)
  logs = log(*given)
  if model.plan.noisy_accuracy is not None and NOISY_ACCURACY in logs:
    raise ValueError(
        f"Expected logs without {NOISY_ACCURACY!r}, which the plan's noisy_accuracy "
        'writes, got a value that may have no noise; rename the metric.')
  return logs


def _expanded(weights: Any, masks: Sequence[tf.Tensor | None]) -> Any:
  """Returns weights per output; of examples, in the shape of the output's mask if any.

  Keras 3 expects that shape.
  """
  return tf.nest.pack_sequence_as(weights, [
      weight if mask is None or weight.shape.rank > 1 else
      tf.ones(tf.shape(mask), weight.dtype) * tf.reshape(
          weight, [-1] + [1] * (mask.shape.rank - 1))
      for weight, mask in zip(tf.nest.flatten(weights), masks)])


def _log_losses(model: keras.Model, losses: OutputLosses, predictions: Any,
                parts: Any, penalty: tf.Tensor) -> None:
  """Logs mean losses: in all, and of each output without its loss weight, as Keras.

  `parts` are losses times loss weights (unscaled where the loss weight is 0), added
  losses, and weights of examples.
  """
  values, added, weights = parts
  terms = losses.terms(predictions)
  trackers = compat.output_trackers(
      model, predictions, [(term.place, term.path) for term in terms])
  weighted = values * tf.cast(weights, values.dtype)
  # A loss of weight 0 is logged for its output, and left out of the total.
  total = weighted * losses.used_weights(tf.ones_like(weighted), predictions)
  if weighted.shape.rank == 2:
    total = tf.reduce_sum(total, 1)
  training.log_loss(model, total + added + tf.cast(penalty, values.dtype))
  if weighted.shape.rank == 1:
    return
  for i, (term, tracker) in enumerate(zip(terms, trackers)):
    if tracker is not None:
      tracker.update_state(weighted[:, i] / (term.factor or 1.0))
