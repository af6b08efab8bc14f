"""Models by their structure: subclasses, nested models, closures, own layers."""

from __future__ import annotations

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


class Subclassed(tf.keras.Model):
  """A subclassed CNN, as in TensorFlow's quickstart for experts."""

  def __init__(self, width, rate):
    super().__init__()
    self.conv = layers.Conv2D(width, 3, activation='relu')
    self.flatten = layers.Flatten()
    self.dense = [layers.Dense(width, 'relu'), layers.Dense(10)]
    self.drop = layers.Dropout(rate)

  def call(self, inputs, training=None):
    x = self.flatten(self.conv(inputs))
    return self.dense[1](self.drop(self.dense[0](x), training=training))


@entry('Subclassed CNN', fast=True)
def subclassed(s: Size) -> Case:
  side = s(5, 28)
  model = Subclassed(s(3, 16), s(0.0, 0.2))
  x = s.floats(side, side, 1)
  model(x[:1])
  return Case(model, x, s.labels(10), logits_loss())


@entry('Subclassed model, dict input', refused3='known inputs')
def subclassed_dict(s: Size) -> Case:

  class Model(tf.keras.Model):
    """A model whose input is a dict of two columns."""

    def __init__(self):
      super().__init__()
      self.a, self.b = layers.Dense(s(4, 64)), layers.Dense(s(4, 64))
      self.out = layers.Dense(3)

    def call(self, inputs):
      return self.out(tf.nn.relu(self.a(inputs['a']) * self.b(inputs['b'])))

  model = Model()
  x = {'a': s.floats(s(3, 50)), 'b': s.floats(s(4, 60))}
  model({key: value[:1] for key, value in x.items()})
  return Case(model, x, s.labels(3), logits_loss())


@entry('Models in models')
def nested(s: Size) -> Case:
  width = s(4, 64)
  inner = tf.keras.Sequential([
      layers.Input((width,)), layers.Dense(width, 'relu'),
      layers.LayerNormalization()])
  hidden = tf.keras.Input((width,))
  middle = tf.keras.Model(hidden, layers.Add()([hidden, inner(hidden)]))
  inputs = tf.keras.Input((s(5, 100),))
  x = middle(middle(layers.Dense(width)(inputs)))
  return classified(s, inputs, layers.Dense(3)(x), s.floats(s(5, 100)), 3)


@entry('Lambda layers')
def lambdas(s: Size) -> Case:
  inputs = tf.keras.Input((s(4, 100),))
  x = function(lambda v: tf.concat([v, v**2], -1), (2 * s(4, 100),))(inputs)
  x = layers.Dense(s(4, 64))(x)
  x = function(lambda v: tf.nn.relu(v) - 0.1 * v, (s(4, 64),))(x)
  return classified(s, inputs, layers.Dense(3)(x), s.floats(s(4, 100)), 3)


@entry('Bare operations: slices, sums, products', fast=True)
def bare(s: Size) -> Case:
  size = s(3, 50)
  inputs = tf.keras.Input((2 * size,))
  a, b = layers.Dense(size)(inputs[:, :size]), layers.Dense(size)(inputs[:, size:])
  x = Bare.relu(a + b) * 2.0 - a * b
  return classified(s, inputs, layers.Dense(3)(x), s.floats(2 * size), 3)


class Standard(layers.Layer):
  """A dense layer as written in Keras' guide."""

  def __init__(self, units):
    super().__init__()
    self.units = units

  def build(self, shape):
    self.w = self.add_weight(name='w', shape=(shape[-1], self.units))
    self.b = self.add_weight(name='b', shape=(self.units,), initializer='zeros')

  def call(self, inputs):
    return tf.matmul(inputs, self.w) + self.b


@entry('Own dense layers')
def own_dense(s: Size) -> Case:
  inputs = tf.keras.Input((s(5, 100),))
  x = layers.ReLU()(Standard(s(4, 64))(inputs))
  return classified(s, inputs, Standard(3)(x), s.floats(s(5, 100)), 3)


class Spectral(layers.Layer):
  """A kernel over its norm and a trained length (weight normalisation)."""

  def __init__(self, units):
    super().__init__()
    self.units = units

  def build(self, shape):
    self.v = self.add_weight(name='v', shape=(shape[-1], self.units))
    self.g = self.add_weight(name='g', shape=(self.units,), initializer='ones')

  def call(self, inputs):
    kernel = self.g * tf.math.l2_normalize(tf.convert_to_tensor(self.v), 0)
    return tf.matmul(inputs, kernel)


@entry('Weight normalisation')
def weight_norm(s: Size) -> Case:
  inputs = tf.keras.Input((s(5, 100),))
  x = layers.ReLU()(Spectral(s(4, 64))(inputs))
  return classified(s, inputs, layers.Dense(3)(x), s.floats(s(5, 100)), 3)


@entry('SpectralNormalization layers', refused2='symbolic',
       refused3='write no variables')
def spectral(s: Size) -> Case:
  inputs = tf.keras.Input((s(5, 100),))
  x = layers.SpectralNormalization(layers.Dense(s(4, 64), 'relu'))(inputs)
  return classified(s, inputs, layers.Dense(3)(x), s.floats(s(5, 100)), 3)


@entry('PReLU')
def prelu(s: Size) -> Case:
  side = s(5, 32)
  inputs = tf.keras.Input((side, side, 2))
  x = layers.PReLU(shared_axes=[1, 2])(layers.Conv2D(s(3, 32), 3)(inputs))
  x = layers.PReLU()(layers.Dense(s(4, 32))(layers.Flatten()(x)))
  return classified(s, inputs, layers.Dense(3)(x), s.floats(side, side, 2), 3)


