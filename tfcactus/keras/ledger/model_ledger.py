"""The ledger of a private model: kept counts, and the guarantee that they give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
import contextlib
from typing import Any

import numpy as np
import tensorflow as tf

from tfcactus.keras.compat import models, patches
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.data.batch_marks import Marks
from tfcactus.keras.ledger import counts, lineage, step_counter
from tfcactus.keras.ledger.counts import Seeded
from tfcactus.keras.ledger.ledger import Ledger, recent_ledgers
from tfcactus.keras.ledger.paid_steps import PaidSteps
from tfcactus.keras.step.clip_norm import ClipNorm
from tfcactus.noise.table_file import PathLike
from tfcactus.plan import PrivacyPlan


class ModelLedger:
  """Ledger of the steps released from one model's variables; never forgets a step.

  Attributes:
    plan: The `PrivacyPlan`.
    record: The `Record` of the variables.
    counter: The `StepCounter`, which counts each step in the record.
  """

  no_run_card = ''

  def __init__(self, model: keras.Model, plan: PrivacyPlan, norm: ClipNorm,
               journal: PathLike | None, seeded: bool, loaded: bool = False,
               condition: str = '', paid: PaidSteps | None = None):
    """Opens the ledger, continuing the counts of earlier ledgers of the variables.

    `norm` is the steps' clipping norm, `seeded` whether noise comes from a seed, and
    `condition` a further assumption of the guarantee, a sentence or ''. The journal of
    a model `loaded` from a file may count more than the file; it is read when counts
    are asked for, and opened for writing when training begins. `paid` takes steps from
    a `DataAccount`, if there is one. Raises ValueError if the plan does not cover
    released steps, or the journal cannot be opened or comes with a seed.
    """
    self.plan = plan
    self._condition = condition
    self._model = model
    self._norm = norm
    self.record = lineage.find_record(model, plan)
    # Listed with validations, as training may end by it too; its count stays zero.
    if plan.noisy_accuracy is not None:
      self.record.validated.setdefault(plan.noisy_accuracy, 0)
    self.counter = step_counter.StepCounter(
        model, plan, self.record, norm, journal, seeded, loaded, paid)
    self._make_ledger = recent_ledgers(plan)

  @property
  def seeded(self) -> Seeded:
    """Which randomness of the noise and of the released steps is reproducible."""
    return self.counter.noise | Seeded(self.record.merge_counts().seeded_parts)

  @property
  def released_steps(self) -> int:
    """Number of noisy updates released, including those in the journal."""
    self.counter.read_journal()
    return self.record.released_steps

  @property
  def clip_norm(self) -> float | None:
    """The clipping norm of the next step if it is adaptive, else None."""
    norm = self._norm.variable
    return None if norm is None else float(tf.convert_to_tensor(norm))

  def remember(self) -> None:
    """Records this ledger on the model's variables, and numbers those for digests."""
    lineage.remember(models.weights(self._model), self.record)
    self.record.weights.place(models.weights(self._model))

  def own_variables(self) -> dict[str, tf.Variable]:
    """Returns {name: variable} to save with the weights: counts, digests, norm."""
    norm = self._norm.variable
    return {**self.record.counters, 'first_digest': self.record.first_digest,
            'saved_digests': self.record.saved_digests,
            **({} if norm is None else {'clip_norm': norm})}

  def save(self, store: MutableMapping[str, Any], optimizer: Any) -> None:
    """Writes the values of `own_variables` to `store`, after `check_weights`."""
    self.check_weights(optimizer)
    for name, variable in self.own_variables().items():
      store[name] = variable.numpy()

  def load(self, store: Mapping[str, Any]) -> None:
    """Reads `own_variables`; counts never decrease. ValueError if one is missing."""
    own = self.own_variables()
    missing = set(own) - set(store.keys())
    if missing:
      raise ValueError(
          f'Expected a file of a PrivateModel with {sorted(missing)}, got one '
          "without; load a plain model's weights by private_model.inner."
          'load_weights.')
    self.record.merge_counts()  # Whatever the file says, none of these are forgotten.
    for name, variable in own.items():
      variable.assign(store[name][()])

  def check_counters(self, weights: Iterable[tuple[tf.Variable, Any]]) -> None:
    """Raises ValueError if a counter among (variable, value) pairs is no integer."""
    own = {id(each): name for name, each in self.record.counters.items()}
    for variable, value in weights:
      if id(variable) in own and np.asarray(value).dtype.kind not in 'iu':
        raise ValueError(_COMPUTED.format(own[id(variable)], np.asarray(value).dtype))

  def check_weights(self, optimizer: Any) -> None:
    """Voids the account, before a save, if weights or state changed uncounted."""
    self.record.merge_counts()
    self.counter.check_optimizer(optimizer)
    self.record.void_if_changed(self._model)
    self.record.seal(self._model, optimizer)

  @contextlib.contextmanager
  def training(self, marks: Marks, optimizer: keras.optimizers.Optimizer,
               model: keras.Model, batches: Any) -> Iterator[None]:
    """Counts steps of one `fit` inside the context, as `StepCounter.training` does."""
    with self.counter.training(marks, model, batches), self._finalizing(optimizer):
      self.counter.make_watch(optimizer)
      yield
    # `StepCounter.training` has checked the weights.
    self.counter.check_optimizer(optimizer)
    self.record.seal(self._model, optimizer)

  @contextlib.contextmanager
  def _finalizing(self, optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Keeps the account if an optimizer with `use_ema` sets weights to its averages."""
    if not getattr(optimizer, 'use_ema', False):
      yield
      return
    finalize = optimizer.finalize_variable_values

    def keeping(*args: Any, **kwargs: Any) -> None:
      """Assigns the averages, as a change of weights that does not void the account."""
      with self.keeping_counts(optimizer=optimizer):
        finalize(*args, **kwargs)

    with patches.replaced(optimizer, finalize_variable_values=keeping):
      yield

  @contextlib.contextmanager
  def keeping_counts(self, others: bool = False, optimizer: Any = None
                    ) -> Iterator[None]:
    """Keeps all counts where the block sets weights, and maybe the counters.

    `others` tells whether the block may compute weights from those of other private
    models. It may also use and set the state of `optimizer`. The account is void if
    weights or state were not known before.
    """
    self.check_weights(optimizer)
    self.record.keep(self._model)  # If the block raises, other weights are not known.
    yield
    if others and self._model.built:
      self.record.count_others(self._model)
    self.record.merge_counts()
    self.counter.keep_optimizer(optimizer)
    self.record.keep(self._model)
    self.record.seal(self._model, optimizer)

  def ledger(self, ahead: int = 0) -> Ledger:
    """Returns the ledger, with `ahead` further steps and epochs on current data."""
    self.record.merge_counts()
    problem = lineage.problem(self.record, self._model, self.plan)
    unread = self.counter.read_journal()
    note, known = problem or unread, self.record.merge_counts()
    sampling, seeded = known.sampling, Seeded(known.seeded_parts)
    if ahead:
      drawn, from_seeds = self.counter.coming()
      sampling, seeded = counts.combined(sampling, drawn), seeded | from_seeds
    return self._make_ledger(
        counts.UNKNOWN if note else sampling, known.released_steps + ahead,
        known.epochs_begun + ahead, note, seeded, ' '.join(filter(None, (
            self._condition, counts.Trusted(known.trusted).words()))))


_COMPUTED = (
    'Expected the counters among the weights as get_weights returned them, whole '
    'numbers, got {} of type {}: weights that are computed from those of several '
    'private models cost what all of these cost together. Compute with the other '
    'weights alone, and pass the counters of this model: what other private models of '
    'this process released is added.')
