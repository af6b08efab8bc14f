"""Marks on batches, by which a step learns how its batch was drawn.

A feed is the data of one call of `fit`. A mark has, for each row of a batch, the number
of the feed and a key: the serial number of the batch, or the index of the example. A
serial number is valid for one step, so that no batch is counted as drawn twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import itertools
import threading
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfcactus.sampling import OnePassSampling, SamplingScheme

_numbers = itertools.count(1)
"""Numbers of feeds; 0 stands for a batch without a mark."""

UNKNOWN = 1000
"""Code in place of a scheme's, if the sampling of some batches is unknown."""


class Place(NamedTuple):
  """Position of a batch in its feed, the data of one call of `fit`."""

  feed: int  # The `number` of the feed's `Marks`.
  serial: int  # Serial number of the batch in the feed.
  step: int  # Index of the batch in its pass.
  length: int  # Batches of a pass.

  @classmethod
  def of(cls, numbers: np.ndarray) -> Place | None:
    """Returns the place with these four numbers; None if the first, `feed`, is zero."""
    return cls(*map(int, numbers)) if numbers[0] else None

  def follows(self, before: Place | None) -> bool:
    """Returns whether this batch comes directly after `before` in the same feed."""
    return before is not None and self == before._replace(
        serial=before.serial + 1, step=(before.step + 1) % before.length)


class Taken(NamedTuple):
  """Facts on the batch of a step, from its mark."""

  sampling: int = UNKNOWN  # The code of the sampling scheme, or `UNKNOWN`.
  epochs: int = 0  # How many epochs begin with the batch.
  # The position of the batch under a cyclic scheme, else None.
  place: Place | None = None
  # Checksum of the indices drawn, which workers that draw alike compare; else 0.
  fingerprint: int = 0


class Marked(NamedTuple):
  """Inputs x with a mark; only this library makes marks.

  `mark` is int64 of shape (rows, 2): `Marks.number`, and the key of the batch or row.
  Batches with canaries have a third column: the canary of the row, counted from one,
  or zero. If examples are units of k rows each, inputs have shape (units, k, ...), and
  the mark has shape (units, k, 2 or 3).
  """

  x: Any
  mark: Any


class Unmarked(NamedTuple):
  """A batch without its mark, in which each row is a row of the model's batch axis."""

  x: Any  # Inputs, shape (rows, ...).
  y: Any  # Targets, shape (rows, ...).
  weights: Any  # Weights, shape (rows, ...).
  # int64, shape (rows, 2 or 3); zeros of shape (1, 2) if the batch has no mark.
  mark: tf.Tensor
  # Number of consecutive rows that make up an example: more than one for units.
  each: int


def unmarked(x: Any, y: Any = None, weights: Any = None) -> Unmarked:
  """Returns a batch without its mark, if it has one, with units' rows in one axis."""
  if not isinstance(x, Marked):
    return Unmarked(x, y, weights, tf.zeros([1, 2], tf.int64), 1)
  mark = tf.cast(x.mark, tf.int64)
  if mark.shape.rank != 3:
    return Unmarked(x.x, y, weights, mark, 1)
  # The number of rows of a unit is static: a batch of another one is traced anew.
  inputs, y, weights, rows = tf.nest.map_structure(_rows, (x.x, y, weights, mark))
  return Unmarked(inputs, y, weights, rows, mark.shape[1])


def _rows(part: tf.Tensor) -> tf.Tensor:
  """Reshapes (units, k, ...) to (units * k, ...)."""
  known = part.shape[2:].is_fully_defined()
  return tf.reshape(part, [-1, *part.shape[2:]] if known else tf.concat(
      [[-1], tf.shape(part)[2:]], 0))


class Marks:
  """Recognises the batches of one call of `fit`; this base class recognises none.

  Attributes:
    number: Unique in this process, positive.
    sampling: The code of the sampling scheme, or `UNKNOWN`.
    seeded: Whether the batches are drawn from a seed.
  """

  def __init__(self, scheme: type[SamplingScheme] | None = None, seeded: bool = False):
    """Initialises the marks; `scheme` is None if the scheme is unknown."""
    self.number = next(_numbers)
    self.sampling = UNKNOWN if scheme is None else scheme.code
    self.seeded = seeded
    self._lock = threading.Lock()

  def take(self, keys: np.ndarray) -> Taken:
    """Uses up a mark of `keys`, (rows,); returns facts on its batch, or `Taken()`."""
    with self._lock:
      return self._take(keys)

  def _take(self, keys: np.ndarray) -> Taken:
    """Implements `take` for a class of marks, under its lock."""
    return Taken()


