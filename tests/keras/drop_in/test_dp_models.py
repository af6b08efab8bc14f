"""Tests of TensorFlow Privacy's DPModel, DPSequential and vectorised optimizers."""

import numpy as np
import pytest
import tensorflow as tf

from tests.representatives import representatives
from tfcactus.keras import (
  DPKerasSGDOptimizer,
  DPModel,
  DPSequential,
  VectorizedDPKerasSGDOptimizer,
)

_X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
_Y = _X @ np.ones((3, 1), np.float32)


def _layers(**kwargs):
  return [tf.keras.layers.Input((3,)), tf.keras.layers.Dense(
      1, kernel_initializer='zeros', **kwargs)]


def _model(kind, **kwargs):
  inputs, layer = _layers(**kwargs.pop('layer', {}))
  if kind is DPSequential:
    return kind(0.5, 1e-9, layers=[inputs, layer], **kwargs)
  return kind(0.5, 1e-9, inputs=inputs, outputs=layer(inputs), **kwargs)


def _weights(model):
  model.fit(_X, _Y, batch_size=8, shuffle=False, verbose=0)
  return np.concatenate([np.ravel(w) for w in model.get_weights()])


def _drop_in(kind=DPKerasSGDOptimizer):
  model = tf.keras.Sequential(_layers())
  model.compile(kind(0.5, 1e-9, learning_rate=0.3),
                tf.keras.losses.MeanSquaredError('none'))
  return _weights(model)


def _decaying():
  return tf.keras.optimizers.SGD(
      tf.keras.optimizers.schedules.ExponentialDecay(0.3, 10, 0.5))


@representatives('kind, make', [
    (DPModel, _decaying), (DPModel, lambda: tf.keras.optimizers.SGD(0.3)),
    (DPSequential, lambda: tf.keras.optimizers.SGD(0.3)),
    (DPSequential, _decaying)])
def test_models_with_plain_optimizers_train_as_with_a_drop_in_optimizer(kind, make):
  model = _model(kind, use_xla=False, layer_registry=object())
  model.compile(make(), tf.keras.losses.MeanSquaredError(), metrics=['mae'])
  assert isinstance(model.optimizer, DPKerasSGDOptimizer)
  got = _weights(model)
  assert np.any(got != 0)
  np.testing.assert_allclose(got, _drop_in(), rtol=1e-5, atol=1e-8)


@pytest.mark.more
def test_vectorized_optimizers_are_the_same_ones():
  np.testing.assert_array_equal(
      _drop_in(VectorizedDPKerasSGDOptimizer), _drop_in())
  made = VectorizedDPKerasSGDOptimizer(0.5, 1.0, None, True, learning_rate=0.1)
  again = VectorizedDPKerasSGDOptimizer.from_config(made.get_config())
  assert again.get_config() == made.get_config()
  with pytest.raises(ValueError, match='learning_rate and all further'):
    VectorizedDPKerasSGDOptimizer(1.0, 1.1, None, 0.15)
  with pytest.raises(TypeError, match='positional'):
    VectorizedDPKerasSGDOptimizer(1.0, 1.1, None, False, 2)


@pytest.mark.parametrize('make, words', [
    (lambda: DPSequential(1.0, 1.0, True, layers=[]), 'pass use_xla by name'),
    (lambda: _model(DPModel).compile('ftrl', 'mse'), 'SGD, Adam, Adagrad or RMS'),
    (lambda: _model(DPModel).compile('sgd', lambda y, p: y - p), 'a loss of Keras'),
    (lambda: _model(DPModel).compile(DPKerasSGDOptimizer(1.0, 1.0), 'mse'),
     'an optimizer of Keras'),
    (lambda: DPSequential(1.0, 1.0, layers=[tf.keras.layers.Dense(
        1, kernel_regularizer='l2')]).compile(
            'sgd', tf.keras.losses.MeanSquaredError()), 'without regularizers'),
    (lambda: _model(DPModel, layer={'kernel_regularizer': 'l2'}).compile(
        'sgd', tf.keras.losses.MeanSquaredError()), 'without regularizers')])
def test_other_arguments_are_refused_in_words(make, words):
  with pytest.raises(ValueError, match=words):
    make()
