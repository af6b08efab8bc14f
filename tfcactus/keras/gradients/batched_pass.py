"""One pass over a physical batch: predictions, losses, gradient parts."""

from __future__ import annotations

import contextlib
from typing import Any
from typing import Callable
from typing import Dict
from typing import Iterator
from typing import List
from typing import NamedTuple
from typing import Tuple

import tensorflow as tf

from tfcactus.keras.checks.example_losses import LossFn
from tfcactus.keras.compat import versions
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import example_seeds
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients import vectorization
from tfcactus.keras.gradients.layer_routes import Route
from tfcactus.keras.gradients.layer_routes import Routes
from tfcactus.keras.gradients.layer_routes import Way
from tfcactus.keras.gradients.layers import rules
from tfcactus.keras.independence import graph_proof
from tfcactus.keras.independence import kinds

_LOSS_SCALE = 2.0**10
"""Keeps float16 gradients of one example from vanishing. A constant: a scale
that followed the gradients would tell of them."""


def _scale(model: keras.Model) -> float:
  """What losses are multiplied by, to be divided out before clipping."""
  layers = versions.flat_layers(model)
  half = any(getattr(layer, 'compute_dtype', None) == 'float16'
             for layer in layers)
  return _LOSS_SCALE if half else 1.0


def _unscaled(gradient: tf.Tensor, scale: float) -> tf.Tensor:
  return gradient if scale == 1 else tf.cast(gradient, tf.float32) / scale


class PassResult(NamedTuple):
  """What a pass over one physical batch gives.

  Attributes:
    parts: One for each trainable variable, in the model's order.
    predictions: Shape (rows, ...).
    losses: Shape (rows,), not weighted.
  """

  parts: List[forms.Part]
  predictions: tf.Tensor
  losses: tf.Tensor


class _VectorizedRule(rules.Rule):
  """Runs a layer on batches of one; its gradient runs it once more."""

  def run(self, layer, call, tap, inputs, *args, **kwargs):
    flat = tf.nest.flatten((inputs, args, kwargs))
    mapped = [i for i, value in enumerate(flat) if tf.is_tensor(value)]

    def one(values):
      *values, seed = values
      filled = list(flat)
      for i, value in zip(mapped, values):
        filled[i] = value[None]
      first, others, named = tf.nest.pack_sequence_as(
          (inputs, args, kwargs), filled)
      with example_seeds.drawing(layer, example_seeds.counting(seed)):
        return call(first, *others, **named)

    values = [flat[i] for i in mapped]
    values.append(_row_seeds(values[0].shape[0]))
    outputs = vectorization.over_rows(
        lambda row: tf.nest.map_structure(lambda out: out[0], one(row)),
        values)
    if not layer.trainable_variables:
      return outputs
    tapped = [tap((one, values, i), out) if out.dtype.is_floating else out
              for i, out in enumerate(tf.nest.flatten(outputs))]
    return tf.nest.pack_sequence_as(outputs, tapped)

  def gradients(self, site):
    one, values, place = site.inputs
    variables = versions.tf_variables(site.layer)

    def gradient(row):
      values, outer = row
      with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(variables)
        outputs = tf.nest.flatten(one(values))[place]
      found = tape.gradient(
          outputs, variables, tf.cast(outer[None], outputs.dtype),
          unconnected_gradients=tf.UnconnectedGradients.ZERO)
      return [tf.convert_to_tensor(part) for part in found]

    found = vectorization.over_rows(gradient, (values, site.gradient))
    return [(variable, forms.Dense(part, variable.shape)) for variable, part
            in zip(site.layer.trainable_variables, found)]


def _row_seeds(rows: int) -> tf.Tensor:
  # Whatever rows hold, their seeds are alike: secret and independent.
  if vectorization.is_standing_in():
    return tf.zeros([rows, 2], tf.int64)
  return example_seeds.row_seeds(rows)


_VECTORIZED = _VectorizedRule()


def _rule(route: Route) -> rules.Rule:
  if route.way == Way.VECTORIZED:
    return _VECTORIZED
  return rules.RULES[type(route.layer)]


def batched(model: keras.Model, routes: Routes, compute_loss: LossFn,
            part: Tuple[Any, tf.Tensor, tf.Tensor]) -> PassResult:
  """One forward and one backward pass of the whole batch.

  Args:
    model: The model.
    routes: Its routes; no layer may mix examples.
    compute_loss: (targets, predictions) -> losses of shape (rows,).
    part: Inputs, targets and weights, of a known number of rows.
  """
  x, targets, weights = part
  tapped = []
  with tf.GradientTape(watch_accessed_variables=False) as tape:

    def tap(layer, inputs, outputs):
      if outputs.shape[0] != weights.shape[0]:
        raise ValueError(
            f'Expected layer {layer.name!r} to be called on one row for each '
            f'of {weights.shape[0]} examples, got shape {outputs.shape}; use '
            "privatize(..., engine='vectorized').")
      tape.watch(outputs)
      tapped.append((layer, inputs, outputs))
      return outputs

    with _watching(routes, tap):
      predictions = model(x, training=True)
    losses = compute_loss(targets, predictions)
    # A loss of weight zero may be anything: its gradient must not be 0 * NaN.
    used = tf.where(tf.not_equal(weights, 0), losses * tf.cast(
        weights, losses.dtype), tf.zeros_like(losses))
    scale = _scale(model)
    total = tf.reduce_sum(tf.cast(used, tf.float32) * scale if scale != 1 else
                          used)
  gradients = tape.gradient(
      total, [outputs for _, _, outputs in tapped],
      unconnected_gradients=tf.UnconnectedGradients.ZERO)
  sites = [rules.Site(layer, inputs, _unscaled(gradient, scale))
           for (layer, inputs, _), gradient in zip(tapped, gradients)]
  return PassResult(_collect(model, routes, sites, weights.shape[0]),
                    predictions, losses)


