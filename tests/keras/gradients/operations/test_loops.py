"""Tests of gradients through weights that loops use: right rows, or another way."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import freivalds, one_by_one
from tests.keras.gradients.operations import test_planted_faults as planted
from tests.keras.gradients.operations.test_rules import crossentropy, data, made, Own
from tests.representatives import representatives
from tfcactus.keras.gradients import engine as engine_lib, layer_routes
from tfcactus.keras.gradients.operations import loops

_SERIES = (5, 4)
layers = tf.keras.layers


def _repeated(step: Any, steps: int = 3) -> Any:
  """Returns a function that applies `step` to data several times in a loop."""
  return lambda x, *weights: tf.while_loop(
      lambda i, y: i < steps, lambda i, y: (i + 1, step(y, *weights)),
      (0, x))[1]


def _functional(x, w):
  return tf.tanh(tf.tensordot(x, w, 1))


class _Cell(layers.Layer):
  """A gated cell with a layer inside, a stack of weights and a bias that is split."""

  state_size = output_size = 4

  def __init__(self):
    super().__init__()
    self.inner = layers.Dense(4)

  def build(self, shape):
    self.inner.build((None, shape[-1]))
    self.u = self.add_weight(name='u', shape=(2, 4, 4))
    self.b = self.add_weight(name='b', shape=(8,))
    self.built = True

  def call(self, inputs, states):
    h = states[0]
    u, b = tf.convert_to_tensor(self.u), tf.convert_to_tensor(self.b)
    gate = tf.sigmoid(self.inner(inputs) + h @ u[0] + b[:4])
    h = gate * h + (1 - gate) * tf.tanh(tf.einsum('bi,ij->bj', gate * h, u[1]) + b[4:])
    return h, [h]


def _by_batch_second(x, w):
  """Steps over data whose examples are on the second axis."""
  y = tf.transpose(x, [1, 0, 2])
  return tf.transpose(_repeated(lambda y, w: tf.tanh(y @ w))(y, w), [1, 0, 2])


def _images(x, w):
  return tf.nn.relu(tf.nn.conv1d(x, w, 1, 'SAME'))


def _decoded(x, table):
  ids = tf.cast(x[..., 0] * 2 + 3, tf.int32) % 6
  return x + tf.gather(table, ids)


_RIGHT = {
    'a map again and again': Own(_repeated(_functional), w=(4, 4)),
    'one step': Own(_repeated(_functional, 1), w=(4, 4)),
    'two loops of one weight': Own(
        lambda x, w: _repeated(_functional)(_repeated(_functional, 2)(x, w), w) @ w,
        w=(4, 4)),
    'two uses in a step': Own(
        _repeated(lambda y, w: tf.tanh(y @ w + tf.square(y) @ w)), w=(4, 4)),
    'scales and shifts': Own(
        _repeated(lambda y, w, b: tf.tanh(y * w + b) - b), w=(4,), b=(4,)),
    'a weight transposed inside': Own(
        _repeated(lambda y, w: tf.tanh(y @ tf.transpose(w) / 2)), w=(4, 4)),
    'a weight made outside': Own(
        lambda x, w: _repeated(_functional)(x, tf.nn.softmax(w)), w=(4, 4)),
    'examples on another axis': Own(_by_batch_second, w=(4, 4)),
    'convolutions': Own(_repeated(_images), w=(3, 4, 4)),
    'a table': Own(_repeated(_decoded), w=(6, 4)),
    'weights power': Own(_repeated(lambda y, w: tf.pow(tf.abs(y) + 1, tf.tanh(w))),
                         w=(4,)),
    'own cell': layers.RNN(_Cell(), return_sequences=True),
    'lists': Own(lambda x, w: tf.transpose(tf.map_fn(
        lambda step: tf.tanh(step @ w), tf.transpose(x, [1, 0, 2])), [1, 0, 2]),
                 w=(4, 4)),
}


@representatives('name', _RIGHT)
def test_rows_are_gradients_of_single_examples(name):
  model = made(_SERIES, _RIGHT[name])
  assert planted._failure(model) is None
  assert max(planted._errors(model).values()) < 2e-5
  x, y = data(_SERIES)
  got = one_by_one.engine_sums(model, crossentropy, x, y)
  assert not any(route.vectorized for route in got.routes.layers), got.routes.summary()
  one_by_one.assert_same(got, one_by_one.loop_sums(model, crossentropy, x, y))


def _by_data(x, w):
  return tf.while_loop(
      lambda y: tf.reduce_sum(y) > 1e9, lambda y: _functional(y, w), (x,))[0]


def _changed(x, w):
  return tf.while_loop(lambda i, y, w: i < 3, lambda i, y, w: (
      i + 1, _functional(y, w), w / 2), (0, x, w))[1]


def _returned(x, w):
  *_, y, w = tf.while_loop(lambda i, y, w: i < 3, lambda i, y, w: (
      i + 1, _functional(y, w), w), (0, x, w))
  return y @ w


def _nested(x, w):
  return _repeated(lambda y: _repeated(_functional)(y, w))(x)


def _called(x, w):
  function = tf.function(_functional)
  return _repeated(lambda y: function(tf.tanh(function(y, w)), w))(x)


def _own_gradient(x, w):

  @tf.custom_gradient
  def double(y, w):
    return y @ w, lambda up: (2 * up @ tf.transpose(w), 2 * tf.reduce_sum(
        y[..., None] * up[..., None, :], [0, 1]))

  return _repeated(double)(x, w)


def _by_step(x, w):
  return tf.while_loop(lambda i, y: i < 3, lambda i, y: (
      i + 1, tf.tanh(y @ w[i])), (0, x))[1]


def _reordered(x, w):
  return _repeated(lambda y, w: tf.tanh(tf.reverse(y, [0]) @ w))(x, w)


def _centred(x, w):
  return _repeated(lambda y, w: y @ w - tf.stop_gradient(
      tf.reduce_mean(y, 0, keepdims=True)))(x, w)


def _branch(x, w):
  return tf.cond(tf.reduce_sum(x) > 0, lambda: _repeated(_functional)(x, w), lambda: x)


def _looping_functions(x, w):
  function = tf.function(lambda y: _repeated(_functional, 2)(y, w))
  return function(function(x))


def _while_growing(x, w):
  """Doubles a counter, which depends on no data, until another that does stops it."""
  limit = tf.cast(tf.reduce_sum(tf.abs(x)), tf.int32)
  return tf.while_loop(lambda i, y: i < limit, lambda i, y: (
      2 * i, _functional(y, w)), (1, x))[1]


def _differentiated(x, w):
  y = _repeated(_functional)(x, w)
  return y + tf.gradients(y, x)[0]


_OTHERWISE = {
    'batches reordered': (_reordered, (4, 4)), 'batches centred': (_centred, (4, 4)),
    'in a branch': (_branch, (4, 4)), 'in functions': (_looping_functions, (4, 4)),
    'a counter stopped by data': (_while_growing, (4, 4)),
    'differentiated before': (_differentiated, (4, 4)),
    'steps by what is in the data': (_by_data, (4, 4)), 'changed': (_changed, (4, 4)),
    'returned': (_returned, (4, 4)), 'loops in loops': (_nested, (4, 4)),
    'functions called twice': (_called, (4, 4)),
    'own gradients': (_own_gradient, (4, 4)), 'weights by step': (_by_step, (3, 4, 4)),
}


@representatives('name', _OTHERWISE, 3)
def test_other_loops_have_no_rule(name):
  function, shape = _OTHERWISE[name]
  model = made(_SERIES, Own(function, w=shape))
  assert planted._failure(model) is not None


def _taped(function):

  def differentiated(x, w):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = function(x, w)
    return y + tape.gradient(y, x)

  return differentiated


def _in_python(x, w):
  for _ in range(3):
    x = _functional(x, w)
  return x


_REFUSED = {
    'loops in loops': (
        _nested, lambda x, w: _repeated(lambda y: _in_python(y, w))(x), 'inside'),
    'gradient penalty': (_taped(_repeated(_functional)), _taped(_in_python), 'no rule'),
    'a counter stopped by data': (_while_growing, None, 'not known before'),
}


@representatives('name', _REFUSED)
@pytest.mark.more
def test_loops_that_cannot_be_vectorised_either_are_refused_with_layer_and_remedy(name):
  function, remedied, reason = _REFUSED[name]
  own = Own(function, w=(4, 4))
  with pytest.raises(ValueError) as caught:
    one_by_one.engine_sums(made(_SERIES, own), crossentropy, *data(_SERIES))
  for words in (repr(own.name), reason, 'rounds' if remedied is None else 'range(...)'):
    assert words in str(caught.value)
  if remedied:
    model = made(_SERIES, Own(remedied, w=(4, 4)))
    assert planted._failure(model) is None


@tf.RegisterGradient('MinusHalfForLoops')
def _minus_half(op, upstream):
  del op
  return -0.5 * upstream


def test_a_weight_passed_on_with_a_gradient_of_its_own_has_no_rule():
  """Each step changes the gradient of the steps after it."""

  def step(i, y, w):
    following = _functional(y, w)
    with tf.compat.v1.get_default_graph().gradient_override_map(
        {'Identity': 'MinusHalfForLoops'}):
      return i + 1, following, tf.identity(w)

  model = made(_SERIES, Own(lambda x, w: tf.while_loop(
      lambda i, y, w: i < 3, step, (0, x, w))[1], w=(4, 4)))
  assert planted._failure(model) is not None


class _DroppingCell(_Cell):
  """A cell that drops other entries of its state in each step."""

  def call(self, inputs, states):
    return super().call(inputs, [tf.nn.dropout(states[0], 0.5)])


@pytest.mark.more
def test_draws_of_each_step_run_with_secret_seeds():
  model = made(_SERIES, layers.RNN(_DroppingCell(), return_sequences=True))
  x, y = data(_SERIES)
  got = one_by_one.engine_sums(
      model, crossentropy, np.repeat(x[:1], len(x), 0), 0 * y)
  assert not any(route.vectorized for route in got.routes.layers), got.routes.summary()
  assert len(np.unique(got.losses)) == len(x)


def test_a_loop_that_runs_python_is_refused():
  model = made(_SERIES, Own(_repeated(lambda y, w: _functional(y, w) * tf.reshape(
      tf.numpy_function(lambda: np.float32(1), [], tf.float32), [])), w=(4, 4)))
  with pytest.raises(ValueError, match='runs Python'):
    one_by_one.engine_sums(model, crossentropy, *data(_SERIES))


def test_a_loop_that_assigns_has_no_rule():
  """A replay of its reads outside would miss the assignment."""
  state = tf.Variable(tf.zeros([4]), trainable=False)

  def step(y, w):
    state.assign_add(tf.ones([4]))
    return _functional(y, w) + state

  model = made(_SERIES, Own(_repeated(step), w=(4, 4)))
  with pytest.raises(ValueError, match='Expected'):
    one_by_one.engine_sums(model, crossentropy, *data(_SERIES))


def test_steps_and_examples_grouped_the_other_way_are_refused(monkeypatch):
  together = loops._all_steps

  def wrong(found, inside, layout, steps):
    right = together(found, inside, layout, steps)
    number = right.shape[0] // steps
    return tf.reshape(tf.einsum('bt...->tb...', tf.reshape(
        right, [number, steps, *right.shape[1:]])), right.shape)

  monkeypatch.setattr(loops, '_all_steps', wrong)
  model = made(_SERIES, _RIGHT['a map again and again'])
  found = planted._errors(model)
  assert found['sum'] < 1e-5 and found['rows'] > 0.01
  assert planted._failure(model) is not None


def test_gradients_in_the_order_of_the_backward_loop_are_found(monkeypatch):
  model = made(_SERIES, _RIGHT['a map again and again'])
  monkeypatch.setattr(loops.graphs, 'is_backward', lambda loop: False)
  assert planted._errors(model)['rows'] > 0.01


@pytest.mark.more
def test_gradients_of_another_use_are_found(monkeypatch):
  model = made(_SERIES, Own(_repeated(
      lambda y, w: tf.tanh(tf.tanh(y @ w) @ w / 2)), w=(4, 4)))
  assert max(planted._errors(model).values()) < 2e-5
  noted, first = loops._noted, []

  def wrong(identity):
    first.append(identity)
    return noted(first[0])

  monkeypatch.setattr(loops, '_noted', wrong)
  assert planted._errors(model)['rows'] > 0.01


def test_sums_with_a_gradient_of_their_own_share_no_tap(monkeypatch):
  """The tap of a sum notes its gradient, which is not that of its parts."""

  @tf.RegisterGradient('TwiceForLoops')
  def twice(op, upstream):
    return 2 * upstream, upstream

  def step(y, w):
    product = tf.reshape(tf.reshape(y, [-1, 4]) @ w, tf.shape(y))
    with tf.compat.v1.get_default_graph().gradient_override_map(
        {'AddV2': 'TwiceForLoops'}):
      return tf.tanh(product + y)

  model = made(_SERIES, Own(_repeated(step), w=(4, 4)))
  if planted._failure(model) is None:
    assert max(planted._errors(model).values()) < 2e-5


def test_a_use_behind_a_gate_at_zero_is_found_by_the_cut(monkeypatch):
  model = made(_SERIES, Own(_repeated(
      lambda y, w, gate: tf.tanh(y @ w) + gate * tf.tensordot(y, w, 1)),
                            w=(4, 4), gate=()))
  model.layers[2].w_gate.assign(0.0)
  assert planted._failure(model) is None
  uses_inside = loops._uses_inside
  monkeypatch.setattr(loops, '_uses_inside', lambda *args: [
      op for op in uses_inside(*args) if op.type != 'MatMul'])
  assert max(planted._errors(model).values()) < 1e-5  # Right now, wrong a step later.
  assert 'is used outside of its layer' in planted._failure(model)[0]


def test_other_examples_do_not_change_a_row():
  model = made(_SERIES, _RIGHT['own cell'])
  x, y = data(_SERIES)
  loss = engine_lib.example_losses.loss_per_example(crossentropy)
  routes = layer_routes.routes(model)

  @tf.function(autograph=False)
  def rows(x):
    found = freivalds.batched_pass.batched(
        model, routes, loss, (x, tf.constant(y), tf.ones([len(y)])))
    return [form.dense() for form in found.gradients]

  before = rows(tf.constant(x))
  after = rows(tf.constant(np.concatenate([x[:2], 3 - x[2:3], x[3:]])))
  for one, other in zip(before, after):
    np.testing.assert_array_equal(np.delete(one, 2, 0), np.delete(other, 2, 0))
  assert any(np.any(one[2] != other[2]) for one, other in zip(before, after))
