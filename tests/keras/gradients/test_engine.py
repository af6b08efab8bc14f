"""Tests of clipped sums of the batched engine against a loop over examples."""

import functools
import math

from hypothesis import given, HealthCheck, settings, strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tests.keras import one_by_one, rounded_products
from tests.representatives import representatives
from tfcactus.keras.checks import example_losses
from tfcactus.keras.compat import versions
from tfcactus.keras.gradients import engine as engine_lib, layer_routes

layers = tf.keras.layers
_LOSS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def model_of(*parts, shape, dtype=None):
  """A model of some layers with three outputs."""
  tf.keras.utils.set_random_seed(1)
  inputs = x = tf.keras.Input(shape, dtype=dtype)
  for part in parts:
    x = part(x)
  if len(x.shape) > 2:
    x = layers.Flatten()(x)
  return one_by_one.shake(tf.keras.Model(inputs, layers.Dense(3)(x)))


def data_for(model, rows=6, ids=None):
  """Inputs of a model and targets."""
  rng = np.random.default_rng(0)
  shape = (rows,) + model.input_shape[1:]
  x = (rng.integers(0, ids, shape) if ids else
       2 * rng.normal(size=shape).astype(np.float32))
  return x, rng.integers(0, 3, rows)


def sums_of(model, x, y, clip=0.5, weights=None):
  """Clipped sums by the engine, as one vector."""
  return engine_of(model, len(x))(x, y, weights, clip)


def engine_of(model, rows=6, clipping='flat'):
  """(x, y, weights, clip) -> clipped sums, traced once."""
  engine = engine_lib.Engine(model, example_losses.loss_per_example(_LOSS), rows,
                          layer_routes.routes(model), clipping)
  # Autograph would take longer than all else.
  run = tf.function(lambda *data: engine.run(*data).sums, autograph=False)

  def sums(x, y, weights=None, clip=0.5):
    weights = np.ones(len(x), np.float32) if weights is None else weights
    return np.concatenate([np.ravel(part) for part in run(
        *map(tf.constant, (x, y, weights, clip)))])

  return sums


def loop_of(model):
  """(x, y, weights, clip) -> clipped sums in float64, one example at a time."""

  @tf.function(autograph=False)
  def gradient(x, y, weight):
    with tf.GradientTape() as tape:
      loss = weight * _LOSS(y, model(x, training=True))
    found = tape.gradient(loss, model.trainable_variables,
                          unconnected_gradients='zero')
    return tf.concat([tf.reshape(tf.convert_to_tensor(g), [-1])
                      for g in found], 0)

  def sums(x, y, weights=None, clip=0.5):
    total = 0.0
    weights = np.ones(len(x), np.float32) if weights is None else weights
    for xi, yi, weight in zip(x, y, weights):
      row = gradient(tf.constant(xi[None]), tf.constant([yi]),
                     tf.constant(weight)).numpy().astype(np.float64)
      norm = np.sqrt(np.sum(row**2))
      if np.isfinite(norm) and weight:
        total += row * min(1, clip * (1 - 1e-5) / norm)
    return total

  return sums


def assert_equal(got, want, model=None):
  """Norm of the difference within 1e-5 of the sum's; of a model, for each variable."""
  assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)
  start = 0
  for variable in model.trainable_variables if model else ():
    end = start + math.prod(variable.shape)
    assert np.linalg.norm((got - want)[start:end]) <= (
        1e-5 * np.linalg.norm(want[start:end])), getattr(
            variable, 'path', variable.name)
    start = end


def assert_equal_sums(model, x, y, **kwargs):
  """The engine's sums are those of the loop."""
  assert_equal(sums_of(model, x, y, **kwargs), loop_of(model)(x, y, **kwargs))


