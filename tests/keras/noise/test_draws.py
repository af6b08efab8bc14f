"""Tests of layers and losses that draw random numbers, by any kind of seed.

A construct of `_KNOWN` draws from a public seed: each example gets the same numbers in
every step, and removing an example moves the clipped sum by one clipping norm at most.
A construct of `_FRESH` draws anew: the sums of two steps differ, and so do those of two
equal examples. If the secret seeds are fixed, giving an example weight zero moves the
sum by one clipping norm at most. A construct of `_REFUSED` is refused.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.conftest import FakePlan
from tests.representatives import representatives
from tfcactus import noise as noise_lib
from tfcactus.keras import privatize
from tfcactus.keras.compat import models, versions
from tfcactus.keras.gradients import engine as engine_lib
from tfcactus.keras.noise import random_bits

layers = tf.keras.layers
_CLIP, _ROWS, _WIDTH = 0.1, 8, 4
_random = tf.random


class Applied(layers.Layer):
  """Applies any function of the layer and its inputs."""

  def __init__(self, function):
    super().__init__()
    self.function = function
    self.kept = None

  def call(self, inputs):
    return tf.ensure_shape(self.function(self, inputs), inputs.shape)


def _times(draw):
  """Returns what makes a layer that multiplies its inputs by drawn numbers."""
  return lambda: Applied(lambda layer, x: x * tf.cast(
      draw(tf.shape(x)), x.dtype) * 3)


def _of(function):
  return lambda: Applied(lambda layer, x: function(x))


def _images(change):
  return _of(lambda x: tf.reshape(
      change(tf.reshape(x, [-1, 2, 2, 1])), [-1, _WIDTH]))


def _by_function(**kwargs):
  """Returns a layer that calls a `tf.function` which was traced before."""
  @tf.function(**kwargs)
  def noisy(x):
    return x * (1 + 20 * _random.normal(tf.shape(x)))

  noisy(tf.ones([_ROWS, _WIDTH]))
  return _of(noisy)


def _in_loop(x):
  return tf.while_loop(
      lambda i, _: i < 3,
      lambda i, x: (i + 1, tf.ensure_shape(
          x * _random.uniform(tf.shape(x)), x.shape)), (0, x))[1]


def _reused_seed(x):
  """Draws twice from one seed: rows of the first draw are parts of those of the second.
  """
  seed = _random.uniform([2], maxval=10**6, dtype=tf.int32)
  rows = tf.shape(x)[0]
  first = _random.stateless_uniform([rows, _WIDTH], seed)
  return x * first * _random.stateless_uniform([rows, 2 * _WIDTH], seed)[:, ::2]


def _shown_seed(x):
  """Adds the seed of a draw to the data."""
  key, counter = _GENERATOR._prepare_key_counter(tf.shape(x))
  drawn = tf.raw_ops.StatelessRandomUniformV2(
      shape=tf.shape(x), key=key, counter=counter, alg=1)
  return x * drawn + tf.cast(key[0] % 7, x.dtype)


def _half_of_a_seed(x):
  """Draws from a seed whose secret half is cut off."""
  key, _ = _GENERATOR._prepare_key_counter(tf.shape(x))
  known = tf.concat([key, tf.constant([5, 6], tf.uint64)], 0)[1:]
  return x * tf.raw_ops.StatelessRandomUniformV2(
      shape=tf.shape(x), key=known[:1], counter=known, alg=1) * 5


def _counted_by_a_loop(x):
  """Draws in a loop whose rounds count up the key: rows of one round recur in the next.
  """
  key, counter = _GENERATOR._prepare_key_counter(tf.shape(x))
  def body(i, h):
    drawn = tf.raw_ops.StatelessRandomUniformV2(
        shape=tf.shape(x), key=key, alg=1,
        counter=tf.stack([tf.cast(i, tf.uint64), counter[1]]))
    return i + 1, tf.ensure_shape(h * drawn, x.shape)
  return tf.while_loop(lambda i, _: i < 2, body, (0, x))[1]


def _wider_in_each_round(x):
  def body(i, h):
    drawn = _random.normal(tf.stack([tf.shape(x)[0], i]))
    return i + 1, h * (1 + tf.reduce_sum(drawn, 1, keepdims=True))
  return tf.while_loop(lambda i, _: i < 3, body, (1, x))[1]


def _rounds_by_the_data(x):
  def body(i, h):
    return i + 1, h * _random.normal([1, _WIDTH])
  rounds = 1 + tf.cast(x[0, 0] > 0, tf.int32)
  return x * tf.while_loop(lambda i, _: i < rounds, body, (0, tf.ones([1, _WIDTH])))[1]


def _in_a_call(x):
  """Draws in a function of the seed alone, and again from the same seed."""
  key, counter = _GENERATOR._prepare_key_counter(tf.shape(x))
  table = tf.function(lambda k, c: tf.raw_ops.StatelessRandomUniformV2(
      shape=[_WIDTH], key=k, counter=c, alg=1))(key, counter)
  return x * table * tf.raw_ops.StatelessRandomUniformV2(
      shape=tf.shape(x), key=key, counter=counter, alg=1)


def _generator_reused(x):
  """Draws twice from one key of a generator; see `_reused_seed`."""
  generator = _GENERATOR
  key, counter = generator._prepare_key_counter(tf.shape(x))
  first, second = (tf.raw_ops.StatelessRandomUniformV2(
      shape=shape, key=key, counter=counter, alg=1)
      for shape in ([tf.shape(x)[0], _WIDTH], [tf.shape(x)[0], 2 * _WIDTH]))
  return x * first * second[:, ::2]


_GENERATOR = _random.Generator.from_seed(3)


class Generator(layers.Layer):

  def __init__(self, draw):
    super().__init__()
    self.generator = _random.Generator.from_seed(3)
    self.draw = draw

  def call(self, inputs):
    return inputs * tf.cast(self.draw(self.generator, tf.shape(inputs)), inputs.dtype)


class SeedGenerator(layers.Layer):
  """Draws from a seed generator of Keras 3."""

  def __init__(self, draw):
    super().__init__()
    self.generator = versions.keras.random.SeedGenerator(1)
    self.draw = draw

  def call(self, inputs):
    return inputs * self.draw(tf.shape(inputs), seed=self.generator)


def _rows_of_loop(x):
  """Draws for each row, in a loop over rows, from its place in the batch."""
  places = tf.range(tf.shape(x)[0])
  return tf.map_fn(
      lambda row: row[0] * _random.stateless_uniform([_WIDTH], [3, row[1]]),
      (x, places), fn_output_signature=tf.float32)


def _cached_mask(layer, x):
  """Draws once for all steps, outside of the step."""
  if layer.kept is None:
    with tf.init_scope():
      layer.kept = np.array(_random.uniform([_ROWS, _WIDTH]))
  return x * layer.kept[:x.shape[0]] * 5


def _rnn(**kwargs):
  return tf.keras.Sequential([
      layers.Reshape((2, 2)),
      layers.RNN(layers.LSTMCell(_WIDTH, dropout=.4, recurrent_dropout=.2, **kwargs))])


_KNOWN = {
    'uniform': _times(lambda s: _random.stateless_uniform(s, [1, 2])),
    'normal': _times(lambda s: _random.stateless_normal(s, [1, 2])),
    'truncated normal': _times(
        lambda s: _random.stateless_truncated_normal(s, [1, 2])),
    'integers': _times(lambda s: _random.stateless_uniform(
        s, [1, 2], 0, 9, tf.int32)),
    'full integers': _times(lambda s: tf.cast(_random.stateless_uniform(
        s, [1, 2], None, None, tf.uint32), tf.float32) / 2.**32),
    'philox': _times(lambda s: _random.stateless_uniform(s, [1, 2], alg='philox')),
    'keys': _times(lambda s: tf.raw_ops.StatelessRandomNormalV2(
        shape=s, key=[5], counter=[1, 2], alg=1)),
    'binomial': _times(
        lambda s: _random.stateless_binomial(s, [1, 2], 5., .5, tf.float32)),
    'gamma': _times(lambda s: _random.stateless_gamma(s, [1, 2], 2.)),
    'poisson': _times(lambda s: _random.stateless_poisson(s, [1, 2], 2., tf.float32)),
    'parameterized': _times(
        lambda s: _random.stateless_parameterized_truncated_normal(s, [1, 2], 0., 1.)),
    'dropout': _of(lambda x: tf.nn.experimental.stateless_dropout(x, .5, seed=[1, 2])),
    'categorical': _of(lambda x: x * tf.cast(_random.stateless_categorical(
        x, _WIDTH, [1, 2]), x.dtype)),
    'shuffle': _of(lambda x: x + 3 * _random.experimental.stateless_shuffle(
        tf.stop_gradient(x), [1, 2])),
    'folded in': _times(lambda s: _random.stateless_normal(
        s, _random.experimental.stateless_fold_in([1, 2], 5))),
    'split': _times(lambda s: _random.stateless_normal(
        s, _random.experimental.stateless_split([1, 2], 2)[1])),
    'seed of the data': _of(lambda x: x * _random.stateless_uniform(
        tf.shape(x), tf.cast(1e3 * x[0, :2], tf.int32))),
    'seed of the number': _of(lambda x: x * _random.stateless_uniform(
        tf.shape(x), tf.shape(x))),
    'one row too many': _of(lambda x: x * _random.stateless_uniform(
        [tf.shape(x)[0] + 1, _WIDTH], [1, 2])[1:]),
    'columns': _of(lambda x: x * tf.transpose(
        _random.stateless_uniform([_WIDTH, tf.shape(x)[0]], [1, 2]))),
    'in a function': _of(tf.function(
        lambda x: x * _random.stateless_uniform(tf.shape(x), [1, 2]))),
    'in a branch': _of(lambda x: tf.cond(
        tf.reduce_sum(tf.ones([2])) > 1,
        lambda: x * _random.stateless_uniform(tf.shape(x), [1, 2]), lambda: x)),
    'in a loop': _of(lambda x: tf.while_loop(
        lambda i, _: i < 2, lambda i, x: (i + 1, tf.ensure_shape(
            x * _random.stateless_uniform(tf.shape(x), [i, 2]), x.shape)), (0, x))[1]),
    'in a loop over rows': _of(_rows_of_loop),
    'flip': _images(
        lambda x: tf.image.stateless_random_flip_left_right(x, [1, 2])),
    'brightness': _images(
        lambda x: tf.image.stateless_random_brightness(x, 3., [1, 2])),
    'contrast': _images(
        lambda x: x + tf.image.stateless_random_contrast(
            tf.stop_gradient(x), .1, 9., [1, 2])),
    'initializer': _of(lambda x: x * tf.keras.initializers.RandomUniform(
        -3, 3, seed=1)(tf.shape(x))),
    'initializer, normal': _of(lambda x: x * tf.keras.initializers.RandomNormal(
        3., seed=1)(tf.shape(x))),
    'half of a seed': _of(_half_of_a_seed),
    'hash of places': _of(lambda x: x * tf.math.floormod(tf.sin(tf.cast(
        tf.range(tf.shape(x)[0]), x.dtype))[:, None] * 43758.5453, 1.)),
    'hash of inputs': _of(
        lambda x: x * tf.math.floormod(tf.sin(x * 12.9898) * 43758.5453, 1.)),
    'hash of strings': _of(lambda x: x * tf.cast(tf.strings.to_hash_bucket_fast(
        tf.strings.as_string(x), 7), x.dtype)),
    'drawn by NumPy': _of(lambda x: x * tf.constant(np.random.default_rng(1).normal(
        0, 5, (_ROWS, _WIDTH)).astype(np.float32))[:x.shape[0]]),
    **({
        'Keras dropout': lambda: layers.Dropout(.5, seed=1, rng_type='stateless'),
        'Keras alpha dropout': lambda: layers.AlphaDropout(
            .5, seed=1, rng_type='stateless'),
        'Keras noise': lambda: layers.GaussianNoise(
            3., seed=1, rng_type='stateless'),
        'Keras factors': lambda: layers.GaussianDropout(
            .5, seed=1, rng_type='stateless'),
        'Keras cell': lambda: _rnn(seed=1, rng_type='stateless'),
    } if not versions.KERAS_3 else {
        'Keras integer seed': _of(
            lambda x: x * versions.keras.random.normal(tf.shape(x), seed=1)),
        'Keras integer seed, dropout': _of(
            lambda x: versions.keras.random.dropout(x, .5, seed=1)),
        'Keras integer seed, shuffle': _of(
            lambda x: versions.keras.random.shuffle(x, seed=1)),
        'Keras integer seed, gamma': _of(
            lambda x: x * versions.keras.random.gamma(tf.shape(x), 2., seed=1)),
    }),
}

_FRESH = {
    'uniform': _times(_random.uniform),
    'normal of a seed': _times(lambda s: _random.normal(s, seed=7)),
    'truncated normal': _times(_random.truncated_normal),
    'integers': _times(lambda s: _random.uniform(s, 0, 9, tf.int32)),
    'dropout': _of(lambda x: tf.nn.dropout(x, .5, seed=3)),
    'in a function with traces': _by_function(),
    'in a function of a signature': _by_function(
        input_signature=[tf.TensorSpec([None, _WIDTH])]),
    'in a function in a function': _of(tf.function(
        lambda x: tf.function(lambda y: y * _random.normal(tf.shape(y)))(x))),
    'in a loop': _of(_in_loop),
    'in a branch': _of(lambda x: tf.cond(
        tf.reduce_sum(tf.ones([2])) > 1,
        lambda: x * _random.normal(tf.shape(x)), lambda: x)),
    'shared by examples': _of(lambda x: x * _random.normal([_WIDTH])),
    'one number for all': _of(lambda x: x * _random.normal([])),
    'seeds that are drawn': _of(lambda x: x * _random.stateless_normal(
        tf.shape(x), _random.uniform([2], maxval=10**6, dtype=tf.int32))),
    'a seed used twice': _of(_reused_seed),
    'a key used twice': _of(_generator_reused),
    'a key that shows': _of(_shown_seed),
    'a key in a call': _of(_in_a_call),
    'a key counted by a loop': _of(_counted_by_a_loop),
    'wider in each round': _of(_wider_in_each_round),
    'rounds by the data': _of(_rounds_by_the_data),
    'a bit of a key': _of(lambda x: x * tf.cast(_GENERATOR.make_seeds(
        1)[0, 0] % 2, x.dtype) + x * _random.normal(tf.shape(x))),
    'generator': lambda: Generator(lambda g, s: g.uniform(s)),
    'generator, normal': lambda: Generator(lambda g, s: g.normal(s)),
    'generator, integers': lambda: Generator(
        lambda g, s: g.uniform(s, 0, 9, tf.int32)),
    'Keras dropout': lambda: layers.Dropout(.5),
    'Keras dropout of a seed': lambda: layers.Dropout(.5, seed=1),
    'Keras noise': lambda: layers.GaussianNoise(.9),
    'Keras factors': lambda: layers.GaussianDropout(.5),
    'Keras cell': _rnn,
    'mask of an earlier time': lambda: Applied(_cached_mask),
    **({} if not versions.KERAS_3 else {
        'Keras generator': lambda: SeedGenerator(versions.keras.random.normal),
        'Keras generator, gamma': lambda: SeedGenerator(
            lambda shape, seed: versions.keras.random.gamma(shape, 2., seed=seed)),
    }),
}
_STAYS = frozenset(('mask of an earlier time',))
"""Constructs that draw once: all later steps and all examples see the same numbers."""


def _concrete(x):
  """Calls a function traced outside of the step, whose draws follow public seeds."""
  return _CONCRETE(x)


_CONCRETE = tf.function(lambda x: x * _random.normal([_ROWS, _WIDTH])
                        ).get_concrete_function(tf.TensorSpec([_ROWS, _WIDTH]))
_OUTSIDE = tf.Variable(1.)
_NUMBERS = np.random.default_rng(1)
_TABLE = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.)


class _ByPlace(layers.Layer):
  """Looks up a weight by a row's place in the batch."""

  def build(self, shape):
    self.table = self.add_weight(name='table', shape=(_ROWS, 3, _WIDTH))

  def call(self, inputs):
    places = tf.argmax(inputs[:, :3], 1)[:, None]
    return inputs * tf.raw_ops.ResourceGather(
        resource=models.handle(self.table), indices=places, dtype=tf.float32,
        batch_dims=1)[:, 0]


