"""Whether a loss is a matter of one example, found out by trying it."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfcactus.keras._compat import keras
from tfcactus.keras.batches import PoissonBatches


def check_per_example(model: keras.Model, batches: PoissonBatches) -> None:
  """Refuses a compiled loss in which one example's value depends on others'.

  Shapes alone do not tell: weights broadcast a mean over the batch to the shape
  of a loss per example. So the loss of two examples is computed twice, with
  other predictions for the second, and that of the first must not change.

  Args:
    model: A compiled and built model.
    batches: The data.

  Raises:
    ValueError: saying what the loss did.
  """
  if isinstance(model.loss, (list, tuple, dict)) or model.loss is None:
    raise ValueError(
        f'Expected one loss in compile(), got loss={model.loss!r}.')
  loss = keras.losses.get(model.loss)
  call = loss.call if isinstance(loss, keras.losses.Loss) else loss
  x, y = (tf.constant(part) for part in batches.two_examples())
  predictions = tf.convert_to_tensor(model(x, training=False))
  if y.shape.rank == 1 and predictions.shape.rank == 2:
    y = y[:, None]  # As compile() does.
  if y.dtype.is_floating and predictions.dtype.is_floating:
    y = tf.cast(y, predictions.dtype)
  # Neither a shift nor a multiple, which some losses do not see.
  size = predictions[1].shape.num_elements()
  ramp = tf.reshape(tf.linspace(0.1, 0.9, size), predictions[1].shape)
  ramp = tf.cast(ramp, predictions.dtype)
  others = tf.stack([predictions[0], ramp - 0.5 * predictions[1]])
  first = []
  for part in (predictions, others):
    values = tf.convert_to_tensor(call(y, part))
    if values.shape.rank == 0 or values.shape[0] != 2:
      raise ValueError(
          'Expected a loss per example, of shape (2,) for two examples, got '
          f'shape {values.shape}: sample weights would broadcast it to all '
          'examples of a batch. ' + _REMEDY)
    first.append(np.asarray(values[0], np.float64))
  if not np.allclose(*first, rtol=1e-4, atol=1e-6, equal_nan=True):
    raise ValueError(
        "Expected a loss per example, got one in which an example's value "
        'depends on the predictions for another. ' + _REMEDY)


_REMEDY = ('Let call(y_true, y_pred) of the loss reduce the last axis only '
           '(axis=-1), without a mean over the batch.')