CASES = {
    'dense': ((6,), lambda: layers.Dense(4, 'relu')),
    'dense without bias': ((6,), lambda: layers.Dense(4, use_bias=False)),
    'dense over time': ((5, 6), lambda: layers.Dense(4, 'tanh')),
    'dense over images': ((3, 2, 4), lambda: layers.Dense(5, 'gelu')),
    'conv1d': ((9, 2), lambda: layers.Conv1D(4, 3, strides=2)),
    'conv1d same': ((8, 3), lambda: layers.Conv1D(2, 4, padding='same')),
    'conv1d causal': ((9, 2), lambda: layers.Conv1D(
        4, 3, padding='causal', dilation_rate=2, activation='relu')),
    'conv1d causal strides': ((9, 2), lambda: layers.Conv1D(
        4, 3, padding='causal', strides=2)),
    'conv2d': ((7, 6, 2), lambda: layers.Conv2D(4, 3, activation='relu')),
    'conv2d 1x1': ((4, 5, 3), lambda: layers.Conv2D(2, 1)),
    'conv2d 1x1 strides': ((5, 5, 3), lambda: layers.Conv2D(2, 1, strides=2)),
    'conv2d same strides': ((7, 8, 2), lambda: layers.Conv2D(
        3, 3, strides=2, padding='same')),
    'conv2d deep': ((9, 9, 16), lambda: layers.Conv2D(5, 4, strides=2)),
    'conv2d deep odd': ((9, 8, 20), lambda: layers.Conv2D(
        5, (3, 2), strides=2, padding='same', use_bias=False)),
    'conv2d deep thin strides': ((11, 11, 80), lambda: layers.Conv2D(
        2, 1, strides=3)),
    'conv2d deep stride 1': ((5, 5, 10), lambda: layers.Conv2D(
        3, 3, padding='same')),
    'conv2d dilated': ((9, 8, 2), lambda: layers.Conv2D(
        3, 3, dilation_rate=2, padding='same')),
    'einsum with an ellipsis': ((3, 6), lambda: layers.EinsumDense(
        '...x,xy->...y', 4, bias_axes='y')),
    'depthwise': ((7, 6, 3), lambda: layers.DepthwiseConv2D(3)),
    'depthwise many': ((7, 7, 2), lambda: layers.DepthwiseConv2D(
        3, strides=2, padding='same', depth_multiplier=3, activation='relu')),
    'depthwise dilated': ((8, 8, 2), lambda: layers.DepthwiseConv2D(
        2, dilation_rate=2, use_bias=False)),
    'layer norm': ((6,), lambda: layers.LayerNormalization()),
    'layer norm fine': ((4, 6), lambda: layers.LayerNormalization(
        epsilon=1e-6, center=False)),
    'layer norm axes': ((4, 3, 2), lambda: layers.LayerNormalization(
        axis=[1, 2], scale=False)),
    'group norm': ((4, 5, 6), lambda: layers.GroupNormalization(3)),
    'group norm axis': ((4, 5), lambda: layers.GroupNormalization(2, axis=1)),
}


def _side_by_side(names):
  """A model of parallel layers that all read the first numbers of one input."""
  tf.keras.utils.set_random_seed(1)
  sizes = [math.prod(CASES[name][0]) for name in names]
  inputs = tf.keras.Input((max(sizes),))
  column, outputs = layers.Reshape((max(sizes), 1))(inputs), []
  for name, size in zip(names, sizes):
    shape, make = CASES[name]
    x = layers.Cropping1D((0, max(sizes) - size))(column)
    outputs.append(layers.Flatten()(make()(layers.Reshape(shape)(x))))
  x = layers.Rescaling(0.1)(layers.Concatenate()(outputs))
  return one_by_one.shake(tf.keras.Model(inputs, layers.Dense(3)(x)))


@functools.lru_cache(None)
def _made(*names):
  """A model of some cases, which no test changes, and its engine, traced once."""
  if len(names) > 1:
    model = _side_by_side(names)
  else:
    shape, make = CASES[names[0]]
    model = model_of(make(), shape=shape)
  return model, engine_of(model)


_cases = pytest.mark.parametrize('names', [
    pytest.param(tuple(CASES), id='side by side'),
    *(pytest.param((name,), id=name, marks=pytest.mark.more) for name in CASES)])


