"""Examples grouped by the person (or another unit) that they belong to."""

from __future__ import annotations

import copy
from typing import Any
import zlib

import numpy as np
import tensorflow as tf

from tfcactus import _checks
from tfcactus.keras.data import data_sources
from tfcactus.keras.data.data_sources import ExampleData, Rows
from tfcactus.randomness import KeyStream

_BLOCK = 4096
"""Number of examples of a source whose ids are read at a time."""

_MISSING = ('', '-1', 'nan', 'none', 'null', '<na>', 'nat')
"""Texts that pandas, NumPy and databases write for a missing id, in lower case."""


class UnitData(ExampleData):
  """Data whose examples are units, such as users, each with several rows.

  A scheme draws units. A drawn unit takes part with at most `examples_per_unit` of its
  rows, chosen uniformly at random, afresh in each draw, from these rows alone. A row
  that holds NaN or infinity takes no part. So nothing of a unit depends on another.

  Arrays of `rows` have shape (units, examples_per_unit, ...). Units with fewer rows are
  filled up with copies of their first row, or zeros if they have none, of weight zero.

  Attributes:
    num_examples: Number of units.
    examples_per_unit: Most rows of a unit in a step.
    rows_of_units: Number of rows of each unit, in the order of `ids`; units without
      rows are last.
    ids: The id of each unit that has rows, ascending.
  """

  def __init__(self, x: Any, y: Any = None, *, units: Any, examples_per_unit: int,
               sample_weight: Any = None, num_units: int | None = None):
    """Groups rows by `units`.

    Args:
      x: Rows, as for `PoissonBatches`; so is `y`.
      units: The id of the owner of each row, shape (num_rows,): integers or strings,
        copied. Or the name of a part of `x`, a dict or a table of pandas, that holds
        the ids; the model does not get that part.
      examples_per_unit: Most rows of a unit in a step.
      sample_weight: Weights of rows, as for `PoissonBatches`. Rows of weight zero take
        no part.
      num_units: Number of units, if there are units without any row; by default the
        number of different ids.

    Raises:
      ValueError: if an argument is invalid, such as ids that are not one for each row;
        or if the rows are grouped or divided already.
    """
    if isinstance(units, str) and units in getattr(x, 'columns', ()):
      x, units = x.drop(columns=units), x[units]  # A table of pandas.
    data = data_sources.open_data(x, y, sample_weight)
    if isinstance(data, UnitData):
      raise ValueError('Expected rows to group by units, got UnitData, whose rows are '
                       'grouped; leave out units and examples_per_unit.')
    if data.side is not None:
      raise ValueError('Expected rows that are not divided yet, got a side of a Split '
                       'that may have put rows of one owner on both sides; '
                       'pass units to the sides method of the split.')
    self._flat: ExampleData = data
    if isinstance(units, str):
      units, self._flat = _read_ids(data, units), _WithoutKey(data, units)
    self.ids, owner = np.unique(
        checked_ids(units, data.num_examples), return_inverse=True)
    known = self.ids.size
    self.num_examples = _checks.integer(
        'num_units', known if num_units is None else num_units, known)
    self.examples_per_unit = _checks.integer('examples_per_unit', examples_per_unit, 1)
    self.rows_of_units = np.bincount(owner, minlength=self.num_examples)
    self._order = np.argsort(owner, kind='stable')
    self._starts = np.cumsum(self.rows_of_units) - self.rows_of_units
    x_specs, y_specs, *given = self._flat.specs
    weights = given[0] if given else tf.TensorSpec((None,), tf.float32)
    self.specs = tf.nest.map_structure(
        lambda spec: tf.TensorSpec(
            [None, self.examples_per_unit, *spec.shape[1:]], spec.dtype),
        (x_specs, y_specs, weights))
    self._stream = KeyStream(None, 'rows of units')

  @property
  def flat(self) -> ExampleData:
    """The rows, as data whose examples are rows."""
    return self._flat

  def drawn_by(self, seed: int | None) -> UnitData:
    """Returns a copy that draws from `seed`; None takes a fresh key of the system."""
    data = copy.copy(self)
    data._stream = KeyStream(seed, 'rows of units')
    return data

  def of_units(self, places: np.ndarray) -> UnitData:
    """Returns the units at `places` alone, with a fresh key for their draws."""
    part = self.drawn_by(None)
    part.num_examples, part.ids = places.size, self.ids[places[places < self.ids.size]]
    part.rows_of_units, part._starts = self.rows_of_units[places], self._starts[places]
    return part

  def fingerprint(self) -> int:
    """Returns a checksum of which row belongs to which unit."""
    return zlib.crc32(self._order.tobytes() + self.rows_of_units.tobytes())

  def rows(self, index: np.ndarray) -> Rows:
    """Returns rows of the units at `index`, drawn afresh: (inputs, targets, weights).

    Arrays have shape (index.size, examples_per_unit, ...).
    """
    chosen, owner = self._choose(index)
    found = self._flat.rows(chosen)
    kept = np.flatnonzero(data_sources.finite_rows(found))
    owner = owner[kept]
    # Places of the kept rows within their units: owners ascend.
    first = np.searchsorted(owner, np.arange(index.size))
    place = np.arange(owner.size) - first[owner]
    # For each place of each unit: the row's index in `found`, or -1.
    slots = np.full((index.size, self.examples_per_unit), -1)
    slots[owner, place] = kept
    present = slots >= 0
    # Units are filled with their first row. A unit without a usable row has slots -1:
    # the last row of `placed`, one of zeros.
    filled = np.where(present, slots, slots[:, :1])
    zeros = int(not present.any(1).all())

    def placed(array: np.ndarray) -> np.ndarray:
      """Returns an array of rows as (units, examples_per_unit, ...)."""
      return data_sources.padded(array, len(array) + zeros)[filled]

    def weighed(array: np.ndarray) -> np.ndarray:
      """Returns weights in the shape of `placed`, zero for copies."""
      weights = placed(array)
      weights[~present] = 0
      return weights

    x, y, *given = found
    weights = given[0] if given else np.ones(chosen.size, np.float32)
    each = data_sources.each_array
    return each(placed, x), each(placed, y), each(weighed, weights)

  def _choose(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (indices of rows chosen, their units' places in `index`, ascending)."""
    counts = self.rows_of_units[index]
    owner = np.repeat(np.arange(index.size), counts)
    within = np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts)
    candidates = self._order[self._starts[index][owner] + within]
    # Each owner's rows, in the order of random words: the first are a uniform choice.
    order = np.lexsort((self._stream.words(owner.size), owner))
    chosen = order[within < self.examples_per_unit]
    return candidates[chosen], owner[chosen]


class _WithoutKey(ExampleData):
  """Data whose inputs, a dict, leave out the part that holds the ids of units."""

  def __init__(self, data: ExampleData, key: str):
    """Initialises the data without the inputs named `key`."""
    self._data, self._key = data, key
    self.num_examples, self.specs = data.num_examples, self._without_ids(data.specs)

  def rows(self, index: np.ndarray) -> Rows:
    return self._without_ids(self._data.rows(index))

  def _without_ids(self, parts: Rows) -> Rows:
    """Returns (inputs without the ids, targets, and weights if any)."""
    return ({name: part for name, part in parts[0].items() if name != self._key},
            *parts[1:])


def open_data(x: Any, y: Any = None, sample_weight: Any = None, units: Any = None,
              examples_per_unit: int | None = None) -> ExampleData:
  """Returns data whose examples are rows, or units if `units` are given."""
  if units is None and examples_per_unit is None:
    return data_sources.open_data(x, y, sample_weight)
  if units is None or examples_per_unit is None:
    raise ValueError(
        'Expected both units, the id of the owner of each row, and examples_per_unit, '
        f'the most rows of an owner in a step, or neither, got units='
        f'{"None" if units is None else type(units).__name__} and '
        f'examples_per_unit={examples_per_unit!r}.')
  return UnitData(x, y, units=units, examples_per_unit=examples_per_unit,
                  sample_weight=sample_weight)


def _read_ids(data: ExampleData, key: str) -> np.ndarray:
  """Returns the part `key` of the inputs; ValueError unless it is one of several."""
  inputs = data.specs[0]
  if not isinstance(inputs, dict) or key not in inputs or len(inputs) < 2:
    parts = sorted(inputs) if isinstance(inputs, dict) else 'one array'
    raise ValueError(
        f'Expected units={key!r} to name a part of x, a dict of arrays with parts for '
        f'the model beside it, got x of {parts}; pass an array of ids.')
  return np.concatenate([rows[0][key] for rows in data.blocks(_BLOCK)])


def checked_ids(units: Any, rows: int, name: str = 'units') -> np.ndarray:
  """Returns ids as an array, shape (rows,), of integers, strings or such objects.

  Raises ValueError unless there is one for each row, all are integers, all str or all
  bytes, and none stands for a missing one, such as -1 or 'nan'.
  """
  if isinstance(units, np.ma.MaskedArray):  # An array would show what the mask hides.
    units = units.tolist()  # None where masked.
  # An array of strings would turn a NaN among them into the id 'nan'.
  ids = np.asarray(units, object if isinstance(units, (list, tuple)) else None)
  if ids.ndim == 2 and ids.shape[1] == 1:
    ids = ids[:, 0]
  if ids.shape != (rows,):
    raise ValueError(
        f'Expected {name} of shape ({rows},), the id of the one owner of each row, got '
        f'shape {ids.shape}. A row of two owners has no guarantee for either: leave it '
        'out, or make one unit of both.')
  kinds = {type(each) for each in ids} if ids.dtype.kind == 'O' else {ids.dtype.type}
  if not any(all(issubclass(kind, of) and kind is not bool for kind in kinds)
             for of in ((int, np.integer), str, bytes)):
    raise ValueError(
        f'Expected {name} to be all integers or all strings, got '
        f'{", ".join(sorted(kind.__name__ for kind in kinds))}: a rounded or missing '
        'id does not tell whose row it is. Give each row an id, or leave the row out; '
        'use astype(np.int64) on ids that are whole.')
  different = {
      (each.decode('utf-8', 'replace') if isinstance(each, bytes) else str(each)
      ).strip().lower() for each in np.unique(ids)}
  missing = [each for each in _MISSING if each in different]
  if missing:
    raise ValueError(
        f'Expected an id for each row, got {missing[0]!r}, which stands for a missing '
        'one: such a row may belong to anybody, who would then have two ids. Give each '
        'row the id of its owner, or leave the row out.')
  return ids
