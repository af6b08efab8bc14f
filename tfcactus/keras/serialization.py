"""Saves private models, and turns plans into configs for Keras."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import dataclasses
import os
from typing import Any

from tfcactus import correlated, noise as noise_lib, step_counts
from tfcactus.accounting import event_configs
from tfcactus.keras.compat import models, optimizers, trainability
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.ledger.model_ledger import ModelLedger
from tfcactus.plan import PrivacyPlan


class SavedModel(keras.Model):
  """Base class of `PrivateModel` that saves all state but randomness."""

  inner: keras.Model
  _ledger: ModelLedger

  def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
    """Saves everything into a .keras file; arguments as for any Keras model.

    Raises:
      ValueError: if the file is of another format, which cannot hold everything.
    """
    save_format = kwargs.get('save_format')
    named = str(filepath).endswith('.keras') or not isinstance(
        filepath, (str, os.PathLike))
    if not named or save_format not in (None, 'keras'):
      asked = '' if save_format is None else f' with save_format={save_format!r}'
      raise ValueError(
          f"Expected a .keras file, such as save('m.keras'), got {filepath!r}"
          f'{asked}: other formats do not hold the plan and what was released. '
          "For inference alone, export('folder') writes a SavedModel of the "
          'plain model, and private_model.inner.save(...) takes any format.')
    with self._keeping_logs():
      super().save(filepath, *args, **kwargs)

  @contextlib.contextmanager
  def _keeping_logs(self) -> Iterator[None]:
    """Puts metrics back after the block, in which a save resets them."""
    variables = [models.tf_variable(each) for metric in self._all_metrics()
                 for each in metric.variables]
    # Each replica has a part of a sum.
    parts = [part for each in variables for part in getattr(each, 'values', [each])]
    before = [part.numpy() for part in parts]
    try:
      yield
    finally:
      for part, value in zip(parts, before):
        part.assign(value)

  def _all_metrics(self) -> list[Any]:
    """Returns the metrics of this model, and any of the wrapped one."""
    # A class may make its metrics in `compile`, which the wrapped model may lack.
    return [*self.metrics, *getattr(self.inner, 'metrics', ())]

  def _reset_logs(self) -> None:
    """Resets metrics, before Keras 2 saves what they sum up, without noise."""
    for metric in self._all_metrics():
      metric.reset_state()

  def _trackable_children(self, save_type: str = 'checkpoint', **kwargs: Any) -> Any:
    """Returns what TensorFlow saves; resets metrics if it is a SavedModel."""
    if save_type == 'savedmodel':
      self._reset_logs()
    return super()._trackable_children(save_type, **kwargs)

  def __reduce__(self) -> Any:
    """Returns what `pickle` needs: the bytes of a .keras file."""
    with self._keeping_logs():
      return super().__reduce__()

  def export(self, *args: Any, **kwargs: Any) -> Any:
    """Exports only the wrapped model, for inference, without plan and counts."""
    return self.inner.export(*args, **kwargs)

  def set_weights(self, weights: Any) -> None:
    """Sets all weights, counters included; the counts of releases never decrease.

    Weights that this model never had, such as the average of two models, also count the
    releases of all private models of this process that they may come from.

    Raises:
      ValueError: if counters are not whole numbers, as after arithmetic on weights.
    """
    self._ledger.check_counters(zip(self.weights, weights))
    with self._ledger.keeping_counts(others=True):
      super().set_weights(weights)

  def save_weights(self, *args: Any, **kwargs: Any) -> None:
    """Saves weights and counts; voids the account if weights changed uncounted."""
    self._ledger.check_weights(optimizers.bare_optimizer(self))
    with self._keeping_logs():
      super().save_weights(*args, **kwargs)

  def load_weights(self, *args: Any, **kwargs: Any) -> Any:
    """Loads weights; the counts of releases never decrease.

    The model then counts its own steps and those of the file together. Steps that both
    have count once.
    """
    with self._ledger.keeping_counts(optimizer=optimizers.bare_optimizer(self)), (
        trainability.loading(self.inner)):
      return super().load_weights(*args, **kwargs)

  def compile_from_config(self, config: Any) -> None:
    """Compiles a loaded model and makes its optimizer ready to be restored."""
    self.compile(**keras.saving.deserialize_keras_object(config))
    optimizers.make_variables(self)

  def save_own_variables(self, store: Any) -> None:
    """Saves counters, adaptive clipping norm, LoRA factors, and what is trained.

    Resets metrics, which Keras saves next into .keras and .weights.h5 files.
    """
    self._reset_logs()
    self._ledger.save(store, optimizers.bare_optimizer(self))
    trainability.save(self.inner, store)

  def load_own_variables(self, store: Any) -> None:
    """Loads what `save_own_variables` saved; the counts of releases never decrease.

    Keras loads the weights of layers next, and LoRA factors with them. Warns if the
    model of the file trained other variables; ValueError if it was not private.
    """
    self._ledger.load(store)
    trainability.load(self.inner, store)


def plan_config(plan: PrivacyPlan | None) -> dict[str, Any] | None:
  """Returns a `PrivacyPlan` (or None) as a plain dict."""
  if plan is None:
    return None
  fields = {field.name: getattr(plan, field.name)
            for field in dataclasses.fields(plan)}
  return {**fields, 'noise': noise_lib.to_config(plan.noise), **{
              name: None if fields[name] is None else dataclasses.asdict(fields[name])
              for name in step_counts.KINDS},
          'releases': [event_configs.event_config(event) for event in plan.releases],
          'correlation': None if plan.strategy is None else (
              plan.strategy.to_config())}


def plan_from(config: dict[str, Any] | None) -> Any:
  """Returns the `PrivacyPlan` (or None) of a `plan_config`."""
  if config is None:
    return None
  fields = dict(config)
  strategy = fields.get('correlation')
  return PrivacyPlan(**{
      **fields, 'noise': noise_lib.from_config(fields['noise']),
      **{name: kind.type(**fields[name]) for name, kind in step_counts.KINDS.items()
         if fields.get(name) is not None},
      'releases': [event_configs.event_from(event)
                   for event in fields.get('releases', ())],
      'correlation': None if strategy is None else (
          correlated.from_config(strategy, 'the plan in the config'))})
