"""Models that nobody would think of."""

from __future__ import annotations

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


class Polynomial(layers.Layer):
  """A sum of Chebyshev polynomials for each pair of units (KAN)."""

  def __init__(self, units, degree):
    super().__init__()
    self.units, self.degree = units, degree

  def build(self, shape):
    self.c = self.add_weight(name='c', shape=(self.degree, shape[-1], self.units))

  def call(self, inputs):
    x = tf.tanh(inputs)
    basis = [tf.ones_like(x), x]
    for _ in range(self.degree - 2):
      basis.append(2 * x * basis[-1] - basis[-2])
    return tf.einsum('dbi,dio->bo', tf.stack(basis[:self.degree]),
                     tf.convert_to_tensor(self.c))


@entry('Kolmogorov-Arnold network (Chebyshev)')
def kan(s: Size) -> Case:
  inputs = tf.keras.Input((s(4, 64),))
  x = Polynomial(s(3, 32), 4)(inputs)
  return classified(s, inputs, Polynomial(3, 3)(x), s.floats(s(4, 64)), 3)


@entry('Fourier features, trained frequencies')
def fourier(s: Size) -> Case:

  class Features(layers.Layer):
    """Sines and cosines."""

    def build(self, shape):
      self.f = self.add_weight(name='f', shape=(shape[-1], s(3, 64)))

    def call(self, inputs):
      angle = tf.matmul(inputs, self.f)
      return tf.concat([tf.sin(angle), tf.cos(angle)], -1)

  inputs = tf.keras.Input((2,))
  x = layers.Dense(s(4, 64), 'relu')(Features()(inputs))
  model = tf.keras.Model(inputs, layers.Dense(3, 'sigmoid')(x))
  return Case(model, s.floats(2), s.rng.random((s.rows, 3)), 'mae')


@entry('SIREN (sine activations of one\'s own)')
def siren(s: Size) -> Case:
  sine = tf.sin
  model = tf.keras.Sequential([
      layers.Input((2,)), layers.Dense(s(4, 64), sine), layers.Dense(s(4, 64), sine),
      layers.Dense(1)])
  return Case(model, s.floats(2), s.floats(1), 'mse')


@entry('Graph convolution, an adjacency for each example')
def graph(s: Size) -> Case:
  nodes, width = s(4, 20), s(3, 32)
  edges, x0 = tf.keras.Input((nodes, nodes)), tf.keras.Input((nodes, s(2, 8)))
  x = x0
  for _ in range(2):
    x = layers.ReLU()(layers.Dot(axes=(2, 1))([edges, layers.Dense(width)(x)]))
  model = tf.keras.Model([edges, x0], layers.Dense(3)(
      layers.GlobalAveragePooling1D()(x)))
  links = (s.rng.random((s.rows, nodes, nodes)) < 0.4).astype(
      tf.keras.backend.floatx())
  return Case(model, [links, s.floats(nodes, s(2, 8))], s.labels(3), logits_loss())


@entry('Graph attention')
def graph_attention(s: Size) -> Case:
  nodes, width = s(4, 20), s(4, 32)
  edges = tf.keras.Input((nodes, nodes), dtype='bool')
  x0 = tf.keras.Input((nodes, width))
  x = layers.MultiHeadAttention(2, 2)(x0, x0, attention_mask=edges)
  model = tf.keras.Model([edges, x0], layers.Dense(3)(layers.Flatten()(x)))
  links = (s.rng.random((s.rows, nodes, nodes)) < 0.5) | np.eye(nodes, dtype=bool)
  return Case(model, [links, s.floats(nodes, width)], s.labels(3), logits_loss())


class Routing(layers.Layer):
  """Capsules that agree, by three rounds of routing."""

  def __init__(self, capsules, size):
    super().__init__()
    self.capsules, self.size = capsules, size

  def build(self, shape):
    self.w = self.add_weight(
        name='w', shape=(shape[1], shape[2], self.capsules, self.size))

  def call(self, inputs):
    votes = tf.einsum('bif,ifcs->bics', inputs, tf.convert_to_tensor(self.w))
    logits = tf.zeros_like(votes[..., 0])
    for _ in range(3):
      share = tf.nn.softmax(logits, -1)
      total = tf.einsum('bic,bics->bcs', share, votes)
      square = tf.reduce_sum(total**2, -1, keepdims=True)
      total = total * tf.sqrt(square + 1e-7) / (1 + square)
      logits += tf.einsum('bics,bcs->bic', votes, total)
    return tf.sqrt(tf.reduce_sum(total**2, -1) + 1e-7)


