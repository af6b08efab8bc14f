"""Random arguments for single operations, of which some hold the examples of a batch.

A shape here is a list of sizes, with `ROWS` where the examples may be. An integer that
is computed from the number of examples is a pair (c, k), for c B^k of B examples.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
import functools
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tfcactus.keras.independence import dependence, operations
from tfcactus.keras.independence.dependence import Dependence, Value

ROWS = -1
EXAMPLES = 8  # As many examples have data.
_DTYPES = (tf.float32, tf.float32, tf.float32, tf.int32, tf.bool, tf.string,
           tf.complex64, tf.uint8, tf.int64, tf.float64)


class Tensor(NamedTuple):
  """An argument that the graph does not show, with its array for a list of examples.

  `made` computes it from the number of examples; if None, it is an input of the graph.
  """

  array: Callable[[Sequence[int]], np.ndarray]
  value: Value
  shape: Sequence[int | None] | None
  made: Callable[[tf.Tensor], tf.Tensor] | None = None


def arranged(parts: np.ndarray, axis: int, block: int) -> np.ndarray:
  """Puts parts (examples, |block|, ...) on one axis; block < 0 repeats the batch."""
  parts = parts if block > 0 else np.moveaxis(parts, 1, 0)
  return np.moveaxis(
      parts.reshape((len(parts) * parts.shape[1], *parts.shape[2:])), 0, axis)


def taken_apart(array: np.ndarray, axis: int, block: int) -> np.ndarray:
  """Returns parts (examples, |block|, ...) of an array that `arranged` returns."""
  rows = np.moveaxis(array, axis, 0)
  number = len(rows) // abs(block)
  shape = (number, block) if block > 0 else (-block, number)
  rows = rows.reshape((*shape, *rows.shape[1:]))
  return rows if block > 0 else np.moveaxis(rows, 1, 0)


class Case:
  """Random choices for one operation; `fixed` if the graph knows the batch size."""

  def __init__(self, name: str, rng: np.random.Generator):
    self.rng, self.op_def = rng, op_def_registry.get(name)
    self.batch = self.pick(1, 2, 2, 3, 4)
    self.block = self.pick(1, 1, 1, 1, 2, 3, -1, -2)
    self.kind = self.pick(*['rows'] * 7, 'constants', 'constants', 'sizes')
    self.fixed = self.coin(.4) and self.kind != 'sizes'
    self.loose = self.pick(0, 0, .1, .4)  # Part of sizes that the graph does not know.
    self.rows = self.batch * abs(self.block)
    self.types = {attr.name: self._type(attr) for attr in self.op_def.attr
                  if attr.type == 'type'}

  def coin(self, probability: float = .5) -> bool:
    """Returns True with this probability."""
    return bool(self.rng.random() < probability)

  def pick(self, *choices: Any) -> Any:
    """Returns one of the choices."""
    return choices[self.rng.integers(len(choices))]

  def whole(self, low: int, high: int) -> int:
    """Returns an integer from low to high."""
    return int(self.rng.integers(low, high + 1))

  def _type(self, attr: Any) -> tf.DType:
    allowed = [tf.as_dtype(each) for each in attr.allowed_values.list.type]
    if self.kind == 'sizes' and (not allowed or tf.int32 in allowed):
      return tf.int32
    usual = [each for each in _DTYPES if not allowed or each in allowed]
    return self.pick(*usual) if usual else allowed[0]

  def dtype(self, i: int) -> tf.DType:
    """Returns the type of input i."""
    arg = self.op_def.input_arg[i]
    if arg.type_list_attr:
      return tf.float32
    return self.types[arg.type_attr] if arg.type_attr else tf.as_dtype(arg.type)

  def size(self) -> int:
    """Returns a size of an axis."""
    return 0 if self.coin(.02) else self.pick(1, 1, 2, 2, 3, 4, self.batch, self.rows)

  def shape(self, low: int = 1, high: int = 4) -> list[int]:
    """Returns a shape of `low` to `high` axes; the examples are mostly on the first."""
    sizes = [self.size() for _ in range(self.whole(low, high))]
    if sizes:
      sizes[0 if self.coin() else self.whole(0, len(sizes) - 1)] = ROWS
    return sizes

  def unlike(self, shape: list[int]) -> list[int]:
    """Returns a shape like another, of as many entries, broadcast to it, or any."""
    how = self.rng.random()
    if how < .4:
      return shape
    if how < .55:
      return shape[self.whole(0, len(shape)):]
    if how < .7:
      return [1 if self.coin(.4) else size for size in shape]
    others = [int(size) for size in self.rng.permutation(
        [size for size in shape if size != ROWS])]
    if how < .85:
      return [ROWS if size == ROWS else others.pop() for size in shape]
    if how < .9:
      return [int(size) for size in self.rng.permutation(shape)]
    if how < .95:
      return [1] * self.whole(0, 2) + shape
    return self.shape(0)

  def data(self, shape: Sequence[int], dtype: tf.DType, high: int = 0) -> np.ndarray:
    """Returns random entries; integers from 0 to high - 1 if high is given."""
    shape = tuple(shape)
    if dtype == tf.string:
      words = ['a', 'Bc', ' d '] * (self.op_def.name != 'StringToNumber')
      return self.rng.choice(np.asarray(['1', '23', '456', *words]), shape)
    if dtype == tf.bool:
      return self.rng.random(shape) < .5
    if dtype.is_integer:
      return np.asarray(self.rng.integers(0 if high else 1, high or 30, shape)).astype(
          dtype.as_numpy_dtype)
    found = np.asarray(self.rng.normal(size=shape))
    if dtype.is_complex:
      found = found + 1j * self.rng.normal(size=shape)
    return found.astype(dtype.as_numpy_dtype)

  def tensor(self, shape: Sequence[int], i: int = 0, high: int = 0) -> Any:
    """Returns input i: rows of examples, a constant, or made from their number."""
    shape, dtype = list(shape), self.dtype(i)
    places = [k for k, size in enumerate(shape) if size == ROWS]
    full = [self.rows if size == ROWS else size for size in shape]
    if self.kind == 'rows' and places and self.coin(.75):
      return self._of_examples(full, self.pick(*places), dtype, high)
    numbers = dtype.is_integer or dtype.is_floating
    if numbers and self.coin(.85 if self.kind == 'sizes' else .03) and not high:
      return self._of_number(full, dtype)
    varies = frozenset(k for k in range(len(full)) if self.coin())
    data = np.broadcast_to(self.data(
        [size if k in varies else min(size, 1) for k, size in enumerate(full)], dtype,
        high), full).copy()
    if self.coin():
      return tf.constant(data, dtype)
    return Tensor(lambda batch: data, dependence.CONSTANT._replace(
        varies=None if self.coin(.1) else varies), self._known(full))

  def _of_examples(self, full: list[int], axis: int, dtype: tf.DType, high: int
                   ) -> Tensor:
    block = self.block if self.coin(.95) else self.pick(1, 2, -2)
    rest = full[:axis] + full[axis + 1:]
    data = self.data([EXAMPLES, abs(block), *rest], dtype, high)
    known = self._known(full)
    if known is not None:
      fixed = self.fixed and not self.coin(self.loose / 2)
      known[axis] = self.batch * abs(block) if fixed else None
    return Tensor(lambda batch: arranged(data[list(batch)], axis, block),
                  Value(Dependence.ROW_WISE, axis, block), known)

  def _of_number(self, full: list[int], dtype: tf.DType) -> Tensor:
    data = self.data(full, dtype)
    if self.kind != 'sizes' or self.coin(.2):  # Any function of the number.
      return Tensor(lambda batch: data * data.dtype.type(len(batch)),
                    dependence.BATCH_SIZE, self._known(full))
    powers = self.rng.integers(0, 3, full) * self.rng.integers(0, 2, full)
    of = lambda number: (data * number**powers).astype(dtype.as_numpy_dtype)
    return Tensor(lambda batch: of(len(batch)), self._sized(of), self._known(full))

  def _sized(self, of: Callable[[int], np.ndarray]) -> Value:
    return dependence.sized([of(number) for number in dependence.BATCH_SIZES])

  def _known(self, full: Sequence[int]) -> list[int | None] | None:
    if self.coin(self.loose / 20):
      return None
    return [None if self.coin(self.loose) else size for size in full]

  def argument(self, entries: Any, i: int) -> Any:
    """Returns integers as input i: mostly shown by the graph, else as an input."""
    dtype = self.dtype(i).as_numpy_dtype
    entries = np.asarray(entries, dtype)
    if self.coin(.93):
      return entries
    if self.coin() or self.fixed:
      return Tensor(lambda batch: entries, dependence.CONSTANT, self._known(
          entries.shape))
    powers = self.rng.integers(0, 2, entries.shape) * (entries > 0)
    of = lambda number: (entries * number**powers).astype(dtype)
    return Tensor(lambda batch: of(len(batch)), self._sized(of), entries.shape)

  def sizes(self, pairs: Sequence[tuple[int, int]], i: int) -> Any:
    """Returns sizes c B^k, from pairs (c, k), as input i."""
    dtype = self.dtype(i)
    of = lambda number: np.asarray(
        [c * number**k for c, k in pairs], dtype.as_numpy_dtype)
    powers = [k for _, k in pairs]
    if self.fixed or not any(powers):
      return self.argument(of(self.batch), i)
    array = lambda batch: of(len(batch))
    values = [self._sized(of), dependence.BATCH_SIZE]
    if sum(powers) == 1:
      axis = powers.index(1)
      values.append(Value(Dependence.BATCH_SIZE, axis, pairs[axis][0]))
    if self.coin(.4):
      return Tensor(array, self.pick(*values), [len(pairs)])
    return Tensor(array, values[0], [len(pairs)], lambda number: tf.cast(tf.stack(
        [functools.reduce(tf.multiply, [number] * k, c) for c, k in pairs]), dtype))

  def pairs(self, shape: Sequence[int]) -> list[tuple[int, int]]:
    """Returns pairs (c, k) for a shape, of which few are not like it."""
    return [(abs(self.block) * (1 + self.coin(.05)), 1) if size == ROWS or (
        size == self.rows and self.coin(.1)) else (size, 0) for size in shape]

  def axis(self, shape: Sequence[int]) -> int:
    """Returns an axis, counted from the first or the last."""
    return self.whole(-len(shape), len(shape) - 1) if shape else 0

  def axes(self, shape: Sequence[int]) -> list[int]:
    """Returns different axes, counted from the first or the last."""
    rank = len(shape)
    chosen = self.rng.permutation(rank)[:self.whole(0, min(rank, 2))]
    return [int(axis) - rank * self.coin(.3) for axis in chosen]

  def attributes(self, given: dict[str, Any]) -> dict[str, Any]:
    """Returns attributes, of which those that are not given are drawn."""
    inferred = {name for arg in self.op_def.input_arg for name in (
        arg.type_attr, arg.number_attr, arg.type_list_attr)}
    found = {}
    for attr in self.op_def.attr:
      if attr.name in given:
        found[attr.name] = given[attr.name]
      elif attr.name not in inferred:
        found[attr.name] = self._attribute(attr)
    return {name: value for name, value in found.items() if value is not None}

  def _attribute(self, attr: Any) -> Any:
    if attr.type == 'type':
      return self.types[attr.name]
    if attr.HasField('default_value') and self.coin(.6):
      return None
    if attr.allowed_values.list.s:
      return self.pick(*[each.decode() for each in attr.allowed_values.list.s])
    draw = {'bool': self.coin, 'float': lambda: self.pick(0.0, .5, 1.0)}
    return draw.get(attr.type, lambda: None)()


Given = tuple[list[Any], dict[str, Any]]
"""Inputs in the order of the operation's definition, and attributes."""


