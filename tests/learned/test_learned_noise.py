"""Tests of learned noise: losses against accountants, gradients, and tables."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.representatives import representatives
import tfcactus
from tfcactus import accounting, noise
from tfcactus.learned import learned_noise, privacy_losses
from tfcactus.noise import scalar_table
from tfcactus.search import truncated

BINS = 3
HALF = np.exp(-0.25 * np.arange(12.0))
FULL = 0.5 * np.concatenate([HALF[::-1], HALF]) / HALF.sum()
TABLE = noise.ScalarTable.from_cell_masses(BINS, FULL)


def event(sampling_prob):
  step = accounting.noise_event(TABLE)
  if sampling_prob == 1:
    return step
  import dp_accounting  # pylint: disable=import-outside-toplevel
  return dp_accounting.PoissonSampledDpEvent(sampling_prob, step)


def losses(kind, steps, sampling_prob=1.0, half=4096):
  pairs = privacy_losses.outcome_pairs(
      tf.constant(FULL), BINS, sampling_prob)
  if kind == 'ma':
    return [[float(privacy_losses.moments_delta(
        pair, tf.constant(order, tf.float64), 0.3, steps))
             for order in np.geomspace(1e-3, 400, 300)] for pair in pairs]
  return [float(privacy_losses.buckets_delta(
      pair, 0.3, steps, tf.constant(3.0 / half, tf.float64), half,
      probabilistic=kind == 'pdp')) for pair in pairs]


@representatives('steps, sampling_prob', [
    (5, 0.2), (1, 1.0), (2, 0.2), (5, 1.0), (8, 1.0), (1, 0.2), (2, 1.0), (8, 0.2)], 2)
class TestForwardPass:

  @pytest.mark.more
  def test_adp_is_just_above_the_accountant(self, steps, sampling_prob):
    bounds = accounting.PhiAccountant().compose(
        event(sampling_prob), steps).delta_bounds(0.3)
    delta = max(losses('adp', steps, sampling_prob))
    assert bounds.lower <= delta * (1 + 1e-12)
    assert delta < bounds.upper * 1.02

  def test_pdp_is_just_above_the_buckets(self, steps, sampling_prob):
    bounds = accounting.PrivacyBucketsAccountant(guarantee='pdp').compose(
        event(sampling_prob), steps).delta_bounds(0.3)
    delta = max(losses('pdp', steps, sampling_prob))
    assert bounds.lower <= delta * (1 + 1e-9)
    if steps > 1:
      assert delta < bounds.upper * 1.05

  @pytest.mark.more
  def test_ma_is_proposition_17(self, steps, sampling_prob):
    accountant = accounting.ExtendedMomentsAccountant().compose(
        event(sampling_prob), steps)
    delta = max(min(row) for row in losses('ma', steps, sampling_prob))
    assert min(delta, 1.0) == pytest.approx(accountant.get_delta(0.3), rel=1e-3)


def test_losses_cover_both_directions():
  first, second = losses('adp', 3, 0.2)
  bounds = [accounting.PhiAccountant(direction=d).compose(event(0.2), 3).get_delta(
      0.3) for d in ('remove', 'add')]
  assert first == pytest.approx(bounds[0], rel=5e-2)
  assert second == pytest.approx(bounds[1], rel=5e-2)
  assert first > 1.5 * second and bounds[0] > 1.5 * bounds[1]


@pytest.mark.parametrize('kind', ['adp', 'ma'])
def test_slope_points_where_the_exact_delta_falls(kind):
  """Compares straight-through gradients with differences of a smooth version."""
  logits = tf.Variable(np.log(HALF))

  def loss(x):
    w = tf.nn.softmax(x)
    full = 0.5 * tf.concat([w[::-1], w], 0)
    (pair,) = privacy_losses.outcome_pairs(full, BINS, 1.0)
    if kind == 'ma':
      return privacy_losses.moments_delta(
          pair, tf.constant(5.0, tf.float64), 0.3, 4)
    return privacy_losses.buckets_delta(
        pair, 0.3, 4, tf.constant(7.0 / 16384, tf.float64), 16384,
        probabilistic=False)

  with tf.GradientTape() as tape:
    value = loss(logits)
  slope = tape.gradient(value, logits).numpy()
  # Buckets make the loss jump, so differences span many buckets.
  step = 1e-2 if kind == 'adp' else 1e-6
  for i in range(12):
    unit = tf.one_hot(i, 12, dtype=tf.float64) * step
    change = float(loss(logits + unit) - loss(logits - unit)) / (2 * step)
    assert change == pytest.approx(slope[i], rel=0.1, abs=0.03 * np.max(
        np.abs(slope)))


def test_losses_off_the_buckets_raise_the_bound():
  """They count as infinite, or as the lowest bucket."""
  (pair,) = privacy_losses.outcome_pairs(tf.constant(FULL), BINS, 1.0)
  exact = losses('adp', 4)[0]
  for half in (8, 40):
    narrow = float(privacy_losses.buckets_delta(
        pair, 0.3, 4, tf.constant(0.05, tf.float64), half,
        probabilistic=False))
    assert narrow >= exact
  assert narrow < 1


def test_sigmoid_noise_is_falling_and_cnn_noise_need_not_be():
  rng = np.random.default_rng(0)
  model = learned_noise.SigmoidModel(40, 4, 30, rng)
  assert np.all(np.diff(model().numpy()) <= 1e-12)
  assert len(model.trainable_variables) == 3
  other = learned_noise.ConvolutionModel(40, rng)
  assert np.any(np.diff(other().numpy()) > 0)
  assert other.filters.shape == (10, 3)


@pytest.mark.parametrize('loss, slack', [
    pytest.param('adp', 1.05, marks=pytest.mark.slow), ('pdp', 2.0),
    pytest.param('ma', 2.0, marks=pytest.mark.more)])
def test_one_release_comes_near_the_linear_program(loss, slack):
  ask = {'utility': 1.884781, 'epsilon': 0.3, 'norm': 1, 'bins': 10}
  table = learned_noise.LearnedNoise(
      5, loss=loss, progress=False, epochs=6000, decay=0.9995, **ask).solve()
  found = truncated.account(table, epsilon=0.3, norm=1)
  best = tfcactus.search.truncated_noise(5, **ask)
  assert best.delta.lower <= found.delta.upper < slack * best.delta.upper
  assert found.utility <= 1.884781 * (1 + 1e-9)
  assert table.monotone and not found.certified
  # The reported delta is the accountant's, the least of the history.
  assert min(row[2] for row in table.info['history']) == pytest.approx(
      found.delta.upper, rel=2e-4)


@pytest.mark.slow
def test_eight_releases_come_near_the_direct_method():
  ask = {'utility': 20, 'epsilon': 0.3, 'steps': 8, 'bins': 2}
  table = learned_noise.LearnedNoise(60, progress=False, max_seconds=110, **ask).solve()
  found = truncated.account(table, epsilon=0.3, steps=8)
  best = tfcactus.search.truncated_noise(60, **ask)
  assert found.delta.upper < 2 * best.delta.upper


@pytest.mark.slow
def test_sampled_releases():
  ask = {'utility': 2, 'epsilon': 0.3, 'steps': 4, 'bins': 4,
         'sampling_prob': 0.1}
  table = learned_noise.LearnedNoise(8, progress=False, max_seconds=60, **ask).solve()
  found = truncated.account(table, epsilon=0.3, steps=4, sampling_prob=0.1)
  best = tfcactus.search.truncated_noise(8, **ask)
  assert found.delta.upper < 2 * best.delta.upper


@pytest.mark.slow
def test_cnn_noise_is_accounted_by_the_envelope():
  table = learned_noise.LearnedNoise(
      3, 0.3, utility=1.2, norm=1, bins=6, model='cnn', epochs=600,
      learning_rate=1e-3, progress=False).solve()
  assert not table.monotone
  found = truncated.account(table, epsilon=0.3, norm=1)
  worst = max(scalar_table.shifted_pair(table, k).hockey_stick(0.3)
              for k in range(1, 7))
  assert found.delta.upper == pytest.approx(worst, rel=1e-6)


def test_seeds_repeat_and_differ():
  make = lambda seed: learned_noise.LearnedNoise(
      3, 0.3, bins=3, epochs=40, seed=seed, progress=False).solve().digest
  assert make(1) == make(1) != make(2)


def test_weight_halves_unless_the_noise_is_too_wide():
  wide = learned_noise.Training(learned_noise.LearnedNoise(
      3, 0.3, bins=3, utility=0.5, halving=10, weight=1e-3, progress=False))
  wide.run(10)
  assert float(wide._weight) == pytest.approx(2e-3)
  free = learned_noise.Training(learned_noise.LearnedNoise(
      3, 0.3, bins=3, halving=10, weight=1e-3, least_weight=3e-4,
      progress=False))
  free.run(10)
  assert float(free._weight) == pytest.approx(5e-4)
  free.run(30)
  assert float(free._weight) == pytest.approx(3e-4)


def test_stops_early_and_shows_a_bar(capfd):
  table = learned_noise.LearnedNoise(
      3, 0.3, bins=3, epochs=600, learning_rate=1e-12, patience=2).solve()
  shown = capfd.readouterr().err
  assert '/600 [' in shown and 'delta' in shown
  assert len(table.info['history']) == 3
  timed = learned_noise.LearnedNoise(
      3, 0.3, bins=3, epochs=6000, max_seconds=1e-3, progress=False).solve()
  assert len(timed.info['history']) == 1


@pytest.mark.parametrize('change, words', [
    ({'range': 0.3}, 'range > 0.5'), ({'utility': 9}, 'uniform'),
    ({'loss': 'rdp'}, 'loss'), ({'model': 'mlp'}, 'model'),
    ({'epsilon': -1}, 'epsilon'), ({'steps': 0}, 'steps'),
    ({'sampling_prob': 2}, 'sampling_prob'), ({'norm': 0}, 'norm'),
    ({'learning_rate': 0}, 'learning_rate'), ({'factor': 1.0}, 'factor > 1'),
    ({'buckets': 3}, 'buckets'), ({'patience': 0}, 'patience'),
    ({'sigmoids': 0}, 'sigmoids'), ({'max_seconds': math.nan}, 'max_seconds'),
    ({'seed': -1}, 'seed'), ({'epochs': 1.5}, 'epochs'),
], ids=repr)
def test_bad_requests(change, words):
  with pytest.raises(ValueError, match=words):
    learned_noise.LearnedNoise(**{'range': 3, 'epsilon': 0.3, **change})
