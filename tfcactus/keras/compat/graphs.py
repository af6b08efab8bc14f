"""Traced graphs, as TensorFlow writes them down, and what AutoGraph does to them."""

from __future__ import annotations

from typing import Any
from typing import Callable
from typing import Iterator
from typing import List
from typing import Optional
from typing import Sequence
from typing import TypeVar

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import ops
from tensorflow.python.ops import gradients_util

from tfcactus.keras.compat import versions

_Function = TypeVar('_Function', bound=Callable[..., Any])


def nodes(graph: tf.Graph) -> Iterator[tf.compat.v1.NodeDef]:
  """All operations of a graph, those of the functions that it calls included."""
  definition = graph.as_graph_def()
  yield from definition.node
  for function in definition.library.function:
    yield from function.node_def


def is_variable(handle: tf.Tensor) -> bool:
  """Whether a resource is a variable, for all that is known, and not a table."""
  if not isinstance(handle, tf.__internal__.EagerTensor):
    return True
  with tf.init_scope():
    return bool(tf.raw_ops.VarIsInitializedOp(resource=handle))


def has_own_gradient(node: Any) -> bool:
  """Whether an operation, or its definition, has a gradient that somebody wrote."""
  return '_gradient_op_type' in getattr(node, 'node_def', node).attr


def gradients(graph: tf.Graph, of: tf.Tensor, by: Sequence[tf.Tensor],
              upstream: Optional[tf.Tensor] = None) -> List[Any]:
  """As `tf.gradients`, also from inside a loop or a branch, which is another graph.

  Args:
    graph: Where what is differentiated was traced.
    of: A tensor of it.
    by: Tensors of it.
    upstream: Weights of `of`; None for ones.

  Returns:
    Tensors, indexed slices, and None for what has no part in it.
  """
  return gradients_util._GradientsHelper(  # pylint: disable=protected-access
      [of], list(by), None if upstream is None else [upstream], src_graph=graph,
      unconnected_gradients=tf.UnconnectedGradients.NONE)


def has_no_gradient(op: tf.Operation) -> bool:
  """Whether nothing flows back through an operation, in a graph or on a tape."""
  try:
    return ops.get_gradient_function(op) is None
  except LookupError:
    return False


def is_recording() -> bool:
  """Whether any tape records what is computed now."""
  return record.could_possibly_record()


def is_recorded(tensor: tf.Tensor) -> bool:
  """Whether a tape that records now knows what a tensor was computed from."""
  return record.should_record_backprop([tensor])


def as_written(function: _Function) -> _Function:
  """Has AutoGraph leave a function as it is, though not what Keras calls in it.

  Rewriting those of this library takes as long as tracing them.
  """
  vars(function)['autograph_info__'] = {}  # By which it knows what is done already.
  return function


def looked_at(function: Callable[..., Any]) -> Any:
  """A `tf.function` whose trace is looked at; rewritten is what Keras has rewritten."""
  return tf.function(as_written(function), autograph=not versions.KERAS_3)


def as_keras_calls(function: Callable[..., Any]) -> Callable[..., Any]:
  """What a user wrote, rewritten by AutoGraph where Keras has that done."""
  if versions.KERAS_3:
    return function
  autograph = tf.__internal__.autograph
  return autograph.tf_convert(function, autograph.control_status_ctx())
