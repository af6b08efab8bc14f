"""Data that batches draw examples from: arrays, datasets, random access sources."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator
from typing import Any, Callable
import zlib

import numpy as np
import tensorflow as tf

from tfcactus.keras.compat.versions import keras
from tfcactus.keras.data import datasets

Rows = tuple[Any, ...]
"""Inputs and targets, and weights if there are any: structures of arrays."""


class ExampleData(abc.ABC):
  """Abstract data that batches draw examples from."""

  num_examples: int  # Number of examples.
  specs: Rows  # `TensorSpec`s of a batch, in the structure that `rows` returns.
  side: Any = None  # The `Side` of a split that holds the examples; None for no split.

  @abc.abstractmethod
  def rows(self, index: np.ndarray) -> Rows:
    """Returns inputs, targets, and any weights, of the examples at `index`.

    Arrays have shape (index.size, ...). Targets are (), if there are none.
    """

  @property
  def flat(self) -> ExampleData:
    """Data with rows as examples if examples are units here, else the data itself."""
    return self

  def blocks(self, size: int) -> Iterator[Rows]:
    """Yields `rows` of all examples in order, up to `size` examples at a time."""
    for start in range(0, self.num_examples, size):
      yield self.rows(np.arange(start, min(start + size, self.num_examples)))

  def fingerprint(self) -> int:
    """Returns a checksum of which rows make up each unit; 0 if examples are rows."""
    return 0


class ArrayData(ExampleData):
  """Examples in memory. NumPy arrays of numbers, and tensors on a CPU, are not copied.

  The guarantee assumes that nobody writes to the arrays while batches are drawn.
  """

  def __init__(self, x: Any, y: Any, sample_weight: Any = None):
    """Initialises the data from arrays, or dicts, lists or tuples of arrays.

    All have shape (num_examples, ...). Arrays of `x` may hold texts. `y` is None if no
    loss takes targets. Raises ValueError unless all are arrays of one length above 0.
    """
    rows = _count(x, y)
    parts = [_arrays('x', columns(x), rows, texts=True),
             () if y is None else _arrays('y', y, rows)]
    if sample_weight is not None:
      parts.append(_arrays('sample_weight', sample_weight, rows))
    self._arrays = tuple(parts)
    lengths = [sorted({len(array) for array in tf.nest.flatten(part)})
               for part in self._arrays]
    known = set().union(*lengths)
    if not lengths[0] or len(known) != 1 or not min(known):
      names = ('examples in x', 'in y', 'in sample_weight')
      raise ValueError(
          'Expected x and y of the same length of at least one, got ' + ' and '.join(
              f'{" or ".join(map(str, part)) or 0} {name}'
              for name, part in zip(names, lengths)) + '.')
    self.num_examples = known.pop()
    self.specs = _specs(self.rows(np.zeros(1, np.int64)))

  def rows(self, index: np.ndarray) -> Rows:
    return each_array(lambda array: array[index], self._arrays)


class SparseRowData(ExampleData):
  """Rows of a SciPy sparse matrix, which become dense as they are drawn."""

  def __init__(self, x: Any, y: Any, sample_weight: Any = None):
    """Initialises the data, like `ArrayData`, from a matrix `x` of numbers."""
    if len(x.shape) != 2:
      raise ValueError(
          'Expected x to be an array or a sparse matrix of two dimensions, got shape '
          f'{tuple(x.shape)}; reshape it to one row for each example.')
    self._x = x.tocsr()
    self._others = ArrayData(np.arange(x.shape[0]), y, sample_weight)
    self.num_examples = self._others.num_examples
    self.specs = _specs(self.rows(np.zeros(1, np.int64)))

  def rows(self, index: np.ndarray) -> Rows:
    return (checked_array('x', self._x[index].toarray()), *self._others.rows(index)[1:])


class RandomAccessData(ExampleData):
  """Examples that are read when drawn, such as TFDS data sources.

  The source is Python code, which cannot be checked. The guarantee assumes that the
  example of an index depends on one record, constant over all steps, and on random
  draws that are secret, fresh and independent of the draws for other indices.
  """

  def __init__(self, source: Any):
    """Initialises the data; ValueError if the source is empty or its first example bad.

    The source has a length and gives (x, y) or (x, y, weight) for an index; its
    `__getitems__`, if any, reads many at once.
    """
    self._source, self.specs = source, ()
    self.num_examples = len(source)
    if not self.num_examples:
      raise ValueError('Expected at least one example, got a source of none.')
    self.specs = _specs(self.rows(np.zeros(1, np.int64)))

  def rows(self, index: np.ndarray) -> Rows:
    if not index.size:
      return zero_rows(self.specs)
    wanted, many = index.tolist(), getattr(self._source, '__getitems__', None)
    found = stacked(many(wanted) if many else [self._source[i] for i in wanted])
    if self.specs and len(found) != len(self.specs):  # A weight would be lost.
      raise ValueError(_UNLIKE)
    return found


def each_array(change: Callable[[np.ndarray], np.ndarray], parts: Any) -> Any:
  """Returns a structure with `change` of each array; `tf.nest` would be slower."""
  if isinstance(parts, np.ndarray):
    return change(parts)
  if type(parts) is tuple:  # pylint: disable=unidiomatic-typecheck
    return tuple(each_array(change, part) for part in parts)
  return tf.nest.map_structure(change, parts)


def zero_rows(specs: Rows, count: int = 0) -> Rows:
  """Returns rows of `count` examples of zeros, or of empty texts."""
  return tf.nest.map_structure(lambda spec: np.full(
      (count, *spec.shape[1:]), b'' if spec.dtype == tf.string else 0,
      spec.dtype.as_numpy_dtype), specs)


def checked_example(item: object) -> Rows:
  """Returns an example's parts as arrays; ValueError unless it is a pair or triple."""
  if not isinstance(item, (tuple, list)) or len(item) not in (2, 3):
    raise ValueError(
        'Expected a source that gives triples (x, y, weight) or pairs (x, y), got '
        f'{type(item).__name__}; wrap it in a class whose __getitem__ '
        'returns such a pair.')
  return tuple(_of_example(part) for part in item)


