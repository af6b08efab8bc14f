"""Autoencoders and what is trained without labels."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.keras.zoo.base import Case, entry, layers, Size


@entry('Autoencoder')
def autoencoder(s: Size) -> Case:
  size = s(8, 784)
  model = tf.keras.Sequential([
      layers.Input((size,)), layers.Dense(s(5, 128), 'relu'),
      layers.Dense(s(3, 32), 'relu'), layers.Dense(s(5, 128), 'relu'),
      layers.Dense(size, 'sigmoid')])
  x = s.rng.random((s.rows, size)).astype(tf.keras.backend.floatx())
  return Case(model, x, x, 'binary_crossentropy')


@entry('Denoising convolutional autoencoder')
def convolutional(s: Size) -> Case:
  side = s(4, 28)
  model = tf.keras.Sequential([
      layers.Input((side, side, 1)), layers.GaussianNoise(s(0.0, 0.1)),
      layers.Conv2D(s(3, 16), 3, 2, 'same', activation='relu'),
      layers.Conv2D(s(2, 8), 3, 2, 'same', activation='relu'),
      layers.Conv2DTranspose(s(2, 8), 3, 2, 'same', activation='relu'),
      layers.Conv2DTranspose(s(3, 16), 3, 2, 'same', activation='relu'),
      layers.Conv2D(1, 3, padding='same')])
  x = s.floats(side, side, 1)
  return Case(model, x, x, 'mse')


class Sampling(layers.Layer):
  """Adds noise, and the divergence of its law to the loss."""

  def __init__(self, scale):
    super().__init__()
    self.scale = scale

  def call(self, inputs):
    mean, log_var = inputs
    kl = -0.5 * tf.reduce_sum(1 + log_var - mean**2 - tf.exp(log_var), -1)
    self.add_loss(tf.reduce_mean(kl))
    noise = tf.random.normal(tf.shape(mean), dtype=mean.dtype)
    return mean + self.scale * noise * tf.exp(0.5 * log_var)


@entry('Variational autoencoder (add_loss in a layer)')
def variational(s: Size) -> Case:
  size = s(6, 784)
  inputs = tf.keras.Input((size,))
  x = layers.Dense(s(4, 128), 'relu')(inputs)
  z = Sampling(s(0.0, 1.0))([layers.Dense(s(2, 8))(x), layers.Dense(s(2, 8))(x)])
  x = layers.Dense(s(4, 128), 'relu')(z)
  model = tf.keras.Model(inputs, layers.Dense(size)(x))
  x = s.floats(size)
  return Case(model, x, x, 'mse')


class OwnStep(tf.keras.Model):
  """A VAE as in keras.io: with a train_step of its own."""

  def __init__(self, size, width):
    super().__init__()
    self.encoder = tf.keras.Sequential(
        [layers.Input((size,)), layers.Dense(width, 'relu'), layers.Dense(2)])
    self.decoder = tf.keras.Sequential([layers.Input((2,)), layers.Dense(size)])

  def call(self, inputs):
    return self.decoder(self.encoder(inputs))

  def objective(self, x):
    code = self.encoder(x)
    return (tf.reduce_mean((self.decoder(code) - x)**2) +
            0.3 * tf.reduce_mean(tf.reduce_sum(code**2, -1)))

  def train_step(self, data):
    x = data[0] if isinstance(data, tuple) else data
    with tf.GradientTape() as tape:
      loss = self.objective(x)
    gradients = tape.gradient(loss, self.trainable_variables)
    self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
    return {'loss': loss}


@entry('VAE of keras.io (own train_step)', refused='does not call')
def own_step(s: Size) -> Case:
  size = s(5, 784)
  model = OwnStep(size, s(4, 128))
  x = s.floats(size)
  model(x[:1])
  return Case(model, x, x, 'mse', objective=lambda m, x, y: m.objective(x))


class OwnLoss(tf.keras.Model):
  """A model that overrides compute_loss."""

  def __init__(self, size, width):
    super().__init__()
    self.net = tf.keras.Sequential(
        [layers.Input((size,)), layers.Dense(width, 'relu'), layers.Dense(3)])

  def call(self, inputs):
    return self.net(inputs)

  def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None,
                   **kwargs: Any):
    return tf.reduce_mean(tf.abs(y - y_pred)**3)


@entry('Subclass with its own compute_loss', refused='does not call')
def own_loss(s: Size) -> Case:
  model = OwnLoss(s(5, 100), s(4, 64))
  x = s.floats(s(5, 100))
  model(x[:1])
  return Case(model, x, s.floats(3), 'mse')


@entry('PixelCNN-like (masked convolutions)')
def pixel_cnn(s: Size) -> Case:

  class Masked(layers.Conv2D):
    """Sees only pixels before its own."""

    def call(self, inputs):
      size = self.kernel_size[0]
      places = tf.reshape(tf.range(size * size), (size, size, 1, 1))
      mask = tf.cast(places < size * size // 2, self.compute_dtype)
      kernel = tf.cast(tf.convert_to_tensor(self.kernel), self.compute_dtype)
      found = tf.nn.conv2d(inputs, kernel * mask, 1, 'SAME')
      return found + tf.cast(tf.convert_to_tensor(self.bias), found.dtype)

  side = s(5, 28)
  inputs = x = tf.keras.Input((side, side, 1))
  for _ in range(2):
    x = layers.ReLU()(Masked(s(3, 32), 3, padding='same')(x))
  model = tf.keras.Model(inputs, layers.Conv2D(s(3, 16), 1)(x))
  return Case(model, s.floats(side, side, 1), s.labels(s(3, 16), side, side),
              tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))


@entry('Denoising diffusion step (time embedding, two inputs)')
def diffusion(s: Size) -> Case:
  side, width = s(4, 16), s(3, 32)
  image = tf.keras.Input((side, side, 1))
  time = tf.keras.Input((), dtype='int32')
  moment = layers.Dense(width, 'swish')(layers.Embedding(s(5, 100), width)(time))
  moment = layers.Reshape((1, 1, width))(moment)
  x = layers.Conv2D(width, 3, padding='same')(image)
  x = layers.Activation('swish')(layers.Add()([x, moment]))
  x = layers.GroupNormalization(1)(x)
  x = layers.Conv2D(1, 3, padding='same')(x)
  return Case(tf.keras.Model([image, time], x),
              [s.floats(side, side, 1), s.labels(s(5, 100))],
              s.floats(side, side, 1), 'mse')


@entry('Normalizing flow (coupling layers, exact likelihood)')
def flow(s: Size) -> Case:
  size, width = s(2, 16), s(3, 64)
  inputs = tf.keras.Input((2 * size,))
  a, b = inputs[:, :size], inputs[:, size:]
  logs = []
  for _ in range(2):
    hidden = layers.Dense(width, 'tanh')(a)
    scale = layers.Dense(size, 'tanh')(hidden)
    shift = layers.Dense(size)(hidden)
    b = layers.Add()([layers.Multiply()([b, layers.Activation('exponential')(
        scale)]), shift])
    logs.append(scale)
    a, b = b, a
  model = tf.keras.Model(inputs, layers.Concatenate()([a, b, *logs]))

  def likelihood(y, p):
    return (0.5 * tf.reduce_sum(p[:, :2 * size]**2, -1) -
            tf.reduce_sum(p[:, 2 * size:], -1))

  x = s.floats(2 * size)
  return Case(model, x, x, likelihood)
