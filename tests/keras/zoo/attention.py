"""Transformers and other attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.keras.zoo.base import (
  Bare,
  Case,
  classified,
  entry,
  function,
  layers,
  logits_loss,
  Size,
)


class Positions(layers.Layer):
  """Adds a trained table of positions."""

  def build(self, shape):
    self.table = self.add_weight(name='table', shape=tuple(shape[1:]))

  def call(self, inputs):
    return inputs + self.table


class TokensAndPositions(layers.Layer):
  """Adds embeddings of tokens and of positions (the text classifier of keras.io)."""

  def __init__(self, length, vocabulary, width):
    super().__init__()
    self.tokens = layers.Embedding(vocabulary, width)
    self.positions = layers.Embedding(length, width)

  def build(self, shape):
    self.tokens.build(shape)
    self.positions.build(shape)
    self.built = True

  def call(self, inputs):
    return self.tokens(inputs) + self.positions(tf.range(inputs.shape[-1]))


class Block(layers.Layer):
  """A transformer block (the text classifier of keras.io)."""

  def __init__(self, width, heads, inner, rate):
    super().__init__()
    self.attention = layers.MultiHeadAttention(heads, width)
    self.feed = tf.keras.Sequential([
        layers.Input((None, width)), layers.Dense(inner, 'relu'),
        layers.Dense(width)])
    self.norms = [layers.LayerNormalization(epsilon=1e-6) for _ in range(2)]
    self.drops = [layers.Dropout(rate) for _ in range(2)]

  def build(self, shape):
    zeros = tf.zeros((1, *shape[1:]), self.compute_dtype)
    self.attention(zeros, zeros)
    for norm in self.norms:
      norm.build(shape)
    self.built = True

  def call(self, inputs, training=None):
    more = self.drops[0](self.attention(inputs, inputs), training=training)
    x = self.norms[0](inputs + more)
    return self.norms[1](x + self.drops[1](self.feed(x), training=training))


@entry('Transformer of keras.io (own layers)')
def keras_io(s: Size) -> Case:
  length, vocabulary, width = s(4, 64), s(7, 2000), s(4, 32)
  inputs = tf.keras.Input((length,), dtype='int32')
  x = TokensAndPositions(length, vocabulary, width)(inputs)
  x = Block(width, 2, s(5, 32), s(0.0, 0.1))(x)
  x = layers.Dropout(s(0.0, 0.1))(layers.GlobalAveragePooling1D()(x))
  x = layers.Dense(s(3, 20), 'relu')(x)
  return classified(s, inputs, layers.Dense(2)(x), s.tokens(length, vocabulary), 2)


def _attend(x: Any, width: int, heads: int, **kwargs: Any) -> Any:
  more = layers.LayerNormalization()(x)
  more = layers.MultiHeadAttention(heads, width // heads)(more, more, **kwargs)
  x = layers.Add()([x, more])
  more = layers.Dense(2 * width, 'gelu')(layers.LayerNormalization()(x))
  return layers.Add()([x, layers.Dense(width)(more)])


@entry('Transformer, mask_zero', fast=True)
def masked(s: Size) -> Case:
  length, vocabulary, width = s(4, 64), s(7, 2000), s(4, 32)
  inputs = tf.keras.Input((length,), dtype='int32')
  x = layers.Embedding(vocabulary, width, mask_zero=True)(inputs)
  x = layers.Add()([x, layers.MultiHeadAttention(2, width // 2)(x, x)])
  x = layers.Flatten()(x)
  return classified(s, inputs, layers.Dense(2)(x), s.tokens(length, vocabulary), 2)


@entry('Transformer, mask_zero, pooled')
def masked_pooled(s: Size) -> Case:
  length, vocabulary, width = s(4, 64), s(7, 2000), s(4, 32)
  inputs = tf.keras.Input((length,), dtype='int32')
  x = layers.Embedding(vocabulary, width, mask_zero=True)(inputs)
  x = _attend(x, width, 2)
  x = layers.GlobalAveragePooling1D()(x)
  return classified(s, inputs, layers.Dense(2)(x), s.tokens(length, vocabulary), 2)


@entry('GPT (causal, position table, untied)')
def gpt(s: Size) -> Case:
  length, vocabulary, width = s(4, 64), s(6, 200), s(4, 64)
  inputs = tf.keras.Input((length,), dtype='int32')
  x = Positions()(layers.Embedding(vocabulary, width)(inputs))
  for _ in range(s(1, 2)):
    x = _attend(x, width, 2, use_causal_mask=True)
  x = layers.Dense(vocabulary)(layers.LayerNormalization()(x))
  return Case(tf.keras.Model(inputs, x), s.labels(vocabulary, length),
              s.labels(vocabulary, length), logits_loss())


class Tied(layers.Layer):
  """Logits from a table that it is given, as a layer that tracks it."""

  def __init__(self, table):
    super().__init__()
    self.table = table

  def call(self, inputs):
    return tf.matmul(inputs, tf.cast(self.table.embeddings, inputs.dtype),
                     transpose_b=True)


def _tied(s: Size, head: Any) -> Case:
  length, vocabulary, width = s(4, 64), s(6, 200), s(4, 64)
  inputs = tf.keras.Input((length,), dtype='int32')
  table = layers.Embedding(vocabulary, width)
  x = _attend(Positions()(table(inputs)), width, 2, use_causal_mask=True)
  return Case(tf.keras.Model(inputs, head(table, vocabulary)(x)),
              s.labels(vocabulary, length), s.labels(vocabulary, length),
              logits_loss())


@entry('GPT, output tied by a tracked layer')
def gpt_tied(s: Size) -> Case:
  return _tied(s, lambda table, _: Tied(table))


class Head(layers.Layer):
  """Logits from a table that Keras does not know it uses."""

  def __init__(self, table):
    super().__init__()
    self._table = lambda: table.embeddings

  def call(self, inputs):
    return tf.matmul(inputs, tf.cast(self._table(), inputs.dtype), transpose_b=True)


@entry('GPT, output tied by a closure in a layer')
def gpt_closure(s: Size) -> Case:
  return _tied(s, lambda table, _: Head(table))


@entry('GPT, output tied by a Lambda')
def gpt_lambda(s: Size) -> Case:
  return _tied(s, lambda table, size: function(
      lambda x: tf.matmul(x, tf.cast(tf.convert_to_tensor(
          table.embeddings), x.dtype), transpose_b=True),
      (s(4, 64), size)))


@entry('Vision transformer')
def vit(s: Size) -> Case:
  side, patch, width = s(4, 32), s(2, 4), s(4, 64)
  inputs = tf.keras.Input((side, side, 3))
  x = layers.Conv2D(width, patch, patch)(inputs)
  x = layers.Reshape(((side // patch)**2, width))(x)
  x = Positions()(x)
  for _ in range(s(1, 4)):
    x = _attend(x, width, 2)
  x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
  return classified(s, inputs, layers.Dense(10)(x), s.floats(side, side, 3), 10)


class ClassToken(layers.Layer):
  """Puts a trained token before the others."""

  def build(self, shape):
    self.token = self.add_weight(name='token', shape=(1, 1, shape[-1]))

  def call(self, inputs):
    token = tf.cast(tf.convert_to_tensor(self.token), inputs.dtype)
    return tf.concat([tf.repeat(token, tf.shape(inputs)[0], 0), inputs], 1)


@entry('Vision transformer with a class token')
def vit_token(s: Size) -> Case:
  side, patch, width = s(4, 32), s(2, 8), s(4, 64)
  inputs = tf.keras.Input((side, side, 3))
  x = layers.Reshape(((side // patch)**2, width))(
      layers.Conv2D(width, patch, patch)(inputs))
  x = _attend(Positions()(ClassToken()(x)), width, 2)
  x = x[:, 0]
  return classified(s, inputs, layers.Dense(10)(x), s.floats(side, side, 3), 10)


@entry('MLP-Mixer')
def mixer(s: Size) -> Case:
  side, patch, width = s(4, 32), s(2, 4), s(4, 64)
  inputs = tf.keras.Input((side, side, 3))
  x = layers.Conv2D(width, patch, patch)(inputs)
  x = layers.Reshape(((side // patch)**2, width))(x)
  for _ in range(s(1, 3)):
    more = layers.Permute((2, 1))(layers.LayerNormalization()(x))
    more = layers.Dense(x.shape[1])(layers.Dense(s(3, 64), 'gelu')(more))
    x = layers.Add()([x, layers.Permute((2, 1))(more)])
    more = layers.Dense(s(5, 128), 'gelu')(layers.LayerNormalization()(x))
    x = layers.Add()([x, layers.Dense(width)(more)])
  x = layers.GlobalAveragePooling1D()(x)
  return classified(s, inputs, layers.Dense(10)(x), s.floats(side, side, 3), 10)


@entry('Attention pooling, with its scores', fast=True)
def pooling(s: Size) -> Case:
  length, width = s(4, 40), s(3, 32)
  inputs = tf.keras.Input((length, width))
  keys = layers.Dense(width, 'tanh')(inputs)
  weights = layers.Softmax(axis=1)(layers.Dense(1)(keys))
  pooled = layers.Dot(axes=1)([weights, keys])
  return classified(s, inputs, layers.Dense(3)(layers.Flatten()(pooled)),
                    s.floats(length, width), 3)


@entry('MultiHeadAttention that returns its scores')
def scores(s: Size) -> Case:
  length, width = s(4, 30), s(4, 32)
  inputs = tf.keras.Input((length, width))
  x, found = layers.MultiHeadAttention(2, 2)(
      inputs, inputs, return_attention_scores=True)
  x = layers.Concatenate()([layers.Flatten()(x), layers.Flatten()(found)])
  return classified(s, inputs, layers.Dense(3)(x), s.floats(length, width), 3)


@entry('Cross attention, keyword inputs, an own mask')
def crossed(s: Size) -> Case:
  length, width = s(3, 20), s(4, 32)
  texts = [tf.keras.Input((length, width)) for _ in range(2)]
  mask = tf.keras.Input((length,), dtype='bool')
  x = layers.MultiHeadAttention(2, 3)(
      query=texts[0], value=texts[1], attention_mask=layers.Reshape(
          (1, length))(mask))
  x = layers.GlobalAveragePooling1D()(layers.Add()([texts[0], x]))
  model = tf.keras.Model([*texts, mask], layers.Dense(3)(x))
  keep = np.arange(length) <= s.rng.integers(0, length, (s.rows, 1))
  return Case(model, [s.floats(length, width), s.floats(length, width), keep],
              s.labels(3), logits_loss())


@entry('Attention and AdditiveAttention layers')
def dot_attention(s: Size) -> Case:
  length, width = s(4, 30), s(3, 32)
  inputs = tf.keras.Input((length, width))
  keys = layers.Dense(width)(inputs)
  x = layers.Attention(use_scale=True)([inputs, keys])
  y = layers.AdditiveAttention()([inputs, keys])
  x = layers.GlobalAveragePooling1D()(layers.Concatenate()([x, y]))
  return classified(s, inputs, layers.Dense(3)(x), s.floats(length, width), 3)


@entry('Attention by bare operations')
def bare(s: Size) -> Case:
  length, width = s(4, 30), s(3, 32)
  inputs = tf.keras.Input((length, width))
  query, key, value = (layers.Dense(width)(inputs) for _ in range(3))
  found = Bare.softmax(Bare.matmul(
      query, Bare.transpose(key, [0, 2, 1])) / float(np.sqrt(width)))
  x = Bare.matmul(found, value) + inputs
  return classified(s, inputs, layers.Dense(3)(layers.Flatten()(x)),
                    s.floats(length, width), 3)


@entry('Transformer encoder and decoder')
def seq2seq(s: Size) -> Case:
  length, vocabulary, width = s(3, 32), s(6, 200), s(4, 32)
  source, target = (tf.keras.Input((length,), dtype='int32') for _ in range(2))
  encoded = _attend(Positions()(layers.Embedding(vocabulary, width)(source)),
                    width, 2)
  x = _attend(Positions()(layers.Embedding(vocabulary, width)(target)), width, 2,
              use_causal_mask=True)
  x = layers.LayerNormalization()(layers.Add()(
      [x, layers.MultiHeadAttention(2, 2)(x, encoded)]))
  model = tf.keras.Model([source, target], layers.Dense(vocabulary)(x))
  return Case(model, [s.labels(vocabulary, length) for _ in range(2)],
              s.labels(vocabulary, length), logits_loss())


@entry('GroupQueryAttention', keras3=True)
def grouped(s: Size) -> Case:
  length, width = s(4, 30), s(4, 32)
  inputs = tf.keras.Input((length, width))
  x = layers.GroupQueryAttention(2, 4, 2)(inputs, inputs)
  x = layers.GlobalAveragePooling1D()(layers.Add()([inputs, x]))
  return classified(s, inputs, layers.Dense(3)(x), s.floats(length, width), 3)