@tf.autograph.experimental.do_not_convert
def check_batched(model: keras.Model, routes: Routes, compute_loss: LossFn,
                  part: Tuple[Any, tf.Tensor, tf.Tensor]) -> None:
  """Proves that `batched` treats each example alone, or refuses.

  The pass is traced, its gradients included. What is vectorised has something
  of the same dependences in its place.

  Args:
    model: The model.
    routes: Its routes.
    compute_loss: As there.
    part: As there.

  Raises:
    ValueError: naming an operation that takes several examples, or that nothing
      is known of.
  """
  specs = tf.nest.map_structure(
      lambda value: tf.TensorSpec(value.shape, value.dtype), part)

  def traced(*part):
    with vectorization.standing_in(), (
        example_seeds.drawing(model, lambda: tf.zeros([2], tf.int64))):
      found = batched(model, routes, compute_loss, part)
    parts = [value for one in found.parts for value in vars(one).values()
             if tf.is_tensor(value)]
    return [*parts, found.predictions, found.losses]

  graph = tf.function(traced, autograph=False).get_concrete_function(
      *specs).graph
  given = len(tf.nest.flatten(specs))
  found = kinds.why_not(graph_proof.analyse(
      graph, {value.name: kinds.ROWS for value in graph.inputs[:given]},
      graph.outputs))
  if found is not None:
    raise ValueError(
        'Expected layers that treat each example alone, or of which that is '
        f"known, got {found.why}; use privatize(..., engine='vectorized'), "
        'which takes one example at a time.')


@contextlib.contextmanager
def _watching(routes: Routes, tap: Callable[..., tf.Tensor]) -> Iterator[None]:
  """Runs each layer by its rule for a while."""
  with contextlib.ExitStack() as stack:
    for route in routes.taken().values():
      stack.enter_context(rules.replaced(route.layer, call=_ruled(route, tap)))
    yield


def _ruled(route: Route, tap: Callable[..., tf.Tensor]) -> Callable[..., Any]:
  layer, call = route.layer, route.layer.call

  def ruled(inputs, *args, **kwargs):
    return _rule(route).run(
        layer, call, lambda *values: tap(layer, *values), inputs, *args,
        **kwargs)

  return ruled


def _collect(model: keras.Model, routes: Routes, sites: List[rules.Site],
             rows: int) -> List[forms.Part]:
  """One part for each variable, those used several times added up."""
  taken = routes.taken()
  found: Dict[int, List[forms.Part]] = {}
  for site in sites:
    for variable, part in _rule(taken[id(site.layer)]).gradients(site):
      found.setdefault(id(variable), []).append(part)
  collected = []
  for variable in model.trainable_variables:
    parts = found.get(id(variable))
    if parts is None:
      zeros = tf.zeros([rows, *variable.shape], variable.dtype)
      parts = [forms.Dense(zeros, variable.shape)]
    collected.append(forms.together(parts))
  return collected


def vectorized(model: keras.Model, compute_loss: LossFn,
               part: Tuple[Any, tf.Tensor, tf.Tensor]) -> PassResult:
  """The same by vectorising the pass over one example; arguments as there."""
  scale = _scale(model)

  def one(example):
    (x, target, weight), seed = example
    variables = versions.tf_variables(model)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(variables)
      with example_seeds.drawing(model, example_seeds.counting(seed)):
        prediction = model(
            tf.nest.map_structure(lambda value: value[None], x), training=True)
      loss = compute_loss(target[None], prediction)[0]
      weighted = loss * tf.cast(weight, loss.dtype)
      if scale != 1:
        weighted = tf.cast(weighted, tf.float32) * scale
    gradients = tape.gradient(
        weighted, variables,
        unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return ([_unscaled(tf.convert_to_tensor(g), scale) for g in gradients],
            prediction[0], loss)

  seeds = example_seeds.row_seeds(part[2].shape[0])
  gradients, predictions, losses = tf.vectorized_map(
      one, (part, seeds), warn=False)
  parts = [forms.Dense(values, variable.shape) for values, variable in
           zip(gradients, model.trainable_variables)]
  return PassResult(parts, predictions, losses)
