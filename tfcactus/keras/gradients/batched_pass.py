"""One pass over a physical batch: predictions, losses, per-example gradients."""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import Any
from typing import Callable
from typing import Dict
from typing import Iterator
from typing import List
from typing import NamedTuple
from typing import Optional
from typing import Sequence
from typing import Tuple

import tensorflow as tf

from tfcactus.keras import example_seeds
from tfcactus.keras.checks import variable_reads
from tfcactus.keras.checks.example_losses import LossFn
from tfcactus.keras.compat import converters
from tfcactus.keras.compat import graphs
from tfcactus.keras.compat import masks
from tfcactus.keras.compat import models
from tfcactus.keras.compat import patches
from tfcactus.keras.compat import recurrent
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import added_losses
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.layer_routes import Routes
from tfcactus.keras.gradients.layers.base import LayerCall
from tfcactus.keras.gradients.layers.base import LayerRule

Batch = Tuple[Any, Any, tf.Tensor]
"""Inputs, targets and weights; structures, structures, and one tensor."""

_LOSS_SCALE = 2.0**10
"""Keeps float16 gradients of one example from vanishing. A constant: a scale
that followed the gradients would tell of them."""


def _scale(model: keras.Model) -> float:
  """What losses are multiplied by, to be divided out before clipping."""
  layers = models.flat_layers(model)
  half = any(getattr(layer, 'compute_dtype', None) == 'float16'
             for layer in layers)
  return _LOSS_SCALE if half else 1.0


def _unscaled(gradient: tf.Tensor, scale: float) -> tf.Tensor:
  return gradient if scale == 1 else tf.cast(gradient, tf.float32) / scale


class PassResult(NamedTuple):
  """What a pass over one physical batch gives.

  Attributes:
    gradients: One for each trainable variable, in the model's order.
    predictions: What the model returned, tensors of shape (rows, ...), with the
      masks that Keras hung on them.
    losses: Shape (rows,), or (rows, outputs), not weighted.
    added: Shape (rows,), what layers added to the losses; None if nothing.
    calls: In which operations were made; None if all of the model is vectorised.
    answers: Which weights rules gave gradients of, at which tensors.
  """

  gradients: Sequence[forms.GradientForm]
  predictions: Any
  losses: tf.Tensor
  added: Optional[tf.Tensor] = None
  calls: Optional[variable_reads.Calls] = None
  answers: Sequence[variable_reads.Answer] = ()


class NotOneRowEach(ValueError):
  """A layer was not called on one row for each example.

  Attributes:
    layer: The layer.
  """

  def __init__(self, words: str, layer: keras.layers.Layer):
    super().__init__(words)
    self.layer = layer


def takes_part(weights: tf.Tensor) -> tf.Tensor:
  """Which examples have any weight at all, as booleans of shape (rows,)."""
  found = tf.not_equal(weights, 0)
  return found if found.shape.rank == 1 else tf.reduce_any(found, 1)


def _losses(losses: Optional[tf.Tensor], added: Optional[tf.Tensor]) -> tf.Tensor:
  """The losses of outputs, of which there may be none if layers add some.

  Raises:
    ValueError: if there is no loss at all.
  """
  if losses is not None:
    return losses
  if added is None:
    raise ValueError(
        'Expected one loss in compile(), for one output at least, or layers that '
        'add_loss, got none; pass one such as '
        'tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True).')
  return tf.zeros_like(added)


def _weighted(losses: tf.Tensor, weights: tf.Tensor, added: Optional[tf.Tensor]
             ) -> tf.Tensor:
  """The loss of each example, shape (rows,)."""
  # A loss of weight zero may be anything: its gradient must not be 0 * NaN.
  used = tf.where(tf.not_equal(weights, 0), losses * tf.cast(
      weights, losses.dtype), tf.zeros_like(losses))
  if used.shape.rank == 2:
    used = tf.reduce_sum(used, 1)
  if added is None:
    return used
  return tf.cast(used, added.dtype) + tf.where(
      takes_part(weights), added, tf.zeros_like(added))


