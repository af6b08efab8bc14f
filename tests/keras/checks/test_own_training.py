"""Tests that models with their own training methods are refused."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import poisson, privatized
from tfcactus.keras import privatize

layers = tf.keras.layers


class Own(tf.keras.Model):
  """A subclassed model without own training."""

  def __init__(self):
    super().__init__()
    self.dense = layers.Dense(3)

  def call(self, inputs):
    return self.dense(inputs)


class OwnStep(Own):
  """Overrides train_step."""

  def train_step(self, data):
    return super().train_step(data)


class OwnLoss(Own):
  """Overrides compute_loss."""

  def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **kwargs):
    return super().compute_loss(x, y, y_pred, sample_weight, **kwargs)


class OwnTest(Own):
  """Overrides test_step."""

  def test_step(self, data):
    return super().test_step(data)


class Restored(OwnStep):
  """Restores the train_step of Keras."""

  train_step = tf.keras.Model.train_step


def _built(cls):
  model = cls()
  model(tf.zeros([2, 6]))
  return model


@pytest.mark.parametrize('cls, name', [
    (OwnStep, 'train_step'), (OwnLoss, 'compute_loss')])
def test_own_training_is_refused_with_a_remedy(make_plan, cls, name):
  with pytest.raises(ValueError, match=f'tf.keras.Model.{name}'):
    privatize(_built(cls), make_plan())
  with pytest.raises(ValueError, match='as a function of targets and outputs'):
    privatize(cls(), make_plan())


def test_a_method_set_on_the_model_is_noticed(make_plan):
  model = _built(Own)
  model.train_step = lambda data: {}
  with pytest.raises(ValueError, match='train_step'):
    privatize(model, make_plan())


def test_a_model_that_follows_the_remedy_trains(make_plan):
  private = privatized(make_plan(), _built(Restored))
  before = private.inner.dense.kernel.numpy()
  private.fit(poisson(), verbose=0)
  assert np.abs(private.inner.dense.kernel.numpy() - before).max() > 0


def test_own_evaluation_gives_a_warning(make_plan):
  with pytest.warns(UserWarning, match='test_step'):
    privatize(_built(OwnTest), make_plan())
