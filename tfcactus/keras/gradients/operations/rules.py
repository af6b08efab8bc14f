"""Rules for per-example gradients of an operation with respect to weights that it uses.

To support another operation, write its rule and list it in `_RULES`.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
import string
from typing import Any, Callable

import tensorflow as tf

from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.operations import convolution
from tfcactus.keras.gradients.operations.pull_back import Gradients, Products
from tfcactus.keras.gradients.operations.uses import no_rule, SPREADING, Use
from tfcactus.keras.independence import dependence, operations

Rule = Callable[[dict[int, tf.Tensor], tf.Tensor], Gradients]
"""Maps (operands, gradient of the output) to per-example gradients of `Use.operand`.

Operands are the inputs of `Use.core` that hold examples, by index. They and the
gradient have one row per example, of the shape `Use.shape`."""


def rule_for(use: Use) -> Rule:
  """Returns the rule of an operation; raises NoRule if none covers its use."""
  kind = use.core.type
  # Gradients of products of complex numbers contain conjugates, which no rule takes.
  if any(each.dtype.is_complex for each in (*use.op.inputs, *use.op.outputs)):
    raise no_rule(use.op)
  if kind in _RULES:
    return _RULES[kind](use)
  if kind in operations.ELEMENTWISE or kind in ('BiasAdd', *SPREADING):
    return _elementwise(use)
  raise no_rule(use.op)


_LINEAR = ('Add', 'AddN', 'AddV2', 'BiasAdd', 'Mul', 'Sub', *SPREADING)
"""Entrywise operations whose derivative with respect to a weight needs no weight."""


def _elementwise(use: Use) -> Rule:
  """Rule for entrywise operations: sums over places that share an entry of a weight."""
  # `own` is the weight's shape in the rank of the output: 1 where it is broadcast, as
  # it has to be along the axis of the examples.
  op, out = use.core, use.shape()
  own = _aligned(use.made, len(out))
  if op.type == 'BiasAdd':
    if use.place != 1:
      raise no_rule(op)
    if op.get_attr('data_format') == b'NCHW':
      own = [1, own[-1], *own[1:-1]]
  if own[use.out.axis] != 1 or any(size not in (1, whole) for size, whole in zip(
      own, out)):
    raise no_rule(op)
  others = [i for i in range(len(op.inputs)) if i != use.place]
  # An operand without examples must be broadcast along the axis of the examples.
  if op.type not in SPREADING and any(
      i not in use.data and _aligned(op.inputs[i].shape, len(out))[use.out.axis] != 1
      for i in others):
    raise no_rule(op)
  if op is not use.op and op.type not in _LINEAR:
    raise no_rule(use.op)  # `_derivative` cannot use tensors inside of a function.
  summed = [k + 1 for k, size in enumerate(own) if size == 1]

  def rule(operands: dict[int, tf.Tensor], upstream: tf.Tensor) -> forms.GradientForm:
    """Returns dense gradients, summed over axes on which the weight is broadcast."""
    rows = upstream.shape[0]
    # Aligned after the axis of examples, since broadcasting aligns the last axes.
    operands = {i: tf.reshape(each, [rows, *_aligned(each.shape[1:], len(out))])
                for i, each in operands.items()}
    if op.type in ('Add', 'AddN', 'AddV2', 'BiasAdd', *SPREADING):
      values = upstream
    elif op.type == 'Sub':
      values = -upstream if use.place else upstream
    elif op.type == 'Mul':
      values = upstream * operands[others[0]]
    else:
      values = _derivative(use, operands, own, upstream)
    return forms.Dense(tf.reshape(tf.reduce_sum(values, summed), [
        rows, *use.made]), use.made)

  return rule


def _aligned(shape: Any, rank: int) -> list[Any]:
  """Returns a shape with sizes 1 in front, up to this rank."""
  return [1] * (rank - len(shape)) + list(shape)


def _derivative(use: Use, operands: dict[int, tf.Tensor], own: Sequence[int],
                upstream: tf.Tensor) -> tf.Tensor:
  """Returns TensorFlow's gradient with respect to the weight's copy at each place.

  Its shape is that of `upstream`. `own` is the weight's shape as in `_elementwise`.
  """
  weight = tf.broadcast_to(
      tf.reshape(tf.cast(use.operand, upstream.dtype), [1, *own]), upstream.shape)
  given = {i: tf.cast(tensor, upstream.dtype) if tensor.dtype.is_floating else tensor
           for i, tensor in enumerate(use.core.inputs)
           if i not in operands and i != use.place}
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(weight)
    output, = dependence.rerun(use.core, [
        weight if i == use.place else operands[i] if i in operands else given[i]
        for i in range(len(use.core.inputs))])
  return tape.gradient(output, weight, upstream,
                       unconnected_gradients=tf.UnconnectedGradients.ZERO)


def _bilinear(use: Use) -> Rule:
  """Rule for products of a weight and data: the data times the output gradients."""
  op, other = use.core, 1 - use.place
  if len(op.inputs) != 2 or list(use.data) != [other]:
    raise no_rule(op)
  terms = _terms(use)
  if any(len(set(term)) < len(term) for term in terms):
    raise no_rule(op)
  named = list(zip((terms[use.place], terms[other], terms[2]),
                   (use.made, use.shape(other), use.shape())))
  sizes: dict[str, int] = {}
  for term, shape in named:
    for letter, size in zip(term, shape):
      sizes[letter] = max(size, sizes.get(letter, 1))
  # Letters along which a tensor is broadcast are left out of its term.
  weight, data, output = ([letter if size == sizes[letter] else '' for letter, size in
                           zip(term, shape)] for term, shape in named)
  # The letter of the examples' axis is that of both data and output, and not of the
  # weight. Every other letter of the weight must be one of data or output.
  axis = terms[other][use.data[other].axis]
  if axis != terms[2][use.out.axis] or axis in weight or (
      set(weight) - {'', *data, *output}):
    raise no_rule(op)

  def rule(operands: dict[int, tf.Tensor], upstream: tf.Tensor) -> Gradients:
    """Returns the gradients as `Products` of the data and `upstream`."""
    # The rows get an axis of their own in front. The letter of the examples' axis
    # stays: it stands for the positions of one example on that axis.
    pair = [tf.reshape(tensor, [upstream.shape[0], *(sizes[x] for x in term if x)])
            for tensor, term in ((operands[other], data), (upstream, output))]
    return Products(
        (pair[0], pair[1]), (''.join(data), ''.join(output)), weight, sizes)

  return rule


def _terms(use: Use) -> list[str]:
  """Returns the letters of the axes of both inputs and of the output of a product.

  Raises NoRule for an Einsum whose equation `einsum_terms` refuses.
  """
  op = use.core
  if op.type == 'Einsum':
    try:
      return operations.einsum_terms(op)
    except dependence.NotRowWise as reason:
      raise no_rule(op, str(reason)) from reason
  ranks = [len(tensor.shape) for tensor in (*op.inputs, op.outputs[0])]
  batch = string.ascii_lowercase[:ranks[2] - 2]
  pairs = [pair[::-1] if flipped else pair for pair, flipped in zip(
      ('XY', 'YZ'), dependence.transposed(op))]
  return [*(batch[ranks[2] - rank:] + pair for rank, pair in zip(ranks, pairs)),
          batch + 'XZ']


def _convolution(use: Use) -> Rule:
  """Rule for convolutions: image patches times output gradients, over positions."""
  # Transposed convolutions exchange images and outputs. An example may have several
  # images, `block` of them.
  op, transposed = use.core, 'Input' in use.core.type
  image, padding = 2 if transposed else 0, op.get_attr('padding')
  if use.place != 1 or list(use.data) != [image] or not op.get_attr(
      'data_format').endswith(b'C') or padding not in (b'SAME', b'VALID') or (
          use.out.axis or use.data[image].axis):
    raise no_rule(op)
  shape = use.made
  wide, narrow = (use.shape(), use.shape(image)) if transposed else (
      use.shape(image), use.shape())
  windows = [convolution.window(
      padding, wide[k], narrow[k], shape[k - 1], op.get_attr('strides')[k],
      op.get_attr('dilations')[k]) for k in range(1, len(wide) - 1)]

  def rule(operands: dict[int, tf.Tensor], upstream: tf.Tensor) -> forms.GradientForm:
    """Returns dense gradients of the kernel, or outer products for few positions."""
    rows, block = upstream.shape[0], upstream.shape[1]
    images, outputs = (tf.reshape(each, [rows * block, *each.shape[2:]])
                       for each in (operands[image], upstream))
    if transposed:
      images, outputs = outputs, images
    depthwise = op.type == 'DepthwiseConv2dNative'
    if depthwise:
      kernels = convolution.depthwise_gradients(images, outputs, windows)
    # One group, and so few positions that patches and outputs serve as factors.
    elif len(windows) == 2 and images.shape[-1] == shape[-2] and forms.few_positions(
        block * windows[0].size * windows[1].size, shape):
      pieces, outputs = (tf.reshape(each, [rows, -1, each.shape[-1]]) for each in (
          convolution.patches(images, windows), outputs))
      return forms.product(pieces, outputs, shape)
    else:
      kernels = convolution.kernel_gradients(
          images, outputs, windows, images.shape[-1] // shape[-2])
    if block > 1:
      kernels = tf.reduce_sum(
          tf.reshape(kernels, [rows, block, *kernels.shape[1:]]), 1)
    return forms.Dense(kernels, shape, transposed=not depthwise)

  return rule


def _lookup(use: Use) -> Rule:
  """Rule for a table: gradients of the rows that an example looked up."""
  op = use.core
  if op.type == 'GatherV2':
    axis = dependence.static(op.inputs[2])
    if axis is None or int(axis) != 0:
      raise no_rule(op)
  if use.place != 0 or op.get_attr('batch_dims') or list(use.data) != [1]:
    raise no_rule(op)
  vocabulary, *width = use.made

  def rule(operands: dict[int, tf.Tensor], upstream: tf.Tensor) -> forms.GradientForm:
    """Returns gradients of the rows looked up, in the form that `Rows.merged` gives."""
    rows = upstream.shape[0]
    ids = tf.reshape(tf.cast(operands[1], tf.int32), [rows, -1])
    return forms.Rows.merged(ids, tf.reshape(
        upstream, [rows, ids.shape[1], math.prod(width)]), vocabulary).reshaped(
            use.made)

  return rule


_RULES: dict[str, Callable[[Use], Rule]] = {
    **dict.fromkeys(('BatchMatMul', 'BatchMatMulV2', 'BatchMatMulV3', 'Einsum',
                     'MatMul'), _bilinear),
    **dict.fromkeys(('Conv2D', 'Conv2DBackpropInput', 'Conv3D',
                     'Conv3DBackpropInputV2', 'DepthwiseConv2dNative'), _convolution),
    **dict.fromkeys(('GatherV2', 'ResourceGather'), _lookup)}
"""Rules by type of operation; each raises NoRule for uses that it does not cover.

Operations of `independence.operations.ELEMENTWISE` have `_elementwise`.
"""
