"""Tests of clipped sums by backward passes against a loop over unlike examples."""

import numpy as np
import pytest
import tensorflow as tf

from tests.representatives import representatives
from tfcactus.keras import DPKerasSGDOptimizer
from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.drop_in import clipped_sums, operation_gradients, state

layers = tf.keras.layers
_ROWS = 40
_IMAGE, _SERIES, _VOLUME = (6, 5, 4), (7, 4), (4, 5, 4, 4)


@tf.custom_gradient
def _own_gradient(x):
  return tf.tanh(x), lambda up: up * (2 - tf.square(tf.tanh(x)))


class Rolled(layers.Layer):
  """Rolls the channels by one."""

  def build(self, shape):
    self.factor = self.add_weight(name='factor', shape=(shape[-1],),
                                  initializer='ones')

  def call(self, inputs):
    return tf.roll(inputs * tf.convert_to_tensor(self.factor), 1, -1)


class _Segments(layers.Layer):
  """Scales the time steps whose first entry is positive and drops the others."""

  def build(self, shape):
    self.factor = self.add_weight(name='factor', shape=(3, shape[-1]),
                                  initializer='ones')

  def call(self, inputs):
    places = tf.where(inputs[..., 0] > 0, tf.range(tf.shape(inputs)[1]) % 3, -1)
    return tf.gather(tf.convert_to_tensor(self.factor), tf.maximum(places, 0)
                     ) * inputs * tf.cast(places >= 0, tf.float32)[..., None]


def _attention(x):
  return layers.MultiHeadAttention(2, 3)(x, x)


def _own(x):
  return layers.Lambda(_own_gradient, output_shape=lambda shape: shape)(x)


_QUICK = {
    'groups': (_IMAGE, lambda: layers.Conv2D(4, 3, groups=2)),
    'causal groups': (_SERIES, lambda: layers.Conv1D(
        4, 3, groups=2, dilation_rate=2, padding='causal')),
    'rolled': (_SERIES, Rolled)}
_SLOW = {
    'LSTM': (_SERIES, lambda: layers.LSTM(3)),
    'groups, strides': (_IMAGE, lambda: layers.Conv2D(
        8, 3, groups=4, strides=2, padding='same')),
    'groups, dilation': (_IMAGE, lambda: layers.Conv2D(
        4, 2, groups=2, dilation_rate=2)),
    'depthwise groups': (_IMAGE, lambda: layers.Conv2D(8, 3, groups=4)),
    'volumes': (_VOLUME, lambda: layers.Conv3D(3, 2, strides=2)),
    'dilation': (_IMAGE, lambda: layers.Conv2D(3, 2, dilation_rate=2)),
    'depthwise': (_IMAGE, lambda: layers.DepthwiseConv2D(3, depth_multiplier=2)),
    'dilated depthwise': (_IMAGE, lambda: layers.DepthwiseConv2D(
        2, dilation_rate=2)),
    'separable': (_IMAGE, lambda: layers.SeparableConv2D(3, 3)),
    'separable series': (_SERIES, lambda: layers.SeparableConv1D(3, 3)),
    'transposed': (_IMAGE, lambda: layers.Conv2DTranspose(3, 3, strides=2)),
    'transposed series': (_SERIES, lambda: layers.Conv1DTranspose(3, 3, strides=2)),
    'transposed volumes': (_VOLUME, lambda: layers.Conv3DTranspose(3, 2)),
    'GRU': (_SERIES, lambda: layers.GRU(3, return_sequences=True)),
    'RNN': (_SERIES, lambda: layers.RNN(layers.SimpleRNNCell(3))),
    'both ways': (_SERIES, lambda: layers.Bidirectional(layers.LSTM(2))),
    'attention': (_SERIES, lambda: _attention),
    'swish': (_SERIES, lambda: layers.Dense(4, 'swish')),
    'group norm': (_IMAGE, lambda: layers.GroupNormalization(2)),
    'layer norm': (_SERIES, lambda: layers.LayerNormalization()),
    'own gradient': (_SERIES, lambda: _own),
    'segments': (_SERIES, _Segments),
    'pooling': (_IMAGE, lambda: layers.MaxPooling2D()),
    'embedding': ((5,), lambda: layers.Embedding(4, 3))}


def _made(shape, part, policy='float32'):
  tf.keras.utils.set_random_seed(2)
  tf.keras.mixed_precision.set_global_policy(policy)
  try:
    inputs = keras.Input(shape)
    x = inputs if len(shape) == 1 else layers.Dense(shape[-1])(inputs)
    x = layers.Flatten()(part()(x))
    model = keras.Model(inputs, layers.Dense(2, dtype='float32')(x))
  finally:
    tf.keras.mixed_precision.set_global_policy('float32')
  rng = np.random.default_rng(3)
  for weight in model.weights:
    weight.assign(np.asarray(weight) + .2 * rng.normal(size=weight.shape))
  return model


def _data(shape, rows=_ROWS):
  """Heavy-tailed rows; every eighth is large, with both signs among its channels."""
  rng = np.random.default_rng(4)
  if len(shape) == 1:
    return rng.integers(0, 4, (rows, *shape)).astype(np.int32)
  x = .1 * rng.standard_t(2, (rows, *shape))
  x[8::8, ..., :2] += 3
  x[8::8, ..., 2:] -= 3
  return x.astype(np.float32)


def _losses(model, x):
  return tf.reduce_sum(tf.square(model(x, training=True) - .3), 1)


