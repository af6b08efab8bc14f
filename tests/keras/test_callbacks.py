"""Tests of `EpsilonCallback`: epsilon in the logs, budgets, and what is refused."""

import csv
import dataclasses
import importlib

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import inner, NONE, plan_of, poisson, privatized, X, Y
from tests.representatives import representatives
from tfcactus import noise as noise_lib
from tfcactus.keras import (
  DPKerasSGDOptimizer,
  EpsilonCallback,
  PoissonBatches,
)
from tfcactus.keras.compat import versions
from tfcactus.keras.tfp import stand_in
from tfcactus.sampling import OnePassSampling

pytestmark = pytest.mark.usefixtures('random_sums')


def _plain(optimizer, *extra):
  model = inner(*extra)
  model.compile(optimizer, NONE)
  return model


def _fit(model, data, callback, **kwargs):
  return model.fit(data, callbacks=[callback], verbose=0, **kwargs).history


def test_each_epoch_logs_epsilon_of_all_steps_so_far(make_plan, tmp_path):
  private, callback = privatized(make_plan()), EpsilonCallback()
  path = tmp_path / 'log.csv'
  history = private.fit(
      poisson(), epochs=3, verbose=0,
      callbacks=[callback, tf.keras.callbacks.CSVLogger(path)]).history
  assert history['epsilon'] == [0.04, 0.08, 0.12]
  assert history['delta'] == [1e-5] * 3
  with open(path, encoding='utf-8') as file:
    assert [float(r['epsilon']) for r in csv.DictReader(file)] == (
        history['epsilon'])
  assert callback.guarantee.steps == 12 and callback.reason == ''
  history = _fit(private, poisson(), callback, epochs=1)
  assert history['epsilon'] == [0.16]


def test_a_privacy_plan_reports_what_it_guarantees():
  plan = plan_of(steps=8)
  private, callback = privatized(plan), EpsilonCallback(plan)
  history = _fit(private, poisson(), callback, epochs=2)
  assert history['epsilon'][-1] == plan.guarantee().upper
  assert callback.guarantee == private.guarantee() == plan.guarantee()
  other = privatized(plan)
  history = _fit(other, X, callback, y=Y, batch_size=20, epochs=2)
  assert history['epsilon'][-1] == plan.guarantee(2, sampling=OnePassSampling).upper


def test_every_n_batches_epsilon_is_in_the_logs(make_plan):
  seen = []

  class Look(tf.keras.callbacks.Callback):

    def on_train_batch_end(self, batch, logs=None):
      seen.append(logs.get('epsilon'))

  privatized(make_plan()).fit(poisson(steps_per_epoch=5), verbose=0, callbacks=[
      EpsilonCallback(every=2), Look()])
  assert seen[1::2] == [0.02, 0.04] and seen[0] is seen[2] is None
  private = privatized(make_plan())
  private.compile('sgd', 'mse', steps_per_execution=2)
  seen.clear()
  private.fit(poisson(steps_per_epoch=6), verbose=0, callbacks=[
      EpsilonCallback(every=3), Look()])
  assert seen == [None, 0.04, 0.06]


def test_a_fit_on_arrays_reports_epsilon_of_its_passes(make_plan):
  callback = EpsilonCallback()
  private = privatized(make_plan())
  history = _fit(private, X, callback, y=Y, epochs=2)
  assert history['epsilon'] == [5.0, 10.0]


def test_the_budget_stops_before_it_is_passed(make_plan):
  private = privatized(make_plan())
  callback = EpsilonCallback(target_epsilon=0.06)
  history = _fit(private, poisson(), callback, epochs=10)
  assert history['epsilon'] == [0.04, 0.06]
  assert private.released_steps == 6
  with pytest.raises(ValueError, match='raise the budget'):
    _fit(private, poisson(), callback)
  assert private.released_steps == 6


def test_a_budget_below_one_step_releases_nothing(make_plan):
  private = privatized(make_plan())
  with pytest.raises(ValueError, match='0 were released'):
    _fit(private, poisson(), EpsilonCallback(target_epsilon=0.005))
  assert private.released_steps == 0


