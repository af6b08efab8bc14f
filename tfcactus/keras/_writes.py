"""Which models keep something of the data outside their gradients."""

from __future__ import annotations

from typing import Any
from typing import FrozenSet
from typing import Iterator

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tfcactus.keras import _compat
from tfcactus.keras import _seeds
from tfcactus.keras._compat import keras

_HARMLESS = frozenset((
    # Reads.
    'ReadVariableOp', 'ResourceGather', 'ResourceGatherNd', 'VariableShape',
    'VarIsInitializedOp', 'LookupTableFindV2', 'LookupTableSizeV2',
    # States of random number generators.
    'RngReadAndSkip', 'RngSkip', 'StatefulUniform', 'StatefulUniformInt',
    'StatefulUniformFullInt', 'StatefulStandardNormalV2',
    'StatefulTruncatedNormal', 'StatefulRandomBinomial',
    # Arrays that live as long as one call.
    'TensorArrayV3', 'TensorArrayReadV3', 'TensorArrayWriteV3',
    'TensorArrayGatherV3', 'TensorArrayScatterV3', 'TensorArrayConcatV3',
    'TensorArraySplitV3', 'TensorArraySizeV3', 'TensorArrayGradV3',
    'TensorArrayCloseV3',
))
"""Operations on resources that leave nothing of the data behind. Whatever else
touches one is refused, so that an operation nobody thought of is too."""

_PYTHON = frozenset(('PyFunc', 'PyFuncStateless', 'EagerPyFunc'))


def check_no_writes(model: keras.Model) -> Any:
  """Refuses models whose pass in training, or its gradient, writes variables.

  What a layer assigns is neither clipped nor noisy, and it is kept with the
  weights. The pass is traced, not run; Python code that depends on more than
  the inputs, or that runs eagerly, cannot be seen.

  Args:
    model: A built model.

  Returns:
    What the model returns, in its structure.

  Raises:
    ValueError: naming the operation and the remedy, or if the inputs of the
      model are unknown.
  """
  spec = _compat.input_spec(model)
  if spec is None:
    raise ValueError(
        f'Expected a model of known inputs, got {model.name!r}, which cannot '
        'be checked for layers that write variables; build it from '
        'tf.keras.Input, or call it once on data.')

  def forward_and_back(inputs):
    with tf.GradientTape() as tape:
      outputs = model(inputs, training=True)
    gradients = tape.gradient(
        [part for part in tf.nest.flatten(outputs)
         if tf.is_tensor(part) and part.dtype.is_floating],
        model.trainable_variables)
    return outputs, gradients

  # Not in an init_scope, which would stop the tape from recording.
  graph = tf.function(forward_and_back).get_concrete_function(spec).graph
  check_graph(graph, 'layers that write', _drawn_from(model, graph))
  return graph.structured_outputs[0]


def check_graph(graph: Any, what: str,
                seeds: FrozenSet[str] = frozenset()) -> None:
  """Refuses a traced computation that writes variables, or runs Python.

  Args:
    graph: Of a function.
    what: That which is expected not to.
    seeds: Names of what it may write.

  Raises:
    ValueError: naming the operation and the remedy.
  """
  for node in nodes(graph.as_graph_def()):
    if _writes(node.op) and not seeds.intersection(node.input[:1]):
      raise ValueError(
          f'Expected {what} no variables in training, got {node.op} in '
          f'{node.name!r}: what is kept of the data is neither clipped nor '
          'noisy, and stays. Remove what is assigned, or the layer, or freeze '
          'it before training (for normalization use GroupNormalization or '
          'LayerNormalization).')


def _drawn_from(model: keras.Model, graph: Any) -> FrozenSet[str]:
  """Names in a graph of the states of the model's random number generators."""
  handles = [v.handle for v in _seeds.seed_variables(model)]
  return frozenset(inside.op.name for outside, inside in graph.captures
                   if any(outside is handle for handle in handles))


def nodes(definition: Any) -> Iterator[Any]:
  """All operations, those of the functions that are called included."""
  yield from definition.node
  for function in definition.library.function:
    yield from function.node_def


def _writes(op: str) -> bool:
  if op in _PYTHON:
    return True
  signature = op_def_registry.get(op)
  if op in _HARMLESS or signature is None:  # None: a function of the library.
    return False
  return any(arg.type == tf.resource.as_datatype_enum or arg.is_ref
             for arg in signature.input_arg)
