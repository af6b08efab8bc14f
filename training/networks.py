"""The models the training scripts train."""

from __future__ import annotations

import tensorflow as tf

SHIFT = 2 / 28
"""How far views of an image are shifted at most, in parts of its side."""


def build(features: str, activation: str, augmented: bool = False
         ) -> tf.keras.Sequential:
  """The model that goes with the features of an image.

  Args:
    features: A name in `features.FEATURES`.
    activation: Of the CNN.
    augmented: Whether it shifts the images at random that it trains on.

  Raises:
    ValueError: if features that are no images are to be shifted.
  """
  if features == 'scattering':
    if augmented:
      raise ValueError(
          'Expected --augmentation-multiplicity 1 with scattering features, which '
          'cannot be shifted as images are.')
    return linear()
  return cnn(activation, augmented)


def cnn(activation: str = 'relu', augmented: bool = False) -> tf.keras.Sequential:
  """The CNN of TensorFlow Privacy's MNIST tutorial: 26,010 parameters.

  Args:
    activation: The tutorial has 'relu'; under clipping and noise the bounded
      'tanh' learns better (Papernot et al., "Tempered Sigmoid Activations for
      Deep Learning with Differential Privacy", 2021).
    augmented: Whether it shifts the images at random that it trains on.
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
  """A linear model on scattering features: 39,700 parameters."""
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.InputLayer((7, 7, 81)), layers.Flatten(), layers.Dense(10)])
