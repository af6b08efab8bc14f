"""Rules for operations on lists of tensors (TensorList), as `tf.TensorArray` makes.

`Value.item` tells what is known of the shapes of a list's items. The items of a
ROW_WISE list have their examples on one axis, of one size. So a CONSTANT list can join
it only if its items agree. An item that was never set is zeros, in a shape that the
list and its reader give; TensorFlow raises an error if the two differ. So if the shape
in a list is not known (`Value.open`), as in gradients of loops, the reader must give
the size. TensorListGetItem does not compare the shape of the reader, which becomes the
static shape of its output, with an item that was set: `_take` does, also for CONSTANT
lists. Of a list of lists, a `Value` describes the innermost items.
"""

from __future__ import annotations

import functools
from typing import Callable, Union

import tensorflow as tf

from tfcactus.keras.independence import dependence
from tfcactus.keras.independence.dependence import (
  BATCH_SIZE,
  CONSTANT,
  Dependence,
  Node,
  UNIFORM,
  unknown,
  Value,
)

_Item = Union[tuple[Union[int, None], ...], None]
"""The type of `Value.item`."""

_UNLIKE = (None,) * 256
"""`Value.item` if items may have any shapes: more axes than a tensor can have."""


def has_lists(op: tf.Operation) -> bool:
  """Returns whether an operation takes or makes a list."""
  return any(tensor.dtype == tf.variant for tensor in (*op.inputs, *op.outputs))


def value(node: Node) -> Value | list[Value]:
  """Returns abstract values of outputs; no input is UNKNOWN or MIXED."""
  rule, rows = _RULES.get(node.op.type), node.rows()
  if rule is _new and node.draws is None:
    return UNIFORM  # Nothing is guaranteed where draws are held fixed.
  if not rows and BATCH_SIZE.dependence in [each.dependence for each in node.values]:
    return BATCH_SIZE
  if rows and rule is None:
    raise unknown('is not known to treat each example alone')
  return CONSTANT if rule is None else rule(node)


def join(node: Node, *lists: Value) -> Value:
  """Returns a value that covers the items of all these lists, UNKNOWN if none does."""
  item = functools.reduce(_merged, map(_told, lists))
  constant = functools.reduce(_merged, (
      _told(each) for each in lists if each.dependence == Dependence.CONSTANT), None)
  rows = max(lists, key=lambda each: each.dependence)
  alike = node.draws is None or constant is None or (
      rows.axis < len(constant) and constant[rows.axis] in (-1, _size(node, rows)))
  found, *others = (each._replace(item=None, open=False) for each in lists)
  for each in others:
    found = dependence.join(found, each, alike)
  return found._replace(item=item, open=any(each.open for each in lists)) if (
      found.dependence <= Dependence.ROW_WISE) else found


def _told(found: Value) -> _Item:
  """Returns `Value.item`, or _UNLIKE for a list of which no rule told the shapes."""
  return _UNLIKE if found.varies is None and found.item is None else found.item


def _merged(one: _Item, other: _Item) -> _Item:
  """Returns the `Value.item` of a list with the items of two lists."""
  if one is None or other is None:
    return other if one is None else one
  if len(one) != len(other):
    return _UNLIKE
  return tuple(b if a == -1 else a if b in (-1, a) else None
               for a, b in zip(one, other))


def _shape(node: Node, i: int) -> tuple[int | None, ...]:
  """Returns the static shape of input `i` as `Value.item`, `_UNLIKE` if it has no rank.

  The size of a ROW_WISE input along its examples is given if their number is known.
  """
  if node.op.inputs[i].shape.rank is None:
    return _UNLIKE
  sizes, value = node.shape(i), node.values[i]
  if value.dependence == Dependence.ROW_WISE and sizes[value.axis] is None and (
      node.draws is not None and node.draws.number is not None):
    sizes[value.axis] = _size(node, value)
  return tuple(sizes)


def _size(node: Node, rows: Value) -> int:
  """Returns the size of the examples' axis; -1 if the number of examples is unknown."""
  number = node.draws.number
  return -1 if number is None else number * abs(rows.block)


def _new(node: Node) -> Value:
  """Follows TensorListReserve and EmptyTensorList; input 0 is the shape of items."""
  if node.rows():
    raise unknown('takes a shape that depends on the examples')
  if node.op.get_attr('element_dtype') == tf.variant:
    return UNIFORM
  shape = dependence.static(node.op.inputs[0])
  # A shape that is not static may tell sizes that readers do not. A scalar (-1) tells
  # nothing: shapes are then those that readers give.
  if shape is None:
    return UNIFORM._replace(open=True)
  return UNIFORM._replace(item=tuple(map(int, shape)) if shape.ndim else None)


def _item_shape(node: Node) -> Value:
  """Follows TensorListElementShape: sizes of a list's items, -1 if they are not set."""
  # A value does not tell whether sizes depend on the number of examples.
  return BATCH_SIZE if node.draws is not None and node.draws.number is None else (
      CONSTANT)


