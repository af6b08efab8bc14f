"""Tests that layers draw fresh numbers for each example, whatever seeds are set.

Each example has weights of its own, and a loss that is linear in them, so that a step
shows each example's mask.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import plan_of
from tests.representatives import representatives
import tfcactus
from tfcactus.keras import (
  DPKerasSGDOptimizer,
  EpsilonCallback,
  PoissonBatches,
  privatize,
)
from tfcactus.keras.compat import versions

layers = tf.keras.layers
_EXAMPLES, _WIDTH = 8, 64
_CLIP = 100.0


class Normal(layers.Layer):
  """Draws with TensorFlow, not with Keras."""

  def call(self, inputs):
    return inputs * (1 + tf.random.normal(tf.shape(inputs), seed=7))


class Generator(layers.Layer):
  """Draws from its own generator, which has a known seed."""

  def __init__(self):
    super().__init__()
    self._drawn = tf.random.Generator.from_seed(3)

  def call(self, inputs):
    return inputs * self._drawn.uniform(tf.shape(inputs))


class Integers(layers.Layer):
  """Draws integers."""

  def call(self, inputs):
    return inputs * tf.cast(tf.random.uniform(
        tf.shape(inputs), 0, 2, tf.int32), inputs.dtype)


_LAYERS = {
    'Dropout': lambda: layers.Dropout(0.5),
    'Dropout of a seed': lambda: layers.Dropout(0.5, seed=1),
    'GaussianNoise': lambda: layers.GaussianNoise(1.0),
    'GaussianDropout': lambda: layers.GaussianDropout(0.5),
    'SpatialDropout1D': lambda: tf.keras.Sequential([
        layers.Reshape((1, -1)), layers.SpatialDropout1D(0.5),
        layers.Flatten()]),
    'TensorFlow': Normal, 'generator': Generator, 'integers': Integers,
}


def _plan(rows):
  return plan_of(noise=tfcactus.Gaussian(1e-9), l2_norm_clip=_CLIP,
                 num_examples=rows, sampling_prob=1.0)


def _masks(make, engine='auto', first=0, seed=None):
  """Returns each example's draws from `first` on, shape (examples, width)."""
  tf.keras.utils.set_random_seed(42)
  size = _EXAMPLES * _WIDTH
  model = tf.keras.Sequential([
      layers.Input((size,)), make(), layers.Dense(1, use_bias=False)])
  model.layers[-1].kernel.assign(tf.zeros([size, 1]))
  private = privatize(model, _plan(_EXAMPLES - first), seed, engine=engine)
  private.compile(tf.keras.optimizers.SGD(1.0),
                  lambda y, p: tf.reduce_sum(p, -1))
  x = np.kron(np.eye(_EXAMPLES), np.ones(_WIDTH)).astype(np.float32)[first:]
  private.fit(x, np.zeros(len(x)), batch_size=len(x), shuffle=False, verbose=0)
  moved = -model.layers[-1].kernel.numpy().reshape(_EXAMPLES, _WIDTH)
  return (moved * len(x))[first:]


def _like(one, other):
  """Returns how often two arrays of draws agree, up to the noise added."""
  return np.mean(np.abs(one - other) < 1e-3)


@representatives('name, engine', [
    (name, engine) for name in _LAYERS for engine in ('auto', 'vectorized')])
def test_masks_differ_between_runs_and_between_examples(name, engine):
  masks, again = (_masks(_LAYERS[name], engine) for _ in range(2))
  assert np.std(masks) > 0.1
  assert _like(masks, again) < 0.7  # Independent masks of two values agree in half.
  for one, other in zip(masks, masks[1:]):
    assert _like(one, other) < 0.9  # Of 64 coins, 58 agree once in 10^11 runs.


@representatives('name', ['Dropout of a seed', 'Dropout', 'GaussianNoise'])
@pytest.mark.more
def test_an_example_more_leaves_the_law_of_other_masks(name):
  """A mask drawn by a known seed would be that of a row, whichever example is in it."""
  whole, fewer = _masks(_LAYERS[name]), _masks(_LAYERS[name], first=1)
  rest = whole[1:]
  assert _like(rest, fewer) < 0.7 and _like(whole[:-1], fewer) < 0.7
  # Mean and standard deviation agree within five standard errors.
  error = 5 * np.std(rest) / np.sqrt(rest.size)
  assert abs(np.mean(rest) - np.mean(fewer)) < 2 * error
  assert abs(np.std(rest) - np.std(fewer)) < 2 * error


