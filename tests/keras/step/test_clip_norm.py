"""Tests of adaptive clipping: TensorFlow Privacy's rule, and one release for both."""

import importlib

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from tests.keras.tiny import inner, MEAN, plan_of, privatized
from tests.representatives import representatives
import tfcactus
from tfcactus import AdaptiveClipping, noise as noise_lib
from tfcactus.keras import (
  DPKerasSGDOptimizer,
  EpsilonCallback,
  make_run_card,
  PoissonBatches,
  privatize,
  TableNoiseQuery,
)
from tfcactus.keras.compat import versions
from tfcactus.keras.tfp import stand_in

_X = 3 * np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
_Y = np.arange(40) % 3


def _plan(noise=None, rule=None, **changes):
  return plan_of(noise=noise or noise_lib.Gaussian(1e-9), **{
      'adaptive_clipping': rule or AdaptiveClipping(), **changes})


def _private(plan, rate=0.5, **kwargs):
  return privatized(
      plan, inner(seed=1), tf.keras.optimizers.SGD(rate), MEAN, **kwargs)


@representatives('geometric, rows', [(True, 3), (True, 64), (False, 7)])
def test_the_norm_moves_as_in_tensorflow_privacy(geometric, rows):
  if versions.KERAS_3 or not stand_in.AVAILABLE:
    pytest.skip('TensorFlow Privacy does not import here')
  peer = importlib.import_module(
      'tensorflow_privacy.privacy.dp_query.quantile_adaptive_clip_sum_query')
  rule = AdaptiveClipping(0.7, 0.4, 1e-8, geometric)
  private = _private(_plan(rule=rule), physical_batch_size=rows)
  query = peer.QuantileAdaptiveClipSumQuery(
      1.0, 0.0, 0.7, 0.4, 0.0, 10.0, geometric)
  model = tf.keras.models.clone_model(private.inner)
  model.set_weights(private.inner.get_weights())
  state = query.initial_global_state()
  norms = []
  for x, y, weights in PoissonBatches(_X, _Y, 0.25, seed=3, steps_per_epoch=8):
    private.train_on_batch(x, y, weights)
    params = query.derive_sample_params(state)
    total = query.initial_sample_state(model.trainable_variables)
    for xi, yi in zip(x[weights == 1], y[weights == 1]):
      with tf.GradientTape() as tape:
        loss = MEAN(yi[None], model(xi[None]))
      total = query.accumulate_record(
          params, total, tape.gradient(loss, model.trainable_variables))
    noisy, state, _ = query.get_noised_result(total, state)
    for variable, part in zip(model.trainable_variables, noisy):
      variable.assign_sub(0.5 * part / 10)
    norms.append(float(private.clip_norm))
    np.testing.assert_allclose(
        norms[-1], state.sum_state.l2_norm_clip.numpy(), rtol=1e-6)
    for ours, theirs in zip(private.inner.get_weights(), model.get_weights()):
      np.testing.assert_allclose(ours, theirs, atol=3e-5)
  assert len(set(norms)) == 8


@pytest.mark.more
def test_gradient_and_count_get_the_noise_of_the_account():
  plan = _plan(noise_lib.Gaussian(1.2),
               AdaptiveClipping(0.5, 0.01, 2.0), sampling_prob=1.0)
  private = _private(plan, rate=40.0, seed=5)
  step = tf.function(private.train_step)
  empty = (np.zeros((1, 6), np.float32), np.zeros(1, int), np.zeros(1))
  gradients, counts = [], []
  for _ in range(400):
    before, norm = private.inner.get_weights(), float(private.clip_norm)
    step(tuple(map(tf.constant, empty)))
    gradients.append(np.concatenate([
        np.ravel(a - b) for a, b in zip(before, private.inner.get_weights())]
                                    ) / norm)
    counts.append(-np.log(float(private.clip_norm) / norm) / 0.01 * 40)
  sigma = 1.2 / np.sqrt(1 - (1.2 / 4)**2)
  gradients, counts = np.concatenate(gradients), np.array(counts)

  def fits(values, sigma):
    return stats.chi2.cdf(np.sum(values**2) / sigma**2, values.size)

  assert 1e-3 < fits(gradients, sigma) < 1 - 1e-3
  assert 1e-3 < fits(counts, 2.0) < 1 - 1e-3
  # The noise of a constant norm, and 20 % less on the count, would fail.
  assert fits(gradients, 1.2) > 1 - 1e-3 and fits(counts, 2.5) < 1e-3
  assert abs(np.corrcoef(gradients[::21], counts)[0, 1]) < 0.2


