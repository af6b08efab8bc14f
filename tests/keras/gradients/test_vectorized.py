"""Tests that vectorised layers keep their custom gradients."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import one_by_one
from tests.keras.tiny import MEAN, NONE, X, Y
from tests.representatives import representatives
from tfcactus.keras.checks import example_losses
from tfcactus.keras.gradients import (
  batched_pass,
  engine as engine_lib,
  layer_routes,
)
from tfcactus.keras.noise import random_bits

layers = tf.keras.layers


class Reversal(layers.Layer):
  """Reverses the gradient, as in domain adaptation."""

  def call(self, inputs):

    @tf.custom_gradient
    def reverse(x):
      return tf.identity(x), lambda upstream: -upstream

    return reverse(inputs)


class Sine(layers.Layer):
  """A layer whose custom gradients are not its derivatives."""

  def build(self, shape):
    self.w = self.add_weight(name='w', shape=(shape[-1],), initializer='ones')

  def call(self, inputs):

    @tf.custom_gradient
    def sine(x, w):
      return tf.sin(x * w), lambda up: (up * w, tf.reduce_sum(up * x, 0))

    return sine(inputs, tf.convert_to_tensor(self.w))


class InFunction(Sine):
  """Calls `Sine` inside a tf.function."""

  def call(self, inputs):
    return tf.function(super().call)(inputs)


class Two(layers.Layer):
  """A layer with several outputs, one of integers."""

  def call(self, inputs):
    reverse = Reversal()
    return reverse(inputs), tf.argmax(inputs, -1), 2.0 * inputs


def _check(*parts):
  tf.keras.utils.set_random_seed(1)
  inputs = tf.keras.Input((6,))
  x = layers.Dense(4, 'tanh')(inputs)
  for part in parts:
    x = part(x)
    if isinstance(x, (list, tuple)):
      x = layers.Concatenate()([x[0], x[2]])
  model = one_by_one.shake(tf.keras.Model(inputs, layers.Dense(3)(x)))
  got = one_by_one.engine_sums(model, NONE, X[:6], Y[:6])
  one_by_one.assert_same(got, one_by_one.loop_sums(model, NONE, X[:6], Y[:6]))
  assert not got.routes.whole


@pytest.mark.more
def test_custom_gradients_are_kept():
  _check(Sine(), layers.Dense(4, 'swish'), Reversal(), InFunction(), Two())


class Tagged(layers.Layer):
  """A layer with several inputs, passed by name."""

  def build(self, *unused, **shapes):
    self.w = self.add_weight(name='w', shape=(), initializer='ones')

  def call(self, first, second=None):
    return first * self.w + tf.sin(second)


def test_inputs_passed_by_name():
  tf.keras.utils.set_random_seed(1)
  inputs = tf.keras.Input((6,))
  a, b = layers.Dense(4)(inputs), layers.Dense(4)(inputs)
  x = Tagged()(second=b, first=a)
  model = one_by_one.shake(tf.keras.Model(inputs, layers.Dense(3)(x)))
  got = one_by_one.engine_sums(model, NONE, X[:6], Y[:6])
  one_by_one.assert_same(got, one_by_one.loop_sums(model, NONE, X[:6], Y[:6]))
  assert np.isfinite(got.sums).all()


class Experts(layers.Layer):
  """A softmax over an axis of a tensor of five dimensions."""

  def build(self, shape):
    self.w = self.add_weight(name='w', shape=(shape[-1],), initializer='ones')

  def call(self, inputs):
    parts = tf.nn.softmax(tf.reshape(inputs * self.w, (-1, 1, 2, 1, 2)))
    return tf.reshape(parts, tf.shape(inputs))


def test_softmax_of_five_dimensions():
  # With the axis of rows it has six, of which oneDNN on CPUs takes five.
  _check(Experts())


def _spectrum(layer):
  """Gives a layer's outputs a known complex type under Keras 3."""
  layer.compute_output_spec = lambda inputs, **_: tf.keras.KerasTensor(
      inputs.shape, 'complex64')
  return layer


class Rotated(layers.Layer):
  """Uses a weight in products of complex numbers, which no rule takes."""

  def build(self, shape):
    self.w = self.add_weight(name='w', shape=(shape[-1],), initializer='ones')

  def call(self, inputs):
    turned = tf.exp(tf.complex(tf.zeros_like(self.w), tf.convert_to_tensor(self.w)))
    return tf.cast(inputs, tf.complex64) * turned * (1 + 2j)


