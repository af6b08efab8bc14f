"""Tables, recommenders and other inputs of several columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.keras.zoo.base import (
  Case,
  classified,
  entry,
  layers,
  logits_loss,
  losses,
  Size,
)


@entry('Logistic regression', fast=True)
def logistic(s: Size) -> Case:
  model = tf.keras.Sequential([
      layers.Input((s(5, 100),)), layers.Dense(1, 'sigmoid')])
  return Case(model, s.floats(s(5, 100)), s.labels(2), 'binary_crossentropy')


@entry('Linear regression')
def linear(s: Size) -> Case:
  model = tf.keras.Sequential([layers.Input((s(5, 100),)), layers.Dense(1)])
  return Case(model, s.floats(s(5, 100)), s.floats(), 'mse')


@entry('MLP', fast=True)
def mlp(s: Size) -> Case:
  model = tf.keras.Sequential([
      layers.Input((s(6, 784),)), layers.Dense(s(5, 256), 'relu'),
      layers.Dropout(s(0.0, 0.2)), layers.Dense(s(4, 128), 'relu'),
      layers.Dense(10)])
  return Case(model, s.floats(s(6, 784)), s.labels(10), logits_loss())


@entry('MLP, SELU and AlphaDropout')
def selu(s: Size) -> Case:
  parts = [part for _ in range(3) for part in (
      layers.Dense(s(4, 128), 'selu', kernel_initializer='lecun_normal'),
      layers.AlphaDropout(s(0.0, 0.1)))]
  model = tf.keras.Sequential([layers.Input((s(6, 200),)), *parts, layers.Dense(3)])
  return Case(model, s.floats(s(6, 200)), s.labels(3), logits_loss())


@entry('MLP with residuals and LayerNormalization')
def residual_mlp(s: Size) -> Case:
  width = s(4, 128)
  inputs = tf.keras.Input((s(6, 100),))
  x = layers.Dense(width)(inputs)
  for _ in range(s(2, 4)):
    more = layers.Dense(2 * width, 'gelu')(layers.LayerNormalization()(x))
    x = layers.Add()([x, layers.Dense(width)(more)])
  return classified(s, inputs, layers.Dense(3)(x), s.floats(s(6, 100)), 3)


def _wide_and_deep_inputs(s: Size) -> Any:
  return {'age': s.floats(1), 'job': s.labels(7), 'wide': s.floats(s(5, 200))}


@entry('Wide and deep (dict of inputs)', fast=True)
def wide_and_deep(s: Size) -> Case:
  inputs = {'age': tf.keras.Input((1,), name='age'),
            'job': tf.keras.Input((), dtype='int32', name='job'),
            'wide': tf.keras.Input((s(5, 200),), name='wide')}
  job = layers.Embedding(7, s(3, 8))(inputs['job'])
  deep = layers.Concatenate()([inputs['age'], job])
  for width in s((4,), (64, 32)):
    deep = layers.Dense(width, 'relu')(deep)
  both = layers.Concatenate()([deep, inputs['wide']])
  model = tf.keras.Model(inputs, layers.Dense(1)(both))
  return Case(model, _wide_and_deep_inputs(s), s.labels(2).astype(np.float32),
              losses.BinaryCrossentropy(from_logits=True))


@entry('Two-tower recommender')
def two_tower(s: Size) -> Case:
  sizes = s((6, 7), (2000, 3000))
  ids = [tf.keras.Input((), dtype='int32') for _ in sizes]
  towers = [layers.Dense(s(3, 32))(layers.Dense(s(4, 64), 'relu')(
      layers.Embedding(size, s(3, 32))(each))) for size, each in zip(sizes, ids)]
  score = layers.Dot(axes=1, normalize=True)(towers)
  return Case(tf.keras.Model(ids, score), [s.labels(size) for size in sizes],
              s.floats(1), 'mse')


@entry('Matrix factorisation with biases')
def factorisation(s: Size) -> Case:
  sizes = s((6, 7), (2000, 3000))
  ids = [tf.keras.Input((1,), dtype='int32') for _ in sizes]
  vectors = [layers.Flatten()(layers.Embedding(size, s(3, 32))(each))
             for size, each in zip(sizes, ids)]
  biases = [layers.Flatten()(layers.Embedding(size, 1)(each))
            for size, each in zip(sizes, ids)]
  score = layers.Add()([layers.Dot(axes=1)(vectors), *biases])
  return Case(tf.keras.Model(ids, score), [s.labels(size, 1) for size in sizes],
              s.floats(1), 'mse')


@entry('Neural collaborative filtering')
def neural_filtering(s: Size) -> Case:
  sizes = s((6, 7), (2000, 3000))
  ids = [tf.keras.Input((1,), dtype='int32') for _ in sizes]
  a, b = (layers.Flatten()(layers.Embedding(size, s(3, 16))(each))
          for size, each in zip(sizes, ids))
  c, d = (layers.Flatten()(layers.Embedding(size, s(3, 16))(each))
          for size, each in zip(sizes, ids))
  deep = layers.Dense(s(3, 32), 'relu')(layers.Concatenate()([c, d]))
  both = layers.Concatenate()([layers.Multiply()([a, b]), deep])
  model = tf.keras.Model(ids, layers.Dense(1, 'sigmoid')(both))
  return Case(model, [s.labels(size, 1) for size in sizes], s.labels(2),
              'binary_crossentropy')


class Interactions(layers.Layer):
  """Products of all pairs of vectors."""

  def call(self, inputs):
    rows = tf.stack(inputs, 1)
    products = tf.matmul(rows, rows, transpose_b=True)
    pairs = [(i, j) for i in range(len(inputs)) for j in range(i)]
    return tf.stack([products[:, i, j] for i, j in pairs], 1)


@entry('DLRM-like')
def dlrm(s: Size) -> Case:
  width, fields = s(3, 16), s(2, 8)
  dense = tf.keras.Input((s(4, 13),))
  ids = [tf.keras.Input((), dtype='int32') for _ in range(fields)]
  bottom = layers.Dense(width, 'relu')(dense)
  vectors = [bottom, *(layers.Embedding(s(5, 500), width)(each) for each in ids)]
  top = layers.Concatenate()([bottom, Interactions()(vectors)])
  top = layers.Dense(s(4, 64), 'relu')(top)
  model = tf.keras.Model([dense, *ids], layers.Dense(1)(top))
  return Case(model, [s.floats(s(4, 13)),
                      *(s.labels(s(5, 500)) for _ in range(fields))],
              s.labels(2).astype(np.float32),
              losses.BinaryCrossentropy(from_logits=True))


class Cross(layers.Layer):
  """A layer of a deep and cross network."""

  def build(self, shape):
    size = shape[0][-1]
    self.w = self.add_weight(name='w', shape=(size, size))
    self.b = self.add_weight(name='b', shape=(size,), initializer='zeros')

  def call(self, inputs):
    first, x = inputs
    return first * (tf.matmul(x, self.w) + self.b) + x


@entry('Deep and cross network (own layers)')
def cross(s: Size) -> Case:
  inputs = x = tf.keras.Input((s(4, 64),))
  for _ in range(2):
    x = Cross()([inputs, x])
  return classified(s, inputs, layers.Dense(3)(x), s.floats(s(4, 64)), 3)


@entry('Factorisation machine (own layer)')
def machine(s: Size) -> Case:

  class Pairs(layers.Layer):
    """Second-order terms."""

    def build(self, shape):
      self.v = self.add_weight(name='v', shape=(shape[-1], s(3, 16)))

    def call(self, inputs):
      squared = tf.matmul(inputs, self.v)**2
      return 0.5 * tf.reduce_sum(
          squared - tf.matmul(inputs**2, self.v**2), -1, keepdims=True)

  inputs = tf.keras.Input((s(5, 100),))
  score = layers.Add()([layers.Dense(1)(inputs), Pairs()(inputs)])
  return Case(tf.keras.Model(inputs, score), s.floats(s(5, 100)), s.floats(1), 'mse')


def _strings(s: Size, words: Any) -> np.ndarray:
  return np.array(words)[s.rng.integers(0, len(words), s.rows)]


@entry('StringLookup in front', refused3='')
def string_lookup(s: Size) -> Case:
  lookup = layers.StringLookup(vocabulary=['red', 'green', 'blue'])
  inputs = tf.keras.Input((), dtype='string')
  x = layers.Embedding(4, s(3, 16))(lookup(inputs))
  colours = _strings(s, ['red', 'green', 'blue', 'black'])
  return classified(s, inputs, layers.Dense(3)(x), tf.constant(colours), 3)


@entry('IntegerLookup, CategoryEncoding')
def category_encoding(s: Size) -> Case:
  lookup = layers.IntegerLookup(vocabulary=[3, 5, 8])
  encode = layers.CategoryEncoding(num_tokens=4, output_mode='one_hot')
  inputs = tf.keras.Input((1,), dtype='int64')
  x = layers.Dense(s(4, 64), 'relu')(encode(lookup(inputs)))
  return classified(s, inputs, layers.Dense(3)(x),
                    s.labels(9, 1).astype(np.int64), 3)


@entry('Hashing and crossed features')
def hashing(s: Size) -> Case:
  inputs = tf.keras.Input((1,), dtype='int64')
  x = layers.Embedding(5, s(3, 16))(layers.Hashing(num_bins=5)(inputs))
  x = layers.Flatten()(x)
  return classified(s, inputs, layers.Dense(3)(x),
                    s.labels(900, 1).astype(np.int64), 3)


@entry('Hashing of texts in front')
def hashed_texts(s: Size) -> Case:
  inputs = tf.keras.Input((1,), dtype='string')
  x = layers.Embedding(5, s(3, 16))(layers.Hashing(num_bins=5)(inputs))
  words = _strings(s, ['red', 'green', 'blue', 'black'])
  return classified(s, inputs, layers.Dense(3)(layers.Flatten()(x)),
                    tf.constant(words)[:, None], 3)


@entry('FeatureSpace in the model: texts, a hashed one, a number, a cross')
def feature_space(s: Size) -> Case:
  kind = tf.keras.utils.FeatureSpace
  space = kind(features={
      'colour': kind.string_categorical(), 'name': kind.string_hashed(num_bins=8),
      'number': kind.float_normalized()},
               crosses=[kind.cross(('colour', 'name'), crossing_dim=8)],
               output_mode='concat')
  words = ['red', 'green', 'blue', 'black']
  rows = {'colour': _strings(s, words), 'name': _strings(s, words),
          'number': s.floats()}
  space.adapt(tf.data.Dataset.from_tensor_slices(
      {'colour': words, 'name': words, 'number': [0.0, 1.0, 2.0, 4.0]}))
  x = layers.Dense(s(4, 64), 'relu')(space.get_encoded_features())
  return classified(s, space.get_inputs(), layers.Dense(3)(x), {
      name: tf.constant(part)[:, None] for name, part in rows.items()}, 3)


@entry('Normalization and Discretization in front')
def normalization(s: Size) -> Case:
  columns = s(4, 30)
  inputs = tf.keras.Input((columns,))
  scaled = layers.Normalization(mean=[0.1] * columns, variance=[2.0] * columns)(
      inputs)
  bins = layers.Discretization(bin_boundaries=[-1.0, 0.0, 1.0])(inputs)
  x = layers.Flatten()(layers.Embedding(4, s(2, 8))(bins))
  x = layers.Dense(s(4, 64), 'relu')(layers.Concatenate()([scaled, x]))
  return classified(s, inputs, layers.Dense(3)(x), s.floats(columns), 3)


@entry('TabTransformer-like')
def tab_transformer(s: Size) -> Case:
  fields, width = s(3, 10), s(4, 32)
  ids = tf.keras.Input((fields,), dtype='int32')
  numbers = tf.keras.Input((s(2, 10),))
  x = layers.Embedding(s(5, 100), width)(ids)
  for _ in range(s(1, 2)):
    x = layers.LayerNormalization()(layers.Add()(
        [x, layers.MultiHeadAttention(2, width // 2)(x, x)]))
    x = layers.LayerNormalization()(layers.Add()(
        [x, layers.Dense(width, 'relu')(x)]))
  both = layers.Concatenate()([layers.Flatten()(x), numbers])
  model = tf.keras.Model([ids, numbers], layers.Dense(3)(both))
  return Case(model, [s.labels(s(5, 100), fields), s.floats(s(2, 10))],
              s.labels(3), logits_loss())


@entry('Deep sets')
def deep_sets(s: Size) -> Case:
  size, width = s(4, 50), s(3, 64)
  inputs = tf.keras.Input((size, s(3, 8)))
  x = layers.Dense(width, 'relu')(layers.Dense(width, 'relu')(inputs))
  x = layers.Concatenate()([layers.GlobalAveragePooling1D()(x),
                            layers.GlobalMaxPooling1D()(x)])
  return classified(s, inputs, layers.Dense(3)(layers.Dense(width, 'relu')(x)),
                    s.floats(size, s(3, 8)), 3)