def _entries(case: Case) -> Given:
  """Draws inputs whose shapes may be broadcast to each other, or may not."""
  base = case.shape(0)
  given = []
  for i, arg in enumerate(case.op_def.input_arg):
    draw = lambda i=i: case.tensor(case.unlike(base), i)
    listed = arg.number_attr or arg.type_list_attr
    given.append([draw() for _ in range(case.whole(1, 3))] if listed else draw())
  words = {'message': 'no number', 'pattern': '[a-c]', 'rewrite': 'x',
           'num_buckets': 5, 'key': [3, 4], 'boundaries': [-.5, .5], 'shape': [
               None if size == ROWS or case.coin(.3) else size for size in base]}
  return given, {name: value for name, value in words.items()
                 if name in {attr.name for attr in case.op_def.attr}}


def _along(*extra: str) -> Callable[[Case], Given]:
  """Returns a generator of a tensor and arguments: 'axis', 'axes', 'shifts', ..."""
  def draw(case: Case) -> Given:
    shape = case.shape(0 if extra and extra[0] == 'axes' else 1)
    if extra == ('shift', 'axes'):
      axes = case.axes(shape)
      return [case.tensor(shape), case.argument([case.whole(-2, 2) for _ in axes], 1),
              case.argument(axes, 2)], {}
    one = {'axis': lambda: case.axis(shape),
           'axes': lambda: case.axis(shape) if shape and case.coin(.2) else (
               case.axes(shape)),
           'number': lambda: case.whole(-1, 1), 'count': lambda: case.whole(0, 2)}
    return [case.tensor(shape), *(case.argument(one[name](), i)
                                  for i, name in enumerate(extra, 1))], {}
  return draw


