"""Division of records into a training and a validation side, settled beforehand."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from typing import Any, Callable, NamedTuple

import dp_accounting
import numpy as np

from tfcactus import _checks, relations
from tfcactus.keras.data import units as units_lib
from tfcactus.keras.data.data_sources import ExampleData, Rows
from tfcactus.relations import Relation

_PROVED = {
    'coin': (relations.ADD_OR_REMOVE, relations.ZERO_OUT, relations.REPLACE),
    'id': (relations.ADD_OR_REMOVE, relations.ZERO_OUT),
    'position': (relations.ZERO_OUT, relations.REPLACE)}

_UNPROVED = {
    'id': 'a record that replaces another has another id, so that one side may lose a '
          "record and the other gain one; use Split(fraction), a secret coin",
    'position': 'an added record moves others to other positions, and so to the other '
                "side; use Split(fraction), a secret coin, or by='id'"}


@dataclasses.dataclass(frozen=True)
class Split:
  """Division of records into a training side and a validation side.

  The side of a record depends on no other record. Then each person pays for the
  releases of one side only, and the total is the maximum of the sides, for any schedule
  of releases that depends on earlier ones. A split of fixed size moves a record if
  another is added, and has no such proof under add-or-remove.

  Use one split for everything that counts its sides. To go on in another process, keep
  `key` secret and pass it: `Split(0.1, key=key)`. Without ids the records then have to
  come in the same order.

  Attributes:
    fraction: Probability that a record is on the validation side, in (0, 1).
    by: 'coin': a secret coin per record, proved for add-or-remove, zero-out and
      replace. 'id': a public rule on the id of the record or unit, proved for
      add-or-remove and zero-out. 'position': a public rule on the place of the record
      in the data, proved for zero-out and replace.
    rule: For 'id' and 'position': a function of one id or place that returns True for
      the validation side, such as `lambda place: place % 10 == 0`. It must not depend
      on the data. None for 'id' takes a hash of the id, and `fraction`.
    key: 32 secret bytes that the coins are made of, by default from the operating
      system.

  Raises:
    ValueError: if an argument is out of range.
  """

  fraction: float = 0.1
  by: str = 'coin'
  rule: Callable[[Any], bool] | None = None
  key: bytes = dataclasses.field(default_factory=lambda: os.urandom(32), repr=False)

  def __post_init__(self) -> None:
    object.__setattr__(self, 'fraction', _checks.delta(self.fraction, 'fraction'))
    _checks.choice('by', self.by, tuple(_PROVED))
    if not (isinstance(self.key, bytes) and len(self.key) == 32):
      raise ValueError('Expected key to be the 32 bytes of the key of another Split, '
                       f'got {type(self.key).__name__}; leave it out for a new one.')
    if self.rule is not None and self.by == 'coin' or not (
        self.rule is None or callable(self.rule)):
      raise ValueError(
          "Expected rule to be a function, with by='id' or by='position', got "
          f'rule={self.rule!r} with by={self.by!r}.')
    if self.rule is None and self.by == 'position':
      raise ValueError(
          "Expected a rule with by='position', such as rule=lambda place: place % 10 "
          '== 0, got none; Split(fraction) draws a secret coin for each record.')

  @property
  def relations(self) -> tuple[dp_accounting.NeighboringRelation, ...]:
    """The neighbouring relations for which the total is the maximum of the sides."""
    return _PROVED[self.by]

  @property
  def digest(self) -> str:
    """Name of the split in plans and run cards, which tells nothing of the sides."""
    return hashlib.sha256(b'name of a split' + self.key).hexdigest()[:16]

  def check_relation(self, value: Relation) -> dp_accounting.NeighboringRelation:
    """Returns the relation that `value` names.

    Args:
      value: A relation, as for `tfcactus.relations.check`.

    Raises:
      ValueError: if the maximum of the sides is not proved for the relation.
    """
    relation = relations.check(value)
    if relation not in self.relations:
      raise ValueError(unproved(self.by, relation))
    return relation

  def sides(self, x: Any, y: Any = None, *, sample_weight: Any = None,
            units: Any = None, examples_per_unit: int | None = None,
            ids: Any = None) -> Sides:
    """Divides examples, or units such as users, with all rows of each on one side.

    Both sides go where data go: `PoissonBatches(sides.training, batch_size=...)`.

    Args:
      x: Examples, as for `PoissonBatches`; or `UnitData`.
      y: Targets, as for `PoissonBatches`.
      sample_weight: Weights, as for `PoissonBatches`.
      units: Owner of each row, as for `PoissonBatches`; coins and rules are then per
        owner.
      examples_per_unit: As for `PoissonBatches`, with `units`.
      ids: Without `units`, an id of each example, integers or strings. Coins then
        belong to ids and not to places.

    Returns:
      (training, validation), two data sources.

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
    held = self._held_out(data.num_examples, ids)
    if not 0 < held.sum() < held.size:
      raise ValueError('Expected a split with examples on both sides, got none on one '
                       f'of them, from {self!r}; use more data or another fraction.')
    return Sides(*(_part(data, np.flatnonzero(held == side), Side(self, side, data))
                   for side in (False, True)))

  def _held_out(self, count: int, ids: np.ndarray | None) -> np.ndarray:
    """Returns which of `count` records are on the validation side, bool."""
    if self.by == 'position':
      return self._ruled(range(count))
    if ids is None and self.by == 'id':
      raise ValueError("Expected ids, one for each example, or units, with by='id', "
                       'got neither.')
    keys = range(count) if ids is None else ids.tolist()
    if self.rule is not None:
      found = self._ruled(keys)
    else:
      secret = self.key if self.by == 'coin' else b''
      below = int(self.fraction * 2**64)
      found = np.array([int.from_bytes(hashlib.blake2b(
          _text(each), key=secret, digest_size=8).digest(), 'big') < below
                        for each in keys], bool)
    # Units without rows, of which there are no ids, are on either side.
    return np.append(found, np.zeros(count - found.size, bool))

  def _ruled(self, keys: Any) -> np.ndarray:
    """Returns the answers of the rule to one key at a time, bool."""
    assert self.rule is not None, 'It was checked.'
    found = [self.rule(each) for each in keys]
    wrong = [each for each in found if not isinstance(each, (bool, np.bool_))]
    if wrong:
      raise ValueError('Expected a rule that returns True or False for one id or place '
                       f'at a time, got {wrong[0]!r}.')
    return np.array(found, bool)