@_cases
@pytest.mark.more
def test_layers_of_keras_equal_the_reference(names):
  model, run = _made(*names)
  (x, y), loop = data_for(model), loop_of(model)
  weights = np.array([1, 0, 0.1, 1, 3, 1], np.float32)
  for changes in ({}, {'weights': weights, 'clip': 1.5}):
    assert_equal(run(x, y, **changes), loop(x, y, **changes), model)


@pytest.mark.parametrize('bad', [np.nan, np.inf])
@_cases
def test_a_broken_example_contributes_exactly_zero(names, bad):
  model, run = _made(*names)
  x, y = data_for(model)
  x[2].flat[0] = bad
  broken = run(x, y)
  x[2] = 0
  weights = np.array([1, 1, 0, 1, 1, 1], np.float32)
  np.testing.assert_array_equal(broken, run(x, y, weights))


def test_huge_inputs_are_clipped_like_others():
  model = model_of(layers.Dense(4, 'tanh'), shape=(6,))
  x, y = data_for(model)
  x[2] = 1e36
  assert_equal_sums(model, x, y)


@representatives('mask', [True, False])
def test_embeddings_with_repeated_ids(mask):
  model = model_of(layers.Embedding(7, 4, mask_zero=mask), layers.Dense(3),
                   shape=(9,), dtype='int32')
  x, y = data_for(model, ids=7)
  x[0] = 3
  assert_equal_sums(model, x, y)


def test_a_broken_row_of_an_embedding_drops_its_readers_alone():
  embedding = layers.Embedding(7, 4)
  model = model_of(embedding, shape=(3,), dtype='int32')
  x, y = data_for(model, ids=6)
  table = embedding.get_weights()[0]
  table[6] = np.nan
  embedding.set_weights([table])
  x[2, 1] = 6
  run = engine_of(model)
  broken = run(x, y)
  weights = np.array([1, 1, 0, 1, 1, 1], np.float32)
  x[2] = 0
  np.testing.assert_array_equal(broken, run(x, y, weights))


@representatives('make, shape', [
    (lambda: layers.Conv2D(2, 3, padding='same'), (5, 4, 2)),
    (lambda: layers.Dense(6, 'tanh'), (6,)),
    (layers.LayerNormalization, (4, 6)),
])
def test_a_layer_called_twice(make, shape):
  layer = make()
  model = model_of(layer, layers.Activation('tanh'), layer, shape=shape)
  assert_equal_sums(model, *data_for(model))


def test_one_embedding_for_two_inputs():
  embedding = layers.Embedding(7, 4)
  inputs = tf.keras.Input((6,), dtype='int32')
  parts = layers.Concatenate()([
      embedding(layers.Cropping1D((0, 3))(layers.Reshape((6, 1))(inputs))),
      embedding(layers.Cropping1D((3, 0))(layers.Reshape((6, 1))(inputs)))])
  model = tf.keras.Model(
      inputs, layers.Dense(3)(layers.Flatten()(parts)))
  assert_equal_sums(model, *data_for(model, ids=7))


def test_models_inside_models_and_branches():
  inner = tf.keras.Sequential([layers.Dense(5, 'relu'),
                               layers.LayerNormalization()])
  inputs = tf.keras.Input((4, 5))
  x = layers.Add()([inputs, inner(inputs)])
  x = layers.Concatenate()([x, layers.Conv1D(3, 2, padding='same')(x)])
  model = tf.keras.Model(inputs, layers.Dense(3)(layers.Flatten()(x)))
  assert_equal_sums(model, *data_for(model))


def test_frozen_layers_take_no_part():
  model = model_of(layers.Dense(5, trainable=False),
                   layers.BatchNormalization(trainable=False), shape=(6,))
  assert_equal_sums(model, *data_for(model))


class Doubling(layers.Layer):
  """A layer that the engine knows nothing of."""

  def build(self, shape):
    self.w = self.add_weight(name='w', shape=(shape[-1],))

  def call(self, inputs):
    return 2 * inputs * self.w


class Centering(layers.Layer):
  """A layer that mixes the examples of a batch."""

  def call(self, inputs):
    return inputs - tf.reduce_mean(inputs, axis=0)


