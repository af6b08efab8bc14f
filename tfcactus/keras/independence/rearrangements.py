"""Transfer functions of operations that move entries; part of `operations.TRANSFER`."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Callable

import numpy as np

from tfcactus.keras.independence import dependence
from tfcactus.keras.independence.dependence import (
  Dependence,
  mixed,
  Node,
  NotRowWise,
  Transfer,
  unknown,
  Value,
)

_BY_PLACE = 'takes examples by their place in the batch'


def leaving_alone(touched: Callable[[Node, int], object],
                  refusal: Callable[[str], NotRowWise], what: str, operand: int = 0
                  ) -> Transfer:
  """Returns a transfer function for operations that must not touch the examples' axis.

  `touched(node, axis)` tells whether the operation joins, moves or leaves out entries
  along that axis of input `operand`; then `refusal(what)` is raised.
  """
  def rule(node: Node) -> Value:
    """Follows an operation that leaves the examples where they are."""
    value = dependence.only_operand(node, operand)
    if touched(node, value.axis):
      raise refusal(what)
    return value

  return rule


def _product(sizes: Sequence[int | None]) -> int:
  """Returns the product of sizes, none of which is None."""
  return math.prod(sizes)  # type: ignore[arg-type]


def _reshape(node: Node) -> Value:
  """Follows Reshape; the entries of each example must stay together on one axis."""
  value = node.values[0]
  if node.rows() != [0]:
    raise unknown('takes a shape that depends on the examples')
  shape, out = node.shape(0), _shape_made(node)
  before, after = shape[:value.axis], shape[value.axis + 1:]
  # If only axes after the examples' axis change, that axis keeps its size.
  behind = out[value.axis + 1:]
  length = shape[value.axis]
  if len(out) > value.axis and out[:value.axis] == before and (
      None not in before or out[value.axis] == length is not None) and (
          None not in after + behind and _product(after) == _product(behind) > 0):
    return value
  # A negative block is a repeated batch: its repeats may get an axis of their own.
  if value.block < 0 and length is not None and None not in out and out == [
      *before, -value.block, length // -value.block, *after]:
    return Value(Dependence.ROW_WISE, value.axis + 1)
  # Neighbouring axes may be joined or split if each example keeps whole positions: axis
  # k has the examples if as many entries are before it as before the examples' axis.
  if None not in before + after and value.block > 0:
    for k, size in enumerate(out):
      rest = out[:k] + out[k + 1:]
      if None in rest or _product(out[:k]) != _product(before):
        continue
      block, left = divmod(value.block * _product(after),
                           max(1, _product(out[k + 1:])))
      if left or not block or 0 in rest:
        continue
      if size is None or (length is not None and
                          size * value.block == length * block):
        return Value(Dependence.ROW_WISE, k, block)
  raise unknown('moves entries of one example to another')


def _shape_made(node: Node) -> list[int | None]:
  """Returns the shape that a Reshape makes, None for sizes that are not known."""
  # Where the examples' axis has no static size, the shape is computed for each number
  # of examples in `BATCH_SIZES`. A size that grows with the number becomes None.
  value, found = node.values[0], []
  asked = dependence.sizes_by_batch(node.op.inputs[1], node.values[1])
  if asked is None or node.shape(0)[value.axis] is not None:
    return node.out()
  for sizes, shape in zip(asked, dependence.shapes(node)):
    rest = max(1, math.prod(int(size) for size in sizes if size != -1))
    if None in shape or -1 in sizes and _product(shape) % rest:
      return node.out()
    found.append([_product(shape) // rest if size == -1 else int(size)
                  for size in sizes])
  made = [None if is_rows else size for size, is_rows in dependence.as_multiples(found)]
  node.op.outputs[0].set_shape(made)  # TensorFlow does not infer this shape.
  return made


def _expand(node: Node) -> Value:
  """Follows ExpandDims; the examples' axis moves up if the new axis is before it."""
  value, rank = dependence.only_operand(node), len(node.out())
  return value._replace(
      axis=value.axis + (node.whole(1) % rank <= value.axis))


