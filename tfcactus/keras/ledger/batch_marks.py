"""Marks on batches: which feed one came from, and that it is used once."""

from __future__ import annotations

import itertools
import threading
from typing import Any
from typing import Dict
from typing import Iterable
from typing import Iterator
from typing import NamedTuple
from typing import Optional
from typing import Tuple
from typing import Type

import numpy as np
import tensorflow as tf

from tfcactus.keras.ledger import counts
from tfcactus.sampling import OnePassSampling
from tfcactus.sampling import SamplingScheme

_numbers = itertools.count(1)


class Place(NamedTuple):
  """Where a batch stands among those of one call of `fit`.

  Attributes:
    feed: The number of the `Marks`.
    serial: Of the batch, in the order they were made in.
    step: Of the batch in its pass.
    length: Of a pass.
  """

  feed: int
  serial: int
  step: int
  length: int

  @classmethod
  def of(cls, numbers: np.ndarray) -> Optional[Place]:
    """The place that `numbers` are, or None."""
    return cls(*map(int, numbers)) if numbers[0] else None

  def follows(self, before: Optional[Place]) -> bool:
    """Whether nothing lies between, and each pass was whole before the next."""
    return before is not None and self == before._replace(
        serial=before.serial + 1, step=(before.step + 1) % before.length)


class Taken(NamedTuple):
  """What is known of a batch that a step uses.

  Attributes:
    sampling: The code of the scheme that chose it, or `counts.UNKNOWN`.
    epochs: How many epochs begin with it.
    place: Of a cyclic scheme, where it stands.
    fingerprint: Of which examples it is, where several workers draw it alike.
  """

  sampling: int = counts.UNKNOWN
  epochs: int = 0
  place: Optional[Place] = None
  fingerprint: int = 0


class Marked(NamedTuple):
  """Inputs that carry a mark; no batch made by other means does.

  Attributes:
    x: The inputs.
    mark: int64, shape (rows, 2): the number of the `Marks`, and what they know
      the batch by.
  """

  x: Any
  mark: Any


def unmarked(x: Any) -> Tuple[Any, tf.Tensor]:
  """Returns inputs and their mark, one of no feed if they have none."""
  if isinstance(x, Marked):
    return x.x, tf.cast(x.mark, tf.int64)
  return x, tf.zeros([1, 2], tf.int64)


class Marks:
  """How the batches of one call of `fit` are recognised.

  Attributes:
    number: Which one it is, in this process.
    sampling: The code of the scheme that chooses the batches, or
      `counts.UNKNOWN`.
    seeded: Whether the choice repeats.
  """

  def __init__(self, scheme: Optional[Type[SamplingScheme]] = None,
               seeded: bool = False):
    """Initialises the marks; the scheme is None if none is known."""
    self.number = next(_numbers)
    self.sampling = counts.UNKNOWN if scheme is None else scheme.code
    self.seeded = seeded
    self._lock = threading.Lock()

  def take(self, keys: np.ndarray) -> Taken:
    """Uses a batch.

    Args:
      keys: What it is known by, one for each row.
    """
    with self._lock:
      return self._take(keys)

  def _take(self, keys: np.ndarray) -> Taken:
    del keys
    return Taken()


class BatchMarks(Marks):
  """Knows each batch by a number, which is good for one step."""

  def __init__(self, scheme: Type[SamplingScheme], seeded: bool, length: int):
    """Initialises the marks; `length` is that of a pass."""
    super().__init__(scheme, seeded)
    self._scheme = scheme
    self._length = length
    self._serials = itertools.count()
    self._unused: Dict[int, Tuple[int, int, int]] = {}
    self._passes = 0
    self._taken = 0

  def specs(self, x: Any) -> Marked:
    """The `TensorSpec`s of inputs that carry a mark."""
    return Marked(x, tf.TensorSpec((None, 2), tf.int64))

  def mark(self, batches: Iterable[Tuple[int, Iterable[Tuple[Any, Any, Any]]]]
          ) -> Iterator[Iterator[Tuple[Marked, Any, Any]]]:
    """Marks the batches of a pass.

    Args:
      batches: Of each its fingerprint, and its parts (x, y, weights).

    Yields:
      The parts of each, carrying the mark of their batch.
    """
    for index, (fingerprint, parts) in enumerate(batches):
      yield self._marked(self._issue(index, fingerprint), parts)

  def _marked(self, key: int, parts: Iterable[Tuple[Any, Any, Any]]
             ) -> Iterator[Tuple[Marked, Any, Any]]:
    for x, y, weights in parts:
      rows = len(tf.nest.flatten(weights)[0])
      yield Marked(x, np.full((rows, 2), [self.number, key], np.int64)), y, weights

  def _issue(self, index: int, fingerprint: int) -> int:
    with self._lock:
      self._passes += index == 0
      serial = next(self._serials)
      self._unused[serial] = self._passes, index, fingerprint
      return serial

  def _take(self, keys: np.ndarray) -> Taken:
    same = keys.size and np.all(keys == keys[0])
    issued = self._unused.pop(int(keys[0]), None) if same else None
    if issued is None:
      return Taken()
    number, index, fingerprint = issued
    begun = number != self._taken
    self._taken = number
    place = Place(self.number, int(keys[0]), index, self._length)
    return Taken(self.sampling, int(self._scheme.draws_epochs and begun),
                 place if self._scheme.cyclic else None, fingerprint)


class RowMarks(Marks):
  """Knows each example by its row, for arrays that Keras cuts into batches.

  A pass is the steps until an example comes again: so none takes part twice in
  one, however the batches are made.
  """

  def __init__(self, num_examples: int):
    super().__init__(OnePassSampling)
    self._seen = np.zeros(num_examples, bool)
    self._begun = False

  def mark(self, x: Any) -> Marked:
    """Returns arrays whose rows carry marks."""
    rows = np.arange(self._seen.size)
    return Marked(x, np.stack([np.full_like(rows, self.number), rows], 1))

  def _take(self, keys: np.ndarray) -> Taken:
    if np.unique(keys).size < keys.size:
      return Taken()
    again = not self._begun or self._seen[keys].any()
    if again:
      self._seen[:] = False
    self._seen[keys] = self._begun = True
    return Taken(self.sampling, int(again))
