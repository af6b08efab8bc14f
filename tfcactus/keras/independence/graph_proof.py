"""Follows the examples of a batch through a traced graph; see `dependence`."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Callable

import numpy as np
import tensorflow as tf

from tfcactus.keras.independence import (
  constants,
  dependence,
  draws as draws_lib,
  lists,
  operations,
  shape_checks,
)
from tfcactus.keras.independence.dependence import (
  BATCH_SIZE,
  CONSTANT,
  Dependence,
  Node,
  NotRowWise,
  unknown,
  Value,
)


def analyse(graph: tf.Graph, inputs: dict[str, Value], outputs: Sequence[tf.Tensor],
            draws: draws_lib.Draws | None = None) -> list[Value]:
  """Returns abstract values of the outputs of a `FuncGraph`.

  `inputs` has the values of the graph's inputs by tensor name; an input that is left
  out counts as CONSTANT. Captured tensors are CONSTANT if eager, else UNKNOWN, since
  they belong to another graph; `inputs` may have other values for them.

  If `draws` is None, a random draw counts as equal for all examples, or as one row per
  example if its shape depends on their number. This is right for derivatives in which
  the drawn numbers are held fixed. It is never right for a privacy guarantee.
  """
  known = dict(inputs)
  for outside, inside in getattr(graph, 'captures', ()):
    if inside.name not in known:
      eager = isinstance(outside, tf.__internal__.EagerTensor)
      known[inside.name] = dependence.constant(outside) if eager else Value(
          Dependence.UNKNOWN, why=f'a tensor of another graph, {outside}')
  for op in needed(outputs, known):
    if any(tensor.name not in known for tensor in op.outputs):
      values = _evaluate(
          op, [known[tensor.name] for tensor in op.inputs], draws)
      known.update((tensor.name, value)
                   for tensor, value in zip(op.outputs, values))
  return [known[tensor.name] for tensor in outputs]


def first_dependence(graph: tf.Graph, examples: Sequence[tf.Tensor],
                     outputs: Sequence[tf.Tensor], number: int | None = None
                    ) -> Value | None:
  """Returns why outputs are not proved to be one row per example, or None.

  `examples` are the inputs of the `FuncGraph` whose first axis is the batch axis, and
  `number` counts them, or is None. The result is MIXED, or else UNKNOWN, with a reason.
  """
  known = {tensor.name: dependence.ROW_WISE for tensor in examples}
  return dependence.first_violation(
      analyse(graph, known, outputs, draws_lib.Draws(number)))


def needed(outputs: Sequence[tf.Tensor], known: Container[str]
           ) -> list[tf.Operation]:
  """Returns operations that outputs need, inputs first.

  Leaves out operations that are needed for inputs in `known` only.
  """
  # Creation order would not do: differentiation adds inputs to existing loops.
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


def _evaluate(op: tf.Operation, values: list[Value],
              draws: draws_lib.Draws | None) -> list[Value]:
  """Returns an operation's output values; MIXED or UNKNOWN if no rule accepts it."""
  node = Node(op, values, draws)
  worst = max(values, key=lambda value: value.dependence, default=CONSTANT)
  constant = worst.dependence == Dependence.CONSTANT
  found: Value | list[Value]
  try:
    if worst.dependence < Dependence.UNKNOWN and op.type in shape_checks.CHECKS:
      shape_checks.CHECKS[op.type](node)
    if worst.dependence >= Dependence.UNKNOWN:
      found = worst
    elif constant and (seed := draws_lib.seed_of(node)):
      found = Value(Dependence.CONSTANT, seed=seed)
    elif op.type in CALLS and (not constant or lists.has_lists(op)):
      # Only the body tells the shapes of items in lists, also of constants.
      found = CALLS[op.type](node)
    elif draws_lib.takes_seed_for_numbers(node):
      raise unknown('takes a seed for numbers')
    elif lists.has_lists(op):
      found = lists.value(node)
    elif constant:
      found = constants.value(node)
    elif worst.dependence == Dependence.BATCH_SIZE:
      found = _of_sizes(node)
    elif op.type in operations.TRANSFER:
      found = operations.TRANSFER[op.type](node)
    else:
      raise unknown('is not known to treat each example alone')
  except NotRowWise as refusal:
    found = Value(refusal.dependence, why=f'{op.type} in {op.name!r} {refusal}')
  found = found if isinstance(found, list) else [found] * len(op.outputs)
  if worst.dependence >= Dependence.UNKNOWN:
    return found
  found = shape_checks.written(op, found)
  # The violation is in this operation or in a function that it calls.
  return [value._replace(operation=op.name)
          if value.dependence >= Dependence.UNKNOWN else value for value in found]


def _of_sizes(node: Node) -> Value | list[Value]:
  """Returns the values of outputs if all inputs are BATCH_SIZE or CONSTANT.

  A tensor that is filled, drawn or repeated to a shape, of which one axis only depends
  on the number of examples, is ROW_WISE along that axis.
  """
  kind = node.op.type
  place = _SHAPE_ARGUMENT.get(kind)
  others = [value for i, value in enumerate(node.values) if i != place]
  if place is None or any(
      value.dependence == Dependence.BATCH_SIZE for value in others):
    return _computed_size(node)
  if kind in draws_lib.SHAPE_ARGUMENT and node.draws is not None:
    node.draws.check(node)  # Raises unless the seed is secret and used once.
  out = dependence.sizes_by_batch(node.op.inputs[place], node.values[place])
  if out is None:
    return BATCH_SIZE
  # `size` is the length of an axis, for Tile its repeats; per example if `by_rows`.
  sizes = dependence.as_multiples([list(each) for each in out])
  rows = [(axis, size) for axis, (size, by_rows) in enumerate(sizes) if by_rows]
  if kind in ('BroadcastTo', 'Tile'):
    # Only axes of size 1 may be repeated, so that all repeats are equal.
    shape = [1] * (len(sizes) - len(node.shape(0))) + node.shape(0)
    if any(own != 1 and (by_rows or kind == 'Tile' and size != 1)
           for own, (size, by_rows) in zip(shape, sizes)):
      return BATCH_SIZE
  # The number of examples must set the size of one axis only.
  return Value(Dependence.ROW_WISE, *rows[0]) if len(rows) == 1 else BATCH_SIZE


