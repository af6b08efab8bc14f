"""Abstract values of the proof: the examples that a tensor of a graph may depend on.

The proof is an abstract interpretation: from the inputs of the graph on, each tensor
gets a `Dependence`. An operation on ROW_WISE inputs is followed only by a transfer
function in `operations`, `rearrangements`, `lists` or `graph_proof.CALLS`. All others
make UNKNOWN outputs, so ROW_WISE at the end is a proof if all static shapes are true.
TensorFlow checks neither those from `Tensor.set_shape` nor those from an attribute
`output_shapes` of a raw operation. `draws` has the conditions under which each row of a
random draw belongs to one example.
"""

from __future__ import annotations

from collections.abc import Sequence
import enum
from typing import Any, Callable, NamedTuple, Union

import numpy as np
import tensorflow as tf

BATCH_SIZES = (5, 6)
"""Two numbers of examples. The analysis computes sizes for each and compares them: two
suffice to tell integers c B^k, for B examples, apart by k. One is odd and one is even,
so that products that overflow do not look alike: B^(2^30) is 1 for all odd B."""
_FOLDED = 4096
"""Constants with more entries than this are not evaluated, to keep proofs fast."""


class Dependence(enum.IntEnum):
  """Dependences of a tensor, in the order of the lattice: the worst last.

  - CONSTANT: it depends neither on the examples nor on their number.
  - BATCH_SIZE: it depends on the number of examples only.
  - ROW_WISE: along one axis each example has its own positions, `Value.block` of them
    next to each other. The entries there are one function of that example, whatever its
    position in the batch and whatever the other examples.
  - UNKNOWN: no transfer function shows the operation that made it to be row-wise.
  - MIXED: it was found to depend on several examples at once.
  """

  CONSTANT = 0
  BATCH_SIZE = 1
  ROW_WISE = 2
  UNKNOWN = 3
  MIXED = 4


class Value(NamedTuple):
  """Abstract value of a tensor, or of each tensor in a list (a TensorList).

  Attributes:
    dependence: What the tensor depends on.
    axis: If ROW_WISE, the axis of the examples.
    block: If ROW_WISE, the number of neighbouring positions per example on that axis;
      if negative, the whole batch is repeated -block times there. If BATCH_SIZE, and
      not 0: this is the shape of a ROW_WISE tensor with this `axis` and `block`.
    varies: If CONSTANT, the axes along which entries may differ; None if they may
      differ along any axis.
    seed: If CONSTANT, the name of the only secret seed from which the tensor is
      computed, or '' if there is none; see `draws`.
    sizes: If BATCH_SIZE, and the tensor holds integers c B^k of B examples: those for
      each B in `BATCH_SIZES`.
    item: For a list: the sizes of its items, None if nothing was told of items yet. A
      size of -1 says that nothing tells it, None that items may have different ones.
    open: For a list, whether items that were never set may have a shape that `item`
      does not tell.
    why: If UNKNOWN or MIXED, the operation and what it does.
    operation: If UNKNOWN or MIXED, the name of the operation.
  """

  dependence: Dependence
  axis: int = 0
  block: int = 1
  varies: frozenset[int] | None = None
  sizes: Any = None
  seed: str = ''
  item: tuple[int | None, ...] | None = None
  open: bool = False
  why: str = ''
  operation: str = ''


CONSTANT = Value(Dependence.CONSTANT)  # Entries may differ along any axis.
UNIFORM = Value(Dependence.CONSTANT, varies=frozenset())  # All entries are equal.
BATCH_SIZE = Value(Dependence.BATCH_SIZE, block=0)
ROW_WISE = Value(Dependence.ROW_WISE)  # One position per example, on axis 0.


class NotRowWise(Exception):
  """Raised if an operation is not row-wise; `dependence` is MIXED or UNKNOWN."""

  def __init__(self, dependence: Dependence, what: str):
    super().__init__(what)
    self.dependence = dependence


def mixed(what: str) -> NotRowWise:
  """Returns the exception for an operation that depends on several examples at once."""
  return NotRowWise(Dependence.MIXED, what)


def unknown(what: str) -> NotRowWise:
  """Returns the exception for an operation that is not known to be row-wise."""
  return NotRowWise(Dependence.UNKNOWN, what)


