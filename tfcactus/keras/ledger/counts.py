"""Counts of released updates, and the record that keeps those of a set of variables."""

from __future__ import annotations

import enum
import hashlib
import secrets
import threading
import time
from typing import Any, NamedTuple
import weakref

import numpy as np
import tensorflow as tf

from tfcactus.keras.compat import models, optimizers, training
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


class Trusted(enum.IntFlag):
  """Flags of steps: what their guarantee assumes unchecked, or does not cover."""

  NOTHING = 0
  PARTS = 1
  LOGS = 2

  def words(self) -> str:
    """Returns what to say of it beside a guarantee: sentences, or ''."""
    return ' '.join(words for part, words in _TRUSTED.items() if part in self)


_TRUSTED = {
    Trusted.PARTS: (
        'Nothing checks the word of who trained that no example was in the parts of '
        'two workers.'),
    Trusted.LOGS: (
        'The guarantee does not cover what callbacks decided by logs of private '
        'examples without noise, such as learning rates or the end of training.')}


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


Segment = tuple[int, int, int]
"""The number of a segment, its released steps, and the epochs that began in it."""

MAX_SEGMENTS = 256
"""Largest number of segments in a `Counts`: the steps of the two oldest segments are
added up wherever there would be more."""


class Counts(NamedTuple):
  """Counts of releases from one set of variables, as files and journals store them.

  Steps are counted by segments. A segment is the steps that one `Record` counted, so
  that a training that is resumed in another process has a segment more. Two counts may
  share steps only in segments of the same number, where the larger count has the steps
  of the smaller one. (A version vector, or grow-only counter.) A segment whose steps a
  `DataAccount` paid for has an odd number.

  Attributes:
    segments: The segments, by number.
    sampling: The code of the scheme that drew all batches, or `NONE`, `UNKNOWN` or
      `MIXED`.
    plan_number: `lineage.plan_number` of the steps' plan, or `OTHER_PLANS`.
    seeded_parts: A `Seeded`: which randomness is reproducible.
    trusted: A `Trusted`: what the account takes on trust.
  """

  segments: tuple[Segment, ...] = ()
  sampling: int = NONE
  plan_number: int = 0
  seeded_parts: int = 0
  trusted: int = 0

  @property
  def released_steps(self) -> int:
    """The number of noisy updates."""
    return sum(steps for _, steps, _ in self.segments)

  @property
  def epochs_begun(self) -> int:
    """The number of epochs begun, for schemes that draw epochs."""
    return sum(epochs for _, _, epochs in self.segments)

  @property
  def unpaid(self) -> Counts:
    """The counts of the steps that no account paid for."""
    return self._replace(segments=tuple(
        each for each in self.segments if not each[0] & 1))

  def of_segment(self, number: int) -> Counts:
    """Returns the counts of the steps of one segment."""
    return self._replace(segments=tuple(
        each for each in self.segments if each[0] == number))

  def merged(self, other: Counts) -> Counts:
    """Returns the counts of all steps of either, and both samplings `combined`.

    The plan is that of the counts with steps; `OTHER_PLANS` if both have, and differ.
    """
    number = self.plan_number
    if other.released_steps and other.plan_number != number:
      number = OTHER_PLANS if self.released_steps else other.plan_number
    found = {segment[0]: segment for segment in self.segments}
    for segment in other.segments:
      _take_larger(found, segment)
    return Counts(_joined(found), combined(self.sampling, other.sampling), number,
                  self.seeded_parts | other.seeded_parts, self.trusted | other.trusted)

  def later(self, number: int, steps: int, epochs: int = 0) -> Counts:
    """Returns the counts with further steps and epochs in the segment `number`."""
    found = {segment[0]: segment for segment in self.segments}
    _, *before = found.get(number, (number, 0, 0))
    found[number] = number, before[0] + steps, before[1] + epochs
    return self._replace(segments=_joined(found))

  def stepped(self, number: int, sampling: int, epochs: int, seeded: Seeded) -> Counts:
    """Returns the counts after a step of segment `number` that begins `epochs`."""
    return self.later(number, 1, epochs)._replace(
        sampling=combined(self.sampling, sampling),
        seeded_parts=self.seeded_parts | int(seeded))

  @classmethod
  def of_json(cls, record: dict[str, Any]) -> Counts:
    """Returns counts from their `_asdict`, which was written as JSON."""
    return cls(**{**record, 'segments': tuple(map(tuple, record['segments']))})

  def arrays(self) -> dict[str, np.ndarray]:
    """Returns {field: int64 array}; 'segments' has shape (MAX_SEGMENTS, 3)."""
    segments = np.zeros((MAX_SEGMENTS, 3), np.int64)
    segments[:len(self.segments)] = np.reshape(self.segments, (-1, 3))
    return {name: np.asarray(value, np.int64)
            for name, value in {**self._asdict(), 'segments': segments}.items()}

  def flat(self) -> np.ndarray:
    """Returns the values of `arrays` one after another."""
    return np.concatenate([each.ravel() for each in self.arrays().values()])

  @classmethod
  def of_flat(cls, flat: np.ndarray) -> Counts:
    """Returns the counts of values as `flat` gives, which anybody may have set."""
    segments, others = np.split(flat, [3 * MAX_SEGMENTS])
    found: dict[int, Segment] = {}
    rows = segments.reshape(-1, 3)
    for number, steps, epochs in np.maximum(rows[rows[:, 1] > 0], 0).tolist():
      _take_larger(found, (number, steps, epochs))
    return cls(_joined(found), *others.tolist())


