"""Proof that each loss of a drop-in optimizer depends on one example.

A drop-in optimizer receives losses, or a tape: neither shows how layers and loss treat
the examples of a batch. So model and loss of `fit` are traced again, and
`independence.graph_proof` analyses the trace.
"""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf

from tfcactus.keras.checks import example_losses, refused_models, state_writes
from tfcactus.keras.compat import graphs, patches
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.data.base import SampledBatches
from tfcactus.keras.independence import dependence, draws, graph_proof

ASSUMED = (
    ' A drop-in optimizer does not see what it trains: it is assumed that fit '
    'ran this model and this loss, as they were traced for this, on the batches '
    'given here.')
"""Assumption that no trace can check; every statement of epsilon names it."""

_REMEDY = (
    'Let call(y_true, y_pred) of the loss reduce the last axis only (axis=-1), '
    'without a mean over the batch, and let layers leave the first axis alone; '
    'or use tfcactus.keras.privatize(model, plan), which can take one example '
    'at a time.')

_ROWS = 3
"""Examples in the trace that checks custom gradients: enough for them to mix."""


def check_per_example(model: keras.Model, batches: SampledBatches) -> bool:
  """Raises ValueError, naming an operation, if a loss may depend on other examples.

  Returns whether the compiled and built model, or its loss, draws random numbers from
  generators of TensorFlow or Keras. Such draws are taken to have secret seeds; a draw
  from any other seed is refused.
  """
  own = refused_models.overridden(model, refused_models.TRAINING)
  if own:
    raise ValueError(
        f'Expected a model with the {own[0]} of Keras, got one of its own, which may '
        'do anything with a batch: nothing shows a loss per example. ' + _REMEDY)
  losses = _losses_of(model)
  specs = [tf.TensorSpec(tensor.shape[1:], tensor.dtype)
           for tensor in map(tf.constant, batches.two_examples())]
  specs.append(tf.TensorSpec([], tf.float32))  # The weights.
  seeds: list[tf.Tensor] = []

  def make_seed() -> tf.Tensor:
    """Returns a secret seed for a random draw, and notes that there is a draw."""
    seeds.append(draws.secret_seed())
    return seeds[-1]

  def traced(rows: int | None) -> Any:
    """Returns the graph of the losses of `rows` examples; None for any number."""
    with patches.drawing(model, make_seed):
      return tf.function(losses).get_concrete_function(*[
          tf.TensorSpec([rows, *spec.shape], spec.dtype) for spec in specs]).graph

  graph = traced(None)  # Shows a dependence on the number of examples too.
  state_writes.check_graph(graph, 'layers and losses', model)
  _check(graph, graph.inputs[:len(specs)], graph.outputs, None)
  _check_lookups(graph)
  if graphs.have_own_gradients([graph]):
    _check_gradients(traced(_ROWS), len(specs))
  return bool(seeds)


def _losses_of(model: keras.Model) -> Callable[..., tf.Tensor]:
  """Returns a function (x, y, weights) -> losses per example, as in `fit`.

  It ignores the weights if the loss is a function: `fit` multiplies each loss by the
  weight of its own example only.
  """
  if isinstance(model.loss, (list, tuple, dict)) or model.loss is None:
    raise ValueError(
        f'Expected one loss in compile(), got loss={model.loss!r}.')
  loss = keras.losses.get(model.loss)

  def losses(x: tf.Tensor, y: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns losses in training, (batch,); ValueError unless there is one output."""
    predictions = model(x, training=True)
    if not tf.is_tensor(predictions):
      raise ValueError(
          'Expected a model of one output, whose loss per example is known, '
          f'got a {type(predictions).__name__}.')
    y = example_losses.aligned_targets(y, predictions)
    if not isinstance(loss, keras.losses.Loss):
      return example_losses.mean_per_example(loss(y, predictions))
    with tf.name_scope('losses'):  # For Keras 3, `_MyLoss` is no valid root scope.
      return example_losses.mean_per_example(
          loss(y, predictions, sample_weight=weights))

  return losses


def _check(graph: tf.Graph, examples: list[tf.Tensor], outputs: list[tf.Tensor],
           rows: int | None) -> None:
  """Raises ValueError unless `outputs` are proved to have one row per example.

  `examples` are inputs of the graph with a row per example. `rows` is the number of
  examples, None if it may vary.
  """
  violation = graph_proof.first_dependence(graph, examples, outputs, rows)
  if violation is not None:
    how = ('so that other examples change the gradient of each' if
           violation.dependence == dependence.Dependence.MIXED else
           'so that other examples are not shown to leave the gradient of each alone')
    raise ValueError(
        f'Expected layers and a loss per example, got {violation.why}, {how}. '
        + _REMEDY)


def _check_lookups(graph: tf.Graph) -> None:
  """Raises ValueError for lookups whose gradient joins the ids of all examples."""
  for node in graphs.nodes(graph):
    if node.op == 'GatherV2' and node.attr['batch_dims'].i and (
        graphs.is_differentiable(tf.as_dtype(node.attr['Tparams'].type))):
      raise ValueError(
          'Expected layers and a loss per example, got a lookup with batch_dims, '
          f'{node.op} in {node.name!r}: its gradient adds an offset for each example '
          'to the ids, so that an id out of range, which GPUs do not refuse, becomes '
          'an id of the next example. Use a product with tf.one_hot(ids, n) instead, '
          'or tfcactus.keras.privatize(model, plan), which takes one example at a '
          'time.')


def _check_gradients(graph: tf.Graph, count: int) -> None:
  """Raises ValueError if a tf.custom_gradient may mix examples or is not followed.

  The first `count` inputs of the graph have a row per example; all others are captured.
  """
  # A custom gradient inside a nested function is not followed, nor one with an input
  # that is computed from variables but not from examples.
  examples = list(graph.inputs[:count])
  inputs = [tensor for op in graph.get_operations()
            if graphs.has_own_gradient(op) for tensor in op.inputs
            if graphs.is_differentiable(tensor.dtype)]
  facts = graph_proof.analyse(
      graph, {tensor.name: dependence.ROW_WISE for tensor in examples}, inputs,
      draws.Draws(_ROWS))
  are_constant = [each.dependence == dependence.Dependence.CONSTANT for each in facts]
  constant = [each for each, yes in zip(inputs, are_constant) if yes]
  of_examples = [each for each, yes in zip(inputs, are_constant) if not yes]
  hidden = any(graphs.has_own_gradient(node) for function in
               graph.as_graph_def().library.function
               for node in function.node_def)
  if hidden or any(tensor.dtype == tf.resource
                   for op in graph_proof.needed(constant, ()) for tensor in op.inputs):
    raise ValueError(
        'Expected layers and a loss per example, got a tf.custom_gradient of '
        'variables, or inside of a function, which is not followed. ' + _REMEDY)
  with graph.as_default():
    upstream = tf.compat.v1.placeholder(
        graph.outputs[0].dtype, graph.outputs[0].shape)
    # Gradients at inputs of custom gradients must have one row per example.
    gradients = tf.gradients(graph.outputs[0], of_examples, grad_ys=upstream)
  _check(graph, [*examples, upstream],
         [each for each in gradients if each is not None], _ROWS)