def _labels(case: Case) -> Given:
  """Draws features and labels."""
  shape = [case.pick(ROWS, ROWS, 1, 2), case.pick(1, 2, 3, ROWS)]
  if case.op_def.name.startswith('Sparse'):
    return [case.tensor(shape), case.tensor(
        case.pick(shape[:1], shape[:1], [ROWS]), 1, high=2)], {}
  return [case.tensor(case.unlike(shape)), case.tensor(case.unlike(shape), 1)], {}


def _product(case: Case) -> Given:
  """Draws two matrices, or batches of them."""
  # TensorFlow 2.16 to 2.21 write past the end of memory in some float32 products.
  case.types.update({name: case.pick(tf.float64, tf.float64, tf.int32)
                     if name == 'T' else tf.int32 for name in case.types})
  size = lambda: case.pick(1, 2, 3, ROWS)
  batch = [] if case.op_def.name == 'MatMul' else [
      size() for _ in range(case.whole(0, 2))]
  names = ('transpose_a', 'transpose_b') if case.op_def.name == 'MatMul' else (
      'adj_x', 'adj_y')
  given, flipped, inner = [], {}, size()
  for i, name in enumerate(names):
    matrix = [inner, size()] if i else [size(), inner]
    flipped[name] = case.coin()
    before = batch if case.coin(.7) else [
        1 if case.coin() else size for size in batch[case.whole(0, len(batch)):]]
    given.append(case.tensor(before + matrix[::-1 if flipped[name] else 1], i))
  return given, flipped


