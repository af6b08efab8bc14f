"""The ledger of a private model: each step is counted before it is released."""

from __future__ import annotations

import contextlib
import os
from typing import Any
from typing import Dict
from typing import Iterable
from typing import Iterator
from typing import List
from typing import Mapping
from typing import MutableMapping
from typing import Optional
from typing import Tuple

import numpy as np
import tensorflow as tf

from tfcactus.keras import agreement
from tfcactus.keras import replicas
from tfcactus.keras.clip_norm import ClipNorm
from tfcactus.keras.compat import patches
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.ledger import counts
from tfcactus.keras.ledger import lineage
from tfcactus.keras.ledger.batch_marks import Marks
from tfcactus.keras.ledger.batch_marks import Place
from tfcactus.keras.ledger.batch_marks import Taken
from tfcactus.keras.ledger.counts import Counts
from tfcactus.keras.ledger.counts import Seeded
from tfcactus.keras.ledger.journal import Journal
from tfcactus.keras.ledger.ledger import Ledger
from tfcactus.keras.ledger.ledger import RecentLedgers
from tfcactus.noise.table_file import PathLike
from tfcactus.plan import PrivacyPlan


class ModelLedger:
  """Counts the steps that are released from one model's variables.

  A `TrainingLedger`.

  Attributes:
    plan: The `PrivacyPlan`.
    record: The `Record` of the variables.
    journal: The `Journal`, or None.
    journal_path: Where it is, or None.
    no_run_card: ''.
  """

  no_run_card = ''

  def __init__(self, model: keras.Model, plan: PrivacyPlan, norm: ClipNorm,
               journal: Optional[PathLike], seeded: bool, loaded: bool = False,
               condition: str = ''):
    """Opens the ledger, where earlier ones of the variables left off.

    Args:
      model: The wrapped model.
      plan: A `PrivacyPlan`.
      norm: Its clip norm.
      journal: Path of a `Journal`, or None.
      seeded: Whether the noise repeats.
      loaded: Whether the model comes from a file. Its journal, which may by now
        count more than the file, is then read but not taken until it trains.
      condition: What is to be said with its guarantees besides, in a sentence.

    Raises:
      ValueError: if steps were released that the plan does not cover, or the
        journal cannot be taken.
    """
    self.plan = plan
    self._loaded = loaded
    self._condition = condition
    self._model = model
    self._norm = norm
    self.record = lineage.find_record(model, plan)
    self._noise = Seeded.of(noise=seeded, batches=False)
    self._marks: List[Marks] = []
    self._recent = RecentLedgers()
    self._pid = os.getpid()
    self._strategy = tf.distribute.get_strategy()
    self._chief = replicas.worker(self._strategy) == 0
    self._agreement = agreement.StepAgreement()
    self._agreed = self._in_parts = False
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
    if self.journal_path is None or self.journal is not None or not self._chief:
      return
    if self._loaded and not os.path.exists(self.journal_path):
      raise ValueError(_NO_JOURNAL.format(self.journal_path))
    self.journal = Journal(self.journal_path, self.plan)
    self.record.catch_up(self.journal.entry)

  @property
  def seeded(self) -> Seeded:
    """What of the randomness of released steps, and of the noise, repeats."""
    return self._noise | Seeded(self.record.catch_up().seeded_parts)

  @property
  def released_steps(self) -> int:
    """How many noisy updates were released, the journal's included."""
    if self._unread:
      self.record.catch_up(Journal.peek(self._unread, self.plan))
    return self.record.released_steps

  @property
  def _unread(self) -> Optional[PathLike]:
    """The journal of a loaded model that has not trained, which is read each time."""
    return self.journal_path if self.journal is None and self._chief else None

  @property
  def clip_norm(self) -> Optional[float]:
    """The clip norm of the next step, if it moves."""
    moving = self._norm.variable
    return None if moving is None else float(tf.convert_to_tensor(moving))

  def remember(self) -> None:
    """Lets the model's variables tell that steps from them are counted here."""
    lineage.remember(self._model.weights, self.record)
    self.record.weights.place(self._model.weights)

  def own_variables(self) -> Dict[str, tf.Variable]:
    """What is saved with the weights: counters, and the norm if it moves."""
    moving = self._norm.variable
    return {**self.record.counters, **({} if moving is None else {
        'clip_norm': moving})}

  def save(self, store: MutableMapping[str, Any]) -> None:
    """Writes the values of `own_variables`."""
    self.check_weights()
    for name, variable in self.own_variables().items():
      store[name] = variable.numpy()

  def load(self, store: Mapping[str, Any]) -> None:
    """Reads what was saved; what was released stays counted.

    Raises:
      ValueError: if the store lacks a variable.
    """
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
    """Counts a step; inside the context, the step may run.

    A step that fails later is counted, never the reverse.

    Args:
      mark: That of its batch.

    Yields:
      int64, where its batch stands, for `Place.of`.
    """
    with tf.init_scope():
      self._open_journal()
    found = replicas.once(self._counted, mark)
    places = len(Counts._fields) + len(Place._fields)
    # Nothing of a step is released before all workers have counted it.
    confirmed = found if replicas.workers(self._strategy) == 1 else (
        self._agreement.confirmed(tf.concat(
            [found[places:], found[:len(Counts._fields)],
             tf.bitcast(self._norm.value(), tf.int64)[None]], 0)))
    with tf.control_dependencies([confirmed]):
      yield found[len(Counts._fields):places]

  def _counted(self, marks: List[tf.Tensor]) -> tf.Tensor:
    """Counts a step by the marks of all that the replicas here hold of its batch."""
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
    """Counts a step, on disk too, before anything that depends on it runs.

    Returns:
      int64: the `Counts`, the `Place` of the batch, and what workers compare: one, its
      fingerprint and that of the weights; or zeros if it failed, where others are to
      know of it.
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

  def _recognise(self, mark: np.ndarray) -> Tuple[Taken, Seeded]:
    """What is known of the batch of a mark, and what of its choice repeats."""
    numbers = set(mark[:, 0].tolist())
    for marks in self._marks:
      if numbers == {marks.number}:
        return marks.take(mark[:, 1]), Seeded.of(noise=False, batches=marks.seeded)
    return Taken(), Seeded.NOTHING

  def end_step(self) -> None:
    """Remembers the weights that a step left."""
    watch = self.record.weights
    replicas.once(lambda: watch.left.assign(watch.digest(self._model.weights)))

  def count_seeded(self, noise: bool, batches: bool) -> None:
    """Counts what a file says was seeded of the steps in it."""
    self.record.catch_up(Counts(seeded_parts=int(Seeded.of(noise, batches))))

  def check_counters(self, weights: Iterable[Tuple[tf.Variable, Any]]) -> None:
    """Refuses counters that were computed with, as where weights are averaged.

    Args:
      weights: Pairs (variable, value) of all weights of the private model.

    Raises:
      ValueError: naming the counter.
    """
    own = {id(each): name for name, each in self.record.counters.items()}
    for variable, value in weights:
      if id(variable) in own and np.asarray(value).dtype.kind not in 'iu':
        raise ValueError(_COMPUTED.format(own[id(variable)], np.asarray(value).dtype))

  def check_weights(self) -> None:
    """Counts what something else than steps has done, before weights go on."""
    self.record.catch_up()
    self.record.look(self._model)

  @contextlib.contextmanager
  def training(self, marks: Marks, optimizer: keras.optimizers.Optimizer,
               model: keras.Model, batches: Any) -> Iterator[None]:
    """Inside, steps on the batches of `marks` are of their kind.

    Args:
      marks: Those of the batches.
      optimizer: What applies the averages.
      model: The private model.
      batches: What `fit` was given.
    """
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
    """Lets an optimizer of `use_ema` leave the average of released weights."""
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
    """Keeps counters from falling when older ones come back inside.

    Args:
      weights: Whether the model's weights do too.
      others: Whether they may be made from those of other private models.
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
    """What was released so far, and how its batches were chosen.

    Args:
      ahead: How many steps more of what is being trained on are counted.
    """
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
"""In place of what workers compare."""

_NO_JOURNAL = (
    'No epsilon: the journal {} of this model is not there, and it may count '
    'steps that were released after the model was saved. Put it back; or build '
    'the model anew with privatize(model, plan).')
