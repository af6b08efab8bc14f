"""Converters of `tf.vectorized_map`: tested ones of TensorFlow, our own, or a loop.

A converter computes an operation for all rows at once. Some of TensorFlow's mix the
rows. `RELIED_ON` has those that tests/keras/compat/test_converters.py compares with a
loop over unlike rows. A converter takes a `pfor_input`, TensorFlow's record of an
operation whose inputs are stacked, with a first axis of rows, or equal for all rows. It
returns outputs by `wrap(tensor, is_stacked)`.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import functools
import logging
import sys
import threading
from typing import Any, Callable

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_stateless_random_ops as stateless
from tensorflow.python.ops.parallel_for.pfor import wrap

from tfcactus.keras.compat import graphs, patches

# The module; its package has a function of the same name.
pfor = sys.modules[wrap.__module__]

_registry: dict[str, Any] = pfor._pfor_converter_registry  # pylint: disable=protected-access

RELIED_ON = frozenset('''
Abs Acos Acosh Add AddN AddV2 All Angle Any ArgMax ArgMin Asin Asinh Assert Atan Atan2
Atanh AvgPool AvgPool3D BatchToSpaceND BitwiseAnd BitwiseOr
BitwiseXor BroadcastTo Bucketize Cast Ceil CheckNumerics Complex ComplexAbs ConcatV2
Conj ConjugateTranspose Conv2D Conv2DBackpropInput Cos Cosh Cumprod Cumsum DepthToSpace
DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter
DepthwiseConv2dNativeBackpropInput Digamma Div DivNoNan Einsum Elu EluGrad EnsureShape
Erf Erfc Erfinv Exp ExpandDims Expm1 FFT FFT2D FFT3D Fill Floor FloorDiv FloorMod
FusedBatchNormGradV3 FusedBatchNormV3 GatherNd Greater GreaterEqual IFFT IFFT2D IFFT3D
IRFFT IRFFT2D IRFFT3D Identity IdentityN If Imag Inv Invert IsFinite IsInf IsNan
LeakyRelu LeakyReluGrad LeftShift Less LessEqual Lgamma Log Log1p LogicalAnd LogicalNot
LogicalOr MatrixBandPart MatrixDiagPartV3 MatrixDiagV3 MatrixSetDiagV3 Max
MaxPool MaxPool3D MaxPool3DGrad MaxPoolGrad MaxPoolGradV2 MaxPoolV2 Maximum Mean Min
Minimum Mod Mul MulNoNan Ndtri Neg OneHot OnesLike Pack Pad PartitionedCall Pow Prod
Rank Real RealDiv Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad Reshape
ReverseV2 RightShift Rint Round Rsqrt RsqrtGrad Select SelectV2 Selu SeluGrad Shape
ShapeN Sigmoid SigmoidGrad Sign Sin Sinh Size SoftmaxCrossEntropyWithLogits
Softplus SoftplusGrad Softsign SoftsignGrad SpaceToBatchND SpaceToDepth
SparseSoftmaxCrossEntropyWithLogits Split SplitV Sqrt SqrtGrad Square SquaredDifference
StatefulPartitionedCall StatelessIf StopGradient StridedSlice StridedSliceGrad Sub Sum
Tan Tanh TanhGrad TensorListFromTensor TensorListPopBack TensorListPushBack
TensorListReserve TensorListSetItem TensorListStack Tile TopKV2 Transpose TruncateDiv
TruncateMod Unpack Xdivy Xlog1py Xlogy ZerosLike
'''.split())
"""Operations for which this library always uses TensorFlow's converter."""


def _has_no_negative_axes(pfor_input: Any) -> bool:
  """Returns whether Roll has one shift for all rows, and static axes >= 0."""
  # TensorFlow adds one to each axis: axis -1 would become 0, the axis of rows.
  axes = tf.get_static_value(pfor_input.input(2).t)
  return not pfor_input.input(1).is_stacked and axes is not None and bool(
      (axes >= 0).all())


def _has_last_channels(pfor_input: Any) -> bool:
  """Returns whether channels come last; otherwise the converter mistakes axes."""
  return pfor_input.get_attr('data_format') == b'NHWC'


def _shapes_fit(pfor_input: Any) -> bool:
  """Returns whether Equal, NotEqual have shapes that broadcast, or raise for others."""
  # Otherwise the result for other shapes may be one Boolean, which all rows would get.
  if pfor_input.get_attr('incompatible_shape_error'):
    return True
  x, y = (each.shape for each in pfor_input.op.inputs)
  return x.is_fully_defined() and y.is_fully_defined() and all(
      1 in pair or pair[0] == pair[1] for pair in zip(x[::-1], y[::-1]))


