"""Tests of drop-in optimizers with loss scaling, half precision and XLA."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import X, Y
from tfcactus.keras import (
  DPKerasSGDOptimizer,
  EpsilonCallback,
  PoissonBatches,
  TableNoiseQuery,
)
from tfcactus.keras.compat import versions

layers = tf.keras.layers
_NONE = tf.keras.losses.SparseCategoricalCrossentropy(
    from_logits=True, reduction='none')
_policy = tf.keras.mixed_precision.set_global_policy


def _sgd(**kwargs):
  return DPKerasSGDOptimizer(1.0, **{
      'noise_multiplier': 1.0, 'expected_batch_size': 10, **kwargs})


def _model(policy='float32'):
  tf.keras.utils.set_random_seed(1)
  _policy(policy)
  try:
    return tf.keras.Sequential([layers.Input((6,)), layers.Dense(3)])
  finally:
    _policy('float32')


def _wrapped(make_plan):
  model = _model()
  model.compile(tf.keras.mixed_precision.LossScaleOptimizer(
      DPKerasSGDOptimizer.from_plan(make_plan())), _NONE)
  return model


def _made_under_float16(make_plan):
  model = _model('mixed_float16')
  model.compile(DPKerasSGDOptimizer.from_plan(make_plan()), _NONE)
  return model


@pytest.mark.parametrize('make', [_wrapped, _made_under_float16])
@pytest.mark.parametrize('callback', [False, True])
def test_scaled_losses_are_refused_with_reason_and_remedy(
    make_plan, make, callback):
  model, batches = make(make_plan), PoissonBatches(X, Y, 0.25)
  before = model.get_weights()[0]
  with pytest.raises(ValueError) as error:
    model.fit(batches, verbose=0, callbacks=(
        [EpsilonCallback(batches=batches)] if callback else []))
  for words in ('LossScaleOptimizer', 'mixed_float16', 'privatize'):
    assert words in str(error.value)
  np.testing.assert_array_equal(model.get_weights()[0], before)


def test_the_policy_is_named_where_it_is_the_reason():
  _policy('mixed_float16')
  try:
    model = tf.keras.Sequential([layers.Input((6,)), layers.Dense(3)])
    model.compile(_sgd(), _NONE)
    with pytest.raises(ValueError, match="got the policy 'mixed_float16'"):
      model.fit(X, Y, verbose=0)
  finally:
    _policy('float32')


@pytest.mark.skipif(not versions.KERAS_3,
                    reason='optimizers of Keras 2 scale no gradients')
def test_a_scale_that_is_set_later_is_refused():
  model, optimizer = _model(), _sgd()
  model.compile(optimizer, _NONE)
  optimizer.loss_scale_factor = 8.0
  with pytest.raises(ValueError, match='got loss_scale_factor=8.0'):
    model.fit(X, Y, verbose=0)


@pytest.mark.parametrize('rows', [1, 2500])
@pytest.mark.slow
def test_half_precision_keeps_the_sensitivity(rows):
  # Similar examples, so that the sum is long and rounding shows.
  rng = np.random.default_rng(3)
  x = (rng.normal(size=(1, 64)) + .01 * rng.normal(size=(rows, 64)))
  x, y = x.astype(np.float32), np.full((rows, 1), 100, np.float32)
  tf.keras.utils.set_random_seed(1)
  _policy('mixed_bfloat16')
  try:
    model = tf.keras.Sequential([
        layers.Input((64,)), layers.Dense(128, 'tanh'),
        layers.Dense(1, dtype='float32')])
  finally:
    _policy('float32')
  start = model.get_weights()

  def step(skipped):
    model.set_weights(start)
    model.compile(_sgd(noise_multiplier=0.0, expected_batch_size=1,
                       learning_rate=1.0),
                  tf.keras.losses.MeanSquaredError(reduction='none'))
    model.fit(x[skipped:], y[skipped:], batch_size=rows, shuffle=False,
              verbose=0)
    return np.concatenate([
        (a - b).ravel() for a, b in zip(start, model.get_weights())])

  whole = step(0)
  if rows == 1:
    assert 0.9999 < np.linalg.norm(whole) <= 1
  else:
    # One example moves the sum by the clip norm, up to float32 rounding of weights.
    assert abs(np.linalg.norm(whole - step(1)) - 1) < 2e-4


def test_xla_is_refused_where_fresh_noise_is_drawn():
  model = _model()
  model.compile(_sgd(), _NONE, jit_compile=True)
  with pytest.raises(ValueError, match='jit_compile=False, got a function'):
    model.fit(X, Y, verbose=0)
  query = TableNoiseQuery(_sgd().noise, 1.0)

  @tf.function(jit_compile=True)
  def release(total):
    return query.get_noised_result(total, query.initial_global_state())[0]

  with pytest.raises(ValueError, match='jit_compile=False'):
    release(tf.zeros([3]))
  # Seeded noise is drawn outside of the graph, too.
  model.compile(_sgd(seed=1), _NONE, jit_compile=True)
  with pytest.raises(ValueError, match='jit_compile=False'):
    model.fit(X, Y, verbose=0)
  model.compile(_sgd(noise_multiplier=0.0), _NONE, jit_compile=True)
  model.fit(X, Y, verbose=0)
