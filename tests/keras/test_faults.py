"""Faults of TensorFlow Privacy 0.9.0, each seen there and not here.

Every test runs its behaviour first and shows the fault, so that a release that
mends it is noticed, and then asks the same of this package.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import NONE as _NONE, X as _X, Y as _Y
from tfcactus.keras.compat import versions
from tfcactus.keras.tfp import stand_in

if versions.KERAS_3 or not stand_in.AVAILABLE:
  pytest.skip('TensorFlow Privacy has no optimizers here',
              allow_module_level=True)

import tensorflow_privacy
from tensorflow_privacy.privacy.fast_gradient_clipping import layer_registry

import tfcactus
from tfcactus.keras import DPKerasSGDOptimizer, NoiseSampler, PoissonBatches, privatize

_LOSS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _model(*extra):
  tf.keras.utils.set_random_seed(1)
  return tf.keras.Sequential([
      tf.keras.layers.Input((6,)), *extra, tf.keras.layers.Dense(3),
      tf.keras.layers.Activation('linear', dtype='float32')])


def _theirs(clip, noise_multiplier, loss=_NONE, model=None, **kwargs):
  model = model or _model()
  model.compile(tensorflow_privacy.DPKerasSGDOptimizer(
      clip, noise_multiplier, learning_rate=1.0, **kwargs), loss)
  return model


def _drop_in(clip, noise_multiplier, loss=_NONE, model=None, **kwargs):
  model = model or _model()
  model.compile(DPKerasSGDOptimizer(
      clip, noise_multiplier, learning_rate=1.0, expected_batch_size=10,
      **kwargs), loss)
  return model


def _private(clip, noise_multiplier, model=None):
  private = privatize(model or _model(), tfcactus.PrivacyPlan(
      noise=tfcactus.Gaussian(max(noise_multiplier, 1e-9)), l2_norm_clip=clip,
      num_examples=40, sampling_prob=0.25, steps=100, delta=1e-5))
  private.compile(tf.keras.optimizers.SGD(1.0), _LOSS)
  return private


def _move(model, x, y, **kwargs):
  """How far training moves the weights, as one vector."""
  before = [v.numpy() for v in model.trainable_variables]
  model.fit(x, y, verbose=0, **kwargs)
  return np.concatenate([np.ravel(v.numpy() - old) for v, old in
                         zip(model.trainable_variables, before)])


_OURS = [_drop_in, _private]


@pytest.mark.parametrize('ours', _OURS)
def test_a_last_batch_that_is_not_divisible(ours):
  with pytest.raises(tf.errors.InvalidArgumentError):
    _move(_theirs(1.0, 0.0, num_microbatches=16), _X, _Y, batch_size=16)
  assert np.all(np.isfinite(_move(ours(1.0, 0.0), _X, _Y, batch_size=16)))


@pytest.mark.parametrize('ours', _OURS)
def test_a_batch_is_divided_by_a_public_number(ours):
  """One example, and it ten times: of sums that differ tenfold, the first is
  told from the second by TensorFlow Privacy's noise alone."""
  many = np.repeat(_X[:1], 10, 0), np.repeat(_Y[:1], 10, 0)
  theirs = [np.linalg.norm(_move(_theirs(1e-3, 0.0), *data, batch_size=10))
            for data in ((_X[:1], _Y[:1]), many)]
  np.testing.assert_allclose(*theirs, rtol=1e-3)
  model = lambda: ours(1e-3, 0.0)
  one, ten = [np.linalg.norm(_move(
      model(), tf.data.Dataset.from_tensors(data), None))
              for data in ((_X[:1], _Y[:1]), many)]
  np.testing.assert_allclose([one, ten], [1e-4, 1e-3], rtol=1e-3)


@pytest.mark.parametrize('ours', _OURS)
def test_an_empty_sample_is_noise(ours):
  empty = tf.data.Dataset.from_tensors((_X[:0], _Y[:0]))
  assert not np.all(np.isfinite(_move(_theirs(1.0, 1.0), empty, None)))
  moved = _move(ours(1.0, 1.0), empty, None)
  assert np.all(np.isfinite(moved)) and 0.02 < np.std(moved) < 0.3


