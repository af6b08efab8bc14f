"""How a private model is saved and comes back: counts of releases never fall."""

from __future__ import annotations

from typing import Any

from tfcactus.keras import serialization
from tfcactus.keras.compat import optimizers
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.ledger.model_ledger import ModelLedger


class SavedModel(keras.Model):
  """The base of `PrivateModel`, which saves all of it but its randomness.

  Attributes:
    inner: The wrapped model.
  """

  inner: keras.Model
  _ledger: ModelLedger

  def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
    """Saves all there is into a .keras file; arguments as for any Keras model.

    Raises:
      ValueError: if the file is of another format, which does not hold it.
    """
    serialization.check_format(filepath, kwargs.get('save_format'))
    super().save(filepath, *args, **kwargs)

  def export(self, *args: Any, **kwargs: Any) -> Any:
    """Exports the wrapped model alone, for inference, without plan and counts."""
    return self.inner.export(*args, **kwargs)

  def set_weights(self, weights: Any) -> None:
    """Sets all weights; what was released stays counted.

    Weights that this model never had, such as the average of two models, count what
    the private models of this process released that they can come from.

    Args:
      weights: As `get_weights` returns them, counters included.

    Raises:
      ValueError: if the counters are not whole numbers: they were computed with.
    """
    self._ledger.check_counters(zip(self.weights, weights))
    with self._ledger.keeping_counts(others=True):
      super().set_weights(weights)

  def save_weights(self, *args: Any, **kwargs: Any) -> None:
    """Saves weights, with what was released."""
    self._ledger.check_weights()
    super().save_weights(*args, **kwargs)

  def load_weights(self, *args: Any, **kwargs: Any) -> Any:
    """Loads weights; what was released stays counted."""
    with self._ledger.keeping_counts():
      return super().load_weights(*args, **kwargs)

  def compile_from_config(self, config: Any) -> None:
    """Compiles a loaded model, its optimizer ready to be restored."""
    self.compile(**keras.saving.deserialize_keras_object(config))
    optimizers.make_variables(self)

  def save_own_variables(self, store: Any) -> None:
    """Saves the counters, and the clip norm if it moves."""
    self._ledger.save(store)

  def load_own_variables(self, store: Any) -> None:
    """Loads what was saved; what was released stays counted.

    Raises:
      ValueError: if the file is not of such a model.
    """
    self._ledger.load(store)
