"""Saving and loading of a private model, which never lowers the counts of releases."""

from __future__ import annotations

from typing import Any

from tfcactus.keras import serialization
from tfcactus.keras.compat import optimizers
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.ledger.model_ledger import ModelLedger


class SavedModel(keras.Model):
  """Base class of `PrivateModel` that saves all state but randomness.

  Attributes:
    inner: The wrapped model.
  """

  inner: keras.Model
  _ledger: ModelLedger

  def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
    """Saves everything into a .keras file; arguments as for any Keras model.

    Raises:
      ValueError: if the file is of another format, which cannot hold everything.
    """
    serialization.check_format(filepath, kwargs.get('save_format'))
    super().save(filepath, *args, **kwargs)

  def export(self, *args: Any, **kwargs: Any) -> Any:
    """Exports the wrapped model alone, for inference, without plan and counts."""
    return self.inner.export(*args, **kwargs)

  def set_weights(self, weights: Any) -> None:
    """Sets all weights; the counts of releases never decrease.

    Weights that this model never had, such as the average of two models, also count the
    releases of all private models of this process that they may come from.

    Args:
      weights: As `get_weights` returns them, counters included.

    Raises:
      ValueError: if counters are not whole numbers, as after arithmetic on weights.
    """
    self._ledger.check_counters(zip(self.weights, weights))
    with self._ledger.keeping_counts(others=True):
      super().set_weights(weights)

  def save_weights(self, *args: Any, **kwargs: Any) -> None:
    """Saves the weights together with the counts of releases."""
    self._ledger.check_weights()
    super().save_weights(*args, **kwargs)

  def load_weights(self, *args: Any, **kwargs: Any) -> Any:
    """Loads weights; the counts of releases never decrease."""
    with self._ledger.keeping_counts():
      return super().load_weights(*args, **kwargs)

  def compile_from_config(self, config: Any) -> None:
    """Compiles a loaded model and makes its optimizer ready to be restored."""
    self.compile(**keras.saving.deserialize_keras_object(config))
    optimizers.make_variables(self)

  def save_own_variables(self, store: Any) -> None:
    """Saves the counters, and the clipping norm if it adapts."""
    self._ledger.save(store)

  def load_own_variables(self, store: Any) -> None:
    """Loads counters and clipping norm; the counts of releases never decrease.

    Raises:
      ValueError: if the file is not of such a model.
    """
    self._ledger.load(store)