def _take_larger(found: dict[int, Segment], segment: Segment) -> None:
  """Merges a segment into `found`, {number: segment}."""
  number, steps, epochs = segment
  _, *before = found.get(number, segment)
  found[number] = number, max(before[0], steps), max(before[1], epochs)


def _joined(found: dict[int, Segment]) -> tuple[Segment, ...]:
  """Returns segments by number, of which the oldest are joined if they are too many.

  Counts that hold a joined segment and its parts count these steps twice.
  """
  segments = sorted(found.values())
  while len(segments) > MAX_SEGMENTS:
    (_, *first), (_, *second) = oldest = segments[:2]
    # Less than numbers that begin with a time, so that it stays among the oldest.
    number = int.from_bytes(hashlib.sha256(repr(oldest).encode()).digest()[:7], 'big')
    number = number | 1 if all(each[0] & 1 for each in oldest) else number & ~1
    segments = sorted([
        (number, first[0] + second[0], first[1] + second[1]), *segments[2:]])
  return tuple(segments)


def new_segment() -> int:
  """Returns the number of a new segment: the time, then random bits; an even int64.

  Two segments made within 17 minutes have equal numbers with probability 2^-40.
  """
  return (int(time.time()) >> 10) << 41 | secrets.randbits(40) << 1


class Record:
  """Counters of one set of variables, shared by all `PrivateModel`s of these variables.

  Keras saves the counters with the weights, since a `PrivateModel` holds them as
  attributes. Restoring a checkpoint or loading a file assigns other values to them,
  older ones or those of another training. So a copy of the counts outside of
  TensorFlow, which neither reaches, merges all that the counters ever held.

  Attributes:
    counters: {field of `Counts`: int64 variable, see `Counts.arrays`}.
    segment: The number of the segment of steps that this record counts, without the
      steps that were paid for, whose segment has the number after it.
    saved_digests: int64 variable, `unordered_digest` of the weights and of the
      optimizer's state when a file is saved. Zeros, which any weights or state agree
      with: if steps followed, or if Keras saves the weights not as they are.
    weights: A `Watch` over the weights.
    first_digest: int64 variable, the digest of the weights before the first of all
      steps, when a file is saved.
    optimizers: {id: (optimizer, `Watch` over its `optimizers.state`)}; holding an
      optimizer keeps its id from being reused.
    changed: Whether the account is void, as after weights that changed outside of
      counted steps were trained or saved.
    validated: {event: number of releases}, see `PrivateValidation`; {rule: 0} for a
      `NoisyAccuracy`, by which training may end as well.
    ended: Why the steps have no epsilon of their own, a sentence; or ''.
  """

  ended = ''

  def __init__(self, plan_number: int, planned: bool = False):
    """Initialises the counters; `plan_number` is from `lineage.plan_number`.

    `planned` tells whether one training costs all steps of its plan, so that several
    trainings together have no account.
    """
    self._known = Counts(plan_number=plan_number)
    self._lock = threading.RLock()
    self._planned, self.segment = planned, new_segment()
    with tf.init_scope():
      self.counters: dict[str, tf.Variable] = {
          name: training.counter(value, name)
          for name, value in self._known.arrays().items()}
      self.first_digest: tf.Variable = training.counter(0, 'first_digest')
      self.saved_digests: tf.Variable = training.counter(
          np.zeros(2, np.int64), 'saved_digests')
    self.weights = weight_watch.Watch()
    self._first = 0
    self.optimizers: dict[int, tuple[Any, weight_watch.Watch]] = {}
    self.changed = False
    self.validated: dict[Any, int] = {}
    _records.add(self)

  @property
  def released_steps(self) -> int:
    """The number of noisy updates that were released."""
    return self._known.merged(self._found()).released_steps

  def _found(self) -> Counts:
    """Returns the counts that the counters hold, which a file may have set."""
    return Counts.of_flat(np.concatenate([
        np.ravel(tf.convert_to_tensor(each)) for each in self.counters.values()]))

  def merge_counts(self, also: Counts | None = None) -> Counts:
    """Merges the counters, their copy and `also` into the first two; returns them."""
    with self._lock:
      for each in (self._found(), also or Counts()):
        self._merge(each)
      self._assign()
      return self._known

  def trust(self, what: Trusted) -> None:
    """Adds to what the account takes on trust."""
    self.merge_counts(Counts(trusted=int(what)))

  def _merge(self, other: Counts) -> None:
    """Merges into the copy; voids an account of all planned steps for two trainings."""
    merged = self._known.merged(other)
    self.changed = self.changed or self._planned and merged.segments not in (
        self._known.segments, other.segments)
    self._known = merged

  def pay(self) -> Counts:
    """Counts all steps as paid for; returns the counts."""
    with self._lock:
      unpaid = self._known.unpaid.segments
      self._known = self._known._replace(segments=tuple(
          each for each in self._known.segments if each not in unpaid))
      for number, steps, epochs in unpaid:
        self._known = self._known.later(number | 1, steps, epochs)
      self._assign()
      return self._known

  def _assign(self) -> None:
    """Assigns the copy of the counts to the counters."""
    for name, value in self._known.arrays().items():
      self.counters[name].assign(value)

  def step(self, found: Counts, weights: int, last: int, segment: int, sampling: int,
           epochs: int, seeded: Seeded) -> Counts:
    """Counts a step before it runs; returns the counts, for the caller to assign.

    `found` are the counters' values, which a checkpoint may have lowered. `weights` and
    `last` are digests of the weights before this step and after the last one; the
    account is void if those before this step are not known. `segment`, `sampling`,
    `epochs` and `seeded` describe the step, its batch and its randomness, see
    `Counts.stepped`.
    """
    with self._lock:
      self._merge(found)
      if not self._known.released_steps:
        self._first = weights
      self.changed = not self.weights.step(weights, last) or self.changed
      self._known = self._known.stepped(
          segment, UNKNOWN if self.changed else sampling, epochs, seeded)
      return self._known

  def digest(self, model: keras.Model) -> tf.Tensor:
    """Returns the digest of a model's weights, and of what `adapt` set beside them."""
    return self.weights.digest(models.weights(model), models.adapted(model))

  def count_others(self, model: keras.Model) -> None:
    """Merges the counts of models from which the weights just set may be computed.

    These are the private models of this process that had exactly these weights; if this
    model has no steps, only those that had them after a step of their own, not as
    initial weights. If no model had them, the weights may be averages. Then copies
    count: for a model that stepped in this process, its copies; else also other models
    that are copies of each other. (Averages of models that are not copies are not
    detected.) Adds nothing if this model had the weights itself. Voids the account if a
    model that counts has private validations.
    """
    with self._lock:
      weights = int(self.digest(model))
      if self.weights.is_known(weights):
        return
      others = [each for each in list(_records) if each is not self]
      sources = [each for each in others if each.weights.is_known(weights)]
      if not sources:
        near = [self] if self.weights.stepped else [self, *others]
        sources = [each for each in others if (
            each.weights.shapes == self.weights.shapes and any(
                each is not other and each._is_copy(other) for other in near))]
      elif not self.released_steps:
        sources = [each for each in sources if each.released_steps and
                   weights not in each.weights.start]
      for each in sources:
        # No account adds up the validations of two models.
        self.changed = self.changed or bool(each.validated)
        self.merge_counts(each.merge_counts())

  def _is_copy(self, other: Record) -> bool:
    """Returns whether two models had equal weights, now or before their first steps."""
    first, second = (each._first or training.number(each.first_digest)
                     for each in (self, other))
    return self.weights.shares(other.weights) or 0 != first == second

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
      if self.changed or not model.built:
        return not self.changed
      variables, beside = models.weights(model), models.adapted(model)
      if self.weights.is_empty:  # What a file that was loaded says is known.
        saved = int(np.asarray(self.saved_digests)[0])
        return not saved or saved == weight_watch.unordered_digest(variables, beside)
      return self.weights.knows(variables, beside)

  def seal(self, model: keras.Model, optimizer: Any) -> None:
    """Sets the digests that are saved; None for an optimizer that did not change."""
    if self.released_steps and model.built and not self.changed:
      if self._first:
        self.first_digest.assign(self._first)
      weights = weight_watch.unordered_digest(
          models.weights(model), models.adapted(model))
      state = int(np.asarray(self.saved_digests)[1]) if optimizer is None else (
          weight_watch.unordered_digest(optimizers.state(optimizer)))
      self.saved_digests.assign([
          weights if models.saves_exactly(model) else 0, state])

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
