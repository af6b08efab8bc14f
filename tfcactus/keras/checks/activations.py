"""Warns of a crossentropy whose `from_logits` does not fit the last activation."""

from __future__ import annotations

from typing import Any
import warnings

from tfcactus.keras.compat import losses as compat, models
from tfcactus.keras.compat.versions import keras

_CROSSENTROPIES = (
    'BinaryCrossentropy', 'BinaryFocalCrossentropy', 'CategoricalCrossentropy',
    'CategoricalFocalCrossentropy', 'SparseCategoricalCrossentropy')


def warn(model: keras.Model, losses: Any) -> None:
  """Warns if a loss expects probabilities of a linear output, or vice versa."""
  # `losses` is one loss for all outputs, or one for each. Silent if the activation of
  # an output is not known, as in subclassed models.
  layers = models.last_layers(model)
  given = list(losses) if isinstance(losses, (list, tuple)) else [losses] * len(layers)
  for layer, loss in zip(layers, given):
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    activation = getattr(layer, 'activation', None)
    if activation is None or not compat.is_loss(loss, _CROSSENTROPIES):
      continue
    logits = compat.takes_logits(loss)
    name = getattr(loss, 'name', None) or loss.__name__
    if activation is keras.activations.linear and not logits:
      warnings.warn(
          f'Expected probabilities from layer {layer.name!r} with the loss {name} of '
          'from_logits=False, got a linear activation, whose outputs are logits: '
          'training goes wrong without an error. Pass a loss of from_logits=True, or '
          "end the model in 'softmax' or 'sigmoid'.", stacklevel=3)
    if logits and activation in (keras.activations.softmax, keras.activations.sigmoid):
      warnings.warn(
          f'Expected logits from layer {layer.name!r} with the loss {name} of '
          f'from_logits=True, got probabilities ({activation.__name__}), which the '
          'loss normalises again: training is slow without an error. Leave out '
          'from_logits=True, or the activation.', stacklevel=3)