def test_noise_once_for_accumulated_batches():
  def wide():
    return tf.keras.Sequential([tf.keras.layers.Input((3000,)),
                                tf.keras.layers.Dense(3)])

  x, y = np.zeros((4, 3000), np.float32), _Y[:4]
  theirs = [np.std(_move(_theirs(
      1.0, 1.0, model=wide(), num_microbatches=4 // k,
      gradient_accumulation_steps=k), x, y, batch_size=4 // k))
            for k in (1, 4)]
  # Of a logical batch of four: four times the variance.
  np.testing.assert_allclose(theirs, [0.25, 0.5], rtol=0.05)
  ours = [np.std(_move(_drop_in(
      1.0, 1.0, model=wide(), gradient_accumulation_steps=k), x, y,
                       batch_size=4 // k)) for k in (1, 4)]
  np.testing.assert_allclose(ours, [0.1, 0.1], rtol=0.05)


def test_mixed_precision_learns():
  tf.keras.mixed_precision.set_global_policy('mixed_float16')
  try:
    assert not np.any(_move(_theirs(1.0, 0.0), _X, _Y, batch_size=40))
    half = _move(_private(1.0, 0.0), _X, _Y, batch_size=40)
    # The drop-in optimizer gets scaled losses, and says so.
    with pytest.raises(ValueError, match='float16'):
      _move(_drop_in(1.0, 0.0), _X, _Y, batch_size=40)
  finally:
    tf.keras.mixed_precision.set_global_policy('float32')
  whole = _move(_private(1.0, 0.0), _X, _Y, batch_size=40)
  np.testing.assert_allclose(half, whole, atol=0.02)
  assert np.linalg.norm(whole) > 0.1


def test_a_loss_over_the_batch_is_no_loss_per_example():
  """Clipped as one gradient, an example may bring as much as the batch."""
  moved = _move(_theirs(1e-3, 0.0, _LOSS, num_microbatches=1), _X, _Y,
                batch_size=40)
  np.testing.assert_allclose(np.linalg.norm(moved), 1e-3, rtol=1e-3)
  with pytest.raises(ValueError, match='loss per example'):
    _move(_drop_in(1e-3, 0.0, _LOSS), _X, _Y, batch_size=40)
  with pytest.raises(ValueError, match='one example per microbatch'):
    _drop_in(1e-3, 0.0, num_microbatches=1)
  # A private model takes the loss before it is reduced.
  np.testing.assert_allclose(
      _move(_private(1e-3, 0.0), _X, _Y, batch_size=40),
      _move(_drop_in(1e-3, 0.0), _X, _Y, batch_size=40), atol=1e-8)


@pytest.mark.parametrize('ours', _OURS)
def test_models_are_saved_and_loaded(ours, tmp_path):
  model = _theirs(1.0, 1.0)
  _move(model, _X, _Y, batch_size=10)
  model.save(tmp_path / 'theirs.keras')
  with pytest.raises(TypeError, match='DPOptimizerClass'):
    tf.keras.models.load_model(tmp_path / 'theirs.keras')
  model = ours(1.0, 1.0)
  _move(model, _X, _Y, batch_size=10)
  model.save(tmp_path / 'ours.keras')
  again = tf.keras.models.load_model(tmp_path / 'ours.keras')
  counts = again if ours is _private else again.optimizer
  assert int(counts.released_steps) == 4
  _move(again, _X, _Y, batch_size=10)
  assert int(counts.released_steps) == 8


def test_batch_normalization_is_refused():
  model = _theirs(1.0, 1.0, model=_model(tf.keras.layers.BatchNormalization()))
  _move(model, _X, _Y, batch_size=10)
  # Means of the data, neither clipped nor noisy.
  assert np.all(model.layers[0].moving_mean.numpy() != 0)
  with pytest.raises(ValueError, match='GroupNormalization'):
    _private(1.0, 1.0, _model(tf.keras.layers.BatchNormalization()))


def test_a_broken_example_does_not_spread():
  x = _X.copy()
  x[3] = np.nan
  assert np.all(np.isnan(_move(_theirs(1.0, 1.0), x, _Y, batch_size=40)))
  assert np.all(np.isfinite(_move(_private(1.0, 1.0), x, _Y, batch_size=40)))
  batches = PoissonBatches(x, _Y, 0.25)
  assert np.all(np.isfinite(_move(_drop_in(1.0, 1.0), batches, None)))


def test_convolutions_take_the_fast_way():
  registry = layer_registry.make_default_layer_registry()
  assert registry.is_elem(tf.keras.layers.Dense(1))
  assert not registry.is_elem(tf.keras.layers.Conv2D(1, 1))
  private = _private(1.0, 1.0, tf.keras.Sequential([
      tf.keras.layers.Input((6, 6, 1)), tf.keras.layers.Conv2D(2, 3),
      tf.keras.layers.Flatten(), tf.keras.layers.Dense(3)]))
  ways = [line for line in private.privacy_summary().splitlines()
          if 'conv2d' in line.lower()]
  assert ways and 'vectori' not in ways[0].lower()


def test_noise_has_its_tails(monkeypatch):
  """Of the most extreme bits: TensorFlow's float32 normals end at 5.68."""
  theirs = max(float(tf.reduce_max(tf.abs(tf.random.normal([5_000_000]))))
               for _ in range(3))
  assert theirs < 5.68
  sampler = NoiseSampler(tfcactus.Gaussian(1.0))
  stream = sampler._rng._stream
  words = stream.words
  monkeypatch.setattr(stream, 'words', lambda count: words(count) >> 24)
  assert np.max(np.abs(sampler.draw(10_000))) > 5.68
