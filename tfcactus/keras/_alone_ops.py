"""What each operation of TensorFlow does with the examples of a batch.

A rule is asked only if an input is of kind ROWS and none is worse. It returns
what is known of the outputs, one `Value` for all or a list, or raises what it
found. To teach it another operation, write a rule and put it into `RULES`.
"""

from __future__ import annotations

import math
from typing import Callable
from typing import Dict
from typing import Iterable
from typing import List
from typing import Optional
from typing import Sequence
from typing import Tuple
from typing import Union

import numpy as np

from tfcactus.keras import _alone
from tfcactus.keras._alone import FREE
from tfcactus.keras._alone import Kind
from tfcactus.keras._alone import mixed
from tfcactus.keras._alone import Node
from tfcactus.keras._alone import SIZED
from tfcactus.keras._alone import unknown
from tfcactus.keras._alone import Value

Rule = Callable[[Node], Union[Value, List[Value]]]


def _broadcast(node: Node, which: Optional[Iterable[int]] = None) -> Value:
  """Inputs that meet entry by entry, aligned at their last axes."""
  which = range(len(node.values)) if which is None else list(which)
  out, found = node.out(), set()
  for i in which:
    value = node.values[i]
    if value.kind == Kind.SIZED:
      raise mixed('depends on how many examples there are')
    if value.kind == Kind.ROWS:
      found.add((value.axis + len(out) - len(node.shape(i)), value.block))
  if len(found) > 1:
    raise mixed('pairs each example with others')
  axis, block = found.pop()
  for i in which:
    if node.values[i].kind == Kind.FREE:
      _check_same(node, i, axis - (len(out) - len(node.shape(i))), out[axis])
  return Value(Kind.ROWS, axis, block)


def _check_same(node: Node, i: int, axis: int, size: Optional[int]) -> None:
  """Refuses a constant that is another for other places of the batch."""
  if not 0 <= axis < len(node.shape(i)) or node.shape(i)[axis] == 1:
    return
  varies = node.values[i].varies
  if varies is None or axis in varies or node.shape(i)[axis] != size or (
      size is None):
    raise unknown('treats examples by their place in the batch')


def _only(node: Node, i: int = 0) -> Value:
  """The value of an input that alone may be of examples."""
  for k, value in enumerate(node.values):
    if k != i and value.kind != Kind.FREE:
      raise unknown('takes an argument that is of the examples')
  return node.values[i]


def _reduce(node: Node) -> Value:
  value, rank = _only(node), len(node.shape(0))
  axes = {int(axis) % rank for axis in np.ravel(node.static(1))}
  if value.axis in axes:
    raise mixed('goes over the examples')
  if node.op.get_attr('keep_dims'):
    return value
  return value._replace(axis=value.axis - sum(k < value.axis for k in axes))


def _arg_reduce(node: Node) -> Value:
  value, rank = _only(node), len(node.shape(0))
  axis = int(node.static(1)) % rank
  if axis == value.axis:
    raise mixed('compares the examples')
  return value._replace(axis=value.axis - (axis < value.axis))


def _along(node: Node) -> Value:
  """Cumsum, reverse, roll and the like: along the axes of a constant."""
  argument = 2 if node.op.type == 'Roll' else 1
  value, rank = _only(node), len(node.shape(0))
  axes = {int(axis) % rank for axis in np.ravel(node.static(argument))}
  if value.axis in axes:
    raise mixed('goes along the examples')
  return value


def _last(node: Node) -> Value:
  """Over the last axis."""
  value = _only(node)
  if value.axis == len(node.shape(0)) - 1:
    raise mixed('goes over the examples')
  return value


def _band(node: Node) -> Value:
  value = _only(node)
  if value.axis >= len(node.shape(0)) - 2:
    raise unknown('treats examples by their place in the batch')
  return value


def _cross_entropy(node: Node) -> List[Value]:
  values = {node.values[i] for i in node.rows()}
  if len(values) > 1 or values.pop().axis != 0:
    raise mixed('goes over the examples')
  value = node.values[node.rows()[0]]
  for i, other in enumerate(node.values):
    if other.kind == Kind.FREE:
      _check_same(node, i, 0, node.shape(node.rows()[0])[0])
    elif other.kind == Kind.SIZED:
      raise mixed('depends on how many examples there are')
  return [value, value]


