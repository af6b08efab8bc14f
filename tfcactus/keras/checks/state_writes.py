"""Which models keep something of the data outside their gradients."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tfcactus.keras import example_seeds
from tfcactus.keras.compat import graphs
from tfcactus.keras.compat import models
from tfcactus.keras.compat import patches
from tfcactus.keras.compat.versions import keras

_HARMLESS = frozenset((
    # Reads.
    'ReadVariableOp', 'ResourceGather', 'ResourceGatherNd', 'VariableShape',
    'VarIsInitializedOp', 'LookupTableFindV2', 'LookupTableSizeV2',
    # Arrays that live as long as one call.
    'TensorArrayV3', 'TensorArrayReadV3', 'TensorArrayWriteV3',
    'TensorArrayGatherV3', 'TensorArrayScatterV3', 'TensorArrayConcatV3',
    'TensorArraySplitV3', 'TensorArraySizeV3', 'TensorArrayGradV3',
    'TensorArrayCloseV3',
))
"""Operations on resources that leave nothing of the data behind. Whatever else
touches one is refused, so that an operation nobody thought of is too."""

_PYTHON = frozenset(('PyFunc', 'PyFuncStateless', 'EagerPyFunc'))

_DRAWS = frozenset((
    'RandomUniform', 'RandomUniformInt', 'RandomStandardNormal',
    'TruncatedNormal', 'ParameterizedTruncatedNormal', 'RandomGamma',
    'RandomPoisson', 'RandomPoissonV2', 'RandomShuffle', 'Multinomial',
    'RngReadAndSkip', 'RngSkip', 'StatefulUniform', 'StatefulUniformInt',
    'StatefulUniformFullInt', 'StatefulStandardNormal',
    'StatefulStandardNormalV2', 'StatefulTruncatedNormal',
    'StatefulRandomBinomial'))
"""Draws that `patches.drawing` does not reach."""


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
  spec = models.input_spec(model)
  if spec is None:
    raise ValueError(
        f'Expected a model of known inputs, got {model.name!r}, which cannot '
        'be checked for layers that write variables; make inputs of tf.keras.Input, '
        'in the structure it takes, and privatize tf.keras.Model(inputs, '
        'model(inputs)).')

  def forward_and_back(inputs):
    with tf.GradientTape() as tape:
      outputs = model(inputs, training=True)
    gradients = tape.gradient(
        [output for output in [*tf.nest.flatten(outputs), *model.losses]
         if tf.is_tensor(output) and output.dtype.is_floating],
        models.tf_variables(model))
    return outputs, gradients

  # Not in an init_scope, which would stop the tape from recording.
  with patches.drawing(model, example_seeds.no_seed):
    graph = graphs.looked_at(forward_and_back).get_concrete_function(spec).graph
  check_pass(graph)
  return graph.structured_outputs[0]


def check_pass(graph: tf.Graph) -> None:
  """Refuses a pass in training that writes variables, or draws by unknown means.

  Args:
    graph: Of the pass, traced inside `patches.drawing`.

  Raises:
    ValueError: naming the operation and the remedy.
  """
  for node in graphs.nodes(graph):
    if node.op in _DRAWS:
      raise ValueError(
          'Expected layers that draw by tf.random.uniform, normal or '
          f'truncated_normal, got {node.op} in {node.name!r}: from a seed that '
          "is known, its draws would follow an example's row, and one example "
          'more would change them for all others. Use layers of Keras, or '
          'make what you need of the draws named.')
  check_graph(graph, 'layers that write')


def check_graph(graph: tf.Graph, what: str) -> None:
  """Refuses a traced computation that writes variables, or runs Python.

  Args:
    graph: Of a function.
    what: That which is expected not to.

  Raises:
    ValueError: naming the operation and the remedy.
  """
  for node in graphs.nodes(graph):
    if _writes(node.op):
      raise ValueError(
          f'Expected {what} no variables in training, got {node.op} in '
          f'{node.name!r}: what is kept of the data is neither clipped nor '
          'noisy, and stays. Remove what is assigned, or the layer, or freeze '
          'it before training (for normalization use GroupNormalization or '
          'LayerNormalization).')


def draws_at_random(model: keras.Model) -> bool:
  """Whether the pass of a model in training draws at random.

  Args:
    model: A built model of known inputs.
  """
  draws = []

  def make_seed() -> tf.Tensor:
    draws.append(1)
    return example_seeds.no_seed()

  with patches.drawing(model, make_seed):
    graphs.looked_at(lambda inputs: model(inputs, training=True)
                    ).get_concrete_function(models.input_spec(model))
  return bool(draws)


def _writes(op: str) -> bool:
  if op in _PYTHON:
    return True
  signature = op_def_registry.get(op)
  if op in _HARMLESS or signature is None:  # None: a function of the library.
    return False
  return any(arg.type == tf.resource.as_datatype_enum or arg.is_ref
             for arg in signature.input_arg)
