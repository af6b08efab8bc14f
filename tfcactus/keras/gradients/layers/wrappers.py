"""Rules for layers that wrap others: the rule of the wrapped layer runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import functools
import inspect
import math
from typing import Any, Callable

import tensorflow as tf

from tfcactus.keras.compat import models, patches, recurrent
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.layers import base
from tfcactus.keras.gradients.layers.recurrent import RecurrentRule
from tfcactus.keras.gradients.layers.route import Route, route_of

_RECURRENT = RecurrentRule()


class _WrapperRule(base.LayerRule):
  """Base class of rules that leave the gradients to the rules of wrapped layers.

  With each captured tensor they save (rule of the wrapped layer, wrapped layer, value
  that the rule of the wrapped layer saved).
  """

  also_frozen = True

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    """Returns the gradients that the wrapped layer's rule computes."""
    rule, layer, saved = call.saved
    return rule.gradients(base.LayerCall(layer, saved, call.gradient))


class BidirectionalRule(_WrapperRule):
  """Rule for both directions of a recurrent layer, merged as the layer merges them."""

  layer_types = (keras.layers.Bidirectional,)

  def unsupported(self, layer: keras.layers.Layer) -> str:
    """Returns why the rule of a direction does not hold, or ''."""
    for inner in _directions(layer):
      if type(inner) not in RecurrentRule.layer_types:
        return f'no rule for {type(inner).__name__} in two directions'
      reason = _RECURRENT.unsupported(inner)
      if reason:
        return reason
    return ''

  def forward(self, layer: keras.layers.Layer, call: Callable[..., Any],
              capture: base.Capture, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the layer; both directions run through their rules."""
    called = []

    def run(inner: keras.layers.Layer, own: Callable[..., Any], *args: Any,
            **kwargs: Any) -> Any:
      """Calls one direction through its rule."""
      called.append(inner)
      return _RECURRENT.forward(
          inner, own, lambda saved, outputs: capture(
              (_RECURRENT, inner, saved), outputs), *args, **kwargs)

    with _calling(_directions(layer), run), recurrent.unfused(layer):
      outputs = call(inputs, *args, **kwargs)
    if len(called) != 2:
      raise ValueError(
          f'Expected {layer.name!r} to call its layers once for each direction, '
          f'got {len(called)} calls: the gradients of what is not called would be '
          'missing. Use two layers, one with go_backwards=True, and concatenate '
          'what they return.')
    return outputs

  def numbers_per_example(self, layer: keras.layers.Layer,
                          output_shapes: Sequence[list[int]]) -> int:
    """Sums over both directions, from the input shapes."""
    del output_shapes
    shapes = [shape[1:] for shape in models.input_shapes(layer)][:1]
    return sum(_RECURRENT.numbers_of(inner, shapes) for inner in _directions(layer))


def _directions(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
  """Returns the forward and the backward layer."""
  return [layer.forward_layer, layer.backward_layer]


@contextlib.contextmanager
def _calling(layers: Sequence[keras.layers.Layer], run: Callable[..., Any]
            ) -> Iterator[None]:
  """Replaces each layer's `call` by `run(layer, own call, ...)` inside the context."""
  with contextlib.ExitStack() as stack:
    for layer in layers:
      stack.enter_context(patches.replaced(
          layer, call=functools.partial(run, layer, layer.call)))
    yield


class TimeDistributedRule(_WrapperRule):
  """Rule that runs time steps as rows of a batch and sums each example's gradients."""

  layer_types = (keras.layers.TimeDistributed,)

  def __init__(self, rule_for: Callable[[keras.layers.Layer], base.LayerRule | None]):
    """Initialises the rule; `rule_for` returns the rule of a wrapped layer, or None."""
    self._rule_for = rule_for

  def _routes(self, layer: keras.layers.Layer) -> list[Route]:
    """Returns the routes of the layers that a TimeDistributed wraps."""
    inner = layer.layer
    return [route_of(each, self._rule_for(each)) for each in (
        models.graph_layers(inner) if models.is_graph(inner) else [inner])]

  def _ruled(self, layer: keras.layers.Layer
            ) -> list[tuple[keras.layers.Layer, base.LayerRule]]:
    """Returns the wrapped layers that have a rule, with their rules."""
    return [(route.layer, route.rule) for route in self._routes(layer)
            if route.rule is not None]

  def unsupported(self, layer: keras.layers.Layer) -> str:
    """Returns a reason if a wrapped layer needs to be vectorised, else ''."""
    inner = layer.layer
    if isinstance(inner, keras.Model) and not models.is_graph(inner):
      return f'{inner.name!r} is no Sequential or functional model'
    for route in self._routes(layer):
      if route.vectorized:
        return f'{route.layer.name!r} in it is vectorised ({route.reason})'
    return ''

  def forward(self, layer: keras.layers.Layer, call: Callable[..., Any],
              capture: base.Capture, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the wrapped layers on the time steps of all examples at once."""
    given = inspect.signature(call).bind(inputs, *args, **kwargs).arguments
    sequences, inner = given['inputs'], layer.layer
    rows, steps = tf.nest.flatten(sequences)[0].shape[:2]
    if steps is None:
      raise ValueError(
          f'Expected sequences of a known number of steps for {layer.name!r}, got '
          f'shape {tf.nest.flatten(sequences)[0].shape}; pad them to one length.')
    takes = inspect.signature(inner.call).parameters
    named = {name: _folded(given[name]) if tf.is_tensor(given[name]) else given[name]
             for name in ('training', 'mask')
             if name in takes and given.get(name) is not None}
    rules = {id(inside): rule for inside, rule in self._ruled(layer)}

    def run(inside: keras.layers.Layer, own: Callable[..., Any], *args: Any,
            **kwargs: Any) -> Any:
      """Calls one wrapped layer through its rule."""
      rule = rules[id(inside)]

      def captured(saved: Any, outputs: tf.Tensor) -> tf.Tensor:
        """Captures a tensor in shape (rows, time, ...), so that rows are examples."""
        whole = capture((rule, inside, saved), _unfolded(outputs, rows))
        return tf.reshape(whole, outputs.shape)

      return rule.forward(inside, own, captured, *args, **kwargs)

    with _calling([inside for inside, _ in self._ruled(layer)], run):
      outputs = inner(tf.nest.map_structure(_folded, sequences), **named)
    return tf.nest.map_structure(lambda each: _unfolded(each, rows), outputs)

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    """Sums the wrapped layer's gradients over each example's time steps."""
    rows = call.gradient.shape[0]
    found = super().gradients(call._replace(gradient=_folded(call.gradient)))
    return [(variable, _summed(form, rows)) for variable, form in found]

  def numbers_per_example(self, layer: keras.layers.Layer,
                          output_shapes: Sequence[list[int]]) -> int:
    """Sums over wrapped layers, with their outputs and output gradients, and steps."""
    steps = max([shape[0] for shape in output_shapes], default=1)
    count = 0
    for inside, rule in self._ruled(layer):
      shapes = [shape[1:] for shape in models.output_shapes(inside)
                if None not in shape[1:]]
      count += rule.numbers_per_example(
          inside, shapes or [shape[1:] for shape in output_shapes])
      count += 2 * sum(map(math.prod, shapes))
    return steps * count


def _folded(values: tf.Tensor) -> tf.Tensor:
  """Reshapes (rows, time, ...) to (rows * time, ...)."""
  rows, steps, *others = values.shape
  return tf.reshape(values, [rows * steps, *others])


def _unfolded(values: tf.Tensor, rows: int) -> tf.Tensor:
  """Reshapes (rows * time, ...) to (rows, time, ...)."""
  return tf.reshape(values, [rows, -1, *values.shape[1:]])


def _summed(form: forms.GradientForm, rows: int) -> forms.GradientForm:
  """Sums gradients per time step to gradients per example."""
  if isinstance(form, forms.Outer):
    values = tf.matmul(_unfolded(form.inputs, rows), _unfolded(form.outputs, rows),
                       transpose_a=True)
    return forms.Dense(values, form.shape)
  if isinstance(form, forms.Rows):
    width = form.values.shape[-1]
    return forms.Rows.merged(
        tf.reshape(form.ids, [rows, -1]),
        tf.reshape(form.values, [rows, form.values.shape[0] * form.values.shape[1] //
                                 rows, width]), form.vocabulary)
  values = tf.reduce_sum(_unfolded(form.dense(), rows), 1)
  return forms.Dense(values, values.shape[1:])
