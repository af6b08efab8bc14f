"""Tests that private gradients are right where activations are recomputed."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import one_by_one
from tests.keras.tiny import MEAN, X, Y
from tfcactus.keras.compat import versions

layers = tf.keras.layers
_X, _Y = X[:6], Y[:6]
_KERAS_3 = pytest.mark.skipif(
    not versions.KERAS_3, reason='Keras 2 has no RematScope')


class _Block(layers.Layer):
  """A residual block whose activations are computed again in the backward pass."""

  def __init__(self, dropout=0.0):
    super().__init__()
    self._wide, self._narrow = layers.Dense(8, activation='tanh'), layers.Dense(6)
    self._drop = layers.Dropout(dropout)

  def build(self, shape):
    self._wide.build(shape)
    self._narrow.build((None, 8))
    self.built = True

  def call(self, x):
    return tf.recompute_grad(
        lambda x: x + self._drop(self._narrow(self._wide(x)), training=True))(x)


def _model(*parts):
  tf.keras.utils.set_random_seed(1)
  inputs = x = tf.keras.Input((6,))
  for part in parts:
    x = part(x)
  return one_by_one.shake(tf.keras.Model(inputs, layers.Dense(3)(x)))


def _assert_right(model, vectorize=False):
  got = one_by_one.engine_sums(model, MEAN, _X, _Y, vectorize)
  one_by_one.assert_same(got, one_by_one.loop_sums(model, MEAN, _X, _Y))
  return got.routes


def test_recomputed_blocks_equal_a_loop():
  routes = _assert_right(_model(_Block()))
  assert [type(layer).__name__ for layer in routes.vectorized()] == ['_Block']


@_KERAS_3
def test_remat_scopes_equal_a_loop():
  from tfcactus.keras.compat.versions import keras
  with keras.RematScope(mode='activations'):
    model = _model(layers.Dense(8, activation='tanh'), layers.Dense(6, 'relu'))
  _assert_right(model)


@_KERAS_3
def test_code_that_is_not_vectorised_as_it_was_proved_is_refused():
  model = _model(_Block(dropout=0.5))
  with pytest.raises(ValueError, match="Pass engine='vectorized'"):
    one_by_one.engine_sums(model, MEAN, _X, _Y)
  got = one_by_one.engine_sums(model, MEAN, _X, _Y, vectorize=True)
  assert np.all(np.isfinite(got.sums))
