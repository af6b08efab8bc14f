"""Texts without recurrence or attention."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.keras.zoo.base import (
  Case,
  classified,
  entry,
  function,
  layers,
  logits_loss,
  Size,
)


@entry('Text CNN (Kim)')
def text_cnn(s: Size) -> Case:
  length, vocabulary = s(6, 60), s(8, 2000)
  inputs = tf.keras.Input((length,), dtype='int32')
  x = layers.Embedding(vocabulary, s(3, 50))(inputs)
  x = layers.Concatenate()([
      layers.GlobalMaxPooling1D()(layers.Conv1D(s(2, 32), size, activation='relu')(x))
      for size in (2, 3, 4)])
  x = layers.Dropout(s(0.0, 0.5))(x)
  return classified(s, inputs, layers.Dense(2)(x), s.tokens(length, vocabulary), 2)


@entry('fastText bag of words, mask_zero', fast=True)
def fast_text(s: Size) -> Case:
  length, vocabulary = s(5, 60), s(8, 5000)
  inputs = tf.keras.Input((length,), dtype='int32')
  x = layers.Embedding(vocabulary, s(3, 32), mask_zero=True)(inputs)
  x = layers.GlobalAveragePooling1D()(x)
  return classified(s, inputs, layers.Dense(4)(x), s.tokens(length, vocabulary), 4)


@entry('Bag of words, multi-hot')
def multi_hot(s: Size) -> Case:
  size = s(6, 1000)
  inputs = tf.keras.Input((s(4, 30),), dtype='int32')
  x = layers.CategoryEncoding(size, output_mode='multi_hot')(inputs)
  return classified(s, inputs, layers.Dense(3)(x), s.labels(size, s(4, 30)), 3)


@entry('Word2vec by negative samples')
def word2vec(s: Size) -> Case:
  size, width = s(8, 2000), s(3, 64)
  word = tf.keras.Input((1,), dtype='int32')
  context = tf.keras.Input((5,), dtype='int32')
  a = layers.Embedding(size, width)(word)
  b = layers.Embedding(size, width)(context)
  x = layers.Flatten()(layers.Dot(axes=2)([a, b]))
  y = np.tile([1.0, 0, 0, 0, 0], (s.rows, 1)).astype(np.float32)
  return Case(tf.keras.Model([word, context], x),
              [s.labels(size, 1), s.labels(size, 5)], y,
              tf.keras.losses.BinaryCrossentropy(from_logits=True))


@entry('Tagger: Embedding(mask_zero), Dense, a loss per token')
def tagger(s: Size) -> Case:
  length, vocabulary = s(5, 60), s(8, 2000)
  inputs = tf.keras.Input((length,), dtype='int32')
  x = layers.Embedding(vocabulary, s(3, 32), mask_zero=True)(inputs)
  model = tf.keras.Model(inputs, layers.Dense(4)(x))
  return Case(model, s.tokens(length, vocabulary), s.labels(4, length),
              logits_loss())


@entry('TextVectorization in front')
def vectorization(s: Size) -> Case:
  words = ['the', 'cat', 'sat', 'on', 'a', 'mat']
  turn = layers.TextVectorization(
      vocabulary=words, output_sequence_length=s(4, 30))
  inputs = tf.keras.Input((1,), dtype='string')
  x = layers.Embedding(len(words) + 2, s(3, 16))(turn(inputs))
  x = layers.GlobalAveragePooling1D()(x)
  texts = [' '.join(s.rng.choice(words, 4)) for _ in range(s.rows)]
  return classified(s, inputs, layers.Dense(2)(x), tf.constant(texts)[:, None], 2)


@entry('TextVectorization in front, a bag of words')
def vectorized_bag(s: Size) -> Case:
  words = ['the', 'cat', 'sat', 'on', 'a', 'mat']
  turn = layers.TextVectorization(vocabulary=words, output_mode='multi_hot')
  inputs = tf.keras.Input((1,), dtype='string')
  x = layers.Dense(s(3, 64), 'relu')(turn(inputs))
  texts = [' '.join(s.rng.choice(words, 4)) for _ in range(s.rows)]
  return classified(s, inputs, layers.Dense(2)(x), tf.constant(texts)[:, None], 2)


@entry('Tagger: Embedding(mask_zero), a weight per token')
def weighted_tagger(s: Size) -> Case:
  return tagger(s)._replace(sample_weight=s.rng.exponential(
      1.0, (s.rows, s(5, 60))).astype(np.float32))


@entry('Ragged texts', refused='to_tensor')
def ragged(s: Size) -> Case:
  vocabulary = s(8, 1000)
  inputs = tf.keras.Input((None,), dtype='int32', ragged=True)
  x = layers.Embedding(vocabulary, s(3, 32))(inputs)
  x = function(lambda v: tf.reduce_mean(v, 1))(x)
  lengths = s.rng.integers(1, 6, s.rows)
  x_values = tf.RaggedTensor.from_row_lengths(
      s.rng.integers(0, vocabulary, lengths.sum()).astype(np.int32), lengths)
  return classified(s, inputs, layers.Dense(3)(x), x_values, 3)


@entry('Masked average by a layer that takes a mask')
def masked_average(s: Size) -> Case:

  class Average(layers.Layer):
    """The mean of the words that are there, or zero."""

    supports_masking = True

    def call(self, inputs, mask=None):
      keep = tf.cast(mask, inputs.dtype)[..., None]
      return tf.reduce_sum(inputs * keep, 1) / (1e-3 + tf.reduce_sum(keep, 1))

    def compute_mask(self, inputs, mask=None):
      return None

  length, vocabulary = s(5, 60), s(8, 2000)
  inputs = tf.keras.Input((length,), dtype='int32')
  x = layers.Embedding(vocabulary, s(3, 32), mask_zero=True)(inputs)
  x = Average()(layers.Dense(s(3, 32), 'tanh')(x))
  return classified(s, inputs, layers.Dense(3)(x), s.tokens(length, vocabulary), 3)


@entry('Character CNN of one-hot letters')
def characters(s: Size) -> Case:
  length, letters = s(8, 100), s(5, 30)
  inputs = tf.keras.Input((length,), dtype='int32')
  x = function(lambda v: tf.one_hot(v, letters), (length, letters))(inputs)
  x = layers.Conv1D(s(3, 64), 3, activation='relu')(x)
  x = layers.Conv1D(s(3, 64), 3, activation='relu')(layers.MaxPooling1D(2)(x))
  return classified(s, inputs, layers.Dense(3)(layers.Flatten()(x)),
                    s.labels(letters, length), 3)
