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
from typing import Dict
from typing import FrozenSet
from typing import List
from typing import NamedTuple
from typing import Optional
from typing import Sequence

import numpy as np
import tensorflow as tf

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
    why: Of UNKNOWN and MIXED, the operation and what it does.
  """

  kind: Kind
  axis: int = 0
  block: int = 1
  varies: Optional[FrozenSet[int]] = None
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
  return _folded(op, inputs)[tensor.value_index]


def _folded(op: Any, inputs: List[np.ndarray]) -> List[np.ndarray]:
  """Runs an operation on constants."""
  values, arguments, inferred = iter(inputs), {}, set()
  for arg in op.op_def.input_arg:
    inferred.update((arg.type_attr, arg.number_attr))
    arguments[arg.name] = (
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


def analyse(graph: Any, inputs: Dict[str, Value], outputs: Sequence[tf.Tensor]
           ) -> List[Value]:
  """What is known of the outputs of a graph.

  Args:
    graph: A `FuncGraph`.
    inputs: What its inputs are, by the names of their tensors. Tensors that it
      captured are FREE if they are no tensors of another graph.
    outputs: Tensors of the graph.
  """
  from tfcactus.keras import _alone_ops  # pylint: disable=g-import-not-at-top
  known = dict(inputs)
  for outside, inside in getattr(graph, 'captures', ()):
    if inside.name not in known:
      known[inside.name] = (
          constant(outside) if isinstance(outside, tf.__internal__.EagerTensor)
          else Value(Kind.UNKNOWN, why=f'a tensor of another graph, {outside}'))
  for op in _needed(graph, outputs, known):
    if any(tensor.name not in known for tensor in op.outputs):
      values = _alone_ops.evaluate(
          op, [known[tensor.name] for tensor in op.inputs])
      known.update((tensor.name, value)
                   for tensor, value in zip(op.outputs, values))
  return [known[tensor.name] for tensor in outputs]


def _needed(graph: Any, outputs: Sequence[tf.Tensor], known: Dict[str, Value]
           ) -> List[Any]:
  """The operations that outputs depend on, inputs of each before it."""
  wanted, stack = set(), [tensor.op for tensor in outputs]
  while stack:
    op = stack.pop()
    if op.name not in wanted:
      wanted.add(op.name)
      stack.extend(tensor.op for tensor in op.inputs
                   if tensor.name not in known)
  return [op for op in graph.get_operations() if op.name in wanted]


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