class Counting(layers.Layer):
  """Prepends a weight as a first time step."""

  def build(self, shape):
    self.first = self.add_weight(name='first', shape=(1, 1, shape[-1]))

  def call(self, inputs):
    first = tf.repeat(tf.convert_to_tensor(self.first), tf.shape(inputs)[0], 0)
    return tf.concat([first, inputs], 1)


class Positions(layers.Layer):
  """Adds embeddings of tokens and of their positions, as tutorials do."""

  def __init__(self):
    super().__init__()
    self.tokens, self.places = layers.Embedding(7, 4), layers.Embedding(5, 4)

  def call(self, inputs):
    return self.tokens(inputs) + self.places(tf.range(inputs.shape[1]))


class Block(layers.Layer):
  """A transformer block that holds Keras layers and no weight of its own."""

  def __init__(self):
    super().__init__()
    self.attention = layers.MultiHeadAttention(2, 3)
    self.norm, self.dense = layers.LayerNormalization(), layers.Dense(4, 'gelu')

  def call(self, inputs):
    return inputs + self.dense(self.norm(inputs + self.attention(inputs, inputs)))


def _crossentropy(y, p):
  return tf.keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)


def _settled(model, x, y):
  """Checks the sums; returns the routes and the types of vectorised layers."""
  got = one_by_one.engine_sums(model, _crossentropy, x, y)
  one_by_one.assert_same(got, one_by_one.loop_sums(
      model, lambda y, p: tf.reduce_mean(_crossentropy(y, p)), x, y))
  return got.routes, {type(r.layer).__name__ for r in got.routes.layers if r.vectorized}


@representatives('shape, make', [
    ((4, 4), Block), ((4, 6), Counting), ((6,), Doubling),
    ((6,), lambda: layers.Dense(4, lambda z: z * z)),
    ((6,), lambda: lambda v: v[:, 1:] + v[:, :-1]),
    ((6,), lambda: layers.Lambda(lambda v: v[:, 1:]))])
def test_layers_of_layers_own_layers_and_bare_operations_are_batched(shape, make):
  model = model_of(layers.Dense(shape[-1], 'tanh'), make(), shape=shape)
  routes, vectorized = _settled(model, *data_for(model))
  assert not vectorized and not routes.whole
  if make is Block:
    assert 'by its layers' in routes.summary() and '    ' in routes.summary()


@representatives('make, words', [
    (Centering, 'goes over the examples'),
    (lambda: layers.Dense(4, lambda z: z - tf.reduce_mean(z, 0)), 'goes over')])
def test_layers_that_mix_examples_are_vectorised(make, words):
  layer = make()
  model = model_of(layers.Dense(4), layer, layers.Dense(3), shape=(6,))
  x, y = data_for(model)
  got = one_by_one.engine_sums(model, _crossentropy, x, y).routes
  route, = (r for r in got.layers if r.layer is layer)
  assert route.vectorized and words in str(route) and not got.whole
  _settled(model, x, y)


def test_layers_that_keep_statistics_are_refused():
  normalization = layers.BatchNormalization(scale=False, center=False)
  model = model_of(layers.Dense(4), normalization, layers.Dense(3), shape=(6,))
  with pytest.raises(ValueError, match='write no variables'):
    one_by_one.engine_sums(model, _crossentropy, *data_for(model))


def test_an_embedding_of_positions_is_batched_by_its_operations():
  model = model_of(Positions(), Block(), shape=(5,), dtype='int32')
  routes, vectorized = _settled(model, *data_for(model, ids=7))
  assert not vectorized and not routes.whole


@representatives('noise_shape, shared', [((1, 4), True), (None, False)])
def test_draws_that_examples_would_share_are_made_for_each(noise_shape, shared):
  """A mask drawn for the whole batch would depend on its companions."""
  model = model_of(layers.Dense(4), layers.Dropout(0.5, noise_shape), shape=(6,))
  x, y = data_for(model)
  got = one_by_one.engine_sums(model, _crossentropy, x, y).routes
  assert shared == any(r.vectorized for r in got.layers) and not got.whole
  assert ('several examples share' in got.summary()) == shared