def test_gradient_and_both_counts_get_the_noise_of_the_account():
  plan = _plan(noise_lib.Gaussian(1.2), AdaptiveClipping(0.5, 0.0, 2.0),
               sampling_prob=1.0, noisy_accuracy=tfcactus.NoisyAccuracy(1.5))
  private = _private(plan, rate=0.0, seed=5)
  right = np.sum(private.predict(_X, verbose=0).argmax(1) == _Y)
  step, norm = tf.function(private.train_step), private._step.norm
  found, update = [], norm.update_from

  def kept(noisy):
    sums = update(noisy)
    tf.numpy_function(lambda *parts: found.append(parts[-3:]) or np.int64(0),
                      noisy, tf.int64)
    return sums

  norm.update_from = kept
  for _ in range(300):
    step(tuple(map(tf.constant, (_X, _Y, np.ones(40)))))
  gradients, unclipped, answers = zip(*found)
  sensitivity = (1 - (1.2 / 4)**2 - (1.2 / 3)**2)**-0.5
  assert sensitivity == pytest.approx(plan.release_sensitivity)
  counts = np.array([unclipped, answers]) / np.array([[1.2 / 2.0], [1.2 / 1.5]]) / (
      sensitivity)
  gradients = np.stack([np.ravel(each) for each in gradients])
  gradients = (gradients - gradients.mean(0)) * (300 / 299)**0.5

  def fits(values, sigma):
    return stats.chi2.cdf(np.sum(values**2) / sigma**2, values.size)

  assert 1e-3 < fits(counts[1] - (right - 20), 1.5) < 1 - 1e-3
  assert 1e-3 < fits(counts[0] - np.round(counts[0].mean() * 2) / 2, 2.0) < 1 - 1e-3
  assert 1e-3 < fits(gradients, 1.2 * sensitivity) < 1 - 1e-3
  # The noise of one count less, a third more or less, or another centre, would fail.
  assert fits(gradients, 1.2 * (1 - (1.2 / 4)**2)**-0.5) > 1 - 1e-3
  assert fits(counts[1] - (right - 20), 2.0) < 1e-3
  assert fits(counts[1] - (right - 20), 1.0) > 1 - 1e-3
  assert fits(counts[1] - right, 1.5) > 1 - 1e-3
  assert np.max(np.abs(np.corrcoef(np.c_[counts.T, gradients].T) - np.eye(
      2 + gradients.shape[1]))) < 0.3
  np.testing.assert_allclose(np.array(norm.answers), [np.sum(counts[1]), 300])


@pytest.mark.more
def test_designed_noise_covers_gradient_and_count():
  table = noise_lib.RadialTable.normalized(
      22, 0.25, 0.25, [-0.8 * i for i in range(40)], -1.0)
  private = _private(_plan(table))
  history = private.fit(PoissonBatches(_X, _Y, 0.25), verbose=0,
                        callbacks=[EpsilonCallback()]).history
  assert private.guarantee().proven
  assert history['clip_norm'] == [float(private.clip_norm)] != [1.0]
  with pytest.raises(ValueError, match='that are not clipped is one'):
    _private(_plan(noise_lib.RadialTable.normalized(
        21, 0.25, 0.25, [-0.8 * i for i in range(40)], -1.0)))


@pytest.mark.more
def test_padding_and_examples_that_are_not_finite_leave_the_count():
  norms = []
  for break_it in (True, False):
    private = _private(_plan(rule=AdaptiveClipping(clipped_count_stddev=1.0)))
    x, weights = _X.copy(), np.ones(40)
    if break_it:
      x[:5] = 3e38
    else:
      weights[:5] = 0
    private.train_on_batch(x, _Y, weights)
    norms.append(float(private.clip_norm))
  np.testing.assert_allclose(*norms, rtol=1e-8)


