"""Private training whose noise is made on the device."""

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from tests.keras.tiny import inner, NONE, plan_of, poisson, privatized
import tfcactus
from tfcactus import correlated
from tfcactus.keras import make_run_card, privatize
from tfcactus.keras.noise import device_noise


def _moved(private, **options):
  """Returns the change of the weights by a `fit`, flat."""
  before = private.inner.get_weights()
  private.fit(poisson(**options), verbose=0)
  return np.concatenate([(a - b).ravel() for a, b in zip(
      private.inner.get_weights(), before)])


def _wide(**options):
  """Returns a private model of 30,000 weights whose gradients are nearly zero."""
  model = tf.keras.Sequential([
      tf.keras.layers.Input((6,)), tf.keras.layers.Dense(3000),
      tf.keras.layers.Dense(3, kernel_initializer='zeros')])
  return privatized(plan_of(l2_norm_clip=1e-4), model, tf.keras.optimizers.SGD(1.0),
                    **options)


@pytest.mark.more
def test_steps_apply_noise_of_the_law_and_say_where_it_was_made(tmp_path):
  private = _wide(randomness='device')
  moved = _moved(private, steps_per_epoch=1) / 1e-4 * 10  # The expected batch size.
  # Keys are of the operating system.
  assert stats.kstest(moved, 'norm').pvalue > 1e-7
  assert stats.kstest(1.2 * moved, 'norm').pvalue < 1e-7
  assert private.randomness == 'device'
  card = make_run_card(private)
  assert card['released_steps'] == 1 and card['epsilon'] is not None
  assert 'ChaCha20 (RFC 8439) on the device' in card['randomness']
  again = _moved(private, steps_per_epoch=1) / 1e-4 * 10
  assert abs(np.corrcoef(moved, again)[0, 1]) < 6 / np.sqrt(moved.size)


@pytest.mark.more
def test_a_loaded_model_draws_under_other_keys(tmp_path):
  private = _wide(randomness='device')
  private.save(tmp_path / 'model.keras')
  loaded = tf.keras.models.load_model(tmp_path / 'model.keras')
  assert loaded.randomness == 'device'
  saved, card = (make_run_card(each)['randomness'] for each in (private, loaded))
  assert 'before the model was saved' in card and 'saved' not in saved
  moved = [_moved(each, steps_per_epoch=1) for each in (private, loaded)]
  assert abs(np.corrcoef(*moved)[0, 1]) < 6 / np.sqrt(moved[0].size)


@pytest.mark.more
def test_seeded_steps_repeat_on_the_device():
  one, two = (_moved(privatized(model=inner(seed=1), seed=3, randomness='device'),
                     seed=3) for _ in range(2))
  np.testing.assert_array_equal(one, two)


def test_split_noise_is_made_on_the_device():
  private = privatized(randomness='device', split_noise=True)
  assert private.randomness == 'device'


@pytest.mark.parametrize('plan, words', [
    (lambda: plan_of(sampling_prob=1 / 4, steps=24, correlation=correlated.
                     BandedStrategy(3).solve(24)), 'independent over steps'),
    (lambda: plan_of(arithmetic='integer'), 'a plan with arithmetic=integer'),
    (lambda: plan_of(noise=tfcactus.Laplace(2.0), accounting='scalar-unproven'),
     'Expected Gaussian noise')])
def test_noise_that_only_the_host_draws_is_refused(plan, words):
  with pytest.raises(ValueError, match=words):
    privatize(inner(), plan(), randomness='device')
  privatize(inner(), plan())


def test_the_host_draws_by_default():
  private = privatized()
  assert private.randomness == 'host'
  assert 'ChaCha' not in make_run_card(private)['randomness']


def test_a_large_model_on_a_gpu_draws_on_the_device(monkeypatch):
  monkeypatch.setattr(device_noise, 'serves', lambda: True)
  monkeypatch.setattr(device_noise, 'LARGE', 21)
  private = privatized()
  assert private.randomness == 'device'
  assert privatized(seed=1).randomness == 'host'
  assert privatized(randomness='host').randomness == 'host'
  private.compile('sgd', NONE)


def test_what_is_released_beside_the_gradient_counts_as_size(monkeypatch):
  monkeypatch.setattr(device_noise, 'serves', lambda: True)
  monkeypatch.setattr(device_noise, 'LARGE', 22)
  private = privatized(plan_of(adaptive_clipping=tfcactus.AdaptiveClipping()))
  assert private.randomness == 'host'
  private.fit(poisson(), verbose=0)  # 21 weights and a count of unclipped examples.
  assert private.randomness == 'device'


def test_unknown_randomness_is_refused():
  with pytest.raises(ValueError, match="'auto', 'host' or 'device', got 'gpu'"):
    privatize(inner(), plan_of(), randomness='gpu')