class Noisy(layers.Layer):
  """A layer that draws a mask for its output and its gradient."""

  def __init__(self):
    super().__init__()
    self.dropout = layers.Dropout(0.5)

  def build(self, shape):
    self.w = self.add_weight(name='w', shape=(shape[-1],), initializer='ones')

  def call(self, inputs, training=None):
    return self.dropout(inputs, training=training) * self.w


def test_a_vectorised_layer_draws_once_for_output_and_gradient():
  inputs, layer = tf.keras.Input((9,)), Noisy()
  model = tf.keras.Model(inputs, layer(inputs))
  loss = example_losses.loss_per_example(lambda y, p: tf.reduce_sum(p, -1))
  engine = engine_lib.Engine(
      model, loss, 4, layer_routes.routes(model, apart={id(layer): 'as told'}))
  x = tf.constant(np.random.default_rng(0).normal(size=(4, 9)), tf.float32)
  found = tf.function(lambda: engine.run(
      x, tf.zeros([4]), tf.ones([4]), tf.constant(1e6)), autograph=False)()
  assert any(r.vectorized for r in engine.routes.layers)
  np.testing.assert_allclose(
      found.sums[0], np.sum(found.predictions, 0), rtol=1e-4, atol=1e-5)
  assert 0 < np.sum(found.predictions.numpy() == 0) < 36
  assert len(np.unique(found.predictions.numpy() == 0, axis=0)) > 1


@representatives('vectorize', [False, True])
def test_outputs_of_another_structure_are_refused_in_words(vectorize):
  inputs = tf.keras.Input((9,))
  model = tf.keras.Model(inputs, {'a': layers.Dense(1)(inputs)})
  loss = example_losses.loss_per_example(lambda y, p: tf.reduce_sum(p, -1))
  engine = engine_lib.Engine(model, loss, 4, layer_routes.routes(model, vectorize))
  with pytest.raises(ValueError, match=r"was built, \.\.\., got {'a': \.\.\.}"):
    tf.function(lambda: engine.run(
        tf.ones([4, 9]), tf.zeros([4]), tf.ones([4]), tf.constant(1.0)),
                autograph=False)()


_transpose = versions.choose(
    keras_2=tf.transpose,
    keras_3=getattr(getattr(tf.keras, 'ops', None), 'transpose', None))


def test_an_operation_that_moves_the_batch_axis_vectorises_the_whole_model():
  inputs = tf.keras.Input((4, 3))
  turned = _transpose(layers.Dense(3)(inputs), [1, 0, 2])
  outputs = layers.Dense(3)(_transpose(layers.Dense(3)(turned), [1, 0, 2]))
  model = tf.keras.Model(inputs, layers.Dense(3)(layers.Flatten()(outputs)))
  routes, _ = _settled(model, *data_for(model, rows=7))
  assert routes.whole
  assert all(str(r).startswith(('vectorised', 'no variables')) for r in routes.layers)


def test_a_subclassed_model_is_batched_with_weights_of_its_own_too():

  class Mine(tf.keras.Model):

    def __init__(self, own):
      super().__init__()
      self.dense, self.own = layers.Dense(3), own
      if own:
        self.w = self.add_weight(name='w', shape=(6,), initializer='ones')

    def call(self, x):
      return self.dense(x * self.w if self.own else x)

  x = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)
  for own in (False, True):
    model = Mine(own)
    model(tf.zeros((1, 6)))
    routes, vectorized = _settled(model, x, np.arange(6) % 3)
    assert not routes.whole and not vectorized


@st.composite
def _images(draw):
  """Convolutional models of any shapes."""
  size = draw(st.integers(4, 9)), draw(st.integers(4, 9))
  channels = draw(st.integers(1, 9))
  parts = []
  for _ in range(draw(st.integers(1, 2))):
    kind = draw(st.sampled_from(['conv', 'conv', 'depthwise', 'group']))
    kernel = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    stride = draw(st.integers(1, 3))
    settings_ = dict(padding=draw(st.sampled_from(['same', 'valid'])),
                     use_bias=draw(st.booleans()), activation='tanh')
    if kind == 'group':
      parts.append(layers.GroupNormalization(-1))
    elif kind == 'depthwise':
      parts.append(layers.DepthwiseConv2D(
          2, strides=stride, depth_multiplier=draw(st.integers(1, 2)),
          **{**settings_, 'padding': 'same'}))
    else:
      parts.append(layers.Conv2D(
          draw(st.integers(1, 5)), kernel if not len(parts) else 1,
          strides=stride, **settings_))
  return size + (channels,), parts


