"""A model that trains by a method of its own is not trained by another, silently."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import NONE, X, Y
from tfcactus.keras import PoissonBatches, privatize

layers = tf.keras.layers


class Own(tf.keras.Model):
  """A subclass; those below override what it trains or is evaluated by."""

  def __init__(self):
    super().__init__()
    self.dense = layers.Dense(3)

  def call(self, inputs):
    return self.dense(inputs)


class OwnStep(Own):
  """Trains by a loss that it computes itself."""

  def train_step(self, data):
    return super().train_step(data)


class OwnLoss(Own):
  """Adds to the loss."""

  def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **kwargs):
    return super().compute_loss(x, y, y_pred, sample_weight, **kwargs)


class OwnTest(Own):
  """Is evaluated by something else."""

  def test_step(self, data):
    return super().test_step(data)


class Restored(OwnStep):
  """Trained by Keras' own step after all."""

  train_step = tf.keras.Model.train_step


def _built(cls):
  model = cls()
  model(tf.zeros([2, 6]))
  return model


@pytest.mark.parametrize('cls, name', [
    (OwnStep, 'train_step'), (OwnLoss, 'compute_loss')])
def test_own_training_is_refused_and_the_remedy_said(make_plan, cls, name):
  with pytest.raises(ValueError, match=f'tf.keras.Model.{name}'):
    privatize(_built(cls), make_plan())
  with pytest.raises(ValueError, match='as a function of targets and outputs'):
    privatize(cls(), make_plan())


def test_a_method_of_one_object_is_seen_too(make_plan):
  model = _built(Own)
  model.train_step = lambda data: {}
  with pytest.raises(ValueError, match='train_step'):
    privatize(model, make_plan())


def test_the_remedy_works(make_plan):
  private = privatize(_built(Restored), make_plan())
  private.compile('sgd', NONE)
  before = private.inner.dense.kernel.numpy()
  private.fit(PoissonBatches(X, Y, 0.25), epochs=1, verbose=0)
  assert np.abs(private.inner.dense.kernel.numpy() - before).max() > 0


def test_own_evaluation_is_told_of(make_plan):
  with pytest.warns(UserWarning, match='test_step'):
    privatize(_built(OwnTest), make_plan())
