"""Examples that batches are drawn from: arrays, datasets, random access."""

from __future__ import annotations

import abc
from typing import Any
from typing import Iterable
from typing import List
from typing import Tuple

import numpy as np
import tensorflow as tf

_Rows = Tuple[np.ndarray, np.ndarray]

_BLOCK = 4096
"""Examples of a dataset to read at a time."""


class ExampleData(abc.ABC):
  """Examples that batches are drawn from.

  Attributes:
    num_examples: How many there are.
    specs: A `TensorSpec` of batches of inputs, and one of targets.
  """

  num_examples: int
  specs: Tuple[tf.TensorSpec, ...]

  @abc.abstractmethod
  def rows(self, index: np.ndarray) -> _Rows:
    """Returns inputs and targets of the given examples."""


class ArrayData(ExampleData):
  """Examples in memory. NumPy arrays and tensors on a CPU are not copied."""

  def __init__(self, x: Any, y: Any):
    """Initialises the data.

    Args:
      x: Array or tensor, shape (num_examples, ...).
      y: Array or tensor, shape (num_examples, ...).

    Raises:
      ValueError: if they are not arrays of numbers of the same length.
    """
    self._arrays = _array('x', x), _array('y', y)
    lengths = [len(array) for array in self._arrays]
    if lengths[0] != lengths[1] or not lengths[0]:
      raise ValueError(
          'Expected x and y of the same length of at least one, got '
          f'{lengths[0]} examples in x and {lengths[1]} in y.')
    self.num_examples = lengths[0]
    self.specs = _specs(array[:1] for array in self._arrays)

  def rows(self, index: np.ndarray) -> _Rows:
    """Returns inputs and targets of the given examples."""
    x, y = self._arrays
    return x[index], y[index]


class RandomAccessData(ExampleData):
  """Examples that are read when they are drawn, such as TFDS data sources."""

  def __init__(self, source: Any):
    """Initialises the data; as `ArrayData`.

    Args:
      source: Has a length and gives the pair (x, y) of an index; read many at a
        time by `__getitems__` where it has that.

    Raises:
      ValueError: if it is empty or gives no pairs of numbers.
    """
    self._source = source
    self.num_examples = len(source)
    if not self.num_examples:
      raise ValueError('Expected at least one example, got a source of none.')
    self.specs = _specs(self.rows(np.zeros(1, np.int64)))

  def rows(self, index: np.ndarray) -> _Rows:
    """Returns inputs and targets of the given examples."""
    if not index.size:
      x, y = (np.zeros((0,) + tuple(spec.shape[1:]), spec.dtype.as_numpy_dtype)
              for spec in self.specs)
      return x, y
    wanted = [int(i) for i in index]
    many = getattr(self._source, '__getitems__', None)
    items = many(wanted) if many else [self._source[i] for i in wanted]
    for item in items:
      if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise ValueError(
            'Expected a source that gives pairs (x, y), got '
            f'{type(item).__name__}; wrap it in a class whose __getitem__ '
            'returns such a pair.')
    x, y = (np.stack([np.asarray(part) for part in parts])
            for parts in zip(*items))
    return _array('x', x), _array('y', y)


def open_data(x: Any, y: Any) -> ExampleData:
  """Returns the examples as data to draw from; what is such already, as it is.

  Args:
    x: Array or tensor of inputs; or, where `y` is None, a `tf.data.Dataset` or
      a random access source of pairs (x, y), one for each example.
    y: Array or tensor of targets, or None.

  Raises:
    ValueError: if they are nothing to draw examples from.
  """
  if isinstance(x, ExampleData):
    return x
  if isinstance(x, tf.data.Dataset):
    _no_targets(y)
    return ArrayData(*_read(x))
  if not isinstance(x, (np.ndarray, tf.Tensor, list, tuple)) and (
      hasattr(x, '__len__') and hasattr(x, '__getitem__') and
      not hasattr(x, '__array__')):
    _no_targets(y)
    return RandomAccessData(x)
  return ArrayData(x, y)


def _no_targets(y: Any) -> None:
  if y is not None:
    raise ValueError(
        'Expected y=None with a dataset, whose elements are pairs (x, y), got '
        f'{type(y).__name__}.')


def _read(dataset: tf.data.Dataset) -> List[np.ndarray]:
  """Reads a dataset of pairs, once, into one array for each part.

  What the dataset itself shuffles or augments is thereby settled.
  """
  spec = dataset.element_spec
  if not isinstance(spec, tuple) or len(spec) != 2 or not all(
      isinstance(part, tf.TensorSpec) and part.shape.is_fully_defined()
      for part in spec):
    raise ValueError(
        'Expected a dataset whose elements are pairs (x, y) of known shape, '
        f'one for each example, got {spec}; use tfds.load(as_supervised=True), '
        'and unbatch() one of batches.')
  count = int(dataset.cardinality())
  if count == tf.data.INFINITE_CARDINALITY:
    raise ValueError(
        'Expected a dataset that ends, got an infinite one; leave out '
        'repeat(): batches are drawn as often as they are asked for.')
  blocks = dataset.batch(_BLOCK).as_numpy_iterator()
  if count < 0:
    parts = list(zip(*blocks)) or [
        (np.zeros((0,) + tuple(part.shape)),) for part in spec]
    return [np.concatenate(part) for part in parts]
  arrays = [np.empty([count] + part.shape, part.dtype.as_numpy_dtype)
            for part in spec]
  done = 0
  for block in blocks:
    size = len(block[0])
    for array, part in zip(arrays, block):
      array[done:done + size] = part
    done += size
  return [array[:done] for array in arrays]


def finite_rows(array: np.ndarray) -> np.ndarray:
  """Which examples hold neither NaN nor infinity, shape (rows,)."""
  return np.all(np.isfinite(array), axis=tuple(range(1, array.ndim)))


def _array(name: str, value: object) -> np.ndarray:
  array = np.asarray(value)
  if array.ndim == 0 or array.dtype.kind not in 'fiub':
    raise ValueError(
        f'Expected {name} to be an array of numbers with examples along its '
        f'first axis, got shape {array.shape} and dtype {array.dtype}.')
  return array


def _specs(rows: Iterable[np.ndarray]) -> Tuple[tf.TensorSpec, ...]:
  return tuple(tf.TensorSpec((None,) + part.shape[1:], part.dtype)
               for part in rows)
