"""Transfer functions: how each operation treats the examples of a batch.

A transfer function is called only if an input is ROW_WISE and none is MIXED or UNKNOWN.
To support another operation, write its transfer function and list it in `TRANSFER`.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfcactus.keras.compat import graphs
from tfcactus.keras.independence import dependence, draws, rearrangements
from tfcactus.keras.independence.dependence import (
  BATCH_SIZE,
  CONSTANT,
  Dependence,
  mixed,
  Node,
  Transfer,
  unknown,
  Value,
)


def _broadcast(node: Node) -> Value:
  """Follows entrywise operations, which align shapes at their last axes."""
  found = {_aligned(node, i) for i in node.rows()}
  if len(found) > 1:
    raise mixed('pairs each example with others')
  value, out = found.pop(), node.out()
  for i, other in enumerate(node.values):
    if other.dependence != Dependence.ROW_WISE:
      dependence.check_same(
          node, i, value.axis - len(out) + len(node.shape(i)), node.length())
  return value


def _aligned(node: Node, i: int) -> Value:
  """Returns a ROW_WISE input's value in an output that has more first axes."""
  value = node.values[i]
  return value._replace(axis=value.axis + len(node.out()) - len(node.shape(i)))


def _broadcast_to(node: Node) -> Value:
  """Follows BroadcastTo, whose second input is a shape."""
  if node.rows() != [0]:
    raise unknown('takes a shape that depends on the examples')
  value = _aligned(node, 0)
  _check_sizes(node, 1, value.axis)
  if not _keeps_length(node, value):
    raise unknown('may repeat an example')
  return value


def _keeps_length(node: Node, value: Value) -> bool:
  """Returns whether BroadcastTo makes as many rows as `value`, also of one example."""
  # TensorFlow repeats an axis of length 1, and refuses to change any other length.
  if (length := node.length()) is not None:
    return length > 1 or node.out()[value.axis] == 1
  if node.values[1] == BATCH_SIZE._replace(axis=value.axis, block=value.block):
    return True
  sizes = dependence.sizes_by_batch(node.op.inputs[1], node.values[1])
  return sizes is not None and [int(each[value.axis]) for each in sizes] == [
      number * abs(value.block) for number in dependence.BATCH_SIZES]


def _check_sizes(node: Node, i: int, axis: int) -> None:
  """Raises NotRowWise if shape `i` may have the batch size elsewhere than on `axis`."""
  value = node.values[i]
  if value.dependence != Dependence.BATCH_SIZE or node.length() is not None or (
      value.block and value.axis == axis):
    return  # The number of examples is fixed, or a ROW_WISE tensor has this shape.
  sizes = dependence.sizes_by_batch(node.op.inputs[i], node.values[i])
  if sizes is None or any(is_rows and k != axis for k, (_, is_rows) in enumerate(
      dependence.as_multiples([list(each) for each in sizes]))):
    raise mixed('depends on how many examples there are')


def _reduce(node: Node) -> Value:
  """Follows reductions, which must not reduce the examples' axis."""
  value, axes = dependence.only_operand(node), set(node.axes(1))
  if value.axis in axes:
    raise mixed('goes over the examples')
  if node.op.get_attr('keep_dims'):
    return value
  return value._replace(axis=value.axis - sum(k < value.axis for k in axes))


def _arg_reduce(node: Node) -> Value:
  """Follows ArgMax and ArgMin, which must not compare along the examples' axis."""
  value, rank = dependence.only_operand(node), len(node.shape(0))
  axis = node.whole(1) % rank
  if axis == value.axis:
    raise mixed('compares the examples')
  return value._replace(axis=value.axis - (axis < value.axis))


def _cross_entropy(node: Node) -> list[Value]:
  """Returns the values of a cross-entropy's loss and gradient; examples on axis 0."""
  rows = node.rows()
  value = node.values[rows[0]]
  # A vector would be broadcast to rows of a matrix, and be summed over.
  if value.axis != 0 or any(node.values[i] != value for i in rows) or (
      not node.op.type.startswith('Sparse') and any(
          len(node.shape(i)) == 1 for i in rows)):
    raise mixed('goes over the examples')
  for i in range(len(node.values)):
    dependence.check_same(node, i, 0, node.length())
  return [value, value]


