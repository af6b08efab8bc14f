"""Tests of drop-in optimizers against manual DP-SGD and TensorFlow Privacy."""

import importlib

import numpy as np
import pytest
import tensorflow as tf

from tests.representatives import representatives
import tfcactus
from tfcactus import noise as noise_lib
from tfcactus.keras import (
  DPKerasAdagradOptimizer,
  DPKerasAdamOptimizer,
  DPKerasRMSpropOptimizer,
  DPKerasSGDOptimizer,
  PoissonBatches,
)
from tfcactus.keras.compat import versions
from tfcactus.keras.tfp import stand_in

_LOSS = tf.keras.losses.SparseCategoricalCrossentropy(
    from_logits=True, reduction='none')


def _model():
  tf.keras.utils.set_random_seed(1)
  return tf.keras.Sequential([
      tf.keras.layers.Input((6,)), tf.keras.layers.Dense(5, 'tanh'),
      tf.keras.layers.Dense(3)])


def _data(rows=8):
  rng = np.random.default_rng(0)
  return (rng.normal(size=(rows, 6)).astype(np.float32) * 3,
          rng.integers(0, 3, rows))


def _sgd(**kwargs):
  kwargs = {'noise_multiplier': 1e-9, 'expected_batch_size': 8,
            'learning_rate': 0.5, **kwargs}
  return DPKerasSGDOptimizer(kwargs.pop('l2_norm_clip', 0.3), **kwargs)


def _fit_once(optimizer, x, y, model=None):
  model = model or _model()
  model.compile(optimizer, _LOSS)
  model.fit(x, y, batch_size=len(x), epochs=1, shuffle=False, verbose=0)
  return model.get_weights()


def _manual_step(x, y, clip, batch, rate):
  model = _model()
  total = [np.zeros(v.shape) for v in model.trainable_variables]
  for xi, yi in zip(x, y):
    with tf.GradientTape() as tape:
      loss = _LOSS(yi[None], model(xi[None]))
    gradient = [g.numpy().astype(float) for g in
                tape.gradient(loss, model.trainable_variables)]
    norm = np.sqrt(sum(np.sum(g**2) for g in gradient))
    if np.isfinite(norm):
      factor = min(1, clip * (1 - 1e-5) / norm)
      total = [t + factor * g for t, g in zip(total, gradient)]
  return [v - rate * t / batch for v, t in zip(model.get_weights(), total)]


def _assert_close(left, right, atol=1e-6):
  for a, b in zip(left, right):
    np.testing.assert_allclose(a, b, atol=atol)


def test_equals_manual_clipped_sgd_divided_by_the_expected_batch():
  x, y = _data()
  got = _fit_once(_sgd(expected_batch_size=11), x, y)
  _assert_close(got, _manual_step(x, y, 0.3, 11, 0.5))


@representatives('rows, eager', [
    (17, False), (1, False), (15, False), (16, False), (33, False),
    (16, True), (1, True), (15, True), (17, True), (33, True)], 2)
def test_batches_of_any_size(rows, eager):
  x, y = _data(rows)
  model, optimizer = _model(), _sgd()

  def step():
    with tf.GradientTape() as tape:
      loss = _LOSS(y, model(x))
    optimizer.minimize(loss, model.trainable_variables, tape=tape)

  (step if eager else tf.function(step))()
  _assert_close(model.get_weights(), _manual_step(x, y, 0.3, 8, 0.5))


@pytest.mark.skipif(versions.KERAS_3 or not stand_in.AVAILABLE,
                    reason='TensorFlow Privacy has no optimizers for Keras 3')
@representatives('ours, name, rate', [
    (DPKerasSGDOptimizer, 'DPKerasSGDOptimizer', 0.5),
    (DPKerasAdamOptimizer, 'DPKerasAdamOptimizer', 0.001),
    (DPKerasAdagradOptimizer, 'DPKerasAdagradOptimizer', .05)])
def test_equals_tensorflow_privacy_without_noise(ours, name, rate):
  peer = getattr(importlib.import_module('tensorflow_privacy'), name)
  x, y = _data()
  left = _fit_once(ours(0.3, 0.0, expected_batch_size=8, learning_rate=rate),
                   x, y)
  right = _fit_once(peer(0.3, 0.0, learning_rate=rate), x, y)
  # Clipped norms stay 1e-5 below the bound here, for the sake of rounding.
  _assert_close(left, right, 1e-6)


def test_rmsprop_trains():
  x, y = _data()
  optimizer = DPKerasRMSpropOptimizer(0.3, 1.0, expected_batch_size=8)
  assert all(np.all(np.isfinite(w)) for w in _fit_once(optimizer, x, y))


@representatives('make', [_sgd, lambda **kwargs: DPKerasAdamOptimizer(
    0.3, 1e-9, expected_batch_size=kwargs.pop('expected_batch_size', 8),
    learning_rate=0.5, **kwargs)])
