"""Traced TensorFlow graphs: operations, gradients, tapes, AutoGraph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
from typing import Any, Callable, TypeVar

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.eager import record
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util_v2, gradients_util

from tfcactus.keras.compat import versions

_Function = TypeVar('_Function', bound=Callable[..., Any])


def nodes(graph: tf.Graph) -> Iterator[tf.compat.v1.NodeDef]:
  """Yields the definitions of all operations of a graph and of its functions."""
  definition = graph.as_graph_def()
  yield from definition.node
  for function in definition.library.function:
    yield from function.node_def


def is_differentiable(dtype: tf.DType) -> bool:
  """Returns whether numbers of a dtype may have a gradient: real or complex floats."""
  return dtype.is_floating or dtype.is_complex


def is_variable(handle: tf.Tensor) -> bool:
  """Returns whether a resource may be a variable; False for an eager lookup table."""
  if not isinstance(handle, tf.__internal__.EagerTensor):
    return True
  try:
    with tf.init_scope():
      tf.raw_ops.LookupTableSizeV2(table_handle=handle)
  except tf.errors.OpError:
    return True
  return False


def has_own_gradient(node: tf.Operation | tf.compat.v1.NodeDef) -> bool:
  """Returns whether an operation, or its definition, has a custom gradient."""
  return '_gradient_op_type' in getattr(node, 'node_def', node).attr


def have_own_gradients(given: Sequence[tf.Graph]) -> bool:
  """Returns whether graphs, or their functions, hold a custom gradient."""
  return any(has_own_gradient(node) for graph in given for node in nodes(graph))


def gradients(graph: tf.Graph, of: Any, by: Sequence[tf.Tensor],
              upstream: Any = None) -> list[Any]:
  """Returns gradients of `of` with respect to each tensor in `by`, as `tf.gradients`.

  Works inside a loop or a branch too: `graph` is where the tensors were traced. `of` is
  a tensor, or a list whose gradients are added. `upstream` is the gradient with respect
  to `of`; None stands for ones. A gradient may be `tf.IndexedSlices`, and is None for a
  tensor that `of` does not depend on.
  """
  def stopping_at(stops: Sequence[tf.Tensor]) -> list[Any]:
    """Returns the gradients; none goes through the operations that made `stops`."""
    found: list[Any] = gradients_util._GradientsHelper(  # pylint: disable=protected-access
        tf.nest.flatten(of), list(by),
        None if upstream is None else tf.nest.flatten(upstream), src_graph=graph,
        unconnected_gradients=tf.UnconnectedGradients.NONE, stop_gradients=stops)
    return found

  try:
    return stopping_at([])
  except LookupError:
    # TensorFlow asks for gradients of operations behind `stop_gradient` too, which may
    # have none registered.
    return stopping_at(_not_passed(graph, by))


def _not_passed(graph: tf.Graph, by: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """Returns outputs of operations behind which no gradient on its way to `by` passes.

  They are the outputs of `stop_gradient`, and of operations that do not depend on `by`,
  or depend on it through outputs of `stop_gradient` or integers alone.
  """
  dependent, not_passed = {tensor.name for tensor in by}, list[tf.Tensor]()
  for op in graph.get_operations():
    if op.type != 'StopGradient' and any(each.name in dependent for each in op.inputs):
      dependent.update(each.name for each in op.outputs if not each.dtype.is_integer)
    elif not any(each.name in dependent for each in op.outputs):
      not_passed.extend(op.outputs)
  return not_passed


LOOPS = ('StatelessWhile', 'While')
"""Types of the operations that are loops."""


def of_loop(op: tf.Operation) -> tuple[tf.Graph, tf.Graph] | None:
  """Returns the graphs of a loop's condition and body; None if they are not known.

  The condition and the body take, and the body returns, as many tensors as the loop.
  """
  if not hasattr(op, '_body_graph'):  # Loops that come from a file.
    return None
  return op._cond_graph, op._body_graph  # pylint: disable=protected-access


def is_backward(loop: tf.Operation) -> bool:
  """Returns whether a loop with known graphs is a gradient's, last iteration first."""
  return type(of_loop(loop)[1]).__name__ == '_WhileBodyGradFuncGraph'  # type: ignore[index]


