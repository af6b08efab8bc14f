"""Tests that only a fit that is not private refuses private batches."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import inner, MEAN, NONE, plan_of, poisson, privatized, X, Y
from tfcactus import keras as private

REFUSED = 'Expected a private model in fit'


def _plain():
  model = inner()
  model.compile('sgd', MEAN, metrics=['accuracy'])
  return model


class _Mine(tf.keras.Sequential):
  """A model whose fit calls that of its base class."""

  def fit(self, data, **kwargs):
    return super().fit(data, **kwargs)


def _mine():
  model = _Mine([tf.keras.layers.Input((6,)), tf.keras.layers.Dense(3)])
  model.compile('sgd', MEAN)
  return model


@pytest.mark.parametrize('make', [_plain, _mine])
@pytest.mark.parametrize('batches', [
    poisson(), private.FixedSizeBatches(X, Y, 10), private.AllocatedBatches(X, Y, 10),
    private.ShuffledBatches(X, Y, 10)], ids=lambda batches: type(batches).__name__)
def test_a_plain_model_is_refused_before_any_step(make, batches):
  model = make()
  with pytest.raises(ValueError, match=REFUSED):
    model.fit(batches, verbose=0)
  assert int(model.optimizer.iterations) == 0


def test_a_fit_of_the_model_given_to_privatize_raises():
  model = _plain()
  private.privatize(model, plan_of())
  with pytest.raises(ValueError, match='for_plain_training'):
    model.fit(poisson(), verbose=0)


@pytest.mark.filterwarnings('ignore:Each example takes')
def test_a_plain_model_refuses_datasets_of_private_batches():
  model = _plain()
  before = model.get_weights()
  with pytest.raises(Exception, match=REFUSED):
    model.fit(poisson().dataset(), verbose=0)
  for old, new in zip(before, model.get_weights()):
    np.testing.assert_array_equal(old, new)
  assert len(list(poisson().dataset())) == 4


def test_batches_for_plain_training_are_taken():
  batches = poisson()
  plain, model = batches.for_plain_training(), _plain()
  model.fit(plain, epochs=2, verbose=0)
  model.fit(plain.dataset(), verbose=0)
  assert int(model.optimizer.iterations) == 12
  with pytest.raises(ValueError, match=REFUSED):  # The batches themselves stay private.
    model.fit(batches, verbose=0)


def test_evaluation_and_prediction_take_the_batches():
  model, batches = _plain(), poisson()
  model.evaluate(batches, verbose=0)
  model.predict(batches, verbose=0)
  assert len(batches) == len(list(batches)) == 4
  model.fit(X, Y, validation_data=batches, verbose=0)
  for x, y, weights in batches:
    model.train_on_batch(x, y, weights)


class TwoOptimizers(tf.keras.Model):
  """A model whose own train_step uses a private optimizer."""

  def __init__(self):
    super().__init__()
    self.dense = tf.keras.layers.Dense(3)
    self.own = private.DPKerasSGDOptimizer.from_plan(plan_of())

  def call(self, inputs):
    return self.dense(inputs)

  def train_step(self, data):
    return {'loss': tf.reduce_sum(self(data[0]))}


def _two_optimizers():
  model = TwoOptimizers()
  model.compile('sgd')
  return model


def _drop_in(model):
  model.compile(private.DPKerasSGDOptimizer.from_plan(
      plan_of(), learning_rate=0.1), NONE)
  return model


@pytest.mark.usefixtures('random_sums')
@pytest.mark.filterwarnings('ignore:Each example takes')
@pytest.mark.parametrize('make', [
    privatized, lambda: _drop_in(inner()), _two_optimizers], ids=[
        'privatized', 'drop-in', 'own step'])
def test_private_training_takes_the_batches(make):
  for kind in (lambda batches: batches, private.PoissonBatches.dataset):
    make().fit(kind(poisson()), verbose=0)