def _reshape(node: Node) -> Value:
  value = node.values[0]
  if value.kind != Kind.ROWS or node.values[1].kind == Kind.ROWS:
    raise unknown('is of a shape that is of the examples')
  shape, out = node.shape(0), _shape_made(node)
  before, after = shape[:value.axis], shape[value.axis + 1:]
  if None not in before + after and value.block > 0:
    for k, size in enumerate(out):
      rest = out[:k] + out[k + 1:]
      if None in rest or math.prod(out[:k]) != math.prod(before):
        continue
      block, left = divmod(value.block * math.prod(after),
                           max(1, math.prod(out[k + 1:])))
      length = shape[value.axis]
      if left or not block or 0 in rest:
        continue
      if size is None or (length is not None and
                          size * value.block == length * block):
        return Value(Kind.ROWS, k, block)
  raise unknown('moves parts of one example to another')


def _shape_made(node: Node) -> List[Optional[int]]:
  """What a Reshape makes, None for a size that is of the number of examples."""
  value, found = node.values[0], []
  asked = _alone.per_number(node.op.inputs[1], node.values[1])
  if asked is None or node.shape(0)[value.axis] is not None:
    return node.out()
  for sizes, number in zip(asked, _alone.NUMBERS):
    shape = node.shape(0)
    shape[value.axis] = number * abs(value.block)
    if None in shape:
      return node.out()
    rest = math.prod(int(size) for size in sizes if size != -1)
    found.append([math.prod(shape) // max(rest, 1) if size == -1 else int(size)
                  for size in sizes])
  made = [None if is_rows else size for size, is_rows in _alone.by_number(found)]
  node.op.outputs[0].set_shape(made)  # Which TensorFlow does not find out.
  return made


def _expand(node: Node) -> Value:
  value, rank = _only(node), len(node.out())
  return value._replace(
      axis=value.axis + (int(node.static(1)) % rank <= value.axis))


def _squeeze(node: Node) -> Value:
  value, shape = _only(node), node.shape(0)
  axes = [k % len(shape) for k in node.op.get_attr('squeeze_dims')]
  if not axes:
    if None in shape:
      raise unknown('leaves out axes that are known only when it runs')
    axes = [k for k, size in enumerate(shape) if size == 1]
  if value.axis in axes:
    raise unknown('leaves out the axis of the examples')
  return value._replace(axis=value.axis - sum(k < value.axis for k in axes))


def _transpose(node: Node) -> Value:
  value = _only(node)
  order = [int(k) % len(node.shape(0)) for k in np.ravel(node.static(1))]
  return value._replace(axis=order.index(value.axis))


def _same_place(node: Node, which: Sequence[int]) -> Value:
  """Inputs of one shape in which examples have the same places."""
  found = {node.values[i] for i in which if node.values[i].kind == Kind.ROWS}
  if len(found) != 1:
    raise unknown('has examples in several places')
  value = found.pop()
  for i in which:
    if node.values[i].kind == Kind.SIZED:
      raise mixed('depends on how many examples there are')
    if node.values[i].kind == Kind.FREE:
      _check_same(node, i, value.axis, node.shape(
          [k for k in which if node.values[k].kind == Kind.ROWS][0])[value.axis])
      if node.shape(i)[value.axis] == 1:
        raise unknown('treats examples by their place in the batch')
  return value


def _concat(node: Node) -> Value:
  parts = range(len(node.values) - 1)
  value = _same_place(node, parts)
  if int(node.static(len(parts))) % len(node.out()) == value.axis:
    raise unknown('lines up examples with others')
  return value


def _pack(node: Node) -> Value:
  value = _same_place(node, range(len(node.values)))
  axis = node.op.get_attr('axis') % len(node.out())
  return value._replace(axis=value.axis + (axis <= value.axis))


def _unpack(node: Node) -> Value:
  value, axis = _only(node), node.op.get_attr('axis') % len(node.shape(0))
  if axis == value.axis:
    raise mixed('takes examples by their place in the batch')
  return value._replace(axis=value.axis - (axis < value.axis))


