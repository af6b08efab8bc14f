"""Examples in TFRecord files, read as they are drawn."""

from __future__ import annotations

import array
from collections.abc import Sequence
from concurrent import futures
import hashlib
import os
from typing import Any, Callable
import zlib

import numpy as np
import tensorflow as tf
from tensorflow.python.lib.io import tf_record

from tfcactus import _checks
from tfcactus.keras.checks import state_writes
from tfcactus.keras.compat import patches
from tfcactus.keras.data import data_sources, open_files
from tfcactus.keras.noise import random_bits
from tfcactus.noise.table_file import PathLike
from tfcactus.randomness import KeyStream

_HEADER, _FOOTER = 12, 4
"""Bytes before a record (length and checksum), and after it (checksum)."""


class TFRecordExamples(data_sources.ExampleData):
  """Examples in TFRecord files, for data that do not fit into memory.

  A batch of a sampling scheme takes examples from all files. Memory holds the position
  and checksum of each record, 24 bytes; a draw reads the records drawn.

      examples = TFRecordExamples(files, parse)
      batches = AllocatedBatches(examples, batch_size=256)

  An example is the same in all steps, except for random draws of `parse`. Each draw
  compares the size and modification time of each file, and the CRC-32 of each record
  drawn; a change that keeps all three is not noticed. A deleted or replaced file is
  read in its state at opening.

  Attributes:
    num_examples: Number of records, equal ones included.
    files: Paths of the files.
  """

  def __init__(self, files: PathLike | Sequence[PathLike],
               parse: Callable[[Any], tuple[Any, ...]]):
    """Reads all files once, to find and verify the records.

    Args:
      files: Paths of TFRecord files, not compressed.
      parse: Returns the pair (x, y), or (x, y, weight), of one serialized record, a
        string tensor of shape (), as for `tf.data.TFRecordDataset(files).map(parse)`:
        tensors of numbers, or texts in x, of equal shapes for all records. It may draw
        at random by `tf.random.uniform`, `normal`, `truncated_normal` and functions
        built on them, such as `tf.image.random_crop`: anew for each batch, under secret
        keys, whatever the seeds. The result must depend on the record and these draws
        alone: no variables, Python code or files.

    Raises:
      ValueError: if there are no records, a file is not TFRecord or damaged, two files
        are the same, or `parse` returns no pairs of numbers of a known shape or depends
        on more than the record.
      OSError: if a file cannot be read.
    """
    _checks.function('parse', parse, 'give a function of a record')
    listed = [files] if isinstance(files, (str, os.PathLike)) else _checks.items(
        'files', files, 'paths')
    self.files = tuple(_checks.path('files', path) for path in listed)
    self._open = open_files.OpenFiles(self.files)
    self._keys = KeyStream()
    self._parse = _each(parse)
    self.specs = self._checked_specs()
    with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
      sizes, sums = zip(*pool.map(_records, self.files)) if self.files else ((), ())
    self._open.check_unchanged()
    counts = [len(each) for each in sizes]
    self.num_examples = sum(counts)
    if not self.num_examples:
      raise ValueError(
          f'Expected at least one record, got {len(self.files)} files with none.')
    self._check_distinct(sizes, sums)
    self._file = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    # Where the data of each record begin in its file, after its header.
    self._start = np.concatenate([
        np.cumsum(each + (_HEADER + _FOOTER)) - each - _FOOTER for each in sizes])
    self._size, self._sums = np.concatenate(sizes), np.concatenate(sums)

  def rows(self, index: np.ndarray) -> data_sources.Rows:
    """Returns `ExampleData.rows`; ValueError if a file has changed since opening."""
    if not index.size:
      return data_sources.zero_rows(self.specs)
    keys = self._keys.words(2 * index.size).view(np.int64).reshape(-1, 2)
    found = self._parse(tf.constant(self._read(index)), tf.constant(keys))
    return tf.nest.map_structure(lambda part: part.numpy(), found)

  def _read(self, index: np.ndarray) -> list[bytes]:
    """Returns the records in the order of `index`; ValueError if a file has changed."""
    found: list[bytes] = [b''] * index.size
    for place in np.lexsort((self._start[index], self._file[index])):
      which = index[place]
      file = self._file[which]
      data = os.pread(self._open.descriptors[file], int(self._size[which]),
                      int(self._start[which]))
      if zlib.crc32(data) != self._sums[which]:
        raise open_files.changed(self.files[file], f'example {which} is another')
      found[place] = data
    self._open.check_unchanged()
    return found

  def _check_distinct(self, sizes: Sequence[np.ndarray], sums: Sequence[np.ndarray]
                     ) -> None:
    """Raises ValueError if two files hold records of the same sizes and checksums."""
    found: dict = {}
    for path, *each in zip(self.files, sizes, sums):
      key = hashlib.sha256(b''.join(part.tobytes() for part in each)).digest()
      other = found.setdefault(key, path)
      if len(each[0]) and other is not path:
        raise ValueError(
            f'Expected files that differ, got {other!r} and {path!r}, which hold the '
            'same records: one person would be two examples. Leave out one; if the '
            'records are of different people, write them to one file.')

  def _checked_specs(self) -> data_sources.Rows:
    """Returns the `TensorSpec`s of parsed examples; ValueError if they do not fit."""
    specs = self._parse.structured_outputs
    if not isinstance(specs, tuple) or len(specs) not in (2, 3) or not all(
        part.shape.rank and part.shape[1:].is_fully_defined() and (
            part.dtype.is_floating or part.dtype.is_integer or part.dtype.is_bool or
            place == 0 and part.dtype == tf.string)
        for place, each in enumerate(specs) for part in tf.nest.flatten(each)):
      raise ValueError(
          'Expected parse to return a pair (x, y) or triple (x, y, weight) of tensors '
          f'of numbers of known shapes, got {specs}; set shapes by tf.ensure_shape, '
          'and decode strings, which only inputs x may be.')
    return tf.nest.map_structure(
        lambda part: tf.TensorSpec((None,) + tuple(part.shape[1:]), part.dtype), specs)

  def __repr__(self) -> str:
    return f'<TFRecordExamples: {self.num_examples:,} in {len(self.files)} files>'