def _product(node: Node) -> Value:
  """Follows matrix products of input 0 and input 1."""
  # The examples may be on a batch axis. They may also be the rows or the columns of the
  # product, if only one input has them.
  found = []
  rank = len(node.out())
  for i, flipped in enumerate(dependence.transposed(node.op)):
    if i not in node.rows():
      continue
    value = node.values[i]
    place = value.axis - len(node.shape(i))  # Negative: counted from the last axis.
    if place >= -2:
      # Rows (axis -2) of input 0 and columns (-1) of input 1 are not summed over;
      # `flipped` swaps rows and columns of the input.
      if (place == i - 2) == flipped:
        raise mixed('adds over the examples')
      place = i - 2
    found.append(value._replace(axis=place + rank))
  value = found[0]
  batch = value.axis < rank - 2
  if len(set(found)) > 1 or len(found) == 2 and not batch:
    raise mixed('pairs each example with others')
  for i in (0, 1):
    dependence.check_same(
        node, i, value.axis - rank + len(node.shape(i)) if batch else -1,
        node.length())
  return value


def _einsum(node: Node) -> Value:
  """Follows Einsum; the examples must have one letter in inputs and the result."""
  *terms, result = einsum_terms(node.op)
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
    dependence.check_same(node, i, term.find(letter), node.length())
  return Value(Dependence.ROW_WISE, result.index(letter), block)


def einsum_terms(op: tf.Operation) -> list[str]:
  """Returns the subscripts of the inputs and of the result of an Einsum.

  An ellipsis is replaced by capital letters that the equation does not use. Raises
  NotRowWise if it stands for different numbers of axes, is missing in the result, or
  if the dtype is neither float32 nor float64.
  """
  equation = op.get_attr('equation')
  equation = equation.decode() if isinstance(equation, bytes) else equation
  equation = equation.replace(' ', '')
  given, result = equation.split('->')
  terms = given.split(',')
  if '...' not in equation:
    return [*terms, result]
  numbers = {len(dependence.shape_of(op.inputs[i])) - len(term.replace('...', ''))
             for i, term in enumerate(terms) if '...' in term}
  # TensorFlow 2.21 computes another result in bfloat16 with an ellipsis.
  exact = op.inputs[0].dtype in (tf.float32, tf.float64)
  if len(numbers) != 1 or not exact or '...' not in result:
    raise unknown('is not known to treat each example alone')
  spare = [chr(code) for code in range(65, 91) if chr(code) not in equation]
  dots = ''.join(spare[:numbers.pop()])
  return [term.replace('...', dots) for term in [*terms, result]]


def _leading(*data: int, sizes: int = -1) -> Transfer:
  """Returns a transfer function for operations whose examples are on axis 0."""
  # `data` has the indices of the inputs that may depend on examples. Input `sizes`, if
  # not -1, holds the shape of one of these or of the output.

  def rule(node: Node) -> Value:
    """Follows an operation whose outputs have the examples on axis 0 too."""
    for i, value in enumerate(node.values):
      if value.dependence == Dependence.BATCH_SIZE and i != sizes and (
          not _is_fixed(node, i)):
        raise mixed('depends on how many examples there are')
    found = {node.values[i] for i in node.rows()}
    if set(node.rows()) - set(data) or len(found) > 1:
      raise unknown('is not known to treat each example alone')
    value = found.pop()
    if value.axis != 0:
      raise unknown('takes another axis than the first for the examples')
    for i in data:
      dependence.check_same(node, i, 0, node.length())
    if sizes >= 0:
      _check_sizes(node, sizes, 0)
    return value

  return rule