def _split(node: Node) -> Value:
  data, place = (1, 0) if node.op.type == 'Split' else (0, 2)
  value = _only(node, data)
  if int(node.static(place)) % len(node.shape(data)) == value.axis:
    raise mixed('takes examples by their place in the batch')
  return value


def _slice(node: Node) -> Value:
  value = _only(node)
  begin, size = node.static(1), node.static(2)
  if begin[value.axis] or size[value.axis] not in (
      -1, node.shape(0)[value.axis]):
    raise mixed('takes examples by their place in the batch')
  return value


def _pad(node: Node) -> Value:
  value = _only(node)
  if np.any(node.static(1)[value.axis]):
    raise unknown('adds rows to those of the examples')
  return value


def _tile(node: Node) -> Value:
  value = _only(node)
  if node.static(1)[value.axis] != 1:
    raise unknown('repeats the rows of the examples')
  return value


def _slice_axes(node: Node, shape: List[Optional[int]]) -> Dict[int, int]:
  """Of each axis that is sliced in whole, the axis it is in the result.

  Args:
    node: A StridedSlice, or its gradient.
    shape: Of what is sliced.
  """
  rank = len(shape)
  masks = {name: node.op.get_attr(f'{name}_mask') for name in (
      'begin', 'end', 'ellipsis', 'new_axis', 'shrink_axis')}
  sparse = node.shape(1)[0]
  begins, ends, strides = (
      _alone.static(node.op.inputs[k]) for k in (1, 2, 3))
  bit = lambda name, k: masks[name] >> k & 1
  taken = sum(not bit('new_axis', k) and not bit('ellipsis', k)
              for k in range(sparse))
  whole, axis, place = {}, 0, 0
  for k in range(sparse):
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
  value = _only(node)
  whole = _slice_axes(node, node.shape(0))
  if value.axis not in whole:
    raise mixed('takes examples by their place in the batch')
  return value._replace(axis=whole[value.axis])


def _strided_slice_grad(node: Node) -> Value:
  value = _only(node, 4)
  for axis, place in _slice_axes(node, node.out()).items():
    if place == value.axis:
      return value._replace(axis=axis)
  raise unknown('moves parts of one example to another')


def _gather(node: Node) -> Value:
  params, indices = node.values[:2]
  if node.op.type == 'ResourceGather':
    return _only(node, 1)
  rank, batch = len(node.shape(0)), node.op.get_attr('batch_dims')
  axis = int(node.static(2)) % rank
  width = len(node.shape(1)) - batch
  if params.kind == Kind.ROWS and indices.kind == Kind.ROWS:
    if params == indices and params.axis < batch:
      return params
    raise unknown('takes examples by what is in the data')
  if indices.kind == Kind.SIZED or params.kind == Kind.SIZED:
    raise mixed('depends on how many examples there are')
  if indices.kind == Kind.ROWS:
    if indices.axis < batch:
      _check_same(node, 0, indices.axis, node.shape(1)[indices.axis])
      return indices
    return indices._replace(axis=indices.axis + axis - batch)
  if params.axis == axis:
    raise mixed('takes examples by their place in the batch')
  if params.axis < batch:
    _check_same(node, 1, params.axis, node.shape(0)[params.axis])
    if node.shape(1)[params.axis] == 1:
      raise unknown('treats examples by their place in the batch')
  return params._replace(
      axis=params.axis + (width - 1 if params.axis > axis else 0))


def _gather_nd(node: Node) -> Value:
  params, indices = node.values
  if params.kind == Kind.FREE and indices.axis < len(node.shape(1)) - 1:
    return indices
  raise unknown('takes examples by what is in the data')


def _one_hot(node: Node) -> Value:
  value, axis = _only(node), node.op.get_attr('axis')
  return value._replace(axis=value.axis + (0 <= axis <= value.axis))