def _squeeze(node: Node) -> Value:
  """Follows Squeeze, which must not remove the examples' axis."""
  value, shape = dependence.only_operand(node), node.shape(0)
  axes = [k % len(shape) for k in node.op.get_attr('squeeze_dims')]
  if not axes:
    if None in shape:
      raise unknown('leaves out axes that are known only when it runs')
    axes = [k for k, size in enumerate(shape) if size == 1]
  if value.axis in axes:
    raise unknown('leaves out the axis of the examples')
  return value._replace(axis=value.axis - sum(k < value.axis for k in axes))


def _transpose(node: Node) -> Value:
  """Follows Transpose; returns the new place of the examples' axis."""
  value = dependence.only_operand(node)
  return value._replace(axis=node.axes(1).index(value.axis))


def _same_place(node: Node, which: Sequence[int]) -> Value:
  """Returns the one value of all ROW_WISE inputs at `which`, which are joined."""
  # Inputs without examples must be equal along the axis of the examples of the others.
  rows = [i for i in which if i in node.rows()]
  found = {node.values[i] for i in rows}
  if len(found) != 1:
    raise unknown('has examples in several places')
  value = found.pop()
  for i in which:
    dependence.check_same(node, i, value.axis, node.shape(rows[0])[value.axis])
    if i not in rows and node.shape(i)[value.axis] == 1:
      raise unknown('treats examples by their place in the batch')
  return value


def _concat(node: Node) -> Value:
  """Follows ConcatV2, which must not join along the examples' axis."""
  axis = len(node.values) - 1
  value = _same_place(node, range(axis))
  if node.whole(axis) % len(node.out()) == value.axis:
    raise unknown('lines up examples with others')
  return value


def _pack(node: Node) -> Value:
  """Follows Pack, which stacks inputs along a new axis."""
  value = _same_place(node, range(len(node.values)))
  axis = node.op.get_attr('axis') % len(node.out())
  return value._replace(axis=value.axis + (axis <= value.axis))


def _unpack(node: Node) -> Value:
  """Follows Unpack, which must not take the examples' axis apart."""
  value = dependence.only_operand(node)
  axis = node.op.get_attr('axis') % len(node.shape(0))
  if axis == value.axis:
    raise mixed(_BY_PLACE)
  return value._replace(axis=value.axis - (axis < value.axis))


def _slice_axes(node: Node, shape: list[int | None]) -> dict[int, int]:
  """Maps axes of `shape` that a StridedSlice takes whole to axes of the result."""
  rank = len(shape)
  masks = {name: node.op.get_attr(f'{name}_mask') for name in (
      'begin', 'end', 'ellipsis', 'new_axis', 'shrink_axis')}
  terms = node.shape(1)[0]  # How many terms, such as 0, 1:3 or ..., the slice has.
  if terms is None:
    raise unknown('slices by arguments of an unknown number')
  begins, ends, strides = (
      dependence.static(node.op.inputs[k]) for k in (1, 2, 3))
  bit = lambda name, k: masks[name] >> k & 1
  taken = sum(not bit('new_axis', k) and not bit('ellipsis', k)
              for k in range(terms))
  # `axis` is the next axis of `shape`, `place` the next axis of the result.
  whole, axis, place = {}, 0, 0
  for k in range(terms):
    if bit('ellipsis', k):
      for _ in range(rank - taken):
        whole[axis], axis, place = place, axis + 1, place + 1
    elif bit('new_axis', k):
      place += 1
    elif bit('shrink_axis', k):
      axis += 1
    else:
      begin = bit('begin', k) or begins is not None and begins[k] == 0
      end = bit('end', k) or ends is not None and ends[k] == shape[axis]
      if begin and end and strides is not None and strides[k] == 1:
        whole[axis] = place
      axis, place = axis + 1, place + 1
  for _ in range(rank - axis):
    whole[axis], axis, place = place, axis + 1, place + 1
  return whole


def _strided_slice(node: Node) -> Value:
  """Follows StridedSlice, which must take the examples' axis whole."""
  value = dependence.only_operand(node)
  whole = _slice_axes(node, node.shape(0))
  if value.axis not in whole:
    raise mixed(_BY_PLACE)
  return value._replace(axis=whole[value.axis])