@entry('Capsules with routing')
def capsules(s: Size) -> Case:
  side = s(5, 20)
  inputs = tf.keras.Input((side, side, 1))
  x = layers.Conv2D(s(4, 32), 3, 2, activation='relu')(inputs)
  x = Routing(3, s(2, 8))(layers.Reshape((-1, s(4, 8)))(x))
  return classified(s, inputs, layers.Rescaling(5.0)(x), s.floats(side, side, 1), 3)


@entry('Neural ODE, unrolled Runge-Kutta')
def ode(s: Size) -> Case:
  width = s(3, 32)
  net = tf.keras.Sequential([layers.Input((width,)), layers.Dense(width, 'tanh'),
                             layers.Dense(width)])
  inputs = x = tf.keras.Input((width,))
  step = 0.25
  for _ in range(s(2, 4)):
    first = net(x)
    second = net(layers.Add()([x, layers.Rescaling(step / 2)(first)]))
    x = layers.Add()([x, layers.Rescaling(step)(second)])
  return classified(s, inputs, layers.Dense(3)(x), s.floats(width), 3)


@entry('Deep equilibrium, a tf.while_loop in a layer')
def equilibrium(s: Size) -> Case:

  class Fixed(layers.Layer):
    """Iterates a small map a fixed number of times."""

    def build(self, shape):
      self.w = self.add_weight(name='w', shape=(shape[-1], shape[-1]))

    def call(self, inputs):
      kernel = tf.convert_to_tensor(self.w)
      _, x = tf.while_loop(
          lambda i, x: i < 3,
          lambda i, x: (i + 1, tf.tanh(tf.matmul(x, kernel) + inputs)),
          (0, tf.zeros_like(inputs)), maximum_iterations=3)
      return x

  width = s(3, 32)
  inputs = tf.keras.Input((width,))
  return classified(s, inputs, layers.Dense(3)(Fixed()(inputs)), s.floats(width), 3)


@entry('A branch by the example (tf.where of two experts)')
def branches(s: Size) -> Case:
  inputs = tf.keras.Input((s(4, 64),))
  a, b = layers.Dense(s(3, 32))(inputs), layers.Dense(s(3, 32))(inputs)
  gate = layers.Dense(1)(inputs)
  x = function(lambda v: tf.where(v[0] > 0, v[1], v[2] * tf.sigmoid(v[0])),
               (s(3, 32),))([gate, a, b])
  return classified(s, inputs, layers.Dense(3)(x), s.floats(s(4, 64)), 3)


@entry('Sort and top-k within an example')
def sorted_(s: Size) -> Case:
  inputs = tf.keras.Input((s(5, 64),))
  x = layers.Dense(s(5, 64))(inputs)
  x = function(lambda v: tf.concat([tf.sort(v), tf.math.top_k(v, 2).values], -1),
               (s(5, 64) + 2,))(x)
  return classified(s, inputs, layers.Dense(3)(x), s.floats(s(5, 64)), 3)


@entry('FNet (Fourier transforms in place of attention)', float64=False)
def fnet(s: Size) -> Case:
  length, width = s(4, 32), s(4, 64)
  inputs = tf.keras.Input((length, width))
  x = layers.Dense(width)(inputs)
  mixed = function(lambda v: tf.math.real(tf.signal.fft2d(tf.cast(
      v, tf.complex64))), (length, width))(x)
  x = layers.LayerNormalization()(layers.Add()([x, mixed]))
  return classified(s, inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)),
                    s.floats(length, width), 3)


@entry('One layer called five times, outputs summed')
def called_often(s: Size) -> Case:
  width = s(3, 64)
  shared, norm = layers.Dense(width, 'tanh'), layers.LayerNormalization()
  inputs = x = tf.keras.Input((width,))
  outputs = []
  for _ in range(5):
    x = norm(shared(x))
    outputs.append(x)
  return classified(s, inputs, layers.Dense(3)(layers.Add()(outputs)),
                    s.floats(width), 3)


@entry('A variable tracked by no layer')
def untracked(s: Size) -> Case:

  class Scaled(layers.Layer):
    """Uses a layer that it was given in a closure, hidden from Keras."""

    def __init__(self, hidden):
      super().__init__()
      self._get = lambda: hidden

    def call(self, inputs):
      return inputs * tf.cast(tf.convert_to_tensor(self._get().kernel)[0, 0],
                              inputs.dtype)

  hidden = layers.Dense(s(4, 64))
  inputs = tf.keras.Input((s(4, 64),))
  x = Scaled(hidden)(layers.ReLU()(hidden(inputs)))
  return classified(s, inputs, layers.Dense(3)(x), s.floats(s(4, 64)), 3)