@pytest.mark.slow
@settings(max_examples=8, deadline=None,
          suppress_health_check=[HealthCheck.too_slow])
@given(_images(), st.floats(0.05, 5.0))
def test_composed_models_of_any_shapes(drawn, clip):
  shape, parts = drawn
  model = model_of(*parts, shape=shape)
  assert_equal_sums(model, *data_for(model, rows=4), clip=clip)


def test_an_example_does_not_depend_on_its_companions_bitwise():
  model = model_of(layers.Conv2D(8, 3, strides=2, activation='relu'),
                   layers.GroupNormalization(4), layers.Flatten(),
                   layers.Dense(16, 'relu'), shape=(12, 12, 3))
  x, y = data_for(model, rows=32)
  alone = np.zeros(32, np.float32)
  alone[5] = 1
  with_zeros = np.where(alone[:, None, None, None] > 0, x, 0)
  run = engine_of(model, 32)
  np.testing.assert_array_equal(run(x, y, alone), run(with_zeros, y, alone))


@functools.lru_cache(None)
def forty():
  """Forty examples of a model, and its engine."""
  model = model_of(layers.Conv2D(8, 3, activation='relu'),
                   layers.LayerNormalization(), layers.Flatten(),
                   layers.Dense(50, 'relu'), shape=(10, 10, 4))
  return (*data_for(model, rows=40), engine_of(model, 40))


@pytest.mark.parametrize('clip', [1e-18, 1e-3, 0.3])
def test_no_clipped_example_exceeds_the_bound(clip):
  x, y, run = forty()
  clipped = 0
  for i in range(40):
    one = np.zeros(40, np.float32)
    one[i] = 1e3
    total = run(x, y, one, clip).astype(np.float64)
    norm = np.sqrt(np.sum(total**2))
    assert norm < clip
    clipped += norm > clip * (1 - 2e-5)
  assert clipped > (10 if clip > 1e-6 else -1)


@pytest.mark.parametrize('kind, first, shape', [
    ('per_layer', layers.Dense, (6,)), ('automatic', layers.Dense, (6,)),
    pytest.param('per_layer', layers.LSTM, (4, 3), marks=pytest.mark.more)])
def test_per_layer_and_automatic_clipping_keep_the_sensitivity(kind, first, shape):
  model = model_of(first(5, 'tanh'), layers.LayerNormalization(), shape=shape)
  x, y = data_for(model)
  groups = np.repeat(layer_routes.routes(model).groups,
                     [w.size for w in model.get_weights()])
  assert len(set(groups)) == 3
  engine = engine_of(model, 6, kind)
  run = lambda *data: engine(*data, 0.3)
  for i in range(6):
    # The weight of 1000 makes every layer's gradient long enough to be clipped.
    total = run(x, y, np.float32(1e3) * np.eye(6, dtype=np.float32)[i])
    norms = [np.linalg.norm(total[groups == g].astype(float))
             for g in sorted(set(groups))]
    assert 0.3 * (1 - 1e-3) < np.linalg.norm(norms) < 0.3
    if kind == 'per_layer':
      np.testing.assert_allclose(norms, 0.3 / np.sqrt(3), rtol=1e-4)
  # Short gradients are lengthened by automatic clipping alone.
  short = run(x, y, np.float32(1e-2) * np.eye(6, dtype=np.float32)[0])
  assert (np.linalg.norm(short) > 0.1) == (kind == 'automatic')
  x[1] = np.nan
  broken = run(x, y, np.ones(6, np.float32))
  x[1] = 0
  weights = np.array([1, 0, 1, 1, 1, 1], np.float32)
  np.testing.assert_array_equal(broken, run(x, y, weights))


