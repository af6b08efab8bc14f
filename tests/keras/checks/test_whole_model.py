"""Tests of layers that split texts, which no private step takes, and of the remedy."""

import numpy as np
import pytest
import tensorflow as tf

from tfcactus.keras import PoissonBatches, privatize
from tfcactus.keras.checks import whole_model

layers = tf.keras.layers
_LOSS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
_TEXTS = np.array([['a cat sat'], ['the mat'], ['a mat on a cat'], ['sat']] * 10)


def _reader():
  inputs = layers.Input((5,), dtype='int64')
  x = layers.GlobalAveragePooling1D()(layers.Embedding(8, 3)(inputs))
  return tf.keras.Model(inputs, layers.Dense(2)(x))


def _turn():
  return layers.TextVectorization(
      vocabulary=['the', 'a', 'cat', 'mat', 'sat', 'on'], output_sequence_length=5)


def test_texts_are_split_before_a_private_model(make_plan):
  turn, labels = _turn(), np.arange(40) % 2
  inputs = tf.keras.Input((1,), dtype='string')
  with pytest.raises(ValueError, match='that splits texts') as error:
    privatize(tf.keras.Model(inputs, _reader()(turn(inputs))), make_plan())
  assert 'x = layer(texts)' in str(error.value)
  inner = _reader()
  before = inner.get_weights()[0]
  model = privatize(inner, make_plan())
  model.compile('sgd', _LOSS)
  x = np.asarray(turn(tf.constant(_TEXTS)))
  model.fit(PoissonBatches(x, labels, 0.25), verbose=0)
  assert model.releases == 4 and np.any(inner.get_weights()[0] != before)
  both = tf.keras.Sequential([tf.keras.Input((1,), dtype='string'), turn, inner])
  np.testing.assert_allclose(both(tf.constant(_TEXTS)), inner(x), rtol=1e-6)


def test_layers_that_do_not_split_texts_are_taken():
  for split, match in (('whitespace', 'splits texts'), (None, '')):
    turn = layers.TextVectorization(
        vocabulary=['a', 'b'], split=split, standardize=None)
    inputs = tf.keras.Input((1,), dtype='string')
    model = tf.keras.Model(inputs, turn(inputs))
    if match:
      with pytest.raises(ValueError, match=match):
        whole_model.check_texts(model)
    else:
      whole_model.check_texts(model)