def test_the_norm_is_saved_and_stays_in_its_range(tmp_path):
  private = _private(_plan(rule=AdaptiveClipping(0.0, 3.0, 1.0)))
  private.fit(PoissonBatches(_X, _Y, 0.25), epochs=3, verbose=0)
  private.save_weights(tmp_path / 'w.weights.h5')
  other = _private(_plan(rule=AdaptiveClipping(0.0, 3.0, 1.0)))
  other.load_weights(tmp_path / 'w.weights.h5')
  assert float(other.clip_norm) == float(private.clip_norm) < 1
  shrinking = _private(_plan(rule=AdaptiveClipping(0.0, 1e3, 1.0)))
  shrinking.train_on_batch(0 * _X, _Y)
  assert float(shrinking.clip_norm) == pytest.approx(1e-6)
  card = make_run_card(_private(_plan(
      noise_lib.Gaussian(1.0), AdaptiveClipping(0.0, 3.0, 1.0))))
  assert card['adaptive_clipping']['learning_rate'] == 3.0
  with pytest.raises(ValueError, match='another noise'):
    constant = _private(_plan(adaptive_clipping=None))
    norm = float(private.clip_norm)
    constant.set_weights([w for w in private.get_weights()
                          if np.ndim(w) or float(w) != norm])
    constant.guarantee()


@pytest.mark.parametrize('call, words', [
    (lambda: _private(_plan(), clipping='per_layer'), "clipping='flat'"),
    (lambda: _private(_plan(), clipping='automatic'), "clipping='flat'"),
    (lambda: DPKerasSGDOptimizer.from_plan(_plan()), 'without adaptive'),
    (lambda: TableNoiseQuery(_plan()), 'use tfcactus.keras.privatize'),
])
def test_what_adaptive_clipping_does_not_go_with_raises(call, words):
  with pytest.raises(ValueError, match=words):
    call()


@pytest.mark.slow
def test_an_audit_of_gradient_and_count_together():
  """Weights and clipping norm together reveal as much as the account says."""
  claim, clip, trials, canaries = 1.0, 0.5, 3000, []
  plan = tfcactus.PrivacyPlan(
      noise=noise_lib.Gaussian(claim), l2_norm_clip=clip, num_examples=12,
      sampling_prob=1.0, steps=1, delta=1e-3,
      adaptive_clipping=AdaptiveClipping(0.5, 1.0, 0.55))
  model = tf.keras.Sequential([
      tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1, use_bias=False)])
  private = privatize(model, plan)
  private.compile(tf.keras.optimizers.SGD(12.0),
                  lambda y, p: 50.0 * (y[:, 0] - p[:, 0]))
  x = np.zeros((12, 4), np.float32)
  x[0, 0] = -1.0  # The canary is clipped; half of the others are not.
  x[1:6, 1] = 1.0
  step = tf.function(private.train_step)
  gradient, count = claim * plan.release_sensitivity, 0.55
  for present in (0.0, 1.0):
    weights = tf.constant([present] + [1.0] * 11)
    seen = []
    for _ in range(trials):
      model.layers[0].kernel.assign(tf.zeros((4, 1)))
      private.clip_norm.assign(clip)
      step((tf.constant(x), tf.zeros((12, 1)), weights))
      moved = -float(model.layers[0].kernel[0, 0]) / clip
      halves = -np.log(float(private.clip_norm) / clip) * 12
      # The log likelihood ratio up to a constant.
      seen.append((moved / gradient**2, -0.5 * halves / count**2))
    canaries.append(np.array(seen))
  without, present = canaries
  rates = []
  for columns in ([0], [0, 1]):
    scores = [part[:, columns].sum(1) for part in (without, present)]
    threshold = np.mean([np.mean(score) for score in scores])
    errors = [np.sum(scores[0] > threshold), np.sum(scores[1] <= threshold)]
    rates.append([stats.beta.ppf(0.99995, e + 1, trials - e) for e in errors])
  refuted = [1 / np.sum(stats.norm.isf(rate)) for rate in rates]
  # The gradient alone reveals its own noise multiplier; gradient and count together
  # reveal that of the plan, which an account of the gradient alone would miss.
  assert refuted[0] > 0.9 * gradient > 1.9 * claim
  assert claim <= refuted[1] < 1.4 * claim
