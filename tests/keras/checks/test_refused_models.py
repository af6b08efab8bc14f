"""Tests of the refusal of layers that split texts into any number of words."""

import pytest
import tensorflow as tf

from tfcactus.keras import privatize
from tfcactus.keras.checks import refused_models

layers = tf.keras.layers
_WORDS = ['the', 'a', 'cat', 'mat', 'sat', 'on']


def test_texts_of_no_fixed_length_are_refused(make_plan):
  inputs = tf.keras.Input((1,), dtype='string')
  for options in ({}, {'ragged': True}):
    turn = layers.TextVectorization(vocabulary=_WORDS, **options)
    with pytest.raises(ValueError, match='Give it output_sequence_length=...'):
      refused_models.check_layers(tf.keras.Model(inputs, turn(inputs)))
  turn = layers.TextVectorization(vocabulary=_WORDS)
  x = layers.GlobalAveragePooling1D()(layers.Embedding(8, 3)(turn(inputs)))
  with pytest.raises(ValueError, match='the longest text of a batch'):
    privatize(tf.keras.Model(inputs, layers.Dense(2)(x)), make_plan())


@pytest.mark.parametrize('options', [
    {'output_sequence_length': 5}, {'output_mode': 'multi_hot'},
    {'split': None, 'standardize': None}])
def test_texts_of_one_length_are_taken(options):
  turn = layers.TextVectorization(vocabulary=_WORDS, **options)
  inputs = tf.keras.Input((1,), dtype='string')
  refused_models.check_layers(tf.keras.Model(inputs, turn(inputs)))
