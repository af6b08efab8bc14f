"""Private batches in a fit that is not private are refused, and nothing else is."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import inner, NONE, X, Y
import tfcactus
from tfcactus import keras as private

PLAN = dict(l2_norm_clip=1.0, num_examples=40, sampling_prob=0.25, steps=8, delta=1e-5,
            noise=tfcactus.Gaussian(2.0))
MEAN = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
REFUSED = 'Expected a private model in fit'


def _batches():
  return private.PoissonBatches(X, Y, 0.25)


def _plain():
  model = inner()
  model.compile('sgd', MEAN, metrics=['accuracy'])
  return model


class _Mine(tf.keras.Sequential):
  """A model that calls the fit of its base."""

  def fit(self, data, **kwargs):
    return super().fit(data, **kwargs)


def _mine():
  model = _Mine([tf.keras.layers.Input((6,)), tf.keras.layers.Dense(3)])
  model.compile('sgd', MEAN)
  return model


@pytest.mark.parametrize('make', [_plain, _mine])
@pytest.mark.parametrize('batches', [
    _batches(), private.FixedSizeBatches(X, Y, 10), private.AllocatedBatches(X, Y, 10),
    private.ShuffledBatches(X, Y, 10)], ids=lambda batches: type(batches).__name__)
def test_a_plain_model_is_refused_before_any_step(make, batches):
  model = make()
  with pytest.raises(ValueError, match=REFUSED):
    model.fit(batches, verbose=0)
  assert int(model.optimizer.iterations) == 0


def test_the_dropped_result_of_privatize_is_noticed():
  model = _plain()
  private.privatize(model, tfcactus.PrivacyPlan(**PLAN))
  with pytest.raises(ValueError, match='for_plain_training'):
    model.fit(_batches(), verbose=0)


@pytest.mark.filterwarnings('ignore:Each example takes')
def test_a_dataset_of_batches_is_noticed_too():
  model = _plain()
  before = model.get_weights()
  with pytest.raises(Exception, match=REFUSED):
    model.fit(_batches().dataset(), verbose=0)
  for old, new in zip(before, model.get_weights()):
    np.testing.assert_array_equal(old, new)
  assert len(list(_batches().dataset())) == 4


def test_plain_training_that_is_meant_runs():
  batches = _batches()
  plain, model = batches.for_plain_training(), _plain()
  model.fit(plain, epochs=2, verbose=0)
  model.fit(plain.dataset(), verbose=0)
  assert int(model.optimizer.iterations) == 12
  with pytest.raises(ValueError, match=REFUSED):  # Said of the others alone.
    model.fit(batches, verbose=0)


def test_what_trains_nothing_takes_the_batches():
  model, batches = _plain(), _batches()
  model.evaluate(batches, verbose=0)
  model.predict(batches, verbose=0)
  assert len(batches) == len(list(batches)) == 4
  model.fit(X, Y, validation_data=batches, verbose=0)
  for x, y, weights in batches:
    model.train_on_batch(x, y, weights)


class TwoOptimizers(tf.keras.Model):
  """A model whose own step takes a private optimizer."""

  def __init__(self):
    super().__init__()
    self.dense = tf.keras.layers.Dense(3)
    self.own = private.DPKerasSGDOptimizer.from_plan(tfcactus.PrivacyPlan(**PLAN))

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
      tfcactus.PrivacyPlan(**PLAN), learning_rate=0.1), NONE)
  return model


def _privatized():
  model = private.privatize(inner(), tfcactus.PrivacyPlan(**PLAN))
  model.compile('sgd', NONE)
  return model


@pytest.mark.filterwarnings('ignore:Each example takes')
@pytest.mark.parametrize('make', [
    _privatized, lambda: _drop_in(inner()), _two_optimizers], ids=[
        'privatized', 'drop-in', 'own step'])
def test_private_training_takes_the_batches(make):
  for kind in (lambda batches: batches, private.PoissonBatches.dataset):
    make().fit(kind(_batches()), verbose=0)
