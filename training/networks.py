"""Models of the training scripts."""

from __future__ import annotations

import tensorflow as tf

SHIFT = 2 / 28
"""Largest random shift of an image in augmentation, as a fraction of its side."""


def build(features: str, activation: str, augmented: bool = False
         ) -> tf.keras.Sequential:
  """Returns a linear model for scattering features, otherwise the CNN.

  `features` is a name in `features.FEATURES`. If `augmented`, the CNN shifts training
  images at random; raises ValueError for scattering features.
  """
  if features == 'scattering':
    if augmented:
      raise ValueError(
          'Expected --augmentation-multiplicity 1 with scattering features, which '
          'cannot be shifted as images are.')
    return linear()
  return cnn(activation, augmented)


def cnn(activation: str = 'relu', augmented: bool = False) -> tf.keras.Sequential:
  """Returns the CNN of TensorFlow Privacy's MNIST tutorial: 26,010 parameters.

  The tutorial has the activation 'relu'. With clipping and noise, the bounded 'tanh' is
  more accurate (Papernot et al., "Tempered Sigmoid Activations for Deep Learning with
  Differential Privacy", 2021). If `augmented`, the CNN shifts training images at
  random.
  """
  layers = tf.keras.layers
  shift = [layers.RandomTranslation(SHIFT, SHIFT, 'constant')] if augmented else []
  return tf.keras.Sequential([
      layers.InputLayer((28, 28, 1)), *shift,
      layers.Conv2D(16, 8, strides=2, padding='same', activation=activation),
      layers.MaxPool2D(2, 1),
      layers.Conv2D(32, 4, strides=2, padding='valid', activation=activation),
      layers.MaxPool2D(2, 1),
      layers.Flatten(),
      layers.Dense(32, activation=activation),
      layers.Dense(10),
  ])


def linear() -> tf.keras.Sequential:
  """Returns a linear model on scattering features: 39,700 parameters."""
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.InputLayer((7, 7, 81)), layers.Flatten(), layers.Dense(10)])
