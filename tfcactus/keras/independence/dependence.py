"""What a tensor of a traced graph may depend on: the abstract values of a proof.

The proof is an abstract interpretation. Each tensor is given one of five
dependences, from the inputs of the graph on:

- CONSTANT: on neither the examples nor their number;
- BATCH_SIZE: on their number alone;
- ROW_WISE: along one axis each example has its own place (`block` places next
  to each other), whose entries are the same function of that example, wherever
  in the batch it stands and whatever stands beside it;
- MIXED: found to depend on several examples at once;
- UNKNOWN: made by an operation that nothing here is known about.

Only what the transfer functions in `operations` and `rearrangements` say of an
operation is believed: one that nobody thought of makes its outputs UNKNOWN, so
that ROW_WISE at the end is a proof. What is drawn at random is each example's own only
under the conditions of `draws`.
"""

from __future__ import annotations

import enum
import typing
from typing import Any
from typing import Dict
from typing import FrozenSet
from typing import List
from typing import NamedTuple
from typing import Optional
from typing import Sequence
from typing import Set
from typing import Tuple

import numpy as np
import tensorflow as tf

if typing.TYPE_CHECKING:
  from tfcactus.keras.independence.draws import Draws

BATCH_SIZES = (5, 7)
_FOLDED = 4096
"""Constants of more numbers are not looked into."""


class Dependence(enum.IntEnum):
  """What a tensor depends on, in the order of the lattice: the worst last."""

  CONSTANT = 0
  BATCH_SIZE = 1
  ROW_WISE = 2
  UNKNOWN = 3
  MIXED = 4


class Value(NamedTuple):
  """What is known of a tensor; of a list of tensors, of each of them.

  Attributes:
    dependence: What it depends on.
    axis: Of ROW_WISE, the axis of the examples.
    block: Of ROW_WISE, how many neighbouring places of that axis are one example's;
      of negative, all examples follow each other that many times.
    varies: Of CONSTANT, the axes along which entries may differ; None for any.
    seed: Of CONSTANT, which secret seed it is made of and nothing else; see `draws`.
    sizes: Of BATCH_SIZE integers that are products of sizes, their values for each
      of `BATCH_SIZES` of examples. Two tell c from c B, and both from any other
      power of B.
    why: Of UNKNOWN and MIXED, the operation and what it does.
    operation: Likewise, its name.
  """

  dependence: Dependence
  axis: int = 0
  block: int = 1
  varies: Optional[FrozenSet[int]] = None
  sizes: Any = None
  seed: str = ''
  why: str = ''
  operation: str = ''


CONSTANT = Value(Dependence.CONSTANT)
UNIFORM = Value(Dependence.CONSTANT, varies=frozenset())
BATCH_SIZE = Value(Dependence.BATCH_SIZE)
ROW_WISE = Value(Dependence.ROW_WISE)


class NotRowWise(Exception):
  """A transfer function's finding that an operation is not row-wise.

  Attributes:
    dependence: MIXED, or UNKNOWN.
  """

  def __init__(self, dependence: Dependence, what: str):
    super().__init__(what)
    self.dependence = dependence


def mixed(what: str) -> NotRowWise:
  """An operation that is of several examples at once."""
  return NotRowWise(Dependence.MIXED, what)


def unknown(what: str) -> NotRowWise:
  """An operation that is not known to treat each alone."""
  return NotRowWise(Dependence.UNKNOWN, what)


