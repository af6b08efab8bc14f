"""Three ways of private training: a wrapped model, and two kinds of DP optimizers."""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np
from scipy import stats
import tensorflow as tf

import tfcactus
from tfcactus import keras as tfcactus_keras
from tfcactus.keras.compat import versions
from training import checkpoints, options

_UNFIT = 1e-15
"""Bound on the probability, in one step, that a Poisson sample has more examples than
the rows of a batch."""


class Way:
  """Private training of a model that `tfcactus.keras.privatize` wraps.

  Subclasses train with DP optimizers instead.

  Attributes:
    args: Command-line options.
    plan: The privacy plan of the options, or of the resumed run.
    run: The checkpointed run, or None.
  """

  def __init__(self, args: argparse.Namespace, plan: tfcactus.PrivacyPlan):
    self.args = args
    self.plan = plan
    folder = args.resume or args.checkpoint
    self.run = None if folder is None else checkpoints.Run(folder)

  def compiled(self, model: tf.keras.Model) -> tf.keras.Model:
    """Returns the model to train: this one, wrapped and compiled."""
    return self._wrapped(model, tf.keras.optimizers.SGD(self.learning_rates()))

  def resumed(self, model: tf.keras.Model) -> tf.keras.Model:
    """Returns a resumed model, wrapped again if the plan has other steps."""
    if self.plan.steps == model.plan.steps:
      return model
    # The journal and the optimizer still count the earlier steps.
    return self._wrapped(model.inner, model.optimizer)

  def _wrapped(self, model: tf.keras.Model, optimizer: Any) -> tf.keras.Model:
    """Returns the model wrapped with `privatize`, compiled with this optimizer."""
    private = tfcactus_keras.privatize(
        model, self.plan, seed=self.args.seed,
        journal=None if self.run is None else self.run.journal,
        augmentation_multiplicity=self.args.augmentation_multiplicity)
    private.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True), metrics=['accuracy'])
    return private

  def learning_rates(self, scale: float = 1.0) -> Any:
    """Returns a cosine decay of the learning rate times `scale`.

    The last steps are small, and so average the noise.
    """
    return tf.keras.optimizers.schedules.CosineDecay(
        scale * self.args.learning_rate, self.plan.steps, alpha=0.05)

  def batches(self, x: np.ndarray, y: np.ndarray) -> Any:
    """Returns batches drawn by the sampling scheme of the plan and of --sampling."""
    if self.plan.strategy is not None:
      return tfcactus_keras.CyclicBatches(
          x, y, plan=self.plan, sampling=options.CYCLIC[self.args.sampling],
          seed=self.args.seed)
    if self.args.sampling == 'allocation':
      return tfcactus_keras.AllocatedBatches(
          x, y, num_batches=options.steps_per_epoch(self.args, len(y)),
          seed=self.args.seed)
    return tfcactus_keras.PoissonBatches(x, y, **self._poisson())

  def fed(self, batches: Any) -> Any:
    """Returns the data for `fit`, made of `batches`."""
    return batches

  def _poisson(self) -> dict[str, Any]:
    """Returns the arguments of `PoissonBatches`."""
    return {'sampling_prob': self.plan.sampling_prob, 'seed': self.args.seed,
            'steps_per_epoch': options.steps_per_epoch(
                self.args, self.plan.num_examples)}

  def callbacks(self, batches: Any) -> list[tf.keras.callbacks.Callback]:
    """Returns callbacks that report epsilon during training, and save the run."""
    del batches
    # With a target, the noise of a new run is such that all its steps stay within it. A
    # run that was killed may count steps twice, so it needs a callback that stops it.
    target = self.args.target_epsilon if self.args.resume else None
    report = tfcactus_keras.EpsilonCallback(
        run_card=self.args.run_card, target_epsilon=target)
    if self.run is None:
      return [report]
    asked = {name: value for name, value in vars(self.args).items()
             if name not in ('checkpoint', 'resume')}
    return [report, checkpoints.Saving(self.run, asked)]

  def guarantee(self, model: tf.keras.Model) -> tfcactus.Guarantee:
    """Returns the guarantee so far; raises ValueError if there is none."""
    return model.guarantee()

  def released(self, model: tf.keras.Model) -> int:
    """Returns the number of released updates."""
    return model.released_steps


class DropIn(Way):
  """Private training of a plain model with `tfcactus.keras.DPKerasSGDOptimizer`."""

  def compiled(self, model: tf.keras.Model) -> tf.keras.Model:
    """Compiles and returns the model."""
    model.compile(
        tfcactus_keras.DPKerasSGDOptimizer.from_plan(
            self.plan, seed=self.args.seed, learning_rate=self.learning_rates()),
        _each_loss(), metrics=['accuracy'])
    return model

  def fed(self, batches: Any) -> Any:
    """Returns a dataset whose static shapes let the optimizer use one backward pass."""
    return batches.dataset()

  def callbacks(self, batches: Any) -> list[tf.keras.callbacks.Callback]:
    """Returns the callback that reports epsilon for these batches."""
    self._callback = tfcactus_keras.EpsilonCallback(batches=batches)
    return [self._callback]

  def guarantee(self, model: tf.keras.Model) -> tfcactus.Guarantee:
    """Returns the callback's guarantee; raises ValueError if there is none."""
    if self._callback.guarantee is None:
      raise ValueError(self._callback.reason)
    return self._callback.guarantee

  def released(self, model: tf.keras.Model) -> int:
    """Returns the number of releases that the optimizer counted."""
    return model.optimizer.released_steps


