"""A Keras model whose `fit` trains by DP-SGD."""

from __future__ import annotations

import contextlib
from typing import Any
from typing import Dict
from typing import Iterator
from typing import Optional

import numpy as np
import tensorflow as tf

from tfcactus import _checks
from tfcactus.keras import _checked
from tfcactus.keras import _clip
from tfcactus.keras import _engine
from tfcactus.keras import _history
from tfcactus.keras import _layers
from tfcactus.keras import _routes
from tfcactus.keras import optimizer as optimizer_lib
from tfcactus.keras import sampling
from tfcactus.keras._compat import keras
from tfcactus.keras.batches import PoissonBatches
from tfcactus.keras.journal import Entry
from tfcactus.keras.journal import Journal
from tfcactus.keras.query import TableNoiseQuery
from tfcactus.keras.sampling import Sampling


class PrivateModel(keras.Model):
  """Trains `model` privately; evaluates and predicts as `model` does.

  Compile it with any Keras optimizer and any loss per example, and fit it on
  `PoissonBatches`. Each step clips each example's whole gradient, sums, adds
  noise once, and divides by the plan's expected batch size. An example whose
  gradient is not finite contributes exactly zero.

  The loss and the metrics that `fit` logs are computed on the training data
  without noise: epsilon covers the weights, not those logs.

  `released_steps`, `epochs_begun`, `sampling` and `plan_number` are saved with
  the weights. Setting or loading weights never lowers them, since what was
  released stays released; the weights of the model alone are
  `private_model.inner`'s. Private models of one inner model share the counters.

  Epsilon is for what this model releases, from the weights it was given. If
  those were trained on the same data before, or if weights change between calls
  of `fit` other than by methods of this model, there is none: the second is
  noticed once a `fit` has ended, the first cannot be.

  Attributes:
    inner: The wrapped model, sharing its variables.
    plan: The `PrivacyPlan`.
    physical_batch_size: How many examples are processed at once; None until
      the model is built, if it was not given.
    released_steps: int64 variable, how many noisy updates were released.
    epochs_begun: int64 variable, passes over arrays given to `fit`.
    sampling: int64 variable, a `Sampling`.
    plan_number: int64 variable, which plan the steps were released under.
    seeded: Whether the noise repeats; see `NoiseSampler`.
    seeded_batches: Whether any batches came from a seed.
    clipping: 'flat', 'per_layer' or 'automatic'.
  """

  def __init__(self, model: keras.Model, plan: Any,
               seed: Optional[int] = None,
               physical_batch_size: Optional[int] = None,
               engine: str = 'auto', journal: Any = None,
               clipping: str = 'flat', name: Optional[str] = None):
    """Initialises the model.

    Args:
      model: A Sequential or functional model of one output.
      plan: A `PrivacyPlan`.
      seed: For repeatable experiments; None takes the system's entropy.
      physical_batch_size: Larger draws are processed in parts of this size;
        by default it holds most draws, as far as memory allows.
      engine: 'auto', or 'vectorized' to take no shortcut for any layer.
    journal: Path of a file that counts steps before they are released, so that
      a killed run can be resumed; see `Journal`.
    clipping: 'flat': each example's whole gradient at the plan's clip norm C.
      'per_layer': each of L layers' at C / sqrt(L). 'automatic': normalised to
      C whether longer or shorter. Each bounds an example's part in the sum by
      C, and costs the same.
      journal: Path of a file that counts steps before they are released, so
        that a killed run can be resumed; see `Journal`.
      clipping: 'flat': each example's whole gradient at the plan's clip norm C.
        'per_layer': each of L layers' at C / sqrt(L). 'automatic': normalised to
        C whether longer or shorter. Each bounds an example's part in the sum by
        C, and costs the same.
      name: A name.

    Raises:
      ValueError: if the model cannot be trained privately, or the plan's noise
        is not valid for its number of parameters.
    """
    if not isinstance(model, keras.Model) or isinstance(model, PrivateModel):
      raise ValueError(
          'Expected model to be a Keras model that is not private yet, got '
          f'{model!r}.')
    if not hasattr(plan, 'check_vector'):
      raise ValueError(f'Expected plan to be a PrivacyPlan, got {plan!r}.')
    super().__init__(name=name or f'private_{model.name}')
    self._vectorize = engine == 'vectorized'
    self.inner = model
    self.plan = plan
    self.physical_batch_size = (
        None if physical_batch_size is None else
        _checks.integer('physical_batch_size', physical_batch_size, 1))
    self.clipping = _clip.check_kind(clipping)
    if engine not in ('auto', 'vectorized'):
      raise ValueError(
          f"Expected engine 'auto' or 'vectorized', got engine={engine!r}.")
    # The query is no trackable: restored noise states would repeat noise.
    self._query = TableNoiseQuery(plan, seed=seed)
    self.seeded = self._query.seeded
    self._record = _history.find_record(model, plan)
    for counter in self._record.counters:
      setattr(self, counter, self._record.counters[counter])
    self.seeded_batches = False
    self._source = sampling.Source()
    self._journal = None if journal is None else self._resumed(journal)
    self._compute_loss = None
    if model.built:
      self.built = True
      self._check_inner()

  def privacy_summary(self) -> str:
    """Returns, layer by layer, how gradients per example are taken.

    Raises:
      ValueError: if the model is not built yet.
    """
    if not self.inner.built:
      raise ValueError(
          'Expected a built model, got one that never saw an input; give it an '
          'Input layer or call build(input_shape).')
    return (f'{self._routes().summary()}\n'
            f'Physical batch: {self.physical_batch_size} examples.')

  def _routes(self) -> _routes.Routes:
    return _routes.routes(self.inner, self._vectorize)

  def _resumed(self, path: Any) -> Journal:
    """Opens the journal and counts what it says was released."""
    if self.seeded:
      raise ValueError(
          'Expected no seed with a journal, got both: the resumed run would '
          'draw the noise of the first again.')
    journal = Journal(path, self.plan)
    for counter, value in journal.entry._asdict().items():
      self._counters()[counter].assign(value)
    return journal

  def _counters(self) -> Dict[str, tf.Variable]:
    return {'steps': self.released_steps, 'epochs': self.epochs_begun,
            'sampling': self.sampling}

  def _reserve(self) -> tf.Operation:
    """Has the counters on disk before anything that depends on it runs."""

    def reserve(*counts):
      self._journal.reserve(Entry(*map(int, counts)))
      return np.int64(0)

    values = [tf.identity(v) for v in self._counters().values()]
    return tf.numpy_function(reserve, values, tf.int64)

  def _entry(self) -> Entry:
    return Entry(int(self.released_steps), int(self.epochs_begun),
                 int(self.sampling))

  def _check_inner(self) -> None:
    _layers.check_model(self.inner, half=True)
    _layers.check_vectorizable(self.inner)
    dim = sum(v.shape.num_elements() for v in self.inner.trainable_variables)
    if dim == 0:
      raise ValueError(
          f'Expected a model with trainable variables, got {self.inner.name!r} '
          'with none.')
    self.plan.check_vector(dim)
    _history.remember(self.inner.weights, self._record)
    if self.physical_batch_size is None:
      self.physical_batch_size = _checked.physical_rows(
          self.plan, self.inner, self._routes())

  def build(self, input_shape: Any) -> None:
    """Builds the wrapped model."""
    if not self.inner.built:
      self.inner.build(input_shape)
    self.built = True
    self._check_inner()

  def call(self, inputs: Any, training: Any = None) -> tf.Tensor:
    """Calls the wrapped model."""
    return self.inner(inputs, training=training)

  def compile(self, optimizer: Any = 'rmsprop', loss: Any = None,
              metrics: Any = None, loss_weights: Any = None,
              weighted_metrics: Any = None, run_eagerly: Any = None,
              steps_per_execution: Any = None, jit_compile: Any = None,
              **kwargs: Any) -> None:
    """Compiles the model; arguments as for any Keras model.

    Args:
      optimizer: An ordinary Keras optimizer; the model adds the noise.
      loss: One loss; its reduction is ignored.
      metrics: Metrics over the examples drawn, without the padding.
      loss_weights: Refused.
      weighted_metrics: As in Keras.
      run_eagerly: As in Keras.
      steps_per_execution: 1; others are refused.
      jit_compile: False; XLA is slower on CPUs.
      **kwargs: As in Keras.

    Raises:
      ValueError: if an argument is refused.
    """
    compute_loss = _engine.loss_per_example(loss)
    if loss_weights is not None:
      raise ValueError(
          f'Expected loss_weights=None, got {loss_weights!r}; there is one '
          'loss: scale the learning rate instead.')
    if steps_per_execution not in (None, 1):
      raise ValueError(
          'Expected steps_per_execution=1, so that a privacy budget can stop '
          f'training after any step, got {steps_per_execution!r}.')
    if jit_compile:
      raise ValueError(
          'Expected jit_compile=False, got True: XLA is slower here.')
    _checked.check_optimizer(optimizer)
    super().compile(optimizer=optimizer, loss=loss, metrics=metrics,
                    weighted_metrics=weighted_metrics, run_eagerly=run_eagerly,
                    jit_compile=False, **kwargs)
    self._compute_loss = compute_loss

  def fit(self, x: Any = None, y: Any = None, batch_size: Optional[int] = None,
          epochs: int = 1, verbose: Any = 'auto', callbacks: Any = None,
          validation_split: float = 0.0, validation_data: Any = None,
          shuffle: bool = True, class_weight: Any = None,
          sample_weight: Any = None, initial_epoch: int = 0,
          steps_per_epoch: Optional[int] = None, **kwargs: Any) -> Any:
    """Trains the model; arguments as for any Keras model.

    Args:
      x: `PoissonBatches`, for the guarantee of the plan; or arrays, where each
        example is seen once an epoch, for a weaker one; or anything Keras
        takes, for none.
      y: Targets, if `x` is an array.
      batch_size: For arrays.
      epochs: As in Keras.
      verbose: As in Keras.
      callbacks: As in Keras; `EpsilonCallback` reports the guarantee.
      validation_split: Refused.
      validation_data: As in Keras.
      shuffle: As in Keras.
      class_weight: As in Keras; multiplies the losses before clipping.
      sample_weight: For arrays; likewise.
      initial_epoch: As in Keras.
      steps_per_epoch: As in Keras; by default that of the `PoissonBatches`.
      **kwargs: As in Keras.

    Returns:
      The `History`.

    Raises:
      ValueError: if the data are not those of the plan.
    """
    if validation_split:
      raise ValueError(
          f'Expected validation_split=0, got {validation_split!r}: it would '
          'take examples away from the num_examples of the plan; split the '
          'data before and pass validation_data.')
    source = self._source_of(x, y, batch_size, sample_weight, steps_per_epoch)
    if source == Sampling.POISSON:
      steps_per_epoch = steps_per_epoch or x.steps_per_epoch
      self.seeded_batches = self.seeded_batches or x.seeded
      x = x.endless_dataset()
    if source == Sampling.EACH_EXAMPLE_ONCE:
      callbacks = _with_callback(callbacks, _CountEpochs())
    with self._sampled(source):
      history = super().fit(
          x=x, y=y, batch_size=batch_size, epochs=epochs, verbose=verbose,
          callbacks=callbacks, validation_data=validation_data,
          shuffle=shuffle, class_weight=class_weight,
          sample_weight=sample_weight, initial_epoch=initial_epoch,
          steps_per_epoch=steps_per_epoch, **kwargs)
    if self._journal is not None:
      self._journal.settle(self._entry())
    return history

  def _source_of(self, x, y, batch_size, sample_weight,
                 steps_per_epoch) -> Sampling:
    """How `fit` will choose its batches; refuses data not of the plan."""
    if isinstance(x, PoissonBatches):
      if not all(v is None for v in (y, batch_size, sample_weight)):
        raise ValueError(
            'Expected y, batch_size and sample_weight to be None with '
            'PoissonBatches, which hold the targets and draw the sizes.')
      _checked.check_batches(x, self.plan)
      if self._journal is not None and x.seeded:
        raise ValueError(
            'Expected PoissonBatches without a seed in a run with a journal, '
            'got seeded ones: resumed, they would draw the same samples again.')
      return Sampling.POISSON
    lengths = _checked.lengths(x)
    if not lengths or steps_per_epoch is not None:
      return Sampling.UNKNOWN
    if set(lengths) != {self.plan.num_examples}:
      raise ValueError(
          f'Expected num_examples={self.plan.num_examples} examples as in the '
          f'plan, got {lengths[0]}.')
    return Sampling.EACH_EXAMPLE_ONCE

  @contextlib.contextmanager
  def _sampled(self, source: Sampling) -> Iterator[None]:
    """Steps inside are recorded as of `source`; outside, as of unknown."""
    self._record.look(self.inner)
    self._record.training = True
    self._source.kind.assign(int(source))
    try:
      yield
    finally:
      self._source.kind.assign(int(Sampling.UNKNOWN))
      self._record.training = False
      self._record.keep(self.inner)

  def ledger(self) -> sampling.Ledger:
    """Returns what was released so far, and how its batches were chosen."""
    return self._ledger(self.sampling, 0)

  def next_ledger(self) -> sampling.Ledger:
    """Returns the ledger with one more step of what `fit` is training on."""
    kind = sampling.combine(self.sampling, self._source.kind)
    return self._ledger(kind, 1)

  def _ledger(self, kind: tf.Tensor, ahead: int) -> sampling.Ledger:
    note = self._record.note(self.inner, self.plan)
    return sampling.Ledger(
        Sampling.UNKNOWN if note else Sampling(int(kind)),
        int(self.released_steps) + ahead, int(self.epochs_begun) + ahead, note)

  def guarantee(self) -> Any:
    """Returns the `Guarantee` of everything released so far.

    Raises:
      ValueError: saying why there is none.
    """
    guarantee, reason = self.ledger().guarantee(self.plan)
    if guarantee is None:
      raise ValueError(reason)
    return guarantee

  def train_step(self, data: Any) -> Any:
    """One noisy update from one logical batch, which may be empty."""
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    x = self._prepare(x, y)
    if weights is None:
      weights = tf.ones([tf.shape(y)[0]])
    weights = tf.reshape(tf.cast(weights, tf.float32), [tf.shape(y)[0]])
    # Counted first: a step that fails later is counted, never the reverse.
    self.sampling.assign(
        sampling.combine(self.sampling, self._source.kind))
    self.released_steps.assign_add(1)
    with tf.control_dependencies(
        [] if self._journal is None else [self._reserve()]):
      return self._release(x, y, weights)

  def _release(self, x: Any, y: tf.Tensor, weights: tf.Tensor) -> Any:
    """Clips, sums, adds noise and updates the weights."""
    state = self._query.initial_global_state()
    engine = _engine.Engine(self.inner, self._compute_loss,
                            self.physical_batch_size, self._routes(),
                            self.clipping)
    batch = engine.run(x, y, weights, self._query.derive_sample_params(state))
    noisy = self._query.get_noised_result(batch.sums, state)[0]
    averages = [part / self.plan.expected_batch_size for part in noisy]
    # Keras wraps it under mixed_float16; nothing is left to unscale here.
    optimizer = getattr(self.optimizer, 'inner_optimizer', self.optimizer)
    optimizer.apply_gradients(
        zip(averages, self.inner.trainable_variables))
    return self._log(x, batch)

  def _prepare(self, x: Any, y: Any) -> Any:
    """Builds and checks the wrapped model, when the step is traced.

    Returns:
      `x` in the shape the model expects, which generators do not tell.
    """
    if self._compute_loss is None:
      raise ValueError('Expected compile(...) before training.')
    if not tf.is_tensor(y):
      raise ValueError(
          f'Expected targets y to be one array, got {y!r}; a private model has '
          'one output and one loss.')
    optimizer_lib._check_replicas()  # pylint: disable=protected-access
    shape = getattr(self.inner, 'input_shape', None) if (
        self.inner.built) else None
    if tf.is_tensor(x) and isinstance(shape, tuple):
      # Not of its batch: a Sequential remembers the one it was built on.
      x = tf.ensure_shape(x, (None,) + shape[1:])
    if any(part.shape.rank is None for part in tf.nest.flatten((x, y))):
      raise ValueError(
          'Expected inputs and targets of known rank, got unknown shapes; call '
          'compile() again before data of another shape, and give generators '
          'an output_signature.')
    if not self.inner.built:
      self.inner(tf.nest.map_structure(lambda part: part[:1], x))
      self.built = True
    self._check_inner()
    return x

  def _log(self, x: Any, batch: _engine.BatchResult) -> Any:
    """Updates loss and metrics on the examples drawn, padding left out."""
    shown = tf.logical_and(tf.not_equal(batch.weights, 0),
                           tf.math.is_finite(batch.losses))
    y, predictions, weights = (
        tf.boolean_mask(part, shown)
        for part in (batch.targets, batch.predictions, batch.weights))
    self.compiled_loss(y, predictions, weights)
    return self.compute_metrics(x, y, predictions, weights)

  def set_weights(self, weights: Any) -> None:
    """Sets all weights; what was released stays counted."""
    with self._keep_counts():
      super().set_weights(weights)

  def load_weights(self, *args: Any, **kwargs: Any) -> Any:
    """Loads weights; what was released stays counted."""
    with self._keep_counts():
      return super().load_weights(*args, **kwargs)

  @contextlib.contextmanager
  def _keep_counts(self) -> Iterator[None]:
    """Keeps counters from falling when older weights come back."""
    steps, epochs = int(self.released_steps), int(self.epochs_begun)
    kind, plan = tf.identity(self.sampling), int(self.plan_number)
    self._record.look(self.inner)
    yield
    self.plan_number.assign(_history.merge_plans(
        steps, plan, int(self.released_steps), int(self.plan_number)))
    self.released_steps.assign(max(steps, int(self.released_steps)))
    self.epochs_begun.assign(max(epochs, int(self.epochs_begun)))
    self.sampling.assign(sampling.combine(kind, self.sampling))
    self._record.keep(self.inner)

  def get_config(self) -> Any:
    """Refused: a config does not hold noise tables."""
    raise NotImplementedError(
        'Expected save_weights(path), or private_model.inner.save(path) for '
        'the trained model, got a request for the config of a PrivateModel, '
        'which does not hold its noise; build it anew with privatize(model, '
        'plan) and load_weights(path).')


