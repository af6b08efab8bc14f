"""Tests that AutoGraph rewrites only what Keras has it rewrite."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.autograph.impl import api

from tfcactus.keras import PoissonBatches, privatize
from tfcactus.keras.compat import graphs, versions

layers = tf.keras.layers
_REFUSED = tf.errors.OperatorNotAllowedInGraphError


def _branches(x):
  if tf.reduce_sum(x) > 0:
    return x
  return -x


def test_functions_left_as_written_may_call_rewritten_ones():
  x = tf.constant([1.0, -3.0])
  with pytest.raises(_REFUSED):
    tf.function(graphs.without_autograph(lambda x: _branches(x)))(x)
  inner = tf.function(graphs.without_autograph(
      lambda x: graphs.as_keras_calls(_branches)(x)))
  if versions.KERAS_3:
    with pytest.raises(_REFUSED):
      inner(x)
  else:
    np.testing.assert_array_equal(inner(x), -x)


class _Scaled(layers.Layer):
  """A custom layer."""

  def build(self, shape):
    self.w = self.add_weight(name='w', shape=(shape[-1],), initializer='ones')

  def call(self, inputs):
    return inputs * self.w


def test_a_first_step_rewrites_nothing_of_this_library(make_plan, monkeypatch):
  rewritten, convert = [], api._convert_actual  # pylint: disable=protected-access

  def noted(entity, context):
    rewritten.append(f'{entity.__module__}.{entity.__qualname__}')
    return convert(entity, context)

  monkeypatch.setattr(api, '_convert_actual', noted)

  def loss(targets, outputs):
    return tf.reduce_sum((targets - outputs)**2, -1)

  model = privatize(tf.keras.Sequential([
      layers.Input((3,)), _Scaled(), layers.Dense(2)]), make_plan())
  model.compile('sgd', loss)
  x = np.ones((40, 3), np.float32)
  model.fit(PoissonBatches(x, x[:, :2], 0.25), verbose=0)
  assert not [name for name in rewritten if name.startswith('tfcactus')]
  if not versions.KERAS_3:  # Keras 2 has the user's functions rewritten.
    assert any(name.startswith(__name__) for name in rewritten)