class Node:
  """An operation of the graph and what is known of its inputs.

  Attributes:
    op: The operation.
    values: One for each input.
    draws: What is known of draws; None where they may follow the place in the batch.
  """

  def __init__(self, op: tf.Operation, values: Sequence[Value],
               draws: Optional[Draws] = None):
    self.op = op
    self.values = list(values)
    self.draws = draws

  def shape(self, i: int) -> List[Optional[int]]:
    """The shape of an input."""
    return _shape(self.op.inputs[i])

  def out(self, i: int = 0) -> List[Optional[int]]:
    """The shape of an output."""
    return _shape(self.op.outputs[i])

  def static(self, i: int) -> np.ndarray:
    """The value of an input that is a constant."""
    found = static(self.op.inputs[i])
    if found is None:
      raise unknown('has arguments that are no constants')
    return found

  def whole(self, i: int) -> int:
    """The number in an input that is a constant, of shape () or (1,)."""
    return int(self.static(i).item())

  def rows(self) -> List[int]:
    """The inputs that are ROW_WISE."""
    return [i for i, v in enumerate(self.values) if v.dependence == Dependence.ROW_WISE]


def _shape(tensor: tf.Tensor) -> List[Optional[int]]:
  if tensor.shape.rank is None:
    raise unknown('makes or takes a tensor of unknown rank')
  return tensor.shape.as_list()


def static(tensor: tf.Tensor) -> Optional[np.ndarray]:
  """The value of a small tensor of constants, or None."""
  found = tf.get_static_value(tensor)
  if found is not None:
    return np.asarray(found)
  op = tensor.op
  size = size_taken(op)
  if size is not None:
    return np.asarray(size, tensor.dtype.as_numpy_dtype)
  if op.type not in _FOLDING:
    return None
  inputs = [static(operand) for operand in op.inputs]
  known = [value for value in inputs if value is not None and value.size <= _FOLDED]
  if len(known) < len(inputs):
    return None
  return folded(op, known)[tensor.value_index]


def size_taken(op: tf.Operation) -> Optional[int]:
  """The size that an operation takes from a shape, if it is a constant."""
  if op.type != 'StridedSlice' or op.inputs[0].op.type != 'Shape' or (
      op.get_attr('shrink_axis_mask') != 1):
    return None
  shape = op.inputs[0].op.inputs[0].shape
  begin = static(op.inputs[1])
  return None if begin is None or shape.rank is None else shape[int(begin[0])]


def folded(op: tf.Operation, inputs: List[np.ndarray]) -> List[np.ndarray]:
  """Runs an operation on constants."""
  with tf.init_scope():
    return [np.asarray(output) for output in rerun(op, inputs)]


def rerun(op: tf.Operation, inputs: Sequence[Any]) -> List[Any]:
  """The outputs of an operation of other inputs."""
  values = iter(inputs)
  arguments: Dict[str, Any] = {}
  inferred: Set[str] = set()
  for arg in op.op_def.input_arg:
    inferred.update((arg.type_attr, arg.number_attr))
    # The one name that Python has another for.
    arguments[arg.name.replace('reduction_indices', 'axis')] = (
        [next(values) for _ in range(op.get_attr(arg.number_attr))]
        if arg.number_attr else next(values))
  arguments.update((attr.name, op.get_attr(attr.name))
                   for attr in op.op_def.attr if attr.name not in inferred)
  return tf.nest.flatten([getattr(tf.raw_ops, op.type)(**arguments)])


_FOLDING = frozenset((
    'AddV2', 'BroadcastGradientArgs', 'Cast', 'ConcatOffset', 'ConcatV2',
    'ExpandDims', 'FloorDiv', 'FloorMod', 'GatherV2', 'Identity',
    'InvertPermutation', 'Maximum', 'Minimum', 'Mul', 'Pack', 'Prod', 'Range',
    'Reshape', 'Slice', 'Squeeze', 'StridedSlice', 'Sub'))
"""What axes and shapes are computed by, from constants."""


def sizes_by_batch(tensor: tf.Tensor, value: Value) -> Optional[List[np.ndarray]]:
  """The value of sizes for each of `BATCH_SIZES` of examples, if it is known."""
  if value.sizes is not None:
    return [np.asarray(size, np.int32) for size in value.sizes]
  found = static(tensor) if value.dependence == Dependence.CONSTANT else None
  return None if found is None else [found] * len(BATCH_SIZES)


