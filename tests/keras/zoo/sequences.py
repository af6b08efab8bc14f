"""Sequences by newer means: translation, speech, state spaces, low precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.keras.zoo.base import (
  Bare,
  Case,
  classified,
  entry,
  layers,
  logits_loss,
  Size,
)


@entry('Translation with attention (NMT), a masked loss')
def translation(s: Size) -> Case:
  length, vocabulary, width = s(4, 24), s(7, 1000), s(4, 64)
  source, target = (tf.keras.Input((length,), dtype='int32') for _ in range(2))
  memory = layers.Embedding(vocabulary, width, mask_zero=True)(source)
  memory = layers.Bidirectional(
      layers.GRU(width, return_sequences=True), merge_mode='sum')(memory)
  x = layers.Embedding(vocabulary, width, mask_zero=True)(target)
  x = layers.GRU(width, return_sequences=True)(x)
  read = layers.MultiHeadAttention(1, width)(query=x, value=memory)
  x = layers.LayerNormalization()(layers.Add()([x, read]))
  model = tf.keras.Model([source, target], layers.Dense(vocabulary)(x))

  def masked(y_true, y_pred):
    found = tf.keras.losses.sparse_categorical_crossentropy(
        y_true, y_pred, from_logits=True)
    return found * tf.cast(tf.not_equal(tf.cast(y_true, tf.int32), 0), found.dtype)

  return Case(model, [s.tokens(length, vocabulary) for _ in range(2)],
              s.tokens(length, vocabulary), masked)


def _half_step(x: Any, width: int, rate: float) -> Any:
  """Returns x and half of a feed-forward network of it."""
  more = layers.Dense(2 * width, 'swish')(layers.LayerNormalization()(x))
  more = layers.Dropout(rate)(layers.Dense(width)(more))
  return layers.Add()([x, layers.Rescaling(0.5)(more)])


@entry('Conformer (speech)')
def conformer(s: Size) -> Case:
  length, bands, width = s(8, 64), s(4, 40), s(4, 64)
  inputs = tf.keras.Input((length, bands))
  x = layers.Conv1D(width, 3, 2, 'same', activation='relu')(inputs)
  for _ in range(s(1, 2)):
    x = _half_step(x, width, s(0.0, 0.1))
    more = layers.LayerNormalization()(x)
    x = layers.Add()([x, layers.MultiHeadAttention(2, width // 2)(more, more)])
    more = layers.Conv1D(2 * width, 1)(layers.LayerNormalization()(x))
    more = layers.Multiply()([more[..., :width], layers.Activation('sigmoid')(
        more[..., width:])])
    more = layers.DepthwiseConv1D(s(3, 15), padding='same')(more)
    more = layers.Activation('swish')(layers.GroupNormalization(2)(more))
    x = layers.Add()([x, layers.Conv1D(width, 1)(more)])
    x = layers.LayerNormalization()(_half_step(x, width, s(0.0, 0.1)))
  return classified(s, inputs, layers.Dense(5)(layers.GlobalAveragePooling1D()(x)),
                    s.floats(length, bands), 5)


class StateSpace(layers.Layer):
  """A linear recurrence whose step, input and output depend on the token."""

  def __init__(self, width, states):
    super().__init__()
    self.width, self.states = width, states
    self.step = layers.Dense(width, 'softplus')
    self.read, self.write = layers.Dense(states), layers.Dense(states)

  def build(self, shape):
    for layer in (self.step, self.read, self.write):
      layer.build(shape)
    self.rates = self.add_weight(name='rates', shape=(self.width, self.states),
                                 initializer='random_uniform')
    self.skip = self.add_weight(name='skip', shape=(self.width,), initializer='ones')
    self.built = True

  def call(self, inputs):
    step = self.step(inputs)[..., None]
    rates = -tf.exp(tf.cast(tf.convert_to_tensor(self.rates), inputs.dtype))
    keep = tf.exp(step * rates)
    new = step * self.read(inputs)[:, :, None] * inputs[..., None]
    states = [new[:, 0]]
    for i in range(1, inputs.shape[1]):
      states.append(keep[:, i] * states[-1] + new[:, i])
    states = tf.stack(states, 1)
    outputs = tf.reduce_sum(states * self.write(inputs)[:, :, None], -1)
    return outputs + inputs * tf.cast(tf.convert_to_tensor(self.skip), inputs.dtype)


@entry('Mamba-like (a selective state space)')
def mamba(s: Size) -> Case:
  length, vocabulary, width = s(4, 32), s(7, 1000), s(4, 32)
  inputs = tf.keras.Input((length,), dtype='int32')
  x = layers.Embedding(vocabulary, width)(inputs)
  more = layers.LayerNormalization()(x)
  inner = layers.Conv1D(2 * width, 3, padding='causal', groups=s(2, 2),
                        activation='swish')(more)
  inner = StateSpace(2 * width, s(2, 8))(inner)
  gate = layers.Dense(2 * width, 'swish')(more)
  x = layers.Add()([x, layers.Dense(width)(layers.Multiply()([inner, gate]))])
  return Case(tf.keras.Model(inputs, layers.Dense(vocabulary)(x)),
              s.labels(vocabulary, length), s.labels(vocabulary, length),
              logits_loss())


class MinimalCell(layers.Layer):
  """A cell of one gate, as users write cells for `layers.RNN`."""

  def __init__(self, units):
    super().__init__()
    self.units = self.state_size = self.output_size = units

  def build(self, shape):
    self.w = self.add_weight(name='w', shape=(shape[-1], 2 * self.units))
    self.u = self.add_weight(name='u', shape=(self.units, 2 * self.units))
    self.built = True

  def call(self, inputs, states):
    state = states[0] if isinstance(states, (list, tuple)) else states
    both = tf.matmul(inputs, self.w) + tf.matmul(state, self.u)
    gate = tf.sigmoid(both[:, :self.units])
    new = (1 - gate) * state + gate * tf.tanh(both[:, self.units:])
    return new, [new]


@entry('RNN of an own gated cell')
def own_cell(s: Size) -> Case:
  length, width = s(4, 32), s(3, 16)
  inputs = tf.keras.Input((length, width))
  x = layers.RNN(MinimalCell(s(3, 32)), return_sequences=True)(inputs)
  x = layers.RNN(MinimalCell(s(4, 32)))(x)
  return classified(s, inputs, layers.Dense(3)(x), s.floats(length, width), 3)


def _rounded(x: Any, scale: Any) -> Any:
  """Returns x rounded to eight bits, with the gradient of the identity."""
  rounded = tf.clip_by_value(tf.round(x / scale), -127, 127) * scale
  return x + tf.stop_gradient(rounded - x)


class Quantized(layers.Layer):
  """A dense layer or a convolution whose kernel and outputs are rounded."""

  def __init__(self, layer):
    super().__init__()
    self.layer = layer

  def build(self, shape):
    self.layer.build(shape)
    self.built = True

  def call(self, inputs):
    kernel = tf.cast(tf.convert_to_tensor(self.layer.kernel), inputs.dtype)
    kernel = _rounded(kernel, tf.stop_gradient(tf.reduce_max(tf.abs(kernel))) / 127)
    bias = tf.cast(tf.convert_to_tensor(self.layer.bias), inputs.dtype)
    if isinstance(self.layer, layers.Conv2D):
      x = tf.nn.conv2d(inputs, kernel, list(self.layer.strides),
                       self.layer.padding.upper())
    else:
      x = tf.matmul(inputs, kernel)
    # A range for each example: that of the batch would mix them.
    axes = list(range(1, len(x.shape)))
    top = tf.reduce_max(tf.abs(x + bias), axes, keepdims=True)
    return tf.nn.relu(_rounded(x + bias, tf.stop_gradient(top) / 127 + 1e-6))


@entry('Quantisation aware training (rounded kernels and activations)')
def quantized(s: Size) -> Case:
  side = s(6, 28)
  inputs = tf.keras.Input((side, side, 1))
  x = Quantized(layers.Conv2D(s(3, 16), 3, 2))(inputs)
  x = Quantized(layers.Conv2D(s(3, 32), s(2, 3)))(x)
  x = Quantized(layers.Dense(s(4, 64)))(layers.Flatten()(x))
  return classified(s, inputs, layers.Dense(10)(x), s.floats(side, side, 1), 10)


class Rotated(layers.Layer):
  """Turns pairs of channels by an angle that grows with the place."""

  def call(self, inputs):
    length, half = inputs.shape[1], inputs.shape[-1] // 2
    angles = np.arange(length)[:, None] / 10000**(np.arange(half) / half)
    sin, cos = (tf.constant(f(angles)[:, None], inputs.dtype)
                for f in (np.sin, np.cos))
    a, b = inputs[..., :half], inputs[..., half:]
    return tf.concat([a * cos - b * sin, a * sin + b * cos], -1)


class RootMean(layers.Layer):
  """Divides by the root mean square, with a trained scale."""

  def build(self, shape):
    self.scale = self.add_weight(name='scale', shape=(shape[-1],), initializer='ones')

  def call(self, inputs):
    mean = tf.reduce_mean(inputs**2, -1, keepdims=True)
    return inputs * tf.math.rsqrt(mean + 1e-6) * tf.cast(
        tf.convert_to_tensor(self.scale), inputs.dtype)


@entry('Llama-like by hand (rotary positions, SwiGLU, RMS norms)')
def llama(s: Size) -> Case:
  length, vocabulary, heads, size = s(4, 32), s(7, 500), 2, s(2, 16)
  inputs = tf.keras.Input((length,), dtype='int32')
  x = layers.Embedding(vocabulary, heads * size)(inputs)
  hidden = np.triu(np.full((length, length), -1e9), 1)[None, None]
  for _ in range(s(1, 2)):
    normed = RootMean()(x)
    query, key, value = (layers.Reshape((length, heads, size))(
        layers.Dense(heads * size, use_bias=False)(normed)) for _ in range(3))
    query, key = Rotated()(query), Rotated()(key)
    query, key, value = (layers.Permute((2, 1, 3))(each)
                         for each in (query, key, value))
    found = Bare.matmul(query, Bare.transpose(key, [0, 1, 3, 2])) / size**0.5
    found = Bare.softmax(found + hidden.astype(tf.keras.backend.floatx()))
    read = layers.Permute((2, 1, 3))(Bare.matmul(found, value))
    read = layers.Reshape((length, heads * size))(read)
    x = layers.Add()([x, layers.Dense(heads * size, use_bias=False)(read)])
    normed = RootMean()(x)
    more = layers.Multiply()([
        layers.Dense(2 * heads * size, 'swish', use_bias=False)(normed),
        layers.Dense(2 * heads * size, use_bias=False)(normed)])
    x = layers.Add()([x, layers.Dense(heads * size, use_bias=False)(more)])
  model = tf.keras.Model(inputs, layers.Dense(vocabulary)(RootMean()(x)))
  return Case(model, s.labels(vocabulary, length), s.labels(vocabulary, length),
              logits_loss())
