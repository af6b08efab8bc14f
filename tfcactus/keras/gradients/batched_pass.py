"""One forward and backward pass over a physical batch, with per-example gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
import contextlib
import functools
import inspect
import itertools
from typing import Any, Callable, NamedTuple

import tensorflow as tf

from tfcactus.keras.checks import variable_reads
from tfcactus.keras.checks.example_losses import LossFn
from tfcactus.keras.compat import (
  converters,
  graphs,
  layer_calls,
  masks,
  models,
  patches,
  recurrent,
  vectorization,
)
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import added_losses, forms, vectorized_layer
from tfcactus.keras.gradients.layer_routes import Routes
from tfcactus.keras.gradients.operations import (
  gradients as operations,
  loops,
  uses as uses_lib,
)
from tfcactus.keras.independence import dependence
from tfcactus.keras.noise import random_bits

Batch = tuple[Any, Any, tf.Tensor]
"""Inputs, targets and weights: two structures of tensors and one tensor."""

_LOSS_SCALE = 2.0**10
"""Keeps float16 gradients of one example from underflowing; entries up to 63 still do
not overflow. Constant: dynamic loss scaling would leak facts about gradients."""


def loss_scale(model: keras.Model) -> float:
  """Returns `_LOSS_SCALE` if a layer computes in float16, else 1."""
  half = any(getattr(layer, 'compute_dtype', None) == 'float16'
             for layer in models.flat_layers(model))
  return _LOSS_SCALE if half else 1.0


def unscaled(gradient: tf.Tensor, scale: float) -> tf.Tensor:
  """Returns a gradient divided by a `loss_scale`; float32 if real and `scale` not 1."""
  if scale == 1:
    return gradient
  if not gradient.dtype.is_complex:
    gradient = tf.cast(gradient, tf.float32)
  return gradient / tf.cast(scale, gradient.dtype)


class PassResult(NamedTuple):
  """Gradients, predictions and losses of one physical batch with `rows` rows.

  Attributes:
    gradients: One form per variable of `model.trainable_variables`, with a gradient for
      each row. The engine and local steps make it a gradient for each example.
    predictions: The model's outputs, tensors of shape (rows, ...), with Keras masks.
    losses: Shape (rows,) or (rows, outputs), not weighted.
    added: Losses that layers added, shape (rows,); None if there are none.
    answers: The uses of weights whose gradients vectorised layers give;
      `variable_reads` checks that no use of a weight is left out.
    edges: The other uses, whose gradients rules of operations give. Both are empty
      unless `batched` made the result.
  """

  gradients: Sequence[forms.GradientForm]
  predictions: Any
  losses: tf.Tensor
  added: tf.Tensor | None = None
  answers: Sequence[variable_reads.Answer] = ()
  edges: Sequence[variable_reads.Edge] = ()

  def rows(self) -> list[tf.Tensor]:
    """Returns all tensors but masks; each has one row per example."""
    return [*(tensor for form in self.gradients for tensor in form.tensors()),
            *tf.nest.flatten(self.predictions), self.losses,
            *([] if self.added is None else [self.added])]

  def masks(self) -> list[tf.Tensor]:
    """Returns the masks that predictions carry."""
    return [each for each in masks.of_all(self.predictions) if each is not None]

  def of(self, tensors: Iterable[tf.Tensor]) -> PassResult:
    """Returns this result with other tensors, in the order of `rows`, then `masks`."""
    left = iter(tensors)
    result = self._replace(
        gradients=[form._of([next(left) for _ in form.tensors()])  # pylint: disable=protected-access
                   for form in self.gradients],
        predictions=tf.nest.map_structure(lambda _: next(left), self.predictions),
        losses=next(left), added=None if self.added is None else next(left))
    masks.put_all(result.predictions, [
        None if each is None else next(left)
        for each in masks.of_all(self.predictions)])
    return result


def takes_part(weights: tf.Tensor) -> tf.Tensor:
  """Returns booleans of shape (rows,): which examples have any nonzero weight."""
  nonzero = tf.not_equal(weights, 0)
  return nonzero if nonzero.shape.rank == 1 else tf.reduce_any(nonzero, 1)


def _losses(losses: tf.Tensor | None, added: tf.Tensor | None) -> tf.Tensor:
  """Returns the losses, or zeros if only layers add losses; ValueError for neither."""
  if losses is not None:
    return losses
  if added is None:
    raise ValueError(
        'Expected one loss in compile(), for one output at least, or layers that '
        'add_loss, got none; pass one such as '
        'tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True).')
  return tf.zeros_like(added)


def weighted_losses(losses: tf.Tensor, weights: tf.Tensor, added: tf.Tensor | None
                   ) -> tf.Tensor:
  """Returns each row's weighted loss, summed over outputs, plus its added losses."""
  weighted = losses * tf.cast(weights, losses.dtype)
  if weighted.shape.rank == 2:
    weighted = tf.reduce_sum(weighted, 1)
  if added is None:
    return weighted
  # Weights do not multiply added losses. Those of rows of weight zero are left out,
  # since the user of such a row may take part by other rows.
  return tf.cast(weighted, added.dtype) + tf.where(
      takes_part(weights), added, tf.zeros_like(added))


