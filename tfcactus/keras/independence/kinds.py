"""Whether a traced computation treats each example of a batch alone: a proof.

Each tensor of a graph is given one of five kinds, from the inputs on:

- FREE: of neither the examples nor their number;
- SIZED: of their number alone;
- ROWS: along one axis each example has its own place (`block` places next to
  each other), whose entries are the same function of that example, wherever in
  the batch it stands and whatever stands beside it;
- MIXED: found to be of several examples at once;
- UNKNOWN: made by an operation that nothing here is known about.

Only what the rules in `_alone_ops` say of an operation is believed: one that
nobody thought of makes its outputs UNKNOWN, so that ROWS at the end is a proof.
Draws of random numbers count as the same for all examples.
"""

from __future__ import annotations

import enum
from typing import Any
from typing import FrozenSet
from typing import List
from typing import NamedTuple
from typing import Optional
from typing import Sequence
from typing import Tuple

import numpy as np
import tensorflow as tf

NUMBERS = (5, 7)
_FOLDED = 4096
"""Constants of more numbers are not looked into."""


class Kind(enum.IntEnum):
  """What a tensor depends on, the worst last."""

  FREE = 0
  SIZED = 1
  ROWS = 2
  UNKNOWN = 3
  MIXED = 4


class Value(NamedTuple):
  """What is known of a tensor; of a list of tensors, of each of them.

  Attributes:
    kind: Its kind.
    axis: Of ROWS, the axis of the examples.
    block: Of ROWS, how many neighbouring places of that axis are one example's;
      of negative, all examples follow each other that many times.
    varies: Of FREE, the axes along which entries may differ; None for any.
    sizes: Of SIZED integers that are products of sizes, their values for each
      of `NUMBERS` of examples. Two tell c from c B, and both from any other
      power of B.
    why: Of UNKNOWN and MIXED, the operation and what it does.
  """

  kind: Kind
  axis: int = 0
  block: int = 1
  varies: Optional[FrozenSet[int]] = None
  sizes: Any = None
  why: str = ''


FREE = Value(Kind.FREE)
SAME = Value(Kind.FREE, varies=frozenset())
SIZED = Value(Kind.SIZED)
ROWS = Value(Kind.ROWS)


class Refusal(Exception):
  """A rule's finding that an operation does not treat examples alone.

  Attributes:
    kind: MIXED, or UNKNOWN.
  """

  def __init__(self, kind: Kind, what: str):
    super().__init__(what)
    self.kind = kind


def mixed(what: str) -> Refusal:
  """An operation that is of several examples at once."""
  return Refusal(Kind.MIXED, what)


def unknown(what: str) -> Refusal:
  """An operation that is not known to treat each alone."""
  return Refusal(Kind.UNKNOWN, what)


class Node:
  """One operation and what is known of its inputs.

  Attributes:
    op: The operation.
    values: One for each input.
  """

  def __init__(self, op: Any, values: Sequence[Value]):
    self.op = op
    self.values = list(values)

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

  def rows(self) -> List[int]:
    """The inputs of kind ROWS."""
    return [i for i, v in enumerate(self.values) if v.kind == Kind.ROWS]


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
  if op.type not in _FOLDING:
    return None
  inputs = [static(part) for part in op.inputs]
  if any(part is None or part.size > _FOLDED for part in inputs):
    return None
  return folded(op, inputs)[tensor.value_index]


def folded(op: Any, inputs: List[np.ndarray]) -> List[np.ndarray]:
  """Runs an operation on constants."""
  values, arguments, inferred = iter(inputs), {}, set()
  for arg in op.op_def.input_arg:
    inferred.update((arg.type_attr, arg.number_attr))
    # The one name that Python has another for.
    arguments[arg.name.replace('reduction_indices', 'axis')] = (
        [next(values) for _ in range(op.get_attr(arg.number_attr))]
        if arg.number_attr else next(values))
  arguments.update((attr.name, op.get_attr(attr.name))
                   for attr in op.op_def.attr if attr.name not in inferred)
  with tf.init_scope():
    found = getattr(tf.raw_ops, op.type)(**arguments)
    return [np.asarray(part) for part in tf.nest.flatten([found])]