def _from_tensor(node: Node) -> Value:
  """Follows TensorListFromTensor: an axis a > 0 of the tensor is a - 1 in items."""
  tensor = node.op.inputs[0]
  if node.rows():
    rows = dependence.only_operand(node)
    if rows.axis == 0:
      raise unknown('goes through the examples one after another')
    return rows._replace(axis=rows.axis - 1, item=_shape(node, 0)[1:])
  if tensor.dtype == tf.variant or tensor.shape.rank is None:
    return CONSTANT
  return Value(
      Dependence.CONSTANT, item=tuple(node.shape(0)[1:]),
      varies=frozenset(axis - 1 for axis in node.varying(0) if axis))


def _take(node: Node) -> list[Value]:
  """Follows operations that take an item from a list (input 0), by a constant index."""
  found, tensor = node.values[0], node.op.outputs[-1]
  if node.rows():
    _check_shape(node)
    if any(each.dependence != Dependence.CONSTANT for each in node.values[1:-1]):
      raise unknown('takes an item by the number of examples')
  item = _told(found)
  if node.draws is not None and tensor.dtype != tf.variant and item is not None and (
      not _suits(tensor.shape, item)):
    raise unknown('takes a shape that is not known to suit the items')
  entries = found._replace(item=None, open=False)
  return [found if output.dtype == tf.variant else entries
          for output in node.op.outputs]


def _suits(shape: tf.TensorShape, item: tuple[int | None, ...]) -> bool:
  """Returns whether all items are known to have a static shape."""
  return shape.rank is None or len(item) == shape.rank and all(
      size is None or own in (-1, size) for size, own in zip(shape.as_list(), item))


def _stack(node: Node) -> Value:
  """Follows TensorListStack, which adds axis 0; only items may hold the examples."""
  found = node.values[0]
  if node.rows():
    _check_shape(node)
    return found._replace(
        axis=found.axis + 1, item=None,
        open=found.open and node.op.outputs[0].dtype == tf.variant)
  if found.varies is None or node.op.outputs[0].dtype == tf.variant:
    return CONSTANT
  return Value(Dependence.CONSTANT,
               varies=frozenset({0}).union(axis + 1 for axis in found.varies))


def _check_shape(node: Node) -> None:
  """Raises NotRowWise unless the last input is a shape for items of a ROW_WISE list."""
  if node.rows() != [0]:
    raise unknown('takes a shape that depends on the examples')
  if node.draws is None or node.op.get_attr('element_dtype') == tf.variant:
    # Nothing is guaranteed where draws are held fixed. If items are lists, their shape
    # says nothing of the innermost items, which `Value.item` describes.
    return
  rows, tensor = node.values[0], node.op.inputs[-1]
  if node.values[-1].dependence != Dependence.CONSTANT:
    raise unknown('takes a shape that depends on the examples')
  shape = dependence.static(tensor)
  # TensorFlow takes the size of an open list from the list if the reader gives -1.
  sizes = {_size(node, rows)} - {-1} if rows.open else {-1, _size(node, rows)}
  if shape is None or (shape.ndim or rows.open) and (
      shape.size <= rows.axis or shape.ndim == 0 or shape[rows.axis] not in sizes):
    raise unknown('takes a shape that is not known to suit the examples')


def _put(node: Node) -> Value:
  """Follows operations that put an item (the last input) into a list (input 0)."""
  if any(each.dependence != Dependence.CONSTANT for each in node.values[1:-1]):
    raise unknown('takes examples by what is in the data')
  item = node.values[-1]
  if node.op.inputs[-1].dtype != tf.variant:
    item = item._replace(item=_shape(node, len(node.values) - 1))
  return join(node, node.values[0], item)


def _zeros(node: Node) -> Value:
  """Follows ZerosLike of a list: its items become zeros."""
  found, = node.values
  # None for both `varies` and `item` marks items of unknown shapes. With `varies` set,
  # `item` has to tell that.
  return found if node.rows() else found._replace(
      varies=frozenset(), item=_told(found))


_RULES: dict[str, Callable[[Node], Value | list[Value]]] = {
    'AddN': lambda node: join(node, *node.values),  # Adds lists item by item.
    'EmptyTensorList': _new, 'TensorListReserve': _new, 'ZerosLike': _zeros,
    'Identity': lambda node: node.values[0], 'IdentityN': lambda node: node.values,
    'TensorListElementShape': _item_shape, 'TensorListFromTensor': _from_tensor,
    'TensorListGetItem': _take, 'TensorListPopBack': _take,
    'TensorListLength': lambda node: CONSTANT,
    'TensorListPushBack': _put, 'TensorListSetItem': _put, 'TensorListStack': _stack}
"""Rules by operation. Other operations on lists make CONSTANT or BATCH_SIZE outputs;
none is followed if a list holds examples."""