def privatize(model: keras.Model, plan: Any, seed: Optional[int] = None,
              physical_batch_size: Optional[int] = None,
              engine: str = 'auto', journal: Any = None,
              clipping: str = 'flat') -> PrivateModel:
  """Returns a `PrivateModel` that trains `model` by `plan`.

  Args:
    model: A Sequential or functional model.
    plan: A `PrivacyPlan`.
    seed: For repeatable experiments; None takes the system's entropy.
    physical_batch_size: Larger draws are processed in parts of this size; by
      default it holds most draws, as far as memory allows.
    engine: 'auto', or 'vectorized' to take no shortcut for any layer.
    journal: Path of a file that counts steps before they are released, so that
      a killed run can be resumed; see `Journal`.

  Raises:
    ValueError: as `PrivateModel`.
  """
  return PrivateModel(model, plan, seed, physical_batch_size, engine, journal,
                      clipping)


class _CountEpochs(keras.callbacks.Callback):
  """Counts a pass when it begins, so that a broken one is counted too."""

  def on_epoch_begin(self, epoch, logs=None):
    del epoch, logs
    self.model.epochs_begun.assign_add(1)


def _with_callback(callbacks: Any, extra: keras.callbacks.Callback) -> Any:
  if isinstance(callbacks, keras.callbacks.CallbackList):
    extra.set_model(callbacks.model)
    callbacks.callbacks.insert(0, extra)
    return callbacks
  return [extra] + tf.nest.flatten([] if callbacks is None else callbacks)