def batched(model: keras.Model, routes: Routes, compute_loss: LossFn,
            batch: Batch) -> PassResult:
  """Runs one forward and one backward pass over the whole batch.

  The layers must not mix examples. `compute_loss` maps (targets, predictions) to losses
  of shape (rows,) or (rows, outputs), or to None if only layers add losses; `batch` is
  (inputs, targets, weights) of a known number of rows. Must be called while a graph is
  traced.

  Raises:
    NoRule: if weights are used in a way that no rule covers.
    NotOneEach: if a layer adds a loss that is not a number for each example.
    ValueError: if there is no loss, or a layer cannot be vectorised.
  """
  x, targets, weights = batch
  number = weights.shape[0]
  outputs: list[_Output] = []
  with layer_calls.one_by_one(model), layer_calls.batched(model), (
      _vectorizing(routes, number, outputs)), (
          added_losses.of_rows(model, number)) as added:
    predictions = model(x, training=True)
  _check_whole(outputs, tf.nest.flatten(predictions))
  losses = _losses(compute_loss(targets, predictions), added.total())
  weighted = weighted_losses(losses, weights, added.total())
  scale = loss_scale(model)
  total = tf.reduce_sum(
      tf.cast(weighted, tf.float32) * scale if scale != 1 else weighted)
  # One backward pass gives the gradients with respect to all captured outputs of
  # vectorised layers, and to the outputs of all uses.
  by_operations = _ByOperations.found(model, batch, weighted, outputs)
  captured = [each for each in outputs if each.saved is not None]
  upstream = [each if each is None else unscaled(tf.convert_to_tensor(each), scale)
              for each in by_operations.taps.gradients(total, [
                  *(each.tensor for each in captured),
                  *(use.op.outputs[0] for use, _ in by_operations.ruled)])]
  forms_by_variable: dict[int, list[forms.GradientForm]] = {}
  for variable, form in itertools.chain(
      *(each.gradients(gradient, number) for each, gradient in zip(captured, upstream)),
      by_operations.gradients(upstream[len(captured):], number)):
    forms_by_variable.setdefault(id(variable), []).append(form)
  return PassResult(
      [forms.added(forms_by_variable[id(v)]) if id(v) in forms_by_variable else
       forms.Dense(tf.zeros([number, *v.shape], v.dtype), v.shape)
       for v in model.trainable_variables], predictions, losses, added.total(),
      [variable_reads.Answer(each.tensor, each.operations, models.trained_variables(
          each.layer)) for each in captured], by_operations.edges())


def _check_whole(outputs: Sequence[_Output], predictions: Sequence[tf.Tensor]) -> None:
  """Raises NoRule if a layer's output with rows left out is used or returned."""
  for each in outputs:
    if vectorized_layer.is_cut(each.tensor) and (each.tensor.consumers() or any(
        each.tensor is prediction for prediction in predictions)):
      raise uses_lib.NoRule.blaming(
          each.tensor.op.name,
          f'layer {each.layer.name!r} returns several rows for one example')


_Gradients = list[tuple[Any, forms.GradientForm]]
"""Variables of Keras with their gradients."""


