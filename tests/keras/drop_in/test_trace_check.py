"""The proof that losses behind a drop-in optimizer are each of one example."""

import numpy as np
import pytest
import tensorflow as tf

from tfcactus import keras as ours
from tfcactus.keras.drop_in import trace_check


def _check(loss, targets=2):
  """Checks a dense layer of two outputs with a loss, on targets of this width."""
  model = tf.keras.Sequential(
      [tf.keras.layers.Input((3,)), tf.keras.layers.Dense(2)])
  model.compile('sgd', loss)
  trace_check.check_per_example(model, ours.PoissonBatches(
      np.zeros((40, 3), np.float32), np.zeros((40, targets), np.float32), 0.25))


@pytest.mark.parametrize('name', ['reversed', 'upstream'])
def test_no_name_of_an_operation_proves_anything(name):
  def loss(targets, predictions):
    each = tf.reduce_mean((targets - predictions) ** 2, -1)
    return tf.reverse(each, [0], name=name)

  with pytest.raises(ValueError, match='goes along the examples'):
    _check(loss)


@pytest.mark.parametrize('dtype', [tf.float32, tf.complex64])
def test_custom_gradients_that_mix_examples_are_refused(dtype):
  @tf.custom_gradient
  def mix(x):
    return tf.identity(x), lambda gradient: gradient + tf.reduce_sum(
        gradient, 0, keepdims=True)

  def loss(targets, predictions):
    return tf.reduce_mean(tf.square(
        targets - tf.math.real(mix(tf.cast(predictions, dtype)))), -1)

  with pytest.raises(ValueError, match='goes over the examples'):
    _check(loss)


@pytest.mark.parametrize('dtype', [tf.float32, tf.complex64])
def test_lookups_whose_gradient_joins_the_ids_of_examples_are_refused(dtype):
  def loss(targets, predictions):
    return tf.square(tf.math.real(tf.gather(
        tf.cast(predictions, dtype), tf.cast(targets, tf.int32), batch_dims=1)))

  with pytest.raises(ValueError, match='becomes an id of the next example'):
    _check(loss, targets=1)
