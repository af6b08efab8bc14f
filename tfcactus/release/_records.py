"""Input records: arrays, lists, tf.data datasets and other iterables of batches.

A record is a row. Inputs whose rows may not be the records are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import numbers
from typing import Callable

import numpy as np
import numpy.typing as npt

Records = Iterable[npt.ArrayLike]
"""An array of records, or an iterable of batches such as a `tf.data.Dataset`."""


def batches(records: Records, array: Callable[[object], np.ndarray] | None = None
            ) -> Iterator[np.ndarray]:
  """Yields arrays of records, whose first axis runs over records.

  An array, list, tuple or range is one batch. `array` turns a batch into an array, by
  default of numbers. Raises ValueError if a batch is not such an array, or may be a
  single record.
  """
  array = array or _array
  if hasattr(records, 'shape') or isinstance(records, (list, tuple, range)):
    yield array(records)
    return
  if isinstance(records, (str, bytes, bytearray, dict, set, frozenset)) or (
      not hasattr(records, '__iter__')):
    raise ValueError(
        'Expected records to be an array or an iterable of batches, got '
        f'{type(records).__name__}.')
  check_batched(records)
  for batch in records:
    yield array(batch)


def scalar_batches(records: Records) -> Iterator[np.ndarray]:
  """Yields arrays of shape (n,); raises ValueError if a record is not one number."""
  for batch in batches(records):
    if batch.ndim != 1:
      raise ValueError(
          'Expected one number per record, an array of shape (n,), got shape '
          f'{batch.shape}: a record of several numbers changes the answer by '
          'more than is accounted for. Select one number per record.')
    yield batch


def vector(records: Records) -> np.ndarray:
  """Returns all records, one number each, as an array of shape (n,); n may be zero."""
  parts = list(scalar_batches(records))
  return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def check_batched(records: object) -> None:
  """Raises ValueError for a dataset whose elements may be records, not batches."""
  shape = getattr(getattr(records, 'element_spec', None), 'shape', None)
  if shape is not None and shape.rank is not None and (
      shape.rank == 0 or shape[0] is not None):
    raise ValueError(
        'Expected a batched dataset, with elements of shape (None, ...), got '
        f'elements of the fixed shape {tuple(shape)}, each of which may be one '
        'record; use dataset.batch(n), without drop_remainder.')


def check_one_array(batch: object) -> None:
  """Raises ValueError if a batch is several arrays, or an array with a mask."""
  if isinstance(batch, dict) or (isinstance(batch, tuple) and any(
      hasattr(part, 'shape') and part.shape != () for part in batch)):
    raise ValueError(
        'Expected batches of one array, got several; select the part to be '
        'released, as in dataset.map(lambda x, y: y).')
  if isinstance(batch, np.ma.MaskedArray):
    raise ValueError(
        'Expected an array without a mask, got a masked one, whose masked '
        'records would count; use its compressed() or filled().')


def _array(batch: object) -> np.ndarray:
  """Returns a batch as an array of real numbers, shape (n, ...); ValueError for NaN."""
  # Floats and integers beyond 64 bits become float64, booleans int64. Other integers
  # keep their type.
  check_one_array(batch)
  try:
    array = np.asarray(batch)
  except ValueError as error:
    raise ValueError(
        'Expected records of one shape, got an array that numpy cannot make: '
        f'{error}.') from None
  if array.ndim == 0:
    raise ValueError(
        f'Expected batches of shape (n, ...), got one {type(batch).__name__} '
        'in place of a batch.')
  if array.dtype.kind == 'O' and all(
      isinstance(item, numbers.Real) for item in array.ravel()):
    # Python integers beyond 64 bits; each is rounded independently of the others.
    try:
      array = array.astype(np.float64)
    except OverflowError as error:
      raise ValueError(
          'Expected records that fit into a float64, got larger ones; clip them '
          'one by one, before the release.') from error
  if array.dtype.kind not in 'biuf':
    raise ValueError(
        f'Expected records to be real numbers, got values of type {array.dtype}.')
  if array.dtype.kind == 'f':
    array = array.astype(np.float64)
    if np.any(np.isnan(array)):
      raise ValueError(
          'Expected no NaN in the records, got some; drop or replace such '
          'records one by one, before the release.')
  return array.astype(np.int64) if array.dtype.kind == 'b' else array