def test_a_budget_beyond_the_plan_asks_for_a_longer_one():
  plan = plan_of(noise=noise_lib.Gaussian(5.0), steps=4)
  private = privatized(plan)
  _fit(private, poisson(), EpsilonCallback())
  with pytest.raises(ValueError, match='plan of more than 4 steps'):
    _fit(private, poisson(), EpsilonCallback(target_epsilon=50.0))
  longer = privatized(dataclasses.replace(plan, steps=7), private.inner)
  _fit(longer, poisson(), EpsilonCallback(target_epsilon=50.0), epochs=2)
  assert longer.guarantee().steps == 7  # Those of both trainings.
  assert longer.guarantee().upper == plan.guarantee(7).upper


def test_a_step_beyond_the_budget_is_refused_if_stop_training_is_reset(make_plan):
  class Stubborn(tf.keras.callbacks.Callback):

    def on_train_batch_end(self, batch, logs=None):
      self.model.stop_training = False

  private = privatized(make_plan())
  with pytest.raises(ValueError, match='reset model.stop_training'):
    private.fit(poisson(), verbose=0, epochs=9, callbacks=[
        EpsilonCallback(target_epsilon=0.05), Stubborn()])
  assert private.released_steps == 5


def test_the_budget_of_a_fit_on_arrays_counts_whole_epochs(make_plan):
  private = privatized(make_plan())
  callback = EpsilonCallback(target_epsilon=11.0)
  history = _fit(private, X, callback, y=Y, epochs=9)
  assert history['epsilon'] == [5.0, 10.0]
  with pytest.raises(ValueError, match='raise the budget'):
    _fit(private, X, callback, y=Y)


def test_unknown_sampling_gives_a_warning_and_no_epsilon(make_plan):
  data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
  private, callback = privatized(make_plan()), EpsilonCallback()
  with pytest.warns(UserWarning, match='sampling is unknown'):
    history = _fit(private, data, callback)
  assert 'epsilon' not in history
  assert callback.guarantee is None and 'unknown' in callback.reason
  with pytest.warns(UserWarning, match='unknown'):
    _fit(private, poisson(), EpsilonCallback())
  with pytest.raises(ValueError, match='cannot be kept'):
    _fit(private, data, EpsilonCallback(target_epsilon=1.0))


def test_mixed_sampling_gives_a_warning(make_plan):
  private = privatized(make_plan())
  _fit(private, poisson(), EpsilonCallback())
  with pytest.warns(UserWarning, match='some in another'):
    _fit(private, X, EpsilonCallback(), y=Y)


def test_unproven_epsilon_is_logged_under_another_name(make_plan, scalar):
  private = privatized(make_plan(scalar, proven=False))
  with pytest.warns(UserWarning, match='A fake statement'):
    history = _fit(private, poisson(), EpsilonCallback())
  assert 'epsilon' not in history and history['epsilon_unproven'] == [0.04]
  with pytest.raises(ValueError, match='proven guarantee'):
    _fit(private, poisson(), EpsilonCallback(target_epsilon=1.0))


def test_verbose_prints_the_statement_and_that_noise_is_seeded(make_plan, capsys):
  private = privatized(make_plan(), seed=1)
  _fit(private, poisson(), EpsilonCallback(verbose=1))
  out = capsys.readouterr().out
  assert 'A fake statement.' in out and 'seeded' in out


def test_rows_of_one_person_are_logged_beside(make_plan):
  callback = EpsilonCallback(rows_of_one=3)
  history = _fit(privatized(make_plan()), poisson(), callback, epochs=2)
  assert history['epsilon_3_rows'] == [3 * one for one in history['epsilon']]
  with pytest.raises(ValueError, match='rows_of_one'):
    EpsilonCallback(rows_of_one=0)


def test_a_drop_in_optimizer_needs_batches_given_to_the_callback(make_plan):
  plan = make_plan()
  model = _plain(DPKerasSGDOptimizer.from_plan(plan, learning_rate=0.1))
  batches = poisson()
  callback = EpsilonCallback(batches=batches)
  assert _fit(model, batches, callback, epochs=2)['epsilon'] == [0.04, 0.08]
  with pytest.warns(UserWarning, match='cannot see'):
    assert 'epsilon' not in _fit(model, batches, EpsilonCallback())
  with pytest.raises(ValueError, match='cannot see'):
    _fit(model, batches, EpsilonCallback(target_epsilon=1.0))
  budget = EpsilonCallback(batches=batches, target_epsilon=0.14)
  assert _fit(model, batches, budget, epochs=5)['epsilon'] == [0.14]


