"""Refuses passes that keep, read or draw data outside of the privacy account.

A private step releases a noisy sum and nothing else. So a layer or a loss may not write
values of the data, read values that other code writes, or draw from a state that this
library does not set. TensorFlow marks the operations that can: it registers them as
stateful, or they take a resource. `_UNMARKED` has operations without a mark. Each such
operation is in `ALLOWED`, with the reason, or refused. Unknown operations are refused
too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import re

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tfcactus.keras.compat import graphs, models, patches
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.independence import draws

_READ = 'reads a variable, which is a weight of the model: see `_check_captures`'
_TABLE = 'reads a table of fixed entries: see `_check_captures`'
_ARRAY = 'an array that lives as long as one call'
_CALL = 'calls a function whose operations are checked too'
_MESSAGE = 'prints or raises; nothing in the model depends on it'
_DEVICE = 'returns facts about the device or the version, and nothing of the data'

ALLOWED: dict[str, str] = {
    **dict.fromkeys((
        'ReadVariableOp', 'ResourceGather', 'ResourceGatherNd', 'VariableShape',
        'VarIsInitializedOp', 'DisableCopyOnRead'), _READ),
    **dict.fromkeys(('LookupTableFindV2', 'LookupTableSizeV2'), _TABLE),
    **dict.fromkeys((
        'TensorArrayV3', 'TensorArrayReadV3', 'TensorArrayWriteV3',
        'TensorArrayGatherV3', 'TensorArrayScatterV3', 'TensorArrayConcatV3',
        'TensorArraySplitV3', 'TensorArraySizeV3', 'TensorArrayGradV3',
        'TensorArrayCloseV3'), _ARRAY),
    **dict.fromkeys(('StatefulPartitionedCall', 'If', 'Case', 'While'), _CALL),
    **dict.fromkeys((
        'Assert', 'CheckNumerics', 'CheckNumericsV2', 'Print', 'PrintV2'), _MESSAGE),
    **dict.fromkeys((
        'DeviceIndex', 'GraphDefVersion', 'StatelessRandomGetAlg'), _DEVICE),
    **dict.fromkeys((
        'CudnnRNN', 'CudnnRNNV2', 'CudnnRNNV3', 'CudnnRNNBackprop',
        'CudnnRNNBackpropV2', 'CudnnRNNBackpropV3'),
                    'keeps the state of its dropout only, and dropout has to be zero'),
}
"""Stateful operations that a pass may contain, each with the reason."""

_UNMARKED = re.compile(
    r'Abort|Batch(Function)?|Copy(Host)?|Debug\w*|\w*Dataset\w*|\w+compressElement|'
    r'CompressElement|\w*File\w*|GetDeadline|GetElementAtIndex|GetOptions|ImmutableConst|'
    r'Inplace\w*|\w*Iterator\w*|Mlir\w*|\w*Proto\w*|PyFunc\w*|TRT\w*|TfLite\w*|'
    r'Unbatch(Grad)?|XlaCustomCall\w*')
"""Names of operations that keep or read state and are not marked as stateful."""


def check_no_writes(model: keras.Model, gradients: bool = True) -> tf.Graph:
  """Raises ValueError if a model's pass in training, or its gradient, is stateful.

  Values that a layer assigns are neither clipped nor noisy, and stay with the weights.
  The pass is traced, not run; Python code that depends on more than the inputs, or that
  runs eagerly, cannot be seen. Models of unknown inputs are refused. If `gradients` is
  False, the gradient is traced only if the pass has a custom one, which is user code.
  Returns the graph, whose first structured output is that of the model.
  """
  spec = models.input_spec(model)
  if spec is None:
    raise ValueError(
        f'Expected a model of known inputs, got {model.name!r}, which cannot be '
        'checked for layers that write variables; make inputs of tf.keras.Input, in '
        'the structure it takes, and privatize tf.keras.Model(inputs, model(inputs)).')

  def forward_and_back(inputs):
    """Returns the outputs of the model, and the gradients of their sum or None."""
    if not gradients:
      return model(inputs, training=True), None
    with tf.GradientTape() as tape:
      outputs = model(inputs, training=True)
    return outputs, tape.gradient(
        [output for output in [*tf.nest.flatten(outputs), *model.losses]
         if tf.is_tensor(output) and graphs.is_differentiable(output.dtype)],
        models.tf_variables(model))

  # Not under tf.init_scope, which would stop the tape from recording.
  with patches.drawing(model, draws.secret_seed):
    graph = graphs.traced_for_analysis(
        forward_and_back).get_concrete_function(spec).graph
  check_graph(graph, 'layers', model)
  if not gradients and graphs.have_own_gradients([graph]):
    return check_no_writes(model)
  return graph


def check_graph(graph: tf.Graph, what: str, model: keras.Model | None,
                replaced: Sequence[tf.Graph] = ()) -> None:
  """Raises ValueError, with the remedy, if a traced computation keeps or reads state.

  Allowed are operations in `ALLOWED` and weights of `model`; with None, no weights. A
  function that draws must be traced inside `patches.drawing`. `what` names the
  computation in messages, in the plural. The graphs in `replaced`, of vectorised code
  whose place in `graph` other operations have taken, are checked too.
  """
  looked_up = set()
  for part in (graph, *replaced):
    functions = {function.signature.name
                 for function in part.as_graph_def().library.function}
    for node in graphs.nodes(part):  # Goes into functions: a call by itself is allowed.
      if node.op not in functions and not _is_allowed(node):
        raise ValueError(_refusal(node, what))
      if node.op == 'LookupTableFindV2':
        looked_up.add((node.attr['Tin'].type, node.attr['Tout'].type))
  for part in (graph, *replaced):
    _check_captures(part, what, model, looked_up)


def _is_allowed(node: tf.compat.v1.NodeDef) -> bool:
  """Returns whether an operation is stateless, or in `ALLOWED` and without dropout."""
  signature = op_def_registry.get(node.op)
  if signature is None:
    return False
  if node.op in ALLOWED:
    return not ('dropout' in node.attr and node.attr['dropout'].f)
  # An operation with a seed keeps its position in a random stream. Operations with a
  # `container` or `shared_name` share a state.
  if _UNMARKED.fullmatch(node.op) or any(
      attr.name in ('container', 'seed', 'seed2', 'shared_name')
      for attr in signature.attr):
    return False
  return not signature.is_stateful and not any(
      arg.type == tf.resource.as_datatype_enum or arg.is_ref
      for arg in (*signature.input_arg, *signature.output_arg))


def _refusal(node: tf.compat.v1.NodeDef, what: str) -> str:
  """Returns the error message for a refused operation of `what`, such as 'layers'."""
  if draws.moves_state(node):
    return (
        f'Expected {what} that draw by tf.random.uniform, normal or '
        f'truncated_normal, got {node.op} in {node.name!r}: its seed is not known to '
        'be secret, and what it draws for an example would depend on the place of the '
        'example in the batch, so that one example more would change the draws of '
        'others. Use layers of Keras, or compute what you need from those functions.')
  if node.op in ('PyFunc', 'PyFuncStateless', 'EagerPyFunc'):
    return (
        f'Expected {what} of TensorFlow operations, got {node.op} in {node.name!r}, '
        'which runs Python: nothing shows what that keeps of the data, draws or '
        'reads. Write it in TensorFlow, or apply it to the data before training.')
  if node.op in ('Empty', 'InplaceAdd', 'InplaceSub', 'InplaceUpdate'):
    return (
        f'Expected {what} that write no memory in place, got {node.op} in '
        f'{node.name!r}, as in tf.nn.ctc_loss with dense labels and in '
        'tf.keras.losses.CTC: nothing shows which numbers such memory holds. For CTC '
        'use tf.keras.backend.ctc_batch_cost(labels, tf.nn.softmax(logits), '
        'input_length, label_length)[:, 0].')
  return (
      f'Expected {what} that write no variables in training, and keep and read '
      f'nothing but weights, got {node.op} in {node.name!r}: what is kept of the '
      'data is neither clipped nor noisy, and stays. Remove what is assigned, or '
      'the layer, or freeze it before training (for normalization use '
      'GroupNormalization or LayerNormalization).')


def _check_captures(graph: tf.Graph, what: str, model: keras.Model | None,
                    looked_up: Iterable[tuple[int, int]]) -> None:
  """Raises ValueError for captured variables (no weights), datasets, open tables."""
  # `looked_up` has the (key, value) dtypes of all lookups in tables. Weights are safe
  # to read: if they change outside of steps, this library notices and ends the
  # guarantee. Any other variable may be set to values of the data, unseen, such as by a
  # callback.
  weights = [] if model is None else models.weights(model)
  known = {id(models.handle(variable)) for variable in weights}
  read = 'no variables' if model is None else 'weights of the model alone'
  for outside, _ in graph.captures:
    eager = isinstance(outside, tf.__internal__.EagerTensor)
    resource = outside.dtype == tf.resource and id(outside) not in known
    if outside.dtype == tf.variant and eager or (  # Such as a dataset.
        resource and graphs.is_variable(outside)):
      raise ValueError(
          f'Expected {what} that read {read}, got {outside!r} too: whatever sets it, '
          'such as a callback, may set it to something of the data. Make it a '
          'constant, tf.constant(variable.numpy()), or a weight of a layer by '
          'add_weight(trainable=False).')
    if resource and eager and not _is_fixed_table(outside, looked_up):
      raise ValueError(
          f'Expected {what} that read tables of fixed entries, got one that can be '
          'written to, such as a MutableHashTable: whatever fills it, such as a '
          'callback, may fill it with something of the data. Use '
          'tf.lookup.StaticHashTable.')


def _is_fixed_table(handle: tf.Tensor, types: Iterable[tuple[int, int]]) -> bool:
  """Returns whether a table refuses writes; False if `types` lacks its dtypes."""
  # Tries a write of no entries with each pair of (key, value) dtypes.
  with tf.init_scope():
    for key, value in types:
      try:
        tf.raw_ops.LookupTableInsertV2(
            table_handle=handle, keys=tf.zeros([0], key), values=tf.zeros([0], value))
      except tf.errors.UnimplementedError:
        return True
      except tf.errors.InvalidArgumentError:  # The table has other dtypes.
        continue
  return False
