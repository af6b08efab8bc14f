"""Abstract values of operations whose inputs do not depend on the examples (CONSTANT).

A loop over time starts from states that are equal for all examples, such as zeros. Only
inside the loop do the states become functions of the examples. The proof must know that
the first states are equal along the batch axis. So for each constant tensor it records
the axes along which the tensor's entries may differ: the axes along which it varies.

`operations.TRANSFER` tells these axes too. Take an axis along which an input does not
vary for the axis of examples, all of which are alike then. If an output has one place
for each of them along an axis, the entries at all these places are alike: the output
does not vary along that axis.
"""

from __future__ import annotations

from tfcactus.keras.independence import dependence, draws as draws_lib, operations
from tfcactus.keras.independence.dependence import (
  CONSTANT,
  Dependence,
  Node,
  UNIFORM,
  Value,
)


def value(node: Node) -> Value | list[Value]:
  """Returns the abstract values of an operation's outputs if all inputs are CONSTANT.

  They are CONSTANT, but ROW_WISE for draws with numbers of their own for each example.
  Raises NotRowWise for a draw that does not give each example its own numbers.
  """
  kind = node.op.type
  if not node.op.inputs:
    return dependence.constant(node.op.outputs[0]) if node.op.outputs else CONSTANT
  if kind in _FILLING or kind in _MOVING and node.values[0].varies == frozenset():
    return UNIFORM
  if kind in draws_lib.SHAPE_ARGUMENT:
    return draws_lib.drawn(node)
  return [CONSTANT if (rank := output.shape.rank) is None else CONSTANT._replace(
      varies=frozenset(axis for axis in set(range(rank)) - alike
                       if output.shape[axis] != 1))
          for output, alike in zip(node.op.outputs, _alike(node))]


def _alike(node: Node) -> list[set[int]]:
  """Returns for each output the axes along which its rule shows that it is alike."""
  found: list[set[int]] = [set() for _ in node.op.outputs]
  rule = _RULES.get(node.op.type)
  for i, tensor in enumerate(node.op.inputs):
    if rule is None or tensor.shape.rank is None:
      continue
    for axis in set(range(tensor.shape.rank)) - node.varying(i):
      values = list(node.values)
      values[i] = dependence.ROW_WISE._replace(axis=axis)
      try:
        outputs = rule(node._replace(values=values))
      except dependence.NotRowWise:
        continue
      for alike, output in zip(found, outputs if isinstance(outputs, list) else (
          [outputs] * len(found))):
        if output.dependence == Dependence.ROW_WISE and abs(output.block) == 1:
          alike.add(output.axis)
  if node.op.type == 'BroadcastTo' and node.op.inputs[0].shape.rank is not None and (
      node.op.outputs[0].shape.rank is not None):
    found[0].update(range(len(node.out()) - len(node.shape(0))))  # New axes.
  return found


def _kept(node: Node) -> Value:
  """Follows operations that repeat or leave out entries along axes of one input."""
  data = int(node.op.type == 'Split')
  value = dependence.only_operand(node, data)
  return value._replace(axis=value.axis + len(node.out()) - len(node.shape(data)))


_RULES: dict[str, dependence.Transfer] = {
    **operations.TRANSFER,
    **dict.fromkeys(('BroadcastTo', 'Slice', 'Split', 'SplitV', 'Tile'), _kept)}
"""Row rules, and others where alike entries stay alike but rows of examples do not."""

_FILLING = frozenset(('Fill', 'ZerosLike', 'OnesLike'))
"""Operations that fill a tensor with one number."""

_MOVING = frozenset(('ExpandDims', 'Reshape', 'Squeeze', 'StridedSlice', 'Transpose'))
"""Operations whose outputs have no entries but those of their first input."""
