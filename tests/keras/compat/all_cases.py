"""Cases for all operations whose converters the library relies on."""

import numpy as np
import tensorflow as tf

from tests.keras.compat.vectorized_cases import (
  booleans,
  combinations,
  complex_numbers,
  integers,
  normal,
  of_dtype,
  raw,
  small,
)

bfloat16 = tf.bfloat16.as_numpy_dtype
CASES = {}


def add(op, run, *tensors, varying=''):
  """Adds the cases of a function of one row."""
  CASES.setdefault(op, []).extend(combinations(op, run, *tensors, varying=varying))


_UNARY = '''Abs Asinh Atan Ceil Cos Cosh Elu Erf Erfc Exp Expm1 Floor Inv IsFinite
IsInf IsNan Neg Reciprocal Relu Relu6 Rint Round Selu Sigmoid Sign Sin Sinh
Softplus Softsign Square Tan Tanh'''.split()
_OF_POSITIVE = '''Acos Asin Atanh Digamma Erfinv Lgamma Log Log1p Ndtri Rsqrt
Sqrt'''.split()
for name in _UNARY + _OF_POSITIVE:
  kind = small if name in _OF_POSITIVE else normal
  argument = 'features' if name in (
      'Elu Relu Relu6 Selu Softplus Softsign').split() else 'x'
  one = lambda x, name=name, argument=argument: getattr(raw, name)(**{argument: x})
  add(name, one, (kind, (3, 2)))
add('Acosh', lambda x: raw.Acosh(x=x + 1), (small, (3,)))
add('LogicalNot', lambda x: raw.LogicalNot(x=x), (booleans, (3,)))
add('Invert', lambda x: raw.Invert(x=x), (integers(9), (3,)))
add('LeakyRelu', lambda x: raw.LeakyRelu(features=x, alpha=.3), (3,))
for name in ('Real', 'Imag', 'Conj', 'Angle', 'ComplexAbs'):
  argument = 'x' if name == 'ComplexAbs' else 'input'
  add(name, lambda x, name=name, argument=argument: getattr(raw, name)(
      **{argument: x}), (complex_numbers, (3,)))
for dtype in (tf.int32, tf.bfloat16, tf.float64, tf.bool):
  add('Cast', lambda x, dtype=dtype: tf.cast(x, dtype), (3, 2))

# Of two, broadcast every way.
_BINARY = '''Add AddV2 Atan2 Div DivNoNan FloorDiv FloorMod Maximum Minimum Mod Mul
MulNoNan Pow RealDiv SquaredDifference Sub Xdivy Xlogy Xlog1py Complex'''.split()
_COMPARING = 'Equal NotEqual Greater GreaterEqual Less LessEqual'.split()
_SHAPES = [((3,), (3,)), ((4, 3), (3,)), ((3,), (4, 3)), ((), (3,)), ((4, 1), (1, 3)),
           ((2, 1, 3), (4, 1))]
for name in _BINARY + _COMPARING:
  kind = integers(4) if name in _COMPARING else small
  if name == 'Complex':
    one = lambda x, y: raw.Complex(real=x, imag=y)
  elif name == 'Atan2':
    one = lambda x, y: raw.Atan2(y=x, x=y)
  else:
    one = lambda x, y, name=name: getattr(raw, name)(x=x, y=y)
  for first, second in _SHAPES:
    add(name, one, (kind, first), (kind, second))
for name in ('LogicalAnd', 'LogicalOr'):
  add(name, lambda x, y, name=name: getattr(raw, name)(x=x, y=y),
      (booleans, (4, 3)), (booleans, (3,)))
for name in 'BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift TruncateDiv '\
    'TruncateMod'.split():
  add(name, lambda x, y, name=name: getattr(raw, name)(x=x, y=y),
      (integers(9, 1), (4, 3)), (integers(9, 1), (3,)))
for name in ('Equal', 'NotEqual'):
  add(name, lambda x, y, name=name: getattr(raw, name)(
      x=x, y=y, incompatible_shape_error=False), (integers(3), (3,)), (integers(3), ()))
  # Of shapes that do not fit it is one answer, of no shape.
  add(name, lambda x, y, name=name: getattr(raw, name)(
      x=x, y=y, incompatible_shape_error=False), (integers(3), (3,)),
      (integers(3), (2,)))
