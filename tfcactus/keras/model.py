"""A Keras model whose `fit` trains by DP-SGD."""

from __future__ import annotations

from typing import Any
from typing import Optional

import tensorflow as tf

from tfcactus.guarantee import Guarantee
from tfcactus.keras import budget
from tfcactus.keras import compile_arguments
from tfcactus.keras import fit_inputs
from tfcactus.keras import private_step
from tfcactus.keras import replicas
from tfcactus.keras import saved_model
from tfcactus.keras import serialization
from tfcactus.keras import training_logs
from tfcactus.keras.checks import whole_model
from tfcactus.keras.checks.output_losses import OutputLosses
from tfcactus.keras.compat import optimizers
from tfcactus.keras.compat import training
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.ledger import batch_marks
from tfcactus.keras.ledger import ledger as ledger_lib
from tfcactus.keras.ledger.counts import Seeded
from tfcactus.keras.ledger.model_ledger import ModelLedger
from tfcactus.keras.read_only import Fixed
from tfcactus.noise.table_file import PathLike
from tfcactus.plan import PrivacyPlan
from tfcactus.relations import Relation


@keras.saving.register_keras_serializable('tfcactus')
class PrivateModel(Fixed, saved_model.SavedModel):
  """Trains `model` privately; evaluates and predicts as `model` does.

  Compile it with any Keras optimizer and any loss per example, and fit it on
  `PoissonBatches`. Each step clips each example's whole gradient, sums, adds
  noise once, and divides by the plan's expected batch size. An example whose
  gradient is not finite contributes exactly zero.

  The loss and the metrics that `fit` logs are computed on the training data
  without noise: epsilon covers the weights, not those logs.

  `save('m.keras')` saves all but randomness; `keras.models.load_model` gets it
  back, and looks into the journal for what was released since.

  `released_steps`, `epochs_begun`, `sampling` and `plan_number` are saved with
  the weights, and setting or loading weights never lowers them; the weights alone
  are `private_model.inner`'s. Private models of one inner model share counters.

  Epsilon is for what this model releases, from the weights it was given. If
  those were trained on the same data before, or if weights change other than by
  steps of `fit` and methods of this model, there is none: the second is noticed
  from the first step on, in callbacks too, the first cannot be.

  A step is counted by how its own batch was chosen: batches carry a mark of
  the `fit` that they come from, and any without (`train_on_batch`, a function
  of `make_train_function`, a batch used twice) make steps of unknown sampling.

  Attributes:
    inner: The wrapped model, sharing its variables. It stays.
    plan: The `PrivacyPlan`. It stays.
    physical_batch_size: Examples processed at once; None until built or given.
    released_steps: int64 variable, how many noisy updates were released.
    epochs_begun: int64 variable, passes over arrays given to `fit`.
    sampling: int64 variable, the code of the sampling scheme; see `Counts`.
    plan_number: int64 variable, which plan the steps were released under.
    clip_norm: float64 variable, the clip norm of the next step, if the plan has
      `adaptive_clipping`. It comes out of what is released, and is covered.
    clipping: 'flat', 'per_layer' or 'automatic'.
  """

  _FIXED = {
      'plan': 'For another delta, or with other releases beside it, ask '
              'dataclasses.replace(model.plan, ...).guarantee(steps); to train '
              'by another plan, privatize a fresh model.',
      'inner': 'Privatize the other model.',
      **dict.fromkeys(('seeded', 'seeded_batches'), 'Privatize a fresh model.')}

  def __init__(self, model: keras.Model, plan: PrivacyPlan,
               seed: Optional[int] = None,
               physical_batch_size: Optional[int] = None,
               engine: str = 'auto', journal: Optional[PathLike] = None,
               clipping: str = 'flat', name: Optional[str] = None,
               loaded: bool = False, augmentation_multiplicity: int = 1,
               split_noise: bool = False):
    """Initialises the model.

    Args:
      model: A Sequential or functional model, or one whose `call` is yours.
      plan: A `PrivacyPlan`.
      seed: For repeatable experiments; None takes the system's entropy.
      physical_batch_size: Larger draws are processed in parts of this size;
        by default it holds most draws, as far as memory allows.
      engine: 'auto', or 'vectorized' to take no shortcut for any layer.
      journal: Path of a file that counts steps before they are released, so
        that a killed run can be resumed; see `Journal`.
      clipping: 'flat': each example's whole gradient at the plan's clip norm C.
        'per_layer': each of L layers' at C / sqrt(L). 'automatic': normalised to
        C whether longer or shorter. Each bounds an example's part in the sum by
        C, and costs the same.
      name: A name.
      augmentation_multiplicity: How often each example goes through the model in a
        step, its augmentation layers drawing anew; the mean of the gradients is what
        is clipped, and costs what one does.
      loaded: Set by `from_config`.
      split_noise: Whether each worker adds a share of the noise, in place of the
        chief, so that none knows all of it; Gaussian noise only.

    Raises:
      ValueError: if the model cannot be trained privately, or the plan's noise
        is not valid for its number of parameters.
    """
    whole_model.check_arguments(model, plan, PrivateModel)
    super().__init__(name=name or f'private_{model.name}')
    self.inner = model
    self.plan = plan
    # Neither is a trackable: restored noise states would repeat noise.
    self._step = private_step.Step(
        model, plan, seed, physical_batch_size, engine, clipping,
        augmentation_multiplicity, split_noise)
    self._ledger = ModelLedger(model, plan, self._step.norm, journal,
                               self._step.seeded, loaded, self._step.condition)
    for name, variable in self._ledger.own_variables().items():
      setattr(self, name, variable)
    self._output_losses: Optional[OutputLosses] = None
    if model.built:
      self.built = True
      self._check_inner()

  @property
  def seeded(self) -> bool:
    """Whether any noise came from a seed; see `NoiseSampler`."""
    return Seeded.NOISE in self._ledger.seeded

  @property
  def seeded_batches(self) -> bool:
    """Whether any batches came from a seed."""
    return Seeded.BATCHES in self._ledger.seeded

  @property
  def physical_batch_size(self) -> Optional[int]:
    """How many examples are processed at once."""
    return self._step.rows

  @property
  def clipping(self) -> str:
    """'flat', 'per_layer' or 'automatic'."""
    return self._step.clipping

  @property
  def augmentation_multiplicity(self) -> int:
    """How often each example goes through the model in a step."""
    return self._step.views

  @property
  def split_noise(self) -> bool:
    """Whether each worker adds a share of the noise."""
    return self._step.split_noise

  def privacy_summary(self) -> str:
    """Returns, layer by layer, how gradients per example are taken.

    Raises:
      ValueError: if the model is not built yet.
    """
    if not self.inner.built:
      raise ValueError(
          'Expected a built model, got one that never saw an input; give it an '
          'Input layer or call build(input_shape).')
    return (f'{self._step.routes().summary()}\n'
            f'Physical batch: {self.physical_batch_size} examples.')

  def _check_inner(self) -> None:
    self._step.check()
    self._ledger.remember()

  def build(self, input_shape: Any) -> None:
    """Builds the wrapped model."""
    if not self.inner.built:
      self.inner.build(input_shape)
    self.built = True
    self._check_inner()

  def call(self, inputs: Any, training: Any = None) -> tf.Tensor:
    """Calls the wrapped model."""
    return self.inner(batch_marks.unmarked(inputs)[0], training=training)

  def compile(self, optimizer: Any = 'rmsprop', loss: Any = None,
              metrics: Any = None, loss_weights: Any = None,
              weighted_metrics: Any = None, run_eagerly: Any = None,
              steps_per_execution: Any = None, jit_compile: Any = None,
              **kwargs: Any) -> None:
    """Compiles the model; arguments as for any Keras model, but for these.

    Args:
      optimizer: An ordinary Keras optimizer; the model adds the noise.
      loss: One loss, or one for each output in a list or dict; None for an output,
        or for all where the layers add the losses. Reductions are ignored.
      metrics: Metrics over the examples drawn, without the padding.
      loss_weights: Numbers, in a list or dict; an example's loss is the weighted
        sum of those of its outputs, and its gradient is clipped as one.
      steps_per_execution: As in Keras, but 'auto'; 1 for a `target_epsilon`.
      jit_compile: False; XLA is slower on CPUs. 'auto' is False too.

    Raises:
      ValueError: if an argument is refused.
    """
    # By which outputs in a list are known, as if the model were the inner one.
    self.output_names = compile_arguments.output_names(self.inner)
    losses = OutputLosses(loss, loss_weights, self.output_names)
    if self._step.outputs is not None:
      losses.terms(self._step.outputs)
    compile_arguments.check_arguments(steps_per_execution, jit_compile)
    # Made here, so that what a name or a config stands for is checked too.
    optimizer = compile_arguments.ordinary_optimizer(optimizer)
    super().compile(**training.compile_arguments(
        optimizer=optimizer, loss=loss, metrics=metrics,
        loss_weights=loss_weights, weighted_metrics=weighted_metrics,
        run_eagerly=run_eagerly, steps_per_execution=steps_per_execution,
        jit_compile=False, **kwargs))
    self._output_losses = losses

  def fit(self, x: Any = None, y: Any = None, batch_size: Optional[int] = None,
          epochs: int = 1, verbose: Any = 'auto', callbacks: Any = None,
          validation_split: float = 0.0, validation_data: Any = None,
          shuffle: bool = True, class_weight: Any = None,
          sample_weight: Any = None, initial_epoch: int = 0,
          steps_per_epoch: Optional[int] = None, **kwargs: Any) -> Any:
    """Trains the model; arguments as for any Keras model, but for these.

    Args:
      x: `PoissonBatches`, for the guarantee of the plan; or arrays, where each
        example is seen once an epoch, for a weaker one; or anything Keras
        takes, for none.
      y: Targets, if `x` is an array.
      batch_size: For arrays.
      callbacks: As in Keras; `EpsilonCallback` reports the guarantee.
      validation_split: Of arrays, where the rest are the examples of the plan.
      class_weight: A dict of labels and weights; they multiply the losses of
        their examples before clipping. Other labels have weight one.
      sample_weight: For arrays; likewise.
      steps_per_epoch: As in Keras; by default that of the `PoissonBatches`.

    Under a plan with a `target_epsilon` it stops before that would be passed, and says
    so; a `target_epsilon` of an `EpsilonCallback` stands in for it. A plan without one
    warns where its steps are passed.

    Raises:
      ValueError: if the data are not those of the plan, or its target allows no step.
    """
    x, y, sample_weight, validation_data = fit_inputs.split(
        self.plan, x, y, sample_weight, validation_data, validation_split)
    feed = fit_inputs.make_feed(
        self.plan, x, y, batch_size, sample_weight, class_weight, steps_per_epoch,
        self._ledger.journal_path is not None, self.distribute_strategy)
    with replicas.scope(self.distribute_strategy):
      optimizers.make_variables(self, feed.example)
    with self._ledger.training(feed.marks, optimizers.bare_optimizer(self), self, x), (
        training.built_on(self, feed.example)):
      return super().fit(
          x=feed.x, y=y, batch_size=batch_size, epochs=epochs, verbose=verbose,
          callbacks=fit_inputs.ordered(callbacks, budget.Limit(self._ledger)),
          validation_data=validation_data,
          shuffle=shuffle and not feed.ordered,
          class_weight=feed.class_weight,
          sample_weight=sample_weight, initial_epoch=initial_epoch,
          steps_per_epoch=feed.steps_per_epoch, **kwargs)

  @property
  def releases(self) -> int:
    """How many noisy updates were released; restoring never lowers it."""
    return self._ledger.released_steps

  def ledger(self) -> ledger_lib.Ledger:
    """Returns what was released so far, and how its batches were chosen."""
    return self._ledger.ledger()

  def training_ledger(self, model: keras.Model, plan: Optional[PrivacyPlan],
                      batches: Any) -> ledger_lib.TrainingLedger:
    """As `HoldsLedger`; the plan is the model's."""
    del model, batches
    if plan is not None:
      ledger_lib.check_same_plan(
          plan, self.plan, self.plan.l2_norm_clip, self.plan.noise.digest)
    return self._ledger

  def guarantee(self, neighboring_relation: Optional[Relation] = None) -> Guarantee:
    """Returns the `Guarantee` of everything released so far.

    Args:
      neighboring_relation: Whom it protects: 'add-or-remove', 'zero-out',
        'replace', or one of dp_accounting's; None for add-or-remove, or replace
        after passes over all examples.

    Raises:
      ValueError: saying why there is none.
    """
    guarantee, reason = self.ledger().guarantee(neighboring_relation)
    if guarantee is None:
      raise ValueError(reason)
    return guarantee

  def train_step(self, data: Any) -> Any:
    """One noisy update from one logical batch, which may be empty."""
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    x, mark = batch_marks.unmarked(x)
    losses = self._output_losses
    if losses is None:
      raise ValueError('Expected compile(...) before training.')
    y = None if isinstance(y, tuple) and not y else y  # Batches without targets.
    x, outputs = self._prepare(x, y), self._step.outputs
    targets = losses.targets(y, outputs)
    weights = losses.weights(weights, outputs, tf.shape(tf.nest.flatten(x)[0])[0])
    with self._ledger.count_step(mark) as place:
      averages, batch, penalty = self._step.run(
          x, targets, losses.used_weights(weights, outputs), losses, place)
      optimizers.apply_averages(
          optimizers.bare_optimizer(self), averages, self.inner.trainable_variables)
      self._ledger.end_step()
      return training_logs.update(self, losses, x, y, weights, batch, penalty)

  def _prepare(self, x: Any, y: Any) -> Any:
    """Builds and checks the wrapped model, when the step is traced."""
    compile_arguments.check_optimizer(self.optimizer)  # It may have been replaced.
    x = self._step.shaped(x, y)
    if not self.inner.built:
      self.inner(tf.nest.map_structure(lambda part: part[:1], x))
      self.built = True
    self._check_inner()
    training.remember_inputs(self, x)
    return x

  def get_config(self) -> Any:
    """Returns what `from_config` needs; counters are saved with the weights."""
    return {
        'name': self.name, 'model': keras.saving.serialize_keras_object(self.inner),
        'plan': serialization.plan_config(self.plan), 'engine': self._step.engine,
        'physical_batch_size': self.physical_batch_size,
        'clipping': self.clipping, 'augmentation_multiplicity': (
            self.augmentation_multiplicity), 'split_noise': self.split_noise,
        'journal': self._ledger.journal_path,
        'seeded': self.seeded, 'seeded_batches': self.seeded_batches}

  @classmethod
  def from_config(cls, config: Any, custom_objects: Any = None) -> PrivateModel:
    """Makes the model anew, with fresh randomness.

    Its journal is read, and taken when it trains.
    """
    config = dict(config)
    model = keras.saving.deserialize_keras_object(
        config.pop('model'), custom_objects=custom_objects)
    plan = serialization.plan_from(config.pop('plan'))
    seeded, batches = config.pop('seeded'), config.pop('seeded_batches')
    made = cls(model, plan, loaded=True, **config)
    made._ledger.count_seeded(seeded, batches)  # pylint: disable=protected-access
    return made


def privatize(model: keras.Model, plan: PrivacyPlan, seed: Optional[int] = None,
              physical_batch_size: Optional[int] = None,
              engine: str = 'auto', journal: Optional[PathLike] = None,
              clipping: str = 'flat', augmentation_multiplicity: int = 1,
              split_noise: bool = False) -> PrivateModel:
  """Returns a `PrivateModel` that trains `model` by `plan`; see there."""
  return PrivateModel(model, plan, seed, physical_batch_size, engine, journal, clipping,
                      augmentation_multiplicity=augmentation_multiplicity,
                      split_noise=split_noise)