class _Output(NamedTuple):
  """An output of a call of a `layer` that is vectorised for a `reason`."""

  tensor: tf.Tensor
  layer: keras.layers.Layer
  reason: str
  operations: frozenset[str] = frozenset()  # Names of operations that the call added.
  saved: Any = None  # For `vectorized_layer.gradients`; None if it has no gradients.

  def gradients(self, upstream: tf.Tensor | None, number: int) -> _Gradients:
    """Returns gradients for `number` examples, which may have several rows each."""
    several = self.tensor.shape[0] // number  # Rows of an example.
    if upstream is None:
      upstream = tf.zeros_like(self.tensor)
    with vectorized_layer.named(self.layer, self.reason):
      # The sum over an example's rows is wanted; `averaged` below takes their mean.
      of_rows = vectorized_layer.gradients(
          self.layer, self.saved, upstream * several if several > 1 else upstream)
    return [(variable, form.averaged(several) if several > 1 else form)
            for variable, form in of_rows]


class _ByOperations(NamedTuple):
  """The uses of weights outside of vectorised layers, with rules of operations."""

  variables: Sequence[keras.Variable]
  handles: dict[str, int]  # Indices of variables by the names of their handles.
  ruled: list[operations.Ruled]  # All uses.
  taps: loops.Taps  # The uses in loops.

  @classmethod
  def found(cls, model: keras.Model, batch: Batch, losses: tf.Tensor,
            outputs: Sequence[_Output]) -> _ByOperations:
    """Returns the uses in the losses of a batch; NoRule if one has no rule."""
    variables, number = model.trainable_variables, batch[2].shape[0]
    index = {variable_reads.identity(each): i for i, each in enumerate(variables)}
    handles = {name: index[each] for name, each in variable_reads.handles_in(
        losses.graph).items() if each in index}
    # (operation, variable) for the reads whose gradients vectorised layers give.
    answered = {(name, index.get(variable_reads.identity(variable)))
                for each in outputs if each.saved is not None
                for variable in models.trained_variables(each.layer)
                for name in each.operations}
    known = {each.name: dependence.ROW_WISE
             for each in tf.nest.flatten(batch, expand_composites=True)}
    # Tensors of an enclosing graph are assumed to hold no examples; the proof of the
    # pass shows whether they do.
    known.update((inside.name, dependence.CONSTANT) for outside, inside in
                 losses.graph.captures if tf.is_symbolic_tensor(outside))
    vectorized = {each.tensor.name: dependence.Value(
        dependence.Dependence.ROW_WISE, block=each.tensor.shape[0] // number)
                  for each in outputs}
    explained = lambda op, place: (op.name, place) in answered  # noqa: E731
    taps = loops.tapped(losses, handles, {**known, **vectorized}, number, explained)
    uses = uses_lib.found(
        losses, handles, [each.shape for each in variables], {**known, **taps.known},
        number, vectorized, explained, taps.outputs, taps.loops)
    return cls(variables, handles, operations.with_rules(uses), taps)

  def gradients(self, upstream: Sequence[Any], number: int) -> _Gradients:
    """Returns pairs of a variable and its gradients for `number` examples.

    A variable may have several pairs, which the caller adds, or none. `upstream` has
    the gradient of the losses with respect to the output of each use; None if none.
    """
    # `taps.operands` has operands of uses in loops, for all steps of a loop at once.
    return [(self.variables[index], form) for index, form in operations.of_variables(
        self.ruled, upstream, lambda tensor, layout: layout.apart(
            self.taps.operands.get(tensor.name, tensor), number),
        self.handles, [models.stored_dtype(each) for each in self.variables],
        [each.shape for each in self.variables])]

  def edges(self) -> list[variable_reads.Edge]:
    """Returns the inputs of operations, with weights, that rules give gradients of."""
    return [variable_reads.Edge(self.taps.path(use.op), use.edge, [
        self.variables[index] for index in use.variables]) for use, _ in self.ruled]


@contextlib.contextmanager
def _vectorizing(routes: Routes, number: int, outputs: list[_Output]) -> Iterator[None]:
  """Calls vectorised layers on single examples in the block; fills `outputs`."""
  # Inside such a layer, inner layers are called as they are: its gradient covers them.
  # So are layers inside loops, into which rules of operations look.
  graph = tf.compat.v1.get_default_graph()
  inside: list[keras.layers.Layer] = []

  def called(reason: str, layer: keras.layers.Layer, call: Callable[..., Any],
             *args: Any, **kwargs: Any) -> Any:
    """Runs `call`, the layer's own, on single examples; adds to `outputs`."""
    call = graphs.as_keras_calls(call)
    if inside or tf.compat.v1.get_default_graph() is not graph:
      return call(*args, **kwargs)
    if not args:  # Keras 3 passes named arguments on by name.
      name = next(name for name in inspect.signature(call).parameters if name in kwargs)
      args, call = (kwargs.pop(name),), functools.partial(_by_name, call, name)
    start = len(graph.get_operations())

    def capture(saved: Any, output: tf.Tensor) -> tf.Tensor:
      """Adds an output with `saved`, which its gradients need; returns the output.

      Raises NoRule unless all examples have equally many rows.
      """
      if output.shape[0] % number:
        raise uses_lib.NoRule.blaming(
            output.op.name,
            f'layer {layer.name!r} is not called on one row for each of {number} '
            f'examples: it returns shape {output.shape}')
      outputs.append(_Output(output, layer, reason, frozenset(
          op.name for op in graph.get_operations()[start:]), saved))
      return output

    inside.append(layer)
    with vectorized_layer.named(layer, reason):
      results = vectorized_layer.call(layer, call, capture, *args, **kwargs)
    inside.clear()
    outputs.extend(_Output(each, layer, reason) for each in tf.nest.flatten(results)
                   if tf.is_tensor(each))
    return results

  with contextlib.ExitStack() as stack:
    for route in routes.layers:
      if route.vectorized:
        stack.enter_context(layer_calls.called_by(
            functools.partial(called, route.reason), route.layer))
    yield


def _by_name(call: Callable[..., Any], name: str, first: Any, **kwargs: Any) -> Any:
  """Calls `call` with `first` as the argument of this `name`."""
  return call(**{name: first}, **kwargs)


def vectorized(model: keras.Model, compute_loss: LossFn, batch: Batch) -> PassResult:
  """Runs a pass on each example, vectorised; arguments as for `batched`.

  Examples cannot mix there. Raises ValueError if TensorFlow cannot vectorise the model.
  """
  scale = loss_scale(model)

  @graphs.without_autograph
  def one(example: Any) -> Any:
    """Returns gradients, predictions, masks, loss and added loss of one example."""
    (x, target, weight), seed = example
    variables = models.tf_variables(model)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(variables)
      with patches.drawing(model, random_bits.counting(seed)), (
          layer_calls.one_by_one(model)), recurrent.unrolled(model), (
              added_losses.of_one(model)) as added:
        prediction = model(_alone(x), training=True)
      total = added.total()
      extra = None if total is None else total[None]
      loss = _losses(compute_loss(_alone(target), prediction), extra)
      weighted = weighted_losses(loss, weight[None], extra)[0]
      if scale != 1:
        weighted = tf.cast(weighted, tf.float32) * scale
    gradients = [forms.of_example(each) for each in tape.gradient(
        weighted, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)]
    return ([{**each, 'values': unscaled(each['values'], scale)} for each in gradients],
            tf.nest.map_structure(lambda value: value[0], prediction),
            masks.of_one(prediction), loss[0], [] if extra is None else [extra[0]])

  seeds = random_bits.row_seeds(batch[2].shape[0])
  try:
    gradients, predictions, carried, losses, added = converters.vectorized_map(
        one, (batch, seeds))
  except vectorization.FAILURES as error:
    raise ValueError(vectorization.own_words(error) or (
        'Expected a model whose gradients can be vectorised over examples, since '
        f'all of it is, got {error}. Write it without tf.cond and tf.while_loop, or '
        'of layers whose weights nothing else uses (see privacy_summary()).')
                    ) from error
  return PassResult(
      [forms.of_examples(each, variable.shape) for each, variable in
       zip(gradients, model.trainable_variables)],
      masks.put_rows(predictions, carried), losses, added[0] if added else None)


def _alone(example: Any) -> Any:
  """Adds a batch axis of length one to the tensors of an example."""
  return tf.nest.map_structure(lambda value: value[None], example)
