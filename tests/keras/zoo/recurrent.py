"""Recurrent networks and convolutions over time."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.keras.zoo.base import Case, classified, entry, layers, logits_loss, Size


def _text(s: Size, *parts: Any, mask: bool = True, classes: int = 3) -> Case:
  length, vocabulary = s(5, 40), s(8, 1000)
  model = tf.keras.Sequential([
      layers.Input((length,), dtype='int32'),
      layers.Embedding(vocabulary, s(3, 32), mask_zero=mask), *parts,
      layers.Dense(classes)])
  return Case(model, s.tokens(length, vocabulary), s.labels(classes), logits_loss())


@entry('LSTM of a text')
def lstm(s: Size) -> Case:
  return _text(s, layers.LSTM(s(3, 32)), mask=False)


@entry('LSTM of a text, mask_zero')
def lstm_masked(s: Size) -> Case:
  return _text(s, layers.LSTM(s(3, 32)))


@entry('GRU of a text, mask_zero')
def gru(s: Size) -> Case:
  return _text(s, layers.GRU(s(3, 32)))


@entry('GRU, reset_after=False')
def gru_before(s: Size) -> Case:
  return _text(s, layers.GRU(s(3, 32), reset_after=False), mask=False)


@entry('SimpleRNN of a text, mask_zero')
def simple_rnn(s: Size) -> Case:
  return _text(s, layers.SimpleRNN(s(3, 32)))


@entry('LSTM, unrolled')
def unrolled(s: Size) -> Case:
  return _text(s, layers.LSTM(s(3, 32), unroll=True))


@entry('Bidirectional LSTM, mask_zero')
def bidirectional(s: Size) -> Case:
  return _text(s, layers.Bidirectional(layers.LSTM(s(3, 32))))


@entry('Bidirectional GRU, summed, stacked')
def bidirectional_stacked(s: Size) -> Case:
  return _text(
      s, layers.Bidirectional(layers.GRU(s(3, 32), return_sequences=True),
                              merge_mode='sum'),
      layers.Bidirectional(layers.GRU(s(2, 16))), mask=False)


@entry('Stacked LSTMs, TimeDistributed, a loss per token')
def stacked(s: Size) -> Case:
  length, vocabulary = s(5, 40), s(8, 1000)
  model = tf.keras.Sequential([
      layers.Input((length,), dtype='int32'), layers.Embedding(vocabulary, s(3, 32)),
      layers.LSTM(s(3, 32), return_sequences=True),
      layers.LSTM(s(3, 32), return_sequences=True),
      layers.TimeDistributed(layers.Dense(4))])
  return Case(model, s.labels(vocabulary, length), s.labels(4, length),
              logits_loss())


@entry('Tagger: GRU, mask_zero, a loss per token')
def tagger(s: Size) -> Case:
  length, vocabulary = s(5, 40), s(8, 1000)
  model = tf.keras.Sequential([
      layers.Input((length,), dtype='int32'),
      layers.Embedding(vocabulary, s(3, 32), mask_zero=True),
      layers.GRU(s(3, 32), return_sequences=True), layers.Dense(4)])
  return Case(model, s.tokens(length, vocabulary), s.labels(4, length),
              logits_loss())


@entry('Encoder and decoder LSTM (states)')
def encoder_decoder(s: Size) -> Case:
  length, width = s(4, 20), s(3, 64)
  source, target = (tf.keras.Input((length, s(4, 30))) for _ in range(2))
  _, *states = layers.LSTM(width, return_state=True)(source)
  x = layers.LSTM(width, return_sequences=True)(target, initial_state=states)
  model = tf.keras.Model([source, target], layers.Dense(5)(x))
  return Case(model, [s.floats(length, s(4, 30)) for _ in range(2)],
              s.labels(5, length), logits_loss())


@entry('Time series: LSTM as the first layer, Masking')
def masked_series(s: Size) -> Case:
  length = s(5, 48)
  model = tf.keras.Sequential([
      layers.Input((length, 3)), layers.Masking(), layers.LSTM(s(3, 32)),
      layers.Dense(1)])
  x = s.floats(length, 3)
  x[:, length // 2:][s.rng.random(s.rows) < 0.5] = 0
  return Case(model, x, s.floats(1), 'mse')


@entry('Time series: GRU, recurrent dropout, several steps ahead')
def ahead(s: Size) -> Case:
  length = s(5, 48)
  model = tf.keras.Sequential([
      layers.Input((length, 3)),
      layers.GRU(s(3, 32), dropout=s(0.0, 0.1), recurrent_dropout=s(0.0, 0.1)),
      layers.RepeatVector(3), layers.GRU(s(2, 32), return_sequences=True),
      layers.Dense(2)])
  return Case(model, s.floats(length, 3), s.floats(3, 2), 'huber')


@entry('LSTM autoencoder, backwards')
def recurrent_autoencoder(s: Size) -> Case:
  length = s(4, 30)
  model = tf.keras.Sequential([
      layers.Input((length, 2)), layers.LSTM(s(3, 32), go_backwards=True),
      layers.RepeatVector(length),
      layers.LSTM(s(3, 32), return_sequences=True, activation='relu'),
      layers.TimeDistributed(layers.Dense(2))])
  x = s.floats(length, 2)
  return Case(model, x, x, 'mse')


@entry('ConvLSTM2D of a video')
def conv_lstm(s: Size) -> Case:
  shape = (s(3, 6), s(4, 12), s(4, 12), 1)
  model = tf.keras.Sequential([
      layers.Input(shape),
      layers.ConvLSTM2D(s(2, 8), s(2, 3), return_sequences=True, padding='same'),
      layers.ConvLSTM2D(s(2, 8), s(2, 3)), layers.GlobalAveragePooling2D(),
      layers.Dense(4)])
  return Case(model, s.floats(*shape), s.labels(4), logits_loss())


@entry('CNN of each frame (TimeDistributed), then an LSTM')
def frames(s: Size) -> Case:
  shape = (s(3, 8), s(5, 16), s(5, 16), 1)
  model = tf.keras.Sequential([
      layers.Input(shape),
      layers.TimeDistributed(layers.Conv2D(s(2, 16), 3, 2, activation='relu')),
      layers.TimeDistributed(layers.Flatten()), layers.LSTM(s(3, 32)),
      layers.Dense(4)])
  return Case(model, s.floats(*shape), s.labels(4), logits_loss())


class MinimalCell(layers.Layer):
  """A recurrent cell of one gate."""

  def __init__(self, units):
    super().__init__()
    self.state_size = self.units = units

  def build(self, shape):
    self.kernel = self.add_weight(name='kernel', shape=(shape[-1], self.units))
    self.recurrent = self.add_weight(name='recurrent', shape=(self.units,) * 2)

  def call(self, inputs, states):
    before = states[0]
    gate = tf.sigmoid(tf.matmul(inputs, self.kernel))
    after = gate * before + (1 - gate) * tf.tanh(tf.matmul(before, self.recurrent))
    return after, [after]


@entry('RNN of an own cell, unrolled')
def own_cell(s: Size) -> Case:
  length = s(4, 20)
  model = tf.keras.Sequential([
      layers.Input((length, 3)), layers.RNN(MinimalCell(s(3, 16)), unroll=True),
      layers.Dense(3)])
  return Case(model, s.floats(length, 3), s.labels(3), logits_loss())


@entry('RNN of stacked cells')
def stacked_cells(s: Size) -> Case:
  length = s(4, 20)
  cells = [layers.LSTMCell(s(3, 16)), layers.GRUCell(s(2, 16))]
  model = tf.keras.Sequential([
      layers.Input((length, 3)), layers.RNN(cells), layers.Dense(3)])
  return Case(model, s.floats(length, 3), s.labels(3), logits_loss())


@entry('WaveNet-like (dilated causal Conv1D, gates)')
def wavenet(s: Size) -> Case:
  length, width = s(8, 128), s(3, 32)
  inputs = tf.keras.Input((length, 1))
  x = layers.Conv1D(width, 2, padding='causal')(inputs)
  skips = []
  for i in range(s(2, 4)):
    gate = [layers.Conv1D(width, 2, padding='causal', dilation_rate=2**i,
                          activation=each)(x) for each in ('tanh', 'sigmoid')]
    z = layers.Multiply()(gate)
    skips.append(layers.Conv1D(width, 1)(z))
    x = layers.Add()([x, layers.Conv1D(width, 1)(z)])
  x = layers.ReLU()(layers.Add()(skips))
  model = tf.keras.Model(inputs, layers.Conv1D(s(4, 64), 1)(x))
  return Case(model, s.floats(length, 1), s.labels(s(4, 64), length), logits_loss())


@entry('Temporal convolutional network')
def temporal(s: Size) -> Case:
  length, width = s(8, 100), s(3, 32)
  inputs = tf.keras.Input((length, 2))
  x = layers.Conv1D(width, 1)(inputs)
  for i in range(s(2, 4)):
    more = x
    for _ in range(2):
      more = layers.Conv1D(width, 3, padding='causal', dilation_rate=2**i,
                           activation='relu')(more)
      more = layers.SpatialDropout1D(s(0.0, 0.1))(layers.LayerNormalization()(more))
    x = layers.ReLU()(layers.Add()([x, more]))
  last = layers.Cropping1D((length - 1, 0))(x)
  return classified(s, inputs, layers.Dense(3)(layers.Flatten()(last)),
                    s.floats(length, 2), 3)


@entry('Convolution, then GRU (sound)')
def sound(s: Size) -> Case:
  length = s(12, 100)
  model = tf.keras.Sequential([
      layers.Input((length, s(2, 13))),
      layers.Conv1D(s(3, 32), 3, 2, activation='relu'), layers.MaxPooling1D(2),
      layers.GRU(s(3, 32)), layers.Dense(5)])
  return Case(model, s.floats(length, s(2, 13)), s.labels(5), logits_loss())


@entry('1D convolutions: separable, depthwise, transposed')
def one_dimensional(s: Size) -> Case:
  length = s(8, 64)
  model = tf.keras.Sequential([
      layers.Input((length, 2)),
      layers.SeparableConv1D(s(3, 32), 3, padding='same', activation='relu'),
      layers.DepthwiseConv1D(3, padding='same'),
      layers.Conv1DTranspose(s(2, 16), 2, strides=2), layers.GlobalMaxPooling1D(),
      layers.Dense(3)])
  return Case(model, s.floats(length, 2), s.labels(3), logits_loss())


@entry('Speech with CTC', refused='write no memory in place')
def ctc(s: Size) -> Case:
  length, alphabet = s(6, 50), s(4, 28)
  model = tf.keras.Sequential([
      layers.Input((length, s(3, 20))), layers.Dense(s(4, 64), 'relu'),
      layers.Conv1D(s(3, 64), 3, padding='same', activation='relu'),
      layers.Dense(alphabet + 1)])

  def loss(labels, logits):
    labels = tf.cast(labels, tf.int32)
    count = tf.ones(tf.shape(labels)[:1], tf.int32)
    return tf.cast(tf.nn.ctc_loss(
        labels, tf.cast(logits, tf.float32), count * labels.shape[1],
        count * logits.shape[1], logits_time_major=False, blank_index=alphabet),
                   logits.dtype)

  y = 1 + np.argsort(s.rng.random((s.rows, alphabet - 1)), 1)[:, :2]
  return Case(model, s.floats(length, s(3, 20)), y.astype(np.int32), loss)