@pytest.mark.more
def test_accumulated_batches_equal_the_logical_one(make):
  x, y = _data(16)
  once = _fit_once(make(expected_batch_size=16), x, y)
  model = _model()
  optimizer = make(expected_batch_size=16, gradient_accumulation_steps=4)
  model.compile(optimizer, _LOSS)
  model.fit(x[:12], y[:12], batch_size=4, shuffle=False, verbose=0)
  assert optimizer.released_steps == 0
  _assert_close(model.get_weights(), _model().get_weights(), 0)
  model.fit(x[12:], y[12:], batch_size=4, shuffle=False, verbose=0)
  assert optimizer.released_steps == 1
  _assert_close(model.get_weights(), once)


@representatives('parts', [{'gradient_accumulation_steps': 4}, {}])
def test_noise_has_the_promised_scale_and_comes_once(parts):
  model = tf.keras.Sequential([tf.keras.layers.Input((100,)),
                               tf.keras.layers.Dense(50)])
  before = model.get_weights()
  optimizer = _sgd(l2_norm_clip=2.0, noise_multiplier=0.5, learning_rate=1.0,
                   seed=1, **parts)
  model.compile(optimizer, _LOSS)
  model.fit(np.zeros((16, 100), np.float32), np.zeros(16, np.int64),
            batch_size=4 if parts else 16, verbose=0)
  step = (before[0] - model.get_weights()[0]).ravel()
  # With every part TensorFlow Privacy adds it, which would be twice as much.
  assert abs(step.std() / (2.0 * 0.5 / 8) - 1) < 0.04
  assert optimizer.released_steps == 1


def test_a_broken_example_in_the_data_is_dropped_and_the_others_are_not():
  x, y = _data()
  x[3, 2] = np.nan
  model = _model()
  model.compile(_sgd(), _LOSS)
  model.fit(PoissonBatches(x, y, 1.0), verbose=0)
  _assert_close(model.get_weights(), _manual_step(x, y, 0.3, 8, 0.5))
  assert model.optimizer.sound


def test_a_gradient_that_is_not_finite_makes_the_account_unsound():
  x, y = _data()
  x[3, 2] = np.nan
  optimizer = _sgd()
  assert all(np.all(np.isfinite(w)) for w in _fit_once(optimizer, x, y))
  assert not optimizer.sound


def test_empty_batches_release_noise_and_never_nan():
  x, y = _data()
  model = _model()
  before = model.get_weights()
  batches = PoissonBatches(x, y, 1e-9, steps_per_epoch=3, seed=1)
  optimizer = _sgd(noise_multiplier=1.0, seed=1)
  model.compile(optimizer, _LOSS)
  model.fit(batches, epochs=2, verbose=0)
  assert optimizer.released_steps == 6
  for a, b in zip(before, model.get_weights()):
    assert np.all(np.isfinite(b)) and np.all(a != b)


@representatives('eager', [False, True])
def test_a_batch_of_no_rows_at_all_is_noise(eager):
  model, optimizer = _model(), _sgd(noise_multiplier=1.0, seed=1)
  before = model.get_weights()
  x, y = _data()

  def step():
    with tf.GradientTape() as tape:
      loss = _LOSS(y[:0], model(x[:0]))
    optimizer.minimize(loss, model.trainable_variables, tape=tape)

  (step if eager else tf.function(step))()
  for a, b in zip(before, model.get_weights()):
    assert np.all(np.isfinite(b)) and np.all(a != b)


def test_minimize_with_a_callable_in_a_graph_traces_once():
  model, optimizer = _model(), _sgd()
  x, y = _data()
  traces = []

  @tf.function
  def step():
    traces.append(1)
    optimizer.minimize(lambda: _LOSS(y, model(x)), model.trainable_variables)

  step()
  _assert_close(model.get_weights(), _manual_step(x, y, 0.3, 8, 0.5))
  step()
  # The first call traces twice, as the slots are created.
  assert len(traces) <= 2
  assert optimizer.released_steps == 2


def test_radial_table_trains_only_in_its_dimension(radial):
  model = tf.keras.Sequential([tf.keras.layers.Input((2,)),
                               tf.keras.layers.Dense(1)])
  model.compile(_sgd(noise_multiplier=None, noise=radial),
                tf.keras.losses.MeanSquaredError('none'))
  model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0)
  x, y = _data()
  with pytest.raises(ValueError, match='dim=53'):
    _fit_once(_sgd(noise_multiplier=None, noise=radial), x, y)


def test_noise_beside_a_plan_has_to_be_the_plans():
  plan = tfcactus.PrivacyPlan.for_training(
      noise=tfcactus.Gaussian(1.1), l2_norm_clip=0.3, batch_size=8, epochs=1,
      num_examples=80, delta=1e-5)
  assert _sgd(plan=plan, noise_multiplier=1.1).noise.digest == plan.noise.digest
  with pytest.raises(ValueError, match=r'as in the plan, got Gaussian'):
    _sgd(plan=plan, noise_multiplier=5.0)


