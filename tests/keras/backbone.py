"""A text encoder that makes its layers itself, with LoRA as KerasHub enables it."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfcactus.keras.compat import models

layers = tf.keras.layers
WORDS, LENGTH, CLASSES = 11, 5, 3


@tf.keras.utils.register_keras_serializable('tests')
class Block(layers.Layer):
  """Attention of one head or more, and a dense layer, both with a sum."""

  def __init__(self, width=4, heads=2, **kwargs):
    super().__init__(**kwargs)
    self.width, self.heads = width, heads
    shape = (None, heads, width // heads)
    self.query, self.key, self.value = (
        layers.EinsumDense('abc,cde->abde', shape, bias_axes='de', name=name)
        for name in ('query', 'key', 'value'))
    self.out = layers.EinsumDense('abcd,cde->abe', (None, width), name='out')
    self.norm = layers.LayerNormalization(name='norm')
    self.dense = layers.Dense(width, 'relu', name='dense')

  def build(self, shape):
    for each in (self.query, self.key, self.value, self.norm, self.dense):
      each.build(shape)
    self.out.build((*shape[:2], self.heads, self.width // self.heads))
    self.built = True

  def call(self, x):
    scores = tf.einsum('bthd,bshd->bhts', self.query(x), self.key(x))
    mixed = tf.einsum('bhts,bshd->bthd', tf.nn.softmax(scores), self.value(x))
    x = self.norm(x + self.out(mixed))
    return x + self.dense(x)

  def compute_output_shape(self, shape):
    return shape

  def get_config(self):
    return {**super().get_config(), 'width': self.width, 'heads': self.heads}


@tf.keras.utils.register_keras_serializable('tests')
class Backbone(layers.Layer):
  """An embedding and blocks; one vector for each text."""

  def __init__(self, words=WORDS, width=4, blocks=2, heads=2, **kwargs):
    super().__init__(**kwargs)
    self.words, self.width, self.heads = words, width, heads
    self.table = layers.Embedding(words, width, name='table')
    self.blocks = [Block(width, heads, name=f'block_{i}') for i in range(blocks)]

  def build(self, shape):
    self.table.build(shape)
    for block in self.blocks:
      block.build((*shape, self.width))
    self.built = True

  def call(self, ids):
    x = self.table(ids)
    for block in self.blocks:
      x = block(x)
    return tf.reduce_mean(x, 1)

  def compute_output_shape(self, shape):
    return (shape[0], self.width)

  def get_config(self):
    return {**super().get_config(), 'words': self.words, 'width': self.width,
            'blocks': len(self.blocks), 'heads': self.heads}

  def thaw(self, names=('query', 'value')):
    """Freezes all inner layers, and thaws those of these names."""
    self.trainable = True
    inner = models.flat_layers(self)
    for layer in inner:
      layer.trainable = False
    thawed = [layer for layer in inner if layer.name in names]
    for layer in thawed:
      layer.trainable = True
    return thawed

  def enable_lora(self, rank, names=('query', 'value')):
    """Thaws layers, and trains factors in them instead of their kernels."""
    for layer in self.thaw(names):
      layer.enable_lora(rank)


def classifier(lora: int = 0, names: Any = ('query', 'value'), seed: int = 1,
               **kwargs: Any) -> tf.keras.Model:
  """Returns a classifier; `lora` is the rank of the factors, 0 thaws whole layers."""
  tf.keras.utils.set_random_seed(seed)
  inputs = tf.keras.Input((LENGTH,), dtype='int32')
  backbone = Backbone(**kwargs)
  model = tf.keras.Model(inputs, layers.Dense(CLASSES)(backbone(inputs)))
  if lora:
    backbone.enable_lora(lora, names)
  else:
    backbone.thaw(names)
  return model


def texts(rows: int = 6) -> tuple[np.ndarray, np.ndarray]:
  """Returns texts, as numbers of words, and their classes."""
  rng = np.random.default_rng(0)
  return (rng.integers(0, WORDS, (rows, LENGTH)).astype(np.int32),
          rng.integers(0, CLASSES, rows))