def _is_of_pooling(pfor_input: Any) -> bool:
  """Returns True; fails unless a gradient has the shape of pooled images."""
  # TensorFlow does not compare shapes, and would read entries of other rows.
  gradient, windows = pfor_input.input(1), [
      np.asarray(pfor_input.get_attr(name), np.int32) for name in ('ksize', 'strides')]
  if any((each[[0, pfor_input.get_attr('data_format').index(b'C')]] != 1).any()
         for each in windows):
    raise ValueError(
        'Expected gradients of pooling over neither images nor channels, got '
        f'{pfor_input.op.name!r}; write the layer or loss by tf.nn.avg_pool.')
  width, stride = windows
  sizes = pfor_input.unstacked_input(0) - (width - 1) * int(
      pfor_input.get_attr('padding') == b'VALID')
  tf.debugging.assert_equal(
      -(-sizes // stride), tf.shape(gradient.t)[int(gradient.is_stacked):],
      'Expected a gradient of the shape of pooled images, got another in '
      f'{pfor_input.op.name!r}; write the layer or loss by tf.nn.avg_pool.')
  return True


_CONDITIONAL: dict[str, Callable[[Any], bool]] = {
    'AvgPoolGrad': _is_of_pooling, 'AvgPool3DGrad': _is_of_pooling,
    'BiasAdd': _has_last_channels, 'BiasAddGrad': _has_last_channels,
    'Equal': _shapes_fit, 'NotEqual': _shapes_fit, 'Roll': _has_no_negative_axes,
    # The converter does not broadcast bounds.
    'ClipByValue': lambda given: all(
        bound.shape.rank == 0 for bound in given.op.inputs[1:]),
    # It miscounts a negative `batch_dims`. Where tensors differ between rows, the
    # gradient of its lookup may reach other rows: `_convert_gather`.
    'GatherV2': lambda given: not given.input(0).is_stacked and (
        given.get_attr('batch_dims') >= 0),
    # It conjugates what it transposes.
    'MatMul': lambda given: not given.op.outputs[0].dtype.is_complex,
    # It mistakes sizes unless the slices of all rows begin at the same place.
    'Slice': lambda given: not given.input(1).is_stacked,
    # Without names of axes it could remove the axis of rows.
    'Squeeze': lambda given: bool(given.get_attr('squeeze_dims')),
    # If list and index differ by row, it addresses the rows of a branch by their
    # numbers in the whole batch.
    'TensorListGetItem': lambda given: not (
        given.input(0).is_stacked and given.input(1).is_stacked)}
"""Conditions under which TensorFlow's converter is used; else one of `_OWN`, or a loop
over rows."""


_SIZES = (
    'Expected layers and losses that return as many numbers for each example, got {} '
    'in {!r}, whose number depends on the example. Instead of tf.where(condition) with '
    'one argument, tf.boolean_mask or nonzero, choose by tf.where(condition, a, b); '
    'give lists a fixed length. Leave out a layer of Keras that does this, such as '
    'Equalization, also in RandAugment (which RandomFlip, RandomRotation and '
    'RandomContrast replace), or apply it to the data once, before batches are drawn.')


def _loop(pfor_input: Any) -> Any:
  """Runs an operation row by row in a tf.while_loop; returns outputs (rows, ...)."""
  # Raises InvalidArgumentError, once it runs, if rows have outputs of other shapes.
  op = pfor_input.op
  if not op.outputs or any(
      each.dtype in (tf.variant, tf.resource) for each in op.outputs) or any(
          given.is_stacked and given.t.dtype in (tf.variant, tf.resource)
          for given in pfor_input.inputs):
    raise ValueError(
        'Expected operations that are known to leave examples alone, or that run on '
        f'one after the other, got {op.type} in {op.name!r}, of which neither is '
        'known; write the layer or loss without it.')
  rows = tf.get_static_value(pfor_input.pfor.loop_len_vector)
  rows = pfor_input.pfor.loop_len_vector[0] if rows is None else int(rows[0])
  # Indices of the outputs whose shapes are known only when the operation runs.
  unknown = [k for k, each in enumerate(op.outputs)
             if not each.shape.is_fully_defined() and each.shape.rank is not None]

  def body(i: tf.Tensor, arrays: list[tf.TensorArray], shapes_before: list[tf.Tensor]
          ) -> Any:
    """Runs the operation on row `i` and writes its outputs into the arrays."""
    outputs = _run_like(op, [given.t[i] if given.is_stacked else given.t
                             for given in pfor_input.inputs])
    shapes = [tf.shape(outputs[k]) for k in unknown]
    for before, shape in zip(shapes_before, shapes):
      tf.debugging.Assert(tf.logical_or(i == 0, tf.reduce_all(before == shape)), [
          _SIZES.format(op.type, op.name)])
    return i + 1, [array.write(i, each) for array, each in zip(arrays, outputs)], shapes

  _, arrays, _ = tf.while_loop(lambda i, *_: i < rows, body, (0, [
      tf.TensorArray(each.dtype, rows, element_shape=each.shape)
      for each in op.outputs], [tf.zeros([op.outputs[k].shape.rank], tf.int32)
                                for k in unknown]))
  return [wrap(array.stack(), True) for array in arrays]


def _instead(original: Any, value: Any, pfor_input: Any, *args: Any, **kwargs: Any
            ) -> Any:
  """Uses this library's converter of an operation, or loops over rows."""
  del original, value, args, kwargs
  return _OWN.get(pfor_input.op_type, _loop)(pfor_input)


def _conditionally(holds: Callable[[Any], bool], original: Any, value: Any,
                   pfor_input: Any) -> Any:
  """Calls TensorFlow's converter where a condition holds, else acts as `_instead`."""
  return original(pfor_input) if holds(pfor_input) else _instead(
      original, value, pfor_input)


def _convert_matmul(pfor_input: Any) -> Any:
  """Vectorises a matrix product after broadcasting both factors to one shape."""
  # TensorFlow 2.16 to 2.21 with oneDNN write past the end of memory when a product
  # broadcasts (8, 1, 5, 4) with (4, 3), the shapes of one example and weights.
  pfor_input.expanddim_inputs_for_broadcast()
  x, y = pfor_input.input(0)[0], pfor_input.input(1)[0]
  batch = tf.broadcast_dynamic_shape(tf.shape(x)[:-2], tf.shape(y)[:-2])
  x, y = (tf.broadcast_to(factor, tf.concat([batch, tf.shape(factor)[-2:]], 0))
          for factor in (x, y))
  return wrap(tf.matmul(
      x, y, adjoint_a=pfor_input.get_attr('adj_x'),
      adjoint_b=pfor_input.get_attr('adj_y')), True)


def _convert_softmax(pfor_input: Any) -> Any:
  """Vectorises a softmax of the last axis as one of a matrix."""
  # oneDNN on CPUs takes at most five axes, and the axis of rows would be one of them.
  logits = pfor_input.stacked_input(0)
  sizes = tf.shape(logits)
  matrix = tf.reshape(logits, tf.stack([tf.reduce_prod(sizes[:-1]), sizes[-1]]))
  output = getattr(tf.raw_ops, pfor_input.op_type)(logits=matrix)
  return wrap(tf.ensure_shape(tf.reshape(output, sizes), logits.shape), True)


def _convert_gather(pfor_input: Any) -> Any:
  """Looks up the ids of each row in that row's tensor; loops if rows share a tensor."""
  axis = tf.get_static_value(pfor_input.input(2).t)
  rank, batch = pfor_input.op.inputs[0].shape.rank, pfor_input.get_attr('batch_dims')
  if not pfor_input.input(0).is_stacked or axis is None or rank is None:
    return _loop(pfor_input)
  pfor_input.stack_inputs([1])
  return wrap(_looked_up(pfor_input.input(0).t, pfor_input.input(1).t,
                         int(axis) % rank + 1, batch + (batch >= 0)), True)


def _looked_up(params: tf.Tensor, ids: tf.Tensor, axis: int, batch: int) -> tf.Tensor:
  """Returns `tf.gather`; its gradient adds nothing for ids out of range."""
  # TensorFlow's gradient gives n places to each row and adds n times the row's index to
  # its ids. An id n would then be the next row's first place. The lookup refuses such
  # an id on CPUs only: other devices and compiled functions return a number for it.
  if ids.dtype.size < 4:  # TensorFlow's gradient takes ids of 32 or 64 bits only.
    ids = tf.cast(ids, tf.int32)
  look_up = functools.partial(tf.gather, axis=axis, batch_dims=batch)
  if not graphs.is_differentiable(params.dtype):
    return look_up(params, ids)

  @tf.custom_gradient
  def looked_up(params: tf.Tensor) -> Any:
    """Returns the entries of `params` at `ids`, and their gradient function."""

    def gradient(upstream: tf.Tensor) -> Any:
      """Adds the upstream gradients of each id to its place."""
      # Ids out of range get a further place, whose gradient the padding leaves out.
      size = tf.cast(tf.shape(params)[axis], ids.dtype)
      inside = tf.logical_and(ids >= 0, ids < size)
      with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(params)
        padded = tf.pad(params, [[0, int(k == axis)] for k in range(params.shape.rank)])
        entries = look_up(padded, tf.where(inside, ids, size))
      return tape.gradient(entries, params, upstream)

    return look_up(params, ids), gradient

  return looked_up(params)


def _convert_segments(pfor_input: Any) -> Any:
  """Reduces the segments of each row; ids out of range are left out."""
  # TensorFlow gives n segments to each row and adds n times the row's index to its ids.
  # An id n would then be the next row's first segment, and until 2.14 an id -1 the last
  # segment of the row before. The operation leaves out negative ids.
  pfor_input.stack_inputs([0, 1])
  data, ids, number = (pfor_input.input(i).t for i in range(3))
  if pfor_input.input(2).is_stacked:
    return _loop(pfor_input)
  ids, number = tf.cast(ids, tf.int64), tf.cast(number, tf.int64)
  rows = tf.shape(ids, tf.int64)[0]
  first = tf.reshape(number * tf.range(rows), tf.concat(
      [[-1], tf.ones([tf.rank(ids) - 1], tf.int32)], 0))
  inside = tf.logical_and(ids >= 0, ids < number)
  reduced = getattr(tf.raw_ops, pfor_input.op_type)(
      data=data, segment_ids=tf.where(inside, ids + first, -tf.ones_like(ids)),
      num_segments=number * rows)
  return wrap(tf.reshape(reduced, tf.concat(
      [[rows, number], tf.shape(reduced, tf.int64)[1:]], 0)), True)


def _convert_filter(pfor_input: Any) -> Any:
  """Returns each row's gradient with respect to a kernel: patches times upstream."""
  # TensorFlow's converter runs row by row. So does this one for grouped convolutions,
  # explicit padding, half precision and shapes that are not known.
  op = pfor_input.op
  images, upstream = op.inputs[0].shape, op.inputs[2].shape
  sizes = tf.get_static_value(pfor_input.input(1).t)
  if sizes is None or not _has_last_channels(pfor_input) or (
      not images.is_fully_defined() or not upstream.is_fully_defined() or
      sizes[2] != images[-1] or op.inputs[0].dtype.size < 4 or
      pfor_input.get_attr('padding') == b'EXPLICIT'):
    return _loop(pfor_input)
  pfor_input.stack_inputs([2])
  patches_of = functools.partial(
      tf.image.extract_patches, sizes=[1, *sizes[:2], 1],
      strides=pfor_input.get_attr('strides'), rates=pfor_input.get_attr('dilations'),
      padding=pfor_input.get_attr('padding').decode())
  depth, filters = int(np.prod(sizes[:3])), upstream[3]
  positions = int(np.prod(upstream[:3]))
  cut = tf.reshape(patches_of(tf.reshape(pfor_input.input(0).t, [-1, *images[1:]])),
                   [-1, positions, depth])
  upstream = tf.reshape(pfor_input.input(2).t, [-1, positions, filters])
  if pfor_input.input(0).is_stacked:
    gradients = tf.matmul(cut, upstream, transpose_a=True)
  else:  # Images are equal for all rows: one product serves all.
    gradients = tf.transpose(tf.tensordot(cut[0], upstream, [[0], [1]]), [1, 0, 2])
  return wrap(tf.reshape(gradients, [-1, *sizes]), True)


def _run_like(op: tf.Operation, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
  """Returns the outputs of an operation like `op` on other inputs."""
  return pfor._create_op(  # pylint: disable=protected-access
      op.type, inputs, [each.dtype for each in op.outputs],
      attrs=op.node_def.attr).outputs


def _convert_entrywise(pfor_input: Any) -> Any:
  """Runs an operation of inputs of one shape on all rows at once."""
  pfor_input.stack_inputs()
  return [wrap(each, True) for each in _run_like(
      pfor_input.op, [given.t for given in pfor_input.inputs])]


def _convert_fake_quant(pfor_input: Any) -> Any:
  """Quantises all rows at once: each row, or channel of a row, becomes a channel."""
  pfor_input.stack_inputs()
  numbers, low, high = (pfor_input.input(i).t for i in range(3))
  by_channel = 'PerChannel' in pfor_input.op_type
  rows = tf.shape(low)[0]
  channels = tf.shape(low)[1] if by_channel else 1
  columns = tf.reshape(tf.transpose(
      tf.reshape(numbers, [rows, -1, channels]), [1, 0, 2]), [-1, rows * channels])
  quantised = tf.raw_ops.FakeQuantWithMinMaxVarsPerChannel(
      inputs=columns, min=tf.reshape(low, [-1]), max=tf.reshape(high, [-1]),
      num_bits=pfor_input.get_attr('num_bits'),
      narrow_range=pfor_input.get_attr('narrow_range'))
  return wrap(tf.reshape(tf.transpose(
      tf.reshape(quantised, [-1, rows, channels]), [1, 0, 2]), tf.shape(numbers)), True)


def _convert_fake_quant_gradient(pfor_input: Any) -> Any:
  """Differentiates fake quantisation as TensorFlow does, for all rows at once."""
  # TensorFlow nudges the bounds so that zero is one of the levels, which are numbered
  # from `first` to `last`. Upstream gradients of numbers beyond a bound go to that
  # bound, all others to the numbers. If both bounds are zero, all go to the numbers.
  pfor_input.stack_inputs()
  upstream, numbers, low, high = (pfor_input.input(i).t for i in range(4))
  first = float(pfor_input.get_attr('narrow_range'))
  last = 2.0**pfor_input.get_attr('num_bits') - 1
  step = (high - low) / (last - first)
  level_of_zero = tf.floor(tf.clip_by_value(first - low / step, first, last) + 0.5)
  by_channel = 'PerChannel' in pfor_input.op_type
  axes = list(range(1, numbers.shape.rank - by_channel))
  unbounded = tf.logical_and(tf.equal(low, 0), tf.equal(high, 0))

  def nudged(level: float, if_unbounded: float) -> tf.Tensor:
    """Returns the bound at a level, in a shape that broadcasts with the numbers."""
    bound = tf.where(unbounded, tf.fill(tf.shape(low), if_unbounded),
                     (level - level_of_zero) * step)
    return tf.reshape(bound, tf.concat(
        [tf.shape(low)[:1], tf.ones_like(axes), tf.shape(low)[1:]], 0))

  below, above = numbers < nudged(first, -np.inf), numbers > nudged(last, np.inf)
  nothing = tf.zeros_like(upstream)
  return [wrap(each, True) for each in (
      tf.where(tf.logical_or(below, above), nothing, upstream),
      tf.reduce_sum(tf.where(below, upstream, nothing), axes),
      tf.reduce_sum(tf.where(above, upstream, nothing), axes))]


def _convert_print(original: Any, value: Any, pfor_input: Any) -> Any:
  """Prints the strings of all rows, one line each."""
  del value
  strings = pfor_input.input(0)
  if strings.is_stacked:
    pfor_input.inputs[0] = wrap(
        tf.strings.reduce_join(strings.t, separator='\n'), False)
  return original(pfor_input)


def _convert_draw(draw: Callable[..., tf.Tensor], pfor_input: Any) -> Any:
  """Draws the numbers of all rows in one operation, from the first row's seed.

  `draw` is the stateless function of TensorFlow for the operation.
  """
  # Every row has a fresh seed, so rows are independent either way. Iterations of a
  # tf.while_loop share a seed: if the shape of the draw or the set of active rows
  # changed, a row could get numbers of another row's earlier iteration. So the
  # operation runs row by row if the shape is not static, only some rows may be active,
  # the draw is not one of `patches.drawing`, or more than the seed differs between
  # rows.
  inputs = [pfor_input.input(i) for i in range(pfor_input.num_inputs)]
  stacked = [i for i, each in enumerate(inputs) if each.is_stacked]
  if patches.DRAW not in pfor_input.op.name or stacked != [1] or (
      pfor_input.pfor.all_indices_partitioned or
      not pfor_input.op.outputs[0].shape.is_fully_defined()):
    return _loop(pfor_input)
  shape, seed, *bounds = (each.t for each in inputs)
  rows = tf.cast(pfor_input.pfor.loop_len_vector, shape.dtype)
  kwargs = {} if bounds else {'dtype': pfor_input.get_attr('dtype')}
  return wrap(draw(tf.concat([rows, shape], 0), seed[0], *bounds, **kwargs), True)


def _while(original: Any, value: Any, loop: Any, conditions: Any, indices: Any,
           inputs: Any, *args: Any) -> Any:
  """Converts a loop that ends earlier for some rows; ValueError if it changes lists."""
  del value
  unchanged = loop._body_pass_through_indices  # pylint: disable=protected-access
  if any(each.dtype == tf.variant and i not in unchanged
         for i, each in enumerate(inputs)):
    raise ValueError(
        'Expected loops that run as often for each example, or whose gradient needs '
        'nothing that was computed on the way, got a loop that keeps lists of tensors '
        'and ends by the example; give it a fixed number of rounds, and pick by '
        'tf.where.')
  return original(loop, conditions, indices, inputs, *args)


_OWN: dict[str, Callable[[Any], Any]] = {
    'BatchMatMulV2': _convert_matmul, 'Conv2DBackpropFilter': _convert_filter,
    'GatherV2': _convert_gather, 'LogSoftmax': _convert_softmax,
    'Softmax': _convert_softmax,
    # Not Prod, whose gradient for an id -1 is zero times a number of the first row: NaN
    # if that is infinite.
    **{f'UnsortedSegment{name}': _convert_segments for name in ('Max', 'Min', 'Sum')},
    **{name: functools.partial(_convert_draw, draw) for name, draw in (
        ('StatelessRandomUniform', stateless.stateless_random_uniform),
        ('StatelessRandomUniformInt', stateless.stateless_random_uniform_int),
        ('StatelessRandomNormal', stateless.stateless_random_normal),
        ('StatelessTruncatedNormal', stateless.stateless_truncated_normal))},
    # TensorFlow has no converters of these.
    'FakeQuantWithMinMaxArgs': _convert_entrywise,
    'FakeQuantWithMinMaxArgsGradient': _convert_entrywise,
    **{f'FakeQuantWithMinMaxVars{kind}{which}': convert
       for kind in ('', 'PerChannel')
       for which, convert in (('', _convert_fake_quant),
                              ('Gradient', _convert_fake_quant_gradient))}}
"""Converters of this library, by operation."""

_KEPT = {*RELIED_ON, *_CONDITIONAL, 'PrintV2', 'While', 'StatelessWhile'}
"""Operations whose converter of TensorFlow is used, some under conditions or after
changes. The converter of a loop converts the operations of its body."""

_converters = patches.LibraryPatch([
    patches.Place(pfor, '_fallback_converter', _instead),
    patches.Place(pfor.WhileV2, '_process_cond_stacked', _while),
    patches.Place(_registry, 'PrintV2', _convert_print),
    *(patches.Place(_registry, name, functools.partial(_conditionally, holds))
      for name, holds in _CONDITIONAL.items()),
    *(patches.Place(_registry, name, _instead) for name in sorted(_registry)
      if name not in _KEPT)])
"""Replaces the converters of `tf.vectorized_map` inside `vectorized_map`."""


def vectorized_map(function: Callable[[Any], Any], rows: Any) -> Any:
  """Runs a function on each row, vectorised by converters that do not mix rows.

  Operations of `function` may not depend on the position of a row. Raises ValueError,
  naming an operation that can neither be vectorised nor looped over.
  """
  try:
    with _vectorizing():
      return tf.vectorized_map(function, rows, warn=False)
  except AttributeError as error:
    if '_DefinedFunction' not in str(error):
      raise
    raise ValueError(
        'Expected layers and losses that can be vectorised over examples, got one that '
        'calls a function of TensorFlow 1, which cannot be looked into, as '
        'tf.nn.ctc_loss does with dense labels. For CTC use '
        'tf.keras.backend.ctc_batch_cost.') from error


_LOGGED = ('uses a while_loop', 'while pfor was converting', 'created at:')
"""Parts of messages that TensorFlow logs about loops that it cannot vectorise, or
vectorises slowly. If it fails, it raises an error, too."""


@contextlib.contextmanager
def _vectorizing() -> Iterator[None]:
  """Makes `tf.vectorized_map` use `_converters`, and log nothing about loops."""
  logger, thread = tf.get_logger(), threading.get_ident()

  def keep(record: logging.LogRecord) -> bool:
    """Returns False for this thread's log records about loops and failures."""
    return record.thread != thread or not any(
        words in record.getMessage() for words in _LOGGED)

  logger.addFilter(keep)
  try:
    with _converters.inside(True):
      yield
  finally:
    logger.removeFilter(keep)