def _inserted(x):
  with tf.control_dependencies([_TABLE.insert(tf.constant([1], tf.int64), x[:1, 0])]):
    return x + _TABLE.lookup(tf.constant([1], tf.int64))


def _staged(x):
  stage = tf.raw_ops.Stage(values=[x])
  with tf.control_dependencies([stage]):
    return x + tf.ensure_shape(tf.raw_ops.Unstage(dtypes=[tf.float32])[0], x.shape)


_REFUSED = {
    'gamma': ('draw by', _times(lambda s: _random.gamma(s, 2.))),
    'poisson': ('draw by', _times(lambda s: _random.poisson(s, 2.))),
    'categorical': ('draw by', _of(
        lambda x: x * tf.cast(_random.categorical(x, _WIDTH), x.dtype))),
    'shuffle': ('draw by', _of(_random.shuffle)),
    'raw': ('draw by', _of(lambda x: x * tf.raw_ops.RandomUniform(
        shape=tf.shape(x), dtype=tf.float32, seed=3))),
    'trace of its own': ('draw by', _of(_concrete)),
    'uniform candidates': ('draw by', _of(lambda x: x * tf.cast(
        _random.uniform_candidate_sampler(
            tf.ones([_ROWS, 1], tf.int64), 1, _WIDTH, False, 99, seed=1)[0],
        x.dtype))),
    'logarithmic candidates': ('draw by', _of(lambda x: x * tf.cast(
        _random.log_uniform_candidate_sampler(
            tf.ones([_ROWS, 1], tf.int64), 1, _WIDTH, False, 99, seed=1)[0],
        x.dtype))),
    'bounding box': ('draw by', _of(lambda x: x * tf.cast(
        tf.image.sample_distorted_bounding_box(
            [64, 64, 3], tf.zeros([1, 1, 4]), seed=1)[0][0], x.dtype))),
    'generator, binomial': ('draw by', lambda: Generator(
        lambda g, s: g.binomial(s, 5., .5, tf.float32))),
    'generator skips': ('draw by', lambda: Generator(
        lambda g, s: (g.skip(3), g.uniform(s))[1])),
    'generator made in a call': ('[Vv]ariable', _of(
        lambda x: x * _random.Generator.from_seed(1).uniform(tf.shape(x)))),
    'generator begins anew': ('write no variables', lambda: Generator(
        lambda g, s: (g.reset_from_seed(3), g.uniform(s))[1])),
    'state of a generator': ('weights of the model alone', lambda: Generator(
        lambda g, s: _random.stateless_uniform(s, g.state[:2]))),
    'memory': ('write no variables', _of(_staged)),
    'table': ('write no variables', _of(_inserted)),
    'a buffer': ('write no memory in place', _of(lambda x: x + tf.raw_ops.InplaceAdd(
        x=tf.zeros([1, _WIDTH]), i=[0], v=tf.stop_gradient(x[:1])))),
    'pools of a seed': ('draw by', _images(lambda x: tf.repeat(tf.repeat(
        tf.raw_ops.FractionalMaxPool(
            value=x, pooling_ratio=[1., 2., 2., 1.], seed=1)[0], 2, 1), 2, 2))),
    'python': ('runs Python', _of(
        lambda x: tf.numpy_function(lambda v: v * _NUMBERS.random(), [x], x.dtype))),
    'the time': ('nothing but weights', _of(
        lambda x: x * tf.cast(tf.timestamp(), x.dtype))),
    'a file': ('nothing but weights', _of(
        lambda x: x * tf.strings.to_number(tf.io.read_file('number.txt')))),
    'a variable of others': ('weights of the model alone', _of(
        lambda x: x * _OUTSIDE)),
    'a weight by the place': ('vectorised|must have rank|[Dd]imension', _ByPlace),
    **({} if not versions.KERAS_3 else {
        'Keras generator of all': ('write no variables', _of(
            lambda x: x * versions.keras.random.normal(tf.shape(x)))),
    }),
}


