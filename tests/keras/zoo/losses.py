"""Losses, several outputs, and weights of examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.keras.zoo.base import Case, entry, layers, logits_loss, losses, Size


def _net(s: Size, outputs: int, activation: Any = None) -> Any:
  return tf.keras.Sequential([
      layers.Input((s(5, 100),)), layers.Dense(s(4, 64), 'tanh'),
      layers.Dense(outputs, activation)])


@entry('Quantile regression')
def quantiles(s: Size) -> Case:

  def pinball(y, p):
    error = tf.cast(y, p.dtype) - p
    level = tf.constant([0.1, 0.5, 0.9], p.dtype)
    return tf.reduce_mean(tf.maximum(level * error, (level - 1) * error), -1)

  return Case(_net(s, 3), s.floats(s(5, 100)), s.floats(1), pinball)


@entry('Ordinal regression')
def ordinal(s: Size) -> Case:

  def cumulative(y, p):
    above = tf.cast(tf.cast(y, tf.int32) > tf.range(3), p.dtype)
    return tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(
        labels=above, logits=p), -1)

  return Case(_net(s, 3), s.floats(s(5, 100)), s.labels(4, 1), cumulative)


@entry('Focal loss')
def focal(s: Size) -> Case:
  return Case(_net(s, 1, 'sigmoid'), s.floats(s(5, 100)),
              s.labels(2, 1).astype(np.float32), losses.BinaryFocalCrossentropy())


@entry('Label smoothing, one-hot targets')
def smoothed(s: Size) -> Case:
  y = np.eye(4, dtype=np.float32)[s.labels(4)]
  return Case(_net(s, 4, 'softmax'), s.floats(s(5, 100)), y,
              losses.CategoricalCrossentropy(label_smoothing=0.1))


@entry('Hinge loss')
def hinge(s: Size) -> Case:
  return Case(_net(s, 1), s.floats(s(5, 100)),
              2.0 * s.labels(2, 1).astype(np.float32) - 1, losses.Hinge())


@entry('Poisson regression')
def counts(s: Size) -> Case:
  return Case(_net(s, 1, 'exponential'), s.floats(s(5, 100)),
              s.labels(4, 1).astype(np.float32), 'poisson')


@entry('Mixture density network')
def mixture(s: Size) -> Case:

  def likelihood(y, p):
    weights, means, scales = tf.split(p, 3, -1)
    y = tf.cast(y, p.dtype)
    logs = (tf.nn.log_softmax(weights) - scales -
            0.5 * ((y - means) * tf.exp(-scales))**2)
    return -tf.reduce_logsumexp(logs, -1)

  return Case(_net(s, 6), s.floats(s(5, 100)), s.floats(1), likelihood)


@entry('Cosine similarity to a target')
def cosine(s: Size) -> Case:
  return Case(_net(s, 4), s.floats(s(5, 100)), s.floats(4),
              losses.CosineSimilarity())


@entry('Weights of examples')
def weighted(s: Size) -> Case:
  weights = s.rng.exponential(1, s.rows).astype(np.float32)
  return Case(_net(s, 3), s.floats(s(5, 100)), s.labels(3), logits_loss(),
              sample_weight=weights)


@entry('Dice loss per image')
def dice(s: Size) -> Case:
  side = s(5, 32)
  model = tf.keras.Sequential([
      layers.Input((side, side, 1)),
      layers.Conv2D(s(3, 16), 3, padding='same', activation='relu'),
      layers.Conv2D(1, 3, padding='same', activation='sigmoid')])

  def loss(y, p):
    y = tf.cast(y, p.dtype)
    both = tf.reduce_sum(y * p, [1, 2, 3])
    return 1 - (2 * both + 1) / (tf.reduce_sum(y + p, [1, 2, 3]) + 1)

  return Case(model, s.floats(side, side, 1),
              s.labels(2, side, side, 1).astype(np.float32), loss)


@entry('Contrastive within an example (two views)')
def views(s: Size) -> Case:
  size, width = s(5, 100), s(3, 32)
  net = tf.keras.Sequential([layers.Input((size,)), layers.Dense(width, 'relu'),
                             layers.Dense(width)])
  pair = [tf.keras.Input((size,)) for _ in range(2)]
  model = tf.keras.Model(pair, layers.Concatenate()([net(each) for each in pair]))

  def loss(y, p):
    a, b = tf.split(p, 2, -1)
    apart = tf.reduce_sum((a - b)**2, -1)
    same = tf.cast(tf.reshape(y, [-1]), p.dtype)
    return same * apart + (1 - same) * tf.nn.relu(1 - tf.sqrt(apart + 1e-6))**2

  return Case(model, [s.floats(size) for _ in range(2)], s.labels(2), loss)


@entry('Siamese network, Dot of shared towers')
def siamese(s: Size) -> Case:
  side = s(6, 28)
  tower = tf.keras.Sequential([
      layers.Input((side, side, 1)), layers.Conv2D(s(3, 16), 3, activation='relu'),
      layers.GlobalAveragePooling2D(), layers.Dense(s(3, 32))])
  pair = [tf.keras.Input((side, side, 1)) for _ in range(2)]
  x = layers.Dense(1)(layers.Dot(axes=1, normalize=True)([tower(p) for p in pair]))
  return Case(tf.keras.Model(pair, x), [s.floats(side, side, 1) for _ in range(2)],
              s.labels(2, 1).astype(np.float32),
              losses.BinaryCrossentropy(from_logits=True))


@entry('Metric learning: triplets')
def triplets(s: Size) -> Case:
  size, width = s(5, 100), s(3, 32)
  net = tf.keras.Sequential([
      layers.Input((size,)), layers.Dense(width), layers.UnitNormalization()])
  inputs = tf.keras.Input((3, size))
  model = tf.keras.Model(inputs, layers.TimeDistributed(net)(inputs))

  def loss(y, p):
    near = tf.reduce_sum((p[:, 0] - p[:, 1])**2, -1)
    far = tf.reduce_sum((p[:, 0] - p[:, 2])**2, -1)
    return tf.nn.relu(near - far + 0.5)

  return Case(model, s.floats(3, size), np.zeros((s.rows, 1), np.float32), loss)


@entry('Contrastive over the batch', refused='each example is by itself')
def simclr(s: Size) -> Case:

  def loss(y, p):
    p = tf.math.l2_normalize(p, -1)
    logits = tf.matmul(p, p, transpose_b=True)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
        tf.range(tf.shape(p)[0]), logits)

  return Case(_net(s, 4), s.floats(s(5, 100)), s.labels(2), loss)


def _two_heads(s: Size) -> Any:
  inputs = tf.keras.Input((s(5, 100),))
  x = layers.Dense(s(4, 64), 'relu')(inputs)
  return inputs, layers.Dense(3, name='kind')(x), layers.Dense(1, name='size')(x)


@entry('Multi-task: two outputs, two losses, weights')
def two_outputs(s: Size) -> Case:
  inputs, *heads = _two_heads(s)
  return Case(tf.keras.Model(inputs, heads), s.floats(s(5, 100)),
              [s.labels(3), s.floats(1)], [logits_loss(), 'mse'],
              loss_weights=[1.0, 0.3])


@entry('Multi-task: dict of outputs')
def dict_outputs(s: Size) -> Case:
  inputs, kind, size = _two_heads(s)
  return Case(tf.keras.Model(inputs, {'kind': kind, 'size': size}),
              s.floats(s(5, 100)), {'kind': s.labels(3), 'size': s.floats(1)},
              {'kind': logits_loss(), 'size': 'mse'},
              loss_weights={'kind': 0.5, 'size': 2.0})


@entry('Multi-task: outputs packed into one', fast=True)
def packed(s: Size) -> Case:
  inputs, *heads = _two_heads(s)
  model = tf.keras.Model(inputs, layers.Concatenate()(heads))

  def loss(y, p):
    kind = tf.nn.sparse_softmax_cross_entropy_with_logits(
        tf.cast(y[:, 0], tf.int32), p[:, :3])
    return kind + 0.3 * (tf.cast(y[:, 1], p.dtype) - p[:, 3])**2

  y = np.stack([s.labels(3), s.floats()], 1).astype(np.float32)
  return Case(model, s.floats(s(5, 100)), y, loss)


@entry('Object detector (YOLO-like, one grid)')
def detector(s: Size) -> Case:
  side, grid = s(8, 32), s(2, 4)
  model = tf.keras.Sequential([
      layers.Input((side, side, 3)),
      layers.Conv2D(s(3, 32), 3, 2, 'same', activation='relu'),
      layers.Conv2D(s(3, 64), 3, side // 2 // grid, 'same', activation='relu'),
      layers.Conv2D(5 + 2, 1)])

  def loss(y, p):
    there = y[..., 0]
    box = tf.reduce_sum((y[..., 1:5] - p[..., 1:5])**2, -1) * there
    kind = tf.nn.softmax_cross_entropy_with_logits(y[..., 5:], p[..., 5:]) * there
    found = tf.nn.sigmoid_cross_entropy_with_logits(labels=there, logits=p[..., 0])
    return tf.reduce_sum(box + kind + found, [1, 2])

  y = s.rng.random((s.rows, grid, grid, 7)).astype(tf.keras.backend.floatx())
  y[..., 0] = y[..., 0] > 0.5
  return Case(model, s.floats(side, side, 3), y, loss)


@entry('L2 of the weights in the loss')
def penalised(s: Size) -> Case:
  model = _net(s, 3)
  kernel = model.layers[0].kernel

  def loss(y, p):
    entropy = losses.sparse_categorical_crossentropy(y, p, from_logits=True)
    return entropy + 0.1 * tf.reduce_sum(tf.cast(
        tf.convert_to_tensor(kernel), p.dtype)**2)

  return Case(model, s.floats(s(5, 100)), s.labels(3, 1), loss)


@entry('Logits from a table in the loss')
def table_in_the_loss(s: Size) -> Case:
  size, width = s(6, 500), s(3, 32)
  inputs = tf.keras.Input((), dtype='int32')
  table = layers.Embedding(size, width)
  model = tf.keras.Model(inputs, layers.Dense(width)(table(inputs)))

  def loss(y, p):
    logits = tf.matmul(p, tf.cast(tf.convert_to_tensor(table.embeddings), p.dtype),
                       transpose_b=True)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
        tf.cast(tf.reshape(y, [-1]), tf.int32), logits)

  return Case(model, s.labels(size), s.labels(size, 1), loss)


@entry('Weight regularisers (l2)', penalty=True)
def regularised(s: Size) -> Case:
  model = tf.keras.Sequential([
      layers.Input((s(5, 100),)),
      layers.Dense(s(4, 64), 'relu', kernel_regularizer='l2'), layers.Dense(3)])
  return Case(model, s.floats(s(5, 100)), s.labels(3), logits_loss())


@entry('Activity regulariser')
def active(s: Size) -> Case:
  model = tf.keras.Sequential([
      layers.Input((s(5, 100),)),
      layers.Dense(s(4, 64), 'relu', activity_regularizer='l1'), layers.Dense(3)])
  return Case(model, s.floats(s(5, 100)), s.labels(3), logits_loss())