def batched(model: keras.Model, routes: Routes, compute_loss: LossFn,
            batch: Batch) -> PassResult:
  """One forward and one backward pass of the whole batch.

  Args:
    model: The model.
    routes: Its routes; no layer may mix examples.
    compute_loss: (targets, predictions) -> losses, (rows,) or (rows, outputs).
    batch: Inputs, targets and weights, of a known number of rows.
  """
  x, targets, weights = batch
  captured: List[_Captured] = []
  calls = variable_reads.Calls()
  with tf.GradientTape(watch_accessed_variables=False) as tape:

    def capture(rule: LayerRule, layer: keras.layers.Layer, number: int,
                saved: Any, outputs: tf.Tensor) -> tf.Tensor:
      if outputs.shape[0] != weights.shape[0]:
        raise NotOneRowEach(
            f'Expected layer {layer.name!r} to be called on one row for each '
            f'of {weights.shape[0]} examples, got shape {outputs.shape}; use '
            "privatize(..., engine='vectorized').", layer)
      tape.watch(outputs)
      captured.append(_Captured(rule, layer, number, saved, outputs))
      return outputs

    with _capturing(routes, capture, calls), (
        added_losses.of_rows(model, weights.shape[0])) as added:
      predictions = model(x, training=True)
    losses = _losses(compute_loss(targets, predictions), added.total())
    used = _weighted(losses, weights, added.total())
    scale = _scale(model)
    total = tf.reduce_sum(tf.cast(used, tf.float32) * scale if scale != 1 else
                          used)
  gradients = tape.gradient(
      total, [each.outputs for each in captured],
      unconnected_gradients=tf.UnconnectedGradients.ZERO)
  found: Dict[int, List[forms.GradientForm]] = {}
  answers = []
  for each, gradient in zip(captured, gradients):
    given = each.rule.gradients(
        LayerCall(each.layer, each.saved, _unscaled(gradient, scale)))
    for variable, form in given:
      found.setdefault(id(variable), []).append(form)
    answers.append(variable_reads.Answer(
        each.outputs, each.call, [variable for variable, _ in given]))
  return PassResult(
      [_added(found.get(id(v), []), v, weights.shape[0])
       for v in model.trainable_variables], predictions, losses, added.total(),
      calls, answers)


class _Captured(NamedTuple):
  """A tensor whose gradient a rule asked for, in one of the calls."""

  rule: LayerRule
  layer: keras.layers.Layer
  call: int
  saved: Any
  outputs: tf.Tensor


@contextlib.contextmanager
def _capturing(routes: Routes, capture: Callable[..., tf.Tensor],
               calls: variable_reads.Calls) -> Iterator[None]:
  """Runs each layer by its rule for a while."""

  def by_rule(rule: LayerRule, layer: keras.layers.Layer, call: Callable[..., Any],
              *args: Any, **kwargs: Any) -> Any:
    call = graphs.as_keras_calls(call)
    if not args:  # Keras 3 hands on by name what was called by name.
      name = next(name for name in inspect.signature(call).parameters
                  if name in kwargs)
      args, call = (kwargs.pop(name),), _by_name(call, name)
    with calls.one(layer) as number:
      return rule.forward(layer, call, functools.partial(
          capture, rule, layer, number), *args, **kwargs)

  with contextlib.ExitStack() as stack:
    for layer, rule in routes.differentiated():
      stack.enter_context(patches.replaced(layer, call=graphs.as_written(
          functools.partial(by_rule, rule, layer, layer.call))))
    yield


def _by_name(call: Callable[..., Any], name: str) -> Callable[..., Any]:
  """Takes by position what is passed on by name."""
  return lambda *args, **kwargs: call(*args[1:], **{name: args[0]}, **kwargs)


def _added(gradients: List[forms.GradientForm], variable: tf.Variable, rows: int
          ) -> forms.GradientForm:
  """The sum of the gradients of a variable, which may be used any number of times."""
  if gradients:
    return forms.added(gradients)
  return forms.Dense(
      tf.zeros([rows, *variable.shape], variable.dtype), variable.shape)


def vectorized(model: keras.Model, compute_loss: LossFn, batch: Batch) -> PassResult:
  """The same by vectorising the pass over one example; arguments as there."""
  scale = _scale(model)

  @graphs.as_written
  def one(example: Any) -> Any:
    (x, target, weight), seed = example
    variables = models.tf_variables(model)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(variables)
      with patches.drawing(model, example_seeds.counting(seed)), (
          recurrent.unrolled(model)), added_losses.of_one(model) as added:
        prediction = model(_alone(x), training=True)
      total = added.total()
      extra = None if total is None else total[None]
      loss = _losses(compute_loss(_alone(target), prediction), extra)
      weighted = _weighted(loss, weight[None], extra)[0]
      if scale != 1:
        weighted = tf.cast(weighted, tf.float32) * scale
    gradients = tape.gradient(
        weighted, variables,
        unconnected_gradients=tf.UnconnectedGradients.ZERO)
    found = [forms.of_example(each) for each in gradients]
    return ([{**each, 'values': _unscaled(each['values'], scale)} for each in found],
            tf.nest.map_structure(lambda value: value[0], prediction),
            masks.of_one(prediction), loss[0], [] if extra is None else [extra[0]])

  seeds = example_seeds.row_seeds(batch[2].shape[0])
  try:
    gradients, predictions, carried, losses, added = converters.vectorized_map(
        one, (batch, seeds))
  except (NotImplementedError, TypeError, ValueError) as error:
    if str(error).startswith('Expected'):
      raise
    raise ValueError(
        'Expected a model whose gradients can be vectorised over examples, since '
        f'all of it is, got {error}. Write it without tf.cond and tf.while_loop, or '
        'of layers whose weights nothing else uses (see privacy_summary()).'
        ) from error
  return PassResult(
      [forms.of_examples(found, variable.shape) for found, variable in
       zip(gradients, model.trainable_variables)],
      masks.put_rows(predictions, carried), losses, added[0] if added else None)


def _alone(example: Any) -> Any:
  """A batch of one example."""
  return tf.nest.map_structure(lambda value: value[None], example)