def _loss(change):
  """Returns a loss of predictions that a random draw changes."""
  def compute(y, p):
    return tf.reduce_sum(tf.square(change(p) - tf.cast(y, p.dtype)), -1)
  return compute


_KNOWN_LOSSES = {
    'normal': lambda p: p * _random.stateless_normal(tf.shape(p), [1, 2]) * 5,
    'uniform': lambda p: p * _random.stateless_uniform(tf.shape(p), [1, 2]) * 5,
    'categorical': lambda p: p * tf.cast(_random.stateless_categorical(
        p, 3, [1, 2]), p.dtype),
}
_FRESH_LOSSES = {
    'normal': lambda p: p * _random.normal(tf.shape(p)),
    'in a function': tf.function(lambda p: p + 20 * _random.normal(tf.shape(p))),
    'in a function, vectorised': tf.function(
        lambda p: p * tf.sort(_random.normal(tf.shape(p)))),
    'shared by examples': lambda p: p * _random.normal([3]),
}
_REFUSED_LOSSES = {
    'categorical': ('draw by', lambda p: p * tf.cast(
        _random.categorical(p, 3, seed=1), p.dtype)),
    'candidates': ('draw by', lambda p: p * tf.cast(
        _random.uniform_candidate_sampler(
            tf.ones([_ROWS, 1], tf.int64), 1, 3, False, 9, seed=1)[0], p.dtype)),
    'poisson': ('draw by', lambda p: p * _random.poisson(tf.shape(p), 2.)),
    'gamma': ('draw by', lambda p: p * _random.gamma(tf.shape(p), 2.)),
    'a variable of others': ('weights of the model alone', lambda p: p * _OUTSIDE),
}


