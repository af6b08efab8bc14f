"""Tests of losses, plans and settings under which there is no epsilon to report."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import inner, NONE, plan_of, privatized, X, Y
from tests.representatives import representatives
from tfcactus.keras import (
  DPKerasSGDOptimizer,
  EpsilonCallback,
  PoissonBatches,
)
from tfcactus.keras.checks import example_losses
from tfcactus.keras.compat import versions


class _Loss(tf.keras.losses.Loss):

  def __init__(self, function):
    super().__init__(reduction='none')
    self.function = function

  def call(self, y_true, y_pred):
    return self.function(
        tf.keras.losses.sparse_categorical_crossentropy(y_true, y_pred, True))


@representatives('function', [
    lambda losses: losses - tf.reduce_mean(losses),
    tf.reduce_mean,
    lambda losses: tf.reduce_mean(losses, keepdims=True),
    lambda losses: losses[:, None] * losses,
])
def test_a_loss_that_mixes_examples_has_no_epsilon(make_plan, function):
  model = inner()
  model.compile(DPKerasSGDOptimizer.from_plan(make_plan()), _Loss(function))
  batches = PoissonBatches(X, Y, 0.25)
  callback = EpsilonCallback(batches=batches)
  with pytest.warns(UserWarning, match='loss per example'):
    history = model.fit(batches, verbose=0, callbacks=[callback]).history
  assert 'epsilon' not in history and callback.guarantee is None


@representatives('loss, targets', [
    (tf.keras.losses.MeanSquaredError('none'), np.ones((40, 3))),
    (tf.keras.losses.MeanAbsoluteError('none'), np.ones((40, 3, 1))),
    (tf.keras.losses.CategoricalCrossentropy(True, reduction='none'),
     np.eye(3)[Y]),
    (tf.keras.losses.KLDivergence('none'), np.eye(3)[Y]),
    (tf.keras.losses.CosineSimilarity(reduction='none'), np.eye(3)[Y]),
    (_Loss(tf.identity), Y),
])
def test_losses_per_example_have_an_epsilon(make_plan, loss, targets):
  if versions.KERAS_3 and targets.ndim == 3:
    pytest.skip('Keras 3 itself has no weights per example for such losses')
  model = inner()
  model.add(tf.keras.layers.Reshape((3,) + targets.shape[2:]))
  model.compile(DPKerasSGDOptimizer.from_plan(make_plan()), loss)
  batches = PoissonBatches(X, targets, 0.25)
  history = model.fit(batches, verbose=0,
                      callbacks=[EpsilonCallback(batches=batches)]).history
  assert history['epsilon'] == [0.04]


@pytest.mark.parametrize('change', [
    {'delta': 1e-3}, {'steps': 9}, {'dim': 21}])
def test_a_callback_with_another_plan_than_the_model_raises(change):
  private = privatized()
  callback = EpsilonCallback(plan_of(**change))
  with pytest.raises(ValueError, match='plan of this training'):
    private.fit(PoissonBatches(X, Y, 0.25), verbose=0, callbacks=[callback])


def test_a_callback_cannot_call_an_unproven_account_proven(scalar):
  unproven = plan_of(noise=scalar, accounting='scalar-unproven')
  proven = dataclasses.replace(unproven, accounting='proven')
  private = privatized(unproven)
  drop_in = inner()
  drop_in.compile(DPKerasSGDOptimizer.from_plan(unproven), NONE)
  batches = PoissonBatches(X, Y, 0.25)
  for model, named in ((private, None), (drop_in, batches)):
    callback = EpsilonCallback(proven, batches=named)
    with pytest.raises(ValueError, match="accounting='scalar-unproven'"):
      model.fit(batches, verbose=0, callbacks=[callback])


def test_the_plan_of_a_callback_must_fit_the_dimension_of_the_model():
  batches = PoissonBatches(X, Y, 0.25)
  for model in (inner(), tf.keras.Sequential([tf.keras.layers.Dense(3)])):
    model.compile(DPKerasSGDOptimizer(1.0, 1.0, expected_batch_size=10), NONE)
    callback = EpsilonCallback(plan_of(dim=5), batches=batches)
    if versions.KERAS_3 and not model.built:
      # Keras 3 builds the model while it traces the first step.
      with pytest.warns(UserWarning, match='dim=5'):
        model.fit(batches, verbose=0, callbacks=[callback])
      assert callback.guarantee is None
      continue
    with pytest.raises(ValueError, match='dim=5'):
      model.fit(batches, verbose=0, callbacks=[callback])


@pytest.mark.parametrize('steps', [10, 'auto'])
def test_a_budget_needs_executions_of_one_step(make_plan, steps):
  model = inner()
  model.compile(DPKerasSGDOptimizer.from_plan(make_plan()), NONE,
                steps_per_execution=steps)
  batches = PoissonBatches(X, Y, 0.25)
  callback = EpsilonCallback(batches=batches, target_epsilon=0.02)
  # Keras 3.5 raises its own error for 'auto'.
  with pytest.raises((ValueError, TypeError),
                     match="steps_per_execution=1|'str' and 'int'"):
    model.fit(batches, verbose=0, callbacks=[callback])
  assert model.optimizer.released_steps == 0


class _Scaled(tf.keras.losses.SparseCategoricalCrossentropy):

  def __init__(self, scale=1.0, **kwargs):
    super().__init__(**kwargs)
    self.scale = scale

  def call(self, y_true, y_pred):
    return self.scale * super().call(y_true, y_pred)


def test_a_subclass_that_ignores_a_class_keeps_its_own_attributes():
  labels, outputs = tf.constant([1, 2]), tf.constant([[0.1, 0.9, 0.2], [0.3, 0.1, 0.6]])
  plain, scaled = (tf.function(example_losses.loss_per_example(loss))(labels, outputs)
                   for loss in (_Scaled(ignore_class=0), _Scaled(3.0, ignore_class=0)))
  np.testing.assert_allclose(scaled, 3 * plain, rtol=1e-6)
