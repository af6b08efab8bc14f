"""One private training step: checks, clips, sums and adds noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import functools
import math
from typing import Any

import tensorflow as tf

from tfcactus import _checks, arithmetic
from tfcactus.keras.checks import model_warnings, refused_models, state_writes
from tfcactus.keras.compat import losses, models, precision, recurrent
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.distribution import replicas
from tfcactus.keras.gradients import (
  clipping as clipping_lib,
  engine as engine_lib,
  layer_routes,
  local_steps,
  physical_batch,
  shadow,
)
from tfcactus.keras.noise import random_bits
from tfcactus.keras.step import canaries as canaries_lib, clip_norm, step_noise
from tfcactus.plan import PrivacyPlan


class Step:
  """A private training step: noisy averages of a model's clipped per-example gradients.

  Attributes:
    rows: Physical batch size; None until `check`, unless given.
    engine: 'auto' or 'vectorized'.
    clipping: 'flat', 'per_layer' or 'automatic'.
    views: Number of passes of each example through the model.
    local: The `LocalSteps` that each unit, such as a user, takes; or None.
    canaries: The `Canaries` of an audit, or None.
    norm: The `ClipNorm`.
    seeded: Whether the noise repeats.
    split_noise: Whether each worker adds a share of the noise.
    given_randomness: 'auto', 'host' or 'device'.
    randomness: 'host' or 'device', where the noise is made; None until `check`.
    excess: Upper bound on what an example changes a sum by beyond one clipping norm, as
      sums are rounded; in clipping norms, over the steps traced so far. 0 where the
      clipping margin covers rounding.
    condition: Condition of the guarantee if noise is split, a sentence or ''.
    outputs: `TensorSpec`s of the model's outputs; None until `check`.
  """

  def __init__(self, model: keras.Model, plan: PrivacyPlan, seed: int | None,
               rows: int | None, engine: str, clipping: str, views: int = 1,
               split_noise: bool = False,
               local: local_steps.LocalSteps | None = None,
               audit: canaries_lib.Audit | None = None, randomness: str = 'auto'):
    """Initialises the step; arguments as for `PrivateModel`."""
    refused_models.check_own_training(model)
    self._model = model
    self._plan = plan
    self._replicas = replicas.number()
    self._given_rows = self.rows = None if rows is None else (
        _checks.integer('physical_batch_size', rows, 1))
    # The routes that the last `run` proved right.
    self._settled: layer_routes.Routes | None = None
    self.clipping = clipping_lib.check_kind(clipping)
    if engine not in ('auto', 'vectorized'):
      raise ValueError(
          f"Expected engine 'auto' or 'vectorized', got engine={engine!r}.")
    self.engine = engine
    self.views = _checks.integer('augmentation_multiplicity', views, 1)
    if plan.adaptive_clipping is not None and clipping != 'flat':
      raise ValueError(
          "Expected clipping='flat' with a plan of adaptive_clipping, whose "
          f'count is that of whole gradients, got clipping={clipping!r}.')
    self.local = local
    self._check_local()
    self._tested_places: dict[str, int] | None = None
    if plan.arithmetic == 'integer':
      replicas.check_alike()
      self._tested_places = {}
    self.canaries = canaries_lib.of_run(
        audit, plan, clipping=clipping, seed=seed,
        local_steps=None if local is None else local.number, replicas=self._replicas)
    self.norm = clip_norm.ClipNorm(plan)
    self.split_noise = _checks.flag('split_noise', split_noise)
    self._sampler = (step_noise.share_sampler if split_noise else step_noise.sampler)(
        plan, seed, randomness)
    self.given_randomness = randomness
    self.randomness: str | None = None
    self.condition = step_noise.condition(plan) if split_noise else ''
    self.seeded = self._sampler.seeded
    self._keys = random_bits.Keys(seed)
    self.outputs: Any = None
    self.excess = 0.0
    self._each = 1  # Rows of an example: more for units, from the first `run` on.

  def routes(self) -> layer_routes.Routes:
    """Returns how each layer of the model, as it is now, computes gradients.

    These are the routes that the last `run` proved right, while they hold.
    """
    if self._settled is not None and self._settled.holds_for(self._model):
      return self._settled
    routes = layer_routes.routes(
        self._model, self.engine == 'vectorized' or self.local is not None)
    if self._plan.arithmetic == 'integer':  # No Gram norms: they round more.
      return routes._replace(drawn=math.inf)
    mean, deviation = self._drawn()
    return routes._replace(
        lean=physical_batch.is_lean(
            self._model, routes, self._given_rows or mean / self._replicas,
            self.views * self._each),
        drawn=mean + 8 * deviation)  # docs/soundness_numbers.md, point 5.

  def _drawn(self, shares: int = 1) -> tuple[float, float]:
    """Returns mean and standard deviation of the size of a Poisson draw.

    With several `shares`, both are of the size of one of them.
    """
    mean = self._plan.expected_batch_size / shares
    return mean, math.sqrt(mean * (1 - self._plan.sampling_prob))

  @contextlib.contextmanager
  def in_fit(self) -> Iterator[None]:
    """Frees noise that is drawn ahead, unless it is seeded, when a `fit` ends.

    TensorFlow would keep it in memory with the sampler.
    """
    try:
      yield
    finally:
      self._sampler.drop_ahead()

  def compiled(self) -> None:
    """Forgets which passes `place_test` tested: `compile` may bring another loss."""
    if self._tested_places is not None:
      self._tested_places.clear()

  def check(self) -> None:
    """Checks the built model and sets `rows`, `outputs` and `randomness`.

    Raises ValueError if the model is refused. The first call checks that the model
    writes no variables; later, the engine checks each trace.
    """
    refused_models.check_layers(self._model, half=True, losses=True)
    precision.check_graphs_are_as_written()
    if self.outputs is None:
      with recurrent.as_loops(self._model):  # As the step runs them.
        graph = state_writes.check_no_writes(self._model, gradients=False)
      self.outputs = tf.nest.map_structure(_spec, graph.structured_outputs[0])
      if self.local is None:  # In local steps, rows of a unit may mix.
        model_warnings.warn_of_batch_statistics(self._model, graph)
    self._check_vector()
    self.rows = self._physical_rows(self.routes())

  def _physical_rows(self, routes: layer_routes.Routes) -> int:
    """Returns the size of the physical batch: the given one, or what memory allows.

    Raises ValueError if integer arithmetic does not cover the roundings of its sums.
    """
    rows = self._given_rows or physical_batch.physical_rows(
        *self._drawn(self._replicas), self._model, routes, self.views * self._each)
    if self._plan.arithmetic == 'integer':
      clipping_lib.check_roundings(
          self._plan.num_examples + self._canaries(), rows, self._plan.groups)
    return rows

  def _canaries(self) -> int:
    """Returns the number of canaries."""
    return 0 if self.canaries is None else self.canaries.count

  def _check_local(self) -> None:
    """Raises ValueError if local steps are asked for with settings they exclude."""
    if self.local is None:
      return
    if self._plan.unit == 'example':
      raise ValueError(
          "Expected a plan of a unit with local_steps, such as unit='user', got "
          "unit='example'; plan by PrivacyPlan.for_training(unit='user', "
          'num_units=...).')
    if self.views > 1 or self._replicas > 1:
      raise ValueError(
          'Expected one replica and augmentation_multiplicity=1 with local_steps, '
          f'which move the weights for one unit at a time, got {self._replicas} '
          f'replicas and augmentation_multiplicity={self.views}.')
    if self._plan.noisy_accuracy is not None:
      raise ValueError(
          'Expected a plan without noisy_accuracy with local_steps, in which rows of '
          'several units may mix in the outputs, so that no bound on what one adds to '
          f'the count is proved, got {self._plan.noisy_accuracy!r}.')

  def _check_vector(self, beside: Sequence[tf.Tensor] = ()) -> None:
    """Raises ValueError unless noise protects the gradient; sets `randomness`.

    `beside` has the tensors that are released with the gradient, such as a count.
    """
    dim = sum(math.prod(v.shape) for v in self._model.trainable_variables)
    if dim == 0:
      raise ValueError('Expected a model with trainable variables, got '
                       f'{self._model.name!r} with none.')
    self._plan.check_vector(dim)
    arithmetic.check_step(
        self._plan, dim, self._replicas, shadow.LAYERS * self._canaries(),
        replicas.workers() if self.split_noise else 1)
    size = dim + sum(math.prod(part.shape) for part in beside)
    self.randomness = 'device' if self._sampler.on_device(size) else 'host'

  def shaped(self, x: Any, y: Any) -> Any:
    """Checks a batch while the step is traced, and returns `x`.

    Data from generators have no static shape: for a built model of one input, `x` gets
    the shape of that input. Raises ValueError if tensors are not dense, or came with
    unknown rank.
    """
    given = tf.nest.flatten(x if y is None else (x, y))
    for each in given:
      if not isinstance(each, tf.Tensor):
        raise ValueError(
            'Expected inputs and targets as dense tensors, in which each row is an '
            f'example, got {type(each).__name__}; make ragged and sparse ones '
            'dense before: to_tensor(), tf.sparse.to_dense().')
    shape = getattr(self._model, 'input_shape', None) if self._model.built else None
    if tf.is_tensor(x) and isinstance(shape, tuple):
      # Without the batch size, which a Sequential remembers from its first input.
      x = tf.ensure_shape(_of_rank(x, shape), (None,) + shape[1:])
    if any(each.shape.rank is None for each in given):
      raise ValueError(
          'Expected inputs and targets of known rank, got unknown shapes; call '
          'compile() again before data of another shape, and give generators '
          'an output_signature.')
    return x

  def run(self, x: Any, y: Any, weights: tf.Tensor,
          compute_loss: Any, place: tf.Tensor, each: int = 1,
          numbers: tf.Tensor | None = None
         ) -> tuple[list[tf.Tensor], engine_lib.BatchResult, tf.Tensor]:
    """Returns (noisy averages to apply, `BatchResult` without noise, weight penalty).

    There is one average for each trainable variable: the noisy sum divided by the
    plan's expected batch size, plus the penalty's gradient. `weights`, sample weights,
    have shape (batch,) or the shape of the losses, and are zero for padding. `place`
    has the four numbers of the batch's `Place`. `each` consecutive rows make up an
    example: more than one where examples are units, such as users. `numbers` has the
    canary of each row, as for `Engine.run`; None for none. `compute_loss` is a
    `LossFn`; `OutputLosses` if the plan has a noisy accuracy. Sets `rows`, `excess`,
    `randomness` and the routes that are proved right.
    """
    self._settled = None  # The model may have been compiled with another loss.
    self._each = each = _known(each)
    routes = self.routes()
    engine = engine_lib.Engine(
        self._model, compute_loss, self._physical_rows(routes), routes, self.clipping,
        self._keys, self._physical_rows, self.outputs, self.views, each, self.local,
        self._canaries(), self._tested_places,
        self._plan.noisy_accuracy is not None)
    if self.canaries is None:
      numbers = None  # The batches may serve the audit of another model.
    elif numbers is None:
      numbers = tf.zeros(tf.shape(weights)[:1], tf.int64)
    batch = engine.run(x, y, weights, self.norm.value(), numbers)
    self.rows = engine.rows
    self._settled = engine.routes
    if self._plan.arithmetic != 'integer':  # There, `_physical_rows` checks roundings.
      self.excess = max(self.excess, clipping_lib.excess(
          engine.routes.drawn, engine.rows,
          max(engine.routes.by_gram.values(), default=0)))
    if self._tested_places and replicas.workers() > 1:  # Workers need equal bits.
      batch = batch._replace(sums=replicas.if_same(
          sum(self._tested_places.values()) % 2**63, batch.sums))
    release, scale = self.norm.to_release(batch, compute_loss, each)
    # Further sums are along shadow weights, or counts that the plan releases too.
    own = len(self._model.trainable_variables)
    self._check_vector(release[own:])
    like = [*self._model.trainable_variables, *release[own:]]
    sums = self.norm.update_from(self._noisy(release, scale, place, like))
    averages = [total / self._plan.expected_batch_size for total in sums]
    if self.canaries is not None:
      self.canaries.keep(averages[own:], numbers, place)
    penalty, gradients = _weight_penalty(self._model)
    # `gradients` has one entry per variable: averages along shadow weights end here.
    return [average if gradient is None else average + tf.cast(gradient, average.dtype)
            for average, gradient in zip(averages, gradients)], batch, penalty

  def _noisy(self, release: list[tf.Tensor], scale: tf.Tensor, place: tf.Tensor,
             like: Sequence[Any]) -> list[tf.Tensor]:
    """Returns the noisy sums over all replicas, in the dtypes of `like`."""
    # One replica (of each worker, if noise is split) adds noise before replicas sum.
    # The total is rounded to a public grid, set by the sensitivity and the noise.
    if replicas.is_first(of_worker=self.split_noise):
      release = self._sampler.add_to(release, scale, place, (
          [each.dtype for each in like] if replicas.number() == 1 else None))
    else:
      release = self._sampler.without_noise(release, scale)
    return replicas.summed(
        release, like, functools.partial(self._sampler.total, scale=scale))


def _known(each: int | None) -> int:
  """Returns the number of rows of a unit; ValueError if TensorFlow lets it vary."""
  if each is None:
    raise ValueError(
        'Expected batches of one examples_per_unit for each compile(), got others '
        'before; call compile() again before batches of another.')
  return each


def _of_rank(x: tf.Tensor, shape: tuple[int | None, ...]) -> tf.Tensor:
  """Returns `x` with a last axis of size 1 added or removed to fit `shape`."""
  if x.shape.rank == len(shape) - 1 and shape[-1] == 1:
    return x[..., None]
  if x.shape.rank == len(shape) + 1 and x.shape[-1] == 1:
    return x[..., 0]
  return x


def _spec(output: Any) -> Any:
  """Returns an output's TensorSpec; ValueError if not dense or without batch axis."""
  if not isinstance(output, tf.Tensor) or output.shape.rank == 0:
    raise ValueError(
        'Expected a model whose outputs have a row for each example, got '
        f'{output!r} among them; return it in shape (batch, ...).')
  return tf.TensorSpec(output.shape, output.dtype)


