"""Examples in TFRecord files, read as they are drawn."""

from __future__ import annotations

import os
import struct
import threading
from typing import Any
from typing import Callable
from typing import List
from typing import Sequence
from typing import Tuple
from typing import Union

import numpy as np
import tensorflow as tf

from tfcactus.keras import data_sources
from tfcactus.noise.table_file import PathLike

_HEADER = struct.Struct('<QI')
"""Length of a record and its checksum; after the record there are four bytes more."""

_BLOCK = 1 << 20
"""Bytes of a file that are read at a time where records are small."""


class TFRecordExamples(data_sources.ExampleData):
  """Examples in TFRecord files, for data that do not fit into memory.

  A batch of a sampling scheme takes examples from all files: what is kept in memory
  is where each record lies, 20 bytes, and what is read are those drawn. (To draw
  only among records that lie close, such as file by file, is another mechanism, for
  which no amplification is known; it is not offered.)

      examples = TFRecordExamples(files, parse)
      batches = AllocatedBatches(examples, batch_size=256)

  Attributes:
    num_examples: How many records there are.
    files: Their paths.
  """

  _open: Tuple[int, ...] = ()

  def __init__(self, files: Union[PathLike, Sequence[PathLike]],
               parse: Callable[[Any], Tuple[Any, ...]]):
    """Finds the records.

    Args:
      files: Paths of TFRecord files, not compressed.
      parse: Returns the pair (x, y), or (x, y, weight), of one serialized record, a
        string tensor of shape (): tensors of numbers, their shapes the same for all.
        As for `tf.data.TFRecordDataset(files).map(parse)`; what it draws at random,
        as to augment an image, is drawn whenever the example is.

    Raises:
      ValueError: if there are no records, a file is none of TFRecords, or `parse`
        returns no pairs of numbers of a known shape.
      OSError: if a file cannot be read.
    """
    listed = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    self.files = tuple(os.fspath(path) for path in listed)
    places = [_records(path) for path in self.files]
    sizes = [len(start) for start, _ in places]
    self.num_examples = sum(sizes)
    if not self.num_examples:
      raise ValueError(
          f'Expected at least one record, got {len(self.files)} files with none.')
    self._file = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    self._start, self._size = (np.concatenate(part) for part in zip(*places))
    self._lock = threading.Lock()
    self._parse = _each(parse)
    self.specs = self._checked_specs()

  def rows(self, index: np.ndarray) -> data_sources.Rows:
    """Returns inputs, targets, and weights if there are any, of given examples."""
    if not index.size:
      return data_sources.no_rows(self.specs)
    return tf.nest.map_structure(
        lambda part: part.numpy(), self._parse(tf.constant(self._read(index))))

  def _read(self, index: np.ndarray) -> List[bytes]:
    """The records, in the order of `index`; read in that of the files."""
    found: List[bytes] = [b''] * index.size
    with self._lock:
      if not self._open:
        self._open = tuple(os.open(path, os.O_RDONLY) for path in self.files)
    for place in np.lexsort((self._start[index], self._file[index])):
      which = index[place]
      size = int(self._size[which])
      data = os.pread(self._open[self._file[which]], size, int(self._start[which]))
      if len(data) != size:
        raise ValueError(
            f'Expected {size} bytes of example {which} in '
            f'{self.files[self._file[which]]!r}, got {len(data)}: the file has '
            'changed since it was opened.')
      found[place] = data
    return found

  def _checked_specs(self) -> data_sources.Rows:
    specs = self._parse.structured_outputs
    if not isinstance(specs, tuple) or len(specs) not in (2, 3) or not all(
        part.shape.rank and part.shape[1:].is_fully_defined() and
        (part.dtype.is_floating or part.dtype.is_integer or part.dtype.is_bool)
        for part in tf.nest.flatten(specs)):
      raise ValueError(
          'Expected parse to return a pair (x, y) or triple (x, y, weight) of tensors '
          f'of numbers of known shapes, got {specs}; set shapes by tf.ensure_shape, '
          'and decode strings.')
    return tf.nest.map_structure(
        lambda part: tf.TensorSpec((None,) + tuple(part.shape[1:]), part.dtype), specs)

  def __repr__(self) -> str:
    return f'<TFRecordExamples: {self.num_examples:,} in {len(self.files)} files>'

  def __del__(self) -> None:
    for file in self._open:
      os.close(file)


def _each(parse: Callable[[Any], Any]) -> Any:
  """A function of many records, each of which is parsed by itself."""
  record = tf.TensorSpec((), tf.string)
  one = tf.function(parse, input_signature=[record]).get_concrete_function()
  specs = tf.nest.map_structure(
      lambda part: tf.TensorSpec(part.shape, part.dtype), one.structured_outputs)

  def many(records: Any) -> Any:
    return tf.map_fn(one, records, fn_output_signature=specs)

  with tf.device('CPU'):
    return tf.function(
        many, input_signature=[tf.TensorSpec((None,), tf.string)]
    ).get_concrete_function()


def _records(path: str) -> Tuple[np.ndarray, np.ndarray]:
  """Where the records of a file begin, and their sizes."""
  starts: List[int] = []
  sizes: List[int] = []
  total = os.path.getsize(path)
  with open(path, 'rb', buffering=_BLOCK) as file:
    if file.read(2) == b'\x1f\x8b':
      raise ValueError(
          f'Expected TFRecords without compression, got {path!r}, which is gzipped: '
          'its records cannot be read one by one; write it anew, uncompressed.')
    place = file.seek(0)
    while place < total:
      header = file.read(_HEADER.size)
      size = _HEADER.unpack(header)[0] if len(header) == _HEADER.size else total
      place += _HEADER.size
      if place + size + 4 > total:
        raise ValueError(
            f'Expected TFRecords, got {path!r}, which ends within record '
            f'{len(starts)}: it is cut off, or no file of TFRecords.')
      starts.append(place)
      sizes.append(size)
      place += size + 4
      file.seek(size + 4, os.SEEK_CUR)
  return np.array(starts, np.int64), np.array(sizes, np.int64)
