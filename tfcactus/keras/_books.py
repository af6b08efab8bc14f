"""The books of a private model: what it released, counted before it does."""

from __future__ import annotations

import contextlib
import os
from typing import Any
from typing import Dict
from typing import Iterator
from typing import List
from typing import Optional

import numpy as np
import tensorflow as tf

from tfcactus.keras import _history
from tfcactus.keras import sampling
from tfcactus.keras._compat import keras
from tfcactus.keras.journal import Entry
from tfcactus.keras.journal import Journal
from tfcactus.keras.sampling import Sampling


class Books:
  """Counts the steps that are released from one model's variables.

  Attributes:
    plan: The `PrivacyPlan`.
    record: The `Record` of the variables.
    journal: The `Journal`, or None.
    journal_path: Where it is, or None.
  """

  def __init__(self, model: keras.Model, plan: Any, journal: Any, seeded: bool,
               loaded: bool = False):
    """Opens the books, where earlier ones of the variables left off.

    Args:
      model: The wrapped model.
      plan: A `PrivacyPlan`.
      journal: Path of a `Journal`, or None.
      seeded: Whether the noise repeats.
      loaded: Whether the model comes from a file. Its journal, which may by now
        count more than the file, is then read but not taken until it trains.

    Raises:
      ValueError: if steps were released that the plan does not cover, or the
        journal cannot be taken.
    """
    self.plan = plan
    self._loaded = loaded
    self._model = model
    self.record = _history.find_record(model, plan)
    self._source = sampling.Source()
    self.journal_path = None if journal is None else (
        os.path.abspath(os.fspath(journal)))
    self.journal: Optional[Journal] = None
    if seeded and journal is not None:
      raise ValueError(
          'Expected no seed with a journal, got both: the resumed run would '
          'draw the noise of the first again.')
    if not loaded:
      self._open_journal()

  def _open_journal(self) -> None:
    """Opens the journal, if there is to be one, and counts what it says."""
    if self.journal_path is None or self.journal is not None:
      return
    if self._loaded and not os.path.exists(self.journal_path):
      raise ValueError(_NO_JOURNAL.format(self.journal_path))
    self.journal = Journal(self.journal_path, self.plan)
    self._count(self.journal.entry)

  def _count(self, entry: Entry) -> Dict[str, tf.Tensor]:
    """Counts at least what an entry says was released; returns all counters."""
    return self.record.catch_up(
        released_steps=entry.steps, epochs_begun=entry.epochs,
        sampling=entry.sampling)

  def count_step(self) -> Any:
    """Counts a step; inside the context it returns, the step may run.

    A step that fails later is counted, never the reverse.
    """
    with tf.init_scope():
      self._open_journal()
    counts = self.record.count_step(self._source.kind)
    return tf.control_dependencies(
        [] if self.journal is None else [self._reserve(counts)])

  def _reserve(self, counts: Dict[str, tf.Tensor]) -> tf.Operation:
    """Has the counts on disk before anything that depends on it runs."""

    def reserve(*values):
      self.journal.reserve(Entry(*map(int, values)))
      return np.int64(0)

    return tf.numpy_function(reserve, _journaled(counts), tf.int64)

  @contextlib.contextmanager
  def training(self, kind: Sampling) -> Iterator[None]:
    """Steps inside are recorded as of `kind`; outside, as of unknown."""
    self._open_journal()
    self.record.catch_up()
    self.record.look(self._model)
    self.record.training = True
    self._source.kind.assign(int(kind))
    try:
      yield
    finally:
      self._source.kind.assign(int(Sampling.UNKNOWN))
      self.record.training = False
      self.record.keep(self._model)
    if self.journal is not None:
      self.journal.settle(Entry(*map(int, _journaled(self.record.catch_up()))))

  @contextlib.contextmanager
  def keeping_counts(self, weights: bool = True) -> Iterator[None]:
    """Keeps counters from falling when older ones come back inside.

    Args:
      weights: Whether the model's weights do too.
    """
    self.record.catch_up()
    if weights:
      self.record.look(self._model)
    yield
    self.record.catch_up()
    if weights:
      self.record.keep(self._model)

  def ledger(self) -> sampling.Ledger:
    """What was released so far, and how its batches were chosen."""
    return self._ledger(0)

  def next_ledger(self) -> sampling.Ledger:
    """The ledger with one more step of what is being trained on."""
    return self._ledger(1)

  def _ledger(self, ahead: int) -> sampling.Ledger:
    counts = self.record.catch_up()
    note = self.record.note(self._model, self.plan)
    if self.journal_path is not None and self.journal is None:
      entry = Journal.peek(self.journal_path, self.plan)
      note = note or ('' if entry else _NO_JOURNAL.format(self.journal_path))
      counts = self._count(entry or Entry())
    kind = counts['sampling']
    if ahead:
      kind = sampling.combine(kind, self._source.kind)
    return sampling.Ledger(
        Sampling.UNKNOWN if note else Sampling(int(kind)),
        int(counts['released_steps']) + ahead,
        int(counts['epochs_begun']) + ahead, note)


def _journaled(counts: Dict[str, tf.Tensor]) -> List[tf.Tensor]:
  """What a journal keeps, in the order of an `Entry`."""
  return [counts[name] for name in ('released_steps', 'epochs_begun',
                                    'sampling')]


_NO_JOURNAL = (
    'No epsilon: the journal {} of this model is not there, and it may count '
    'steps that were released after the model was saved. Put it back; or build '
    'the model anew with privatize(model, plan).')
