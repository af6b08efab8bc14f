"""Tests of gradients of operations that read variables against a loop over examples."""

import numpy as np
import pytest
import tensorflow as tf

from tests.representatives import representatives
from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.drop_in import operation_gradients, state
from tfcactus.keras.gradients.operations import uses

layers = tf.keras.layers
_NUMBER = 7
_IMAGE, _SERIES = (8, 6, 4), (5, 6)


class _Tied(layers.Layer):
  """Uses one kernel twice, and transposed."""

  def build(self, shape):
    self.kernel = self.add_weight(
        name='kernel', shape=(shape[-1], 3), initializer='glorot_uniform')

  def call(self, inputs):
    there = tf.matmul(inputs, tf.convert_to_tensor(self.kernel))
    return tf.matmul(there, tf.convert_to_tensor(self.kernel), transpose_b=True)


class _Scaled(layers.Layer):
  """Multiplies, adds and subtracts weights that are broadcast along several axes."""

  def build(self, shape):
    self.factor = self.add_weight(name='factor', shape=(shape[1], 1),
                                  initializer='ones')
    self.offset, self.shift, self.mirror = (self.add_weight(
        name=name, shape=(1, 1, shape[2]), initializer='ones')
        for name in ('offset', 'shift', 'mirror'))
    self.unused = self.add_weight(name='unused', shape=(2,), initializer='ones')

  def call(self, inputs):
    scaled = tf.nn.tanh(inputs) * tf.convert_to_tensor(self.factor) + (
        tf.convert_to_tensor(self.offset))
    shifted = tf.nn.sigmoid(scaled) - tf.convert_to_tensor(self.shift)
    return tf.convert_to_tensor(self.mirror) - tf.square(shifted)


class _Reshaped(layers.Layer):
  """Looks up rows of a table that is reshaped first."""

  def build(self, shape):
    del shape
    self.table = self.add_weight(name='table', shape=(6, 2), initializer='ones')

  def call(self, inputs):
    return tf.gather(tf.reshape(tf.convert_to_tensor(self.table), [4, 3]),
                     tf.cast(inputs > 0, tf.int32))


class _Rounded(layers.Layer):
  """Multiplies by rounded weights, whose gradient goes straight through."""

  def build(self, shape):
    self.kernel = self.add_weight(name='kernel', shape=(shape[-1], 3))

  def call(self, inputs):
    kernel = tf.convert_to_tensor(self.kernel)
    scale = tf.reduce_max(tf.abs(kernel), 0)
    return tf.matmul(inputs, kernel + tf.stop_gradient(
        tf.round(4 * kernel / scale) * scale / 4 - kernel)) / scale


def _attention(x):
  return layers.MultiHeadAttention(2, 3)(x, x)


def _twice(layer):
  """Applies one layer twice."""
  return lambda x: layer(tf.keras.layers.Activation('tanh')(layer(x)))


_KNOWN = {
    'dense': ((6,), [lambda: layers.Dense(5, 'tanh')]),
    'dense of series': (_SERIES, [lambda: layers.Dense(4, 'relu')]),
    'dense twice': ((6,), [lambda: _twice(layers.Dense(6))]),
    'kernel transposed': ((6,), [_Tied]),
    'broadcast': (_SERIES, [_Scaled]),
    'convolution': (_IMAGE, [lambda: layers.Conv2D(5, 3, activation='tanh')]),
    'same, strides': (_IMAGE, [lambda: layers.Conv2D(
        3, (3, 2), strides=2, padding='same')]),
    'one axis': ((9, 4), [lambda: layers.Conv1D(3, 3, strides=2)]),
    'volumes': ((4, 5, 4, 2), [lambda: layers.Conv3D(3, 2)]),
    'depthwise': (_IMAGE, [lambda: layers.DepthwiseConv2D(3, depth_multiplier=2)]),
    'separable': (_IMAGE, [lambda: layers.SeparableConv2D(3, 3)]),
    'each frame': ((3, *_IMAGE), [
        lambda: layers.TimeDistributed(layers.Conv2D(2, 3)),
        lambda: layers.TimeDistributed(layers.Flatten()),
        lambda: layers.TimeDistributed(layers.Dense(2))]),
    'attention': (_SERIES, [lambda: _attention]),
    'norm': (_SERIES, [lambda: layers.LayerNormalization()]),
    'table': ((5,), [lambda: layers.Embedding(4, 3),
                     lambda: layers.GlobalAveragePooling1D()]),
    'CNN': (_IMAGE, [
        lambda: layers.Conv2D(4, 3, activation='relu'), lambda: layers.MaxPooling2D(),
        lambda: layers.Dropout(0.0), lambda: layers.Flatten(),
        lambda: layers.Dense(6, 'gelu')]),
    'a table of another shape': ((6,), [_Reshaped, lambda: layers.Flatten()]),
    'dilation': (_IMAGE, [lambda: layers.Conv2D(3, 2, dilation_rate=2)]),
    'transposed convolution': (_IMAGE, [lambda: layers.Conv2DTranspose(3, 2, 2)]),
    'weights made of weights': ((6,), [lambda: layers.Dense(4), lambda: layers.PReLU(),
                                       _Rounded])}


