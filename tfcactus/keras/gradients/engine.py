"""Sums of clipped per-example gradients over physical batches of fixed size."""

from __future__ import annotations

from typing import Any
from typing import List
from typing import NamedTuple
from typing import Optional

import tensorflow as tf

from tfcactus.keras.checks import example_losses
from tfcactus.keras.checks.example_losses import LossFn
from tfcactus.keras.compat import versions
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import batched_pass
from tfcactus.keras.gradients import clipping as clipping_lib
from tfcactus.keras.gradients import example_seeds
from tfcactus.keras.gradients import layer_routes
from tfcactus.keras.gradients import vectorization


class BatchResult(NamedTuple):
  """What a pass over one logical batch gives.

  Attributes:
    sums: Sum of clipped gradients, in the shape of each variable.
    unclipped: float64, the sum over examples of 1/2 if its gradient was not
      clipped, of -1/2 if it was.
    predictions: Shape (rows, ...), padding included.
    losses: Shape (rows,), one for each example.
    targets: Shape (rows, ...).
    weights: Shape (rows,), zero for padding.
  """

  sums: List[tf.Tensor]
  unclipped: tf.Tensor
  predictions: tf.Tensor
  losses: tf.Tensor
  targets: tf.Tensor
  weights: tf.Tensor


def loss_per_example(loss: Any) -> LossFn:
  """Returns (targets, predictions) -> losses of shape (batch,).

  Args:
    loss: What `compile` takes: a name, a `Loss` of any reduction (which is
      ignored), or a function returning a loss per example.

  Raises:
    ValueError: if there is no loss, or one for each of several outputs, or one
      of another Keras.
  """
  if loss is None or isinstance(loss, (list, tuple, dict)):
    raise ValueError(
        f'Expected one loss in compile(), got loss={loss!r}; a private model '
        'has one output and one loss, such as '
        'tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True).')
  versions.check_same_keras('loss', loss)
  loss = keras.losses.get(loss)
  call = loss.call if isinstance(loss, keras.losses.Loss) else loss

  def compute(targets: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
    # As compile() does for plain models; losses of rank one targets would
    # otherwise be averaged over the batch.
    if targets.shape.rank == 1 and predictions.shape.rank == 2:
      targets = targets[:, None]
    if targets.dtype.is_floating and predictions.dtype.is_floating:
      targets = tf.cast(targets, predictions.dtype)
    losses = tf.convert_to_tensor(call(targets, predictions))
    if losses.shape.rank == 0:
      raise ValueError(
          'Expected a loss per example, got one number for the whole batch; '
          'let the loss function return shape (batch,), without reduce_mean.')
    return tf.reduce_mean(losses, axis=list(range(1, losses.shape.rank)))

  return example_losses.per_example(compute, loss)


class Engine:
  """Clipped sums over physical batches.

  Each physical batch has the same shape, whatever was drawn, so that an
  example's gradient does not depend on how many others came with it.
  """

  def __init__(self, model: keras.Model, compute_loss: LossFn, rows: int,
               routes: layer_routes.Routes, clipping: str = 'flat',
               keys: Optional[example_seeds.Keys] = None):
    """Initialises the engine.

    Args:
      model: The model, built.
      compute_loss: As `loss_per_example` returns it.
      rows: The size of a physical batch.
      routes: Which way each layer takes.
      clipping: 'flat', 'per_layer' or 'automatic'.
      keys: For what the model draws; None for fresh ones of the system.
    """
    self._keys = keys or example_seeds.Keys(None)
    self._model = model
    self._compute_loss = compute_loss
    self._rows = rows
    self._routes = routes
    self._clipping = clipping

  def run(self, x: Any, targets: tf.Tensor, weights: tf.Tensor,
          l2_norm_clip: tf.Tensor) -> BatchResult:
    """Processes one logical batch of any size, zero included.

    Args:
      x: Inputs, a structure of tensors of shape (batch, ...).
      targets: Shape (batch, ...).
      weights: Shape (batch,), multiplied into the losses; an example of weight
        zero contributes exactly zero.
      l2_norm_clip: The bound on the norm of each example's gradient.

    Returns:
      The `BatchResult`; rows are padded to a multiple of the physical batch.
    """
    batch = tf.shape(weights)[0]
    chunks = tf.maximum((batch + self._rows - 1) // self._rows, 1)
    x, targets, weights = tf.nest.map_structure(
        lambda part: _pad_rows(part, chunks * self._rows),
        (x, targets, weights))
    arrays = [tf.TensorArray(keras.backend.floatx(), chunks) for _ in range(2)]
    zeros = [tf.zeros_like(v) for v in self._model.trainable_variables]

    def body(index, sums, unclipped, predictions, losses):
      part = tf.nest.map_structure(
          lambda t: self._physical(t, index), (x, targets, weights))
      (more, halves), prediction, loss = self._physical_batch(
          part, l2_norm_clip)
      return (index + 1, [a + b for a, b in zip(sums, more)],
              unclipped + halves, predictions.write(index, prediction),
              losses.write(index, loss))

    _, sums, unclipped, predictions, losses = tf.while_loop(
        lambda index, *_: index < chunks, body,
        (0, zeros, tf.zeros([], tf.float64), *arrays), parallel_iterations=1)
    return BatchResult(sums, unclipped, predictions.concat(), losses.concat(), targets,
                       weights)

  def _physical(self, rows: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    part = rows[index * self._rows:(index + 1) * self._rows]
    return tf.ensure_shape(part, [self._rows] + part.shape[1:])

  def _physical_batch(self, part, l2_norm_clip):
    """Clipped sums, predictions and losses of one physical batch."""
    with vectorization.quiet_vectorization(), (
        example_seeds.drawing(self._model, self._keys)):
      if self._routes.whole:
        found = batched_pass.vectorized(self._model, self._compute_loss, part)
      else:
        batched_pass.check_batched(self._model, self._routes, self._compute_loss, part)
        found = batched_pass.batched(self._model, self._routes, self._compute_loss,
                              part)
    clipping_lib.check_dtypes(self._model.trainable_variables)
    clipped = clipping_lib.clipped_part_sums(
        found.parts, l2_norm_clip, tf.not_equal(part[2], 0), self._clipping,
        layer_routes.layers_of(self._model))
    floatx = keras.backend.floatx()
    return (clipped, tf.cast(found.predictions, floatx),
            tf.cast(found.losses, floatx))


def _pad_rows(part: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
  padding = [[0, rows - tf.shape(part)[0]]] + [[0, 0]] * (part.shape.rank - 1)
  return tf.pad(part, padding)
