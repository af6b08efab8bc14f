"""A Keras model whose `fit` trains by DP-SGD or DP-FTRL."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfcactus import _format
from tfcactus._checks import Fixed
from tfcactus.audit import evidence
from tfcactus.guarantee import Guarantee
from tfcactus.keras import (
  callbacks_of_fit,
  compile_arguments,
  serialization,
  training_logs,
)
from tfcactus.keras.checks import model_warnings, refused_models
from tfcactus.keras.checks.output_losses import OutputLosses
from tfcactus.keras.compat import optimizers, trainability, training
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.data import batch_marks, data_sources, fit_inputs
from tfcactus.keras.distribution import replicas
from tfcactus.keras.gradients import local_steps as steps_lib
from tfcactus.keras.ledger import ledger as ledger_lib
from tfcactus.keras.ledger.counts import Seeded
from tfcactus.keras.ledger.model_ledger import ModelLedger
from tfcactus.keras.ledger.paid_steps import Account, PaidSteps
from tfcactus.keras.step import private_step
from tfcactus.keras.step.canaries import Audit, Canaries
from tfcactus.noise.table_file import PathLike
from tfcactus.plan import PrivacyPlan
from tfcactus.relations import Relation


@keras.saving.register_keras_serializable('tfcactus')
class PrivateModel(Fixed, serialization.SavedModel):
  """A Keras model that trains an inner model privately and predicts as it does.

  Compile it with any Keras optimizer and any loss per example, and fit it on
  `PoissonBatches`. Each step clips each example's gradient (see `clipping`), sums, adds
  noise once, and divides by the plan's expected batch size. An example whose gradient
  is not finite contributes exactly zero.

  Epsilon covers the weights, not the loss and metrics that `fit` logs, which are
  computed on the training data without noise. It covers the `noisy_accuracy` of a plan.

  `save('m.keras')` saves all state but randomness. `keras.models.load_model` restores
  it, and reads the journal for steps released after the save. Counters are saved with
  the weights; setting or loading weights never lowers them. Private models of one inner
  model share counters.

  Epsilon accounts for the releases of this model, from the weights that it was given.
  It does not hold if those weights were trained on the same data, which cannot be
  noticed. No epsilon is reported if weights change other than by steps of `fit` and
  methods of this model, which is noticed from the first step on, in callbacks too; nor
  after a step on a batch that `fit` did not draw, as by `train_on_batch`.

  Attributes:
    inner: The wrapped model, which shares its variables. Cannot be replaced.
    plan: The `PrivacyPlan`. Cannot be replaced.
    physical_batch_size: Examples or units processed at once; None until known.
    segments: int64 variable, numbers of released steps and epochs; see `Counts`.
    sampling: int64 variable, code of the sampling scheme; see `Counts`.
    plan_number: int64 variable, a hash of the plan of the released steps.
    clip_norm: float64 variable, the clipping norm of the next step, if the plan has
      `adaptive_clipping`. Epsilon covers it.
    clipping: 'flat', 'per_layer' or 'automatic'. Cannot be replaced.
    augmentation_multiplicity: Number of passes of each example per step.
    local_steps: Number of SGD steps that each unit takes on its rows, or None.
    local_learning_rate: Learning rate of these steps, or None.
    split_noise: Whether each worker adds a share of the noise.
  """

  _SETTINGS = ('clipping', 'augmentation_multiplicity', 'split_noise', 'local_steps',
               'local_learning_rate')
  _FIXED = {
      'plan': 'For another delta, or with other releases beside it, ask '
              'dataclasses.replace(model.plan, ...).guarantee(steps); to train '
              'by another plan, privatize a fresh model.',
      'inner': 'Privatize the other model.',
      **dict.fromkeys(('seeded', 'seeded_batches', *_SETTINGS),
                      'Privatize a fresh model.')}

  def __init__(self, model: keras.Model, plan: PrivacyPlan,
               seed: int | None = None, physical_batch_size: int | None = None,
               engine: str = 'auto', journal: PathLike | None = None,
               clipping: str = 'flat', name: str | None = None, loaded: bool = False,
               augmentation_multiplicity: int = 1, split_noise: bool = False,
               local_steps: int | None = None, local_learning_rate: float | None = None,
               audit: Audit | None = None, account: Account | None = None,
               account_label: str = 'training', randomness: str = 'auto'):
    """Initialises the model.

    Args:
      model: A Sequential, functional or subclassed model.
      plan: A `PrivacyPlan`.
      seed: For repeatable experiments; None takes the system's entropy.
      physical_batch_size: Larger batches are processed in parts of this size (virtual
        batches). The default holds most drawn batches, as far as memory allows.
      engine: 'auto', or 'vectorized' to use `tf.vectorized_map` and no rules.
      journal: Path of a file that counts steps before they are released; see `Journal`.
      clipping: 'flat' clips each example's whole gradient to the plan's clipping norm
        C; 'per_layer' clips that of each of L layers to C / sqrt(L); 'automatic'
        normalises the whole to norm C. All three cost the same.
      name: Name of the model.
      augmentation_multiplicity: Number of passes of each example per step, with new
        draws of augmentation layers. Their mean is clipped, at the cost of one pass.
      loaded: Set by `from_config`.
      split_noise: Whether each worker adds a share of the noise, so that no worker
        knows all of it; by default the chief adds all. Gaussian noise only.
      local_steps: Number of plain SGD steps of each `unit`; their sum is clipped.
      local_learning_rate: Learning rate of these steps.
      audit: An `Audit`, which plants canaries for `PrivateModel.audit`; not saved.
      account: A `DataAccount` or its path. `fit` takes steps from its slot
        account_label before they are released; the first `fit` makes the slot.
      randomness: 'host', 'device' or 'auto': where noise is made; see `NoiseSampler`.

    Raises:
      ValueError: if the model cannot be trained privately, or not by the plan.
    """
    refused_models.check_arguments(model, plan, PrivateModel)
    super().__init__(name=name or f'private_{model.name}')
    self.inner, self.plan = model, plan
    # Keras tracks neither step nor ledger: a restored random state would repeat noise.
    self._step = private_step.Step(
        model, plan, seed, physical_batch_size, engine, clipping,
        augmentation_multiplicity, split_noise, steps_lib.LocalSteps.checked(
            local_steps, local_learning_rate), audit, randomness)
    self._paid = None if account is None else PaidSteps(
        account, account_label, plan, self._step.seeded)
    self._ledger = ModelLedger(model, plan, self._step.norm, journal, self._step.seeded,
                               loaded, self._step.condition, self._paid)
    self._begin()

  def _begin(self) -> None:
    """Sets settings, and counters, which Keras saves; checks a built inner model."""
    step, local = self._step, self._step.local
    self.clipping, self.split_noise = step.clipping, step.split_noise
    self.augmentation_multiplicity = step.views
    self.local_steps = None if local is None else local.number
    self.local_learning_rate = None if local is None else local.learning_rate
    for name, variable in self._ledger.own_variables().items():
      setattr(self, name, variable)
    self._output_losses: OutputLosses | None = None
    self._on_building: Any = None  # A function that `from_config` sets.
    if self.inner.built:
      self.built = True
      self._check_inner()

  @property
  def outputs(self) -> Any:
    """Symbolic outputs of the wrapped model in a list; None if it has none."""
    return getattr(self.inner, 'outputs', None)

  @outputs.setter
  def outputs(self, value: Any) -> None:
    """Ignores the None that Keras 2 sets at first."""

  @property
  def seeded(self) -> bool:
    """Returns whether any noise came from a seed; see `NoiseSampler`."""
    return Seeded.NOISE in self._ledger.seeded

  @property
  def seeded_batches(self) -> bool:
    """Returns whether any batches came from a seed."""
    return Seeded.BATCHES in self._ledger.seeded

  @property
  def physical_batch_size(self) -> int | None:
    """Number of examples or units processed at once; None until known."""
    return self._step.rows

  @property
  def randomness(self) -> str | None:
    """'host' or 'device', where the noise is made; None until built."""
    return self._step.randomness

  def privacy_summary(self) -> str:
    """Describes how gradients are computed; ValueError if the model is not built."""
    if not self.inner.built:
      raise ValueError(
          'Expected a built model, got one that never saw an input; give it an '
          'Input layer or call build(input_shape).')
    unit = self.plan.unit
    how = self._step.routes().summary() if self.local_steps is None else (
        f'Each {unit} takes {self.local_steps} steps of SGD, one {unit} at a time; the '
        'difference that they make to the weights is clipped.')
    factor = self.plan.release_sensitivity
    more = '' if factor == 1 else (
        f"\nGradient noise: {_format.lower(factor, 4)} times the plan's, as counts "
        'share the draw.')
    return f'{how}{more}\nPhysical batch: {self.physical_batch_size} {unit}s.'

  def _check_inner(self) -> None:
    """Checks the built inner model; records the ledger on its variables."""
    if self._on_building:
      self._on_building()
      self._on_building = None
    self._step.check()
    self._ledger.remember()

  def build(self, input_shape: Any) -> None:
    """Builds the wrapped model."""
    if not self.inner.built:
      self.inner.build(input_shape)
    self.built = True
    self._check_inner()

  def call(self, inputs: Any, training: Any = None) -> tf.Tensor:
    """Calls the wrapped model on inputs, without the mark that batches carry."""
    return self.inner(batch_marks.unmarked(inputs).x, training=training)

  def summary(self, *args: Any, **kwargs: Any) -> None:
    """Prints the summary of the wrapped model, without the ledger's counters."""
    self.inner.summary(*args, **kwargs)

  def count_params(self) -> int:
    """Returns the number of weights of the wrapped model, without counters."""
    count: int = self.inner.count_params()
    return count

  def add_loss(self, *args: Any, **kwargs: Any) -> None:
    """Raises ValueError: only losses that the wrapped model adds are clipped."""
    raise ValueError(
        'Expected add_loss of a layer or model inside the private model, got it of '
        f'{self.name!r}, whose training would ignore the loss; add it in call() of a '
        'layer, before privatize(model, plan).')

  def compile(self, optimizer: Any = 'rmsprop', loss: Any = None,
              metrics: Any = None, loss_weights: Any = None,
              weighted_metrics: Any = None, run_eagerly: Any = None,
              steps_per_execution: Any = None, jit_compile: Any = None,
              **kwargs: Any) -> None:
    """Compiles the model; other arguments are as for any Keras model.

    Args:
      optimizer: An ordinary Keras optimizer; the model adds the noise.
      loss: One loss, or one per output in a list or dict; None for an output without
        loss, or if layers add all losses. Reductions are ignored.
      metrics: Metrics over the examples drawn, without padding.
      loss_weights: Numbers, in a list or dict. An example's loss is the weighted sum
        over its outputs; the gradient of that sum is clipped.
      steps_per_execution: As in Keras, without 'auto'; 1 for a target of a callback.
      jit_compile: False or 'auto', which means False.

    Raises:
      ValueError: if an argument is refused.
    """
    # Keras maps losses in a list to outputs by the names of the inner model.
    self.output_names = list(getattr(self.inner, 'output_names', None) or ()) or None
    losses = OutputLosses(loss, loss_weights, self.output_names)
    if self._step.outputs is not None:
      losses.terms(self._step.outputs)
    compile_arguments.check_arguments(steps_per_execution, jit_compile)
    # Created here, so that an optimizer given by name or config is checked too.
    optimizer = compile_arguments.ordinary_optimizer(optimizer)
    super().compile(**training.compile_arguments(
        optimizer=optimizer, loss=loss, metrics=metrics,
        loss_weights=loss_weights, weighted_metrics=weighted_metrics,
        run_eagerly=run_eagerly, steps_per_execution=steps_per_execution,
        jit_compile=False, **kwargs))
    self._output_losses = losses
    self._step.compiled()
    model_warnings.warn_of_losses(self.inner, loss, self.plan.noisy_accuracy)

  def fit(self, x: Any = None, y: Any = None, batch_size: int | None = None,
          epochs: int = 1, verbose: Any = 'auto', callbacks: Any = None,
          validation_split: float = 0.0, validation_data: Any = None,
          shuffle: bool = True, class_weight: Any = None,
          sample_weight: Any = None, initial_epoch: int = 0,
          steps_per_epoch: int | None = None, **kwargs: Any) -> Any:
    """Trains the model; other arguments are as for any Keras model.

    Stops before epsilon passes the `target_epsilon` of an `EpsilonCallback`, else, with
    a warning, that of the plan. Without either, warns beyond the plan's steps.

    Args:
      x: `PoissonBatches`, for the guarantee of the plan. Arrays have a weaker
        guarantee; an epoch uses each of their examples once. Other data have none.
      y: Targets, if `x` is an array.
      batch_size: Batch size for arrays.
      callbacks: As in Keras; `EpsilonCallback` reports the guarantee.
      validation_split: For arrays: the part of the examples to validate on. The plan's
        num_examples counts the other examples.
      class_weight: {label: weight}, by default one: multiplies losses before clipping.
      sample_weight: For arrays: weights that multiply losses before clipping.
      steps_per_epoch: As in Keras; by default that of the `PoissonBatches`.

    Raises:
      ValueError: if the model is not compiled; data, arguments and plan do not fit each
        other; the target_epsilon or the `account` allows no step; workers differ; or
        the first step is refused, such as for a layer.
    """
    compile_arguments.check_compiled(self._output_losses, self.inner)
    x, y, sample_weight, validation_data = fit_inputs.split(
        self.plan, x, y, sample_weight, validation_data, validation_split)
    feed = fit_inputs.make_feed(
        self.plan, x, y, batch_size, sample_weight, class_weight, steps_per_epoch,
        self._ledger.counter.journal_path is not None, self.distribute_strategy,
        None if self.canaries is None else self.canaries.present)
    with replicas.scope(self.distribute_strategy):
      optimizers.make_variables(self, feed.example)
    callbacks = callbacks_of_fit.in_order(
        fit_inputs.given(callbacks), self._ledger, self._step.norm, self._paid)
    with self._ledger.training(feed.marks, optimizers.bare_optimizer(self), self, x), (
        training.built_on(self, feed.example)), self._swapping(callbacks), (
        self._step.in_fit()):
      return super().fit(
          x=feed.x, y=y, batch_size=batch_size, epochs=epochs, verbose=verbose,
          callbacks=callbacks, validation_data=validation_data,
          shuffle=shuffle and not feed.ordered, class_weight=feed.class_weight,
          sample_weight=sample_weight, initial_epoch=initial_epoch,
          steps_per_epoch=feed.steps_per_epoch, **kwargs)

  def evaluate(self, *args: Any, **kwargs: Any) -> Any:
    """Returns losses and metrics; arguments as for any Keras model."""
    with self._swapping(fit_inputs.given(kwargs.get('callbacks'))):
      return super().evaluate(*args, **kwargs)

  def predict(self, *args: Any, **kwargs: Any) -> Any:
    """Returns predictions; arguments as for any Keras model."""
    with self._swapping(fit_inputs.given(kwargs.get('callbacks'))):
      return super().predict(*args, **kwargs)

  def _swapping(self, callbacks: list[Any]) -> Any:
    """Returns a context in which a `SwapEMAWeights` does not void the account."""
    return optimizers.swapping(callbacks, self._ledger.keeping_counts(
        optimizer=optimizers.bare_optimizer(self)))

  @property
  def released_steps(self) -> int:
    """Number of noisy updates released; restoring weights never lowers it."""
    return self._ledger.released_steps

  def ledger(self) -> ledger_lib.Ledger:
    """Returns the `Ledger`: the steps released so far, and how batches were sampled."""
    return self._ledger.ledger()

  def training_ledger(self, model: keras.Model, plan: PrivacyPlan | None,
                      batches: Any) -> ledger_lib.TrainingLedger:
    """Returns the model's ledger; ValueError for a plan other than the model's."""
    if plan is not None:
      ledger_lib.check_same_plan(
          plan, self.plan, self.plan.l2_norm_clip, self.plan.noise.digest)
    return self._ledger

  def guarantee(self, neighboring_relation: Relation | None = None, *,
                rows_of_one: int = 1) -> Guarantee:
    """Returns the `Guarantee` of everything released so far.

    Args:
      neighboring_relation: 'add-or-remove', 'zero-out', 'replace', or one of
        dp_accounting's; None for add-or-remove, or replace after passes over all
        examples.
      rows_of_one: Largest number of rows (examples) of one person, which the guarantee
        then covers together; as for `PrivacyPlan.guarantee`.

    Raises:
      ValueError: with the reason if there is no guarantee.
    """
    guarantee, reason = self.ledger().guarantee(neighboring_relation, rows_of_one)
    if guarantee is None:
      raise ValueError(reason)
    return guarantee

  @property
  def canaries(self) -> Canaries | None:
    """The canaries of an audit, or None."""
    return self._step.canaries

  def audit(self, significance: float = evidence.SIGNIFICANCE, *,
            families: bool = True) -> evidence.Audit:
    """Returns the evidence of the canaries on the guarantee of all steps so far.

    Canaries do not change the distribution of the weights. The guarantee covers the
    evidence, which is computed from noisy sums.

    Args:
      significance: Probability that one bound is wrong, or that a true guarantee is
        refuted.
      families: As for `tfcactus.audit.audit_run`.

    Raises:
      ValueError: if the model was made without `audit`, made no step yet, or has no
        guarantee.
    """
    if self.canaries is None:
      raise ValueError(
          'Expected a model made by privatize(model, plan, audit=Audit(canaries=300)), '
          'got one without canaries.')
    found = self.ledger()
    self.guarantee()  # Raises if there is none.
    return self.canaries.audit(
        found.scheme, found.epochs if found.counts_epochs else found.steps, found.steps,
        significance, families)

  def train_step(self, data: Any) -> Any:
    """Makes one noisy update from a logical batch, maybe empty; returns the logs."""
    x, y, weights, mark, each = batch_marks.unmarked(
        *keras.utils.unpack_x_y_sample_weight(data))
    losses = self._output_losses
    if losses is None:
      raise ValueError('Expected compile(...) before training.')
    y = data_sources.targets_or_none(y)
    x, outputs = self._prepare(x, y), self._step.outputs
    targets = losses.targets(y, outputs, weights)
    weights = losses.weights(weights, outputs, tf.shape(tf.nest.flatten(x)[0])[0])
    optimizer = optimizers.bare_optimizer(self)
    optimizers.make_variables(self)
    # A third column of the mark has the canary of each row.
    with self._ledger.counter.count_step(mark, optimizer) as place:
      averages, batch, penalty = self._step.run(
          x, targets, losses.used_weights(weights, outputs), losses, place, each,
          mark[:, 2] if mark.shape[1] == 3 else None)
      optimizers.apply_averages(optimizer, averages, self.inner.trainable_variables)
      self._ledger.counter.end_step(optimizer)
      return training_logs.update(self, losses, x, y, weights, batch, penalty)

  def _prepare(self, x: Any, y: Any) -> Any:
    """Builds and checks the wrapped model in a trace; returns `x` in its shape."""
    compile_arguments.check_optimizer(self.optimizer)  # It may have been replaced.
    x = self._step.shaped(x, y)
    if not self.inner.built:
      # On zeros: whatever the first call writes or initialises, it is not of the data.
      self.inner(tf.nest.map_structure(lambda part: tf.zeros_like(part[:1]), x))
      self.built = True
    self._check_inner()
    training.remember_inputs(self, x)
    return x

  def get_config(self) -> Any:
    """Returns the config for `from_config`, without seed, audit and counters."""
    return {
        'name': self.name, 'model': keras.saving.serialize_keras_object(self.inner),
        'plan': serialization.plan_config(self.plan), 'engine': self._step.engine,
        'physical_batch_size': self.physical_batch_size,
        'randomness': self._step.given_randomness,
        **{name: getattr(self, name) for name in self._SETTINGS},
        'journal': self._ledger.counter.journal_path,
        **({} if self._paid is None else {
            'account': self._paid.path, 'account_label': self._paid.label}),
        'trained': trainability.config(self.inner)}

  @classmethod
  def from_config(cls, config: Any, custom_objects: Any = None) -> PrivateModel:
    """Returns a model from its config, with fresh randomness and its journal.

    Raises:
      ValueError: if the model cannot train the variables that it was saved training.
    """
    config = dict(config)
    model = keras.saving.deserialize_keras_object(
        config.pop('model'), custom_objects=custom_objects)
    plan = serialization.plan_from(config.pop('plan'))
    trained = config.pop('trained', None)
    if trained and model.built:
      trainability.restore(model, trained)
    made = cls(model, plan, loaded=True, **config)
    if trained and not model.built:
      made._on_building = lambda: trainability.restore(model, trained)
    return made