class Node(NamedTuple):
  """An operation and its inputs' values; `draws` checks random draws if not None."""

  op: tf.Operation
  values: list[Value]
  draws: Any  # A `draws.Draws`, whose module imports this one, or None.

  def shape(self, i: int) -> list[int | None]:
    """Returns the shape of an input, None for unknown sizes."""
    return shape_of(self.op.inputs[i])

  def out(self, i: int = 0) -> list[int | None]:
    """Returns the shape of an output, None for unknown sizes."""
    return shape_of(self.op.outputs[i])

  def static(self, i: int) -> np.ndarray:
    """Returns the entries of a constant input; NotRowWise if they are not known."""
    found = static(self.op.inputs[i])
    if found is None:
      raise unknown('has arguments that are no constants')
    return found

  def whole(self, i: int) -> int:
    """Returns the integer in a constant input of one entry; NotRowWise if unknown."""
    return int(self.static(i).item())

  def axes(self, i: int) -> list[int]:
    """Returns the axes of input 0 that the constant input `i` names, in its order."""
    rank = len(self.shape(0))
    return [int(axis) % rank for axis in np.ravel(self.static(i))]

  def varying(self, i: int) -> frozenset[int]:
    """Returns the axes along which CONSTANT input `i` may vary, none of size 1."""
    varies, shape = self.values[i].varies, self.shape(i)
    every = range(len(shape)) if varies is None else varies
    return frozenset(k for k in every if shape[k] != 1)

  def rows(self) -> list[int]:
    """Returns the indices of the inputs that are ROW_WISE."""
    return [i for i, v in enumerate(self.values) if v.dependence == Dependence.ROW_WISE]

  def length(self) -> int | None:
    """Returns the static size of the examples' axis in the first ROW_WISE input."""
    first = self.rows()[0]
    return self.shape(first)[self.values[first].axis]


Transfer = Callable[[Node], Union[Value, list[Value]]]
"""Returns a `Value` for all outputs of an operation, or a list; raises NotRowWise."""


def shape_of(tensor: tf.Tensor) -> list[int | None]:
  """Returns the static shape, None for unknown sizes; NotRowWise for unknown rank."""
  if tensor.shape.rank is None:
    raise unknown('makes or takes a tensor of unknown rank')
  return tensor.shape.as_list()


def static(tensor: tf.Tensor, known: dict[str, np.ndarray | None] | None = None
           ) -> np.ndarray | None:
  """Returns the entries of a constant tensor; None if they are not known.

  Computes them only from tensors of at most `_FOLDED` entries. `known` has what this
  function returned for other tensors of the graph, by name, and gets more.
  """
  known = {} if known is None else known
  if tensor.name not in known:
    known[tensor.name] = _entries(tensor, known)
  return known[tensor.name]


def _entries(tensor: tf.Tensor, known: dict[str, np.ndarray | None]
             ) -> np.ndarray | None:
  """Computes the entries of a constant tensor from its inputs'; None if not known.

  `known` is as for `static`, which calls this for a tensor that is not in it.
  """
  found = tf.get_static_value(tensor)
  if found is not None:
    return np.asarray(found)
  op = tensor.op
  size = size_taken(op)
  if size is not None:
    return np.asarray(size, tensor.dtype.as_numpy_dtype)
  if op.type not in _FOLDING:
    return None
  inputs = []
  for operand in op.inputs:
    entries = static(operand, known)
    if entries is None or entries.size > _FOLDED:
      return None
    inputs.append(entries)
  return folded(op, inputs)[tensor.value_index]


def size_taken(op: tf.Operation) -> int | None:
  """Returns the static size that an operation reads, like `tf.shape(x)[1]`; or None."""
  if op.type != 'StridedSlice' or op.inputs[0].op.type != 'Shape' or [
      op.get_attr(f'{name}_mask') for name in ('shrink_axis', 'new_axis', 'ellipsis')
      ] != [1, 0, 0]:
    return None
  shape = op.inputs[0].op.inputs[0].shape
  begin = static(op.inputs[1])
  return None if begin is None or shape.rank is None else shape[int(begin[0])]