class Pairs(layers.Layer):
  """Makes complex numbers without weights or custom gradients."""

  def call(self, inputs):
    return tf.complex(inputs, tf.sin(inputs))


class ComplexReversal(layers.Layer):
  """Has a custom gradient from complex numbers to complex numbers."""

  def call(self, inputs):

    @tf.custom_gradient
    def reverse(x):
      return tf.identity(x), lambda upstream: -3.0 * upstream

    return reverse(inputs)


class Mixed(ComplexReversal):
  """Would mix examples, and so is vectorised."""

  def call(self, inputs):
    size = tf.reduce_mean(tf.abs(inputs))
    return super().call(inputs) * tf.cast(size, inputs.dtype)


class Scaling(ComplexReversal):
  """Has a weight beside a custom gradient, and makes complex numbers."""

  def build(self, shape):
    self.w = self.add_weight(name='w', shape=(), initializer='ones')

  def call(self, inputs):

    @tf.custom_gradient
    def scaled(x, w):
      return tf.complex(w * x, tf.sin(x)), lambda upstream: (
          tf.math.real(upstream), 2.0 * tf.reduce_sum(tf.math.imag(upstream)))

    return scaled(inputs, tf.convert_to_tensor(self.w))


class Parts(layers.Layer):
  """Returns the real and imaginary parts of complex numbers."""

  def call(self, inputs):
    return tf.concat([tf.math.real(inputs), 2 * tf.math.imag(inputs)], -1)

  def compute_output_spec(self, inputs, **_):
    return tf.keras.KerasTensor((*inputs.shape[:-1], 2 * inputs.shape[-1]), 'float32')


@representatives('parts', [
    (Rotated,), (Scaling,), (Rotated, ComplexReversal), (Scaling, ComplexReversal),
    (Pairs, ComplexReversal), (Pairs, Mixed)], 2)
def test_gradients_through_complex_outputs(parts):
  _check(*(_spectrum(part()) for part in parts), Parts())


class Ctc(layers.Layer):
  """Adds the CTC loss that `tf.keras.backend` has."""

  def build(self, shape):
    self.w = self.add_weight(name='w', shape=(shape[-1], 4))

  def call(self, inputs):
    logits = inputs @ self.w
    one = tf.ones_like(inputs[:, :1, 0], tf.int32)
    labels = tf.cast(inputs[:, :2, 0] > 0, tf.int32)
    self.add_loss(tf.reduce_mean(tf.keras.backend.ctc_batch_cost(
        labels, tf.nn.softmax(logits), 6 * one, 2 * one)))
    return logits


@pytest.mark.more
def test_an_added_ctc_loss():
  inputs = tf.keras.Input((6, 3))
  model = one_by_one.shake(tf.keras.Model(inputs, Ctc()(inputs)))
  x = np.random.default_rng(0).normal(size=(6, 6, 3)).astype(np.float32)
  y = np.zeros((6, 6, 4), np.float32)
  mean = tf.keras.losses.MeanSquaredError()
  got = one_by_one.engine_sums(model, mean, x, y)
  want = one_by_one.loop_sums(
      model, lambda y, p: mean(y, p) + tf.add_n(model.losses), x, y)
  assert np.linalg.norm(got.sums - want.sums) < 1e-5 * np.linalg.norm(want.sums)


@pytest.mark.more
def test_a_loss_function_of_ctc():

  def loss(labels, predictions):
    one = tf.ones_like(labels[:, :1], tf.int32)
    return tf.keras.backend.ctc_batch_cost(labels, predictions, 6 * one, 2 * one)[:, 0]

  model = one_by_one.shake(tf.keras.Sequential([
      layers.Input((6, 3)), layers.Conv1D(4, 3, padding='same', activation='relu'),
      layers.Dense(5, 'softmax')]))
  x = np.random.default_rng(0).normal(size=(6, 6, 3)).astype(np.float32)
  y = np.array([[0, 1], [1, 1], [3, 0], [2, 1], [2, 2], [0, 3]], np.int32)
  got = one_by_one.engine_sums(model, loss, x, y)
  want = one_by_one.loop_sums(model, lambda y, p: loss(y, p)[0], x, y)
  assert np.linalg.norm(got.sums - want.sums) < 1e-5 * np.linalg.norm(want.sums)


