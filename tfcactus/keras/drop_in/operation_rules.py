"""Rules for per-example gradients of a variable that a single operation uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, NamedTuple

import tensorflow as tf

from tfcactus.keras.compat import converters
from tfcactus.keras.gradients.layers import conv, im2col
from tfcactus.keras.independence import dependence
from tfcactus.keras.independence.dependence import Dependence

Rows = Callable[[tf.Tensor], tf.Tensor]
"""Maps the index of an example to the results of a fixed number of examples from there
on, one row per example."""

Rule = Callable[[dict[int, tf.Tensor], tf.Tensor], tf.Tensor]
"""Maps (operands, gradient of the output) to per-example gradients of the variable.

Operands are the operation's per-example inputs by index. They and the gradient have
shape (rows, block, ...) for `rows` examples, each with `block` rows of the tensor. The
result has one row per example."""


class NoRule(Exception):
  """Raised for a graph or an operation that no rule covers; its message says why."""


def no_rule(op: tf.Operation) -> NoRule:
  """Returns the exception for an operation that its rule does not cover."""
  return NoRule(f'{op.type} in {op.name!r} is used in a way that has no rule')


class Use(NamedTuple):
  """An operation that computes with a variable.

  Attributes:
    op: The operation.
    place: Index of the input that is the variable.
    shape: Shape of the variable.
    of_examples: {index of an input that holds examples: its number of rows per
      example}.
    block: The number of rows per example of the output.
  """

  op: tf.Operation
  place: int
  shape: tuple[int, ...]
  of_examples: dict[int, int]
  block: int

  @classmethod
  def of(cls, op: tf.Operation, place: int, shape: Sequence[int],
         known: dict[str, dependence.Value]) -> Use:
    """Returns the use; `known` maps names of tensors to their dependences.

    Raises NoRule unless the output, and each input that is not constant, holds the
    examples one after the other along its first axis.
    """
    blocks = {}
    for i, tensor in enumerate([*op.inputs, *op.outputs]):
      value = known[tensor.name]
      if value.dependence == Dependence.ROW_WISE:
        if value.axis or value.block < 1 or None in tensor.shape[1:].as_list():
          raise no_rule(op)
        blocks[i] = value.block
      elif value.dependence != Dependence.CONSTANT:
        raise no_rule(op)
    block = blocks.pop(len(op.inputs), None)
    if place in blocks or block is None:
      raise no_rule(op)
    return cls(op, place, tuple(shape), blocks, block)


def rule_for(use: Use) -> Rule:
  """Returns the rule of an operation; raises NoRule if none covers its use."""
  if use.op.type not in _RULES:
    raise no_rule(use.op)
  return _RULES[use.op.type](use)


def rows_of(use: Use, rule: Rule, upstream: tf.Tensor, number: tf.Tensor, rows: int
           ) -> Rows:
  """Returns a function of an example's index to per-example gradients through `use`.

  It returns the variable's gradients for that example and the `rows` - 1 after it,
  shape (rows, *use.shape), zeros past the last example. `upstream` is the gradient of
  the summed loss with respect to the operation's output. `number` is the number of
  examples, at least one.
  """
  def rows_at(tensor: tf.Tensor, block: int, places: tf.Tensor) -> tf.Tensor:
    """Returns a tensor's rows for the examples at `places`: (rows, block, ...)."""
    sizes = [block, *tensor.shape[1:]]
    apart = tf.reshape(tensor, tf.stack([number, *sizes]))
    return tf.ensure_shape(tf.gather(apart, places), [rows, *sizes])

  def gradients_from(start: tf.Tensor) -> tf.Tensor:
    indices = start + tf.range(rows)
    places = tf.minimum(indices, number - 1)
    operands = {i: rows_at(use.op.inputs[i], block, places)
                for i, block in use.of_examples.items()}
    gradients = tf.reshape(
        rule(operands, rows_at(upstream, use.block, places)), [rows, *use.shape])
    # Not a product, since 0 * NaN = NaN.
    inside = tf.reshape(indices < number, [rows] + [1] * len(use.shape))
    return tf.where(inside, gradients, tf.zeros_like(gradients))

  return gradients_from


def _matmul(use: Use) -> Rule:
  """Rule for a matrix product: sums outer products over the rows of an example."""
  if use.place != 1 or use.op.get_attr('transpose_a') or len(use.of_examples) != 1:
    raise no_rule(use.op)
  flipped = use.op.get_attr('transpose_b')

  def rule(operands: dict[int, tf.Tensor], upstream: tf.Tensor) -> tf.Tensor:
    pair = (upstream, operands[0]) if flipped else (operands[0], upstream)
    return tf.matmul(*pair, transpose_a=True)

  return rule