@entry('A layer that is not used')
def unused(s: Size) -> Case:

  class Model(tf.keras.Model):
    """Half of it takes no part."""

    def __init__(self):
      super().__init__()
      self.idle, self.out = layers.Dense(s(3, 64)), layers.Dense(3)

    def build(self, shape):
      self.idle.build(shape)
      self.out.build(shape)
      self.built = True

    def call(self, inputs):
      return self.out(inputs)

  model = Model()
  x = s.floats(s(4, 64))
  model(x[:1])
  return Case(model, x, s.labels(3), logits_loss())


@entry('Stopped gradients (straight-through rounding)')
def straight_through(s: Size) -> Case:
  inputs = tf.keras.Input((s(4, 64),))
  x = layers.Dense(s(4, 64))(inputs)
  x = function(lambda v: v + tf.stop_gradient(tf.round(v) - v), (s(4, 64),))(x)
  return classified(s, inputs, layers.Dense(3)(x), s.floats(s(4, 64)), 3)


@entry('A codebook (vector quantisation, argmin and gather)')
def codebook(s: Size) -> Case:

  class Nearest(layers.Layer):
    """The nearest row of a table, straight through."""

    def build(self, shape):
      self.table = self.add_weight(name='table', shape=(s(4, 64), shape[-1]))

    def call(self, inputs):
      table = tf.convert_to_tensor(self.table)
      apart = tf.reduce_sum((inputs[:, None] - table)**2, -1)
      found = tf.gather(table, tf.argmin(apart, -1))
      return found + inputs - tf.stop_gradient(inputs)

  width = s(3, 16)
  inputs = tf.keras.Input((s(4, 64),))
  x = Nearest()(layers.Dense(width)(inputs))
  return classified(s, inputs, layers.Dense(3)(x), s.floats(s(4, 64)), 3)


@entry('Gradients in the forward pass (a physics-informed network)')
def physics(s: Size) -> Case:

  class Derivative(tf.keras.Model):
    """A network and its derivative by its input."""

    def __init__(self):
      super().__init__()
      self.net = tf.keras.Sequential([
          layers.Input((1,)), layers.Dense(s(4, 32), 'tanh'), layers.Dense(1)])

    def call(self, inputs):
      with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = self.net(inputs)
      return tf.concat([value, tape.gradient(value, inputs)], -1)

  model = Derivative()
  x = s.floats(1)
  model(tf.constant(x[:1]))
  return Case(model, x, s.floats(2), 'mse')


@entry('Energy of all pairs (particles, distances within an example)')
def particles(s: Size) -> Case:
  count = s(3, 12)
  inputs = tf.keras.Input((count, 3))
  x = function(lambda v: tf.reduce_sum(
      (v[:, :, None] - v[:, None])**2, -1, keepdims=True), (count, count, 1))(inputs)
  x = layers.Dense(1)(layers.Dense(s(4, 32), 'softplus')(x))
  total = Bare.total(x, axis=[1, 2])
  return Case(tf.keras.Model(inputs, total), s.floats(count, 3), s.floats(1), 'mse')


@entry('Learned pooling: signs, roots and powers')
def generalized_mean(s: Size) -> Case:

  class Power(layers.Layer):
    """A mean with a trained exponent."""

    def build(self, shape):
      self.p = self.add_weight(name='p', shape=(), initializer='ones')

    def call(self, inputs):
      p = tf.nn.softplus(tf.convert_to_tensor(self.p)) + 1
      mean = tf.reduce_mean((tf.nn.softplus(inputs) + 1e-3)**p, [1, 2])
      return mean**(1 / p)

  side = s(5, 28)
  inputs = tf.keras.Input((side, side, 1))
  x = Power()(layers.Conv2D(s(3, 16), 3)(inputs))
  return classified(s, inputs, layers.Dense(3)(x), s.floats(side, side, 1), 3)


@entry('A scalar model: one weight')
def scalar(s: Size) -> Case:
  model = tf.keras.Sequential([
      layers.Input((1,)), layers.Dense(1, use_bias=False)])
  return Case(model, s.floats(1), s.floats(1), 'mse')


@entry('A moving average in the forward pass', refused='writes|assign')
def stateful(s: Size) -> Case:

  class Counting(layers.Layer):
    """Writes what it saw into a variable."""

    def build(self, shape):
      self.seen = self.add_weight(name='seen', shape=(shape[-1],), trainable=False)

    def call(self, inputs):
      self.seen.assign(0.9 * tf.convert_to_tensor(self.seen) +
                       0.1 * tf.reduce_mean(inputs, 0))
      return inputs - self.seen

  inputs = tf.keras.Input((s(4, 64),))
  return classified(s, inputs, layers.Dense(3)(Counting()(inputs)),
                    s.floats(s(4, 64)), 3)