class BatchMarks(Marks):
  """Recognises each batch by a serial number that is valid for one step."""

  def __init__(self, scheme: type[SamplingScheme], seeded: bool, length: int,
               units: bool = False, canaries: bool = False):
    """Initialises the marks; `length` is the number of batches in a pass.

    With `units`, arrays have a second axis, for the rows of a unit. `canaries` tells
    whether batches may have canaries.
    """
    super().__init__(scheme, seeded)
    self._units = units
    self._columns = 3 if canaries else 2  # Feed, serial number, canary or 0.
    self._scheme = scheme
    self._length = length
    self._serials = itertools.count()
    # {serial number: (number of the pass, index in the pass, fingerprint)}.
    self._unused: dict[int, tuple[int, int, int]] = {}
    self._passes = 0
    self._last_pass = 0  # The pass of the batch that was taken last.

  def specs(self, x: Any, each: int | None = None) -> Marked:
    """Returns specs of marked inputs; `each` is a unit's number of rows, or None."""
    return Marked(x, tf.TensorSpec(
        (None, *(() if each is None else (each,)), self._columns), tf.int64))

  def mark(self, batches: Iterable[tuple[int, Iterable[Any]]]
          ) -> Iterator[Iterator[tuple[Marked, Any, Any]]]:
    """Yields an iterator of marked parts for each (fingerprint, parts) of `batches`.

    `batches` are those of one pass. Each gets a serial number that is valid once.
    """
    for index, (fingerprint, parts) in enumerate(batches):
      with self._lock:
        if index == 0:
          self._passes += 1
        serial = next(self._serials)
        self._unused[serial] = self._passes, index, fingerprint
      yield self._marked(serial, parts)

  def _marked(self, serial: int, parts: Iterable[Any]
             ) -> Iterator[tuple[Marked, Any, Any]]:
    """Yields (marked x, y, weights) for each ((x, y, weights), canaries) of `parts`."""
    for (x, y, weights), canaries in parts:
      rows = tf.nest.flatten(x)[0].shape[:2 if self._units else 1]
      mark = np.zeros((*rows, self._columns), np.int64)
      mark[..., :2] = self.number, serial
      if canaries is not None:
        mark[..., 2] = canaries[:, None] if self._units else canaries
      yield Marked(x, mark), y, weights

  def _take(self, keys: np.ndarray) -> Taken:
    """Returns facts if all rows carry one unused serial number, else `Taken()`."""
    same = keys.size and np.all(keys == keys[0])
    issued = self._unused.pop(int(keys[0]), None) if same else None
    if issued is None:
      return Taken()
    this_pass, index, fingerprint = issued
    begins = self._scheme.draws_epochs and this_pass != self._last_pass
    self._last_pass = this_pass
    place = Place(self.number, int(keys[0]), index, self._length)
    return Taken(self.sampling, int(begins), place if self._scheme.cyclic else None,
                 fingerprint)


class RowMarks(Marks):
  """Recognises each example by its row, for arrays that Keras splits into batches."""

  def __init__(self, num_examples: int):
    """Initialises the marks for arrays of `num_examples` rows."""
    super().__init__(OnePassSampling)
    self._seen = np.zeros(num_examples, bool)
    self._begun = False

  def mark(self, x: Any) -> Marked:
    """Returns `x` with a mark on each row: the row's index is the key."""
    rows = np.arange(self._seen.size)
    return Marked(x, np.stack([np.full_like(rows, self.number), rows], 1))

  def _take(self, keys: np.ndarray) -> Taken:
    """Returns facts on the batch; `Taken()` if it has an example twice.

    A pass begins with the first batch, and where an example comes again.
    """
    if np.unique(keys).size < keys.size:
      return Taken()
    begins = not self._begun or self._seen[keys].any()
    if begins:
      self._seen[:] = False
    self._seen[keys] = self._begun = True
    return Taken(self.sampling, int(begins))