def stacked(examples: Iterable[Any]) -> Rows:
  """Stacks examples into rows; ValueError unless all are pairs, or all triples."""
  rows = [checked_example(each) for each in examples]
  if len(set(map(len, rows))) > 1:
    raise ValueError(_UNLIKE)
  # Inputs may be texts; targets and weights are numbers.
  return tuple(
      tf.nest.map_structure(
          lambda *values, texts=not place: checked_array(
              'the source', _as_array('the source', values), texts), *parts)
      for place, parts in enumerate(zip(*rows)))


def _as_array(name: str, value: object) -> np.ndarray:
  """Returns np.asarray(value); ValueError that says `name` for unequal shapes."""
  try:
    return np.asarray(value)
  except ValueError as error:
    raise ValueError(f'Expected {name} to hold examples of one shape, got others: '
                     f'{error}; pad them to one.') from None


_UNLIKE = (
    'Expected a source that gives pairs (x, y) for all examples, or triples (x, y, '
    'weight) for all, got some of each; give examples without a weight the weight 1.')


def open_data(x: Any, y: Any, sample_weight: Any = None) -> ExampleData:
  """Returns the examples as `ExampleData`; an `ExampleData` is returned unchanged.

  Arguments are as for `PoissonBatches`. Raises ValueError if no examples can be drawn
  from them, or if `y` or weights are given beside a source that holds them.
  """
  if is_sparse(x):
    return SparseRowData(x, y, sample_weight)
  if isinstance(x, keras.utils.Sequence):
    raise ValueError(
        f'Expected examples to draw from, got {type(x).__name__}, a Sequence of Keras, '
        'which gives batches that somebody else chose; pass its arrays, or a class '
        'with __len__ and __getitem__ that gives the pair (x, y) of one example.')
  # An object with a length and items is a source, unless NumPy knows it as an array.
  if not isinstance(x, (ExampleData, tf.data.Dataset)) and (
      isinstance(x, (np.ndarray, tf.Tensor, list, tuple, dict, str, bytes)) or not (
          hasattr(x, '__len__') and hasattr(x, '__getitem__')) or
      hasattr(x, '__array__')):
    return ArrayData(x, y, sample_weight)
  for each in (y, sample_weight):
    if each is not None:
      raise ValueError(
          'Expected y=None with a dataset, and no sample_weight: its elements are '
          f'pairs (x, y) or (x, y, weight); got {type(each).__name__}.')
  if isinstance(x, ExampleData):
    return x
  return ArrayData(*datasets.read(x)) if isinstance(x, tf.data.Dataset) else (
      RandomAccessData(x))


def check_weights(data: ExampleData) -> None:
  """Raises ValueError if weights fit neither examples nor the parts of targets."""
  if len(data.specs) < 3:
    return
  _, y, weights = data.specs
  named = weights if isinstance(weights, dict) else {'': weights}
  for name, given in named.items():
    targets = y[name] if isinstance(y, dict) and name in y else y
    found, targets = tf.nest.flatten(given), tf.nest.flatten(targets) or [None]
    if len(found) == 1:
      found *= len(targets)
    if len(found) != len(targets):
      continue  # `fit` checks these: it knows the outputs.
    for weight, target in zip(found, targets):
      sizes, count = list(weight.shape[1:]), data.num_examples
      while sizes and sizes[-1] == 1:
        del sizes[-1]
      parts = [] if target is None else list(target.shape[1:])
      if len(sizes) > len(parts) or any(
          size not in (1, part) for size, part in zip(sizes, parts)):
        have = 'there are no targets' if target is None else (
            f'targets have shape {(count, *parts)}')
        raise ValueError(
            f'Expected sample_weight of shape {(count,)}, one number for each example, '
            'or of the shape of targets that have a loss for each of their parts, such '
            f'as (examples, tokens), got {(count, *weight.shape[1:])}: {have}.')