def called(op: tf.Operation, name: str = 'f') -> tf.Graph | None:
  """Returns the graph of the function in attribute `name`; None if it is not kept."""
  function = op.graph._get_function(op.get_attr(name).name)  # pylint: disable=protected-access
  return getattr(function, 'graph', None)


def folded(op: tf.Operation, inputs: list[np.ndarray]) -> list[np.ndarray]:
  """Runs an operation on constants and returns its outputs."""
  with tf.init_scope():
    return [np.asarray(output) for output in rerun(op, inputs)]


def rerun(op: tf.Operation, inputs: Sequence[Any]) -> list[Any]:
  """Runs an operation with the attributes of `op` on `inputs`; returns its outputs."""
  values = iter(inputs)
  arguments: dict[str, Any] = {}
  inferred: set[str] = set()  # Attributes that TensorFlow infers from the inputs.
  for arg in op.op_def.input_arg:
    inferred.update((arg.type_attr, arg.number_attr))
    arguments[_PYTHON.get(arg.name, arg.name)] = (
        [next(values) for _ in range(op.get_attr(arg.number_attr))]
        if arg.number_attr else next(values))
  arguments.update((_PYTHON.get(attr.name, attr.name), op.get_attr(attr.name))
                   for attr in op.op_def.attr if attr.name not in inferred)
  return tf.nest.flatten([getattr(tf.raw_ops, op.type)(**arguments)])


_PYTHON = dict.fromkeys(
    ('dim', 'reduction_indices', 'split_dim', 'squeeze_dims'), 'axis')
"""Arguments and attributes that have another name in Python."""

_FOLDING = frozenset((
    'AddV2', 'BroadcastGradientArgs', 'Cast', 'ConcatOffset', 'ConcatV2',
    'ExpandDims', 'FloorDiv', 'FloorMod', 'GatherV2', 'Identity',
    'InvertPermutation', 'Maximum', 'Minimum', 'Mul', 'Pack', 'Prod', 'Range',
    'Reshape', 'Slice', 'Squeeze', 'StridedSlice', 'Sub'))
"""Operations that `static` runs to compute axes and shapes from constants."""


def sizes_by_batch(tensor: tf.Tensor, value: Value) -> list[np.ndarray] | None:
  """Returns a tensor's integers for each of `BATCH_SIZES`, or None if not known."""
  if value.sizes is not None:
    return [np.asarray(size, tensor.dtype.as_numpy_dtype) for size in value.sizes]
  found = static(tensor) if value.dependence == Dependence.CONSTANT else None
  return None if found is None else [found] * len(BATCH_SIZES)


def shapes(node: Node) -> list[list[int | None]]:
  """Returns the shapes that a ROW_WISE input 0 has for each of `BATCH_SIZES`."""
  shape, (_, axis, block, *_) = node.shape(0), node.values[0]
  return [[*shape[:axis], number * abs(block), *shape[axis + 1:]]
          for number in BATCH_SIZES]


def sized(values: Sequence[np.ndarray]) -> Value:
  """Returns the BATCH_SIZE value of integers, given for each of `BATCH_SIZES`."""
  if not all(map(np.size, values)):  # Tuples do not tell the shape.
    return BATCH_SIZE
  return BATCH_SIZE._replace(sizes=tuple(map(_nested_tuple, values)))


def _nested_tuple(array: np.ndarray) -> Any:
  """Converts an array of integers to nested tuples."""
  return tuple(map(_nested_tuple, array)) if np.ndim(array) else int(array)


def constant(tensor: tf.Tensor) -> Value:
  """Returns the CONSTANT value of a captured tensor, or of an operation without inputs.

  It may vary along any axis if its entries are not known or more than `_FOLDED`.
  """
  value = (None if tensor.dtype in (tf.resource, tf.variant) else
           tf.get_static_value(tensor))
  if value is None or np.size(value) > _FOLDED:
    return CONSTANT
  value = np.asarray(value)
  return Value(Dependence.CONSTANT, varies=frozenset(
      k for k in range(value.ndim)
      if value.size and not np.all(value == value.take([0], k))))