def _data(seed):
  rng = np.random.default_rng(seed)
  x = rng.standard_t(2, (_ROWS, _WIDTH)).astype(np.float32)
  return x, rng.integers(0, 3, _ROWS), np.ones(_ROWS, np.float32)


class _Keys:
  """Secret seeds that can be restarted."""

  def __init__(self):
    self.begin(None)

  def begin(self, seed):
    self._rng = np.random.default_rng(seed)

  def __call__(self):
    return random_bits.drawn(
        lambda: self._rng.integers(2**62, size=2), 2, tf.int64)


def _sums(make=None, loss=None, engine='auto'):
  """Returns (batch, seed of the secret seeds) -> clipped sum, in clipping norms."""
  tf.keras.utils.set_random_seed(1)
  parts = [layers.Input((_WIDTH,)), layers.Dense(_WIDTH, bias_initializer='ones')]
  model = tf.keras.Sequential(
      [*parts, *([] if make is None else [make()]), layers.Dense(3)])
  private = privatize(model, FakePlan(noise_lib.Gaussian(1e-9), _CLIP, 40, .25),
                      engine=engine, physical_batch_size=_ROWS)
  private.compile('sgd', _loss(loss or tf.identity))
  step, keys = private._step, _Keys()
  run = engine_lib.Engine(model, private._output_losses, _ROWS, step.routes(),
                          keys=keys)

  @tf.function(autograph=False, input_signature=[
      tf.TensorSpec([None, *part.shape[1:]], part.dtype)
      for part in map(tf.constant, _data(0))])
  def clipped(x, y, weights):
    y = private._output_losses.targets(y, step.outputs)
    return run.run(x, y, weights, tf.constant(_CLIP)).sums

  def sums(batch, seed=None):
    keys.begin(seed)
    found = clipped(*map(tf.constant, batch))
    return np.concatenate([np.ravel(part) for part in found]).astype(float) / _CLIP

  return sums