def was_differentiated(loop: tf.Operation) -> bool:
  """Returns whether a loop comes from a gradient, or a gradient was taken of it."""
  body = loop._body_graph  # pylint: disable=protected-access
  return type(body).__name__ != 'WhileBodyFuncGraph' or '_rewritten' in body.name


@contextlib.contextmanager
def more_loop_inputs(op: tf.Operation, tensors: Sequence[tf.Tensor]
                    ) -> Iterator[list[tf.Tensor]]:
  """Adds inputs to a loop, and an output for each, as `tf.gradients` does.

  Yields the list of tensors that stand for `tensors` in the loop's body. In the block
  the body is the default graph and may be extended. The block may replace entries of
  the list: each step passes the entries on, and the loop returns the last ones.
  """
  # pylint: disable=protected-access
  cond, body = op._cond_graph, op._body_graph
  with body.as_default():
    inside = [body.capture(each) for each in tensors]
    yield inside
  for each in tensors:
    cond.capture(each)
  body.outputs.extend(inside)
  for name, graph in (('cond', cond), ('body', body)):
    graph.name += '_more'
    op._set_func_attr(name, control_flow_util_v2.create_new_tf_function(graph))
  op._set_type_list_attr('T', body.output_types)
  op._set_shape_list_attr('output_shapes', body.output_shapes)
  op._add_while_inputs(tensors)
  op._add_outputs([each.dtype for each in inside], [each.shape for each in inside])
  # TensorFlow takes gradients of as many outputs as this attribute tells. It stays as
  # it is if a gradient was taken before: none goes through the new outputs then.
  if not was_differentiated(op):
    op._set_attr('_num_original_outputs', attr_value_pb2.AttrValue(i=len(op.outputs)))


def put_behind(tensor: tf.Tensor, instead: tf.Tensor) -> None:
  """Makes all consumers of a tensor, and its graph's outputs, use `instead`."""
  # `instead` is computed from the tensor, so that its own operation keeps the tensor.
  for op in tensor.consumers():
    for i, each in enumerate(op.inputs):
      if each is tensor and op is not instead.op:
        op._update_input(i, instead)  # pylint: disable=protected-access
  outputs = tensor.graph.outputs
  outputs[:] = [instead if each is tensor else each for each in outputs]


def has_no_gradient(op: tf.Operation) -> bool:
  """Returns whether an operation is registered as not differentiable."""
  try:
    return ops.get_gradient_function(op) is None
  except LookupError:
    return False


def is_recording() -> bool:
  """Returns whether any gradient tape is recording."""
  return record.could_possibly_record()


def is_recorded(tensor: tf.Tensor) -> bool:
  """Returns whether a recording tape watches a tensor."""
  return record.should_record_backprop([tensor])


def without_autograph(function: _Function) -> _Function:
  """Returns `function`, marked to be left out by AutoGraph, which is slow.

  Calls that Keras makes inside still go through AutoGraph.
  """
  vars(function)['autograph_info__'] = {}  # AutoGraph's mark of converted functions.
  return function


def traced_for_analysis(function: Callable[..., Any]) -> Any:
  """Returns a `tf.function` to trace, never to run; AutoGraph only under Keras 2."""
  return tf.function(without_autograph(function), autograph=not versions.KERAS_3)


def as_keras_calls(function: Callable[..., Any]) -> Callable[..., Any]:
  """Returns a user's function as Keras calls it: under Keras 2 through AutoGraph."""
  if versions.KERAS_3:
    return function
  autograph = tf.__internal__.autograph
  return autograph.tf_convert(function, autograph.control_status_ctx())
