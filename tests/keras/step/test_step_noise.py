"""Tests of noise of which each worker adds a share."""

from fractions import Fraction
import itertools
import json

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import plan_of as tiny_plan, privatized
import tfcactus
from tfcactus import correlated
from tfcactus.keras import FixedSizeBatches, make_run_card, privatize
from tfcactus.keras.distribution import replicas
from tfcactus.keras.step import step_noise
from tfcactus.noise import discrete_gaussian


def plan_of(noise=None, **kwargs):
  return tiny_plan(**{**dict(
      noise=noise or tfcactus.Gaussian(2.0), l2_norm_clip=0.5, num_examples=60,
      sampling_prob=0.1, steps=30), **kwargs})


def model():
  return tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(2)])


def _sums(workers, seeds):
  """Returns the sum of the shares of all workers."""
  total = np.zeros(100_000)
  for worker, seed in zip(range(workers), seeds):
    share = step_noise.ShareSampler(tfcactus.Gaussian(2.0), worker, workers, seed)
    total += share.add_to([tf.zeros(total.shape, tf.float64)],
                          tf.constant(0.5, tf.float64))[0].numpy()
  return total


@pytest.mark.parametrize('workers', [1, 2, 5])
def test_shares_add_up_to_the_noise_and_differ_under_one_seed(workers):
  # Four standard errors of a standard deviation; equal shares would give sqrt(workers).
  assert abs(_sums(workers, [7] * workers).std() - 1) < 4 / np.sqrt(2 * 100_000)


@pytest.mark.parametrize('workers', [1, 2, 3, 7, 100, 12345])
def test_variances_of_shares_are_never_less_than_the_whole(workers):
  part = step_noise.ShareSampler(tfcactus.Gaussian(1.0), 0, workers)._part
  assert 1 <= workers * Fraction(part)**2 < 1 + Fraction(1, 10**14)


@pytest.mark.parametrize('workers', [1, 2, 5])
def test_shares_in_whole_numbers_add_up_to_the_noise(workers, monkeypatch):
  scale, total = tf.constant(0.5, tf.float64), np.zeros(100_000)
  monkeypatch.setattr(replicas, 'workers', lambda strategy=None: workers)
  for worker in range(workers):
    monkeypatch.setattr(replicas, 'worker', lambda strategy=None, own=worker: own)
    share = step_noise.share_sampler(plan_of(arithmetic='integer'), 7)
    total += share.whole([np.zeros(total.shape)], share.per_unit(0.5))[0]
  # The sum of D(S) has scale S sqrt(workers), and so 2 clipping norms of 1/2 have.
  per_unit = share.per_unit(0.5)
  assert per_unit == pytest.approx(
      discrete_gaussian.SCALE * np.sqrt(workers), rel=1e-15)
  assert abs((total / per_unit).std() - 1) < 4 / np.sqrt(2 * 100_000)
  noisy = share.total(tf.constant(total), scale, tf.float64).numpy()
  np.testing.assert_allclose(noisy, total / per_unit, rtol=1e-15)
  assert abs(share.draw(100_000).numpy().std() * np.sqrt(workers) / 2 - 1) < 0.02
  with pytest.raises(ValueError, match="pass randomness='host'"):
    step_noise.share_sampler(plan_of(arithmetic='integer'), None, 'device')


@pytest.mark.parametrize('plan, words', [
    (lambda: plan_of(tfcactus.Laplace(2.0), accounting='scalar-unproven'),
     'got Laplace'),
    (lambda: plan_of(
        sampling_prob=1 / 12, steps=24,
        correlation=correlated.BandedStrategy(3).solve(24)), 'correlated over steps')])
def test_noise_without_shares_is_refused(plan, words):
  with pytest.raises(ValueError, match=words):
    privatize(model(), plan(), split_noise=True)


@pytest.mark.parametrize('value', [1, 'workers', None])
def test_split_noise_must_be_a_bool(value):
  with pytest.raises(ValueError, match='split_noise to be True or False'):
    privatize(model(), plan_of(), split_noise=value)


def test_the_condition_states_the_noise_that_one_worker_sees(monkeypatch):
  assert step_noise.condition(plan_of()) == ''
  monkeypatch.setattr(replicas, 'workers', lambda strategy=None: 4)
  words = step_noise.condition(plan_of())
  assert 'shares of 4 workers' in words
  assert 'multiplier of 1.73205, ' in words and 'with 1 over' in words
  assert 'or with 0.5 where one example more moves another' in words
  # Whole numbers: what rounding costs is in both.
  words = step_noise.condition(plan_of(arithmetic='integer'))
  assert 'multiplier of 1.73199, ' in words and 'with 0.999969 over' in words


def test_one_example_more_changes_what_a_worker_sends_by_two_examples_at_most():
  """Its own, or one that moves to it, and one that moves from it."""
  most = 0
  for size, place, workers in itertools.product(range(12), range(13), (2, 3)):
    before = np.delete(np.arange(size + 1), min(place, size))
    for worker in range(workers):
      one, other = (np.concatenate(replicas.Shares(2 * workers, 2 * worker, 2).of(
          batch)) for batch in (before, np.arange(size + 1)))
      most = max(most, np.setxor1d(one, other).size)
  assert most == 2


@pytest.mark.more
def test_one_worker_adds_all_of_the_noise_and_saves_the_flag(tmp_path):
  x, y = np.zeros((60, 3), np.float32), np.zeros(60)
  private = privatized(plan_of(), model(), split_noise=True)
  private.fit(FixedSizeBatches(x, y, 6, steps_per_epoch=2), verbose=0)
  card = make_run_card(private)
  assert card['split_noise'] and 'shares' not in json.dumps(card['statement'])
  private.save(tmp_path / 'model.keras')
  assert tf.keras.models.load_model(tmp_path / 'model.keras').split_noise