for first, second, third in [((3,), (3,), (3,)), ((), (4, 3), (3,)),
                             ((4, 1), (3,), (2, 1, 3))]:
  add('SelectV2', lambda c, x, y: raw.SelectV2(condition=c, t=x, e=y),
      (booleans, first), second, third)
for first in ((), (4,), (4, 3)):
  add('Select', lambda c, x, y: raw.Select(condition=c, x=x, y=y),
      (booleans, first), (4, 3), (4, 3))
add('ClipByValue', lambda x, low, high: raw.ClipByValue(
    t=x, clip_value_min=low, clip_value_max=high + 1), (4, 3), (small, ()), (small, ()))
add('ClipByValue', lambda x, low, high: raw.ClipByValue(
    t=x, clip_value_min=low, clip_value_max=high + 1), (4, 3), (small, (4, 3)),
    (small, (4, 3)))

for name in 'Relu Relu6 Selu Elu Softplus Softsign LeakyRelu'.split():
  def one(x, y, name=name):
    names = {'Selu': 'outputs', 'Elu': 'outputs'}
    return getattr(raw, name + 'Grad')(
        **{'gradients': x, names.get(name, 'features'): y})
  add(name + 'Grad', one, (4, 3), (4, 3))
for name in 'Reciprocal Rsqrt Sigmoid Sqrt Tanh'.split():
  add(name + 'Grad', lambda x, y, name=name: getattr(raw, name + 'Grad')(y=x, dy=y),
      (small, (4, 3)), (4, 3))

# Reductions.
for axis in (0, 1, -1, -2, [0, -1], []):
  for keep in (False, True):
    for name in 'Sum Prod Max Min Mean'.split():
      add(name, lambda x, name=name, axis=axis, keep=keep: getattr(raw, name)(
          input=x, axis=tf.constant(axis, tf.int32), keep_dims=keep), (4, 3))
    for name in ('All', 'Any'):
      add(name, lambda x, name=name, axis=axis, keep=keep: getattr(raw, name)(
          input=x, axis=tf.constant(axis, tf.int32), keep_dims=keep),
          (booleans, (4, 3)))
for axis in (0, 1, -1, -2):
  for name in ('ArgMax', 'ArgMin'):
    add(name, lambda x, name=name, axis=axis: getattr(raw, name)(
        input=x, dimension=axis), (4, 3))
  for name in ('Cumsum', 'Cumprod'):
    for flags in ((False, False), (True, False), (False, True)):
      add(name, lambda x, name=name, axis=axis, flags=flags: getattr(raw, name)(
          x=x, axis=axis, exclusive=flags[0], reverse=flags[1]), (4, 3))

# Products.
for left in (False, True):
  for right in (False, True):
    for rows, kind in ((1, normal), (4, normal), (4, complex_numbers),
                       (1, of_dtype(np.float64)), (4, of_dtype(bfloat16))):
      if kind == normal or left == right:
        add('MatMul', lambda x, y, left=left, right=right: raw.MatMul(
            a=x, b=y, transpose_a=left, transpose_b=right),
            (kind, (3, rows) if left else (rows, 3)),
            (kind, (5, 3) if right else (3, 5)))
    for first, second in [((), ()), ((2,), ()), ((2, 1), (3,))]:
      for kind in (normal, complex_numbers)[:1 + (first == ())]:
        add('BatchMatMulV2', lambda x, y, left=left, right=right: raw.BatchMatMulV2(
            x=x, y=y, adj_x=left, adj_y=right),
            (kind, (*first, *((3, 4) if left else (4, 3)))),
            (kind, (*second, *((5, 3) if right else (3, 5)))))
for equation, first, second in [
    ('ab,bc->ac', (4, 3), (3, 5)), ('abc,cd->abd', (2, 4, 3), (3, 5)),
    ('...ab,...bc->...ac', (2, 4, 3), (3, 5)), ('abc,adc->abd', (2, 4, 3), (2, 5, 3)),
    ('...ab,...bc->...ac', (2, 1, 4, 3), (6, 3, 5)), ('a,b->ab', (3,), (4,)),
    ('ab,ab->', (4, 3), (4, 3)), ('Zab,ab->Z', (2, 4, 3), (4, 3))]:
  add('Einsum', lambda x, y, equation=equation: raw.Einsum(
      inputs=[x, y], equation=equation), first, second)
for equation in ('ab->ba', 'ab->a', 'aa->a', 'aa->', '...a->...'):
  add('Einsum', lambda x, equation=equation: raw.Einsum(
      inputs=[x], equation=equation), (3, 3))
