"""Tests that layers without a rule are batched by operations, with right gradients."""

import numpy as np
import tensorflow as tf

from tests.keras import freivalds, one_by_one
from tests.representatives import representatives
from tfcactus.keras.gradients import engine as engine_lib, forms
from tfcactus.keras.gradients.operations import pull_back, rules

layers = tf.keras.layers
_ROWS, _SERIES, _IMAGE = 6, (5, 4), (6, 7, 4)


class Own(layers.Layer):
  """Applies a function to its inputs and to weights of these shapes."""

  def __init__(self, function, **shapes):
    super().__init__()
    self._function, self._shapes = function, shapes

  def build(self, shape):
    del shape
    for name, each in self._shapes.items():
      setattr(self, f'w_{name}', self.add_weight(
          name=name, shape=each, initializer='glorot_uniform'))

  def call(self, inputs):
    return self._function(inputs, *(
        tf.convert_to_tensor(getattr(self, f'w_{name}')) for name in self._shapes))


def _rounded(x, w):
  scale = tf.reduce_max(tf.abs(w), 0)
  return x @ (w + tf.stop_gradient(tf.round(3 * w / scale) * scale / 3 - w)) / scale


def _normalized(x, v, g):
  return x @ (g * v / tf.norm(v, axis=0))


def _token(x, token):
  rows = tf.tile(token, [tf.shape(x)[0], 1, 1])
  return tf.concat([tf.broadcast_to(token, tf.shape(rows)), x, rows], 1)


def _entrywise(x, a, b, c):
  x = tf.maximum(x, a) / (1 + tf.square(b)) - c
  x = tf.where(x > b, x * c, tf.math.squared_difference(a, x))
  return tf.math.atan2(x, 2 + tf.abs(a)) + tf.add_n([x, x]) + tf.pow(tf.abs(b), 2.0 + x)


def _products(x, w, u):
  x = tf.einsum('btd,de,ef->bft', x, w, u)
  return tf.linalg.matmul(w, x, transpose_a=True) + tf.tensordot(
      tf.transpose(x, [0, 2, 1]), u, [[2], [1]])[:, :4, :]


def _convolutions(x, a, b, c, d):
  x = tf.nn.conv2d(x, a, 1, 'SAME', dilations=2)
  x = tf.nn.depthwise_conv2d(x, b, [1, 2, 2, 1], 'SAME')
  x = tf.nn.conv2d_transpose(x, c, [tf.shape(x)[0], 6, 9, 2], 2, 'VALID')
  return tf.nn.conv2d(x, d, [1, 6, 9, 1], 'VALID')


def _lookups(x, table, cube):
  ids = tf.cast(tf.abs(3 * x), tf.int32) % 5
  places = tf.gather(table, tf.range(5) // 2)
  return tf.gather(table, ids) + places[None, :, None] + tf.reshape(
      tf.gather(cube, ids), [-1, 5, 4, 3])


def _low_rank(x, w, a, b):
  """Uses products of weights in a product, a table, and along several axes."""
  whole = w + 0.5 * tf.matmul(a, b, transpose_b=True) - tf.transpose(
      b @ tf.transpose(a))
  ids = tf.cast(tf.abs(3 * x), tf.int32) % 4
  y = tf.tensordot(x, whole, 1) + tf.reduce_sum(tf.gather(whole, ids), 2)
  return y + tf.einsum('btc,cde->btde', x, tf.reshape(whole, [4, 3, 2]))[..., 1, :1]


def _reshaping(x, w):
  return tf.function(lambda x, w: tf.reshape(x * w, [-1, 4, 5]), autograph=False)(
      x, tf.identity(w))


def _over_examples_last(x, w):
  return tf.transpose(tf.transpose(x) * w[:, None, None])


def _parts(x, w, k, b):
  """Uses parts of weights: some twice, some that overlap, some in no order."""
  left, middle, _ = tf.split(w, [2, 3, 1], 1)
  rows, kept = tf.unstack(b), w[:, 1:4]
  y = tf.concat([x @ left, tf.tanh(x @ middle) @ kept[1:]], -1) + rows[1]
  images = tf.nn.conv1d(x, k[..., :2], 1, 'SAME') * tf.nn.conv1d(
      x, k[..., 3:], 1, 'SAME')
  return y + tf.reduce_sum(images, -1, keepdims=True) + rows[1] * (
      x @ w[:, ::-1][:, ::3])[..., :1]


_CASES = {
    'rounded weights': ((6,), lambda: Own(_rounded, w=(6, 4))),
    'weights of unit length': ((6,), lambda: Own(_normalized, v=(6, 4), g=(4,))),
    'a token': (_SERIES, lambda: Own(_token, token=(1, 1, 4))),
    'entry by entry': (_SERIES, lambda: Own(_entrywise, a=(4,), b=(5, 1), c=())),
    'products': ((4, 4), lambda: Own(_products, w=(4, 4), u=(4, 4))),
    'convolutions': (_IMAGE, lambda: Own(
        _convolutions, a=(2, 3, 4, 3), b=(3, 2, 3, 2), c=(1, 3, 2, 6),
        d=(6, 9, 2, 3))),
    'volumes': ((4, 5, 4, 2), lambda: Own(
        lambda x, k: tf.nn.conv3d(x, k, [1, 1, 2, 1, 1], 'SAME'), k=(2, 2, 3, 2, 3))),
    'a function of one operation': ((6,), lambda: Own(
        tf.function(lambda x, w: tf.reshape(x @ w, [-1, 2, 2])), w=(6, 4))),
    'sums of products': (_SERIES, lambda: Own(_low_rank, w=(4, 6), a=(4, 2), b=(6, 2))),
    'parts': (_SERIES, lambda: Own(_parts, w=(4, 6), k=(2, 4, 5), b=(3, 5))),
    'lookups': (_SERIES, lambda: Own(_lookups, table=(6, 3), cube=(6, 1, 3))),
    'PReLU': (_IMAGE, lambda: layers.PReLU(shared_axes=[1, 2])),
    'a function that reshapes': (_SERIES, lambda: Own(_reshaping, w=(4,))),
    'examples on the last axis': (_SERIES, lambda: Own(_over_examples_last, w=(4,)))}


def made(shape, *parts):
  tf.keras.utils.set_random_seed(1)
  inputs = tf.keras.Input(shape)
  x = layers.Dense(shape[-1], 'tanh')(inputs)
  for part in parts:
    x = part(x)
  return one_by_one.shake(tf.keras.Model(
      inputs, layers.Dense(3)(layers.Flatten()(x))))


def data(shape):
  rng = np.random.default_rng(2)
  return (rng.normal(size=(_ROWS, *shape)).astype(np.float32),
          rng.integers(0, 3, _ROWS))


def crossentropy(y, p):
  return tf.keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)