def _computed_size(node: Node) -> Value | list[Value]:
  """Returns values of integers computed from sizes, with `Value.sizes` if known."""
  # A size that is read from a shape and is the same in all batches is CONSTANT.
  if dependence.size_taken(node.op) is not None:
    return CONSTANT
  operands = [dependence.sizes_by_batch(tensor, value)
              for tensor, value in zip(node.op.inputs, node.values)]
  known = [sizes for sizes in operands if sizes is not None]
  # Operands from `first` on are axes, places or shapes: if one depends on the number of
  # examples, it may pick any number. Dtypes other than int32 and int64 would overflow
  # soon, or have fractions.
  first = {'ConcatV2': -1, 'Mul': 2, 'Pack': len(known)}.get(node.op.type, 1)
  if node.op.type not in _MONOMIAL or len(known) < len(operands) or any(
      tensor.dtype not in (tf.int32, tf.int64) for tensor in node.op.outputs) or any(
          not np.array_equal(one, other) for one, other in known[first:]):
    return BATCH_SIZE
  found = zip(*(dependence.folded(node.op, [sizes[k] for sizes in known])
                for k in range(len(dependence.BATCH_SIZES))))
  return [dependence.sized(values) for values in found]


def _body(node: Node, name: str, values: Sequence[Value]) -> list[Value]:
  """Returns output values of the function named in attribute `name`, on `values`."""
  graph = dependence.called(node.op, name)
  if graph is None:
    raise unknown('calls a function that cannot be looked into')
  known = {tensor.name: value for tensor, value in zip(graph.inputs, values)}
  return analyse(graph, known, graph.outputs, node.draws)


def _if(node: Node) -> list[Value]:
  """Follows a conditional: joins both branches; the condition must be CONSTANT."""
  if node.values[0].dependence != Dependence.CONSTANT:
    raise unknown('chooses by what is in the data')
  first, second = (_body(node, name, node.values[1:])
                   for name in ('then_branch', 'else_branch'))
  tensors = (getattr(dependence.called(node.op, name), 'outputs', ())
             for name in ('then_branch', 'else_branch'))
  return _joined(node, first, second, *tensors)


def _joined(node: Node, first: Sequence[Value], second: Sequence[Value],
            one: Sequence[tf.Tensor], other: Sequence[tf.Tensor]) -> list[Value]:
  """Returns joins of values: `first` are of tensors `one`, `second` of `other`."""
  found = []
  for a, b, *tensors in zip(first, second, one, other):
    rows = max(a, b, key=lambda value: value.dependence)
    # Sizes of both tensors along the examples' axis, None if unknown: a constant joins
    # rows only if it has as many entries there.
    sizes = {tensor.shape[rows.axis] if rows.axis < (tensor.shape.rank or 0) else None
             for tensor in tensors}
    if node.draws is not None and node.draws.number is not None:
      sizes = sizes - {None} | {node.draws.number * abs(rows.block)}
    # No guarantee rests on an analysis without draws, which compares no sizes.
    found.append(
        lists.join(node, a, b) if tensors[0].dtype == tf.variant else dependence.join(
            a, b, node.draws is None or len(sizes) == 1 and None not in sizes))
  return found


def _while(node: Node) -> list[Value]:
  """Follows a loop of CONSTANT length: returns values that cover all iterations."""
  values = node.values
  made = getattr(dependence.called(node.op, 'body'), 'outputs', ())
  # Joins only make values worse. Most loops settle within two rises of each value; the
  # others are refused, which is safe.
  for _ in range(2 * len(values) + 2):
    # If the number of iterations depended on the number of examples, so would counters.
    if _body(node, 'cond', values)[0].dependence != Dependence.CONSTANT:
      raise unknown('goes on by what is in the data')
    more = _joined(
        node, values, _body(node, 'body', values), node.op.inputs, made)
    if more == values:
      return values
    values = more
  raise unknown('is a loop too deep to follow')


CALLS: dict[str, Callable[[Node], list[Value]]] = {
    **dict.fromkeys(('PartitionedCall', 'StatefulPartitionedCall'),
                    lambda node: _body(node, 'f', node.values)),
    'If': _if, 'StatelessIf': _if, 'While': _while, 'StatelessWhile': _while}
"""Transfer functions of operations that call functions."""

_MONOMIAL = frozenset((
    'Cast', 'ConcatV2', 'ExpandDims', 'GatherV2', 'Identity', 'Mul', 'Pack', 'Prod',
    'Reshape', 'Slice', 'Squeeze', 'StridedSlice'))
"""Operations that map integers c B^k, for B examples, to integers of that form."""

_SHAPE_ARGUMENT = {
    'Fill': 0, 'BroadcastTo': 1, 'Tile': 1, **draws_lib.SHAPE_ARGUMENT}
"""{type of operation: the input that determines the shape of the output}."""