for shape in ((4, 3), (2, 4, 3), (2, 4, 5, 3), (2, 2, 4, 5, 3)):
  add('BiasAdd', lambda x, y: raw.BiasAdd(value=x, bias=y), shape, (3,))
  add('BiasAddGrad', lambda x: raw.BiasAddGrad(out_backprop=x), shape)
for shape in ((2, 3, 4), (2, 3, 4, 4), (2, 3, 3, 3, 3)):
  add('BiasAdd', lambda x, y: raw.BiasAdd(value=x, bias=y, data_format='NCHW'),
      shape, (3,))
  add('BiasAddGrad', lambda x: raw.BiasAddGrad(out_backprop=x, data_format='NCHW'),
      shape)
add('AddN', lambda x, y, z: raw.AddN(inputs=[x, y, z]), (4, 3), (4, 3), (4, 3))

# Convolutions and pooling.
for strides, padding, dilation, groups in [
    (1, 'SAME', 1, 1), (2, 'VALID', 1, 1), (1, 'VALID', 2, 1), (1, 'SAME', 1, 2),
    (2, 'SAME', 1, 2), (1, 'VALID', 1, 4), (1, 'EXPLICIT', 1, 1)]:
  kwargs = dict(strides=[1, strides, strides, 1], padding=padding,
                dilations=[1, dilation, dilation, 1])
  if padding == 'EXPLICIT':
    kwargs['explicit_paddings'] = [0, 0, 1, 2, 0, 1, 0, 0]
  image, kernel = (2, 6, 5, 4), (3, 3, 4 // groups, 8)
  out = tf.nn.conv2d(
      np.zeros(image, np.float32), np.zeros((3, 3, 4, 8), np.float32), strides,
      [[0, 0], [1, 2], [0, 1], [0, 0]] if padding == 'EXPLICIT' else padding,
      dilations=dilation).shape
  add('Conv2D', lambda x, k, kwargs=kwargs: raw.Conv2D(input=x, filter=k, **kwargs),
      image, kernel)
  add('Conv2DBackpropFilter', lambda x, up, kwargs=kwargs, kernel=kernel:
      raw.Conv2DBackpropFilter(input=x, filter_sizes=kernel, out_backprop=up, **kwargs),
      image, tuple(out))
  add('Conv2DBackpropInput', lambda k, up, kwargs=kwargs:
      raw.Conv2DBackpropInput(input_sizes=(2, 6, 5, 4), filter=k, out_backprop=up,
                              **kwargs), kernel, tuple(out))
for strides, padding, dilation, many in [(1, 'SAME', 1, 1), (2, 'VALID', 1, 2)]:
  kwargs = dict(strides=[1, strides, strides, 1], padding=padding)
  if dilation > 1:
    kwargs['dilations'] = [1, dilation, dilation, 1]
  image, kernel = (2, 6, 5, 4), (3, 3, 4, many)
  out = tf.nn.conv2d(np.zeros(image, np.float32), np.zeros((3, 3, 4, 4 * many),
                     np.float32), strides, padding, dilations=dilation).shape
  add('DepthwiseConv2dNative', lambda x, k, kwargs=kwargs: raw.DepthwiseConv2dNative(
      input=x, filter=k, **kwargs), image, kernel)
  add('DepthwiseConv2dNativeBackpropFilter', lambda x, up, kwargs=kwargs, kernel=kernel:
      raw.DepthwiseConv2dNativeBackpropFilter(
          input=x, filter_sizes=kernel, out_backprop=up, **kwargs), image, tuple(out))
  add('DepthwiseConv2dNativeBackpropInput', lambda k, up, kwargs=kwargs:
      raw.DepthwiseConv2dNativeBackpropInput(
          input_sizes=(2, 6, 5, 4), filter=k, out_backprop=up, **kwargs),
      kernel, tuple(out))
for axes in (2, 3):
  volume = '3D' if axes == 3 else ''
  for padding in ('SAME', 'VALID'):
    kwargs = dict(ksize=[1] + [2] * axes + [1], strides=[1] + [2] * axes + [1],
                  padding=padding)
    image = (2, *(6, 5, 4)[:axes], 3)
    out = tuple(tf.nn.max_pool(np.zeros(image, np.float32), 2, 2, padding).shape)
    for name in ('AvgPool', 'MaxPool'):
      argument = 'value' if name + volume == 'AvgPool' else 'input'
      add(name + volume, lambda x, op=name + volume, argument=argument, kwargs=kwargs:
          getattr(raw, op)(**{argument: x}, **kwargs), image)
    add('MaxPool' + volume + 'Grad', lambda x, y, up, op='MaxPool' + volume + 'Grad',
        kwargs=kwargs: getattr(raw, op)(
            orig_input=x, orig_output=y, grad=up, **kwargs), image, out, out)
    add('AvgPool' + volume + 'Grad', lambda up, op='AvgPool' + volume + 'Grad',
        image=image, kwargs=kwargs: getattr(raw, op)(
            orig_input_shape=image, grad=up, **kwargs), out)
  if axes == 2:
    add('MaxPoolV2', lambda x, kwargs=kwargs: raw.MaxPoolV2(input=x, **kwargs), image)
    add('MaxPoolGradV2', lambda x, y, up, kwargs=kwargs: raw.MaxPoolGradV2(
        orig_input=x, orig_output=y, grad=up, **kwargs), image, out, out)
add('DepthToSpace', lambda x: raw.DepthToSpace(input=x, block_size=2), (2, 3, 4, 8))
add('SpaceToDepth', lambda x: raw.SpaceToDepth(input=x, block_size=2), (2, 6, 4, 2))
add('SpaceToBatchND', lambda x: raw.SpaceToBatchND(
    input=x, block_shape=[2, 3], paddings=[[1, 1], [2, 0]]), (3, 6, 4, 2))
add('BatchToSpaceND', lambda x: raw.BatchToSpaceND(
    input=x, block_shape=[2, 3], crops=[[1, 0], [0, 2]]), (12, 3, 4, 2))
for name in ('Softmax', 'LogSoftmax'):
  add(name, lambda x, name=name: getattr(raw, name)(logits=x), (4, 3))
  add(name, lambda x, name=name: getattr(raw, name)(logits=x), (3,))
  add(name, lambda x, name=name: getattr(raw, name)(logits=x), (1, 2, 1, 2, 3))
add('SoftmaxCrossEntropyWithLogits', lambda x, y: raw.SoftmaxCrossEntropyWithLogits(
    features=x, labels=y), (4, 3), (small, (4, 3)))
add('SparseSoftmaxCrossEntropyWithLogits',
    lambda x, y: raw.SparseSoftmaxCrossEntropyWithLogits(features=x, labels=y),
    (4, 3), (integers(3), (4,)))
for training in (False, True):
  def one(x, scale, offset, mean, variance, training=training):
    if training:
      mean = variance = tf.zeros([0])
    return raw.FusedBatchNormV3(x=x, scale=scale, offset=offset, mean=mean,
                                variance=variance, is_training=training)[
                                    :3 if training else 1]
  add('FusedBatchNormV3', one, (2, 4, 5, 3), (3,), (3,), (3,), (small, (3,)),
      varying='vvvvv vssss svsss ssvss sssvv' if training else 'vvvvv vssss vvsvs')
  add('FusedBatchNormGradV3', lambda up, x, scale, mean, variance, training=training:
      raw.FusedBatchNormGradV3(
          y_backprop=up, x=x, scale=scale, reserve_space_1=mean,
          reserve_space_2=variance, reserve_space_3=tf.zeros([0]),
          is_training=training)[:3],
      (2, 4, 5, 3), (2, 4, 5, 3), (3,), (3,), (small, (3,)),
      varying='vvvvv vssss svsss ssvsv')

# Of shapes and places.
for name in ('Identity', 'StopGradient', 'ZerosLike', 'OnesLike', 'Shape', 'Size',
             'Rank'):
  def one(x, name=name):
    argument = 'x' if name.endswith('Like') else 'input'
    return getattr(raw, name)(**{argument: x})
  add(name, one, (4, 3))
  add(name, one, ())
add('IdentityN', lambda x, y: raw.IdentityN(input=[x, y]), (4, 3), (2,))
add('ShapeN', lambda x, y: raw.ShapeN(input=[x, y]), (4, 3), (2,))
for shape in ([3, 4], [-1], [2, -1, 2], [1, 12, 1]):
  add('Reshape', lambda x, shape=shape: raw.Reshape(tensor=x, shape=shape), (4, 3))
add('Fill', lambda x: raw.Fill(dims=[2, 3], value=x), ())
add('Fill', lambda x: raw.Fill(dims=tf.constant([], tf.int32), value=x), ())
for shape in ((3,), (4, 3), (4, 1), ()):
  add('BroadcastTo', lambda x: raw.BroadcastTo(input=x, shape=[2, 4, 3]), shape)
for axis in (0, 1, 2, -1, -2, -3):
  add('ExpandDims', lambda x, axis=axis: raw.ExpandDims(input=x, axis=axis), (4, 3))
  add('Pack', lambda x, y, axis=axis: raw.Pack(values=[x, y], axis=axis), (4, 3),
      (4, 3))
for axes in ([], [0], [2], [-1], [0, -1]):
  add('Squeeze', lambda x, axes=axes: raw.Squeeze(input=x, axis=axes), (1, 4, 1))
for lower, upper in ((0, -1), (1, 1)):
  add('MatrixBandPart', lambda x, lower=lower, upper=upper: raw.MatrixBandPart(
      input=x, num_lower=lower, num_upper=upper), (2, 4, 3))
for k in ([0], [1], [-1, 1]):
  band = (3, 4) if len(k) > 1 else (4 - k[0],)
  add('MatrixDiagV3', lambda x, k=k: raw.MatrixDiagV3(
      diagonal=x, k=k, num_rows=4, num_cols=4, padding_value=0.), (2, *band))
  add('MatrixDiagPartV3', lambda x, k=k: raw.MatrixDiagPartV3(
      input=x, k=k, padding_value=0.), (2, 4, 4))
  add('MatrixSetDiagV3', lambda x, d, k=k: raw.MatrixSetDiagV3(
      input=x, diagonal=d, k=k), (2, 4, 4), (2, *band))
for axis in (-1, 0, 1, 2):
  add('OneHot', lambda x, axis=axis: raw.OneHot(
      indices=x, depth=5, on_value=2., off_value=-1., axis=axis),
      (integers(7, -1), (4, 3)))
  if axis < 2:
    add('Unpack', lambda x, axis=axis: raw.Unpack(value=x, num=3, axis=axis), (3, 3))
    add('Split', lambda x, axis=axis: raw.Split(axis=axis, value=x, num_split=2),
        (4, 6))
    add('SplitV', lambda x, axis=axis: raw.SplitV(
        value=x, size_splits=[1, 3], axis=axis, num_split=2), (4, 4))
    add('ConcatV2', lambda x, y, axis=axis: raw.ConcatV2(values=[x, y], axis=axis),
        (3, 3), (3, 3))
    add('ReverseV2', lambda x, axis=axis: raw.ReverseV2(tensor=x, axis=[axis]), (4, 3))
    add('Roll', lambda x, axis=axis: raw.Roll(input=x, shift=[1], axis=[axis]), (4, 3))
    add('Roll', lambda x, shift, axis=axis: raw.Roll(input=x, shift=shift, axis=axis),
        (4, 3), (integers(3), ()))
add('Roll', lambda x: raw.Roll(input=x, shift=[1, -2], axis=[0, -1]), (4, 3))
for begin, size in (([0, 1], [3, 2]), ([1, 0], [-1, 1])):
  add('Slice', lambda x, begin=begin, size=size: raw.Slice(
      input=x, begin=begin, size=size), (4, 3))
add('Slice', lambda x, begin: raw.Slice(input=x, begin=begin, size=[2, 1]), (4, 3),
    (integers(3), (2,)))
for words in ((1,), (..., 0), (slice(None), 1), (slice(None, None, -1),), (None, 2),
              (slice(1, 3), slice(None, -1)), (None, ..., None), (-1, ..., slice(0, 2)),
              (slice(None), None, 1)):
  add('StridedSlice', lambda x, words=words: x[words], (4, 3))

  def one(x, words=words):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = tf.square(x[words])
    return tape.gradient(y, x)

  add('StridedSliceGrad', one, (4, 3))
add('Tile', lambda x: raw.Tile(input=x, multiples=[2, 3]), (4, 3))
add('Pad', lambda x: raw.Pad(input=x, paddings=[[1, 0], [2, 3]]), (4, 3))
add('PadV2', lambda x: raw.PadV2(
    input=x, paddings=[[1, 0], [2, 3]], constant_values=7.), (4, 3))
for perm in ([1, 0, 2], [2, 0, 1]):
  add('Transpose', lambda x, perm=perm: raw.Transpose(x=x, perm=perm), (4, 3, 2))
  add('ConjugateTranspose', lambda x, perm=perm: raw.ConjugateTranspose(
      x=x, perm=perm), (complex_numbers, (4, 3, 2)))
for axis, params, indices, batch in [
    (0, (5,), (4,), 0), (0, (5, 3), (4,), 0), (1, (3, 5), (4,), 0),
    (-1, (3, 5), (4,), 0), (-2, (5, 3), (2, 4), 0), (0, (5, 3), (), 0),
    (1, (3, 5), (3, 4), 1), (2, (3, 2, 5), (3, 4), 1), (-1, (3, 2, 5), (3, 2, 4), 2),
    (1, (3, 5, 2), (3, 4), -1)]:
  add('GatherV2', lambda x, i, axis=axis, batch=batch: raw.GatherV2(
      params=x, indices=i, axis=axis, batch_dims=batch), params, (integers(5), indices),
      varying='vv vs' if batch < 0 else '')
for params, indices in [((5, 5), (4, 2)), ((5, 5), (4, 1)), ((5, 3), (1,)),
                        ((5, 5, 2), (2, 3, 2))]:
  add('GatherNd', lambda x, i: raw.GatherNd(params=x, indices=i), params,
      (integers(3), indices))
add('FakeQuantWithMinMaxArgs', lambda x: raw.FakeQuantWithMinMaxArgs(
    inputs=x, min=-1, max=2, num_bits=4), (4, 3))
add('FakeQuantWithMinMaxArgsGradient', lambda up, x:
    raw.FakeQuantWithMinMaxArgsGradient(gradients=up, inputs=x, min=-1, max=2),
    (4, 3), (4, 3))
for kind, shape in (('Vars', ()), ('VarsPerChannel', (3,))):
  add('FakeQuantWithMinMax' + kind, lambda x, low, high, kind=kind: getattr(
      raw, 'FakeQuantWithMinMax' + kind)(
          inputs=x, min=-low, max=high, num_bits=3, narrow_range=True),
      (2, 4, 3), (small, shape), (small, shape))
  # Bounds that are numbers of the row, and bounds of zero.
  for factor in (1, 0):
    add(f'FakeQuantWithMinMax{kind}Gradient',
        lambda up, x, kind=kind, factor=factor, axis=[0] if shape else None: getattr(
            raw, f'FakeQuantWithMinMax{kind}Gradient')(
                gradients=up, inputs=x, min=factor * tf.reduce_min(x, axis),
                max=factor * tf.reduce_max(x, axis)), (4, 3), (4, 3))
  add(f'FakeQuantWithMinMax{kind}Gradient', lambda up, x, low, high, kind=kind: getattr(
      raw, f'FakeQuantWithMinMax{kind}Gradient')(
          gradients=up, inputs=x, min=-low, max=high, num_bits=3),
      (2, 3), (2, 3), (small, shape), (small, shape))
add('CheckNumerics', lambda x: raw.CheckNumerics(tensor=x, message=''), (4, 3))
add('EnsureShape', lambda x: raw.EnsureShape(input=x, shape=[4, None]), (4, 3))
add('Bucketize', lambda x: raw.Bucketize(input=x, boundaries=[-1., 0., 1.]), (4, 3))
for kind in (np.int32, np.int64):
  for name in 'Sum Max Min Prod'.split():
    for data, ids in [((6,), (6,)), ((6, 2), (6,)), ((3, 2, 2), (3, 2))]:
      add('UnsortedSegment' + name, lambda x, i, name=name, kind=kind: getattr(
          raw, 'UnsortedSegment' + name)(data=x, segment_ids=i, num_segments=5),
          data, (of_dtype(kind, integers(5, -1)), ids))
for name in ('FFT', 'FFT2D', 'FFT3D', 'IFFT', 'IFFT2D', 'IFFT3D'):
  add(name, lambda x, name=name: getattr(raw, name)(input=x),
      (complex_numbers, (2, 4, 3)))
for name, size in (('RFFT', [3]), ('RFFT2D', [4, 3]), ('RFFT3D', [2, 4, 4])):
  add(name, lambda x, name=name, size=size: getattr(raw, name)(
      input=x, fft_length=size), (2, 4, 5))
  add('I' + name, lambda x, name=name, size=size: getattr(raw, 'I' + name)(
      input=x, fft_length=size), (complex_numbers, (2, 4, 3)))
add('TopKV2', lambda x: raw.TopKV2(input=x, k=2), (4, 3))