class TensorFlowPrivacy(Way):
  """Private training of a plain model with TensorFlow Privacy's generic optimizer.

  The optimizer computes per-example gradients as the Jacobian of a batch, clips them by
  `TableNoiseQuery`, and divides the noisy sum by the number of rows. To make this
  number a public constant, samples are padded to one size, which a sample exceeds with
  probability at most `_UNFIT`.
  """

  def __init__(self, args: argparse.Namespace, plan: tfcactus.PrivacyPlan):
    """Raises ValueError if TensorFlow Privacy has no optimizers here."""
    super().__init__(args, plan)
    self._make_class = _generic_optimizer_class()
    self.rows = int(stats.binom.isf(_UNFIT, plan.num_examples, plan.sampling_prob)) + 1

  def compiled(self, model: tf.keras.Model) -> tf.keras.Model:
    """Compiles and returns the model."""
    query = tfcactus_keras.TableNoiseQuery(self.plan, seed=self.args.seed)
    # The optimizer divides by `rows`, larger than the expected batch size: the learning
    # rate makes up for that.
    optimizer = self._make_class(tf.keras.optimizers.legacy.SGD)(
        query, num_microbatches=self.rows,
        learning_rate=self.learning_rates(self.rows / self.plan.expected_batch_size))
    # Padding has weight zero in weighted metrics.
    model.compile(optimizer, _each_loss(), weighted_metrics=['accuracy'])
    query.check_vector(model.count_params())
    return model

  def batches(self, x: np.ndarray, y: np.ndarray) -> Any:
    """Returns Poisson samples, all padded to the same number of rows."""
    return _OneSize(x, y, physical_batch_size=self.rows, **self._poisson())

  def callbacks(self, batches: Any) -> list[tf.keras.callbacks.Callback]:
    """Returns no callbacks, since the optimizer reports nothing to them."""
    del batches
    return []

  def guarantee(self, model: tf.keras.Model) -> tfcactus.Guarantee:
    """Returns the plan's guarantee for the steps Keras counted, with assumptions."""
    found = self.plan.guarantee(self.released(model))
    if self.args.seed is not None:
      found = found.seeded_by('the noise and the samples')
    return found.given(
        'Nothing watched: it is the word of this script that TensorFlow Privacy\'s '
        'optimizer added noise once in each step, that every step took a batch of the '
        'plan, that the model and its loss treat each example alone, and that no '
        'gradient was infinite.',
        f'A batch of more than {self.rows} examples would have ended training, which '
        f'makes delta larger by {math.ceil(self.plan.steps * _UNFIT * 1e15)}e-15 at '
        'most.')

  def released(self, model: tf.keras.Model) -> int:
    """Returns the number of steps that Keras counted."""
    return int(model.optimizer.iterations.numpy())


class _OneSize(tfcactus_keras.PoissonBatches):
  """Poisson samples that fit one physical batch; RuntimeError for one that does not."""

  def __getitem__(self, index: int) -> Any:
    """Returns (x, y, weights); raises RuntimeError if the sample does not fit."""
    batch = super().__getitem__(index)
    if len(batch[2]) != self.physical_batch_size:
      raise RuntimeError(
          f'Expected a sample of at most {self.physical_batch_size} examples, got one '
          'of more, which the optimizer would divide by another number.')
    return batch


def _each_loss() -> tf.keras.losses.Loss:
  """Returns the loss per example, without reduction."""
  return tf.keras.losses.SparseCategoricalCrossentropy(
      from_logits=True, reduction='none')


def _generic_optimizer_class() -> Any:
  """Returns TensorFlow Privacy's factory of optimizers; ValueError if it is missing."""
  try:
    if versions.KERAS_3:
      raise ImportError(f'they do not support Keras {versions.KERAS_VERSION}')
    import tensorflow_privacy
    return tensorflow_privacy.make_keras_generic_optimizer_class
  except (ImportError, AttributeError) as error:
    raise ValueError(
        "Expected TensorFlow Privacy's optimizers for --optimizer tensorflow-privacy, "
        f'got none ({error}); install "tfcactus[tensorflow-privacy]" on Python 3.9 to '
        '3.11, or take --optimizer drop-in.') from error


WAYS: dict[str, type[Way]] = dict(
    zip(options.OPTIMIZERS, (Way, DropIn, TensorFlowPrivacy)))
"""Ways of private training by value of --optimizer."""
