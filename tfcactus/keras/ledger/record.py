"""Counters of what was released from one set of variables."""

from __future__ import annotations

import threading
from typing import Dict
from typing import Optional
import weakref

import tensorflow as tf

from tfcactus.keras.compat import training
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.ledger import counts
from tfcactus.keras.ledger import weight_watch
from tfcactus.keras.ledger.counts import Counts
from tfcactus.keras.ledger.counts import Seeded


class Record:
  """Counters of one set of variables, shared by all `PrivateModel`s of them.

  Keras tracks the variables, so that they are saved with the weights, only
  where a `PrivateModel` holds them as attributes. A checkpoint assigns what it
  holds to them, whenever it likes. What this process knows to be released is
  kept beside them, where no checkpoint reaches, and they never count less.

  Attributes:
    counters: int64 variables, by the names of `Counts`.
    weights: A `Watch` over the weights.
    changed: Whether steps were taken from weights, or saved, that something
      else than a step had changed.
  """

  def __init__(self, plan_number: int):
    """Initialises the counters; the plan's number as `lineage.plan_number`."""
    self._known = Counts(plan_number=plan_number)
    with tf.init_scope():
      self.counters: Dict[str, tf.Variable] = {
          name: training.counter(value, name)
          for name, value in self._known._asdict().items()}
    self._lock = threading.RLock()
    self.weights = weight_watch.Watch()
    self.changed = False
    _records.add(self)

  @property
  def released_steps(self) -> int:
    """How many noisy updates were released."""
    return max(training.number(self.counters['released_steps']),
               self._known.released_steps)

  def catch_up(self, also: Optional[Counts] = None) -> Counts:
    """Counts at least what was known, whatever was restored since.

    Args:
      also: What another account knows to be released, or None.

    Returns:
      All counts.
    """
    with self._lock:
      found = Counts(**{name: training.number(v) for name, v in self.counters.items()})
      self._known = self._known.merged(found)
      if also is not None:
        self._known = self._known.merged(also)
      for name, value in self._known._asdict().items():
        self.counters[name].assign(value)
      return self._known

  def step(self, found: Counts, weights: int, left: int, sampling: int,
           epochs: int, seeded: Seeded) -> Counts:
    """Counts a step, before it is taken; what runs it assigns the counters.

    Args:
      found: What the counters are, as a checkpoint may have left them.
      weights: Digest of the weights it begins from.
      left: Digest of those that the step before left.
      sampling: How its batch was chosen.
      epochs: How many epochs begin with it.
      seeded: What of its randomness can be repeated.

    Returns:
      What the counters are to be.
    """
    with self._lock:
      self.changed = not self.weights.step(weights, left) or self.changed
      self._known = self._known.merged(found).stepped(
          counts.UNKNOWN if self.changed else sampling, epochs, seeded)
      return self._known

  def count_others(self, model: keras.Model, before: Counts) -> None:
    """Counts other models too that weights just set with counts may come from.

    They are the models of this process that had these very weights; or, where none
    had, all copies: models that began with the same weights, of which averages are
    made. (Averages of others are not seen: they are of no use.)

    Args:
      model: The wrapped model.
      before: What was known before the weights were set.
    """
    with self._lock:
      weights = int(self.weights.digest(model.weights))
      brought = training.number(self.counters['released_steps'])
      if not brought or self.weights.has_left(weights):
        return
      others = [each for each in list(_records) if each is not self]
      sources = [each for each in others if each.weights.has_left(weights)]
      # A model that took no step here may come from a file of one of them.
      total = before if self.weights.stepped else Counts()
      near = [self] if self.weights.stepped else others
      for each in sources or [each for each in others if any(
          each is not other and each.weights.shares(other.weights) for other in near)]:
        total = total.plus(each.catch_up())
      self.catch_up(total)

  def keep(self, model: keras.Model) -> None:
    """Remembers the weights, which a method of a private model has set."""
    with self._lock:
      self.weights.keep(model)

  def knows(self, model: keras.Model) -> bool:
    """Whether nothing but steps has changed the weights, then and now."""
    with self._lock:
      return not self.changed and self.weights.knows(model)

  def look(self, model: keras.Model) -> None:
    """Counts it, for good, if something else has changed the weights.

    To be called where they go on to somewhere: another step, a file.
    """
    self.changed = not self.knows(model)
    if self.changed:
      # With the weights: whoever loads them is to know.
      self.catch_up(Counts(sampling=counts.UNKNOWN))


_records: weakref.WeakSet[Record] = weakref.WeakSet()
"""Those of all private models of this process."""