@representatives('name, engine', [
    (name, engine) for name in ('Dropout', 'TensorFlow', 'generator')
    for engine in ('auto', 'vectorized')])
@pytest.mark.more
def test_masks_of_a_seeded_run_repeat(name, engine):
  one, other = (_masks(_LAYERS[name], engine, seed=5) for _ in range(2))
  np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.parametrize('call', [
    lambda x: x * tf.random.gamma(tf.shape(x), 1.0),
    lambda x: x + tf.cast(tf.random.categorical(x, 1), x.dtype),
    lambda x: x * tf.raw_ops.RandomUniform(
        shape=tf.shape(x), dtype=tf.float32, seed=3)])
def test_draws_that_cannot_follow_secret_seeds_are_refused(call):
  model = tf.keras.Sequential([
      layers.Input((4,)), layers.Lambda(call), layers.Dense(2)])
  with pytest.raises(ValueError, match='Expected layers that draw by'):
    privatize(model, _plan(40))


def _plain(x):
  x = layers.SpatialDropout1D(.2)(layers.GaussianNoise(.1)(x))
  return layers.AlphaDropout(.2)(layers.GaussianDropout(.2)(layers.Dropout(.2)(x)))


def _attention(x):
  return layers.Attention(dropout=.2)(
      [layers.MultiHeadAttention(2, 4, dropout=.2)(x, x), x])


def _recurrent(x):
  x = layers.GRU(4, dropout=.2, recurrent_dropout=.2, return_sequences=True)(x)
  return layers.LSTM(4, dropout=.2, recurrent_dropout=.2)(x)


@representatives('make', [_plain, _attention, _recurrent])
def test_layers_of_keras_that_draw_are_not_vectorised(make):
  """Their draws are proved to be per example without a slower route."""
  inputs = layers.Input((6, 4))
  outputs = layers.Dense(2)(layers.Flatten()(make(inputs)))
  private = privatize(tf.keras.Model(inputs, outputs), _plan(8))
  private.compile('sgd', tf.keras.losses.SparseCategoricalCrossentropy(True))
  private.fit(np.ones((8, 6, 4), np.float32), np.zeros(8), batch_size=8, verbose=0)
  assert 'vectorised' not in private.privacy_summary()
  assert 'batched' in private.privacy_summary()


def test_draws_outside_of_private_steps_follow_their_seeds():
  _masks(_LAYERS['Dropout'])
  draws = []
  for _ in range(2):
    tf.random.set_seed(1)
    draws.append(tf.random.uniform([5]).numpy())
  np.testing.assert_array_equal(*draws)


@representatives('rate', [0.5, 0.0])
def test_a_drop_in_statement_names_random_layers_as_a_condition(rate):
  x, y = np.ones((40, 6), np.float32), np.arange(40) % 3
  model = tf.keras.Sequential([
      layers.Input((6,)), layers.Dropout(rate), layers.Dense(3)])
  model.compile(
      DPKerasSGDOptimizer.from_plan(plan_of()),
      tf.keras.losses.SparseCategoricalCrossentropy(True, reduction='none'))
  batches = PoissonBatches(x, y, 0.25)
  epsilon = EpsilonCallback(batches=batches)
  model.fit(batches, verbose=0, callbacks=[epsilon])
  said = 'what the model drew' in epsilon.guarantee.statement
  assert said == bool(rate)


@pytest.mark.skipif(not versions.KERAS_3, reason='Keras 3 has a global generator')
def test_the_global_generator_of_keras_is_refused():
  class Global(layers.Layer):

    def call(self, inputs):
      return inputs + versions.keras.random.normal((1, 6))

  model = tf.keras.Sequential([layers.Input((6,)), Global(), layers.Dense(2)])
  with pytest.raises(ValueError, match='write no variables'):
    privatize(model, _plan(40))