def _is_fixed(node: Node, i: int) -> bool:
  """Returns whether input `i`, computed from sizes, is equal in batches of any size."""
  found = dependence.sizes_by_batch(node.op.inputs[i], node.values[i])
  return found is not None and all(np.array_equal(each, found[0]) for each in found)


def _bias(node: Node) -> Value:
  """Follows BiasAdd; if examples are on the channel axis, all biases must be equal."""
  value = dependence.only_operand(node)
  first = node.op.type == 'BiasAdd' and node.op.get_attr('data_format') == b'NCHW'
  channels = 1 if first else len(node.shape(0)) - 1
  if value.axis == channels:
    dependence.check_same(node, 1, 0, node.shape(0)[channels])
  return value


def _fused_norm(node: Node) -> list[Value]:
  """Follows batch normalization and its gradient; returns a value per output."""
  # With given statistics, the examples may be on axis 0. With statistics of its input,
  # the operation normalizes each channel separately, so that the examples must be on
  # the axis of the channels. Some layers put them there.
  images = (0, 1) if 'Grad' in node.op.type else (0,)  # Inputs dy and x, or x.
  form = node.op.get_attr('data_format')
  channels = 1 if form in (b'NCHW', b'NCDHW') else len(node.shape(0)) - 1
  rows = node.rows()
  axes = {node.values[i].axis for i in rows if i in images}
  blocks = {node.values[i].block for i in rows}
  given = not node.op.get_attr('is_training') and axes == {0}
  if len(blocks) != 1 or len(axes) != 1 or given and not set(rows) <= set(images):
    raise unknown('is not known to treat each example alone')
  axis, block = axes.pop(), blocks.pop()
  if not given and axis != channels:
    raise mixed('normalizes over the examples')
  node.op.outputs[0].set_shape(node.op.inputs[0].shape)
  # Statistics and scales have the channels on axis 0: the examples too, unless `given`.
  others_axis = -1 if given else 0
  for i in range(len(node.values)):
    if node.op.inputs[i].shape.num_elements() != 0:
      dependence.check_same(
          node, i, axis if i in images else others_axis, node.length())
  others = Value(Dependence.ROW_WISE, 0, block)
  if given:
    # dx = dy scale / sqrt(variance + epsilon). The gradients of scale and offset are
    # sums over the examples.
    others = CONSTANT if len(images) == 1 else Value(
        Dependence.MIXED, why=f'{node.op.type} in {node.op.name!r} sums over the '
        'examples', operation=node.op.name)
  return [Value(Dependence.ROW_WISE, axis, block)] + (
      [others] * (len(node.op.outputs) - 1))


def _space_to_batch(node: Node) -> Value:
  """Follows SpaceToBatchND: it cuts axes into parts, and repeats the batch per part."""
  value, times = dependence.only_operand(node), int(np.prod(node.static(1)))
  if value.axis > np.size(node.static(1)):  # Axes after those that are cut stay.
    return value
  if value != Value(Dependence.ROW_WISE):
    raise unknown('takes another axis than the first for the examples')
  return value._replace(block=-times)


def _batch_to_space(node: Node) -> Value:
  """Follows BatchToSpaceND where it undoes a SpaceToBatchND of as many parts."""
  value, times = dependence.only_operand(node), int(np.prod(node.static(1)))
  if value.axis > np.size(node.static(1)):
    return value
  if value != Value(Dependence.ROW_WISE, block=-times):
    raise unknown('undoes no SpaceToBatchND of as many parts, with the examples on the '
                  'first axis')
  return Value(Dependence.ROW_WISE)


def _depthwise(node: Node) -> Value | list[Value]:
  """Follows depthwise convolutions with the examples on axis 0, or among channels."""
  images, kernels = node.values
  multiplier = node.shape(1)[3]
  # The examples may also be on the axis of the channels, each with its own kernels.
  if multiplier and node.op.get_attr('data_format') == b'NHWC' and (
      images.dependence == kernels.dependence == Dependence.ROW_WISE and
      images.axis == 3 and kernels.axis == 2 and
      images.block == kernels.block > 0):
    return Value(Dependence.ROW_WISE, 3, images.block * multiplier)
  return _leading(0)(node)