def _einsum(case: Case) -> Given:
  """Draws one or two terms and a result."""
  case.types['T'] = case.pick(tf.float64, tf.float32, tf.int32)
  size = collections.defaultdict(lambda: case.pick(1, 2, 3, ROWS, ROWS))
  terms = [''.join(case.rng.permutation(list('abcd'))[:case.whole(0, 4)])
           for _ in range(case.whole(1, 2))]
  if case.coin(.1):
    terms[0] += terms[0][:1]
  used = sorted(set(''.join(terms)))
  result = ''.join(case.rng.permutation([each for each in used if case.coin(.7)]))
  given = [case.tensor([size[letter] for letter in term]) for term in terms]
  dots = case.pick('', '', 'a', 'ab')
  if dots:
    terms, result = ([term.replace(dots, '...', 1) for term in each]
                     for each in (terms, [result]))
  return [given], {'equation': f'{",".join(terms)}->{"".join(result)}'}


def _windows(case: Case, area: Sequence[int]) -> dict[str, Any]:
  """Draws attributes of an operation that goes over images with a window."""
  attrs = {attr.name: attr for attr in case.op_def.attr}
  window = lambda: [1, *(case.pick(1, 1, 2) for _ in area), 1] if (
      case.coin(.95)) else [case.pick(1, 2) for _ in range(2 + len(area))]
  ones = [1] * (2 + len(area))
  found = {
      **{name: window() for name in ('ksize', 'ksizes', 'strides')},
      **{name: ones if case.coin(.8) else window() for name in ('dilations', 'rates')},
      'padding': case.pick('SAME', 'VALID'), 'block_size': 2,
      'depth_radius': case.whole(0, 2),
      'interpolation': case.pick('NEAREST', 'BILINEAR'),
      'fill_mode': case.pick('REFLECT', 'WRAP', 'CONSTANT')}
  if 'explicit_paddings' in attrs and case.coin(.2):
    found.update(padding='EXPLICIT', explicit_paddings=[
        0, 0, *(case.pick(0, 1) for _ in range(2 * len(area))), 0, 0])
  if 'data_format' in attrs and case.coin(.9):  # Others rarely run on a CPU.
    found['data_format'] = attrs['data_format'].default_value.s.decode()
  return {name: value for name, value in found.items() if name in attrs}