class Scored(layers.Layer):
  """Puts the tokens of all examples on one axis, and returns scores of each beside."""

  def build(self, shape):
    self.gate = self.add_weight(name='gate', shape=(shape[-1], 3))
    self.built = True

  def call(self, x):
    tokens = tf.reshape(x, [-1, x.shape[-1]])
    scores = tf.custom_gradient(lambda t: (tf.identity(t), lambda up: up))(
        tf.matmul(tokens, tf.convert_to_tensor(self.gate)))
    best = tf.reduce_max(scores, -1, keepdims=True)
    return tf.reshape(tokens * best, tf.shape(x)), scores


class Block(layers.Layer):
  """Experts behind a dense layer, with or without their scores."""

  def __init__(self, scored):
    super().__init__()
    self.dense, self.experts, self._scored = layers.Dense(4), Scored(), scored

  def build(self, shape):
    self.dense.build(shape)
    self.experts.build(shape)
    self.built = True

  def call(self, x):
    y, scores = self.experts(self.dense(x))
    return y + tf.reshape(scores, (-1, 5, 3))[..., :1] if self._scored else y


@representatives('scored', [False, True])
def test_outputs_with_rows_for_each_token_are_whole_or_unused(scored):
  tf.keras.utils.set_random_seed(1)
  block, inputs = Block(scored), tf.keras.Input((5, 4))
  model = one_by_one.shake(tf.keras.Model(
      inputs, layers.Dense(3)(layers.Flatten()(block(inputs)))))
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=(6, 5, 4)).astype(np.float32), rng.integers(0, 3, 6)
  engine = engine_lib.Engine(
      model, example_losses.loss_per_example(MEAN), 4,
      layer_routes.routes(model, apart={id(block.experts): 'asked for'}))
  found = tf.function(lambda x, y: engine.run(
      x, y, tf.ones([6]), tf.constant(one_by_one.CLIP)), autograph=False)(x, y)
  want = one_by_one.loop_sums(model, MEAN, x, y).sums
  got = np.concatenate([np.ravel(each) for each in found.sums])
  assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)
  assert [each.name for each in engine.routes.vectorized()] == (
      [block.name] if scored else [block.experts.name])


class Taken(layers.Layer):
  """Takes rows of each example by the example's ids."""

  def call(self, inputs):
    return tf.gather(*inputs, batch_dims=1)


def taking_model():
  """Returns a model of (rows, ids) that takes rows after a dense layer."""
  tf.keras.utils.set_random_seed(1)
  rows, ids = tf.keras.Input((5, 4)), tf.keras.Input((2,), dtype='int32')
  taken = Taken()([layers.Dense(4)(rows), ids])
  return one_by_one.shake(tf.keras.Model(
      [rows, ids], layers.Dense(3)(layers.Flatten()(taken))))


def test_ids_out_of_range_reach_no_other_example(monkeypatch):
  # XLA takes the last row for an id out of range, GPUs zeros; CPUs raise an error.
  model = taking_model()
  x = tf.random.stateless_normal([4, 5, 4], [1, 2])
  ids, y = tf.constant([[0, 5], [1, 2], [-1, 3], [4, 9]]), tf.constant([0, 1, 2, 0])
  loss = example_losses.loss_per_example(MEAN)
  routes = layer_routes.routes(model, apart={
      id(layer): 'asked for' for layer in model.layers if isinstance(layer, Taken)})
  # The model draws nothing. Seeds come from outside of functions that XLA compiles.
  monkeypatch.setattr(random_bits, 'row_seeds',
                      lambda rows: tf.zeros([rows, 2], tf.int64))

  @tf.function(jit_compile=True, autograph=False)
  def gradients(x, ids, y):
    found = batched_pass.batched(model, routes, loss, ((x, ids), y, tf.ones([4])))
    return [each.dense() for each in found.gradients]

  for other in range(4):
    kept = [row for row in range(4) if row != other]
    change = tf.one_hot([other], 4)[0]
    pairs = zip(gradients(x, ids, y), gradients(
        x - 3 * change[:, None, None], ids, (y + tf.cast(change, tf.int32)) % 3))
    for before, after in pairs:
      np.testing.assert_allclose(
          before.numpy()[kept], after.numpy()[kept], rtol=1e-5, atol=1e-6)
      assert np.linalg.norm(before[other] - after[other]) > 0.01