@entry('Maxout')
def maxout(s: Size) -> Case:
  inputs = tf.keras.Input((s(5, 100),))
  x = layers.Maximum()([layers.Dense(s(4, 64))(inputs) for _ in range(3)])
  return classified(s, inputs, layers.Dense(3)(x), s.floats(s(5, 100)), 3)


@entry('Highway network')
def highway(s: Size) -> Case:
  width = s(4, 64)
  inputs = x = tf.keras.Input((width,))
  for _ in range(s(2, 4)):
    gate = layers.Dense(width, 'sigmoid')(x)
    more = layers.Multiply()([gate, layers.Dense(width, 'relu')(x)])
    x = layers.Add()([more, layers.Multiply()([layers.Lambda(
        lambda v: 1 - v, output_shape=(width,))(gate), x])])
  return classified(s, inputs, layers.Dense(3)(x), s.floats(width), 3)


@entry('Gated linear units')
def glu(s: Size) -> Case:
  width = s(3, 64)
  inputs = tf.keras.Input((s(5, 100),))
  x = layers.Multiply()([layers.Dense(width)(inputs),
                         layers.Dense(width, 'sigmoid')(inputs)])
  x = layers.Dense(2 * width)(x)
  x = x[:, :width] * layers.Activation('swish')(x[:, width:])
  return classified(s, inputs, layers.Dense(3)(x), s.floats(s(5, 100)), 3)


@entry('All normalisations')
def normalised(s: Size) -> Case:
  width = s(4, 64)
  inputs = x = tf.keras.Input((s(3, 10), width))
  for norm in (layers.LayerNormalization(), layers.GroupNormalization(2),
               layers.UnitNormalization(),
               layers.LayerNormalization(axis=[1, 2]),
               layers.LayerNormalization(center=False, scale=False)):
    x = norm(layers.Dense(width)(x))
  return classified(s, inputs, layers.Dense(3)(layers.Flatten()(x)),
                    s.floats(s(3, 10), width), 3)


@entry('RMSNormalization', keras3=True)
def rms(s: Size) -> Case:
  inputs = tf.keras.Input((s(4, 64),))
  x = layers.RMSNormalization()(layers.Dense(s(4, 64))(inputs))
  return classified(s, inputs, layers.Dense(3)(x), s.floats(s(4, 64)), 3)


@entry('Weights of another layer by a Lambda')
def closure(s: Size) -> Case:
  size = s(4, 64)
  first = layers.Dense(size)
  inputs = tf.keras.Input((size,))
  x = layers.ReLU()(first(inputs))
  x = function(lambda v: tf.matmul(v, tf.cast(tf.convert_to_tensor(
      first.kernel), v.dtype), transpose_b=True), (size,))(x)
  return classified(s, inputs, layers.Dense(3)(x), s.floats(size), 3)


@entry('Hypernetwork (kernels per example)')
def hyper(s: Size) -> Case:
  size, width = s(3, 16), s(3, 16)
  condition, inputs = tf.keras.Input((s(2, 8),)), tf.keras.Input((size,))
  kernel = layers.Reshape((size, width))(layers.Dense(size * width)(condition))
  x = layers.Dot(axes=1)([inputs, kernel])
  model = tf.keras.Model([condition, inputs], layers.Dense(3)(layers.ReLU()(x)))
  return Case(model, [s.floats(s(2, 8)), s.floats(size)], s.labels(3), logits_loss())


@entry('Mixture of experts (soft)')
def experts(s: Size) -> Case:
  count, width = s(2, 4), s(3, 64)
  inputs = tf.keras.Input((s(5, 100),))
  gate = layers.Dense(count, 'softmax')(inputs)
  found = [layers.Reshape((1, width))(layers.Dense(width, 'relu')(inputs))
           for _ in range(count)]
  x = layers.Dot(axes=1)([gate, layers.Concatenate(axis=1)(found)])
  return classified(s, inputs, layers.Dense(3)(x), s.floats(s(5, 100)), 3)


@entry('EinsumDense')
def einsum(s: Size) -> Case:
  inputs = tf.keras.Input((s(3, 16), s(4, 32)))
  x = layers.EinsumDense('abc,cde->abde', (s(3, 16), 2, s(3, 16)), bias_axes='de')(
      inputs)
  x = layers.EinsumDense('abde,def->abf', (s(3, 16), s(3, 32)), activation='relu')(x)
  return classified(s, inputs, layers.Dense(3)(layers.Flatten()(x)),
                    s.floats(s(3, 16), s(4, 32)), 3)


@entry('A bilinear form, and a kernel for each place')
def bilinear(s: Size) -> Case:

  class Product(layers.Layer):
    """A bilinear form of both inputs, and a kernel for each place."""

    def build(self, shapes):
      a, b = (shape[-1] for shape in shapes)
      self.w = self.add_weight(name='w', shape=(a, b, 3))
      self.places = self.add_weight(name='places', shape=(b, 3))

    def call(self, inputs):
      a, b = inputs
      return tf.einsum('ba,bc,ack->bk', a, b, tf.convert_to_tensor(self.w)) + (
          tf.reduce_sum(b[:, :, None] * self.places, 1))

  inputs = tf.keras.Input((s(4, 32),))
  x = Product()([layers.Dense(s(3, 16), 'tanh')(inputs), inputs])
  return classified(s, inputs, x, s.floats(s(4, 32)), 3)
