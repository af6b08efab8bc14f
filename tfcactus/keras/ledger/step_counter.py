"""Counts the steps of a private model before they are released."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import functools
import os
from typing import Any

import numpy as np
import tensorflow as tf

from tfcactus import _checks
from tfcactus.keras.compat import models, optimizers
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.data.batch_marks import Marks, Place, Taken
from tfcactus.keras.distribution import replicas
from tfcactus.keras.ledger import agreement, lineage, paid_steps, weight_watch
from tfcactus.keras.ledger.counts import Counts, Record, Seeded, Trusted
from tfcactus.keras.ledger.journal import Journal
from tfcactus.keras.ledger.weight_watch import Watch
from tfcactus.keras.step.clip_norm import ClipNorm
from tfcactus.noise.table_file import PathLike
from tfcactus.plan import PrivacyPlan


class StepCounter:
  """Counts each step of one model, in its journal too, before the step is released.

  The workers of a distributed `fit` agree on the count of each step.

  Attributes:
    noise: A `Seeded`: `NOISE` if the noise comes from a seed, else `NOTHING`.
    loaded: Whether the model comes from a config, as one that was saved does.
    journal: The `Journal` if it is open, or None.
    journal_path: Absolute path of the journal, or None.
    side: Which `Side` of a split the batches of the last `fit` are, or None.
    private_logs: {log of the last `fit`: event of the release that made it}.
  """

  def __init__(self, model: keras.Model, plan: PrivacyPlan, record: Record,
               norm: ClipNorm, journal: PathLike | None, seeded: bool, loaded: bool,
               paid: paid_steps.PaidSteps | None = None):
    """Counts in `record`; opens the journal unless `loaded`; see `ModelLedger`."""
    self._model = model
    self._plan = plan
    self._record = record
    self._norm = norm
    self.loaded = loaded
    self._paid = paid
    self.noise = Seeded.of(noise=seeded, batches=False)
    self._marks: list[Marks] = []
    self._pid = os.getpid()
    self._strategy = tf.distribute.get_strategy()
    self._chief = replicas.worker(self._strategy) == 0
    self._agreement = agreement.StepAgreement()
    self._agreed = False
    self.side: Any = None
    self.private_logs: dict[str, Any] = {}
    self.journal_path = None if journal is None else (
        os.path.abspath(_checks.path('journal', journal)))
    self.journal: Journal | None = None
    if seeded and journal is not None:
      raise ValueError(
          'Expected no seed with a journal, got both: the resumed run would '
          'draw the noise of the first again.')
    if not loaded:
      self._open_journal()

  def _open_journal(self) -> None:
    """Opens the journal on the chief, if there is a path, and merges its counts.

    Raises ValueError if that of a loaded model is not there.
    """
    if self.journal_path is None or self.journal is not None or not self._chief:
      return
    if self.loaded and not os.path.exists(self.journal_path):
      raise ValueError(_NO_JOURNAL.format(self.journal_path))
    self.journal = Journal(self.journal_path, self._plan)
    self._record.merge_counts(self.journal.entry)

  def read_journal(self) -> str:
    """Merges the counts of a journal that is not open.

    Returns '', or why counts may be missing: there is no file, or the chief has it.
    """
    if self.journal_path is None or self.journal is not None:
      return ''
    if not self._chief:
      return '' if self._agreed else _CHIEF
    entry = Journal.peek(self.journal_path, self._plan)
    self._record.merge_counts(entry)
    return '' if entry else _NO_JOURNAL.format(self.journal_path)

  @contextlib.contextmanager
  def training(self, marks: Marks, model: keras.Model, batches: Any) -> Iterator[None]:
    """Recognises the batches of one `fit`, by `marks`, while the context is open.

    A step on a batch without a valid mark is counted too, with unknown sampling.
    `batches` is what `fit` was given. Raises ValueError as `agreement.begin`, or if the
    journal cannot be opened or an account covers no more. Writes the exact count to the
    journal if the context ends without an exception.
    """
    self._open_journal()
    self._record.merge_counts()
    self._record.void_if_changed(self._model)
    if self._paid is not None:
      self._paid.begin(marks, self._record)
    self._record.merge_counts(agreement.begin(
        model, batches, self._record, lineage.plan_number(self._plan)))
    self._agreed = True
    if getattr(batches, 'part_of', None) is not None:
      self._record.trust(Trusted.PARTS)
    self.side, self.private_logs = getattr(batches, 'side', None), {}
    self._marks.append(marks)
    try:
      yield
    finally:
      self._marks.remove(marks)
      self._record.void_if_changed(self._model)
    if self.journal is not None:
      self.journal.settle(self._record.merge_counts())

  def coming(self) -> tuple[int, Seeded]:
    """Returns the sampling code of the next steps, and which randomness is seeded.

    The code is `UNKNOWN` outside of `training`.
    """
    marks = self._marks[-1] if self._marks else Marks()
    return marks.sampling, self.noise | Seeded.of(noise=False, batches=marks.seeded)

  def _watch_of(self, optimizer: keras.optimizers.Optimizer) -> Watch:
    """Returns the watch over an optimizer's state; ValueError if trained elsewhere."""
    record, watch = self._record, self.make_watch(optimizer)
    if watch.is_empty:
      # The first step counted in a process may find a state that is new, or that was
      # restored with the counts of earlier steps. No other state is known.
      with tf.init_scope():
        saved = int(np.asarray(record.saved_digests)[1])
        may_be_saved = record.released_steps and not record.weights.stepped and (
            not saved or
            saved == weight_watch.unordered_digest(optimizers.state(optimizer)))
        if not may_be_saved and not optimizers.is_new(optimizer, [
            models.values(each) for each in models.weights(self._model)]):
          raise ValueError(_TRAINED.format(type(optimizer).__name__))
        self.keep_optimizer(optimizer)
    return watch

  def make_watch(self, optimizer: keras.optimizers.Optimizer) -> Watch:
    """Returns the watch over an optimizer's state, made now if there is none."""
    # `ModelLedger.training` calls this before `fit` is traced: a watch has a variable,
    # and TensorFlow traces again a function that makes variables.
    watches = self._record.optimizers
    if id(optimizer) not in watches:
      watches[id(optimizer)] = optimizer, weight_watch.Watch()
    return watches[id(optimizer)][1]

  def check_optimizer(self, optimizer: keras.optimizers.Optimizer) -> None:
    """Voids the account if an optimizer's state changed outside counted steps.

    Raises ValueError for an optimizer that was trained elsewhere.
    """
    variables = optimizers.state(optimizer)
    if variables and not self._watch_of(optimizer).knows(variables):
      self._record.void()

  def keep_optimizer(self, optimizer: keras.optimizers.Optimizer) -> None:
    """Adds an optimizer's state, computed from known values, to the known ones."""
    variables = optimizers.state(optimizer)
    if variables:
      self.make_watch(optimizer).keep(variables)

  @contextlib.contextmanager
  def count_step(self, mark: tf.Tensor, optimizer: keras.optimizers.Optimizer
                ) -> Iterator[tf.Tensor]:
    """Counts a step on the batch that carries `mark`, before the step runs.

    Voids the account if a `Watch` does not know the weights or `optimizer`'s state.
    Operations made inside the context run after the count. Yields four int64 numbers:
    the batch's `Place`, or zeros. A step that fails after it was counted stays counted.
    """
    with tf.init_scope():
      self._open_journal()
    found = replicas.once(functools.partial(self._counted, optimizer), mark)
    counted, place, compared = tf.split(found, [-1, len(Place._fields), len(_FAILED)])
    # No worker releases a step before all workers have counted it. They compare the
    # last three numbers, the counts and the clipping norm.
    confirmed = found if replicas.workers(self._strategy) == 1 else (
        self._agreement.confirmed(tf.concat(
            [compared, counted, tf.bitcast(self._norm.value(), tf.int64)[None]], 0)))
    with tf.control_dependencies([confirmed]):
      yield place

  def _counted(self, optimizer: keras.optimizers.Optimizer, marks: list[tf.Tensor]
              ) -> tf.Tensor:
    """Counts a step of all replicas of this process; returns the result of `_admit`."""
    counters = [self._record.counters[name] for name in Counts._fields]
    with tf.init_scope():  # A callback may have changed weights that were loaded.
      if self._record.weights.is_empty:
        self._record.void_if_changed(self._model)
    flat = tf.concat([tf.reshape(each, [-1]) for each in counters], 0)
    state = optimizers.state(optimizer)
    state_watch = self._watch_of(optimizer) if state else None
    digests = [] if state_watch is None else [
        state_watch.digest(state), state_watch.last]
    last = tf.convert_to_tensor(self._record.weights.last)
    totals = tf.numpy_function(
        functools.partial(self._admit, state_watch), [
            tf.concat(marks, 0), self._record.digest(self._model), flat, last,
            *map(tf.convert_to_tensor, digests)], tf.int64)
    totals = tf.ensure_shape(totals, [flat.shape[0] + len(_NOWHERE) + len(_FAILED)])
    sizes = [each.shape.num_elements() for each in map(tf.convert_to_tensor, counters)]
    for counter, total in zip(counters, tf.split(totals[:flat.shape[0]], sizes)):
      counter.assign(tf.reshape(total, counter.shape))
    self._record.saved_digests.assign(tf.zeros(2, tf.int64))
    return totals

  def _admit(self, state_watch: Watch | None, mark: np.ndarray, weights: np.ndarray,
             flat: np.ndarray, last: np.ndarray, *digests: np.ndarray) -> np.ndarray:
    """Counts a step, also on disk, before any operation that needs the result runs.

    `weights` and `last` are digests of the weights now and after the last step,
    `digests` those of the optimizer's state; `flat` are the values of the record's
    counters, one after another. Returns the values after the step, the `Place` of the
    batch, and three numbers that workers compare: 1, the batch's fingerprint and
    `weights`; or zeros after a failure.
    """
    try:
      if state_watch is not None and not state_watch.step(*map(int, digests)):
        self._record.void()
      return self._admitted(mark, weights, flat, last)
    except Exception as error:  # pylint: disable=broad-except
      if replicas.workers(self._strategy) == 1:
        raise
      self._agreement.failure = error
      return np.concatenate([flat, np.array((*_NOWHERE, *_FAILED), np.int64)])

  def _admitted(self, mark: np.ndarray, weights: np.ndarray, flat: np.ndarray,
                last: np.ndarray) -> np.ndarray:
    """Does the work of `_admit`; raises if the step cannot be counted."""
    if os.getpid() != self._pid:
      raise RuntimeError(
          'Expected steps in the process that made the private model, got a '
          'fork, whose steps the ledger there would not count; make the model '
          'in the process that trains it.')
    taken, seeded, numbers = Taken(), self.noise, set(mark[:, 0].tolist())
    for marks in self._marks:
      if numbers == {marks.number}:  # All rows are of one feed.
        taken = marks.take(mark[:, 1])
        seeded |= Seeded.of(noise=False, batches=marks.seeded)
    if self._paid is not None:
      self._paid.take(taken)
    segment = self._record.segment + (self._paid is not None)
    total = self._record.step(
        Counts.of_flat(flat), int(weights), int(last), segment, taken.sampling,
        taken.epochs, seeded)
    # Mixed or unknown sampling is not what the account's slot pays for.
    if self._paid is not None and total.sampling != taken.sampling:
      raise ValueError(paid_steps.OTHERS)
    if self._paid is not None and total.unpaid.segments:  # A callback loaded a file.
      total = self._paid.pay(self._record)
    if self.journal is not None:
      self.journal.reserve(total, segment)
    return np.concatenate([total.flat(), np.array((
        *(taken.place or _NOWHERE), 1, taken.fingerprint, weights), np.int64)])

  def end_step(self, optimizer: keras.optimizers.Optimizer) -> None:
    """Records the digests of the weights and of the optimizer's state after a step."""
    weights, variables = self._record.weights, optimizers.state(optimizer)
    replicas.once(lambda: weights.last.assign(self._record.digest(self._model)))
    if variables:
      watch = self._watch_of(optimizer)
      replicas.once(lambda: watch.last.assign(watch.digest(variables)))


_NOWHERE = Place(0, 0, 0, 0)
"""Stands for no place: `Place.of` returns None for feed 0."""

_FAILED = (0, 0, 0)
"""Replaces the three numbers that workers compare if a worker could not count."""

_TRAINED = (
    'Expected a new optimizer, got {} that was trained before: its moments, or '
    'averages of weights, would enter the new weights, and nothing counts which '
    'examples they came from. Compile with a new one: compile(tf.keras.optimizers...).')

_CHIEF = (
    'No epsilon: the journal is the chief\'s, who may count steps that are not known '
    'here before all workers have begun a fit. Ask the chief.')

_NO_JOURNAL = (
    'No epsilon: the journal {} of this model is not there, and it may count '
    'steps that were released after the model was saved. Put it back; or build '
    'the model anew with privatize(model, plan).')