def targets_or_none(y: Any) -> Any:
  """Returns targets as losses take them: None for (), which stands for no targets."""
  return None if isinstance(y, tuple) and not y else y


def finite_rows(parts: Any) -> np.ndarray:
  """Returns which examples hold neither NaN nor infinity, bool, shape (rows,)."""
  return np.logical_and.reduce([
      np.ones(len(array), bool) if _holds_texts(array) else
      np.all(np.isfinite(array), axis=tuple(range(1, array.ndim)))
      for array in tf.nest.flatten(parts)])


def padded(rows: np.ndarray, size: int) -> np.ndarray:
  """Returns `rows` followed by rows of zeros, or of empty texts; `size` rows in all."""
  if len(rows) == size:
    return rows
  padding = np.full((size - len(rows),) + rows.shape[1:],
                    b'' if _holds_texts(rows) else 0, rows.dtype)
  return np.concatenate([rows, padding])


def as_fed(x: Any) -> Any:
  """Returns inputs with arrays of texts as tensors, which Keras 3 needs."""
  return tf.nest.map_structure(
      lambda part: tf.constant(checked_array('x', part, texts=True)) if isinstance(
          part, np.ndarray) and part.dtype.kind in 'SUOT' else part, x)


def content(array: np.ndarray) -> bytes:
  """Returns bytes that determine the entries of an array of numbers or texts."""
  if not _holds_texts(array):
    return np.ascontiguousarray(array).tobytes()
  return b''.join(b'%d:%b' % (len(text), text) for text in array.flat)


def checksum(data: ExampleData) -> int:
  """Returns a CRC-32 of up to 256 rows, for speed, and of which rows units have."""
  flat = data.flat
  rows = flat.rows(np.unique(np.linspace(
      0, flat.num_examples - 1, 256).astype(np.int64)))
  return zlib.crc32(b''.join(map(content, tf.nest.flatten(rows))), data.fingerprint())


def columns(x: Any) -> Any:
  """Returns inputs with columns of pandas as arrays of shape (n, 1), as in Keras."""
  if isinstance(x, dict):
    return {key: columns(part) for key, part in x.items()}
  if hasattr(x, 'to_numpy') and hasattr(x, 'columns'):
    parts = {str(name): np.asarray(x[name]) for name in x.columns}
    # The answers, for all columns, to whether a column may hold texts.
    texts = {part.dtype.kind in 'SUT' or part.dtype.kind == 'O' and any(
        isinstance(each, (str, bytes)) or _is_missing(each) for each in part.flat)
             for part in parts.values()}
    # A table of texts beside numbers becomes a dict of columns: no array holds both.
    return {name: part[:, None] for name, part in parts.items()} if (
        len(texts) > 1) else x
  if hasattr(x, 'to_numpy') and hasattr(x, 'index') and np.ndim(x) == 1:
    return np.asarray(x)[:, None]
  return x


def is_array(value: object) -> bool:
  """Returns whether `value` is an array or tensor of at least one dimension."""
  return isinstance(value, (np.ndarray, tf.Tensor)) and len(value.shape) > 0


def is_sparse(value: object) -> bool:
  """Returns whether `value` is a sparse matrix of SciPy."""
  return hasattr(value, 'tocsr') and hasattr(value, 'toarray')


def _count(x: Any, y: Any) -> int:
  """Returns the number of examples, or 0 if lists of arrays leave it open."""
  # The length of y or x, if either is no list of arrays, else that of all arrays in it.
  lists = []
  for value in (y, x):
    while isinstance(value, dict):
      value = next(iter(value.values()), ())
    if isinstance(value, (list, tuple)) and any(
        isinstance(each, dict) or is_array(each) for each in value):
      lists.append(value)
    elif hasattr(value, '__len__') and getattr(value, 'shape', None) != ():
      return len(value)
  sizes = {len(each) if is_array(each) else 0 for each in (lists[0] if lists else ())}
  # n arrays of length n may be one for each input or one for each example.
  return sizes.pop() if len(sizes) == 1 and len(lists[0]) not in sizes else 0


