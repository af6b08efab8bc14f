"""Division of records into a training and a validation side, settled beforehand."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from typing import Any, Callable, NamedTuple

import dp_accounting
import numpy as np

from tfcactus import _checks, relations
from tfcactus.accounting import events
from tfcactus.keras.data import units as units_lib
from tfcactus.keras.data.data_sources import ExampleData, Rows
from tfcactus.relations import Relation


class Side(NamedTuple):
  """Side of a split that some examples are on."""

  split: Split
  held_out: bool  # True for the validation side.
  whole: ExampleData  # The data that were divided.
  name: str  # Tells this division from others, and nothing of the sides.


class Sides(NamedTuple):
  """Both sides of a `Split`, as data sources: `training` and `validation`."""

  training: ExampleData
  validation: ExampleData


@dataclasses.dataclass(frozen=True)
class Split:
  """Division of records into a training side and a validation side.

  The side of a record depends on no other record. So each person pays for the releases
  of one side only, and the total is the maximum of the sides, for any schedule of
  releases that depends on earlier ones.

  To go on in another process, keep `key` secret and pass it: `Split(0.1, key=key)`.
  Examples without ids then have to come in the same order.

  Attributes:
    fraction: Probability of the validation side, in (0, 1); not used with a `rule`.
    by: 'coin': a secret coin per record, proved for add-or-remove, zero-out and
      replace. 'id': a public rule on the id of the record or unit, proved for
      add-or-remove and zero-out. 'position': a public rule on the place in the data,
      such as a split of fixed size, proved for zero-out and replace.
    rule: For 'id' and 'position': a function of one id or place, and of no data, that
      returns True for the validation side, such as `lambda place: place % 10 == 0`.
      None for 'id' takes a hash of the id, and `fraction`.
    key: 32 secret bytes that coins are made of, by default from the operating system.
      Rules and hashes of ids do not use it.

  Raises:
    ValueError: if an argument is out of range.
  """

  fraction: float = 0.1
  by: str = 'coin'
  rule: Callable[[Any], bool] | None = None
  key: bytes = dataclasses.field(default_factory=lambda: os.urandom(32), repr=False)

  def __post_init__(self) -> None:
    object.__setattr__(self, 'fraction', _checks.delta(self.fraction, 'fraction'))
    _checks.choice('by', self.by, tuple(events.PROVED_OF_SPLITS))
    if not (isinstance(self.key, bytes) and len(self.key) == 32):
      raise ValueError('Expected key to be the 32 bytes of the key of another Split, '
                       f'got {type(self.key).__name__}; leave it out for a new one.')
    if not (callable(self.rule) and self.by != 'coin' or
            self.rule is None and self.by != 'position'):
      raise ValueError(
          "Expected a rule, a function of one place or id, with by='position', maybe "
          f"with by='id', and not with by='coin', got by={self.by!r} and rule="
          f'{self.rule!r}.')

  @property
  def relations(self) -> tuple[dp_accounting.NeighboringRelation, ...]:
    """The neighbouring relations for which the total is the maximum of the sides."""
    return events.PROVED_OF_SPLITS[self.by]

  def check_relation(self, value: Relation) -> dp_accounting.NeighboringRelation:
    """Returns the relation that `value` names, as `tfcactus.relations.check`.

    Raises:
      ValueError: if the maximum of the sides is not proved for the relation.
    """
    relation = relations.check(value)
    events.check_split(self.by, relation)
    return relation

  def sides(self, x: Any, y: Any = None, *, sample_weight: Any = None,
            units: Any = None, examples_per_unit: int | None = None,
            ids: Any = None) -> Sides:
    """Divides examples, or units such as users with all their rows, into `Sides`.

    Args:
      x: As for `PoissonBatches`, like the other arguments; or `UnitData`.
      units: Coins and rules are then per unit.
      ids: Without `units`, an id of each example, integers or strings, that its coin
        or rule goes by. Without ids, and with by='position', it goes by the place.

    Raises:
      ValueError: if an argument is invalid, or a side has no examples.
    """
    data = units_lib.open_data(x, y, sample_weight, units, examples_per_unit)
    if data.side is not None:
      raise ValueError('Expected data that are not divided yet, got one side of a '
                       'split; divide once, and use both sides.')
    if isinstance(data, units_lib.UnitData):
      if ids is not None or self.by == 'position':
        raise ValueError('Expected units without ids, and no split by position: units '
                         'have ids, and their places depend on the ids of others; use '
                         "Split(fraction), a secret coin, or by='id'.")
      ids = data.ids
    elif ids is not None:
      ids = units_lib.checked_ids(ids, data.num_examples, 'ids')
      if np.unique(ids).size < ids.size:
        raise ValueError('Expected ids that differ, one for each example, got some '
                         'twice; for owners of several examples pass units=.')
    elif self.by == 'id':
      raise ValueError("Expected ids, one for each example, or units, with by='id', "
                       'got neither.')
    # Units without rows have no ids, and go to the training side.
    held = np.zeros(data.num_examples, bool)
    keys = range(held.size) if ids is None or self.by == 'position' else ids.tolist()
    held[:len(keys)] = [self._holds_out(key) for key in keys]
    if not 0 < held.sum() < held.size:
      raise ValueError('Expected a split with examples on both sides, got none on one '
                       f'of them, from {self!r}; use more data or another fraction.')
    # Shows that two sides are of one division. Without the key it tells nothing else.
    name = hashlib.blake2b(held.tobytes(), key=self.key, digest_size=8).hexdigest()
    return Sides(*(
        _part(data, np.flatnonzero(held == side), Side(self, side, data, name))
        for side in (False, True)))

  def _holds_out(self, key: bytes | str | int) -> bool:
    """Returns whether the record of an id or place is on the validation side.

    Raises ValueError for a rule that returns anything but a bool.
    """
    if self.rule is None:
      secret = self.key if self.by == 'coin' else b''
      word = hashlib.blake2b(_text(key), key=secret, digest_size=8).digest()
      return int.from_bytes(word, 'big') < int(self.fraction * 2**64)
    found = self.rule(key)
    if not isinstance(found, (bool, np.bool_)):
      raise ValueError('Expected a rule that returns True or False for one id or place '
                       f'at a time, got {found!r}.')
    return bool(found)


class _Part(ExampleData):
  """The examples of another data source at some places."""

  def __init__(self, data: ExampleData, places: np.ndarray):
    """Initialises the part of `data` at `places`, indices of examples."""
    self._data, self._places = data, places
    self.num_examples, self.specs = places.size, data.specs

  def rows(self, index: np.ndarray) -> Rows:
    return self._data.rows(self._places[index])


def _part(data: ExampleData, places: np.ndarray, side: Side) -> ExampleData:
  """Returns the examples, or units, at `places` as data that know their side."""
  part: ExampleData = data.of_units(places) if isinstance(
      data, units_lib.UnitData) else _Part(data, places)
  part.side = side
  return part


def _text(key: bytes | str | int) -> bytes:
  """Returns bytes that tell an id, or a place, from all others of its type."""
  if isinstance(key, bytes):
    return b's' + key
  return b's' + key.encode() if isinstance(key, str) else b'i%d' % key
