"""Follows the examples of a batch through a traced graph; see `kinds`."""

from __future__ import annotations

from typing import Any
from typing import Callable
from typing import Dict
from typing import FrozenSet
from typing import List
from typing import Sequence
from typing import Union

import numpy as np
import tensorflow as tf

from tfcactus.keras.independence import kinds
from tfcactus.keras.independence import operations
from tfcactus.keras.independence.kinds import FREE
from tfcactus.keras.independence.kinds import Kind
from tfcactus.keras.independence.kinds import Node
from tfcactus.keras.independence.kinds import Refusal
from tfcactus.keras.independence.kinds import SAME
from tfcactus.keras.independence.kinds import SIZED
from tfcactus.keras.independence.kinds import unknown
from tfcactus.keras.independence.kinds import Value


def analyse(graph: Any, inputs: Dict[str, Value], outputs: Sequence[tf.Tensor]
           ) -> List[Value]:
  """What is known of the outputs of a graph.

  Args:
    graph: A `FuncGraph`.
    inputs: What its inputs are, by the names of their tensors. Tensors that it
      captured are FREE if they are no tensors of another graph.
    outputs: Tensors of the graph.
  """
  known = dict(inputs)
  for outside, inside in getattr(graph, 'captures', ()):
    if inside.name not in known:
      known[inside.name] = (
          kinds.constant(outside) if isinstance(outside, tf.__internal__.EagerTensor)
          else Value(Kind.UNKNOWN, why=f'a tensor of another graph, {outside}'))
  for op in _needed(outputs, known):
    if any(tensor.name not in known for tensor in op.outputs):
      values = _evaluate(
          op, [known[tensor.name] for tensor in op.inputs])
      known.update((tensor.name, value)
                   for tensor, value in zip(op.outputs, values))
  return [known[tensor.name] for tensor in outputs]


def _needed(outputs: Sequence[tf.Tensor], known: Dict[str, Value]) -> List[Any]:
  """The operations that outputs depend on, inputs of each before it."""
  # Not in the order they were made in: loops get inputs once differentiated.
  order, seen = {}, set()
  stack = [(tensor.op, False) for tensor in outputs]
  while stack:
    op, ready = stack.pop()
    if ready:
      order[op.name] = op
    elif op.name not in seen:
      seen.add(op.name)
      stack.append((op, True))
      stack.extend((tensor.op, False) for tensor in op.inputs
                   if tensor.name not in known)
  return list(order.values())


def _evaluate(op: Any, values: Sequence[Value]) -> List[Value]:
  """What is known of an operation's outputs, from what is of its inputs."""
  node = Node(op, values)
  worst = max(values, key=lambda value: value.kind, default=FREE)
  try:
    if worst.kind == Kind.FREE:
      found = _of_free(node)
    elif worst.kind >= Kind.UNKNOWN:
      found = worst
    elif op.type in _CALLS:
      found = _CALLS[op.type](node)
    elif worst.kind == Kind.SIZED:
      found = _of_sized(node)
    elif op.type in operations.RULES:
      found = operations.RULES[op.type](node)
    else:
      raise unknown('is not known to treat each example alone')
  except Refusal as refusal:
    found = Value(refusal.kind, why=f'{op.type} in {op.name!r} {refusal}')
  return found if isinstance(found, list) else [found] * len(op.outputs)


def _of_free(node: Node) -> Value:
  kind = node.op.type
  if not node.op.inputs:
    return kinds.constant(node.op.outputs[0]) if node.op.outputs else FREE
  if kind in _SAME or kind in _RANDOM:
    return SAME
  if (kind in operations.ELEMENTWISE or kind == 'Tile') and (
      node.op.outputs[0].shape.rank is not None):
    rank, varies = len(node.out()), frozenset()
    alone = kind in ('BroadcastTo', 'Tile')  # Of two, the other is a shape.
    for i, value in enumerate(node.values[:1] if alone else node.values):
      shape = node.shape(i)
      varies |= {k + rank - len(shape) for k, size in enumerate(shape)
                 if size != 1 and (value.varies is None or k in value.varies)}
    return Value(Kind.FREE, varies=varies)
  if kind in operations.REDUCTIONS and node.values[0].varies is not None:
    return _reduced_free(node)
  if kind in ('Reshape', 'ExpandDims', 'Transpose', 'Squeeze') and (
      node.values[0].varies == frozenset() or
      node.op.outputs[0].shape.num_elements() == 1):
    return SAME
  return FREE


def _reduced_free(node: Node) -> Value:
  axes = kinds.static(node.op.inputs[1])
  rank = node.op.inputs[0].shape.rank
  if axes is None or rank is None:
    return FREE
  axes = {int(axis) % rank for axis in np.ravel(axes)}
  kept = node.values[0].varies - axes
  if not node.op.get_attr('keep_dims'):
    kept = {axis - sum(k < axis for k in axes) for axis in kept}
  return Value(Kind.FREE, varies=frozenset(kept))