def _strided_slice_grad(node: Node) -> Value:
  """Follows StridedSlice's gradient; the slice must take the examples' axis whole."""
  value = dependence.only_operand(node, 4)
  for axis, place in _slice_axes(node, node.out()).items():
    if place == value.axis:
      return value._replace(axis=axis)
  raise unknown('moves entries of one example to another')


def _gather(node: Node) -> Value:
  """Follows GatherV2 and ResourceGather, which look up `indices` in `params`."""
  # The examples may be in the indices, or on an axis of `params` that is not looked up.
  # They may be in both if they are on one batch axis (`batch_dims`) of the operation.
  params, indices = node.values[:2]
  if node.op.type == 'ResourceGather':
    if node.op.get_attr('batch_dims'):
      raise unknown('looks up rows of a weight by the place in the batch')
    return dependence.only_operand(node, 1)
  batch, axis = node.op.get_attr('batch_dims'), node.whole(2) % len(node.shape(0))
  batch += len(node.shape(1)) * (batch < 0)
  width = len(node.shape(1)) - batch  # The number of axes that replace `axis`.
  if {0, 1} <= set(node.rows()):
    if params == indices and params.axis < batch:
      return params
    raise unknown('takes examples by what is in the data')
  if indices.dependence == Dependence.ROW_WISE:
    dependence.check_same(node, 0, indices.axis if indices.axis < batch else -1,
                          node.shape(1)[indices.axis])
    return indices if indices.axis < batch else (
        indices._replace(axis=indices.axis + axis - batch))
  dependence.check_same(node, 1, params.axis if params.axis < batch else -1,
                        node.shape(0)[params.axis])
  if params.axis == axis:
    raise mixed(_BY_PLACE)
  if params.axis < batch and node.shape(1)[params.axis] == 1:
    raise unknown('treats examples by their place in the batch')
  return params._replace(
      axis=params.axis + (width - 1 if params.axis > axis else 0))


def _gather_nd(node: Node) -> Value:
  """Follows GatherNd from constant `params`; the indices may hold the examples."""
  params, indices = node.values
  if params.dependence == Dependence.CONSTANT and indices.axis < len(node.shape(1)) - 1:
    return indices
  raise unknown('takes examples by what is in the data')


def _one_hot(node: Node) -> Value:
  """Follows OneHot; the examples' axis moves up by one if the new axis is before it."""
  value, axis = dependence.only_operand(node), node.op.get_attr('axis')
  return value._replace(axis=value.axis + (0 <= axis <= value.axis))


TRANSFER: dict[str, Transfer] = {
    'ConcatV2': _concat, 'ExpandDims': _expand, 'GatherNd': _gather_nd,
    'GatherV2': _gather, 'OneHot': _one_hot, 'Pack': _pack, 'Reshape': _reshape,
    'ResourceGather': _gather, 'Squeeze': _squeeze,
    'StridedSlice': _strided_slice, 'StridedSliceGrad': _strided_slice_grad,
    'Transpose': _transpose, 'Unpack': _unpack,
    **dict.fromkeys(('MirrorPad', 'MirrorPadGrad', 'Pad', 'PadV2'), leaving_alone(
        lambda node, axis: np.any(node.static(1)[axis]), unknown,
        'adds rows to those of the examples')),
    'Slice': leaving_alone(
        lambda node, axis: any((node.static(1)[axis], node.static(2)[axis] not in (
            -1, node.shape(0)[axis]))), mixed, _BY_PLACE),
    'Split': leaving_alone(lambda node, axis: node.whole(0) % len(
        node.shape(1)) == axis, mixed, _BY_PLACE, operand=1),
    'SplitV': leaving_alone(lambda node, axis: node.whole(2) % len(
        node.shape(0)) == axis, mixed, _BY_PLACE),
    'Tile': leaving_alone(lambda node, axis: node.static(1)[axis] != 1, unknown,
                          'repeats the rows of the examples'),
}
"""Transfer functions by operation."""