class Sides(NamedTuple):
  """Both sides of a `Split`.

  Attributes:
    training: Data source of the training side.
    validation: Data source of the validation side.
  """

  training: ExampleData
  validation: ExampleData


class Side(NamedTuple):
  """Which side of which split some data are, and the data that were divided."""

  split: Split
  held_out: bool
  whole: ExampleData


class _Part(ExampleData):
  """The examples of another data source at some places."""

  def __init__(self, data: ExampleData, places: np.ndarray):
    self._data = data
    self._places = places
    self.num_examples = places.size
    self.specs = data.specs

  def rows(self, index: np.ndarray) -> Rows:
    return self._data.rows(self._places[index])


def _part(data: ExampleData, places: np.ndarray, side: Side) -> ExampleData:
  """Returns the examples, or units, at `places` as data that know their side."""
  part: ExampleData = data.of_units(places) if isinstance(
      data, units_lib.UnitData) else _Part(data, places)
  part.side = side
  return part


def unproved(by: str, relation: dp_accounting.NeighboringRelation) -> str:
  """Returns why the maximum of the sides is not proved for a relation."""
  proved = ' or '.join(name for name, known in relations.NAMES.items()
                       if known in _PROVED[by])
  return (f'Expected neighboring_relation {proved} with a split by {by}, got '
          f'{relations.label(relation)}: {_UNPROVED[by]}.')


def _text(key: bytes | str | int) -> bytes:
  """Returns bytes that tell an id, or a place, from all others."""
  if isinstance(key, bytes):
    return b's' + key
  return b's' + key.encode() if isinstance(key, str) else b'i%d' % key
