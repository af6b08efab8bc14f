"""Tests of models, strategies and dtypes that a private step takes or refuses."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import NONE, poisson, X, Y
from tests.representatives import representatives
from tfcactus.keras import (
  DPKerasSGDOptimizer,
  EpsilonCallback,
  PoissonBatches,
  privatize,
)

layers = tf.keras.layers


def _dense(dtype=None):
  tf.keras.utils.set_random_seed(1)
  return tf.keras.Sequential([layers.Input((6,)), layers.Dense(3, dtype=dtype)])


def _mirrored():
  return tf.distribute.MirroredStrategy(['CPU:0'])


@representatives('inside', [False, True])
def test_one_device_trains_as_without_a_strategy(make_plan, inside):
  plain = privatize(_dense(), make_plan())
  plain.compile(tf.keras.optimizers.SGD(0.5), NONE)
  with tf.distribute.OneDeviceStrategy('CPU:0').scope():
    model = _dense()
    if inside:
      private = privatize(model, make_plan())
      private.compile(tf.keras.optimizers.SGD(0.5), NONE)
  if not inside:
    private = privatize(model, make_plan())
    private.compile(tf.keras.optimizers.SGD(0.5), NONE)
  for each in (plain, private):
    each.fit(X, Y, batch_size=40, verbose=0)
  np.testing.assert_allclose(private.inner.get_weights()[0],
                             plain.inner.get_weights()[0], atol=1e-6)


@pytest.mark.more
def test_one_mirrored_replica_trains(make_plan):
  with _mirrored().scope():
    model = _dense()
    model.compile(DPKerasSGDOptimizer.from_plan(make_plan()), NONE)
    private = privatize(_dense(), make_plan())
    private.compile('sgd', NONE)
  batches = poisson()
  epsilon = EpsilonCallback(batches=batches)
  model.fit(batches, verbose=0, callbacks=[epsilon])
  assert model.optimizer.released_steps == 4
  assert epsilon.guarantee is not None
  private.fit(batches, verbose=0)
  assert private.released_steps == 4 and private.guarantee().steps == 4


class Pair(tf.keras.Model):

  def __init__(self):
    super().__init__()
    self.dense = layers.Dense(3)

  def call(self, inputs):
    return self.dense(inputs), 0.5


def test_an_output_without_rows_is_refused(make_plan):
  with pytest.raises(ValueError, match='a row for each example'):
    private = privatize(Pair(), make_plan())
    private.compile('sgd', NONE)
    private.fit(poisson(), verbose=0)


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
def test_variables_in_half_precision_are_refused(make_plan, dtype):
  private = privatize(_dense(dtype), make_plan())
  private.compile('sgd', NONE)
  with pytest.raises(ValueError, match=f'float64, got {dtype}:'):
    private.fit(poisson(), verbose=0)


@contextlib.contextmanager
def _rewritten(option):
  """Lets Grappler rewrite float32 operations into half precision in the context."""
  tf.config.optimizer.set_experimental_options({option: True})
  try:
    yield
  finally:
    tf.config.optimizer.set_experimental_options({option: False})


@representatives('option', [
    'auto_mixed_precision', 'auto_mixed_precision_onednn_bfloat16',
    'auto_mixed_precision_mkl'])
def test_graphs_that_are_rewritten_in_half_precision_are_refused(make_plan, option):
  """Functions are rewritten when they run, so that traced steps are refused as well."""
  private = privatize(_dense(), make_plan())
  private.compile('sgd', NONE)
  refused = pytest.raises(Exception, match=f"option '{option}' to be off")
  with _rewritten(option), refused:
    private.fit(poisson(), verbose=0)
  private.fit(poisson(), verbose=0)
  before = private.inner.get_weights()
  step = private.train_function
  with _rewritten(option), refused:
    step(iter(poisson().dataset()))
  for one, other in zip(before, private.inner.get_weights()):
    np.testing.assert_array_equal(one, other)


@pytest.mark.more
def test_data_of_other_lengths_train_without_another_compile(make_plan):
  # TensorFlow traces the second step for any length; the third is no new trace.
  private = privatize(tf.keras.Sequential([
      layers.Input((None, 2)), layers.Dense(3)]), make_plan())
  private.compile('sgd', tf.keras.losses.MeanSquaredError())
  for length in (3, 2, 1):
    private.fit(PoissonBatches(
        X.reshape(-1, 3, 2)[:, :length], np.ones([len(X), length, 3]), 0.25),
                steps_per_epoch=1, verbose=0)
  assert private.ledger().steps == 3
