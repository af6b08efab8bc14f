"""The ledger of a private model: each step is counted before it is released."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
import contextlib
import os
from typing import Any

import numpy as np
import tensorflow as tf

from tfcactus.keras.compat import patches
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.data.batch_marks import Marks, Place, Taken
from tfcactus.keras.distribution import replicas
from tfcactus.keras.ledger import agreement, counts, lineage
from tfcactus.keras.ledger.counts import Counts, Seeded
from tfcactus.keras.ledger.journal import Journal
from tfcactus.keras.ledger.ledger import Ledger, RecentLedgers
from tfcactus.keras.step.clip_norm import ClipNorm
from tfcactus.noise.table_file import PathLike
from tfcactus.plan import PrivacyPlan


class ModelLedger:
  """`TrainingLedger` that counts the steps released from one model's variables.

  Attributes:
    plan: The `PrivacyPlan`.
    record: The `Record` of the variables.
    journal: The `Journal` if it is open, or None.
    journal_path: Its absolute path, or None.
  """

  no_run_card = ''

  def __init__(self, model: keras.Model, plan: PrivacyPlan, norm: ClipNorm,
               journal: PathLike | None, seeded: bool, loaded: bool = False,
               condition: str = ''):
    """Opens the ledger, continuing the counts of earlier ledgers of the variables.

    `seeded` tells whether the noise comes from a seed; `condition` is a further
    assumption of the guarantee, a sentence or ''. If the model is `loaded` from a file,
    its journal may count more than the file; it is only read, and not opened before
    training. Raises ValueError if the plan does not cover released steps, or the
    journal cannot be opened.
    """
    self.plan = plan
    self._loaded = loaded
    self._condition = condition
    self._model = model
    self._norm = norm
    self.record = lineage.find_record(model, plan)
    self._noise = Seeded.of(noise=seeded, batches=False)
    self._marks: list[Marks] = []
    self._recent = RecentLedgers()
    self._pid = os.getpid()
    self._strategy = tf.distribute.get_strategy()
    self._chief = replicas.worker(self._strategy) == 0
    self._agreement = agreement.StepAgreement()
    self._agreed = self._in_parts = False
    self.journal_path = None if journal is None else (
        os.path.abspath(os.fspath(journal)))
    self.journal: Journal | None = None
    if seeded and journal is not None:
      raise ValueError(
          'Expected no seed with a journal, got both: the resumed run would '
          'draw the noise of the first again.')
    if not loaded:
      self._open_journal()

  def _open_journal(self) -> None:
    """Opens the journal on the chief, if there is a path, and merges its counts."""
    if self.journal_path is None or self.journal is not None or not self._chief:
      return
    if self._loaded and not os.path.exists(self.journal_path):
      raise ValueError(_NO_JOURNAL.format(self.journal_path))
    self.journal = Journal(self.journal_path, self.plan)
    self.record.catch_up(self.journal.entry)

  @property
  def seeded(self) -> Seeded:
    """Which randomness of the noise and of the released steps is reproducible."""
    return self._noise | Seeded(self.record.catch_up().seeded_parts)

  @property
  def released_steps(self) -> int:
    """Number of noisy updates released, including those in the journal."""
    if self._unread:
      self.record.catch_up(Journal.peek(self._unread, self.plan))
    return self.record.released_steps

  @property
  def _unread(self) -> PathLike | None:
    """Path of a journal that is not open, as of a loaded model; read on each use."""
    return self.journal_path if self.journal is None and self._chief else None

  @property
  def clip_norm(self) -> float | None:
    """The clipping norm of the next step if it is adaptive, else None."""
    moving = self._norm.variable
    return None if moving is None else float(tf.convert_to_tensor(moving))

  def remember(self) -> None:
    """Records on the model's variables that this ledger counts their releases."""
    lineage.remember(self._model.weights, self.record)
    self.record.weights.place(self._model.weights)

  def own_variables(self) -> dict[str, tf.Variable]:
    """Returns the counters and an adaptive clipping norm, to save with the weights."""
    moving = self._norm.variable
    return {**self.record.counters, **({} if moving is None else {
        'clip_norm': moving})}

  def save(self, store: MutableMapping[str, Any]) -> None:
    """Writes the values of `own_variables` to `store`."""
    self.check_weights()
    for name, variable in self.own_variables().items():
      store[name] = variable.numpy()

  def load(self, store: Mapping[str, Any]) -> None:
    """Reads variables, never decreasing counts; raises ValueError if one is missing."""
    own = self.own_variables()
    missing = set(own) - set(store.keys())
    if missing:
      raise ValueError(
          f'Expected a file of a PrivateModel with {sorted(missing)}, got one '
          "without; load a plain model's weights by private_model.inner."
          'load_weights.')
    with self.keeping_counts(weights=False):
      for name, variable in own.items():
        variable.assign(store[name][()])

  @contextlib.contextmanager
  def count_step(self, mark: tf.Tensor) -> Iterator[tf.Tensor]:
    """Counts a step on the batch of `mark`; the step may run inside the context.

    Yields the int64 numbers of `Place.of`. A step that fails after it was counted stays
    counted.
    """
    with tf.init_scope():
      self._open_journal()
    found = replicas.once(self._counted, mark)
    places = len(Counts._fields) + len(Place._fields)
    # No worker releases a step before all workers have counted it.
    confirmed = found if replicas.workers(self._strategy) == 1 else (
        self._agreement.confirmed(tf.concat(
            [found[places:], found[:len(Counts._fields)],
             tf.bitcast(self._norm.value(), tf.int64)[None]], 0)))
    with tf.control_dependencies([confirmed]):
      yield found[len(Counts._fields):places]

  def _counted(self, marks: list[tf.Tensor]) -> tf.Tensor:
    """Counts a step; `marks` are those of all replicas in this process."""
    counters = [self.record.counters[name] for name in Counts._fields]
    watch = self.record.weights
    totals = tf.numpy_function(
        self._admit, [tf.concat(marks, 0), watch.digest(self._model.weights),
                      *map(tf.convert_to_tensor, [watch.left, *counters])], tf.int64)
    totals = tf.ensure_shape(totals, [len(counters) + len(_NOWHERE) + len(_FAILED)])
    for counter, total in zip(counters, tf.unstack(totals)):
      counter.assign(total)
    return totals

  def _admit(self, mark: np.ndarray, weights: np.ndarray, left: np.ndarray,
             *counters: np.ndarray) -> np.ndarray:
    """Counts a step, also on disk, before any operation that needs the result runs.

    Returns int64 numbers: the `Counts`, the `Place` of the batch, and three that
    workers compare: one, the batch's fingerprint, and the digest of the weights. On
    several workers, a failure returns zeros for the last three, so that the others
    learn of it.
    """
    try:
      return self._admitted(mark, weights, left, *counters)
    except Exception as error:  # pylint: disable=broad-except
      if replicas.workers(self._strategy) == 1:
        raise
      self._agreement.failed(error)
      return np.array((*counters, *_NOWHERE, *_FAILED), np.int64)

  def _admitted(self, mark: np.ndarray, weights: np.ndarray, left: np.ndarray,
                *counters: np.ndarray) -> np.ndarray:
    if os.getpid() != self._pid:
      raise RuntimeError(
          'Expected steps in the process that made the private model, got a '
          'fork, whose steps the ledger there would not count; make the model '
          'in the process that trains it.')
    taken, seeded = self._recognise(mark)
    total = self.record.step(
        Counts(*map(int, counters)), int(weights), int(left), taken.sampling,
        taken.epochs, seeded | self._noise)
    if self.journal is not None:
      self.journal.reserve(total)
    return np.array((*total, *(taken.place or _NOWHERE), 1, taken.fingerprint, weights),
                    np.int64)

  def _recognise(self, mark: np.ndarray) -> tuple[Taken, Seeded]:
    """Returns what is known about the batch of a mark, and whether it is seeded."""
    numbers = set(mark[:, 0].tolist())
    for marks in self._marks:
      if numbers == {marks.number}:
        return marks.take(mark[:, 1]), Seeded.of(noise=False, batches=marks.seeded)
    return Taken(), Seeded.NOTHING

  def end_step(self) -> None:
    """Records the digest of the weights that a step left."""
    watch = self.record.weights
    replicas.once(lambda: watch.left.assign(watch.digest(self._model.weights)))

  def count_seeded(self, noise: bool, batches: bool) -> None:
    """Merges which randomness was seeded, as recorded in a loaded file."""
    self.record.catch_up(Counts(seeded_parts=int(Seeded.of(noise, batches))))

  def check_counters(self, weights: Iterable[tuple[tf.Variable, Any]]) -> None:
    """Raises ValueError if a counter among (variable, value) pairs is no integer."""
    own = {id(each): name for name, each in self.record.counters.items()}
    for variable, value in weights:
      if id(variable) in own and np.asarray(value).dtype.kind not in 'iu':
        raise ValueError(_COMPUTED.format(own[id(variable)], np.asarray(value).dtype))

  def check_weights(self) -> None:
    """Voids the account if weights changed outside counted steps, before their use."""
    self.record.catch_up()
    self.record.look(self._model)

  @contextlib.contextmanager
  def training(self, marks: Marks, optimizer: keras.optimizers.Optimizer,
               model: keras.Model, batches: Any) -> Iterator[None]:
    """Accounts steps inside the context to `marks`; `fit` was given `batches`."""
    self._open_journal()
    self.check_weights()
    self.record.catch_up(agreement.begin(
        model, batches, self.record, lineage.plan_number(self.plan)))
    self._agreed = True
    self._in_parts = self._in_parts or getattr(batches, 'part_of', None) is not None
    self._marks.append(marks)
    try:
      with self._finalizing(optimizer):
        yield
    finally:
      self._marks.remove(marks)
      self.record.look(self._model)
    if self.journal is not None:
      self.journal.settle(self.record.catch_up())

  @contextlib.contextmanager
  def _finalizing(self, optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Lets an optimizer with `use_ema` assign averages of weights as known weights."""
    if not getattr(optimizer, 'use_ema', False):
      yield
      return
    finalize = optimizer.finalize_variable_values

    def keeping(*args: Any, **kwargs: Any) -> None:
      with self.keeping_counts():
        finalize(*args, **kwargs)

    with patches.replaced(optimizer, finalize_variable_values=keeping):
      yield

  @contextlib.contextmanager
  def keeping_counts(self, weights: bool = True, others: bool = False
                    ) -> Iterator[None]:
    """Keeps the counters from decreasing where the block restores older ones.

    `weights` tells whether the block sets the model's weights, which are known from
    then on; `others`, whether they may be computed from weights of other private
    models.
    """
    before = self.record.catch_up()
    if weights:
      self.record.look(self._model)
    yield
    if others and self._model.built:
      self.record.count_others(self._model, before)
    self.record.catch_up()
    if weights:
      self.record.keep(self._model)

  def ledger(self, ahead: int = 0) -> Ledger:
    """Returns the ledger, with `ahead` further steps on the data being trained on."""
    known = self.record.catch_up()
    note = lineage.problem(self.record, self._model, self.plan)
    if self._unread:
      entry = Journal.peek(self._unread, self.plan)
      note = note or ('' if entry else _NO_JOURNAL.format(self.journal_path))
      known = self.record.catch_up(entry)
    elif self.journal_path is not None and not self._chief and not self._agreed:
      note = note or _CHIEF
    sampling, seeded = known.sampling, Seeded(known.seeded_parts)
    if ahead:
      marks = self._marks[-1] if self._marks else Marks()
      sampling = counts.combined(sampling, marks.sampling)
      seeded |= self._noise | Seeded.of(noise=False, batches=marks.seeded)
    return self._recent.same(Ledger(
        self.plan, counts.UNKNOWN if note else sampling,
        known.released_steps + ahead, known.epochs_begun + ahead, note, seeded,
        ' '.join(filter(None, (self._condition, _PARTS if self._in_parts else '')))))


_COMPUTED = (
    'Expected the counters among the weights as get_weights returned them, whole '
    'numbers, got {} of type {}: weights that are computed from those of several '
    'private models cost what all of these cost together. Compute with the other '
    'weights alone, and pass the counters of this model: what other private models of '
    'this process released is added.')

_NOWHERE = Place(0, 0, 0, 0)

_CHIEF = (
    'No epsilon: the journal is the chief\'s, who may count steps that are not known '
    'here before all workers have begun a fit. Ask the chief.')

_PARTS = (
    'It is the word of who trained, and not seen, that no example was in the parts of '
    'two workers.')

_FAILED = (0, 0, 0)
"""Instead of the numbers that workers compare."""

_NO_JOURNAL = (
    'No epsilon: the journal {} of this model is not there, and it may count '
    'steps that were released after the model was saved. Put it back; or build '
    'the model anew with privatize(model, plan).')