_FOLDING = frozenset((
    'AddV2', 'BroadcastGradientArgs', 'Cast', 'ConcatOffset', 'ConcatV2',
    'ExpandDims', 'FloorDiv', 'FloorMod', 'GatherV2', 'Identity',
    'InvertPermutation', 'Maximum', 'Minimum', 'Mul', 'Pack', 'Prod', 'Range',
    'Reshape', 'Slice', 'Squeeze', 'StridedSlice', 'Sub'))
"""What axes and shapes are computed by, from constants."""


def per_number(tensor: tf.Tensor, value: Value) -> Optional[List[np.ndarray]]:
  """The value of sizes for each of `NUMBERS` of examples, if it is known."""
  if value.sizes is not None:
    return [np.asarray(part, np.int32) for part in value.sizes]
  found = static(tensor) if value.kind == Kind.FREE else None
  return None if found is None else [found] * len(NUMBERS)


def sized(values: Sequence[np.ndarray]) -> Value:
  """A `Value` of sizes; lists, since arrays do not compare."""
  return Value(Kind.SIZED, sizes=tuple(repr_of(part) for part in values))


def repr_of(array: np.ndarray) -> Any:
  """An array in nested tuples."""
  return tuple(map(repr_of, array)) if np.ndim(array) else int(array)


def constant(tensor: tf.Tensor) -> Value:
  """What is known of a tensor without inputs, or of a captured one."""
  value = (None if tensor.dtype in (tf.resource, tf.variant) else
           tf.get_static_value(tensor))
  if value is None or np.size(value) > _FOLDED:
    return FREE
  value = np.asarray(value)
  return Value(Kind.FREE, varies=frozenset(
      k for k in range(value.ndim)
      if value.size and not np.all(value == value.take([0], k))))


def joined(first: Value, second: Value) -> Value:
  """What is known of a tensor that is either."""
  worst = max(first, second, key=lambda value: value.kind)
  if worst.kind >= Kind.UNKNOWN or first == second:
    return worst
  if first.kind == second.kind == Kind.FREE:
    return FREE if None in (first.varies, second.varies) else Value(
        Kind.FREE, varies=first.varies | second.varies)
  free = min(first, second, key=lambda value: value.kind)
  if (worst.kind == Kind.ROWS and free.kind == Kind.FREE and
      free.varies is not None and worst.axis not in free.varies):
    return worst
  return Value(Kind.UNKNOWN, why='a branch or loop whose ways do not agree')


def why_not(values: Sequence[Value], axis: int = 0) -> Optional[Value]:
  """The first of several outputs that is not one row for each example.

  Args:
    values: What is known of the outputs.
    axis: Where their rows are to be.

  Returns:
    Its value, of kind MIXED or UNKNOWN; or None. MIXED goes first.
  """
  bad = []
  for value in values:
    if value.kind >= Kind.UNKNOWN:
      bad.append(value)
    elif value.kind == Kind.SIZED:
      bad.append(Value(Kind.MIXED, why='a value of the number of examples'))
    elif value.kind == Kind.FREE:
      if value.varies is None or axis in value.varies:
        bad.append(Value(
            Kind.UNKNOWN, why='values that go by the place in the batch'))
    elif value.axis != axis or value.block != 1:
      bad.append(Value(Kind.UNKNOWN, why='another axis than that of the batch'))
  return max(bad, key=lambda value: value.kind, default=None)


def by_number(sizes: Sequence[np.ndarray]) -> List[Tuple[int, bool]]:
  """Of each size, (c, False) where it is c, or (c, True) where it is c B."""
  (n, m), found = NUMBERS, []
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


def only(node: Node, i: int = 0) -> Value:
  """The value of an input that alone may be of examples."""
  for k, value in enumerate(node.values):
    if k != i and value.kind != Kind.FREE:
      raise unknown('takes an argument that is of the examples')
  return node.values[i]