def _arrays(name: str, value: Any, rows: int, texts: bool = False) -> Any:
  """Returns checked arrays in their structure; lists of arrays become tuples.

  A list of arrays has one for each of `rows` examples if it has as many, else one for
  each input. Raises ValueError if it may be either, or as `checked_array`.
  """
  if isinstance(value, dict):
    return {key: _arrays(f'{name}[{key!r}]', part, rows, texts)
            for key, part in value.items()}
  if not isinstance(value, (list, tuple)) or not value:
    return checked_array(name, value, texts)
  if all(map(is_array, value)):
    sizes = {len(part) for part in value}
    if len(value) > 1 and sizes == {len(value)}:
      raise ValueError(
          f'Expected {name} to be one array or a dict of arrays, got a list of '
          f'{len(value)} arrays of length {len(value)}, which may be either an '
          'array for each example or one for each input; use np.stack or a dict.')
    if len(value) == rows and sizes != {rows}:
      return checked_array(name, _as_array(name, [*map(np.asarray, value)]), texts)
  elif not any(isinstance(part, dict) or is_array(part) for part in value):
    return checked_array(name, value, texts)
  return tuple(_arrays(f'{name}[{i}]', part, rows, texts)
               for i, part in enumerate(value))


def _of_example(part: Any) -> Any:
  """Returns the inputs, targets or weight of one example as arrays."""
  if isinstance(part, dict):
    return {key: _of_example(value) for key, value in part.items()}
  if isinstance(part, (list, tuple)) and part and all(
      isinstance(value, (np.ndarray, tf.Tensor, dict)) for value in part):
    return tuple(_of_example(value) for value in part)
  return np.asarray(part)


def checked_array(name: str, value: object, texts: bool = False) -> np.ndarray:
  """Returns `value` as an array of numbers of rank >= 1; ValueError if it is none.

  With `texts` it may also hold texts, returned as an array of bytes objects (UTF-8):
  TensorFlow fails on other letters than ASCII in NumPy's arrays of texts.
  """
  if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
    raise ValueError(
        f'Expected {name} to be a dense array, got {type(value).__name__}; make it '
        'dense before, padded to one length: to_tensor(), tf.sparse.to_dense().')
  array = _as_array(name, value)
  if not array.ndim or array.dtype.kind not in 'fiubSUOT':
    raise ValueError(
        f'Expected {name} to be an array of numbers with examples along its first '
        f'axis, got {type(value).__name__} of shape {array.shape} and dtype '
        f'{array.dtype}{"" if array.ndim else "; store_examples takes a generator"}.')
  if array.dtype.kind in 'SUOT':
    # NumPy turns a list of texts and NaN into texts with a word 'nan'.
    array = _objects(name, np.array(value, object) if isinstance(
        value, (list, tuple)) else array.astype(object, copy=False))
    if _holds_texts(array) and not texts:
      raise ValueError(
          f'Expected {name} to be an array of numbers, got texts: only inputs may be '
          'texts. Turn labels into their places in a list of classes that is public.')
  return array


def _holds_texts(array: np.ndarray) -> bool:
  """Returns whether a checked array holds texts, which are objects."""
  return array.dtype.kind == 'O'


def _is_missing(value: object) -> bool:
  """Returns whether a value is missing: None, a float NaN, or pandas' NA or NaT."""
  return value is None or type(value).__name__ in ('NAType', 'NaTType') or (
      isinstance(value, float) and value != value)


def _objects(name: str, array: np.ndarray) -> np.ndarray:
  """Returns objects, all texts or all numbers, as bytes or numbers; else ValueError."""
  flat = array.reshape(-1).tolist()
  texts = sum(isinstance(each, (str, bytes)) for each in flat)
  if texts == len(flat):
    made = np.empty(len(flat), object)
    made[:] = [each.encode() if isinstance(each, str) else each for each in flat]
    return made.reshape(array.shape)
  if all(isinstance(each, (int, float, np.number, np.bool_)) for each in flat) and (
      (numbers := np.array(flat)).dtype.kind != 'O'):  # Integers beyond 64 bits.
    return numbers.reshape(array.shape)
  missing = sum(map(_is_missing, flat))
  if missing:
    raise ValueError(
        f'Expected {name} without missing values, got {missing} of {len(flat)} that '
        'are None, NaN or NA; give them a value of their own, such as the empty text: '
        "column.fillna('').")
  kinds = sorted({type(each).__name__ for each in flat})
  raise ValueError(
      f'Expected {name} to be an array of numbers, or inputs that are all texts, got '
      f'objects ({", ".join(kinds[:4])}); give each kind an array of its own, in a '
      'dict by the names of the inputs, such as dict(frame).')


def _specs(rows: Iterable[Any]) -> Rows:
  """Returns `TensorSpec`s of rows like these, but of any number of examples."""
  return tuple(tf.nest.map_structure(
      lambda part: tf.TensorSpec((None,) + part.shape[1:], part.dtype), part)
               for part in rows)
