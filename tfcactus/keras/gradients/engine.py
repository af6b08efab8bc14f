"""Engine that sums clipped per-example gradients over physical batches."""

from __future__ import annotations

import itertools
import operator
from typing import Any, Callable, NamedTuple

import tensorflow as tf

from tfcactus.keras.checks import (
  example_losses,
  pass_proof,
  state_writes,
  variable_reads,
)
from tfcactus.keras.checks.example_losses import LossFn
from tfcactus.keras.compat import masks, patches
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import (
  added_losses,
  batched_pass,
  clipping as clipping_lib,
  forms,
  layer_routes,
  local_steps as local_steps_lib,
  place_test,
  shadow,
)
from tfcactus.keras.gradients.operations import uses
from tfcactus.keras.noise import random_bits


class BatchResult(NamedTuple):
  """Sums, predictions and losses of one logical batch, padding included.

  Predictions and losses are cast to Keras' `floatx`.

  Attributes:
    sums: float64 sums of clipped gradients, in the shape of each variable, then of the
      shadow weights of canaries, if there are any.
    unclipped: float64 scalar, the second result of `clipping.clip_and_sum`.
    predictions: The model's outputs, tensors of shape (rows, ...); `rows` is the size
      of the logical batch with its padding.
    masks: Boolean masks of the predictions in the order of `tf.nest`, None for a
      prediction without a mask.
    losses: Shape (rows,) or (rows, outputs), not weighted.
    added: Losses that layers added, shape (rows,); zeros if there are none.
    targets: The targets that `run` was given, tensors of shape (rows, ...).
    weights: Sample weights, shape (rows,) or (rows, outputs), zero for padding.
  """

  sums: list[tf.Tensor]
  unclipped: tf.Tensor
  predictions: Any
  masks: list[tf.Tensor | None]
  losses: tf.Tensor
  added: tf.Tensor
  targets: Any
  weights: tf.Tensor