def join(first: Value, second: Value, sized: bool = True) -> Value:
  """Returns the least upper bound: a `Value` that covers both, UNKNOWN if none does.

  `sized` tells that a CONSTANT value has the size of a ROW_WISE one along its axis.
  """
  worst = max(first, second, key=lambda value: value.dependence)
  if worst.dependence >= Dependence.UNKNOWN or first == second:
    return worst
  if first.dependence == second.dependence == Dependence.CONSTANT and not (
      first.seed or second.seed):
    if first.varies is None or second.varies is None:
      return CONSTANT
    return Value(Dependence.CONSTANT, varies=first.varies | second.varies)
  constant = min(first, second, key=lambda value: value.dependence)
  if worst.dependence == Dependence.ROW_WISE and sized and (
      constant.dependence == Dependence.CONSTANT and constant.varies is not None and
      worst.axis not in constant.varies):
    return worst
  return Value(Dependence.UNKNOWN, why=(
      'a result that depends on the examples in different ways in two branches of a '
      'conditional, iterations of a loop or items of a list'))


def first_violation(values: Sequence[Value]) -> Value | None:
  """Returns a value that is not one row per example along axis 0, with the reason.

  The result is MIXED if any value is MIXED or BATCH_SIZE, else UNKNOWN; None if all
  values are one row per example. A constant that does not vary along axis 0 is no
  violation.
  """
  bad = []
  for value in values:
    if value.dependence >= Dependence.UNKNOWN:
      bad.append(value)
    elif value.dependence == Dependence.BATCH_SIZE:
      bad.append(Value(
          Dependence.MIXED, why='a value that depends on the number of examples'))
    elif value.dependence == Dependence.CONSTANT:
      if value.varies is None or 0 in value.varies:
        bad.append(Value(
            Dependence.UNKNOWN, why='values that depend on the place in the batch'))
    elif value.axis or value.block != 1:
      bad.append(Value(Dependence.UNKNOWN, why='the examples on another axis than 0'))
  return max(bad, key=lambda value: value.dependence, default=None)


def as_multiples(sizes: Sequence[Sequence[int]]) -> list[tuple[int, bool]]:
  """Returns (c, False) for each size c, and (c, True) for each size c B.

  `sizes` has one shape for each number B of examples in `BATCH_SIZES`. Raises
  NotRowWise for sizes that depend on B in another way.
  """
  (n, m), found = BATCH_SIZES, []
  for a, b in zip(*(map(int, shape) for shape in sizes)):
    if a == b:
      found.append((a, False))
    elif a * m == b * n and a > 0:  # a / n = b / m = c
      found.append((a // n, True))
    else:
      raise unknown('has a size that depends on the number of examples, but is no '
                    'multiple of it')
  return found


def transposed(op: tf.Operation) -> tuple[bool, bool]:
  """Returns whether a matrix product transposes its first and its second input."""
  names = ('transpose_a', 'transpose_b') if op.type == 'MatMul' else ('adj_x', 'adj_y')
  return op.get_attr(names[0]), op.get_attr(names[1])


def check_same(node: Node, i: int, axis: int, size: int | None) -> None:
  """Raises NotRowWise if input `i`, a constant, may differ from example to example.

  Raises it, too, if the input depends on the number of examples. `axis` is the input's
  axis along which an operation pairs it with the examples, and `size` is the length of
  the examples' axis, None if unknown. A constant passes if it lacks the axis (negative)
  or has one entry there, which is broadcast, or if it has this size and does not vary
  there.
  """
  kind = node.values[i].dependence
  if kind == Dependence.BATCH_SIZE:
    raise mixed('depends on how many examples there are')
  if kind != Dependence.CONSTANT or not 0 <= axis < len(node.shape(i)) or (
      node.shape(i)[axis] == 1):
    return
  varies = node.values[i].varies
  if varies is None or axis in varies or node.shape(i)[axis] != size or (
      size is None):
    raise unknown('treats examples by their place in the batch')


def only_operand(node: Node, i: int = 0) -> Value:
  """Returns the abstract value of input `i`; NotRowWise unless others are CONSTANT."""
  for k, value in enumerate(node.values):
    if k != i and value.dependence != Dependence.CONSTANT:
      raise unknown('takes a second argument that depends on the examples')
  return node.values[i]