def _convolution(use: Use) -> Rule:
  """Rule for a 2D convolution: products of patches and output gradients."""
  op = use.op
  if use.place != 1 or len(use.of_examples) != 1 or (
      op.get_attr('data_format') != b'NHWC' or
      op.get_attr('padding') not in (b'SAME', b'VALID')):
    raise no_rule(use.op)
  kernel, image, output = (tensor.shape.as_list() for tensor in (
      op.inputs[1], op.inputs[0], op.outputs[0]))
  windows = [im2col.window(
      op.get_attr('padding').decode().lower(), image[k], output[k], kernel[k - 1],
      op.get_attr('strides')[k], op.get_attr('dilations')[k]) for k in (1, 2)]
  groups = image[3] // kernel[2]

  def rule(operands: dict[int, tf.Tensor], upstream: tf.Tensor) -> tf.Tensor:
    rows, block = upstream.shape[:2]
    images, outputs = (
        tf.reshape(each, [rows * block, *each.shape[2:]])
        for each in (operands[0], upstream))
    found = conv.kernel_gradients(images, outputs, windows, groups)
    found = tf.reduce_sum(tf.reshape(found, [rows, block, *found.shape[1:]]), 1)
    return tf.linalg.matrix_transpose(found)

  return rule


def _broadcast(factor: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
              ) -> Callable[[Use], Rule]:
  """Returns a broadcast operand's rule: sums factor(gradient, other) over its axes."""
  def make_rule(use: Use) -> Rule:
    op = use.op
    own, out = op.inputs[use.place].shape.as_list(), op.outputs[0].shape.as_list()
    if op.type == 'BiasAdd':
      if use.place != 1 or op.get_attr('data_format') != b'NHWC':
        raise no_rule(use.op)
    elif op.inputs[1 - use.place].shape.rank != len(out):
      raise no_rule(use.op)
    own = [1] * (len(out) - len(own)) + own
    if own[0] != 1 or None in own[1:] or list(use.of_examples) != [1 - use.place]:
      raise no_rule(use.op)
    # Axes of shape (rows, block, ...).
    summed = [1] + [k + 1 for k in range(1, len(out)) if own[k] == 1]

    def rule(operands: dict[int, tf.Tensor], upstream: tf.Tensor) -> tf.Tensor:
      return tf.reduce_sum(factor(upstream, operands[1 - use.place]), summed)

    return rule

  return make_rule


def _difference(use: Use) -> Rule:
  """Rule for either operand of a subtraction."""
  return _broadcast((lambda up, _: -up) if use.place else (lambda up, _: up))(use)


def _lookup(use: Use) -> Rule:
  """Rule for a table: sums the gradients of each row that an example looked up."""
  op = use.op
  if op.type == 'GatherV2':
    axis = dependence.static(op.inputs[2])
    if axis is None or int(axis) != 0:
      raise no_rule(use.op)
    if op.inputs[0].shape.as_list() != list(use.shape):  # It was reshaped.
      raise no_rule(use.op)
  if use.place != 0 or op.get_attr('batch_dims') or len(use.shape) != 2 or (
      list(use.of_examples) != [1]):
    raise no_rule(use.op)
  vocabulary, width = use.shape

  def rule(operands: dict[int, tf.Tensor], upstream: tf.Tensor) -> tf.Tensor:
    rows = upstream.shape[0]
    ids = tf.reshape(operands[1], [rows, -1])
    inside = tf.logical_and(ids >= 0, ids < vocabulary)
    places = tf.cast(ids, tf.int32) + vocabulary * tf.range(rows)[:, None]
    # Some devices accept ids out of range, and look up zeros. Place -1 drops them:
    # otherwise their gradients would be added to rows of another example.
    places = tf.where(inside, places, -1)
    return tf.reshape(tf.math.unsorted_segment_sum(
        tf.reshape(upstream, [-1, width]), tf.reshape(places, [-1]),
        rows * vocabulary), [rows, vocabulary, width])

  return rule


def _differentiated(use: Use) -> Rule:
  """Rule that differentiates the operation on one example at a time, vectorised."""
  op = use.op
  if len(use.of_examples) != len(op.inputs) - 1:
    raise no_rule(use.op)

  def rule(operands: dict[int, tf.Tensor], upstream: tf.Tensor) -> tf.Tensor:
    variable = op.inputs[use.place]

    def one(values: tuple[dict[int, tf.Tensor], tf.Tensor]) -> tf.Tensor:
      """Returns the gradient for one example's (operands, gradient of the output)."""
      given, gradient = values
      with tf.GradientTape() as tape:
        tape.watch(variable)
        output, = dependence.rerun(op, [
            given.get(i, variable) for i in range(len(op.inputs))])
      return tape.gradient(output, variable, gradient)

    return converters.vectorized_map(one, (operands, upstream))

  return rule


_RULES: dict[str, Callable[[Use], Rule]] = {
    'MatMul': _matmul, 'Conv2D': _convolution,
    **dict.fromkeys(('Add', 'AddV2', 'BiasAdd'), _broadcast(lambda up, _: up)),
    'Mul': _broadcast(lambda up, other: up * other), 'Sub': _difference,
    **dict.fromkeys(('GatherV2', 'ResourceGather'), _lookup),
    **dict.fromkeys(('BatchMatMulV2', 'Conv3D', 'DepthwiseConv2dNative', 'Einsum'),
                    _differentiated)}
"""Rules by type of operation; each raises NoRule for uses that it does not cover."""
