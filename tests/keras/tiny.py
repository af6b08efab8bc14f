"""Forty examples of three classes, and a model and a loss for them."""

import numpy as np
import tensorflow as tf

X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
Y = np.arange(40) % 3
NONE = tf.keras.losses.SparseCategoricalCrossentropy(
    from_logits=True, reduction='none')


def inner(*extra):
  """A linear model, behind other layers if there are any."""
  return tf.keras.Sequential([tf.keras.layers.Input((6,)), *extra,
                              tf.keras.layers.Dense(3)])