def _of_sized(node: Node) -> Value:
  """Without examples, but made to the number of them."""
  kind = node.op.type
  place = _SHAPE_ARGUMENT.get(kind, 0 if kind in _RANDOM else None)
  if place is None or any(value.kind == Kind.SIZED for i, value in enumerate(
      node.values) if i != place):
    return _computed_size(node)
  if kind == 'TensorListReserve':
    return SAME
  out = kinds.per_number(node.op.inputs[place], node.values[place])
  if out is None:
    return SIZED
  if kind in ('BroadcastTo', 'Tile'):
    shape = [1] * (len(out[0]) - len(node.shape(0))) + node.shape(0)
    found = [(k, size) for k, size in enumerate(kinds.by_number(out))
             if size[1] or kind == 'Tile' and size[0] != 1]
    if any(shape[k] != 1 for k, _ in found):
      return SIZED
    found = [part for part in found if part[1][1]]
  else:
    found = [(k, size) for k, size in enumerate(kinds.by_number(out)) if size[1]]
  if len(found) != 1:
    return SIZED
  (axis, (block, _)), = found
  return Value(Kind.ROWS, axis, block)


def _computed_size(node: Node) -> Union[Value, List[Value]]:
  """Sizes made from sizes, by products and by moving them alone."""
  if _is_known_size(node.op):
    return FREE
  parts = [kinds.per_number(tensor, value)
           for tensor, value in zip(node.op.inputs, node.values)]
  if node.op.type not in _MONOMIAL or any(part is None for part in parts):
    return SIZED
  found = zip(*(kinds.folded(node.op, [part[k] for part in parts])
                for k in range(len(kinds.NUMBERS))))
  return [kinds.sized(values) for values in found]


def _is_known_size(op: Any) -> bool:
  """Whether it takes from a shape one size that is a constant."""
  if op.type != 'StridedSlice' or op.inputs[0].op.type != 'Shape' or (
      op.get_attr('shrink_axis_mask') != 1):
    return False
  shape = op.inputs[0].op.inputs[0].shape
  begin = kinds.static(op.inputs[1])
  return begin is not None and shape[int(begin[0])] is not None


def _body(node: Node, name: str, values: Sequence[Value]) -> List[Value]:
  """Runs a function of the graph."""
  called = node.op.get_attr(name)
  graph = node.op.graph._get_function(called.name).graph  # pylint: disable=protected-access
  known = {tensor.name: value for tensor, value in zip(graph.inputs, values)}
  return analyse(graph, known, graph.outputs)


def _call(node: Node) -> List[Value]:
  return _body(node, 'f', node.values)


def _if(node: Node) -> List[Value]:
  if node.values[0].kind != Kind.FREE:
    raise unknown('chooses by what is in the data')
  first, second = (_body(node, name, node.values[1:])
                   for name in ('then_branch', 'else_branch'))
  return [kinds.joined(a, b) for a, b in zip(first, second)]


def _while(node: Node) -> List[Value]:
  values = node.values
  for _ in range(2 * len(values) + 2):
    # Not of their number either: what is counted would be.
    if _body(node, 'cond', values)[0].kind != Kind.FREE:
      raise unknown('goes on by what is in the data')
    more = _body(node, 'body', values)
    more = [kinds.joined(a, b) for a, b in zip(values, more)]
    if more == values:
      return values
    values = more
  raise unknown('is a loop too deep to follow')


_CALLS: Dict[str, Callable[[Node], List[Value]]] = {
    'PartitionedCall': _call, 'StatefulPartitionedCall': _call, 'If': _if,
    'StatelessIf': _if, 'While': _while, 'StatelessWhile': _while}

_SAME = frozenset(('Fill', 'ZerosLike', 'OnesLike', 'TensorListReserve',
                   'EmptyTensorList'))
_RANDOM: FrozenSet[str] = frozenset(
    ('RandomUniform', 'RandomUniformInt', 'RandomStandardNormal',
     'TruncatedNormal', 'StatelessRandomUniform', 'StatelessRandomUniformV2',
     'StatelessRandomUniformInt', 'StatelessRandomUniformIntV2',
     'StatelessRandomUniformFullIntV2', 'StatelessRandomNormal',
     'StatelessRandomNormalV2', 'StatelessTruncatedNormal',
     'StatelessTruncatedNormalV2', 'StatefulUniform', 'StatefulUniformInt',
     'StatefulStandardNormalV2', 'StatefulTruncatedNormal'))

_MONOMIAL = frozenset((
    'Cast', 'ConcatV2', 'ExpandDims', 'GatherV2', 'Identity', 'Mul', 'Pack', 'Prod',
    'Reshape', 'Slice', 'Squeeze', 'StridedSlice'))
"""Under which c B^k stays of that form."""

_SHAPE_ARGUMENT = {
    'Fill': 0, 'BroadcastTo': 1, 'Tile': 1, 'TensorListReserve': 0,
    'StatefulUniform': 2, 'StatefulUniformInt': 2, 'StatefulStandardNormalV2': 2,
    'StatefulTruncatedNormal': 2}
"""Which input says what shape a constant or a draw is to have."""
