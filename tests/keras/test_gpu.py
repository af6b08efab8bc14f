"""What holds on CPUs holds on a GPU: `make test-gpu`; skipped where there is none."""

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from tests.keras import one_by_one
from tests.keras.gradients import test_vectorized
from tests.keras.gradients.test_engine import data_for, engine_of, loop_of
from tests.keras.tiny import MEAN, NONE, plan_of, PoissonBatches
import tfcactus
from tfcactus.keras import NoiseSampler, privatize
from tfcactus.keras.noise import device_noise

layers = tf.keras.layers

pytestmark = pytest.mark.skipif(
    not tf.config.list_physical_devices('GPU'), reason='There is no GPU.')


@pytest.mark.parametrize('blocks', [7, 5000, device_noise._CHUNK])
def test_noise_is_that_of_the_host_from_the_same_key(blocks):
  device_noise.check.__wrapped__(blocks)
  assert device_noise.serves()


def test_noise_is_made_on_the_gpu_with_its_law():
  draws = NoiseSampler(tfcactus.Gaussian(0.7), randomness='device').draw(2_000_000)
  assert 'GPU' in draws.device
  assert stats.kstest(draws.numpy() / 0.7, 'norm').pvalue > 1e-4
  assert stats.kstest(1.01 * draws.numpy() / 0.7, 'norm').pvalue < 1e-6


def _model(*parts):
  inputs = tf.keras.Input((8, 8, 3))
  x = inputs
  for part in parts:
    x = part(x)
  return one_by_one.shake(
      tf.keras.Model(inputs, layers.Dense(3)(layers.Flatten()(x))))


@pytest.mark.parametrize('rounded', [True, False])
@pytest.mark.parametrize('layer', [
    lambda: layers.Dense(16, 'relu'), lambda: layers.Conv2D(16, 3),
    lambda: layers.DepthwiseConv2D(3), lambda: layers.LayerNormalization()])
def test_no_example_passes_the_clipping_norm(layer, rounded):
  before = tf.config.experimental.tensor_float_32_execution_enabled()
  tf.config.experimental.enable_tensor_float_32_execution(rounded)
  try:
    model = _model(layer())
    x, y = data_for(model, 32)
    sums = engine_of(model, 32)
    for row in range(4):
      alone = np.zeros(32, np.float32)
      alone[row] = 1
      assert 0 < np.linalg.norm(sums(x, y, alone, 0.5)) <= 0.5
    if not rounded:
      expected = loop_of(model)(x, y, None, 0.5)
      assert np.linalg.norm(sums(x, y) - expected) <= 1e-4 * np.linalg.norm(expected)
  finally:
    tf.config.experimental.enable_tensor_float_32_execution(before)


def test_ids_out_of_range_reach_no_other_example():
  # The lookup gives zeros for such ids, where that of a CPU raises an error.
  model = test_vectorized.taking_model()
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=(6, 5, 4)).astype(np.float32), np.arange(6) % 3
  ids = rng.integers(-2, 8, (6, 2)).astype(np.int32)
  sums = lambda rows: one_by_one.engine_sums(
      model, MEAN, [x[rows], ids[rows]], y[rows]).sums
  whole = sums(np.arange(6))
  for row in range(6):
    moved = np.linalg.norm(whole - sums(np.delete(np.arange(6), row)))
    assert 0.01 < moved <= one_by_one.CLIP * (1 + 1e-4)


def test_training_draws_on_the_gpu_and_reports_its_memory():
  model = _model(layers.Conv2D(8, 3), layers.Flatten(), layers.Dense(4096, 'relu'))
  private = privatize(model, plan_of())
  private.compile(tf.keras.optimizers.SGD(0.1), NONE)
  assert model.count_params() > device_noise.LARGE and private.randomness == 'device'
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=(40, 8, 8, 3)).astype(np.float32), np.arange(40) % 3
  private.fit(PoissonBatches(x, y, 0.25), epochs=2, verbose=0)
  assert private.guarantee().upper > 0 and private.physical_batch_size > 0
  assert np.all([np.all(np.isfinite(each)) for each in private.inner.get_weights()])
