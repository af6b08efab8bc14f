"""Tests of the tutorials of TensorFlow Privacy, ported as docs/porting.md shows."""

import numpy as np
import pytest
import tensorflow as tf

import tfcactus
from tfcactus import keras as tfcactus_keras

pytestmark = pytest.mark.slow

_RNG = np.random.default_rng(0)
_LAYERS = tf.keras.layers


def _fit(model, x, y, *, batch_size, epochs, l2_norm_clip, noise_multiplier, optimizer,
         loss):
  """Trains privately by the ported lines; returns the losses."""
  plan = tfcactus.PrivacyPlan(
      noise=tfcactus.Gaussian(noise_multiplier), l2_norm_clip=l2_norm_clip,
      num_examples=len(x), sampling_prob=batch_size / len(x),
      steps=epochs * len(x) // batch_size, delta=1e-5)
  private = tfcactus_keras.privatize(model, plan)
  private.compile(optimizer, loss)
  history = private.fit(
      tfcactus_keras.PoissonBatches(x, y, plan.sampling_prob), epochs=epochs,
      verbose=0).history['loss']
  guarantee = private.guarantee()
  assert guarantee.proven and guarantee.steps == plan.steps
  return history


def _cnn_layers():
  return [
      _LAYERS.Input((28, 28, 1)),
      _LAYERS.Conv2D(16, 8, strides=2, padding='same', activation='relu'),
      _LAYERS.MaxPool2D(2, 1),
      _LAYERS.Conv2D(32, 4, strides=2, padding='valid', activation='relu'),
      _LAYERS.MaxPool2D(2, 1),
      _LAYERS.Flatten(),
      _LAYERS.Dense(32, activation='relu'),
      _LAYERS.Dense(10)]


def _images(count=64):
  y = np.arange(count) % 10
  x = 0.1 * _RNG.random((count, 28, 28, 1))
  for image, label in zip(x, y):
    image[2 * label:2 * label + 6] += 0.8
  return x.astype(np.float32), tf.keras.utils.to_categorical(y, 10)


def test_the_tutorial_of_keras_models_trains():
  x, y = _images()
  model = tfcactus_keras.DPSequential(
      l2_norm_clip=1.0, noise_multiplier=0.01, num_microbatches=16,
      layers=_cnn_layers())
  model.compile(tf.keras.optimizers.SGD(learning_rate=0.15),
                tf.keras.losses.CategoricalCrossentropy(from_logits=True),
                metrics=['accuracy'])
  history = model.fit(x, y, epochs=3, batch_size=16, verbose=0,
                      validation_data=(x, y)).history
  assert history['loss'][-1] < history['loss'][0]


def test_the_tutorial_of_keras_models_has_a_guarantee_by_privatize():
  x, y = _images()
  history = _fit(
      tf.keras.Sequential(_cnn_layers()), x, y, batch_size=16, epochs=3,
      l2_norm_clip=1.0, noise_multiplier=0.05,
      optimizer=tf.keras.optimizers.SGD(0.15),
      loss=tf.keras.losses.CategoricalCrossentropy(from_logits=True))
  assert history[-1] < history[0]


def test_the_tutorial_of_language_models_trains():
  length, words = 12, 16
  text = np.arange(64 * length).reshape(64, length) % words
  model = tf.keras.Sequential([
      _LAYERS.Input((length - 1,), dtype='int32'),
      # One-hot vectors, as a table that is not trained.
      _LAYERS.Embedding(words, words, embeddings_initializer='identity',
                        trainable=False),
      _LAYERS.LSTM(8, return_sequences=True, unroll=True),
      _LAYERS.Dense(words)])
  history = _fit(
      model, text[:, :-1], text[:, 1:], batch_size=16, epochs=3, l2_norm_clip=1.0,
      noise_multiplier=0.05, optimizer=tf.keras.optimizers.Adam(0.05),
      loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  assert history[-1] < history[0]


def test_the_tutorial_of_movielens_trains():
  users, movies = 20, 15
  pairs = np.stack([_RNG.integers(0, users, 256), _RNG.integers(0, movies, 256)], 1)
  ratings = (pairs.sum(1) % 5).astype(np.int64)
  inputs = _LAYERS.Input((2,), dtype='int32')
  columns = _LAYERS.Reshape((2, 1))(inputs)
  user, movie = (_LAYERS.Flatten()(_LAYERS.Cropping1D(cropping)(columns))
                 for cropping in ((0, 1), (1, 0)))

  def latent(ids, count, width):
    return _LAYERS.Flatten()(_LAYERS.Embedding(count, width)(ids))

  factors = _LAYERS.Multiply()([latent(user, users, 5), latent(movie, movies, 5)])
  hidden = _LAYERS.Concatenate()([latent(user, users, 10), latent(movie, movies, 10)])
  model = tf.keras.Model(
      inputs, _LAYERS.Dense(5)(_LAYERS.Concatenate()([factors, hidden])))
  history = _fit(
      model, pairs.astype(np.int32), ratings, batch_size=32, epochs=4,
      l2_norm_clip=5.0, noise_multiplier=0.05,
      optimizer=tf.keras.optimizers.Adam(0.05),
      loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  assert history[-1] < history[0]


def test_the_tutorial_of_logistic_regression_trains():
  x = _RNG.normal(size=(128, 20)).astype(np.float32)
  x *= 8 / np.linalg.norm(x, axis=1, keepdims=True)
  y = np.argmax(x[:, :10], 1)
  model = tf.keras.Sequential([_LAYERS.Input((20,)), _LAYERS.Dense(10)])
  history = _fit(
      model, x, y, batch_size=16, epochs=3, l2_norm_clip=float(np.sqrt(2 * (8**2 + 1))),
      noise_multiplier=0.05, optimizer=tf.keras.optimizers.SGD(0.01),
      loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  assert history[-1] < history[0]
