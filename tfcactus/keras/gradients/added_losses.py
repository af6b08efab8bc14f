"""Losses that layers add (`add_loss`, activity regularizers), per example.

The loss of an example is what the layer adds for a batch of this example only. So
activity regularizers, which are functions of outputs, run on the output of one example
at a time. A loss with a number for each example is taken as it is; layers that add
another, such as a sum over the batch, run on batches of one.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from typing import Any

import tensorflow as tf

from tfcactus.keras.compat import (
  losses as compat,
  models,
  patches,
  precision,
  vectorization,
)


class NotOneEach(ValueError):
  """Raised if a `layer` added a loss that is not a number for each example."""

  def __init__(self, words: str, layer: Any):
    super().__init__(words)
    self.layer = layer


class Added(list[tf.Tensor]):
  """Losses that layers added in one pass over a model."""

  def total(self) -> tf.Tensor | None:
    """Returns the sum of the losses, float32 or float64; None if there are none."""
    return tf.add_n(precision.alike(self)) if self else None


@contextlib.contextmanager
def of_one(model: Any) -> Iterator[Added]:
  """Yields an `Added`, which collects losses of a model or layer as scalars.

  Entries of a loss are added up: the block has to run on a single example.
  """
  added = Added()

  def add_loss(losses: Any, **kwargs: Any) -> None:
    """Replaces the layer's `add_loss`: adds losses to `added`, as scalars."""
    del kwargs
    added.extend(tf.reduce_sum(_tensor(loss)) for loss in tf.nest.flatten(losses))

  with contextlib.ExitStack() as stack:
    for layer in _layers(model):
      stack.enter_context(patches.replaced(layer, add_loss=add_loss))
    yield added


@contextlib.contextmanager
def of_rows(model: Any, rows: int) -> Iterator[Added]:
  """Yields an `Added`, which collects a model's losses in a pass over `rows` examples.

  The losses have shape (rows,). A layer that adds a loss of another shape raises
  `NotOneEach`.
  """
  added = Added()
  with contextlib.ExitStack() as stack:
    for layer in _layers(model):
      stack.enter_context(_collecting_rows(layer, rows, added))
    yield added


@contextlib.contextmanager
def _collecting_rows(layer: Any, rows: int, added: Added) -> Iterator[None]:
  """Collects the losses of one layer in `added`, each of shape (rows,)."""
  regularizer: Any = getattr(layer, compat.ACTIVITY_REGULARIZER, None)
  to_skip = 0  # Calls of `add_loss` with what `of_outputs` returned.

  def of_outputs(outputs: tf.Tensor) -> tf.Tensor:
    """Replaces the activity regularizer: adds its loss per example, returns 0."""
    nonlocal to_skip
    added.append(vectorization.over_rows(
        lambda row: tf.reduce_sum(_tensor(regularizer(row[None]))), outputs))
    to_skip += 1
    return tf.zeros([], outputs.dtype)

  def add_loss(losses: Any, **kwargs: Any) -> None:
    """Replaces the layer's `add_loss`: adds losses of shape (rows,) to `added`.

    Raises `NotOneEach` for other shapes; one example may have a scalar.
    """
    nonlocal to_skip
    del kwargs
    if to_skip:
      to_skip -= 1
      return
    for loss in map(_tensor, tf.nest.flatten(losses)):
      if loss.shape.as_list() != [rows] and not (rows == 1 and not loss.shape.rank):
        raise NotOneEach(
            f'add_loss of layer {layer.name!r} is given shape {loss.shape}, not a '
            'number for each example', layer)
      added.append(tf.reshape(loss, [rows]))

  attributes: dict[str, Any] = {'add_loss': add_loss}
  if regularizer is not None:
    attributes[compat.ACTIVITY_REGULARIZER] = of_outputs
  with patches.replaced(layer, **attributes):
    yield


def _layers(model: Any) -> list[Any]:
  """Returns a model and its inner layers, without operations of Keras 3."""
  return [layer for layer in [model, *models.flat_layers(model)]
          if hasattr(layer, 'add_loss')]


def _tensor(loss: Any) -> tf.Tensor:
  """Returns an added loss as a tensor; calls a function that returns it."""
  return tf.convert_to_tensor(loss() if callable(loss) else loss)
