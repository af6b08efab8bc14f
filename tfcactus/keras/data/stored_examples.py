"""Stores the examples of a pipeline or generator on disk, for batches to draw from."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import itertools
import json
import math
import os
from typing import Any

import numpy as np
import tensorflow as tf

from tfcactus import _checks
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.data import data_sources, datasets, open_files
from tfcactus.noise.table_file import PathLike

_INDEX = 'examples.json'
"""File of the number, dtypes, shapes and structure of the examples; written last."""

_CHECKSUMS = 'checksums.raw'
"""File of the CRC-32 of each example, as little-endian uint32."""

_BLOCK = 256
"""Number of examples of a generator to write at a time."""


class StoredExamples(data_sources.ArrayData):
  """Examples written by `store_examples`, mapped into memory as they are drawn.

  Each draw compares the size and modification time of each file with those at opening,
  and the CRC-32 of each example drawn with the stored one, so that an example is the
  same in all steps. A change that keeps all three is not noticed.
  """

  def __init__(self, directory: PathLike):
    """Opens the examples; ValueError if there are none, or files are not whole."""
    self.directory = _checks.path('directory', directory)
    try:
      with open(os.path.join(self.directory, _INDEX), encoding='utf-8') as file:
        index = json.load(file)
      self._open = open_files.OpenFiles([
          os.path.join(self.directory, name) for name in _names(index)])
      *arrays, sums = [
          _mapped(file, np.dtype(part['dtype']), (index['num_examples'],
                                                  *part['shape']))
          for file, part in zip(self._open.descriptors, [
              *index['parts'], {'dtype': '<u4', 'shape': []}])]
    except (OSError, KeyError, TypeError, ValueError) as error:
      raise ValueError(
          f'Expected examples of store_examples in {self.directory!r}, got none that '
          f'are whole: {error}.') from error
    self._sums = np.array(sums)
    x, y, *weights = tf.nest.pack_sequence_as(index['structure'], arrays)
    # Examples without targets have an empty structure in place of y.
    super().__init__(x, None if isinstance(y, list) and not y else y, *weights)

  def rows(self, index: np.ndarray) -> data_sources.Rows:
    """Returns the examples at `index`, as `ExampleData.rows`.

    Raises ValueError if a file has changed.
    """
    # Before anything is read: to read past the end of a mapped file ends the process.
    self._open.check_unchanged()
    found = super().rows(index)
    wrong = index[open_files.row_checksums(found) != self._sums[index]]
    if wrong.size:
      raise open_files.changed(self.directory, f'example {wrong[0]} is another')
    return found

  def __repr__(self) -> str:
    return f'<StoredExamples: {self.num_examples:,} in {self.directory!r}>'


def store_examples(examples: Any, directory: PathLike) -> StoredExamples:
  """Writes the examples of a stream to disk; returns them, for batches to draw from.

  A sampling scheme draws a batch from all examples, which a stream cannot provide. So
  the stream is read once, a block at a time. Files take the bytes of the examples, and
  four more for each. Random draws of a pipeline, such as augmented images, are thereby
  fixed: put random layers into the model instead.

  Args:
    examples: A `tf.data.Dataset` or another iterable of pairs (x, y), or triples
      (x, y, weight), one for each example, or a Keras `Sequence` or `PyDataset` of
      batches of them: numbers, of equal shapes for all examples.
    directory: Directory to write to; created if missing. `StoredExamples(directory)`
      opens the examples again.

  Raises:
    ValueError: if the directory already holds examples, or `examples` is invalid.
  """
  directory = _checks.path('directory', directory)
  if os.path.exists(os.path.join(directory, _INDEX)):
    raise ValueError(
        f'Expected a directory without examples, got {directory!r}; open those there '
        'by StoredExamples(directory), or delete them.')
  os.makedirs(directory, exist_ok=True)
  index = _write(_blocks(examples), directory)
  if not index['num_examples']:
    raise ValueError('Expected at least one example, got a stream of none.')
  place = os.path.join(directory, _INDEX)
  with open(place + '.new', 'w', encoding='utf-8') as file:
    json.dump(index, file)
  os.replace(place + '.new', place)
  return StoredExamples(directory)


def _write(blocks: Iterator[Any], directory: str) -> dict[str, Any]:
  """Writes blocks to files, one per array; returns the index.

  Raises ValueError for texts, and for blocks of different structures, shapes or dtypes.
  """
  count, first, files = 0, dict[str, Any](), list[Any]()
  with contextlib.ExitStack() as stack:
    for block in blocks:
      arrays = [data_sources.checked_array('examples', part, texts=True)
                for part in tf.nest.flatten(block)]
      if any(array.dtype.kind == 'O' for array in arrays):
        raise ValueError(
            'Expected examples of numbers, got texts, whose lengths differ; write them '
            'to TFRecord files, and read those by TFRecordExamples.')
      # By JSON, so that tuples are lists, as in an index that is read back.
      found = {'parts': [{'dtype': array.dtype.str, 'shape': list(array.shape[1:])}
                         for array in arrays],
               'structure': json.loads(json.dumps(
                   tf.nest.pack_sequence_as(block, list(range(len(arrays))))))}
      if not first:
        first = found
        files = [stack.enter_context(open(os.path.join(directory, name), 'wb'))
                 for name in _names(first)]
      lengths = {len(array) for array in arrays}
      if found != first or len(lengths) != 1:
        raise ValueError(f'Expected examples of one structure, got {found} of '
                         f'{sorted(lengths)} examples after {first}.')
      sums = open_files.row_checksums(arrays).astype('<u4')
      for file, array in zip(files, [*arrays, sums]):
        file.write(np.ascontiguousarray(array).data)
      count += lengths.pop()
  return {'num_examples': count, **first}


def _names(index: dict[str, Any]) -> list[str]:
  """Returns the names of the files of an index: one for each array, and checksums."""
  return [*(f'part{i}.raw' for i in range(len(index['parts']))), _CHECKSUMS]


def _mapped(file: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
  """Returns the array in an open file, mapped; ValueError if the size is another."""
  size, wanted = os.fstat(file).st_size, math.prod(shape) * dtype.itemsize
  if size != wanted:
    raise ValueError(f'a file has {size} bytes, not {wanted}')
  with open(file, 'rb', closefd=False) as whole:
    return np.memmap(whole, dtype, 'r', shape=shape)


def _blocks(examples: Any) -> Iterator[Any]:
  """Returns an iterator of blocks of examples; ValueError if there is none."""
  if isinstance(examples, tf.data.Dataset):
    return datasets.blocks(examples)
  if isinstance(examples, keras.utils.Sequence):
    return (data_sources.checked_example(examples[i]) for i in range(len(examples)))
  try:
    rest = iter(examples)  # Taken in blocks, until one is empty.
  except TypeError:
    raise ValueError('Expected examples to be a dataset or an iterable of pairs (x, y) '
                     f'or triples (x, y, weight), got {type(examples).__name__}.'
                    ) from None
  return map(data_sources.stacked, iter(
      lambda: list(itertools.islice(rest, _BLOCK)), []))
