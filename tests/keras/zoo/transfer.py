"""Fine-tuning, precisions, and parts that are not trained."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.keras.zoo.base import Case, classified, entry, layers, logits_loss, Size


def _backbone(s: Size) -> Any:
  side = s(32, 64)
  return tf.keras.applications.MobileNetV2(
      (side, side, 3), alpha=0.35, include_top=False, weights=None, pooling='avg')


@entry('Frozen MobileNetV2 and a head')
def frozen(s: Size) -> Case:
  net = _backbone(s)
  net.trainable = False
  side = s(32, 64)
  inputs = tf.keras.Input((side, side, 3))
  x = net(inputs, training=False)
  return classified(s, inputs, layers.Dense(5)(x), s.floats(side, side, 3), 5)


@entry('MobileNetV2 with BatchNormalization', refused='BatchNormalization')
def batch_norm(s: Size) -> Case:
  net = _backbone(s)
  side = s(32, 64)
  return classified(s, net.input, layers.Dense(5)(net.output),
                    s.floats(side, side, 3), 5)


@entry('BatchNormalization frozen, the rest trained')
def frozen_norms(s: Size) -> Case:
  side = s(6, 32)
  inputs = x = tf.keras.Input((side, side, 3))
  for width in s((3, 4), (32, 64)):
    x = layers.Conv2D(width, 3, padding='same')(x)
    norm = layers.BatchNormalization()
    norm.trainable = False
    x = layers.ReLU()(norm(x))
  x = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
  return classified(s, inputs, x, s.floats(side, side, 3), 10)


@entry('Only the last block of a CNN trained')
def last_block(s: Size) -> Case:
  side = s(8, 32)
  model = tf.keras.Sequential([
      layers.Input((side, side, 3)), layers.Conv2D(s(3, 32), 3, activation='relu'),
      layers.MaxPooling2D(), layers.Conv2D(s(4, 64), 3, activation='relu'),
      layers.Flatten(), layers.Dense(5)])
  model.layers[0].trainable = False
  return Case(model, s.floats(side, side, 3), s.labels(5), logits_loss())


class Biased(layers.Layer):
  """A bias alone."""

  def build(self, shape):
    self.bias = self.add_weight(name='bias', shape=(shape[-1],),
                                initializer='zeros')

  def call(self, inputs):
    return inputs + self.bias


@entry('Only biases trained (BitFit)')
def biases(s: Size) -> Case:
  inputs = x = tf.keras.Input((s(5, 200),))
  for width in s((4, 3), (128, 64)):
    dense = layers.Dense(width, use_bias=False)
    dense.trainable = False
    x = layers.ReLU()(Biased()(dense(x)))
  return classified(s, inputs, layers.Dense(3)(x), s.floats(s(5, 200)), 3)


@entry('LoRA (enable_lora)', keras3=True)
def lora(s: Size) -> Case:
  model = tf.keras.Sequential([
      layers.Input((s(5, 200),)), layers.Dense(s(4, 128), 'relu'),
      layers.Dense(3)])
  model.layers[0].enable_lora(2)
  return Case(model, s.floats(s(5, 200)), s.labels(3), logits_loss())


@entry('LoRA of a transformer', keras3=True)
def lora_transformer(s: Size) -> Case:
  length, vocabulary, width = s(4, 32), s(6, 500), s(4, 32)
  inputs = tf.keras.Input((length,), dtype='int32')
  table = layers.Embedding(vocabulary, width)
  dense = [layers.Dense(width, 'gelu') for _ in range(2)]
  x = table(inputs)
  x = layers.LayerNormalization()(layers.Add()([x, dense[1](dense[0](x))]))
  model = tf.keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))
  table.enable_lora(2)
  for each in dense:
    each.enable_lora(2)
  return Case(model, s.tokens(length, vocabulary), s.labels(3), logits_loss())


class Adapter(layers.Layer):
  """LoRA as it is written by hand: a frozen layer and two small kernels."""

  def __init__(self, layer, rank):
    super().__init__()
    self.layer, self.rank = layer, rank
    self.layer.trainable = False

  def build(self, shape):
    self.layer.build(shape)
    self.a = self.add_weight(name='a', shape=(shape[-1], self.rank))
    self.b = self.add_weight(name='b', shape=(self.rank, self.layer.units),
                             initializer='zeros')
    self.built = True

  def call(self, inputs):
    return self.layer(inputs) + tf.matmul(tf.matmul(inputs, self.a), self.b)


@entry('Adapters by hand on frozen layers')
def adapters(s: Size) -> Case:
  inputs = tf.keras.Input((s(5, 200),))
  x = layers.ReLU()(Adapter(layers.Dense(s(4, 128)), 2)(inputs))
  return classified(s, inputs, layers.Dense(3)(x), s.floats(s(5, 200)), 3)


def _small_cnn(s: Size) -> Case:
  side = s(8, 32)
  model = tf.keras.Sequential([
      layers.Input((side, side, 3)), layers.Conv2D(s(3, 32), 3, activation='relu'),
      layers.GroupNormalization(s(3, 8)), layers.MaxPooling2D(),
      layers.Conv2D(s(4, 64), 3, activation='relu'), layers.Flatten(),
      layers.Dense(10, dtype='float32')])
  return Case(model, s.floats(side, side, 3), s.labels(10), logits_loss())


@entry('CNN in mixed_float16', policy='mixed_float16', tolerance=0.03, float64=False)
def half(s: Size) -> Case:
  return _small_cnn(s)


@entry('CNN in mixed_bfloat16', policy='mixed_bfloat16', tolerance=0.1,
       float64=False)
def brain(s: Size) -> Case:
  return _small_cnn(s)


@entry('MLP in float64', policy='float64', tolerance=1e-9, fast=True)
def double(s: Size) -> Case:
  model = tf.keras.Sequential([
      layers.Input((s(5, 200),)), layers.Dense(s(4, 128), 'relu'),
      layers.LayerNormalization(), layers.Dense(3)])
  return Case(model, s.floats(s(5, 200)), s.labels(3), logits_loss())
