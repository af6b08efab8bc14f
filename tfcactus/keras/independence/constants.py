"""Rules for operations whose inputs do not depend on the examples (CONSTANT).

A loop over time starts from states that are equal for all examples, such as zeros. Only
inside the loop do the states become functions of the examples. The proof must know that
the first states are equal along the batch axis. So for each constant tensor it records
the axes along which the tensor's entries may differ: the axes along which it varies.
"""

from __future__ import annotations

from typing import Callable

from tfcactus.keras.independence import (
  dependence,
  draws as draws_lib,
  operations,
  rearrangements,
)
from tfcactus.keras.independence.dependence import (
  CONSTANT,
  Dependence,
  Node,
  UNIFORM,
  Value,
)

Axes = frozenset[int]
"""Axes of a tensor, counted from 0."""


def value(node: Node) -> Value | list[Value]:
  """Returns the abstract value of an operation's outputs if all inputs are CONSTANT.

  It is CONSTANT, but ROW_WISE for draws with numbers of their own for each example.
  Raises NotRowWise for a draw that does not give each example its own numbers.
  """
  kind = node.op.type
  if not node.op.inputs:
    return dependence.constant(node.op.outputs[0]) if node.op.outputs else CONSTANT
  if kind in _FILLING:
    return UNIFORM
  if kind in draws_lib.SHAPE_ARGUMENT:
    return draws_lib.drawn(node)
  if kind == 'IdentityN':
    return node.values
  # Equal entries, or a single one, stay equal in any shape and order.
  if kind in ('Reshape', 'ExpandDims', 'Transpose', 'Squeeze') and (
      node.values[0].varies == frozenset() or
      node.op.outputs[0].shape.num_elements() == 1):
    return UNIFORM
  return Value(Dependence.CONSTANT, varies=_varies(node))


def _varies(node: Node) -> Axes | None:
  """Returns axes along which an output may vary, by `_VARIES`; None for any axis."""
  rule = _VARIES.get(node.op.type)
  try:
    return None if rule is None else rule(node)
  except dependence.NotRowWise:  # A rank or an argument is not known.
    return None


def _entrywise(node: Node) -> Axes | None:
  """Returns the axes of the result along which an input varies."""
  # The second input of these two holds sizes, no entries of the output.
  first = range(1 if node.op.type in ('BroadcastTo', 'Tile') else len(node.values))
  rank = len(node.out())  # Shapes are aligned at their last axes.
  return frozenset(axis + rank - len(node.shape(i)) for i in first
                   for axis in node.varying(i))


def _reduce(node: Node) -> Axes:
  """Returns the input's varying axes in the result, but those that are reduced."""
  gone = set(node.axes(1))
  kept = node.varying(0) - gone
  return kept if node.op.get_attr('keep_dims') else _moved_up(kept, gone)


def _moved_up(axes: Axes, gone: set[int]) -> Axes:
  """Returns the numbers of axes after the axes in `gone` are left out."""
  return frozenset(axis - sum(k < axis for k in gone) for axis in axes)


def _matmul(node: Node) -> Axes:
  """Returns where a product x y varies: along rows of x, columns of y, batch axes."""
  rank, found = len(node.out()), set()
  for i, flipped in enumerate(dependence.transposed(node.op)):
    own = len(node.shape(i))
    outer = own - 2 + (i != int(flipped))  # Rows of x or columns of y: not summed over.
    for axis in node.varying(i):
      if axis < own - 2:
        found.add(axis + rank - own)
      elif axis == outer:
        found.add(rank - 2 + i)
  return frozenset(found)


def _convolution(node: Node) -> Axes:
  """Returns all axes, but the batch axis 0 only if the images vary along it."""
  others = frozenset(range(1, len(node.out())))
  return others | (node.varying(0) & {0})


def _concat(node: Node) -> Axes:
  """Returns the joined axis, and all axes along which an input varies."""
  last = len(node.values) - 1
  return frozenset({node.whole(last) % len(node.out())}).union(
      *(node.varying(i) for i in range(last)))