def _depthwise_filter(node: Node) -> Value:
  """Follows gradients of depthwise kernels, if examples have channels of their own."""
  images, sizes, outputs = node.values
  channels, narrow = node.shape(0)[3], node.shape(2)[3]
  if not channels or not narrow or sizes.dependence != Dependence.CONSTANT or (
      node.op.get_attr('data_format') != b'NHWC'):
    raise unknown('is not known to treat each example alone')
  # It adds over the examples unless each has its own channels (axis 3) in the images
  # and in the upstream gradient; the kernel then has them on axis 2.
  if images.dependence == outputs.dependence == Dependence.ROW_WISE and (
      images.axis == outputs.axis == 3 and images.block > 0 and
      outputs.block * channels == images.block * narrow):
    return Value(Dependence.ROW_WISE, 2, images.block)
  raise mixed('adds over the examples')


def _segments(node: Node) -> Value:
  """Follows UnsortedSegmentSum along other axes than that of the examples."""
  value, own = dependence.only_operand(node), len(node.shape(1))
  if value.axis < own:
    raise unknown('adds entries that may belong to several examples')
  return value._replace(axis=value.axis - own + 1)


def _adds_over(node: Node) -> Value:
  """Raises NotRowWise for an operation that adds over the examples."""
  del node
  raise mixed('adds over the examples')


def _size(node: Node) -> Value | list[Value]:
  """Follows shapes, ranks and counts of entries: CONSTANT if known, else BATCH_SIZE."""
  if all(None not in node.shape(i) for i in range(len(node.values))):
    return CONSTANT
  if node.op.type not in ('Shape', 'ShapeN'):
    return BATCH_SIZE
  # A Shape has `sizes` if the examples' axis is the only axis of unknown size.
  if node.op.type == 'ShapeN' or node.shape(0).count(None) != 1 or (
      node.shape(0)[node.values[0].axis] is not None):
    return [BATCH_SIZE._replace(axis=value.axis, block=value.block)
            if i in node.rows() else BATCH_SIZE for i, value in enumerate(node.values)]
  return dependence.sized([np.asarray(shape) for shape in dependence.shapes(node)])


REDUCTIONS = frozenset(('Sum', 'Mean', 'Max', 'Min', 'Prod', 'All', 'Any',
                         'EuclideanNorm'))
"""Operations that reduce the axes in their second input."""

ELEMENTWISE: list[str] = (
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
    'TruncateMod Xdivy Xlog1py Xlogy Zeta '
    'AsString Bucketize StaticRegexFullMatch StaticRegexReplace StringJoin '
    'StringLength StringLower StringStrip StringToHashBucket StringToHashBucketFast '
    'StringToHashBucketStrong StringToNumber StringUpper').split()
"""Operations that compute each entry from the (broadcast) entries at its position."""


def _select(node: Node) -> Value | list[Value]:
  """Follows Select, whose condition has the shape of the data or one entry per row."""
  if len(node.shape(0)) == len(node.shape(1)):
    return _broadcast(node)
  return _leading(0, 1, 2)(node)


def _find(node: Node) -> Value:
  """Follows lookups of keys in a table; the table must not depend on examples."""
  table, keys, default = node.values
  # A scalar default says that the table maps to scalars. Input and output of one rank
  # then say that it maps from scalars too: each entry is a lookup of its own.
  if {table.dependence, default.dependence} != {Dependence.CONSTANT} or (
      node.shape(2) != [] or len(node.out()) != len(node.shape(1))):
    raise unknown('is not known to treat each example alone')
  return keys


def _map_each(node: Node) -> list[Value]:
  """Follows MapDefun, which calls a function on each entry along the first axis."""
  count = len(node.op.get_attr('Targuments'))
  rows, others = node.values[:count], node.values[count:]
  if not rows or any(value != dependence.ROW_WISE for value in rows) or any(
      value.dependence != Dependence.CONSTANT or value.seed for value in others):
    raise unknown('is not known to treat each example alone')
  function = dependence.called(node.op)
  if function is None or any(map(draws.moves_state, graphs.nodes(function))):
    raise unknown('calls a function that draws by a state, which goes from example to '
                  'example')
  return [dependence.ROW_WISE] * len(node.op.outputs)