def _images(kinds: str) -> Callable[[Case], Given]:
  """Returns a generator of inputs: a letter for each, a capital for its shape.

  They are images (i), kernels (k), windows of images (w), what is made of images (o),
  images of any size (a), transforms (t), the size of an image (2) and a number (0).
  """
  def draw(case: Case) -> Given:
    volumes = '3D' in case.op_def.name
    channels, out = (case.pick(1, 1, 2, 3, 4, ROWS) for _ in range(2))
    area = [case.pick(2, 2, 3, 4) for _ in range(2 + volumes)]
    found = _windows(case, area)
    kernel = [case.pick(1, 1, 2) for _ in area]
    if 'k' in kinds.lower():  # TensorFlow returns anything where no place is left.
      area = [size + step - 1 for size, step in zip(
          area, found.get('dilations', [1] * 6)[1:])]
    window = kernel if 'k' in kinds.lower() else found.get('ksize', [1] * 6)[1:]
    added = found.get('explicit_paddings', [0] * 10)
    made = [-(-(size + added[2 * k] + added[2 * k + 1] - (width - 1) * (
        found.get('padding') != 'SAME')) // stride)
            for k, (size, width, stride) in enumerate(zip(
                area, window, found.get('strides', [1] * 6)[1:]), 1)]
    if case.coin(.1):
      made = [case.pick(1, 2, 3) for _ in area]
    deep = 'Depthwise' in case.op_def.name
    many = deep and channels == ROWS  # Each example has channels of its own.
    times = 1 if many and 'o' in kinds else case.pick(1, 2)
    groups = 1 if deep or channels == ROWS else case.pick(1, 1, 1, channels)
    if groups > 1 and out != ROWS:
      out *= groups
    if case.op_def.name == 'Conv':
      found['groups'] = groups
    final = channels * times if deep else out if 'k' in kinds.lower() else channels
    first = case.pick(1, 2) if many else case.pick(ROWS, ROWS, ROWS, 1, 2)
    shapes = {
        'i': [first, *area, channels],
        'o': [first if case.coin(.9) else case.pick(1, 2, ROWS), *made,
              final if case.coin(.9) else case.pick(1, 2)],
        'a': [first if case.coin(.7) else case.pick(1, 2), *case.pick(area, made),
              channels if case.coin(.8) else case.pick(1, 2)],
        'k': [*kernel, channels // groups, times if deep else out],
        'w': [*kernel, channels], 't': [case.pick(ROWS, ROWS, 1), 8], '0': []}
    given = []
    for i, kind in enumerate(kinds):
      shape = shapes.get(kind.lower())
      if shape is None:
        given.append(case.argument([case.pick(1, 2, 3, 4, case.rows) for _ in (0, 1)],
                                   i))
      else:
        given.append(case.sizes(case.pairs(shape), i) if kind.isupper() else
                     case.tensor(shape, i))
    return given, found
  return draw


def _bias(case: Case) -> Given:
  """Draws a tensor and biases of its channels."""
  shape = case.shape(2)
  first = case.op_def.name == 'BiasAdd' and case.coin(.4)
  return [case.tensor(shape), case.tensor(
      [shape[1] if first else case.pick(shape[-1], shape[-1], case.size())], 1)], (
          {'data_format': 'NCHW' if first else 'NHWC'}
          if case.op_def.name == 'BiasAdd' else {})


def _fused_norm(case: Case) -> Given:
  """Draws images, or their gradients and images, and statistics of channels."""
  case.types.update(T=tf.float32, U=tf.float32)
  form = case.pick('NHWC', 'NHWC', 'NCHW', 'NDHWC', 'NCDHW')
  channels = case.pick(1, 2, ROWS, ROWS)
  area = [case.pick(1, 2) for _ in form[2:]]
  first = case.pick(1, 2, ROWS)
  shape = [first, channels, *area] if form[1] == 'C' else [first, *area, channels]
  images = 1 + ('Grad' in case.op_def.name)
  training = case.coin()
  statistics = [[0] if training and i > images and images == 1 and case.coin(.8) else (
      [channels]) for i in range(images, len(case.op_def.input_arg))]
  given = [case.tensor(each, i) for i, each in enumerate([shape] * images + statistics)]
  return given, {'data_format': form, 'is_training': training}


def _blocks(case: Case) -> Given:
  """Draws images and how axes are cut into blocks, or blocks are put together."""
  shape = [ROWS, *(case.pick(1, 2, 4) for _ in range(case.whole(1, 3)))]
  if case.coin(.2):
    shape = case.shape(2, 4)
  cut = case.whole(1, min(2, len(shape) - 1))
  sizes = [case.pick(1, 2) for _ in range(cut)]
  if case.op_def.name == 'BatchToSpaceND' and case.coin(.7):
    case.block = -math.prod(sizes)
    case.rows = case.batch * abs(case.block)
  return [case.tensor(shape), case.argument(sizes, 1), case.argument(
      [[case.pick(0, 0, 1) for _ in (0, 1)] for _ in range(cut)], 2)], {}


def _segments(case: Case) -> Given:
  """Draws data, the number of the segment for each place, and how many there are."""
  shape = case.shape()
  own = case.whole(0, len(shape))
  return [case.tensor(shape), case.tensor(shape[:own], 1, high=3), case.argument(
      case.pick(3, 3, case.rows), 2)], {}


def _select(case: Case) -> Given:
  """Draws a condition, of one entry or one per row, and two tensors."""
  shape = case.shape()
  return [case.tensor(case.pick(shape, shape[:1], shape[:1], []), 0),
          case.tensor(shape, 1), case.tensor(shape, 2)], {}


def _concat(case: Case) -> Given:
  """Draws tensors that may differ in one axis, and the axis."""
  shape = case.shape()
  axis = case.axis(shape)
  def part() -> Any:
    sizes = list(shape)
    if case.coin():
      sizes[axis] = case.size()
    return case.tensor(sizes if case.coin(.9) else case.unlike(shape))
  return [[part() for _ in range(case.whole(1, 3))], case.argument(axis, 1)], {}


def _pack(case: Case) -> Given:
  """Draws tensors of mostly one shape."""
  shape = case.shape(0)
  return [[case.tensor(shape if case.coin(.9) else case.unlike(shape))
           for _ in range(case.whole(1, 3))]], {'axis': case.axis([*shape, 1])}


def _unpack(case: Case) -> Given:
  """Draws a tensor and an axis to take apart."""
  shape = case.shape()
  axis = case.axis(shape)
  return [case.tensor(shape)], {
      'axis': axis, 'num': case.rows if shape[axis] == ROWS else shape[axis]}


def _expand(case: Case) -> Given:
  """Draws a tensor and the place of a new axis."""
  shape = case.shape(0)
  return [case.tensor(shape), case.argument(case.axis([*shape, 1]), 1)], {}


def _squeeze(case: Case) -> Given:
  """Draws a tensor with axes of size 1, and axes to leave out."""
  shape = [1 if case.coin(.4) else size for size in case.shape()]
  ones = [axis - len(shape) * case.coin(.3) for axis, size in enumerate(shape)
          if size == 1 or case.coin(.1)]
  return [case.tensor(shape)], {
      'squeeze_dims': [axis for axis in ones if case.coin(.6)]}


def _transpose(case: Case) -> Given:
  """Draws a tensor and an order of its axes."""
  shape = case.shape(0)
  return [case.tensor(shape), case.argument(case.rng.permutation(len(shape)), 1)], {}


def _reshape(case: Case) -> Given:
  """Draws a tensor and another shape of as many entries."""
  shape = case.shape(0)
  if case.coin(.05):
    shape = case.unlike(shape)
  pairs = [(abs(case.block), 1) if size == ROWS else (size, 0) for size in shape]
  for _ in range(case.whole(0, 4)):
    k = case.whole(0, len(pairs))
    if case.coin(.2):
      pairs.insert(k, (1, 0))
    elif k + 1 < len(pairs) and case.coin(.6):  # Joins two axes.
      (c, power), (d, other) = pairs[k:k + 2]
      pairs[k:k + 2] = [(c * d, power + other)]
    elif k < len(pairs):  # Splits an axis.
      c, power = pairs[k]
      factor = case.pick(*[d for d in range(1, c + 1) if c % d == 0] or [1])
      pairs[k:k + 1] = case.pick([(factor, 0), (c // factor, power)],
                                 [(c // factor, power), (factor, 0)])
  if case.coin(.1):
    pairs = [pairs[k] for k in case.rng.permutation(len(pairs))]
  if pairs and case.coin():
    pairs[case.pick(*[k for k, (_, power) in enumerate(pairs) if power] or [0])] = (
        -1, 0)
  elif pairs and case.coin(.3):
    pairs[case.whole(0, len(pairs) - 1)] = (-1, 0)
  return [case.tensor(shape), case.sizes(pairs, 1)], {}


def _broadcast_to(case: Case) -> Given:
  """Draws a tensor and a shape to which it may be broadcast."""
  shape = case.shape(0)
  pairs = case.pairs(shape)
  for k, size in enumerate(shape):
    if size == 1 and case.coin() or case.coin(.05):
      pairs[k] = case.pick((2, 0), (case.rows, 0), (1, 1), (2, 1), (1, 2))
    elif size == ROWS and case.coin(.3):
      pairs[k] = case.pick((case.rows, 0), (2 * abs(case.block), 1), (-1, 0))
  before = [case.pick((1, 0), (2, 0), (1, 1)) for _ in range(case.pick(0, 0, 1))]
  return [case.tensor(shape), case.sizes(before + pairs, 1)], {}


def _tile(case: Case) -> Given:
  """Draws a tensor and how often each axis is repeated."""
  shape = case.shape(0)
  times = [case.pick((1, 0), (1, 0), (1, 0), (2, 0), (0, 0), (1, 1)) for _ in shape]
  return [case.tensor(shape), case.sizes(times, 1)], {}


def _fill(case: Case) -> Given:
  """Draws a shape and a number."""
  return [case.sizes(case.pairs(case.shape(0)), 0), case.tensor([], 1)], {}


def _gather(case: Case) -> Given:
  """Draws a table, indices into one of its axes, the axis and common first axes."""
  shape = case.shape()
  batch = case.whole(0, len(shape) - 1) if case.coin() else 0
  axis = case.whole(batch, len(shape) - 1)
  indices = [1 if case.coin(.1) else size for size in shape[:batch]] + (
      case.shape(0, 2) if case.coin(.4) else [case.size() for _ in range(case.whole(
          0, 2))])
  length = case.batch if shape[axis] == ROWS else shape[axis]
  return [case.tensor(shape), case.tensor(indices, 1, high=max(1, length)),
          case.argument(axis - len(shape) * case.coin(.3), 2)], {
              'batch_dims': batch - (len(indices) if case.coin(.3) else 0)}


def _gather_nd(case: Case) -> Given:
  """Draws a table and indices into its first axes."""
  shape, depth = case.shape(), case.whole(0, 2)
  return [case.tensor(shape), case.tensor([*case.shape(0, 2), case.pick(
      min(depth, len(shape)), ROWS if case.coin(.1) else 1)], 1, high=2)], {}


def _one_hot(case: Case) -> Given:
  """Draws indices, their number and two values."""
  shape = case.shape(0)
  depth = case.argument(case.pick(0, 1, 3, case.rows), 1)
  return [case.tensor(shape, 0, high=4), depth, case.tensor([], 2), case.tensor([], 3)
          ], {'axis': case.pick(-1, case.whole(0, len(shape)))}


def _pad(case: Case) -> Given:
  """Draws a tensor, how many entries are added at both ends of axes, and which."""
  shape = case.shape(0)
  sizes = [[case.pick(0, 0, 0, 1) for _ in (0, 1)] for _ in shape]
  if case.op_def.name == 'MirrorPadGrad':
    shape = [size if size == ROWS else 1 + size + sum(pad)
             for size, pad in zip(shape, sizes)]
  return [case.tensor(shape), case.argument(np.reshape(sizes, (-1, 2)), 1), *(
      case.tensor([], i) for i in range(2, len(case.op_def.input_arg)))], {}


def _ends(case: Case, shape: Sequence[int], terms: int) -> list[list[int]]:
  """Draws begins, ends and strides of the terms of a slice."""
  full = [case.rows if size == ROWS else size for size in [*shape, 1, 1, 1]]
  return [[case.pick(0, 0, 0, 1, -1) for _ in range(terms)],
          [case.pick(full[k], full[k], 1, 2, -1, 0) for k in range(terms)],
          [case.pick(1, 1, 1, 1, 2, -1) for k in range(terms)]]


def _slice(case: Case) -> Given:
  """Draws a tensor, places and sizes."""
  shape = case.shape(0)
  begin, end, _ = _ends(case, shape, len(shape))
  pairs = [case.pick(pair, (-1, 0), (-1, 0), (max(0, size), 0))
           for pair, size in zip(case.pairs(shape), end)]
  return [case.tensor(shape), case.argument(np.abs(begin) * case.coin(.6), 1),
          case.sizes(pairs, 2)], {}


def _strided(case: Case) -> Given:
  """Draws the arguments of StridedSlice or of its gradient."""
  shape = case.shape()
  terms = case.whole(0, len(shape))
  masks = {name: case.whole(0, 2**terms - 1) if case.coin(.4) else 0 for name in (
      'begin_mask', 'end_mask', 'new_axis_mask', 'shrink_axis_mask')}
  if case.coin(.5):
    masks['begin_mask'] = masks['end_mask'] = 2**terms - 1 - (
        2**case.whole(0, terms) >> case.whole(0, 1))
  if terms and case.coin(.4):
    masks['ellipsis_mask'] = 2**case.whole(0, terms - 1)
  ends = [case.argument(np.asarray(each, int), i) for i, each in enumerate(
      _ends(case, shape, terms), 1)]
  if case.op_def.name == 'StridedSlice':
    return [case.tensor(shape), *ends], masks
  sliced = list(shape)
  if case.coin(.5):
    kept = 2**terms - 1
    masks = {'begin_mask': kept, 'end_mask': kept}
    ends = [np.asarray(each, case.dtype(1).as_numpy_dtype)
            for each in ([0] * terms, [1] * terms, [1] * terms)]
  return [case.sizes(case.pairs(shape), 0), *ends, case.tensor(
      sliced if case.coin(.7) else case.unlike(shape), 4)], masks


def _split(case: Case) -> Given:
  """Draws a tensor, the axis along which it is split, and parts."""
  shape = case.shape()
  axis, parts = case.axis(shape), case.whole(1, 2)
  along = case.argument(axis, 0 if case.op_def.name == 'Split' else 2)
  if case.op_def.name == 'Split':
    return [along, case.tensor(shape, 1)], {'num_split': parts}
  full = case.rows if shape[axis] == ROWS else shape[axis]
  first = case.whole(0, full)
  return [case.tensor(shape), case.argument(
      [full] if parts == 1 else case.pick([first, -1], [first, full - first]), 1),
          along], {'num_split': parts}


def _looked_up(case: Case) -> Given:
  """Draws keys of a table."""
  case.types.update(Tin=tf.int64, Tout=tf.int64)
  return [_table().resource_handle, case.tensor(case.shape(0), 1, high=4),
          case.tensor(case.pick([], [], [1], [ROWS]), 2)], {}


@functools.lru_cache(None)
def _table() -> Any:
  return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(
      [0, 1], [5, 7], tf.int64, tf.int64), -1)


@functools.lru_cache(None)
def _weight() -> tf.Variable:
  return tf.Variable(np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32))


def _from_weight(case: Case) -> Given:
  """Draws indices into a weight."""
  return [_weight().handle, case.tensor(case.shape(0), 1, high=3)], {
      'dtype': tf.float32, 'batch_dims': 0}


def _mapped(case: Case) -> Given:
  """Draws tensors of which a function takes one entry along the first axis each."""
  shape = [size or 1 for size in case.shape(1, 3)]
  arguments = [case.tensor(shape) for _ in range(case.whole(1, 2))]
  captured = [case.tensor([], 1) for _ in range(case.whole(0, 1))]
  out = [None if size == ROWS else size for size in shape[1:]]
  made = tf.function(lambda first, *others: first + sum(
      tf.reduce_sum(other) for other in others)).get_concrete_function(
          tf.TensorSpec(out), *[tf.TensorSpec(None)] * (
              len(arguments) + len(captured) - 1))
  return [arguments, captured], {
      'output_types': [tf.float32], 'output_shapes': [out], 'f': made}


GENERATORS: dict[str, Callable[[Case], Given]] = {
    **dict.fromkeys((
        *operations.ELEMENTWISE, 'ZerosLike', 'OnesLike', 'Shape',
        'ShapeN', 'Size', 'Rank', 'IdentityN', 'L2Loss', 'BiasAddGrad'), _entries),
    **dict.fromkeys(operations.REDUCTIONS, _along('axes')),
    **dict.fromkeys(('ArgMax', 'ArgMin', 'Cumsum', 'Cumprod', 'CumulativeLogsumexp'),
                    _along('axis')),
    'ReverseV2': _along('axes'), 'Roll': _along('shift', 'axes'),
    **dict.fromkeys(('Softmax', 'LogSoftmax'), _along()), 'TopKV2': _along('count'),
    'MatrixBandPart': _along('number', 'number'),
    **dict.fromkeys(('SoftmaxCrossEntropyWithLogits',
                     'SparseSoftmaxCrossEntropyWithLogits'), _labels),
    **dict.fromkeys(('MatMul', 'BatchMatMul', 'BatchMatMulV2', 'BatchMatMulV3'),
                    _product),
    **dict.fromkeys(('Conv', 'Conv2D', 'Conv3D', 'DepthwiseConv2dNative'),
                    _images('ik')),
    **dict.fromkeys(('MaxPool', 'MaxPool3D', 'AvgPool', 'AvgPool3D', 'LRN',
                     'DepthToSpace', 'SpaceToDepth', 'ExtractImagePatches'),
                    _images('i')),
    **dict.fromkeys(('ResizeBilinear', 'ResizeNearestNeighbor', 'ResizeBicubic',
                     'ResizeArea', 'ResizeNearestNeighborGrad'), _images('i2')),
    **dict.fromkeys(('ResizeBilinearGrad', 'ResizeBicubicGrad'), _images('ia')),
    'ImageProjectiveTransformV2': _images('it2'),
    'ImageProjectiveTransformV3': _images('it20'), 'Dilation2D': _images('iw'),
    **dict.fromkeys(('AvgPoolGrad', 'AvgPool3DGrad'), _images('Io')),
    **dict.fromkeys(('MaxPoolGrad', 'MaxPool3DGrad'), _images('ioo')),
    **dict.fromkeys(('Conv2DBackpropInput', 'Conv3DBackpropInputV2',
                     'DepthwiseConv2dNativeBackpropInput'), _images('Iko')),
    **dict.fromkeys(('Conv2DBackpropFilter', 'Conv3DBackpropFilterV2',
                     'DepthwiseConv2dNativeBackpropFilter'), _images('iKo')),
    **dict.fromkeys(('FusedBatchNormV3', 'FusedBatchNormGradV3'), _fused_norm),
    **dict.fromkeys(('SpaceToBatchND', 'BatchToSpaceND'), _blocks),
    **dict.fromkeys(('BiasAdd', 'BiasAddV1'), _bias), 'Select': _select,
    'UnsortedSegmentSum': _segments, 'Einsum': _einsum, 'LookupTableFindV2': _looked_up,
    'ResourceGather': _from_weight, 'MapDefun': _mapped, 'ConcatV2': _concat,
    'Pack': _pack, 'Unpack': _unpack, 'ExpandDims': _expand, 'Squeeze': _squeeze,
    'Transpose': _transpose, 'Reshape': _reshape, 'BroadcastTo': _broadcast_to,
    'Tile': _tile, 'Fill': _fill, 'GatherV2': _gather, 'GatherNd': _gather_nd,
    'OneHot': _one_hot,
    **dict.fromkeys(('MirrorPad', 'MirrorPadGrad', 'Pad', 'PadV2'), _pad),
    'Slice': _slice, **dict.fromkeys(('StridedSlice', 'StridedSliceGrad'), _strided),
    **dict.fromkeys(('Split', 'SplitV'), _split)}
"""Generators of arguments by operation."""
