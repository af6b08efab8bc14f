"""Checkpoints of training runs in a folder: options, model and journal of steps."""

from __future__ import annotations

from collections.abc import Mapping
import json
import os
from typing import Any

import tensorflow as tf


class Run:
  """A training run that is saved in a folder.

  Attributes:
    folder: Path of the folder.
    journal: Path of the file that counts steps before they are released.
  """

  def __init__(self, folder: str):
    """Sets the paths of the run, without access to the disk."""
    self.folder = folder
    self.journal = os.path.join(folder, 'journal')
    self._model = os.path.join(folder, 'model.keras')
    self._options = os.path.join(folder, 'options.json')

  def begun(self) -> bool:
    """Returns whether there is a model to resume."""
    return os.path.exists(self._model)

  def begin(self) -> None:
    """Makes the folder; ValueError if it holds a run or cannot be written to."""
    if self.begun():
      raise ValueError(
          f'Expected --checkpoint to be a folder for a run that begins, got '
          f'{self.folder}, which holds one; go on with --resume {self.folder}, or name '
          'another folder.')
    try:
      os.makedirs(self.folder, exist_ok=True)
      with open(_part(self._options), 'w', encoding='utf-8'):
        pass
      os.remove(_part(self._options))
    except OSError as error:
      raise ValueError(
          'Expected --checkpoint to be a folder that can be written, got '
          f'{self.folder}: {error.strerror}.') from error

  def options(self) -> dict[str, Any]:
    """Returns the options the run was begun with; ValueError if none were saved."""
    try:
      with open(self._options, encoding='utf-8') as file:
        return json.load(file)
    except (OSError, ValueError) as error:
      raise ValueError(
          'Expected --resume to be a folder in which a run with --checkpoint has saved '
          f'its options, got {self.folder}: {error}.') from error

  def save(self, model: tf.keras.Model, options: Mapping[str, Any]) -> None:
    """Writes options and `PrivateModel`; a kill leaves each file old or new."""
    with open(_part(self._options), 'w', encoding='utf-8') as file:
      json.dump(dict(options), file, indent=2)
      file.write('\n')
    os.replace(_part(self._options), self._options)
    model.save(_part(self._model))
    os.replace(_part(self._model), self._model)

  def load(self) -> tf.keras.Model:
    """Returns the model of the last checkpoint, with weights, plan and optimizer.

    Steps released since then count too: the model reads them from the journal. Raises
    ValueError if there is no model, or its journal is not where it was begun.
    """
    if not self.begun():
      raise ValueError(
          f'Expected --resume to be a folder with {os.path.basename(self._model)}, got '
          f'{self.folder}, which has none; begin the run again with --checkpoint.')
    model = tf.keras.models.load_model(self._model)
    begun = model.get_config()['journal']
    if not (os.path.exists(self.journal) and os.path.exists(begun) and
            os.path.samefile(self.journal, begun)):
      raise ValueError(
          f'Expected the journal of the run in {self.folder} to be {begun}, got none '
          'or another; put the folder back as it was: what was released after the '
          'model was saved is counted there alone.')
    return model


class Saving(tf.keras.callbacks.Callback):
  """Callback that saves a run before its first step and after each epoch."""

  def __init__(self, run: Run, options: Mapping[str, Any]):
    super().__init__()
    self._run = run
    self._options = options

  def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
    """Saves, so that a run that is killed in its first epoch can be resumed."""
    del logs
    self._run.save(self.model, self._options)

  def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
    """Saves the run after an epoch."""
    del epoch, logs
    self._run.save(self.model, self._options)


def _part(path: str) -> str:
  """Returns the path to which a file is written before it replaces `path`."""
  folder, name = os.path.split(path)
  return os.path.join(folder, f'part.{name}')