def _product(node: Node, x: int, y: int) -> Value:
  """A matrix product; x and y are 1 where that factor is transposed."""
  found = []
  rank = len(node.out())
  for i, flipped in ((0, x), (1, y)):
    value, own = node.values[i], len(node.shape(i))
    if value.kind == Kind.SIZED:
      raise mixed('depends on how many examples there are')
    if value.kind != Kind.ROWS:
      continue
    place = value.axis - own  # From the end.
    if place < -2:
      found.append(value._replace(axis=place + rank))
      continue
    outer = (place == -2) != bool(flipped) if i == 0 else (
        (place == -1) != bool(flipped))
    if not outer:
      raise mixed('adds over the examples')
    found.append(value._replace(axis=rank - 2 + i))
  if len(set(found)) > 1 or (
      len(found) == 2 and found[0].axis >= rank - 2):
    raise mixed('pairs each example with others')
  value = found[0]
  if value.axis < rank - 2:
    for i in (0, 1):
      if node.values[i].kind == Kind.FREE:
        _check_same(node, i, value.axis - (rank - len(node.shape(i))),
                    node.out()[value.axis])
  return value


def _matmul(node: Node) -> Value:
  return _product(node, node.op.get_attr('transpose_a'),
                  node.op.get_attr('transpose_b'))


def _batch_matmul(node: Node) -> Value:
  return _product(node, node.op.get_attr('adj_x'), node.op.get_attr('adj_y'))


def _einsum(node: Node) -> Value:
  equation = node.op.get_attr('equation')
  equation = equation.decode() if isinstance(equation, bytes) else equation
  terms, result = equation.replace(' ', '').split('->')
  terms = terms.split(',')
  if '.' in equation:
    raise unknown('is not known to treat each example alone')
  if any(value.kind == Kind.SIZED for value in node.values):
    raise mixed('depends on how many examples there are')
  found = {(terms[i][node.values[i].axis], node.values[i].block)
           for i in node.rows()}
  if len(found) > 1:
    raise mixed('pairs each example with others')
  letter, block = found.pop()
  if letter not in result:
    raise mixed('adds over the examples')
  if result.count(letter) > 1 or any(t.count(letter) > 1 for t in terms):
    raise unknown('takes a diagonal')
  for i, term in enumerate(terms):
    if node.values[i].kind == Kind.FREE and letter in term:
      _check_same(node, i, term.index(letter), node.out()[result.index(letter)])
  return Value(Kind.ROWS, result.index(letter), block)


def _leading(*data: int) -> Rule:
  """Images and the like: examples first in these inputs and the outputs."""

  def rule(node: Node) -> Value:
    found = {node.values[i] for i in node.rows()}
    if set(node.rows()) - set(data) or len(found) > 1:
      raise unknown('is not known to treat each example alone')
    value = found.pop()
    if value.axis != 0:
      raise unknown('takes another axis than the first for the examples')
    for i in data:
      if node.values[i].kind == Kind.FREE:
        _check_same(node, i, 0, node.shape(node.rows()[0])[0])
    return value

  return rule


def _bias(node: Node) -> Value:
  value = _only(node)
  form = node.op.get_attr('data_format')
  channels = 1 if form == b'NCHW' else len(node.shape(0)) - 1
  if value.axis == channels:
    _check_same(node, 1, 0, node.shape(0)[channels])
  return value


def _fused_norm(node: Node) -> List[Value]:
  """Batch normalization, with which layers normalize channels too."""
  images = (0, 1) if 'Grad' in node.op.type else (0,)
  form = node.op.get_attr('data_format')
  channels = 1 if form == b'NCHW' else len(node.shape(0)) - 1
  axes = {node.values[i].axis for i in node.rows() if i in images}
  blocks = {node.values[i].block for i in node.rows()}
  if len(blocks) != 1 or len(axes) != 1 or any(
      value.kind == Kind.SIZED for value in node.values):
    raise unknown('is not known to treat each example alone')
  axis, block = axes.pop(), blocks.pop()
  size = node.shape(node.rows()[0])[node.values[node.rows()[0]].axis]
  if not node.op.get_attr('is_training') and axis == 0:
    if all(i in images for i in node.rows()) and len(images) == 1:
      return [Value(Kind.ROWS, 0, block)] + [FREE] * (len(node.op.outputs) - 1)
    raise unknown('is not known to treat each example alone')
  if axis != channels:
    raise mixed('normalizes over the examples')
  node.op.outputs[0].set_shape(node.op.inputs[0].shape)
  for i, value in enumerate(node.values):
    if value.kind == Kind.FREE and node.shape(i) != [0]:
      _check_same(node, i, channels if i in images else 0, size)
  return [Value(Kind.ROWS, axis, block)] + [
      Value(Kind.ROWS, 0, block)] * (len(node.op.outputs) - 1)