def privatize(model: keras.Model, plan: PrivacyPlan | None = None,
              seed: int | None = None, physical_batch_size: int | None = None,
              engine: str = 'auto', journal: PathLike | None = None,
              clipping: str = 'flat', augmentation_multiplicity: int = 1,
              split_noise: bool = False, local_steps: int | None = None,
              local_learning_rate: float | None = None, audit: Audit | None = None,
              account: Account | None = None, account_label: str = 'training',
              randomness: str = 'auto', **others: Any) -> PrivateModel:
  """Returns a `PrivateModel` with these arguments, which trains `model` by `plan`.

  Compile and fit the returned model, on `PoissonBatches` or other batches of this
  package. `guarantee()` of that model then says what its training cost.

  Raises:
    TypeError: if there is no plan, or for `others`, which belong into a plan.
    ValueError: as for `PrivateModel`.
  """
  refused_models.check_planned(plan, others)
  assert plan is not None, 'It was checked.'
  return PrivateModel(model, plan, seed, physical_batch_size, engine, journal, clipping,
                      augmentation_multiplicity=augmentation_multiplicity,
                      split_noise=split_noise, local_steps=local_steps,
                      local_learning_rate=local_learning_rate, audit=audit,
                      account=account, account_label=account_label,
                      randomness=randomness)
