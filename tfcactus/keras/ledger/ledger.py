"""The books of a private model: what it released, counted before it does."""

from __future__ import annotations

import contextlib
import os
from typing import Any
from typing import Dict
from typing import Iterator
from typing import List
from typing import Optional
from typing import Tuple

import numpy as np
import tensorflow as tf

from tfcactus.keras.compat import patches
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.ledger import lineage
from tfcactus.keras.ledger import weight_watch
from tfcactus.keras.ledger.batch_marks import Marks
from tfcactus.keras.ledger.journal import Entry
from tfcactus.keras.ledger.journal import Journal
from tfcactus.sampling import schemes
from tfcactus.sampling.schemes import Sampling
from tfcactus.sampling.schemes import Seeded


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
    self.record = lineage.find_record(model, plan)
    self._noise = Seeded.NOISE if seeded else Seeded.NOTHING
    self._marks: List[Marks] = []
    self._pid = os.getpid()
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

  def _count(self, entry: Entry) -> Dict[str, int]:
    """Counts at least what an entry says was released; returns all counters."""
    return self.record.catch_up(
        released_steps=entry.steps, epochs_begun=entry.epochs,
        sampling=entry.sampling)

  @property
  def seeded(self) -> Seeded:
    """What of the randomness of released steps, and of the noise, repeats."""
    return self._noise | Seeded(self.record.catch_up()['seeded_parts'])

  def count_step(self, mark: tf.Tensor) -> Any:
    """Counts a step; inside the context it returns, the step may run.

    A step that fails later is counted, never the reverse.

    Args:
      mark: That of its batch.
    """
    with tf.init_scope():
      self._open_journal()
    record = self.record
    counters = [record.counters[name] for name in record.NAMES]
    totals = tf.numpy_function(
        self._admit, [mark, weight_watch.digest(self._model.weights),
                      record.weights.left, *counters], tf.int64)
    totals = tf.ensure_shape(totals, [len(counters)])
    for counter, total in zip(counters, tf.unstack(totals)):
      counter.assign(total)
    return tf.control_dependencies([totals])

  def _admit(self, mark: np.ndarray, weights: np.ndarray, left: np.ndarray,
             *counters: np.ndarray) -> np.ndarray:
    """Counts a step, on disk too, before anything that depends on it runs."""
    if os.getpid() != self._pid:
      raise RuntimeError(
          'Expected steps in the process that made the private model, got a '
          'fork, whose steps the ledger there would not count; make the model '
          'in the process that trains it.')
    kind, passes, seeded = self._recognise(mark)
    total = self.record.step(
        dict(zip(self.record.NAMES, map(int, counters))), int(weights),
        int(left), kind, passes, seeded | self._noise)
    if self.journal is not None:
      self.journal.reserve(_entry(total))
    return np.array([total[name] for name in self.record.NAMES], np.int64)

  def _recognise(self, mark: np.ndarray) -> Tuple[Sampling, int, Seeded]:
    """How the batch of a mark was chosen, what it begins, what repeats."""
    numbers = set(mark[:, 0].tolist())
    for marks in self._marks:
      if numbers == {marks.number}:
        seeded = Seeded.BATCHES if marks.seeded else Seeded.NOTHING
        return (*marks.take(mark[:, 1]), seeded)
    return Sampling.UNKNOWN, 0, Seeded.NOTHING

  def end_step(self) -> None:
    """Remembers the weights that a step left."""
    self.record.weights.left.assign(weight_watch.digest(self._model.weights))

  def own_up(self, noise: bool, batches: bool) -> None:
    """Counts what a file says was seeded of the steps in it."""
    self.record.catch_up(seeded_parts=int(
        (Seeded.NOISE if noise else Seeded.NOTHING) |
        (Seeded.BATCHES if batches else Seeded.NOTHING)))

  @contextlib.contextmanager
  def training(self, marks: Marks, optimizer: Any) -> Iterator[None]:
    """Inside, steps on the batches of `marks` are of their kind.

    Args:
      marks: Those of the batches.
      optimizer: What applies the averages.
    """
    self._open_journal()
    self.record.catch_up()
    self.record.look(self._model)
    self._marks.append(marks)
    try:
      with self._finalizing(optimizer):
        yield
    finally:
      self._marks.remove(marks)
      self.record.look(self._model)
    if self.journal is not None:
      self.journal.settle(_entry(self.record.catch_up()))

  @contextlib.contextmanager
  def _finalizing(self, optimizer: Any) -> Iterator[None]:
    """Lets an optimizer of `use_ema` leave the average of released weights."""
    if not getattr(optimizer, 'use_ema', False):
      yield
      return
    finalize = optimizer.finalize_variable_values

    def keeping(*args, **kwargs):
      with self.keeping_counts():
        finalize(*args, **kwargs)

    with patches.replaced(optimizer, finalize_variable_values=keeping):
      yield

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

  def ledger(self) -> schemes.Ledger:
    """What was released so far, and how its batches were chosen."""
    return self._ledger(0)

  def next_ledger(self) -> schemes.Ledger:
    """The ledger with one more step of what is being trained on."""
    return self._ledger(1)

  def _ledger(self, ahead: int) -> schemes.Ledger:
    counts = self.record.catch_up()
    note = self.record.note(self._model, self.plan)
    if self.journal_path is not None and self.journal is None:
      entry = Journal.peek(self.journal_path, self.plan)
      note = note or ('' if entry else _NO_JOURNAL.format(self.journal_path))
      counts = self._count(entry or Entry())
    kind, seeded = Sampling(counts['sampling']), Seeded(counts['seeded_parts'])
    if ahead:
      marks = self._marks[-1] if self._marks else Marks(Sampling.UNKNOWN)
      kind = schemes.combine(kind, marks.sampling)
      seeded |= self._noise | (
          Seeded.BATCHES if marks.seeded else Seeded.NOTHING)
    return schemes.Ledger(
        Sampling.UNKNOWN if note else kind, counts['released_steps'] + ahead,
        counts['epochs_begun'] + ahead, note, seeded)


def _entry(counts: Dict[str, int]) -> Entry:
  """What a journal keeps of the counters."""
  return Entry(counts['released_steps'], counts['epochs_begun'],
               counts['sampling'])


_NO_JOURNAL = (
    'No epsilon: the journal {} of this model is not there, and it may count '
    'steps that were released after the model was saved. Put it back; or build '
    'the model anew with privatize(model, plan).')