class Engine:
  """Sums clipped per-example gradients over physical batches (gradient accumulation).

  Every physical batch has the same shape whatever was drawn, so that an example's
  gradient does not depend on how many other examples were drawn.

  Attributes:
    rows: Size of a physical batch, in examples; `run` may change it with the routes.
    routes: How each layer is run; known to be right once `run` was traced.
  """

  def __init__(self, model: keras.Model, compute_loss: LossFn, rows: int,
               routes: layer_routes.Routes, clipping: str = 'flat',
               keys: random_bits.Keys | None = None,
               rows_by: Callable[[layer_routes.Routes], int] | None = None,
               outputs: Any = None, views: int = 1, each: int = 1,
               local: local_steps_lib.LocalSteps | None = None, canaries: int = 0,
               tested_places: dict[str, int] | None = None, answers: bool = False):
    """Initialises the engine of a built model.

    `compute_loss` maps targets and predictions to losses, as `OutputLosses` does.
    `routes` are replaced until the pass is proved to treat each example alone, or the
    whole model is vectorised; `rows_by` returns `rows` for new ones (None: it stays).
    `clipping` is one of `clipping.KINDS`. `keys` seed the model's random draws (None:
    fresh system entropy). `outputs` has the structure of the model's outputs (None: one
    tensor). Each example goes through the model `views` times with different draws, and
    the mean of these gradients is clipped (augmentation multiplicity). `each`
    consecutive rows make up an example: more than one where examples are units, such as
    users. Clipped is the mean gradient of its rows of nonzero weight, or the difference
    that `local` steps make to the weights. `canaries` is the number of canaries.
    `tested_places` has the results of `place_test` by keys of passes; `run` adds others
    (None: no test). `answers` asks to test outputs too, as the caller counts answers.
    """
    self._answers = answers
    self._canaries = canaries
    self._tested_places = tested_places
    self._local = local
    self._views = views
    self._rows_each = each
    self._outputs = outputs
    # Which outputs may carry masks, and whether layers may add losses. For a vectorised
    # model both are known only once `_run` has traced its loop.
    self._masked = [True] * len(tf.nest.flatten(outputs))
    self._adds = True
    # The last batched pass that was traced for a proof, and the proved pass. The latter
    # is None if the trace serves the proof only and cannot run.
    self._result: batched_pass.PassResult
    self._proved: Callable[[batched_pass.Batch], batched_pass.PassResult] | None = None
    self._keys = keys or random_bits.Keys(None)
    self._model = model
    self._given_loss = compute_loss
    self.rows = rows
    self._rows_by = rows_by or (lambda _: rows)
    self.routes = routes
    self._clipping = clipping

  def run(self, x: Any, targets: Any, weights: tf.Tensor,
          l2_norm_clip: tf.Tensor, numbers: tf.Tensor | None = None) -> BatchResult:
    """Processes one logical batch of any size, zero included.

    Rows of the result are padded to a multiple of the physical batch, one at least.
    Raises ValueError if the pass changes variables, if the model cannot be vectorised
    where it has to be, or if the test of `tested_places` fails.

    `x` and `targets` are structures of tensors, (batch, ...). `weights`, (batch,) or
    (batch, outputs), multiply losses. An example whose weights are all zero adds
    exactly zero, whatever its losses are. `l2_norm_clip` bounds the norm of each
    example's gradient. `numbers`, int64 of shape (batch,), has the canary of each row,
    counted from one, or zero for other rows; None without canaries.
    """
    # Rules of operations need a graph. An eager step is traced anyway, for its proof.
    run = tf.function(self._run, autograph=False) if tf.executing_eagerly() else (
        self._run)
    with example_losses.caching_proofs(self._model):
      return run(x, targets, weights, l2_norm_clip, numbers)

  def _run(self, x: Any, targets: Any, weights: tf.Tensor,
           l2_norm_clip: tf.Tensor, numbers: tf.Tensor | None) -> BatchResult:
    """Implements `run`: loops over the physical batches in a `tf.while_loop`."""
    self._settle((x, targets, weights))
    if self._tested_places is not None:
      self._test_places((x, targets, weights), self._tested_places)
    given, size = tf.shape(weights)[0], self.rows * self._rows_each
    batches = tf.maximum((given + size - 1) // size, 1)
    x, targets, weights, numbers = tf.nest.map_structure(
        lambda t: None if t is None else tf.pad(
            t, [[0, batches * size - given]] + [[0, 0]] * (t.shape.rank - 1)),
        (x, targets, weights, numbers))
    # Predictions, masks, losses and added losses. Absent masks and added losses get no
    # arrays: a loop with fewer arrays is faster.
    structure = (self._outputs, self._masked, True, self._adds)
    exists = [True] * len(self._masked) + tf.nest.flatten(structure[1:])
    arrays = [tf.TensorArray(keras.backend.floatx(), batches) for one in exists if one]
    zeros = [tf.zeros(shape, tf.float64) for shape in (
        *(v.shape for v in self._model.trainable_variables),
        *(shadow.shapes(self._canaries) if self._canaries else ()))]

    def body(index: tf.Tensor, sums: list[tf.Tensor], unclipped: tf.Tensor,
             *arrays: tf.TensorArray) -> Any:
      """Adds physical batch `index` to the sums; writes its other results to arrays."""
      *batch, own_numbers = tf.nest.map_structure(
          lambda t: None if t is None else self._physical(t, index),
          (x, targets, weights, numbers))
      (more, more_unclipped), values = self._physical_batch(
          tuple(batch), l2_norm_clip, own_numbers)
      return (index + 1, [a + b for a, b in zip(sums, more)],
              unclipped + more_unclipped,
              *(array.write(index, value) for array, value in zip(
                  arrays, itertools.compress(values, exists))))

    _, sums, unclipped, *arrays = tf.while_loop(
        lambda index, *_: index < batches, body,
        (0, zeros, tf.zeros([], tf.float64), *arrays), parallel_iterations=1)
    results = iter([array.concat() for array in arrays])
    predictions, masked, losses, added = tf.nest.pack_sequence_as(
        structure, [next(results) if one else None for one in exists])
    if added is None:
      added = tf.zeros(tf.shape(losses)[:1], losses.dtype)
    return BatchResult(
        sums, unclipped, predictions,
        [tf.cast(mask, tf.bool) if carries else None
         for mask, carries in zip(masked, self._masked)],
        losses, added, targets, weights)

  @tf.autograph.experimental.do_not_convert
  def _settle(self, batch: batched_pass.Batch) -> None:
    """Vectorises layers until the pass is proved, or else the whole model.

    Raises ValueError if the pass writes variables.
    """
    while not self.routes.whole:
      failed = self._failure(batch)
      if failed is None:
        return
      self.routes = layer_routes.after_failure(self._model, self.routes, *failed)
      self.rows = self._rows_by(self.routes)
      # The new routes are traced anew, and their outputs may carry masks again.
      self._masked, self._adds = [True] * len(self._masked), True
    state_writes.check_no_writes(self._model)

  def _failure(self, batch: batched_pass.Batch) -> tuple[Any, ...] | None:
    """Returns None if the pass is proved right, else (reason, layers to vectorise).

    Keeps a proved pass that can run as `_proved`; ValueError if it writes variables.
    """
    specs = self._specs(batch, self._views)
    try:
      traced = pass_proof.trace(self._model, self._traced, specs)
      found = pass_proof.unproved(self._model, traced)
    except Exception as error:  # pylint: disable=broad-except
      # An error that is not due to these routes recurs under the next ones.
      cause: BaseException | None = error
      while cause is not None:
        if isinstance(cause, uses.NoRule):
          return self._without_rule(cause)
        if isinstance(cause, added_losses.NotOneEach):
          return str(cause), [layer_routes.adder_of(self.routes, cause.layer)]
        cause = cause.__context__  # Keras wraps errors in others.
      return f'{type(error).__name__}: {error}', []
    if found is None:
      pass_proof.check_no_writes(self._model, traced)
      function, result = traced.function, self._result
      self._proved = None if function is None else (
          lambda batch: result.of(function(batch)))
      return None
    return found.reason, [layer_routes.layer_of(
        self.routes, found.operation, found.variable)]

  def _specs(self, batch: batched_pass.Batch, views: int = 1) -> batched_pass.Batch:
    """Returns the `TensorSpec`s of a physical batch, each row repeated per view."""
    return tf.nest.map_structure(lambda t: tf.TensorSpec(
        [self.rows * self._rows_each * views] + t.shape[1:], t.dtype), batch)

  @tf.autograph.experimental.do_not_convert
  def _test_places(self, batch: batched_pass.Batch, tested: dict[str, int]) -> None:
    """Tests the pass by `place_test.check`, unless it is in `tested`; adds the result.

    Raises ValueError if gradients on random data depend on places in the batch.
    """
    specs = self._specs(batch)
    # Passes on equal shapes differ if other rows make up an example, other weights are
    # trained, or other layers are vectorised.
    key = f'{specs} {self._rows_each} {self.routes.trained} {self.routes.summary()}'
    if key not in tested:
      tested[key] = place_test.check(
          self._model, self._numbers_of_rows, specs, self._rows_each)

  def _numbers_of_rows(self, batch: batched_pass.Batch) -> list[tf.Tensor]:
    """Returns all numbers that sums and counts of answers use, one row per example."""
    found = self._pass(batch)
    outputs = tf.nest.flatten(found.predictions) if self._answers else []
    return [*clipping_lib.numbers_of_rows(
        found.gradients, self._clipping, self.routes.groups),
            *(tf.reshape(tf.cast(each, keras.backend.floatx()), [self.rows, -1])
              for each in outputs)]

  def _without_rule(self, told: uses.NoRule) -> tuple[Any, ...]:
    """Returns (reason, layers), as `layer_routes.after_failure` takes them.

    None stands for an unknown layer. If that uses a known weight, the reason names the
    weight, and no layers are returned.
    """
    variables, layers = self._model.trainable_variables, []
    for name, index in told.uses:
      variable = None if index is None else variables[index]
      layers.append(layer_routes.layer_of(self.routes, name, variable))
      if layers[-1] is None and variable is not None:
        return str(variable_reads.Unexplained(variable, name)), []
    return str(told), layers

  def _physical(self, rows: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """Returns the part of `rows` that is physical batch number `index`."""
    size = self.rows * self._rows_each
    chosen = rows[index * size:(index + 1) * size]
    return tf.ensure_shape(chosen, [size] + chosen.shape[1:])

  def _physical_batch(self, batch: batched_pass.Batch, l2_norm_clip: tf.Tensor,
                      numbers: tf.Tensor | None = None) -> Any:
    """Returns the results of `clip_and_sum`, and a list of other results in `floatx`.

    The other results are predictions, masks, losses and added losses, or zeros for
    absent ones. With `numbers`, as of `run`, the sums along shadow weights come last.
    """
    with patches.drawing(self._model, self._keys):
      found = self._pass(batch)
    clipping_lib.check_dtypes(self._model.trainable_variables)
    takes_part, scales = self._taking_part(batch[2])
    sums, unclipped = clipping_lib.clip_and_sum(
        found.gradients, l2_norm_clip, takes_part, self._clipping, self.routes.groups,
        scales)
    if numbers is not None:
      # Apart: a canary must add nothing along the model's weights, not even NaN.
      numbers = numbers[::self._rows_each]  # All rows of an example have its number.
      along_shadow, _ = clipping_lib.clip_and_sum(
          shadow.gradients(numbers, self._canaries, l2_norm_clip), l2_norm_clip,
          numbers > 0, self._clipping, shadow.GROUPS)
      sums = [*sums, *along_shadow]
    nothing = tf.zeros([self.rows * self._rows_each])
    expected = [*self._masked, self._adds]
    self._look(found)
    assert all(map(operator.ge, expected, [*self._masked, self._adds])), (
        'Masks or added losses that the analysed pass did not have.')
    return (sums, unclipped), [
        tf.cast(nothing if value is None else value, keras.backend.floatx())
        for value in tf.nest.flatten((found.predictions, masks.of_all(
            found.predictions), found.losses, found.added))]

  def _compute_loss(self, targets: Any, predictions: Any) -> tf.Tensor | None:
    """Returns the losses, or None if the model was compiled without a loss.

    Raises ValueError if predictions do not have the structure of the known outputs.
    """
    try:
      tf.nest.assert_same_structure(self._outputs, predictions, check_types=False)
    except (TypeError, ValueError):
      raise ValueError(
          'Expected outputs in the structure that the model returned when it was '
          f'built, {_shown(self._outputs)}, got {_shown(predictions)}; have call() '
          'return one structure, and compile() the model again if it changed.'
          ) from None
    return self._given_loss(targets, predictions)

  def _look(self, found: batched_pass.PassResult) -> None:
    """Sets `_masked` and `_adds` to what this pass has."""
    self._masked = [mask is not None for mask in masks.of_all(found.predictions)]
    self._adds = found.added is not None

  def _viewed(self, rows: tf.Tensor) -> tf.Tensor:
    """Repeats each row once per view; the views of a row are neighbours."""
    if self._views == 1:
      return rows
    return tf.ensure_shape(tf.repeat(rows, self._views, 0), [
        rows.shape[0] * self._views] + rows.shape[1:])

  def _taking_part(self, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Returns which examples take part, and factors of gradients (None for ones)."""
    rows = batched_pass.takes_part(weights)
    if self._rows_each == 1:
      return rows, None
    # The factors turn means over all rows of an example into means over its rows of
    # nonzero weight. Local steps take such means themselves.
    count = tf.reduce_sum(
        tf.cast(tf.reshape(rows, [self.rows, self._rows_each]), tf.float64), 1)
    return count > 0, None if self._local else self._rows_each / tf.maximum(count, 1)

  def _pass(self, batch: batched_pass.Batch) -> batched_pass.PassResult:
    """Returns the results of a physical batch, by local steps or the current routes."""
    if self._local is not None:
      return self._local.run(self._model, self._compute_loss, batch, self._rows_each)
    viewed = tf.nest.map_structure(self._viewed, batch)
    return self._averaged(
        batched_pass.vectorized(self._model, self._compute_loss, viewed)
        if self.routes.whole else self._batched(viewed),
        batched_pass.takes_part(viewed[2]))

  def _averaged(self, found: batched_pass.PassResult, takes_part: tf.Tensor
               ) -> batched_pass.PassResult:
    """Averages gradients over an example's rows and views, and losses over views.

    Keeps predictions of first views. Sets `by_gram` of the routes.
    """
    views, gradients = self._views, found.gradients
    if self._rows_each > 1:
      gradients = [forms.averaged(form, views * self._rows_each, takes_part)
                   for form in gradients]
    elif views > 1:
      gradients = [form.averaged(views) for form in gradients]
    most = clipping_lib.most_positions(self.routes.drawn, self.rows)
    gradients = [forms.held(form, self.routes.lean, most) for form in gradients]
    found = found._replace(gradients=gradients)
    self.routes = self.routes._replace(by_gram={
        id(variable): forms.gram_positions(form) for variable, form in zip(
            self._model.trainable_variables, gradients) if forms.gram_positions(form)})
    if views == 1:
      return found
    predictions = tf.nest.map_structure(lambda part: part[::views], found.predictions)
    masks.put_all(predictions, [None if mask is None else mask[::views]
                                for mask in masks.of_all(found.predictions)])
    losses, added = (each if each is None else tf.reduce_mean(tf.reshape(
        each, [-1, views, *each.shape[1:]]), 1) for each in (found.losses, found.added))
    return found._replace(predictions=predictions, losses=losses, added=added)

  def _batched(self, batch: batched_pass.Batch) -> batched_pass.PassResult:
    """Runs the proved trace over a physical batch, or else a pass by current routes."""
    try:
      return self._proved(batch) if self._proved else batched_pass.batched(
          self._model, self.routes, self._compute_loss, batch)
    except uses.NoRule as error:
      # The proof followed stand-ins for vectorised code.
      raise ValueError(
          f'Expected layers that TensorFlow vectorises as it was proved, got {error}. '
          "Pass engine='vectorized' to privatize().") from error

  def _traced(self, batch: batched_pass.Batch) -> pass_proof.Pass:
    """Runs a batched pass and keeps it as `_result`; returns what the proof follows."""
    self._result = found = batched_pass.batched(
        self._model, self.routes, self._compute_loss, batch)
    self._look(found)
    losses = [found.losses] + ([] if found.added is None else [found.added])
    return pass_proof.Pass(
        found.rows(), losses, found.answers, found.edges, found.masks())


def _shown(structure: Any) -> str:
  """Returns the text of a structure, with ... for each tensor."""
  return str(tf.nest.map_structure(lambda _: '...', structure)).replace("'...'", '...')