@tf.custom_gradient
def _of_all(x):
  return tf.identity(x), lambda upstream: tf.reverse(upstream, [0])


_LEFT = {
    'batch norm': ((6,), [lambda: layers.BatchNormalization()]),
    'rounds of a loop': (_SERIES, [lambda: layers.LSTM(3)]),
    'gradient of its own': ((6,), [lambda: layers.Dense(4), lambda: layers.Lambda(
        _of_all, output_shape=lambda shape: shape)]),
    'over the batch': ((6,), [lambda: layers.Dense(4), lambda: layers.Lambda(
        lambda x: x - tf.reduce_mean(x, 0), output_shape=lambda shape: shape)]),
    'a function that is called': (_IMAGE, [lambda: layers.Conv2D(4, 3, groups=2)])}


def _made(shape, parts):
  tf.keras.utils.set_random_seed(2)
  inputs = x = keras.Input(shape)
  for part in parts:
    x = part()(x)
  model = keras.Model(inputs, layers.Dense(2)(x))
  rng = np.random.default_rng(5)
  for weight in model.weights:  # No zeros and ones.
    weight.assign(np.asarray(weight) + 0.2 * rng.normal(size=weight.shape))
  table = any(isinstance(layer, layers.Embedding) for layer in model.layers)
  data = (rng.integers(0, 4, (_NUMBER, *shape)) if table else
          rng.normal(size=(_NUMBER, *shape)))
  # Some short, some long, so that some are clipped.
  scale = 1 if table else np.geomspace(0.01, 3, _NUMBER).reshape(
      -1, *[1] * len(shape))
  return model, (scale * data).astype(np.int32 if table else np.float32)


def _losses(model, x, weights=1.0):
  out = model(x, training=True)
  return weights * tf.reduce_sum(
      tf.square(out - 1), list(range(1, out.shape.rank)))


def _variables(model):
  return [models.tf_variable(v) for v in model.trainable_variables]


def _gradients_one_by_one(model, x, losses=_losses):
  variables = _variables(model)
  found = []
  for row in x:
    with tf.GradientTape() as tape:
      loss = losses(model, row[None])
    found.append([tf.convert_to_tensor(each).numpy() for each in tape.gradient(
        loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)])
  return [np.stack(each).astype(float) for each in zip(*found)]


def _norms(rows):
  return np.sqrt(sum(np.sum(each**2, tuple(range(1, each.ndim))) for each in rows))


def _rows(model, x, losses=_losses):
  """Rows of gradients from all tiles."""
  variables = _variables(model)
  size = operation_gradients.rows_at_once(variables)
  assert size < _NUMBER and _NUMBER % size

  @tf.function(input_signature=[tf.TensorSpec([None, *x.shape[1:]], x.dtype)])
  def run(batch):
    found = losses(model, batch)
    uses = operation_gradients.differentiable(found, variables)
    tile = operation_gradients.tiles(
        found, variables, uses, tf.shape(found)[0], size)
    return [tf.concat(each, 0) for each in zip(*(
        tile(tf.constant(start)) for start in range(0, _NUMBER, size)))]

  found = run(x)
  for each in found:
    np.testing.assert_array_equal(each[_NUMBER:], 0)
  return [each[:_NUMBER] for each in found]


@pytest.fixture(autouse=True)
def _few_at_once(monkeypatch):
  monkeypatch.setattr(operation_gradients, '_MOST_ROWS', 3)


@representatives('name', sorted(_KNOWN, key=lambda name: name != 'separable'))
def test_rows_are_the_gradients_of_single_examples(name):
  model, x = _made(*_KNOWN[name])
  found, expected = _rows(model, x), _gradients_one_by_one(model, x)
  errors = [got - wanted for got, wanted in zip(found, expected)]
  assert np.all(_norms(errors) <= 1e-5 * _norms(expected) + 1e-7)
  # No gradient is zero, but that of the variable that is not used.
  assert all(np.any(each) for each in expected) == (name != 'broadcast')


@representatives('name', _LEFT, 3)
def test_operations_without_a_rule_are_left_to_backward_passes(name):
  model, x = _made(*_LEFT[name])
  with pytest.raises(uses.NoRule, match='in .*/'):
    _rows(model, x)
  ones = [tf.ones(v.shape, tf.float64) for v in _variables(model)]
  with pytest.warns(UserWarning, match='a backward pass .* slow: .*privatize is fast'):
    sums, _ = _summed(model, x, 1.0, lambda: (ones, tf.constant(True)))
  _compare(sums, ones)


@representatives('losses', [
    lambda *args: _losses(*args) - tf.reduce_mean(_losses(*args)),
    lambda *args: tf.reverse(_losses(*args), [0]),
    # Weights that depend on the place in the batch.
    lambda *args: _losses(*args, tf.range(_NUMBER, dtype=tf.float32))])
def test_losses_of_several_examples_are_left(losses):
  model, x = _made(*_KNOWN['dense'])
  with pytest.raises(uses.NoRule, match='not shown to depend on one example each'):
    _rows(model, x, losses)


