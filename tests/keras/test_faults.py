"""Tests of faults of TensorFlow Privacy 0.9.0 that this package does not have.

Every test first shows the fault there, so that a release that mends it is noticed, and
then runs the same with this package.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import inner, MEAN, NONE, plan_of, privatized, X, Y
from tests.representatives import representatives
from tfcactus.keras.compat import versions
from tfcactus.keras.tfp import stand_in

if versions.KERAS_3 or not stand_in.AVAILABLE:
  pytest.skip('TensorFlow Privacy has no optimizers here',
              allow_module_level=True)

import tensorflow_privacy
from tensorflow_privacy.privacy.fast_gradient_clipping import layer_registry

import tfcactus
from tfcactus.keras import DPKerasSGDOptimizer, NoiseSampler, PoissonBatches


def _model(*extra):
  model = inner(*extra, seed=1)
  model.add(tf.keras.layers.Activation('linear', dtype='float32'))
  return model


def _theirs(clip, noise_multiplier, loss=NONE, model=None, **kwargs):
  model = model or _model()
  model.compile(tensorflow_privacy.DPKerasSGDOptimizer(
      clip, noise_multiplier, learning_rate=1.0, **kwargs), loss)
  return model


def _drop_in(clip, noise_multiplier, loss=NONE, model=None, **kwargs):
  model = model or _model()
  model.compile(DPKerasSGDOptimizer(
      clip, noise_multiplier, learning_rate=1.0, expected_batch_size=10,
      **kwargs), loss)
  return model


def _private(clip, noise_multiplier, model=None):
  plan = plan_of(
      noise=tfcactus.Gaussian(max(noise_multiplier, 1e-9)), l2_norm_clip=clip)
  return privatized(plan, model or _model(), tf.keras.optimizers.SGD(1.0), MEAN)


def _move(model, x, y, **kwargs):
  """Returns how far training moves the weights, as one vector."""
  before = [v.numpy() for v in model.trainable_variables]
  model.fit(x, y, verbose=0, **kwargs)
  return np.concatenate([np.ravel(v.numpy() - old) for v, old in
                         zip(model.trainable_variables, before)])


_OURS = [_private, _drop_in]


@representatives('ours', _OURS)
@pytest.mark.more
def test_a_last_batch_may_be_smaller(ours):
  with pytest.raises(tf.errors.InvalidArgumentError):
    _move(_theirs(1.0, 0.0, num_microbatches=16), X, Y, batch_size=16)
  assert np.all(np.isfinite(_move(ours(1.0, 0.0), X, Y, batch_size=16)))


@representatives('ours', _OURS)
def test_sums_are_divided_by_a_public_number(ours):
  """TensorFlow Privacy divides by the batch size: one example moves as far as ten."""
  many = np.repeat(X[:1], 10, 0), np.repeat(Y[:1], 10, 0)
  theirs = [np.linalg.norm(_move(_theirs(1e-3, 0.0), *data, batch_size=10))
            for data in ((X[:1], Y[:1]), many)]
  np.testing.assert_allclose(*theirs, rtol=1e-3)
  model = lambda: ours(1e-3, 0.0)
  one, ten = [np.linalg.norm(_move(
      model(), tf.data.Dataset.from_tensors(data), None))
              for data in ((X[:1], Y[:1]), many)]
  np.testing.assert_allclose([one, ten], [1e-4, 1e-3], rtol=1e-3)


@representatives('ours', _OURS)
@pytest.mark.more
def test_an_empty_batch_releases_noise(ours):
  empty = tf.data.Dataset.from_tensors((X[:0], Y[:0]))
  assert not np.all(np.isfinite(_move(_theirs(1.0, 1.0), empty, None)))
  moved = _move(ours(1.0, 1.0), empty, None)
  assert np.all(np.isfinite(moved)) and 0.02 < np.std(moved) < 0.3


@pytest.mark.more
def test_accumulated_batches_get_noise_once():
  def wide():
    return tf.keras.Sequential([tf.keras.layers.Input((3000,)),
                                tf.keras.layers.Dense(3)])

  x, y = np.zeros((4, 3000), np.float32), Y[:4]
  theirs = [np.std(_move(_theirs(
      1.0, 1.0, model=wide(), num_microbatches=4 // k,
      gradient_accumulation_steps=k), x, y, batch_size=4 // k))
            for k in (1, 4)]
  # Noise in each of four parts has four times the variance.
  np.testing.assert_allclose(theirs, [0.25, 0.5], rtol=0.05)
  ours = [np.std(_move(_drop_in(
      1.0, 1.0, model=wide(), gradient_accumulation_steps=k), x, y,
                       batch_size=4 // k)) for k in (1, 4)]
  np.testing.assert_allclose(ours, [0.1, 0.1], rtol=0.05)


@pytest.mark.more
def test_mixed_precision_trains():
  tf.keras.mixed_precision.set_global_policy('mixed_float16')
  try:
    assert not np.any(_move(_theirs(1.0, 0.0), X, Y, batch_size=40))
    half = _move(_private(1.0, 0.0), X, Y, batch_size=40)
    # The drop-in optimizer is given scaled losses, and raises.
    with pytest.raises(ValueError, match='float16'):
      _move(_drop_in(1.0, 0.0), X, Y, batch_size=40)
  finally:
    tf.keras.mixed_precision.set_global_policy('float32')
  whole = _move(_private(1.0, 0.0), X, Y, batch_size=40)
  np.testing.assert_allclose(half, whole, atol=0.02)
  assert np.linalg.norm(whole) > 0.1


@pytest.mark.more
def test_a_loss_over_the_batch_is_not_clipped_as_one_gradient():
  """Clipping the batch's gradient bounds no example's part of it."""
  moved = _move(_theirs(1e-3, 0.0, MEAN, num_microbatches=1), X, Y,
                batch_size=40)
  np.testing.assert_allclose(np.linalg.norm(moved), 1e-3, rtol=1e-3)
  with pytest.raises(ValueError, match='loss per example'):
    _move(_drop_in(1e-3, 0.0, MEAN), X, Y, batch_size=40)
  with pytest.raises(ValueError, match='each example is its own microbatch'):
    _drop_in(1e-3, 0.0, num_microbatches=1)
  # A private model computes the loss per example, before any reduction.
  np.testing.assert_allclose(
      _move(_private(1e-3, 0.0), X, Y, batch_size=40),
      _move(_drop_in(1e-3, 0.0), X, Y, batch_size=40), atol=1e-8)


@pytest.mark.more
@pytest.mark.parametrize('ours', _OURS)
def test_models_are_saved_and_loaded(ours, tmp_path):
  model = _theirs(1.0, 1.0)
  _move(model, X, Y, batch_size=10)
  model.save(tmp_path / 'theirs.keras')
  with pytest.raises(TypeError, match='DPOptimizerClass'):
    tf.keras.models.load_model(tmp_path / 'theirs.keras')
  model = ours(1.0, 1.0)
  _move(model, X, Y, batch_size=10)
  model.save(tmp_path / 'ours.keras')
  again = tf.keras.models.load_model(tmp_path / 'ours.keras')
  counts = again if ours is _private else again.optimizer
  assert counts.released_steps == 4
  _move(again, X, Y, batch_size=10)
  assert counts.released_steps == 8


def test_batch_normalization_is_refused():
  model = _theirs(1.0, 1.0, model=_model(tf.keras.layers.BatchNormalization()))
  _move(model, X, Y, batch_size=10)
  # Means of the data, without clipping and noise.
  assert np.all(model.layers[0].moving_mean.numpy() != 0)
  with pytest.raises(ValueError, match='GroupNormalization'):
    _private(1.0, 1.0, _model(tf.keras.layers.BatchNormalization()))


def test_an_example_that_is_not_finite_does_not_spread():
  x = X.copy()
  x[3] = np.nan
  assert np.all(np.isnan(_move(_theirs(1.0, 1.0), x, Y, batch_size=40)))
  assert np.all(np.isfinite(_move(_private(1.0, 1.0), x, Y, batch_size=40)))
  batches = PoissonBatches(x, Y, 0.25)
  assert np.all(np.isfinite(_move(_drop_in(1.0, 1.0), batches, None)))


def test_convolutions_have_a_gradient_rule():
  registry = layer_registry.make_default_layer_registry()
  assert registry.is_elem(tf.keras.layers.Dense(1))
  assert not registry.is_elem(tf.keras.layers.Conv2D(1, 1))
  private = _private(1.0, 1.0, tf.keras.Sequential([
      tf.keras.layers.Input((6, 6, 1)), tf.keras.layers.Conv2D(2, 3),
      tf.keras.layers.Flatten(), tf.keras.layers.Dense(3)]))
  ways = [line for line in private.privacy_summary().splitlines()
          if 'conv2d' in line.lower()]
  assert ways and 'vectori' not in ways[0].lower()


@pytest.mark.more
def test_noise_has_the_tails_of_its_law(monkeypatch):
  """TensorFlow's float32 normals end at 5.68, whatever the random bits."""
  theirs = max(float(tf.reduce_max(tf.abs(tf.random.normal([5_000_000]))))
               for _ in range(3))
  assert theirs < 5.68
  sampler = NoiseSampler(tfcactus.Gaussian(1.0))
  stream = sampler._rng
  words = stream.words
  monkeypatch.setattr(stream, 'words', lambda count: words(count) >> 24)
  assert np.max(np.abs(sampler.draw(10_000))) > 5.68