def _space_to_batch(node: Node) -> Value:
  """Cuts each image in several, one of each example after the other."""
  value, times = _only(node), int(np.prod(node.static(1)))
  if value != Value(Kind.ROWS):
    raise unknown('takes another axis than the first for the examples')
  return value._replace(block=-times)


def _batch_to_space(node: Node) -> Value:
  value, times = _only(node), int(np.prod(node.static(1)))
  if value != Value(Kind.ROWS, block=-times):
    raise unknown('takes another axis than the first for the examples')
  return Value(Kind.ROWS)


def _each(node: Node) -> List[Value]:
  return list(node.values)


def _adds_over(node: Node) -> Value:
  del node
  raise mixed('adds over the examples')


def _like(node: Node) -> Value:
  return node.values[0]


def _size(node: Node) -> Value:
  """Shapes: of the number of examples, but of nothing in them."""
  if all(None not in node.shape(i) for i in range(len(node.values))):
    return FREE
  value, found = node.values[0], []
  if node.op.type != 'Shape' or node.shape(0).count(None) != 1 or (
      node.shape(0)[value.axis] is not None):
    return SIZED
  for number in _alone.NUMBERS:
    shape = node.shape(0)
    shape[value.axis] = number * abs(value.block)
    found.append(np.asarray(shape))
  return _alone.sized(found)


def _from_list(node: Node) -> Value:
  value = _only(node)
  if value.axis == 0:
    raise unknown('goes through the examples one after another')
  return value._replace(axis=value.axis - 1)


def _stack_list(node: Node) -> Value:
  value = node.values[0]
  if value.kind != Kind.ROWS:
    raise unknown('is of a shape that is of the examples')
  return value._replace(axis=value.axis + 1)


def _list_item(node: Node) -> Value:
  if node.values[0].kind != Kind.ROWS or any(
      value.kind == Kind.ROWS for value in node.values[1:]):
    raise unknown('takes examples by what is in the data')
  return node.values[0]


def _set_item(node: Node) -> Value:
  items = [node.values[0], node.values[-1]]
  if any(value.kind != Kind.FREE for value in node.values[1:-1]):
    raise unknown('takes examples by what is in the data')
  return _alone.joined(*items)


REDUCTIONS = frozenset(('Sum', 'Mean', 'Max', 'Min', 'Prod', 'All', 'Any',
                         'EuclideanNorm'))

ELEMENTWISE: Tuple[str, ...] = (
    'Abs Acos Acosh Add AddN AddV2 ApproximateEqual Asin Asinh Atan Atan2 Atanh '
    'BesselI0 BesselI0e BesselI1 BesselI1e Betainc BitwiseAnd BitwiseOr '
    'BitwiseXor BroadcastTo Cast Ceil CheckNumerics ClipByValue Complex '
    'ComplexAbs Conj Cos Cosh Digamma Div DivNoNan Elu EluGrad EnsureShape Equal '
    'Erf Erfc Erfinv Exp Expm1 Floor FloorDiv FloorMod Greater GreaterEqual '
    'Identity Igamma Igammac Imag Inv InvGrad Invert IsFinite IsInf IsNan '
    'LeakyRelu LeakyReluGrad LeftShift Less LessEqual Lgamma Log Log1p '
    'LogicalAnd LogicalNot LogicalOr Maximum Minimum Mod Mul MulNoNan Ndtri '
    'Neg NextAfter NotEqual Polygamma Pow PreventGradient Real RealDiv '
    'Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad RightShift Rint '
    'Round Rsqrt RsqrtGrad SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin '
    'Sinh Snapshot Softplus SoftplusGrad Softsign SoftsignGrad Sqrt SqrtGrad '
    'Square SquaredDifference StopGradient Sub Tan Tanh TanhGrad TruncateDiv '
    'TruncateMod Xdivy Xlog1py Xlogy Zeta').split()


