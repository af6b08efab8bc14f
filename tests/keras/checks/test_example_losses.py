"""Plans, losses and settings under which the callback must report nothing."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import NONE as _NONE, X as _X, Y as _Y
from tfcactus import noise as noise_lib, plan as plan_lib
from tfcactus.keras import (
  DPKerasSGDOptimizer,
  EpsilonCallback,
  PoissonBatches,
  privatize,
)
from tfcactus.keras.compat import versions


def _inner(units=3):
  return tf.keras.Sequential([tf.keras.layers.Input((6,)),
                              tf.keras.layers.Dense(units)])


def _plan(**kwargs):
  return plan_lib.PrivacyPlan(**{
      'noise': noise_lib.Gaussian(1.0), 'l2_norm_clip': 1.0,
      'num_examples': 40, 'sampling_prob': 0.25, 'steps': 8, 'delta': 1e-5,
      **kwargs})


class _Loss(tf.keras.losses.Loss):

  def __init__(self, function):
    super().__init__(reduction='none')
    self.function = function

  def call(self, y_true, y_pred):
    return self.function(
        tf.keras.losses.sparse_categorical_crossentropy(y_true, y_pred, True))


@pytest.mark.parametrize('function', [
    tf.reduce_mean,
    lambda losses: tf.reduce_mean(losses, keepdims=True),
    lambda losses: losses - tf.reduce_mean(losses),
    lambda losses: losses[:, None] * losses,
])
def test_a_loss_that_mixes_examples_gets_no_epsilon(make_plan, function):
  model = _inner()
  model.compile(DPKerasSGDOptimizer.from_plan(make_plan()), _Loss(function))
  batches = PoissonBatches(_X, _Y, 0.25)
  callback = EpsilonCallback(batches=batches)
  with pytest.warns(UserWarning, match='loss per example'):
    history = model.fit(batches, verbose=0, callbacks=[callback]).history
  assert 'epsilon' not in history and callback.guarantee is None


@pytest.mark.parametrize('loss, targets', [
    (tf.keras.losses.MeanSquaredError('none'), np.ones((40, 3))),
    (tf.keras.losses.MeanAbsoluteError('none'), np.ones((40, 3, 1))),
    (tf.keras.losses.CategoricalCrossentropy(True, reduction='none'),
     np.eye(3)[_Y]),
    (tf.keras.losses.KLDivergence('none'), np.eye(3)[_Y]),
    (tf.keras.losses.CosineSimilarity(reduction='none'), np.eye(3)[_Y]),
    (_Loss(tf.identity), _Y),
])
def test_other_losses_keep_theirs(make_plan, loss, targets):
  if versions.KERAS_3 and targets.ndim == 3:
    pytest.skip('Keras 3 itself has no weights per example for such losses')
  model = _inner()
  model.add(tf.keras.layers.Reshape((3,) + targets.shape[2:]))
  model.compile(DPKerasSGDOptimizer.from_plan(make_plan()), loss)
  batches = PoissonBatches(_X, targets, 0.25)
  history = model.fit(batches, verbose=0,
                      callbacks=[EpsilonCallback(batches=batches)]).history
  assert history['epsilon'] == [0.04]


@pytest.mark.parametrize('change', [
    {'delta': 1e-3}, {'steps': 9}, {'dim': 21}])
def test_a_private_model_is_accounted_by_its_own_plan(change):
  private = privatize(_inner(), _plan())
  private.compile('sgd', _NONE)
  callback = EpsilonCallback(_plan(**change))
  with pytest.raises(ValueError, match='plan that is trained by'):
    private.fit(PoissonBatches(_X, _Y, 0.25), verbose=0, callbacks=[callback])


def test_an_unproven_account_is_not_passed_off_as_proven(scalar):
  unproven = _plan(noise=scalar, accounting='scalar-unproven')
  proven = dataclasses.replace(unproven, accounting='proven')
  private = privatize(_inner(), unproven)
  private.compile('sgd', _NONE)
  drop_in = _inner()
  drop_in.compile(DPKerasSGDOptimizer.from_plan(unproven), _NONE)
  batches = PoissonBatches(_X, _Y, 0.25)
  for model, named in ((private, None), (drop_in, batches)):
    callback = EpsilonCallback(proven, batches=named)
    with pytest.raises(ValueError, match="accounting='scalar-unproven'"):
      model.fit(batches, verbose=0, callbacks=[callback])


def test_a_plan_is_checked_for_the_model_of_a_drop_in_optimizer():
  batches = PoissonBatches(_X, _Y, 0.25)
  for model in (_inner(), tf.keras.Sequential([tf.keras.layers.Dense(3)])):
    model.compile(DPKerasSGDOptimizer(1.0, 1.0, expected_batch_size=10), _NONE)
    callback = EpsilonCallback(_plan(dim=5), batches=batches)
    if versions.KERAS_3 and not model.built:
      # Which builds it while it traces the first step.
      with pytest.warns(UserWarning, match='dim=5'):
        model.fit(batches, verbose=0, callbacks=[callback])
      assert callback.guarantee is None
      continue
    with pytest.raises(ValueError, match='dim=5'):
      model.fit(batches, verbose=0, callbacks=[callback])


@pytest.mark.parametrize('steps', [10, 'auto'])
def test_a_budget_needs_to_stop_after_any_step(make_plan, steps):
  model = _inner()
  model.compile(DPKerasSGDOptimizer.from_plan(make_plan()), _NONE,
                steps_per_execution=steps)
  batches = PoissonBatches(_X, _Y, 0.25)
  callback = EpsilonCallback(batches=batches, target_epsilon=0.02)
  # Keras 3.5 trips over 'auto' by itself.
  with pytest.raises((ValueError, TypeError),
                     match="steps_per_execution=1|'str' and 'int'"):
    model.fit(batches, verbose=0, callbacks=[callback])
  assert model.optimizer.released_steps == 0