def _pack(node: Node) -> Axes:
  """Returns the new axis, and each axis of the result along which an input may vary."""
  at = node.op.get_attr('axis') % len(node.out())
  return frozenset({at}).union(
      axis + (at <= axis) for i in range(len(node.values)) for axis in node.varying(i))


def _expand(node: Node) -> Axes:
  """Returns the input's varying axes in the result, which has a new axis."""
  at = node.whole(1) % len(node.out())
  return frozenset(axis + (at <= axis) for axis in node.varying(0))


def _transpose(node: Node) -> Axes:
  """Returns the input's varying axes in the result, which has another order."""
  return frozenset(node.axes(1).index(axis) for axis in node.varying(0))


def _reshape(node: Node) -> Axes | None:
  """Returns the axes along which a reshaped constant may differ; None for any axis.

  They are the output's axes that are in a group with a varying axis of the input.
  """
  # A group is a shortest run of axes of the input, with the run of axes of the output
  # whose sizes have the same product: a reshape keeps entries within their groups.
  # Zero stands for a size that is not known: then groups are not known either.
  before, after = ([size or 0 for size in shape] for shape in (
      node.shape(0), node.out()))
  if 0 in before + after:
    return None
  varies, found = node.varying(0), set[int]()
  i = k = 0
  while i < len(before) or k < len(after):
    first, start, sizes = i, k, [1, 1]
    while first == i and start == k or sizes[0] != sizes[1]:
      if k == len(after) or i < len(before) and sizes[0] <= sizes[1]:
        sizes[0] *= before[i]
        i += 1
      else:
        sizes[1] *= after[k]
        k += 1
    if any(axis in varies for axis in range(first, i)):
      found.update(range(start, k))
  return frozenset(found)


def _einsum(node: Node) -> Axes | None:
  """Returns the result's axes whose letters vary in an input; None for a diagonal."""
  *terms, result = operations.einsum_terms(node.op)
  if any(len(set(term)) < len(term) for term in (*terms, result)):
    return None
  return frozenset(result.index(term[axis]) for i, term in enumerate(terms)
                   for axis in node.varying(i) if term[axis] in result)


def _squeeze(node: Node) -> Axes | None:
  """Returns the input's varying axes in the result; None if `squeeze_dims` is empty."""
  rank = len(node.shape(0))
  gone = {axis % rank for axis in node.op.get_attr('squeeze_dims')}
  return _moved_up(node.varying(0), gone) if gone else None


def _sliced(node: Node) -> Axes:
  """Returns all axes of the result but whole axes of the input that do not vary."""
  whole = rearrangements.slice_axes(node, node.shape(0))
  kept = {whole[axis] for axis in whole if axis not in node.varying(0)}
  return frozenset(range(len(node.out()))) - kept


def _bias(node: Node) -> Axes | None:
  """Returns the axes along which the input varies, and the channels; None for NCHW."""
  if node.op.get_attr('data_format') == b'NCHW':
    return None
  return node.varying(0) | {len(node.out()) - 1}


_VARIES: dict[str, Callable[[Node], Axes | None]] = {
    **dict.fromkeys((*operations.ELEMENTWISE, 'Tile'), _entrywise),
    **dict.fromkeys(operations.REDUCTIONS, _reduce),
    **dict.fromkeys(('MatMul', 'BatchMatMul', 'BatchMatMulV2'), _matmul),
    **dict.fromkeys(('Conv2D', 'Conv3D'), _convolution),
    'BiasAdd': _bias, 'ConcatV2': _concat, 'Einsum': _einsum, 'ExpandDims': _expand,
    'Pack': _pack, 'Reshape': _reshape, 'Squeeze': _squeeze, 'StridedSlice': _sliced,
    'Transpose': _transpose,
    # Parts of a tensor may vary where the whole may.
    'Split': lambda node: node.varying(1),
    **dict.fromkeys(('SplitV', 'Slice'), lambda node: node.varying(0)),
}
"""Rules that return the axes along which an output may vary, or None for any axis.

Outputs of operations that are not listed may vary along any axis.
"""

_FILLING = frozenset(('Fill', 'ZerosLike', 'OnesLike'))
"""Operations that fill a tensor with one number."""