def test_from_plan_and_config_round_trip(radial):
  plan = tfcactus.PrivacyPlan(
      noise=noise_lib.Gaussian(1.5), l2_norm_clip=0.7, num_examples=40,
      sampling_prob=0.25, steps=100, delta=1e-5)
  optimizer = DPKerasSGDOptimizer.from_plan(plan, learning_rate=0.2)
  assert optimizer.plan is plan and optimizer.expected_batch_size == 10
  again = DPKerasSGDOptimizer.from_config(optimizer.get_config())
  assert again.get_config() == optimizer.get_config()
  assert again.noise == plan.noise and again.plan == plan
  table = DPKerasSGDOptimizer.from_config(
      _sgd(noise_multiplier=None, noise=radial).get_config())
  assert table.noise.digest == radial.digest and table.plan is None


@pytest.mark.parametrize('kwargs, words', [
    ({'num_microbatches': 0}, 'num_microbatches >= 1'),
    ({'num_microbatches': True}, 'num_microbatches to be an integer'),
    ({'expected_batch_size': 0}, 'expected_batch_size > 0'),
    ({'num_microbatches': 2}, 'Leave out num_microbatches: then each example'),
    ({'gradient_accumulation_steps': 0}, '>= 1'),
    ({'noise_multiplier': -1.0}, 'noise_multiplier > 0'),
    ({'noise_multiplier': None}, 'either noise_multiplier'),
    ({'noise_multiplier': False}, 'noise_multiplier to be a number'),
    ({'noise_multiplier': ''}, 'noise_multiplier to be a number'),
    ({'noise': noise_lib.Gaussian(1.0)}, 'either noise_multiplier'),
    ({'noise_multiplier': None, 'noise': 1.1}, 'Gaussian'),
    ({'l2_norm_clip': -1.0}, 'l2_norm_clip > 0'),
    ({'l2_norm_clip': float('inf')}, 'finite'),
    ({'plan': 'x'}, "plan to be a PrivacyPlan, got plan='x'"),
])
def test_bad_arguments_are_refused_in_words(kwargs, words):
  with pytest.raises(ValueError, match=words):
    _sgd(**kwargs)


def test_num_microbatches_may_say_one_example_each():
  assert _sgd(num_microbatches=8).expected_batch_size == 8


def test_a_reduced_loss_is_refused():
  x, y = _data()
  model = _model()
  model.compile(_sgd(), tf.keras.losses.SparseCategoricalCrossentropy(True))
  with pytest.raises(ValueError, match="reduction='none'"):
    model.fit(x, y, verbose=0)


def test_gradients_that_were_never_noised_are_refused():
  model, optimizer = _model(), _sgd()
  grads = [tf.ones_like(v) for v in model.trainable_variables]
  with pytest.raises(ValueError, match='neither clipped nor noisy'):
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
  with pytest.raises(NotImplementedError, match='minimize'):
    optimizer.get_gradients(None, None)


@pytest.mark.more
def test_decay_is_a_schedule_where_keras_ignores_it():
  x, y = _data()
  schedule = tf.keras.optimizers.schedules.InverseTimeDecay(
      0.5, decay_steps=1, decay_rate=2.0)
  model = _model()
  _fit_once(_sgd(learning_rate=schedule), x, y, model)
  first = model.get_weights()
  model.fit(x, y, batch_size=len(x), shuffle=False, verbose=0)
  if versions.KERAS_3:
    with pytest.raises(TypeError, match='Keras 3 ignores, got decay=2.0; pass '
                       'learning_rate=.*InverseTimeDecay.*decay_rate=2.0'):
      _sgd(decay=2.0)
    _sgd(decay=0.0)
  else:
    decaying = _model()
    optimizer = _sgd(decay=2.0, seed=1)
    _fit_once(optimizer, x, y, decaying)
    decaying.fit(x, y, batch_size=len(x), shuffle=False, verbose=0)
    for mine, its in zip(decaying.get_weights(), model.get_weights()):
      np.testing.assert_allclose(mine, its, rtol=1e-4, atol=1e-6)
  # The second step is a third as long: under a third of the clip norm.
  moved = [after - before for after, before in zip(model.get_weights(), first)]
  length = np.sqrt(sum(np.sum(part**2) for part in moved))
  assert 0 < length <= 0.5 / 3 * 0.3 * 1.001


@pytest.mark.parametrize('make', [
    DPKerasSGDOptimizer, DPKerasAdamOptimizer, DPKerasAdagradOptimizer,
    DPKerasRMSpropOptimizer])
@pytest.mark.parametrize('kwargs, keras_3, words', [
    ({'lr': 0.1}, True, 'Expected learning_rate, got lr=0.1'),
    ({'decay': 0.1}, True, 'InverseTimeDecay'),
    ({'weight_decay': 0.1}, False, 'legacy, got weight_decay=0.1'),
    ({'use_ema': True}, False, 'legacy, got use_ema=True'),
    ({'no_such_argument': 1}, None, 'no_such_argument')])
def test_arguments_of_the_other_keras_are_refused_in_words(
    make, kwargs, keras_3, words):
  def build():
    return make(1.0, 1.0, expected_batch_size=8, **kwargs)

  if keras_3 in (None, versions.KERAS_3):
    with pytest.raises((TypeError, ValueError), match=words):
      build()
  else:
    config = build().get_config()
    name, value = next(iter(kwargs.items()))
    assert config.get(name, config['learning_rate']) == pytest.approx(value)
