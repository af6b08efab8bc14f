"""Counts of released updates, and the record that keeps those of a set of variables."""

from __future__ import annotations

import enum
import threading
from typing import Any, NamedTuple
import weakref

import tensorflow as tf

from tfcactus.keras.compat import models, training
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.data.batch_marks import UNKNOWN
from tfcactus.keras.ledger import weight_watch

NONE = 0
"""Used instead of a scheme's code if the sampling of no batch was recorded."""

MIXED = 1001
"""Used instead of a scheme's code if batches were drawn by several schemes."""


class Seeded(enum.IntFlag):
  """Which parts of the randomness came from a seed and are therefore reproducible."""

  NOTHING = 0
  NOISE = 1
  BATCHES = 2

  @classmethod
  def of(cls, noise: bool, batches: bool) -> Seeded:
    """Returns the flags for seeded noise and seeded batches."""
    return cls(cls.NOISE * bool(noise) + cls.BATCHES * bool(batches))

  def words(self) -> str:
    """Returns the parts in words, such as 'noise and batches'; '' for none."""
    return ' and '.join(
        name for part, name in ((Seeded.NOISE, 'noise'), (Seeded.BATCHES, 'batches'))
        if part in self)


def combined(seen: int, current: int) -> int:
  """Returns the sampling code of two sets of steps together, from the code of each.

  `NONE` adds nothing. Two different schemes give `MIXED`. `UNKNOWN` with a scheme gives
  `UNKNOWN`, and with `MIXED` gives `MIXED`; neither has an epsilon.
  """
  # Codes of schemes lie between NONE and UNKNOWN; MIXED is the largest.
  if NONE in (seen, current) or seen == current:
    return max(seen, current)
  return max(seen, current) if max(seen, current) >= UNKNOWN else MIXED


OTHER_PLANS = -1
"""Used instead of a plan's number if steps were released under several plans."""


class Counts(NamedTuple):
  """Counts of releases from one set of variables, as files and journals store them.

  Attributes:
    released_steps: Noisy updates.
    epochs_begun: Epochs begun, for schemes that draw epochs.
    sampling: The code of the scheme that drew all batches, or `NONE`, `UNKNOWN` or
      `MIXED`.
    plan_number: `lineage.plan_number` of the steps' plan, or `OTHER_PLANS`.
    seeded_parts: A `Seeded`: which randomness is reproducible.
  """

  released_steps: int = 0
  epochs_begun: int = 0
  sampling: int = NONE
  plan_number: int = 0
  seeded_parts: int = 0

  def merged(self, other: Counts) -> Counts:
    """Returns the maxima of two counts of one run, and both samplings `combined`.

    The plan is that of the counts with steps; `OTHER_PLANS` if both have, and differ.
    """
    number = self.plan_number
    if other.released_steps and other.plan_number != number:
      number = OTHER_PLANS if self.released_steps else other.plan_number
    return Counts(
        max(self.released_steps, other.released_steps),
        max(self.epochs_begun, other.epochs_begun),
        combined(self.sampling, other.sampling), number,
        self.seeded_parts | other.seeded_parts)

  def plus(self, other: Counts) -> Counts:
    """Returns the sum of two counts of disjoint releases."""
    return self.merged(other)._replace(
        released_steps=self.released_steps + other.released_steps,
        epochs_begun=self.epochs_begun + other.epochs_begun)

  def stepped(self, sampling: int, epochs: int, seeded: Seeded) -> Counts:
    """Returns the counts after one more step, with which `epochs` epochs begin."""
    return Counts(self.released_steps + 1, self.epochs_begun + epochs,
                  combined(self.sampling, sampling), self.plan_number,
                  self.seeded_parts | int(seeded))