def test_eager_steps_and_examples_of_no_known_shape_are_left():
  model, x = _made(*_KNOWN['CNN'])
  with pytest.raises(uses.NoRule, match='run_eagerly'):
    operation_gradients.differentiable(_losses(model, x), _variables(model))

  @tf.function(input_signature=[tf.TensorSpec([None] * 4)])
  def run(batch):
    operation_gradients.differentiable(_losses(model, batch), _variables(model))

  with pytest.raises(uses.NoRule, match=r'fit\(batches.dataset\(\)\)'):
    run(x)


def _clipped(model, x):
  """A clip norm that some gradients exceed, and the clipped sums."""
  rows = _gradients_one_by_one(model, x)
  clip = np.median(_norms(rows))
  factors = np.minimum(1, clip / np.maximum(_norms(rows), 1e-300))
  assert 0 < np.sum(factors < 1) < _NUMBER
  return clip, [np.tensordot(factors, each, 1) for each in rows]


def _summed(model, x, clip, otherwise=None, split=lambda losses: losses):
  variables = _variables(model)

  @tf.function(input_signature=[tf.TensorSpec([None, *x.shape[1:]], x.dtype)])
  def run(batch):
    losses = _losses(model, batch)
    return operation_gradients.clipped_sums(
        state.Losses(losses, split(losses)), variables,
        tf.constant(clip, tf.float64), otherwise)

  return run(x)


def _compare(found, expected):
  for got, wanted in zip(found, expected):
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_losses_summed_over_time_have_rules():
  model, x = _made(_SERIES, [lambda: layers.Dense(4, 'tanh')])

  def losses(model, x):
    # Flattened by sizes taken from shapes, as Keras does it.
    out = model(x)
    labels = tf.cast(tf.reduce_sum(x, 2) > 0, tf.int32)
    width = tf.shape(out)[tf.rank(out) - 1]
    found = tf.nn.sparse_softmax_cross_entropy_with_logits(
        tf.reshape(labels, [-1]), tf.reshape(out, [-1, width]))
    return tf.reduce_sum(tf.reshape(found, tf.shape(labels)), 1)

  found = _rows(model, x, losses)
  expected = _gradients_one_by_one(model, x, losses)
  for got, wanted in zip(found, expected):
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


def test_each_example_is_clipped():
  model, x = _made(*_KNOWN['CNN'])
  clip, expected = _clipped(model, x)
  sums, finite = _summed(model, x, clip)
  assert finite
  _compare(sums, expected)


def test_an_example_that_is_not_finite_is_left_out_and_reported():
  model, x = _made(*_KNOWN['CNN'])
  clip, expected = _clipped(model, x)
  spoiled = np.concatenate([x, np.full_like(x[:1], np.nan)])[[*range(4), 7, 4, 5, 6]]
  sums, finite = _summed(model, spoiled, clip)
  assert not finite
  _compare(sums, expected)


def test_the_sum_of_no_examples_is_zero():
  model, x = _made(*_KNOWN['CNN'])
  sums, finite = _summed(model, x[:0], 1.0)
  assert finite and not any(np.any(each) for each in sums)


@representatives('size', [_NUMBER, 1])
def test_microbatches_of_several_examples_are_left(size):
  model, x = _made(*_KNOWN['dense'])
  clip, expected = _clipped(model, x)
  ones = [tf.ones(v.shape, tf.float64) for v in _variables(model)]
  sums, _ = _summed(
      model, x, clip, lambda: (ones, tf.constant(True)),
      lambda losses: tf.reduce_mean(tf.reshape(losses, [_NUMBER // size, -1]), 1))
  _compare(sums, expected if size == 1 else ones)


def test_tensors_of_another_batch_size_stop_the_step():
  model, x = _made(*_KNOWN['dense'])
  variables = _variables(model)

  @tf.function(input_signature=[tf.TensorSpec([None, 6]), tf.TensorSpec([None])])
  def run(batch, other):
    losses = _losses(model, batch, tf.ones(tf.shape(other)))
    return operation_gradients.clipped_sums(
        state.Losses(losses, losses), variables,
        tf.constant(1.0, tf.float64), None)

  assert np.any(run(x, np.zeros(_NUMBER, np.float32))[0][0])
  with pytest.raises(tf.errors.InvalidArgumentError, match='a row for each loss'):
    run(x, np.zeros(1, np.float32))


def test_ids_outside_of_the_table_change_no_other_example():
  # XLA reads the nearest row instead; other devices return zeros.
  model, x = _made(*_KNOWN['table'])
  variables = _variables(model)
  x[1, 0], x[3, 2], x[4, 4] = -1, 4, -3

  @tf.function(jit_compile=True)
  def run(batch):
    losses = _losses(model, batch)
    uses = operation_gradients.differentiable(losses, variables)
    return operation_gradients.tiles(
        losses, variables, uses, tf.constant(_NUMBER), _NUMBER)(tf.constant(0))

  whole = [0, 2, 5, 6]
  for got, wanted in zip(run(x), _gradients_one_by_one(model, x[whole])):
    np.testing.assert_allclose(got.numpy()[whole], wanted, rtol=1e-5, atol=1e-6)