_ALONG = 'goes along the examples'

TRANSFER: dict[str, Transfer] = {
    **rearrangements.TRANSFER,
    **dict.fromkeys(ELEMENTWISE, _broadcast),
    'BroadcastTo': _broadcast_to,
    **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys(('ArgMax', 'ArgMin'), _arg_reduce),
    **dict.fromkeys(
        ('Cumsum', 'Cumprod', 'CumulativeLogsumexp', 'ReverseV2'),
        rearrangements.leaving_alone(
            lambda node, axis: axis in node.axes(1), mixed, _ALONG)),
    'Roll': rearrangements.leaving_alone(
        lambda node, axis: axis in node.axes(2), mixed, _ALONG),
    **dict.fromkeys(('Softmax', 'LogSoftmax', 'TopKV2'), rearrangements.leaving_alone(
        lambda node, axis: axis == len(node.shape(0)) - 1, mixed,
        'goes over the examples')),
    'MatrixBandPart': rearrangements.leaving_alone(
        lambda node, axis: axis >= len(node.shape(0)) - 2, unknown,
        'treats examples by their place in the batch'),
    **dict.fromkeys(('SoftmaxCrossEntropyWithLogits',
                     'SparseSoftmaxCrossEntropyWithLogits'), _cross_entropy),
    **dict.fromkeys(('MatMul', 'BatchMatMul', 'BatchMatMulV2', 'BatchMatMulV3'),
                    _product),
    **dict.fromkeys((
        'Conv', 'Conv2D', 'Conv3D', 'MaxPool', 'MaxPool3D', 'AvgPool', 'AvgPool3D',
        'ResizeBilinear',
        'ResizeNearestNeighbor', 'ResizeBicubic', 'ResizeArea', 'LRN',
        'ResizeNearestNeighborGrad', 'DepthToSpace', 'SpaceToDepth',
        'Dilation2D', 'ExtractImagePatches'), _leading(0)),
    **dict.fromkeys(('ImageProjectiveTransformV2', 'ImageProjectiveTransformV3',
                     'ResizeBilinearGrad', 'ResizeBicubicGrad'), _leading(0, 1)),
    **dict.fromkeys(('AvgPoolGrad', 'AvgPool3DGrad'), _leading(1, sizes=0)),
    **dict.fromkeys(('MaxPoolGrad', 'MaxPool3DGrad'), _leading(0, 1, 2)),
    **dict.fromkeys(('Conv2DBackpropInput', 'Conv3DBackpropInputV2',
                     'DepthwiseConv2dNativeBackpropInput'),
                    _leading(2, sizes=0)),
    **dict.fromkeys(('Conv2DBackpropFilter', 'Conv3DBackpropFilterV2',
                     'BiasAddGrad', 'L2Loss'), _adds_over),
    'DepthwiseConv2dNative': _depthwise,
    'DepthwiseConv2dNativeBackpropFilter': _depthwise_filter,
    **dict.fromkeys(('FusedBatchNormV3', 'FusedBatchNormGradV3'), _fused_norm),
    **dict.fromkeys(('ZerosLike', 'OnesLike'), lambda node: node.values[0]),
    **dict.fromkeys(('Shape', 'ShapeN', 'Size', 'Rank'), _size),
    'LookupTableFindV2': _find, 'MapDefun': _map_each,
    'UnsortedSegmentSum': _segments,
    'Select': _select, 'Einsum': _einsum, 'BiasAdd': _bias, 'BiasAddV1': _bias,
    'IdentityN': lambda node: node.values, 'SpaceToBatchND': _space_to_batch,
    'BatchToSpaceND': _batch_to_space,
}
"""Transfer functions by operation; all other operations have UNKNOWN outputs."""