def _elementwise(node: Node) -> Value:
  if node.op.type == 'BroadcastTo':
    return _broadcast(node, [0])
  return _broadcast(node)


def _select(node: Node) -> Value:
  # The condition may be of one number for each row.
  axes = {node.values[i].axis for i in node.rows()}
  if len(node.shape(0)) == len(node.shape(1)):
    return _broadcast(node)
  if axes != {0}:
    raise unknown('is not known to treat each example alone')
  return _leading(0, 1, 2)(node)


RULES: Dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys(('ArgMax', 'ArgMin'), _arg_reduce),
    **dict.fromkeys(('Cumsum', 'Cumprod', 'CumulativeLogsumexp', 'ReverseV2',
                     'Roll'), _along),
    **dict.fromkeys(('Softmax', 'LogSoftmax', 'TopKV2'), _last),
    **dict.fromkeys(('SoftmaxCrossEntropyWithLogits',
                     'SparseSoftmaxCrossEntropyWithLogits'), _cross_entropy),
    **dict.fromkeys(('Pad', 'PadV2', 'MirrorPad', 'MirrorPadGrad'), _pad),
    **dict.fromkeys(('Split', 'SplitV'), _split),
    **dict.fromkeys(('GatherV2', 'ResourceGather'), _gather),
    **dict.fromkeys(('BatchMatMul', 'BatchMatMulV2', 'BatchMatMulV3'),
                    _batch_matmul),
    **dict.fromkeys((
        'Conv', 'Conv2D', 'Conv3D', 'DepthwiseConv2dNative', 'MaxPool',
        'MaxPool3D', 'AvgPool', 'AvgPool3D', 'ResizeBilinear',
        'ResizeNearestNeighbor', 'ResizeBicubic', 'ResizeArea', 'LRN',
        'ResizeNearestNeighborGrad', 'DepthToSpace', 'SpaceToDepth',
        'Dilation2D', 'ExtractImagePatches'), _leading(0)),
    **dict.fromkeys(('ResizeBilinearGrad', 'ResizeBicubicGrad'),
                    _leading(0, 1)),
    **dict.fromkeys(('AvgPoolGrad', 'AvgPool3DGrad'), _leading(1)),
    **dict.fromkeys(('MaxPoolGrad', 'MaxPool3DGrad'), _leading(0, 1, 2)),
    **dict.fromkeys(('Conv2DBackpropInput', 'Conv3DBackpropInputV2',
                     'DepthwiseConv2dNativeBackpropInput'), _leading(2)),
    **dict.fromkeys(('Conv2DBackpropFilter', 'Conv3DBackpropFilterV2',
                     'DepthwiseConv2dNativeBackpropFilter', 'BiasAddGrad',
                     'L2Loss'), _adds_over),
    **dict.fromkeys(('FusedBatchNormV3', 'FusedBatchNormGradV3'), _fused_norm),
    **dict.fromkeys(('ZerosLike', 'OnesLike'), _like),
    **dict.fromkeys(('Shape', 'ShapeN', 'Size', 'Rank', 'TensorListLength',
                     'TensorListElementShape'), _size),
    **dict.fromkeys(('TensorListStack',), _stack_list),
    **dict.fromkeys(('TensorListGetItem', 'TensorListPopBack'), _list_item),
    **dict.fromkeys(('TensorListSetItem', 'TensorListPushBack'), _set_item),
    'TensorListFromTensor': _from_list, 'Select': _select, 'Reshape': _reshape,
    'ExpandDims': _expand, 'Squeeze': _squeeze, 'Transpose': _transpose,
    'ConcatV2': _concat, 'Pack': _pack, 'Unpack': _unpack, 'Slice': _slice,
    'Tile': _tile, 'StridedSlice': _strided_slice,
    'StridedSliceGrad': _strided_slice_grad, 'GatherNd': _gather_nd,
    'OneHot': _one_hot, 'MatMul': _matmul, 'Einsum': _einsum,
    'BiasAdd': _bias, 'BiasAddV1': _bias, 'MatrixBandPart': _band,
    'IdentityN': _each, 'SpaceToBatchND': _space_to_batch,
    'BatchToSpaceND': _batch_to_space,
}
"""Operations that are followed; all others make UNKNOWN."""