def _rows(model, x):
  """Per-example gradients from batches of one example."""
  variables = [models.tf_variable(v) for v in model.trainable_variables]

  @tf.function
  def run(row):
    with tf.GradientTape() as tape:
      loss = _losses(model, row)
    return [tf.convert_to_tensor(each) for each in tape.gradient(
        loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)]

  return [np.stack(each).astype(float) for each in zip(*(
      [part.numpy() for part in run(row[None])] for row in x))]


def _norms(rows):
  return np.sqrt(sum(np.sum(each**2, tuple(range(1, each.ndim))) for each in rows))


def _ways(model, x, **choose):
  """A function of examples and a clip norm: clipped sums by each way."""
  variables = [models.tf_variable(v) for v in model.trainable_variables]

  @tf.function(input_signature=[tf.TensorSpec([None, *x.shape[1:]], x.dtype),
                                tf.TensorSpec([], tf.float64)])
  def run(batch, clip):
    with tf.GradientTape(persistent=True) as tape:
      losses = _losses(model, batch)
    found = {'tape': clipped_sums.by_tape(losses, variables, tape, clip)[0],
             'graph': clipped_sums.by_graph(losses, variables, clip)[0]}
    if choose:
      found['used'] = operation_gradients.clipped_sums(
          state.Losses(losses, losses), variables, clip,
          lambda: (found['tape'], tf.constant(True)))[0]
    return found

  return run


def _length(parts):
  return np.sqrt(sum(np.sum(np.square(each)) for each in parts))


def _check(name, shape, part, rows=_ROWS):
  model, x = _made(shape, part), _data(shape, rows)
  run, alone = _ways(model, x, used=True), _rows(model, x)
  norms = _norms(alone)
  assert np.min(norms) > 0, name
  for clip in (1e30, np.min(norms) / 2):  # Sums alone, then norms too.
    factors = np.minimum(1, clip / norms)
    wanted = [np.tensordot(factors, each, 1) for each in alone]
    whole = run(x, clip)
    for way, found in whole.items():
      error = _length([got - sum_ for got, sum_ in zip(found, wanted)])
      assert error <= 2e-5 * np.sum(factors * norms), (name, way, clip)
  for left_out in (0, 8):
    fewer = run(np.delete(x, left_out, 0), clip)
    for way, found in whole.items():
      moved = _length([np.subtract(a, b) for a, b in zip(found, fewer[way])])
      # A batch of another size is rounded differently in float32.
      assert .9 * clip < moved <= clip * (1 + 1e-3), (name, way, left_out, moved / clip)


@pytest.mark.filterwarnings('ignore:Each example takes a backward pass')
@representatives('name', _QUICK)
def test_backward_passes_are_those_of_each_example(name):
  _check(name, *_QUICK[name])


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:Each example takes a backward pass')
@pytest.mark.parametrize('name', _SLOW)
def test_backward_passes_of_other_layers_are_those_of_each_example(name):
  _check(name, *_SLOW[name])


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:Each example takes a backward pass')
def test_batches_of_several_tiles():
  _check('groups', *_QUICK['groups'], rows=150)


@pytest.mark.parametrize('part', [
    lambda: layers.Conv2D(4, 3, padding='same'), pytest.param(
        lambda: layers.Conv2D(4, 3, groups=2), marks=pytest.mark.slow)])
def test_clip_norms_bound_half_precision_gradients(part):
  model, x = _made(_IMAGE, part, 'mixed_bfloat16'), _data(_IMAGE)
  run = _ways(model, x)
  clip = 1e-3
  whole, fewer = run(x, clip), run(x[1:], clip)
  for way, found in whole.items():
    moved = _length([np.subtract(a, b) for a, b in zip(found, fewer[way])])
    # A batch of another size rounds differently to bfloat16, a row by 1 % at most.
    assert moved <= clip * (1 + 1e-2 * len(x)), way
    assert _length(found) <= clip * len(x), way


def test_sums_are_in_float64():
  # A float32 sum of a long and many short rows would lose the short ones.
  model = keras.Sequential([keras.Input((1,)), layers.Dense(1, use_bias=False)])
  model.set_weights([np.zeros([1, 1])])
  variables = [models.tf_variable(v) for v in model.trainable_variables]

  @tf.function
  def run(x):
    with tf.GradientTape() as tape:
      losses = tf.reduce_sum(model(x), 1)
    return clipped_sums.by_tape(
        losses, variables, tape, tf.constant(1e9, tf.float64))[0][0]

  x = np.ones((101, 1), np.float32)
  x[0] = 2.0**27
  assert run(x).numpy()[0, 0] == 2.0**27 + 100


class _Output(tf.keras.losses.Loss):
  """A loss that is the sum of the model's outputs."""

  def call(self, y_true, y_pred):
    del y_true
    return tf.reduce_sum(y_pred, 1)


@pytest.mark.filterwarnings('ignore:Each example takes a backward pass')
def test_one_example_moves_a_private_step_by_no_more_than_a_clip_norm():
  x = np.full((64, 4, 4, 4), .01, np.float32)
  x[8::8, ..., :2], x[8::8, ..., 2:] = 3, -3

  def step(batch):
    tf.keras.utils.set_random_seed(1)
    model = keras.Sequential([
        keras.Input((4, 4, 4)), layers.Conv2D(4, 3, groups=2, use_bias=False),
        layers.Flatten(), layers.Dense(1, trainable=False)])
    model.compile(
        DPKerasSGDOptimizer(.1, 0.0, expected_batch_size=1, learning_rate=1.0),
        _Output(reduction='none'))
    before = model.get_weights()[0]
    model.fit(batch, np.zeros((len(batch), 1), np.float32), batch_size=len(batch),
              shuffle=False, verbose=0)
    return (before - model.get_weights()[0]) / .1

  assert np.linalg.norm(step(x) - step(x[1:])) <= 1 + 1e-3
