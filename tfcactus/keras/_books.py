"""The books of a private model: what it released, counted before it does."""

from __future__ import annotations

import contextlib
from typing import Any
from typing import Iterator
from typing import List

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
  """

  def __init__(self, model: keras.Model, plan: Any, journal: Any, seeded: bool):
    """Opens the books, where earlier ones of the variables left off.

    Args:
      model: The wrapped model.
      plan: A `PrivacyPlan`.
      journal: Path of a `Journal`, or None.
      seeded: Whether the noise repeats.

    Raises:
      ValueError: if steps were released that the plan does not cover, or the
        journal cannot be taken.
    """
    self.plan = plan
    self._model = model
    self.record = _history.find_record(model, plan)
    self._source = sampling.Source()
    self.journal = None if journal is None else self._resumed(journal, seeded)

  def _resumed(self, path: Any, seeded: bool) -> Journal:
    """Opens the journal and counts what it says was released."""
    if seeded:
      raise ValueError(
          'Expected no seed with a journal, got both: the resumed run would '
          'draw the noise of the first again.')
    journal = Journal(path, self.plan)
    for variable, value in zip(self._journaled(), journal.entry):
      variable.assign(value)
    return journal

  def _journaled(self) -> List[tf.Variable]:
    """The counters that a journal keeps, in the order of an `Entry`."""
    counters = self.record.counters
    return [counters['released_steps'], counters['epochs_begun'],
            counters['sampling']]

  def count_step(self) -> Any:
    """Counts a step; inside the context it returns, the step may run.

    A step that fails later is counted, never the reverse.
    """
    seen = self.record.counters['sampling']
    seen.assign(sampling.combine(seen, self._source.kind))
    self.record.counters['released_steps'].assign_add(1)
    return tf.control_dependencies(
        [] if self.journal is None else [self._reserve()])

  def _reserve(self) -> tf.Operation:
    """Has the counters on disk before anything that depends on it runs."""

    def reserve(*counts):
      self.journal.reserve(Entry(*map(int, counts)))
      return np.int64(0)

    return tf.numpy_function(
        reserve, [tf.identity(v) for v in self._journaled()], tf.int64)

  @contextlib.contextmanager
  def training(self, kind: Sampling) -> Iterator[None]:
    """Steps inside are recorded as of `kind`; outside, as of unknown."""
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
      self.journal.settle(Entry(*(int(v) for v in self._journaled())))

  @contextlib.contextmanager
  def keeping_counts(self) -> Iterator[None]:
    """Keeps counters from falling when older weights come back inside."""
    counters = self.record.counters
    steps, epochs = (int(counters[name])
                     for name in ('released_steps', 'epochs_begun'))
    kind, plan = tf.identity(counters['sampling']), int(counters['plan_number'])
    self.record.look(self._model)
    yield
    counters['plan_number'].assign(_history.merge_plans(
        steps, plan, int(counters['released_steps']),
        int(counters['plan_number'])))
    for name, value in (('released_steps', steps), ('epochs_begun', epochs)):
      counters[name].assign(max(value, int(counters[name])))
    counters['sampling'].assign(sampling.combine(kind, counters['sampling']))
    self.record.keep(self._model)

  def ledger(self) -> sampling.Ledger:
    """What was released so far, and how its batches were chosen."""
    return self._ledger(self.record.counters['sampling'], 0)

  def next_ledger(self) -> sampling.Ledger:
    """The ledger with one more step of what is being trained on."""
    return self._ledger(sampling.combine(
        self.record.counters['sampling'], self._source.kind), 1)

  def _ledger(self, kind: tf.Tensor, ahead: int) -> sampling.Ledger:
    note = self.record.note(self._model, self.plan)
    counters = self.record.counters
    return sampling.Ledger(
        Sampling.UNKNOWN if note else Sampling(int(kind)),
        int(counters['released_steps']) + ahead,
        int(counters['epochs_begun']) + ahead, note)