def _weight_penalty(model: keras.Model) -> tuple[tf.Tensor, list[tf.Tensor | None]]:
  """Returns the sum of weight regularizers, and its gradient or None per variable."""
  # A regularizer is a function of weights that are already released, so its gradient
  # reveals nothing about the data and needs neither clipping nor noise.
  if not losses.weight_penalties(model):
    return tf.zeros([]), [None] * len(model.trainable_variables)
  _check_penalties(model)
  variables = models.tf_variables(model)
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(variables)
    total = _total_penalty(model)
  return total, [None if each is None else tf.convert_to_tensor(each)
                 for each in tape.gradient(total, variables)]


def _total_penalty(model: keras.Model) -> tf.Tensor:
  """Returns the sum of a model's weight regularizers, in at least float32."""
  penalties = list(map(tf.convert_to_tensor, losses.weight_penalties(model)))
  return tf.add_n([tf.reduce_sum(each) for each in precision.alike(penalties)])


@tf.autograph.experimental.do_not_convert
def _check_penalties(model: keras.Model) -> None:
  """Raises ValueError unless penalties depend on nothing but the model's weights."""
  # Constants that a regularizer holds are taken as public.
  with tf.init_scope():
    graph = tf.function(lambda: _total_penalty(model), autograph=False
                       ).get_concrete_function().graph
  state_writes.check_graph(graph, 'regularizers', model)
