"""Operations on constants, and the axes along which their outputs may vary.

A loop over time begins with states that are equal for all examples and become functions
of the examples only inside the loop. So the proof follows along which axes a tensor
made of constants may vary.
"""

from __future__ import annotations

from typing import Callable

import numpy as np

from tfcactus.keras.independence import dependence, draws as draws_lib, operations
from tfcactus.keras.independence.dependence import (
  CONSTANT,
  Dependence,
  Node,
  UNIFORM,
  unknown,
  Value,
)

Axes = frozenset[int]


def value(node: Node) -> Value:
  """Returns the value of outputs whose inputs are CONSTANT; NotRowWise for some."""
  kind = node.op.type
  if seed := draws_lib.seed_of(node):
    return Value(Dependence.CONSTANT, seed=seed)
  if draws_lib.takes_seed_for_numbers(node):
    raise unknown('takes a seed for numbers')
  if not node.op.inputs:
    return dependence.constant(node.op.outputs[0]) if node.op.outputs else CONSTANT
  if kind in _FILLING:
    return UNIFORM
  if kind in draws_lib.SHAPE_ARGUMENT:
    return draws_lib.drawn(node)
  if (kind in operations.ELEMENTWISE or kind == 'Tile') and (
      node.op.outputs[0].shape.rank is not None):
    rank = len(node.out())
    varies: frozenset[int] = frozenset()
    alone = kind in ('BroadcastTo', 'Tile')  # Their second input is a shape.
    for i, each in enumerate(node.values[:1] if alone else node.values):
      shape = node.shape(i)
      varies |= {k + rank - len(shape) for k, size in enumerate(shape)
                 if size != 1 and (each.varies is None or k in each.varies)}
    return Value(Dependence.CONSTANT, varies=varies)
  if kind in operations.REDUCTIONS and node.values[0].varies is not None:
    return _reduced_constant(node)
  if kind in ('Reshape', 'ExpandDims', 'Transpose', 'Squeeze') and (
      node.values[0].varies == frozenset() or
      node.op.outputs[0].shape.num_elements() == 1):
    return UNIFORM
  return Value(Dependence.CONSTANT, varies=_varies(node))


def _reduced_constant(node: Node) -> Value:
  found = dependence.static(node.op.inputs[1])
  rank, varies = node.op.inputs[0].shape.rank, node.values[0].varies
  if found is None or rank is None or varies is None:
    return CONSTANT
  axes = {int(axis) % rank for axis in np.ravel(found)}
  kept: set[int] = set(varies - axes)
  if not node.op.get_attr('keep_dims'):
    kept = {axis - sum(k < axis for k in axes) for axis in kept}
  return Value(Dependence.CONSTANT, varies=frozenset(kept))


def _varies(node: Node) -> Axes | None:
  """Returns the axes along which the output on constants may vary; None for any."""
  rule = _VARIES.get(node.op.type)
  try:
    return None if rule is None else rule(node)
  except dependence.NotRowWise:  # A rank or an argument is not known.
    return None


def _axes(node: Node, i: int) -> Axes:
  """Returns the axes along which an input may vary."""
  varies = node.values[i].varies
  shape = node.shape(i)
  every = range(len(shape)) if varies is None else varies
  return frozenset(k for k in every if shape[k] != 1)


def _matmul(node: Node) -> Axes:
  """Sums over the inner axis: rows vary as those of x, columns as those of y."""
  names = ('transpose_a', 'transpose_b') if node.op.type == 'MatMul' else (
      'adj_x', 'adj_y')
  rank, found = len(node.out()), set()
  for i, name in enumerate(names):
    own = len(node.shape(i))
    flipped = node.op.get_attr(name)
    outer = own - 2 + (i != int(flipped))
    for axis in _axes(node, i):
      if axis < own - 2:
        found.add(axis + rank - own)
      elif axis == outer:
        found.add(rank - 2 + i)
  return frozenset(found)


def _convolution(node: Node) -> Axes:
  """Varies along the batch only if the images do, and possibly along all other axes."""
  others = frozenset(range(1, len(node.out())))
  return others | (_axes(node, 0) & {0})


def _split(node: Node) -> Axes:
  return _axes(node, 1 if node.op.type == 'Split' else 0)


def _part(node: Node) -> Axes:
  return _axes(node, 0)


def _concat(node: Node) -> Axes | None:
  axis = dependence.static(node.op.inputs[-1])
  if axis is None:
    return None
  count = len(node.values) - 1
  return frozenset({int(axis) % len(node.out())}).union(
      *(_axes(node, i) for i in range(count)))


def _pack(node: Node) -> Axes:
  at = node.op.get_attr('axis') % len(node.out())
  return frozenset({at}).union(
      axis + (at <= axis) for i in range(len(node.values)) for axis in _axes(node, i))


def _expand(node: Node) -> Axes | None:
  place = dependence.static(node.op.inputs[1])
  if place is None:
    return None
  at = int(place) % len(node.out())
  return frozenset(axis + (at <= axis) for axis in _axes(node, 0))


def _squeeze(node: Node) -> Axes | None:
  rank = len(node.shape(0))
  gone = {axis % rank for axis in node.op.get_attr('squeeze_dims')}
  if not gone:
    return None
  return frozenset(axis - sum(k < axis for k in gone) for axis in _axes(node, 0))


def _bias(node: Node) -> Axes | None:
  if node.op.get_attr('data_format') == b'NCHW':
    return None
  return _axes(node, 0) | {len(node.out()) - 1}


def _item(node: Node) -> Axes | None:
  """Returns the axes of a list, which hold for each of its items."""
  return node.values[0].varies


def _with_item(node: Node) -> Axes | None:
  first, last = node.values[0].varies, node.values[-1].varies
  return None if first is None or last is None else first | last


def _from_tensor(node: Node) -> Axes:
  return frozenset(axis - 1 for axis in _axes(node, 0) if axis)


def _stack(node: Node) -> Axes | None:
  varies = node.values[0].varies
  return None if varies is None else frozenset({0}).union(k + 1 for k in varies)


_VARIES: dict[str, Callable[[Node], Axes | None]] = {
    **dict.fromkeys(('MatMul', 'BatchMatMul', 'BatchMatMulV2'), _matmul),
    **dict.fromkeys(('Conv2D', 'Conv3D'), _convolution),
    **dict.fromkeys(('Split', 'SplitV'), _split),
    'BiasAdd': _bias, 'ConcatV2': _concat, 'ExpandDims': _expand, 'Pack': _pack,
    'Slice': _part, 'Squeeze': _squeeze, 'TensorListFromTensor': _from_tensor,
    'TensorListGetItem': _item, 'TensorListPopBack': _item,
    'TensorListPushBack': _with_item, 'TensorListSetItem': _with_item,
    'TensorListStack': _stack,
}
"""Rules by operation; outputs of other operations may vary along any axis."""

_FILLING = frozenset(('Fill', 'ZerosLike', 'OnesLike', 'TensorListReserve',
                       'EmptyTensorList'))
