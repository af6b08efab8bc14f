"""Models of the code examples of keras.io, BatchNormalization left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.keras.zoo.base import (
  Case,
  classified,
  entry,
  function,
  layers,
  logits_loss,
  losses,
  Size,
)


def _patches(s: Size, x: Any, patch: int) -> Any:
  """Returns the pixels of square patches, one row for each."""
  side = x.shape[1] // patch
  x = layers.Reshape((side, patch, side, patch * x.shape[-1]))(x)
  return layers.Reshape((side**2, -1))(layers.Permute((1, 3, 2, 4))(x))


class Numbered(layers.Layer):
  """Projects patches, and adds an embedding of each one's number."""

  def __init__(self, count, width):
    super().__init__()
    self.projection = layers.Dense(width)
    self.places = layers.Embedding(count, width)
    self.count = count

  def build(self, shape):
    self.projection.build(shape)
    self.places.build((self.count,))
    self.built = True

  def call(self, inputs):
    return self.projection(inputs) + self.places(tf.range(self.count))


def _block(x: Any, width: int, heads: int, rate: float) -> Any:
  """Returns the output of one block of a transformer, normalised first."""
  more = layers.LayerNormalization(epsilon=1e-6)(x)
  more = layers.MultiHeadAttention(heads, max(1, width // heads), dropout=rate)(
      more, more)
  x = layers.Add()([more, x])
  more = layers.LayerNormalization(epsilon=1e-6)(x)
  more = layers.Dropout(rate)(layers.Dense(2 * width, 'gelu')(more))
  return layers.Add()([layers.Dropout(rate)(layers.Dense(width)(more)), x])


@entry('ViT for small images: patches, encoded, flattened')
def vit_small(s: Size) -> Case:
  side, patch, width = s(4, 32), s(2, 4), s(4, 64)
  inputs = tf.keras.Input((side, side, 3))
  x = Numbered((side // patch)**2, width)(_patches(s, inputs, patch))
  for _ in range(s(1, 4)):
    x = _block(x, width, 2, s(0.0, 0.1))
  x = layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(x))
  x = layers.Dropout(s(0.0, 0.5))(layers.Dense(s(5, 128), 'gelu')(x))
  return classified(s, inputs, layers.Dense(10)(x), s.floats(side, side, 3), 10)


class DropPath(layers.Layer):
  """Stochastic depth: leaves out a branch for some examples."""

  def __init__(self, rate):
    super().__init__()
    self.rate = rate

  def call(self, inputs, training=None):
    if not training or not self.rate:
      return inputs
    shape = (tf.shape(inputs)[0], *[1] * (len(inputs.shape) - 1))
    keep = tf.floor(1 - self.rate + tf.random.uniform(shape, dtype=inputs.dtype))
    return inputs / (1 - self.rate) * keep


class SequencePool(layers.Layer):
  """Averages a sequence by weights that it computes from it."""

  def __init__(self):
    super().__init__()
    self.attention = layers.Dense(1)

  def build(self, shape):
    self.attention.build(shape)
    self.built = True

  def call(self, inputs):
    weights = tf.nn.softmax(self.attention(inputs), axis=1)
    return tf.squeeze(tf.matmul(weights, inputs, transpose_a=True), 1)


@entry('Compact convolutional transformer (CCT)')
def cct(s: Size) -> Case:
  side, width = s(8, 32), s(4, 64)
  inputs = x = tf.keras.Input((side, side, 3))
  for channels in s((3, 4), (32, 64)):
    x = layers.Conv2D(channels, 3, padding='same', use_bias=False,
                      activation='relu')(x)
    x = layers.MaxPooling2D(3, 2, 'same')(x)
  x = layers.Reshape((-1, width))(x)
  x = Numbered(x.shape[1], width)(x)
  for rate in np.linspace(0, s(0.0, 0.1), s(1, 2)):
    more = layers.LayerNormalization(epsilon=1e-5)(x)
    more = layers.MultiHeadAttention(2, width // 2, dropout=s(0.0, 0.1))(more, more)
    x = layers.Add()([DropPath(float(rate))(more), x])
    more = layers.LayerNormalization(epsilon=1e-5)(x)
    more = layers.Dense(width, 'gelu')(layers.Dense(width, 'gelu')(more))
    x = layers.Add()([DropPath(float(rate))(more), x])
  x = SequencePool()(layers.LayerNormalization(epsilon=1e-5)(x))
  return classified(s, inputs, layers.Dense(10)(x), s.floats(side, side, 3), 10)


@entry('gMLP (a gate over places)')
def gmlp(s: Size) -> Case:
  side, patch, width = s(4, 32), s(2, 4), s(4, 64)
  inputs = tf.keras.Input((side, side, 3))
  x = layers.Dense(width)(_patches(s, inputs, patch))
  count = x.shape[1]
  for _ in range(s(1, 3)):
    more = layers.Dense(2 * width, 'gelu')(layers.LayerNormalization()(x))
    half, gate = more[..., :width], more[..., width:]
    gate = layers.Permute((2, 1))(layers.LayerNormalization()(gate))
    gate = layers.Dense(count, bias_initializer='ones')(gate)
    more = layers.Multiply()([half, layers.Permute((2, 1))(gate)])
    x = layers.Add()([x, layers.Dense(width)(more)])
  x = layers.Dropout(s(0.0, 0.2))(layers.GlobalAveragePooling1D()(x))
  return classified(s, inputs, layers.Dense(10)(x), s.floats(side, side, 3), 10)


class Taken(layers.Layer):
  """Takes rows of each example by their numbers."""

  def call(self, inputs):
    rows, numbers = inputs
    return tf.gather(rows, numbers, batch_dims=1)


class Restored(layers.Layer):
  """Puts a trained token after the visible rows, and restores the order of all."""

  def build(self, shape):
    self.token = self.add_weight(name='token', shape=(1, 1, shape[0][-1]))

  def call(self, inputs):
    visible, places = inputs
    hidden = tf.shape(places)[1] - tf.shape(visible)[1]
    token = tf.tile(tf.cast(tf.convert_to_tensor(self.token), visible.dtype),
                    [tf.shape(visible)[0], hidden, 1])
    return tf.gather(tf.concat([visible, token], 1), places, batch_dims=1)


@entry('Masked autoencoder (patches hidden by the data set)')
def masked_autoencoder(s: Size) -> Case:
  side, patch, width = s(4, 32), s(2, 4), s(4, 64)
  count = (side // patch)**2
  kept = count // 4
  image = tf.keras.Input((side, side, 3))
  order, back = (tf.keras.Input((count,), dtype='int32') for _ in range(2))
  x = Numbered(count, width)(_patches(s, image, patch))
  x = Taken()([x, order[:, :kept]])
  for _ in range(s(1, 3)):
    x = _block(x, width, 2, s(0.0, 0.1))
  x = layers.Dense(s(3, 32))(layers.LayerNormalization()(x))
  x = Numbered(count, s(3, 32))(Restored()([x, back]))
  x = layers.Dense(patch**2 * 3)(_block(x, s(3, 32), 1, s(0.0, 0.1)))
  outputs = Taken()([x, order[:, kept:]])
  orders = np.argsort(s.rng.random((s.rows, count)), 1).astype(np.int32)
  pixels = s.floats(side, side, 3)
  cut = pixels.reshape(s.rows, side // patch, patch, side // patch, patch * 3)
  cut = cut.transpose(0, 1, 3, 2, 4).reshape(s.rows, count, -1)
  hidden = np.take_along_axis(cut, orders[:, kept:, None], 1)
  return Case(tf.keras.Model([image, order, back], outputs),
              [pixels, orders, np.argsort(orders, 1).astype(np.int32)], hidden, 'mse')


class Involution(layers.Layer):
  """A kernel for each place of each example, shared by channels."""

  def __init__(self, channels, size, ratio):
    super().__init__()
    self.channels, self.size = channels, size
    self.kernels = tf.keras.Sequential([
        layers.Conv2D(max(1, channels // ratio), 1), layers.LayerNormalization(),
        layers.ReLU(), layers.Conv2D(size**2, 1)])

  def build(self, shape):
    self.kernels.build(shape)
    self.height, self.width = shape[1:3]
    self.built = True

  def call(self, inputs):
    shape = (-1, self.height, self.width, self.size**2)
    kernels = tf.reshape(self.kernels(inputs), (*shape, 1))
    found = tf.image.extract_patches(
        inputs, [1, self.size, self.size, 1], [1, 1, 1, 1], [1, 1, 1, 1], 'SAME')
    found = tf.reshape(found, (*shape, self.channels))
    return tf.reduce_sum(kernels * found, 3)


@entry('Involution')
def involution(s: Size) -> Case:
  side, width = s(6, 32), s(3, 16)
  inputs = tf.keras.Input((side, side, width))
  x = layers.ReLU()(Involution(width, 3, 2)(inputs))
  x = layers.MaxPooling2D()(x)
  x = layers.ReLU()(Involution(width, 3, 2)(x))
  x = layers.Dense(s(5, 64), 'relu')(layers.Flatten()(x))
  return classified(s, inputs, layers.Dense(10)(x), s.floats(side, side, width), 10)


class Perceiver(tf.keras.Model):
  """Reads patches again and again by cross attention of trained latents."""

  def __init__(self, s, patches, width):
    super().__init__()
    self.patch, self.count, self.latents = patches
    self.encode = Numbered(self.count, width)
    self.query = layers.Dense(width)
    self.cross = layers.MultiHeadAttention(1, width)
    self.inner = layers.MultiHeadAttention(2, max(1, width // 2))
    self.norms = [layers.LayerNormalization(epsilon=1e-6) for _ in range(5)]
    self.feeds = [tf.keras.Sequential([
        layers.Dense(width, 'gelu'), layers.Dense(width),
        layers.Dropout(s(0.0, 0.1))]) for _ in range(2)]
    self.pool, self.head = layers.GlobalAveragePooling1D(), layers.Dense(10)
    self.repeats, self.units = s(2, 2), width

  def build(self, shape):
    self.latent = self.add_weight(
        name='latents', shape=(self.latents, self.units), initializer='random_normal')
    super().build(shape)

  def call(self, inputs, training=None):
    side = inputs.shape[1] // self.patch
    x = tf.reshape(inputs, (-1, side, self.patch, side, self.patch * 3))
    x = tf.reshape(tf.transpose(x, (0, 1, 3, 2, 4)), (-1, self.count,
                                                      self.patch**2 * 3))
    x = self.norms[0](self.encode(x))
    latent = tf.cast(tf.convert_to_tensor(self.latent), x.dtype)[None]
    latent = tf.repeat(latent, tf.shape(x)[0], 0)
    for _ in range(self.repeats):
      read = self.cross(self.query(self.norms[1](latent)), x) + latent
      read = read + self.feeds[0](self.norms[2](read), training=training)
      seen = self.norms[3](read)
      read = read + self.inner(seen, seen)
      latent = read + self.feeds[1](self.norms[4](read), training=training)
    return self.head(self.pool(latent))


@entry('Perceiver (latents that read an image twice)')
def perceiver(s: Size) -> Case:
  side, patch = s(4, 32), s(2, 4)
  model = Perceiver(s, (patch, (side // patch)**2, s(3, 32)), s(4, 64))
  x = s.floats(side, side, 3)
  model(x[:1])
  return Case(model, x, s.labels(10), logits_loss())


class Orthogonal(tf.keras.regularizers.Regularizer):
  """Keeps the matrices of a transformation of points near orthogonal ones."""

  def __init__(self, size):
    self.size = size

  def __call__(self, x):
    x = tf.reshape(x, (-1, self.size, self.size))
    square = tf.matmul(x, x, transpose_b=True)
    return 0.001 * tf.reduce_sum((square - tf.eye(self.size, dtype=x.dtype))**2)


def _transformed(s: Size, x: Any, size: int) -> Any:
  """Returns points after a linear map that a small network finds from them."""
  y = layers.Conv1D(s(3, 32), 1, activation='relu')(x)
  y = layers.Conv1D(s(4, 64), 1, activation='relu')(y)
  y = layers.Dense(s(4, 64), 'relu')(layers.GlobalMaxPooling1D()(y))
  y = layers.Dense(
      size**2, kernel_initializer='zeros',
      bias_initializer=tf.keras.initializers.Constant(np.eye(size).ravel()),
      activity_regularizer=Orthogonal(size))(y)
  return layers.Dot(axes=(2, 1))([x, layers.Reshape((size, size))(y)])


@entry('PointNet (T-nets, an orthogonal regulariser)')
def pointnet(s: Size) -> Case:
  points, width = s(5, 128), s(3, 32)
  inputs = tf.keras.Input((points, 3))
  x = _transformed(s, inputs, 3)
  x = layers.Conv1D(width, 1, activation='relu')(x)
  x = _transformed(s, x, width)
  x = layers.Conv1D(s(4, 128), 1, activation='relu')(x)
  x = layers.Dense(s(4, 64), 'relu')(layers.GlobalMaxPooling1D()(x))
  x = layers.Dropout(s(0.0, 0.3))(x)
  return classified(s, inputs, layers.Dense(10)(x), s.floats(points, 3), 10)


@entry('U-Net of residual separable convolutions')
def unet(s: Size) -> Case:
  side = s(8, 32)
  inputs = tf.keras.Input((side, side, 3))
  x = layers.Conv2D(s(4, 32), 3, 2, 'same')(inputs)
  x = before = layers.ReLU()(layers.GroupNormalization(2)(x))
  for width in s((4, 6), (64, 128)):
    for _ in range(2):
      x = layers.SeparableConv2D(width, 3, padding='same')(layers.ReLU()(x))
      x = layers.GroupNormalization(2)(x)
    x = layers.MaxPooling2D(3, 2, 'same')(x)
    before = x = layers.Add()([x, layers.Conv2D(width, 1, 2, 'same')(before)])
  for width in s((6, 4, 4), (128, 64, 32)):
    for _ in range(2):
      x = layers.Conv2DTranspose(width, 3, padding='same')(layers.ReLU()(x))
      x = layers.GroupNormalization(2)(x)
    x = layers.UpSampling2D(2)(x)
    short = layers.Conv2D(width, 1, padding='same')(layers.UpSampling2D(2)(before))
    before = x = layers.Add()([x, short])
  model = tf.keras.Model(inputs, layers.Conv2D(3, 3, padding='same')(x))
  return Case(model, s.floats(side, side, 3), s.labels(3, side, side), logits_loss())


@entry('Time series classified by a transformer')
def series(s: Size) -> Case:
  # Two columns in tests: the norm of a single one is zero, which rounding decides.
  length, columns = s(6, 64), s(2, 1)
  inputs = x = tf.keras.Input((length, columns))
  for _ in range(s(1, 4)):
    more = layers.MultiHeadAttention(2, s(3, 32), dropout=s(0.0, 0.25))(x, x)
    x = layers.Add()([layers.LayerNormalization(epsilon=1e-6)(more), x])
    more = layers.Conv1D(4, 1, activation='relu')(x)
    more = layers.Conv1D(x.shape[-1], 1)(layers.Dropout(s(0.0, 0.25))(more))
    x = layers.Add()([layers.LayerNormalization(epsilon=1e-6)(more), x])
  x = layers.GlobalAveragePooling1D(data_format='channels_first')(x)
  x = layers.Dropout(s(0.0, 0.4))(layers.Dense(s(4, 128), 'relu')(x))
  return classified(s, inputs, layers.Dense(2)(x), s.floats(length, columns), 2)


@entry('Siamese network, contrastive loss of a distance')
def siamese(s: Size) -> Case:
  side = s(8, 28)
  tower = tf.keras.Sequential([
      layers.Input((side, side, 1)), layers.Conv2D(4, 3, activation='tanh'),
      layers.AveragePooling2D(2), layers.Conv2D(s(5, 16), 3, activation='tanh'),
      layers.Flatten(), layers.Dense(s(4, 10), 'tanh')])
  pair = [tf.keras.Input((side, side, 1)) for _ in range(2)]
  apart = function(lambda v: tf.sqrt(tf.maximum(tf.reduce_sum(
      tf.square(v[0] - v[1]), 1, keepdims=True), 1e-7)), (1,))(
          [tower(each) for each in pair])
  model = tf.keras.Model(pair, layers.Dense(1, 'sigmoid')(apart))

  def contrastive(y_true, y_pred):
    y_true = tf.cast(y_true, y_pred.dtype)
    far = tf.square(tf.maximum(1 - y_pred, 0))
    return tf.reduce_mean((1 - y_true) * tf.square(y_pred) + y_true * far, -1)

  return Case(model, [s.floats(side, side, 1) for _ in range(2)], s.labels(2, 1),
              contrastive)


class Gated(layers.Layer):
  """A gated residual network: a gate, a residual, a norm."""

  def __init__(self, units, rate):
    super().__init__()
    self.units = units
    self.hidden, self.out = layers.Dense(units, 'elu'), layers.Dense(units)
    self.drop, self.norm = layers.Dropout(rate), layers.LayerNormalization()
    self.linear, self.gate = layers.Dense(units), layers.Dense(units, 'sigmoid')
    self.project = layers.Dense(units)

  def build(self, shape):
    self.hidden.build(shape)
    inner = (*shape[:-1], self.units)
    for layer in (self.out, self.linear, self.gate, self.norm):
      layer.build(inner)
    if shape[-1] != self.units:
      self.project.build(shape)
    self.built = True

  def call(self, inputs, training=None):
    x = self.drop(self.out(self.hidden(inputs)), training=training)
    if inputs.shape[-1] != self.units:
      inputs = self.project(inputs)
    return self.norm(inputs + self.linear(x) * self.gate(x))


class Selected(layers.Layer):
  """Selects columns: a network for each, and one for their weights."""

  def __init__(self, columns, units, rate):
    super().__init__()
    self.grns = [Gated(units, rate) for _ in range(columns)]
    self.joined, self.weights_of = Gated(units, rate), layers.Dense(columns, 'softmax')
    self.units = units

  def build(self, shape):
    for grn, each in zip(self.grns, shape):
      grn.build(each)
    self.joined.build((None, sum(each[-1] for each in shape)))
    self.weights_of.build((None, self.units))
    self.built = True

  def call(self, inputs, training=None):
    weights = self.weights_of(self.joined(tf.concat(inputs, -1), training=training))
    stacked = tf.stack([grn(each, training=training)
                        for grn, each in zip(self.grns, inputs)], 1)
    return tf.squeeze(tf.matmul(weights[:, None], stacked), 1)


@entry('Gated residual and variable selection networks (GRN, VSN)')
def selection(s: Size) -> Case:
  columns, units = s(3, 10), s(3, 16)
  inputs = [tf.keras.Input((1,)) for _ in range(columns)]
  x = Selected(columns, units, s(0.0, 0.15))(
      [layers.Dense(units)(each) for each in inputs])
  model = tf.keras.Model(inputs, layers.Dense(1, 'sigmoid')(x))
  return Case(model, [s.floats(1) for _ in inputs], s.labels(2, 1),
              'binary_crossentropy')


class Switch(layers.Layer):
  """Sends each token to one expert, which takes a limited number of each text."""

  def __init__(self, experts, width, capacity):
    super().__init__()
    self.router = layers.Dense(experts)
    self.experts = [tf.keras.Sequential([
        layers.Dense(width, 'relu'), layers.Dense(width)]) for _ in range(experts)]
    self.capacity, self.count = capacity, experts

  def build(self, shape):
    self.router.build(shape)
    for expert in self.experts:
      expert.build((None, self.capacity, shape[-1]))
    self.built = True

  def call(self, inputs):
    share = tf.nn.softmax(self.router(inputs))
    chosen = tf.one_hot(tf.argmax(share, -1), self.count, dtype=inputs.dtype)
    # The number of each token among those of its expert, from zero on.
    place = tf.cumsum(chosen, 1) * chosen - 1
    chosen = chosen * tf.cast(place < self.capacity, inputs.dtype)
    slot = tf.one_hot(tf.cast(place, tf.int32), self.capacity, dtype=inputs.dtype)
    dispatch = slot * chosen[..., None]
    sent = tf.einsum('btec,btw->ebcw', dispatch, inputs)
    done = tf.stack([expert(sent[i]) for i, expert in enumerate(self.experts)])
    combine = dispatch * share[..., None]
    return tf.einsum('btec,ebcw->btw', combine, done)


def _switched(s: Size, layer: Any) -> Case:
  length, vocabulary, width = s(4, 64), s(7, 2000), s(4, 32)
  inputs = tf.keras.Input((length,), dtype='int32')
  x = layers.Embedding(vocabulary, width)(inputs)
  x = layers.Add()([x, layers.MultiHeadAttention(2, width // 2)(x, x)])
  x = layers.LayerNormalization()(layers.Add()([x, layer(width)(x)]))
  x = layers.GlobalAveragePooling1D()(x)
  return classified(s, inputs, layers.Dense(2)(x), s.labels(vocabulary, length), 2)


@entry('Switch transformer, a capacity within each text')
def switch(s: Size) -> Case:
  return _switched(s, lambda width: Switch(s(2, 4), width, s(1, 24)))


class SharedSwitch(layers.Layer):
  """Sends each token to one expert, which takes a limited number of the batch."""

  def __init__(self, experts, width, capacity):
    super().__init__()
    self.inner = Switch(experts, width, capacity)

  def build(self, shape):
    self.inner.build(shape)
    self.built = True

  def call(self, inputs):
    rows = tf.reshape(inputs, (1, -1, inputs.shape[-1]))
    return tf.reshape(self.inner(rows), tf.shape(inputs))


# A private step gives each text its own capacity: the layer is vectorised.
@entry('Switch transformer of keras.io, a capacity over the batch')
def switch_shared(s: Size) -> Case:
  return _switched(s, lambda width: SharedSwitch(s(2, 4), width, s(1, 24)))


class TopTwo(layers.Layer):
  """Mixes the two experts that a router prefers, by their renormalised shares."""

  def __init__(self, experts, width):
    super().__init__()
    self.router = layers.Dense(experts)
    self.experts = [layers.Dense(width, 'gelu') for _ in range(experts)]

  def build(self, shape):
    for layer in (self.router, *self.experts):
      layer.build(shape)
    self.built = True

  def call(self, inputs):
    logits = self.router(inputs)
    best, numbers = tf.math.top_k(logits, 2)
    share = tf.nn.softmax(best)
    gates = tf.reduce_sum(
        share[..., None] * tf.one_hot(numbers, len(self.experts), dtype=share.dtype),
        -2)
    done = tf.stack([expert(inputs) for expert in self.experts], -2)
    return tf.reduce_sum(gates[..., None] * done, -2)


@entry('Mixture of experts, the best two', fast=True)
def top_two(s: Size) -> Case:
  return _switched(s, lambda width: TopTwo(s(3, 4), width))


@entry('Distillation: a frozen teacher in the model')
def distillation(s: Size) -> Case:
  width, classes = s(5, 200), 4
  inputs = tf.keras.Input((width,))
  teacher = tf.keras.Sequential([
      layers.Input((width,)), layers.Dense(s(6, 256), 'relu'), layers.Dense(classes)])
  teacher.trainable = False
  student = layers.Dense(classes)(layers.Dense(s(3, 32), 'relu')(inputs))
  both = layers.Concatenate()([student, teacher(inputs)])

  def loss(y_true, y_pred):
    mine, its = y_pred[:, :classes], y_pred[:, classes:]
    hard = losses.sparse_categorical_crossentropy(y_true, mine, from_logits=True)
    soft = losses.KLDivergence(reduction='none')(
        tf.nn.softmax(its / 3), tf.nn.softmax(mine / 3))
    return 0.1 * hard + 0.9 * 9 * soft

  return Case(tf.keras.Model(inputs, both), s.floats(width), s.labels(classes), loss)


class Distiller(tf.keras.Model):
  """Trains a student on a teacher's answers, by an own loss."""

  def __init__(self, student, teacher):
    super().__init__()
    self.student, self.teacher = student, teacher

  def call(self, inputs):
    return self.student(inputs)

  def compute_loss(self, x=None, y=None, y_pred=None, *args, **kwargs):
    soft = losses.KLDivergence()(tf.nn.softmax(self.teacher(x)), tf.nn.softmax(y_pred))
    return losses.SparseCategoricalCrossentropy(from_logits=True)(y, y_pred) + soft


@entry('Distiller of keras.io (own compute_loss)', refused='does not call')
def distiller(s: Size) -> Case:
  width = s(5, 200)
  teacher, student = (tf.keras.Sequential([
      layers.Input((width,)), layers.Dense(units, 'relu'), layers.Dense(4)])
                      for units in (s(6, 256), s(3, 32)))
  teacher.trainable = False
  model = Distiller(student, teacher)
  x = s.floats(width)
  model(x[:1])
  return Case(model, x, s.labels(4), logits_loss())