def test_a_drop_in_optimizer_without_a_plan_takes_that_of_the_callback(make_plan):
  plan = make_plan(noise_lib.Gaussian(1.5))
  batches = poisson()

  def model():
    return _plain(DPKerasSGDOptimizer(1.0, 1.5, expected_batch_size=10))

  with pytest.raises(ValueError, match='Expected plan'):
    _fit(model(), batches, EpsilonCallback())
  assert _fit(model(), batches, EpsilonCallback(plan, batches=batches))[
      'epsilon'] == [0.04]
  with pytest.raises(ValueError, match='noise='):
    _fit(model(), batches, EpsilonCallback(make_plan()))
  with pytest.raises(ValueError, match='l2_norm_clip=1.0'):
    _fit(model(), batches, EpsilonCallback(make_plan(l2_norm_clip=2.0)))
  with pytest.raises(ValueError, match='sampling_prob=0.5'):
    _fit(model(), batches, EpsilonCallback(
        make_plan(noise_lib.Gaussian(1.5), sampling_prob=0.5),
        batches=batches))


@pytest.mark.usefixtures('clipped_sums')
@representatives('break_it, words', [
    ('other batches', 'took other batches'),
    ('overflow', 'not finite'),
    ('accumulation', 'several of the samples'),
    ('normalization', 'GroupNormalization'),
])
def test_drop_in_training_other_than_accounted_has_no_epsilon(
    make_plan, break_it, words):
  extra = ([tf.keras.layers.BatchNormalization()]
           if break_it == 'normalization' else [])
  plan = make_plan()
  model = _plain(DPKerasSGDOptimizer.from_plan(
      plan, gradient_accumulation_steps=2 if break_it == 'accumulation' else 1),
                 *extra)
  batches = poisson()
  data = {
      'accumulation': batches,
      'other batches': poisson(),
      'overflow': PoissonBatches(np.full_like(X, 3e38), Y, 1.0),
      'normalization': batches,
  }[break_it]
  if break_it == 'overflow':
    model.layers[-1].kernel.assign(tf.fill([6, 3], 2.0))
    model.fit(data, verbose=0)
    data = batches
  with pytest.warns(UserWarning, match=words):
    assert 'epsilon' not in _fit(model, data, EpsilonCallback(batches=batches))


@pytest.mark.parametrize('kind', ['sgd', 'TensorFlow Privacy'])
def test_training_that_is_not_private_is_refused(make_plan, kind):
  optimizer = kind
  if kind != 'sgd':
    if versions.KERAS_3 or not stand_in.AVAILABLE:
      pytest.skip('TensorFlow Privacy has no optimizers for Keras 3')
    peer = importlib.import_module('tensorflow_privacy')
    optimizer = peer.DPKerasSGDOptimizer(1.0, 1.0)
  with pytest.raises(ValueError, match='not private'):
    _fit(_plain(optimizer), poisson().for_plain_training(),
         EpsilonCallback(make_plan()))


@pytest.mark.parametrize('kwargs, words', [
    ({'plan': 1.2}, 'PrivacyPlan'),
    ({'batches': [1]}, 'PoissonBatches'),
    ({'target_epsilon': 0.0}, 'target_epsilon > 0'),
    ({'target_epsilon': float('nan')}, 'finite'),
    ({'every': 0}, 'every >= 1'),
])
def test_invalid_arguments_raise(kwargs, words):
  with pytest.raises(ValueError, match=words):
    EpsilonCallback(**kwargs)


def test_loggers_before_the_callback_see_epsilon_too(make_plan, tmp_path):
  model = privatized(make_plan())
  path = tmp_path / 'log.csv'
  model.fit(poisson(), verbose=0, callbacks=[
      tf.keras.callbacks.CSVLogger(path), EpsilonCallback()])
  assert 'epsilon' in path.read_text().splitlines()[0].split(',')