def change_products(monkeypatch, change):
  """Changes the rows of gradients by the rule of matrix products: plants a fault."""
  product = rules._RULES['MatMul']

  def wrong(use):
    rule = product(use)
    return lambda operands, upstream: forms.Dense(change(pull_back.written(
        rule(operands, upstream)).dense()), use.made)

  monkeypatch.setitem(rules._RULES, 'MatMul', wrong)


def _batched(name):
  shape, make = _CASES[name]
  model = made(shape, make())
  x, y = data(shape)
  found = freivalds.errors(model, crossentropy, x, y)
  assert max(found.values()) < 1e-5, found
  return model, x, y


@representatives('name', _CASES, 2)
def test_rows_are_gradients_of_single_losses(name):
  _batched(name)


@representatives('name', _CASES)
def test_batched_sums_equal_a_loop(name):
  model, x, y = _batched(name)
  got = one_by_one.engine_sums(model, crossentropy, x, y)
  one_by_one.assert_same(got, one_by_one.loop_sums(model, crossentropy, x, y))
  assert not any(route.vectorized for route in got.routes.layers)


@tf.custom_gradient
def _sine(x, w):
  return tf.sin(x * w), lambda up: (up * w, tf.reduce_sum(up * x, 0))


def _complex(x, w, u):
  x = tf.complex(x, tf.tanh(x)) @ tf.complex(w, tf.transpose(w))
  x *= tf.cast(u, 'complex64')
  return tf.math.real(x) + 2 * tf.math.imag(x)**2


_LEFT = {
    'complex numbers': lambda: Own(_complex, w=(6, 6), u=(6,)),
    'a branch': lambda: Own(lambda x, w: tf.cond(
        tf.constant(1.0) > 0, lambda: x @ w, lambda: x), w=(6, 6)),
    'a function': lambda: Own(tf.function(lambda x, w: x @ w + w[0]), w=(6, 4)),
    'a gradient of its own': lambda: Own(_sine, w=(6,)),
    'no rule': lambda: Own(
        lambda x, w: x * tf.gather(w, tf.argmax(x, 1)[:, None], axis=1)[0], w=(1, 6)),
    'the place in the batch': lambda: Own(
        lambda x, w: x + w[:tf.shape(x)[0]], w=(_ROWS, 6))}


@representatives('name', _LEFT)
def test_layers_whose_operations_have_no_rule_are_vectorised(name):
  model, (x, y) = made((6,), _LEFT[name]()), data((6,))
  got = one_by_one.engine_sums(model, crossentropy, x, y)
  one_by_one.assert_same(got, one_by_one.loop_sums(model, crossentropy, x, y))
  vectorized, = (route for route in got.routes.layers if route.vectorized)
  assert 'in ' in vectorized.reason and not got.routes.whole


def test_custom_gradients_of_weights_alone_are_kept():

  @tf.custom_gradient
  def halved(w):
    return tf.round(w), lambda up: 0.5 * up

  model = made((6,), Own(lambda x, w: x @ halved(5 * w), w=(6, 4)))
  x, y = data((6,))
  assert max(freivalds.errors(model, crossentropy, x, y).values()) < 1e-5


@representatives('policy', ['mixed_bfloat16', 'float64', 'mixed_float16'])
def test_other_precisions(policy):
  tf.keras.mixed_precision.set_global_policy(policy)
  try:
    model = made((6,), Own(_normalized, v=(6, 4), g=(4,)), layers.PReLU())
  finally:
    tf.keras.mixed_precision.set_global_policy('float32')
  x, y = data((6,))
  found = freivalds.errors(model, crossentropy, x, y)
  assert max(found.values()) < (1e-8 if policy == 'float64' else 2e-2), found


def test_eager_steps_are_traced():
  model, (x, y) = made((6,), Own(_rounded, w=(6, 4))), data((6,))
  loss = engine_lib.example_losses.loss_per_example(crossentropy)
  engine = engine_lib.Engine(
      model, loss, _ROWS, engine_lib.layer_routes.routes(model))
  sums = engine.run(tf.constant(x), tf.constant(y), tf.ones([_ROWS]),
                    tf.constant(one_by_one.CLIP)).sums
  assert not any(route.vectorized for route in engine.routes.layers)
  want = one_by_one.loop_sums(model, crossentropy, x, y).sums
  np.testing.assert_allclose(
      np.concatenate([np.ravel(each) for each in sums]), want, 1e-4, 1e-5)