class _Sized(layers.Layer):
  """Divides by the size of the batch, and counts its traces."""

  calls = 0

  def call(self, inputs):
    self.calls += 1
    return inputs / tf.cast(tf.shape(inputs)[0], inputs.dtype)


@representatives('rows', [2, 6])
def test_a_size_of_the_batch_is_that_of_the_physical_batch(rows):
  """Each gradient is clipped; other examples of the batch change nothing."""
  model = model_of(layers.Dense(4, 'tanh'), _Sized(), shape=(3,))
  x, y = data_for(model)
  constant = tf.keras.Sequential([
      model.layers[1], layers.Lambda(lambda z: z / rows), model.layers[3]])
  constant.build((None, 3))
  engine = engine_of(model, rows)
  assert_equal(engine(x, y), loop_of(constant)(x, y))
  alone = [engine(x, y, weights, 0.01) for weights in np.eye(6, dtype=np.float32)]
  assert max(map(np.linalg.norm, alone)) <= 0.01
  np.testing.assert_allclose(sum(alone), engine(x, y, clip=0.01), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize('drops', [False, True])
def test_a_pass_without_draws_runs_as_it_was_traced_for_the_proof(drops):
  model = model_of(layers.Dense(4), _Sized(), layers.Dropout(0.5 * drops), shape=(3,))
  x, y = data_for(model)
  before = model.layers[2].calls
  sums_of(model, x, y)
  assert model.layers[2].calls - before == 1 + drops


class _SelfAttention(layers.Layer):
  """Self-attention, a layer without a rule."""

  def __init__(self):
    super().__init__()
    self._attention = layers.MultiHeadAttention(2, 4)

  def build(self, shape):
    self._attention(tf.zeros((1, *shape[1:])), tf.zeros((1, *shape[1:])))
    super().build(shape)

  def call(self, inputs):
    return self._attention(inputs, inputs)


@representatives('layer', [
    lambda: _SelfAttention(),
    lambda: layers.EinsumDense('abc,cd->abd', output_shape=(5, 4),
                               bias_axes='d')])
def test_matrix_products_of_single_examples(layer):
  """Vectorised products of one example with weights broadcast."""
  model = model_of(layer(), shape=(5, 4))
  x, y = data_for(model)
  np.testing.assert_allclose(
      sums_of(model, x, y), loop_of(model)(x, y), rtol=1e-4, atol=1e-6)


@pytest.mark.more
@pytest.mark.parametrize('mode', rounded_products.SIGNIFICANT_BITS)
def test_rounded_products_never_carry_an_example_over_the_bound(mode):
  """Covers gradients as outer products and dense gradients."""
  model = model_of(layers.Dense(8), layers.Reshape([4, 2]), layers.Conv1D(3, 2),
                   layers.LSTM(4), shape=(5,))
  x, y = data_for(model, 12)
  with rounded_products.rounding(mode):
    sums = engine_of(model, len(x))
    for alone in np.eye(len(x), dtype=np.float32):
      assert np.linalg.norm(sums(x, y, alone, clip=0.01)) <= 0.01


def test_sums_over_physical_batches_err_by_no_more_than_is_proved():
  """Sums are float64: in a float32 sum, half of these examples are rounded away."""
  half, step = 1024, 2.0**-13
  x = np.concatenate([np.ones(half), [2 * step], np.full(half, -step / 2)])[:, None]
  model = tf.keras.Sequential([
      layers.Input((1,)), layers.Dense(1, use_bias=False)])
  engine = engine_lib.Engine(
      model, example_losses.loss_per_example(lambda y, predicted: predicted[:, 0]), 1,
      layer_routes.routes(model))
  run = tf.function(lambda *data: engine.run(*data).sums, autograph=False)
  [found] = run(tf.constant(x, tf.float32), tf.zeros([len(x)]), tf.ones([len(x)]),
                tf.constant(1.01, tf.float64))
  assert found.dtype == tf.float64
  assert abs(found.numpy().item() - x.sum()) <= len(x)**2 * 2.0**-53