def _each(parse: Callable[[Any], Any]) -> Any:
  """Returns a function that parses n records, each by its int64 seed, shape (n, 2).

  Raises ValueError if `parse` depends on more than the record and its draws.
  """
  def with_seed(record: tf.Tensor, seed: tf.Tensor) -> Any:
    """Parses one record, with draws from `seed`, int64 of shape (2,)."""
    with patches.drawing(None, random_bits.counting(seed)):
      return tf.function(parse)(record)

  one = tf.function(with_seed, autograph=False, input_signature=[
      tf.TensorSpec((), tf.string), tf.TensorSpec((2,), tf.int64)]
                   ).get_concrete_function()
  try:  # A stateless draw from a known seed is a constant, which is allowed.
    state_writes.check_graph(one.graph, 'parse functions', None)
  except ValueError as error:
    raise ValueError(
        'Expected a parse whose outputs depend on the record alone, got one that '
        f'draws, keeps or reads something else. {error}') from None
  specs = tf.nest.map_structure(
      lambda part: tf.TensorSpec(part.shape, part.dtype), one.structured_outputs)

  def many(records: tf.Tensor, seeds: tf.Tensor) -> Any:
    """Parses each record alone, so that none can depend on another."""
    return tf.map_fn(lambda each: one(*each), (records, seeds),
                     fn_output_signature=specs)

  with tf.device('CPU'):
    return tf.function(many, autograph=False, input_signature=[
        tf.TensorSpec((None,), tf.string), tf.TensorSpec((None, 2), tf.int64)]
                      ).get_concrete_function()


def _records(path: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns sizes and CRC-32 of a file's records; ValueError if one is damaged."""
  sizes, sums, place = array.array('q'), array.array('I'), 0
  total, reader = os.path.getsize(path), tf_record.tf_record_random_reader(path)
  while place < total:
    try:
      record, place = reader.read(place)
    except (IndexError, tf.errors.OpError) as error:
      raise _damaged(path, len(sizes), error) from error
    sizes.append(len(record))
    sums.append(zlib.crc32(record))
  return np.array(sizes, np.int64), np.array(sums, np.uint32)


def _damaged(path: str, record: int, error: Exception) -> ValueError:
  """Returns the error for a file whose record of index `record` cannot be read."""
  with open(path, 'rb') as file:
    if not record and file.read(2) == b'\x1f\x8b':
      return ValueError(
          f'Expected TFRecords without compression, got {path!r}, which is gzipped: '
          'its records cannot be read one by one; write it anew, uncompressed.')
  return ValueError(
      f'Expected TFRecords, got {path!r}, of which record {record} is damaged or cut '
      f'off, or which is no file of TFRecords: {error}. Write it anew.')
