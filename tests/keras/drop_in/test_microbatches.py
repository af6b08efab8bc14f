"""Tests of num_microbatches as in TensorFlow Privacy: sums, divisors and epsilon."""

import numpy as np
import pytest
import tensorflow as tf

from tests.representatives import representatives
import tfcactus
from tfcactus import noise as noise_lib
from tfcactus.keras import (
  AllocatedBatches,
  DPKerasSGDOptimizer,
  EpsilonCallback,
  FixedSizeBatches,
  PoissonBatches,
)

_X = (np.random.default_rng(0).normal(size=(24, 4)) * 3).astype(np.float32)
_Y = (_X @ [[1.0], [-2.0], [0.5], [1.5]] + 1).astype(np.float32)
_CLIP, _RATE = 3.0, 0.1


def _fit(optimizer, x, y, **kwargs):
  model = tf.keras.Sequential([
      tf.keras.layers.Input((4,)),
      tf.keras.layers.Dense(1, kernel_initializer='zeros')])
  model.compile(optimizer, tf.keras.losses.MeanSquaredError('none'))
  model.fit(x, y, shuffle=False, verbose=0, **kwargs)
  return model


def _steps(size, microbatches, clip=_CLIP):
  """Weights after a pass, by loops over microbatches in float64."""
  weights = np.zeros(5)
  rows = np.concatenate([_X.astype(float), np.ones((24, 1))], 1)
  for start in range(0, 24, size):
    gradients = [2 * row * (row @ weights - y) for row, y in zip(
        rows[start:start + size], _Y[start:start + size, 0].astype(float))]
    means = np.reshape(gradients, [microbatches, -1, 5]).mean(1)
    norms = np.linalg.norm(means, axis=1, keepdims=True)
    total = np.sum(means * np.minimum(1, clip / norms), 0)
    weights = weights - _RATE * total / microbatches
  return weights


@representatives('given, microbatches', [
    (4, 4), (None, 8), (8, 8), (2, 2), (1, 1)])
def test_divides_by_microbatches_and_clips_their_means(given, microbatches):
  optimizer = DPKerasSGDOptimizer(
      l2_norm_clip=_CLIP, noise_multiplier=0.0, num_microbatches=given,
      learning_rate=_RATE)
  model = _fit(optimizer, _X, _Y, batch_size=8)
  kernel, bias = model.get_weights()
  np.testing.assert_allclose(
      [*kernel[:, 0], *bias], _steps(8, microbatches), rtol=3e-5, atol=1e-6)
  assert optimizer.grouped == (microbatches < 8)
  # One accumulated step of two parts is divided by both.
  again = DPKerasSGDOptimizer.from_config(optimizer.get_config())
  assert again.num_microbatches == given and again.grouped == optimizer.grouped


def test_accumulated_batches_are_divided_by_the_logical_batch():
  optimizer = DPKerasSGDOptimizer(_CLIP, 0.0, None, 2, learning_rate=_RATE)
  model = _fit(optimizer, _X, _Y, batch_size=12)
  kernel, bias = model.get_weights()
  np.testing.assert_allclose(
      [*kernel[:, 0], *bias], _steps(24, 24), rtol=3e-5, atol=1e-6)


@representatives('microbatches, rows, words', [
    (None, 20, 'batches of one size.*expected_batch_size=sampling_prob'),
    (8, 20, 'batches of one size'),
    (3, 24, 'whole multiple of num_microbatches=3')])
def test_batches_of_other_sizes_are_refused_with_a_remedy(microbatches, rows, words):
  optimizer = DPKerasSGDOptimizer(_CLIP, 1.0, microbatches, learning_rate=_RATE)
  with pytest.raises(
      (ValueError, tf.errors.InvalidArgumentError), match=f'(?s){words}'):
    _fit(optimizer, _X[:rows], _Y[:rows], batch_size=8)
  # The first size is kept, so the next batch of another size is refused too.
  assert int(optimizer._private.batching.size) == (0 if rows == 24 else 8)


def _epsilon(batches, **kwargs):
  plan = tfcactus.PrivacyPlan(
      noise=noise_lib.Gaussian(1.0), l2_norm_clip=_CLIP, num_examples=24,
      sampling_prob=8 / 24, steps=100, delta=1e-5)
  optimizer = DPKerasSGDOptimizer(_CLIP, 1.0, learning_rate=_RATE, **kwargs)
  callback = EpsilonCallback(plan, batches=batches)
  _fit(optimizer, batches, None, callbacks=[callback], steps_per_epoch=2)
  return callback.guarantee, callback.reason


@pytest.mark.usefixtures('random_sums')
@pytest.mark.more
def test_epsilon_is_given_only_for_batches_of_one_size():
  guarantee, _ = _epsilon(FixedSizeBatches(_X, _Y, 8))
  assert guarantee is not None and guarantee.proven
  for microbatches in (2, 1):
    found, reason = _epsilon(FixedSizeBatches(_X, _Y, 8), num_microbatches=microbatches)
    assert found is None and 'twice the clip norm' in reason
  found, reason = _epsilon(
      PoissonBatches(_X, _Y, 8 / 24, seed=1), expected_batch_size=8)
  assert found is not None, reason


def test_samples_of_random_size_get_no_epsilon_but_a_remedy():
  batches = PoissonBatches(_X, _Y, 1 / 3, seed=1)
  plan = tfcactus.PrivacyPlan(
      noise=noise_lib.Gaussian(1.0), l2_norm_clip=_CLIP, num_examples=24,
      sampling_prob=8 / 24, steps=100, delta=1e-5)
  optimizer = DPKerasSGDOptimizer(_CLIP, 1.0, learning_rate=_RATE)
  model = _fit(optimizer, _X, _Y, batch_size=8)
  ledger = optimizer.training_ledger(model, plan, batches).ledger()
  found, reason = ledger.guarantee()
  assert found is None and 'expected_batch_size=8' in reason


def test_batches_that_are_drawn_for_an_epoch_have_no_ledger():
  batches = AllocatedBatches(_X, _Y, num_batches=3)
  plan = tfcactus.PrivacyPlan(
      noise=noise_lib.Gaussian(1.0), l2_norm_clip=_CLIP, num_examples=24,
      sampling_prob=8 / 24, steps=3, delta=1e-5)
  optimizer = DPKerasSGDOptimizer(_CLIP, 1.0, learning_rate=_RATE, plan=plan)
  model = _fit(optimizer, _X, _Y, batch_size=8)
  with pytest.raises(ValueError, match='drawn for a whole epoch'):
    optimizer.training_ledger(model, plan, batches)