class Record:
  """Counters of one set of variables, shared by all `PrivateModel`s of these variables.

  Keras saves the counters with the weights, since a `PrivateModel` holds them as
  attributes. Restoring a checkpoint assigns older values to them. So a copy of the
  counts outside of TensorFlow, which no checkpoint reaches, keeps the maximum.

  Attributes:
    counters: {field of `Counts`: int64 variable}.
    weights: A `Watch` over the weights.
    optimizers: {id: (optimizer, `Watch` over its `optimizers.state`)}; holding an
      optimizer keeps its id from being reused.
    changed: Whether the account is void, as after weights that changed outside of
      counted steps were trained or saved.
    validated: {event: number of releases}, see `PrivateValidation`; {rule: 0} for a
      `NoisyAccuracy`, by which training may end as well.
    unpaid: Steps taken in this process by models without an account.
    ended: Why the steps have no epsilon of their own, a sentence; or ''.
  """

  ended = ''

  def __init__(self, plan_number: int):
    """Initialises the counters; `plan_number` is from `lineage.plan_number`."""
    self._known = Counts(plan_number=plan_number)
    with tf.init_scope():
      self.counters: dict[str, tf.Variable] = {
          name: training.counter(value, name)
          for name, value in self._known._asdict().items()}
    self._lock = threading.RLock()
    self.weights = weight_watch.Watch()
    self.optimizers: dict[int, tuple[Any, weight_watch.Watch]] = {}
    self.changed = False
    self.validated: dict[Any, int] = {}
    self.unpaid = Counts()
    _records.add(self)

  @property
  def released_steps(self) -> int:
    """The number of noisy updates that were released."""
    return max(training.number(self.counters['released_steps']),
               self._known.released_steps)

  def _found(self) -> Counts:
    """Returns the counts that the counters hold, which a file may have set."""
    return Counts(**{name: training.number(v) for name, v in self.counters.items()})

  def merge_counts(self, also: Counts | None = None) -> Counts:
    """Merges the counters, their copy and `also` into the first two; returns them."""
    with self._lock:
      self._known = self._known.merged(self._found())
      if also is not None:
        self._known = self._known.merged(also)
      for name, value in self._known._asdict().items():
        self.counters[name].assign(value)
      return self._known

  def step(self, found: Counts, weights: int, last: int, sampling: int,
           epochs: int, seeded: Seeded) -> Counts:
    """Counts a step before it runs; returns the counts, for the caller to assign.

    `found` are the counters' values, which a checkpoint may have lowered. `weights` and
    `last` are digests of the weights before this step and after the last one; the
    account is void if those before this step are not known. `sampling`, `epochs` and
    `seeded` describe the batch and its randomness, see `Counts.stepped`.
    """
    with self._lock:
      self.changed = not self.weights.step(weights, last) or self.changed
      self._known = self._known.merged(found).stepped(
          UNKNOWN if self.changed else sampling, epochs, seeded)
      return self._known

  def digest(self, model: keras.Model) -> tf.Tensor:
    """Returns the digest of a model's weights, and of what `adapt` set beside them."""
    return self.weights.digest(models.weights(model), models.adapted(model))

  def count_others(self, model: keras.Model, before: Counts, planned: bool) -> None:
    """Adds the counts of other models from which the weights just set may be computed.

    These are the private models of this process that had exactly these weights; if this
    model has no steps, only those that had them after a step of their own, not as
    initial weights. If no model had them, the weights may be averages. Then copies
    count: for a model that stepped in this process, others that once had its
    weights; for a loaded model, others that once had weights of each other. (Averages
    of models that are not copies are not detected.) Adds nothing if this model had the
    weights itself. `before` are the counts from before the weights were set. Voids the
    account if a model that counts has private validations, or if several models count
    and `planned`: each of them costs all steps of the plan.
    """
    with self._lock:
      weights = int(self.digest(model))
      steps = training.number(self.counters['released_steps'])
      if self.weights.is_known(weights):
        return
      others = [each for each in list(_records) if each is not self]
      sources = [each for each in others if each.weights.is_known(weights)]
      stepped = self.weights.stepped
      if not steps:
        sources = [each for each in sources if each.released_steps and
                   weights not in each.weights.start]
      elif not sources:  # Copies, whose averages the weights may be.
        sources = [each for each in others if any(
            each is not other and each.weights.shares(other.weights)
            for other in ([self] if stepped else others))]
      # The counters of a loaded model are those of one of the others.
      total = before if stepped else Counts()
      for each in sources:
        # No account adds up the validations of two models.
        self.changed = self.changed or bool(each.validated) or (
            planned and total.released_steps > 0)
        total = total.plus(each.merge_counts())
      self.merge_counts(total)

  def count_loaded(self, model: keras.Model, before: Counts, planned: bool) -> None:
    """Adds the counts of a file, which the counters hold, to those from `before` it.

    Adds nothing if this model took no step in this process, or once had the weights of
    the file and counts as many steps: the file is then of one run with it. Else the
    file is of another run, and what this model releases next may depend on both (its
    optimizer keeps its moments). Voids the account if `planned`, as `count_others`.
    """
    with self._lock:
      found = self._found()
      if self.weights.stepped and found.released_steps and (
          found.released_steps > before.released_steps or
          not self.weights.is_known(int(self.digest(model)))):
        self.changed = self.changed or planned
        self.merge_counts(before.plus(found))

  def keep(self, model: keras.Model) -> None:
    """Adds to the known weights those that a method of a private model has set."""
    with self._lock:
      if model.built:
        weights = self.weights.keep(models.weights(model), models.adapted(model))
        if not self.released_steps:
          self.weights.start.add(weights)

  def knows(self, model: keras.Model) -> bool:
    """Returns whether only steps and private models' methods changed the weights."""
    with self._lock:
      return not self.changed and (
          not model.built or self.weights.knows(
              models.weights(model), models.adapted(model)))

  def void_if_changed(self, model: keras.Model) -> None:
    """Voids the account if weights changed uncounted, before training or saving."""
    if not self.knows(model):
      self.void()

  def end(self, reason: str) -> None:
    """Voids the account for `reason`, a sentence."""
    self.ended = reason
    self.void()

  def void(self) -> None:
    """Voids the account for good."""
    self.changed = True
    # Saved with the weights, for processes that load them.
    self.merge_counts(Counts(sampling=UNKNOWN))


_records: weakref.WeakSet[Record] = weakref.WeakSet()
"""The records of all private models of this process."""