def _check_known(sums):
  for place in (0, 5):
    batch = _data(place)
    batch[0][place] *= 30
    fewer = [np.delete(part, place, 0) for part in batch]
    whole = sums(batch)
    np.testing.assert_allclose(whole, sums(batch), atol=1e-4)
    assert np.linalg.norm(whole - sums(fewer)) <= 1 + 1e-4


def _check_fresh(sums, stays=False):
  batch = _data(0)
  assert stays or np.linalg.norm(sums(batch, seed=1) - sums(batch, seed=2)) > 1e-3
  batch[0][1] *= 30
  lighter = [(*batch[:2], batch[2] * (np.arange(_ROWS) != k)) for k in (1, 4, 6)]
  moved = [np.linalg.norm(sums(batch, seed=5) - sums(each, seed=5)) for each in lighter]
  assert 0 < max(moved) <= 1 + 1e-4
  # Equal examples draw different numbers.
  alike = tuple(np.repeat(part[:1], _ROWS, 0) for part in batch)
  alone = [np.where(np.arange(_ROWS) == k, 1, 0).astype(np.float32) for k in (2, 3)]
  one, other = (sums((*alike[:2], weights), seed=5) for weights in alone)
  assert stays or np.linalg.norm(one - other) > 1e-3


@representatives('name', _KNOWN)
def test_layers_with_a_public_seed_draw_the_same_for_each_example(name):
  _check_known(_sums(_KNOWN[name]))