def sized(values: Sequence[np.ndarray]) -> Value:
  """A `Value` of sizes; lists, since arrays do not compare."""
  return Value(Dependence.BATCH_SIZE, sizes=tuple(map(_nested_tuple, values)))


def _nested_tuple(array: np.ndarray) -> Any:
  return tuple(map(_nested_tuple, array)) if np.ndim(array) else int(array)


def constant(tensor: tf.Tensor) -> Value:
  """What is known of a tensor without inputs, or of a captured one."""
  value = (None if tensor.dtype in (tf.resource, tf.variant) else
           tf.get_static_value(tensor))
  if value is None or np.size(value) > _FOLDED:
    return CONSTANT
  value = np.asarray(value)
  return Value(Dependence.CONSTANT, varies=frozenset(
      k for k in range(value.ndim)
      if value.size and not np.all(value == value.take([0], k))))


def join(first: Value, second: Value) -> Value:
  """What is known of a tensor that is either."""
  worst = max(first, second, key=lambda value: value.dependence)
  if worst.dependence >= Dependence.UNKNOWN or first == second:
    return worst
  if first.dependence == second.dependence == Dependence.CONSTANT:
    if first.varies is None or second.varies is None:
      return CONSTANT
    return Value(Dependence.CONSTANT, varies=first.varies | second.varies)
  free = min(first, second, key=lambda value: value.dependence)
  if worst.dependence == Dependence.ROW_WISE and (
      free.dependence == Dependence.CONSTANT and free.varies is not None and
      worst.axis not in free.varies):
    return worst
  return Value(Dependence.UNKNOWN, why='branches or rounds of a loop that do not agree')


def first_violation(values: Sequence[Value], axis: int = 0) -> Optional[Value]:
  """The first of several outputs that is not one row for each example.

  Args:
    values: What is known of the outputs.
    axis: Where their rows are to be.

  Returns:
    A value that is MIXED or UNKNOWN, saying why; or None. MIXED goes first.
  """
  bad = []
  for value in values:
    if value.dependence >= Dependence.UNKNOWN:
      bad.append(value)
    elif value.dependence == Dependence.BATCH_SIZE:
      bad.append(Value(Dependence.MIXED, why='a value of the number of examples'))
    elif value.dependence == Dependence.CONSTANT:
      if value.varies is None or axis in value.varies:
        bad.append(Value(
            Dependence.UNKNOWN, why='values that go by the place in the batch'))
    elif value.axis != axis or value.block != 1:
      bad.append(Value(Dependence.UNKNOWN, why='another axis than that of the batch'))
  return max(bad, key=lambda value: value.dependence, default=None)


def as_multiples(sizes: Sequence[Sequence[int]]) -> List[Tuple[int, bool]]:
  """Of each size, (c, False) where it is c, or (c, True) where it is c B."""
  (n, m), found = BATCH_SIZES, []
  for a, b in zip(*sizes):
    if a == b:
      found.append((int(a), False))
    elif a * m == b * n and a > 0:
      found.append((int(a) // n, True))
    else:
      raise unknown('is of a shape that is of the number of examples')
  return found


def check_same(node: Node, i: int, axis: int, size: Optional[int]) -> None:
  """Refuses a constant that is another for other places of the batch."""
  if not 0 <= axis < len(node.shape(i)) or node.shape(i)[axis] == 1:
    return
  varies = node.values[i].varies
  if varies is None or axis in varies or node.shape(i)[axis] != size or (
      size is None):
    raise unknown('treats examples by their place in the batch')


def only_operand(node: Node, i: int = 0) -> Value:
  """The value of an input that alone may be of examples."""
  for k, value in enumerate(node.values):
    if k != i and value.dependence != Dependence.CONSTANT:
      raise unknown('takes an argument that is of the examples')
  return node.values[i]
