"""Checks of shapes that TensorFlow does not compare, or infers wrongly.

A proof rests on static shapes. Some operations make others, read entries of other
examples, or pair entries of different places if their inputs have unlike shapes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Callable

import tensorflow as tf

from tfcactus.keras.independence import dependence
from tfcactus.keras.independence.dependence import Dependence, Node, unknown, Value

_UNLIKE = 'takes inputs that may have unlike shapes'


def _check_order(node: Node) -> None:
  """Raises NotRowWise unless inputs, paired in their order, have one shape."""
  pairs = _unlike_axes(node, range(max(len(node.shape(0)), len(node.shape(1)))))
  # As TensorFlow compares the numbers of entries, one axis may be unknown.
  if any(None not in pair or -1 in pair for pair in pairs) or len(pairs) > 1:
    raise unknown(_UNLIKE)


def _check_resized(node: Node) -> None:
  """Raises NotRowWise unless inputs have one number of images and of channels."""
  # The output has as many as input 0, but its static shape has those of input 1.
  if _unlike_axes(node, (0, 3)):
    raise unknown(_UNLIKE)


def _unlike_axes(node: Node, axes: Iterable[int]) -> list[tuple[int | None, ...]]:
  """Returns the sizes of inputs 0 and 1 along axes where they differ or are unknown.

  The size of an axis that an input does not have is -1.
  """
  shapes = node.shape(0), node.shape(1)
  # The rules make sure that examples in both inputs are on one axis of one size.
  examples = node.values[0].axis if len(node.rows()) == 2 else -1
  pairs = [tuple(shape[axis] if axis < len(shape) else -1 for shape in shapes)
           for axis in axes if axis != examples]
  return [pair for pair in pairs if None in pair or pair[0] != pair[1]]


def _check_merged(node: Node) -> None:
  """Raises NotRowWise if one input may be broadcast by an axis of unknown size."""
  # TensorFlow takes the unknown size for 1 when it infers the static shape.
  if any({None, 1} == set(pair) for pair in zip(node.shape(0), node.shape(1))):
    raise unknown(_UNLIKE)


def _check_windows(node: Node) -> None:
  """Raises NotRowWise if an operation pools over, or strides, images or channels."""
  # TensorFlow ignores such strides, but infers a static shape with them.
  for axis in (0, node.op.get_attr('data_format').index(b'C')):
    if any(node.op.get_attr(name)[axis] != 1 for name in ('ksize', 'strides')):
      raise unknown('pools over images or channels')


def _check_pooled(node: Node) -> None:
  """Raises NotRowWise unless pooling shape input 0 makes the shape of input 1."""
  # TensorFlow compares neither, and reads entries of other images, or beyond the last.
  _check_windows(node)
  value, valid = node.values[1], node.op.get_attr('padding') == b'VALID'
  windows = [node.op.get_attr(name) for name in ('ksize', 'strides')]
  asked = dependence.sizes_by_batch(node.op.inputs[0], node.values[0])
  if asked is None:
    raise unknown(_UNLIKE)
  for number, sizes in zip(dependence.BATCH_SIZES, asked):
    shape = node.shape(1)
    if value.dependence == Dependence.ROW_WISE and shape[value.axis] is None:
      shape[value.axis] = number * abs(value.block)
    if shape != [-(-(int(size) - (width - 1) * valid) // stride)
                 for size, width, stride in zip(sizes, *windows)]:
      raise unknown(_UNLIKE)


def _check_dilated(node: Node) -> None:
  """Raises NotRowWise for a Conv3D that is dilated by unlike rates."""
  # TensorFlow confuses the rates when it infers the static shape.
  first = 1 + (node.op.get_attr('data_format') == b'NCDHW')
  if node.op.get_attr('padding') != b'SAME' and (
      len(set(node.op.get_attr('dilations')[first:first + 3])) > 1):
    raise unknown('is dilated by unlike rates, so that its static shape may be false')


def _check_split(node: Node) -> None:
  """Raises NotRowWise for a SplitV by an unknown axis, or into one part of any size."""
  # TensorFlow takes an unknown axis for the last one when it infers static shapes.
  node.whole(2)
  if len(node.op.outputs) == 1 and None in node.shape(0):
    raise unknown('makes one part of a size that is not compared')


def _check_gather(node: Node) -> None:
  """Raises NotRowWise for negative `batch_dims`, unless the axis is known."""
  # TensorFlow infers a false rank then.
  if node.op.get_attr('batch_dims') < 0:
    node.whole(2)


CHECKS: dict[str, Callable[[Node], None]] = {
    **dict.fromkeys(('InvGrad', 'ReciprocalGrad', 'RsqrtGrad', 'SigmoidGrad',
                     'SqrtGrad', 'TanhGrad'), _check_order),
    **dict.fromkeys(('ResizeBilinearGrad', 'ResizeBicubicGrad'), _check_resized),
    **dict.fromkeys(('AvgPool', 'AvgPool3D', 'MaxPool', 'MaxPool3D'), _check_windows),
    **dict.fromkeys(('AvgPoolGrad', 'AvgPool3DGrad'), _check_pooled),
    'SoftmaxCrossEntropyWithLogits': _check_merged, 'Conv3D': _check_dilated,
    'GatherV2': _check_gather, 'SplitV': _check_split}
"""Checks by operation, whatever its inputs depend on: they return nothing or raise."""


def written(op: tf.Operation, found: list[Value]) -> list[Value]:
  """Returns the values `found` of outputs; UNKNOWN for outputs that are never set."""
  # Batch normalization by given statistics leaves two outputs as memory happens to be.
  if op.type != 'FusedBatchNormV3' or op.get_attr('is_training'):
    return found
  unset = Value(Dependence.UNKNOWN, why=f'{op.type} in {op.name!r} does not set it')
  return [*found[:3], unset, unset, *found[5:]]