@representatives('name', _FRESH)
def test_layers_with_secret_seeds_draw_anew_for_each_example(name):
  _check_fresh(_sums(_FRESH[name]), name in _STAYS)


@representatives('name', _REFUSED, 7)
def test_layers_with_other_draws_state_or_reads_are_refused(name):
  words, make = _REFUSED[name]
  with pytest.raises(ValueError, match=words):
    _sums(make)(_data(0))


def _with_engines(names):
  return [(name, engine) for name in names for engine in ('auto', 'vectorized')]


@representatives('name, engine', _with_engines(_KNOWN_LOSSES))
def test_losses_with_a_public_seed_draw_the_same_for_each_example(name, engine):
  _check_known(_sums(loss=_KNOWN_LOSSES[name], engine=engine))


@representatives('name, engine', _with_engines(_FRESH_LOSSES))
def test_losses_with_secret_seeds_draw_anew_for_each_example(name, engine):
  _check_fresh(_sums(loss=_FRESH_LOSSES[name], engine=engine))


@representatives('name, engine', _with_engines(_REFUSED_LOSSES), 3)
def test_losses_with_other_draws_or_reads_are_refused(name, engine):
  words, change = _REFUSED_LOSSES[name]
  with pytest.raises(ValueError, match=words):
    _sums(loss=change, engine=engine)(_data(0))
