"""Records in: arrays, lists, tf.data datasets and other iterables of batches."""

from __future__ import annotations

from typing import Any
from typing import Iterator

import numpy as np


def batches(records: Any) -> Iterator[np.ndarray]:
  """Yields arrays of records, the first axis running over records.

  Args:
    records: An array (or tensor, list or tuple of numbers), or an iterable of
      batches of them, such as a batched `tf.data.Dataset`.

  Raises:
    ValueError: if a batch is not an array of numbers.
  """
  if hasattr(records, 'shape') or isinstance(records, (list, tuple, range)):
    yield _array(records)
    return
  if isinstance(records, (str, bytes, dict)) or not hasattr(records, '__iter__'):
    raise ValueError(
        'Expected records to be an array or an iterable of batches, got '
        f'{type(records).__name__}.')
  for batch in records:
    yield _array(batch)


def vector(records: Any) -> np.ndarray:
  """All records of a scalar kind, shape (n,); n may be zero."""
  parts = [np.atleast_1d(batch) for batch in batches(records)]
  for part in parts:
    if part.ndim != 1:
      raise ValueError(
          'Expected one number per record, got batches of shape '
          f'{part.shape}.')
  return np.concatenate(parts) if parts else np.zeros(0)


def _array(batch: Any) -> np.ndarray:
  if isinstance(batch, dict) or (isinstance(batch, tuple) and any(
      hasattr(part, 'shape') and getattr(part, 'shape', ()) != ()
      for part in batch)):
    raise ValueError(
        'Expected batches of one array, got several; select the part to be '
        'released, as in dataset.map(lambda x, y: y).')
  array = np.asarray(batch)
  if array.size and (array.dtype.kind not in 'biuf'):
    raise ValueError(
        f'Expected records to be numbers, got values of type {array.dtype}.')
  if array.dtype.kind == 'f' and np.any(np.isnan(array)):
    raise ValueError(
        'Expected no NaN in the records, got some; drop or replace such '
        'records one by one, before the release.')
  return array.astype(np.int64) if array.dtype.kind == 'b' else array
