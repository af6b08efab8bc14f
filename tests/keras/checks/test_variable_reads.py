"""Tests of weights used outside of their layer: right gradients, or a refusal."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import one_by_one
from tests.keras.tiny import X, Y
from tests.representatives import representatives
from tfcactus.keras import PoissonBatches, privatize
from tfcactus.keras.gradients import physical_batch

layers = tf.keras.layers
_IDS = np.random.default_rng(1).integers(0, 7, (6, 4)).astype(np.int32)
_LABELS = np.random.default_rng(2).integers(0, 7, 6)
_TOKENS = np.random.default_rng(3).integers(0, 7, (6, 4))


def _crossentropy(y, p):
  return tf.keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)


class Head(layers.Layer):
  """Logits from a table of another layer, by a closure."""

  def __init__(self, table):
    super().__init__()
    self._table = table

  def call(self, inputs):
    return tf.matmul(inputs, tf.cast(self._table(), inputs.dtype), transpose_b=True)


def _language_model(head, policy='float32', width=3):
  tf.keras.utils.set_random_seed(1)
  tf.keras.mixed_precision.set_global_policy(policy)
  try:
    embedding = layers.Embedding(7, width)
    inputs = tf.keras.Input((4,), dtype='int32')
    x = layers.Dense(width, 'tanh')(embedding(inputs))
    outputs = layers.Activation('linear', dtype=(
        'float64' if policy == 'float64' else 'float32'))(head(embedding)(x))
    return one_by_one.shake(tf.keras.Model(inputs, outputs))
  finally:
    tf.keras.mixed_precision.set_global_policy('float32')


def _value(embedding):
  return tf.convert_to_tensor(embedding.embeddings)


def _by_closure(embedding):
  return Head(lambda: _value(embedding))


def _in_a_function(embedding):
  read = tf.function(lambda: 1.0 * _value(embedding))
  return Head(read)


def _in_a_loop(embedding):
  return Head(lambda: tf.while_loop(
      lambda i, _: i < 2, lambda i, t: (i + 1, t + _value(embedding)),
      (0, tf.zeros([7, 3])), maximum_iterations=2)[1])


def _in_a_branch(embedding):
  return Head(lambda: tf.cond(
      tf.constant(1.0) > 0, lambda: 2.0 * _value(embedding),
      lambda: _value(embedding)))


def _in_a_custom_gradient(embedding):

  @tf.custom_gradient
  def doubled(table):
    return tf.stop_gradient(2 * table), lambda up: 2 * up

  return Head(lambda: doubled(_value(embedding)))


class OtherTable(layers.Layer):
  """Logits from its own weight and the table of another layer."""

  def __init__(self, embedding):
    super().__init__()
    self._reach = lambda: _value(embedding)

  def build(self, shape):
    self.w = self.add_weight(name='w', shape=(shape[-1],), initializer='ones')

  def call(self, inputs):
    return tf.matmul(inputs * self.w, self._reach(), transpose_b=True)


@representatives('head', [_by_closure, OtherTable, *(
    pytest.param(head, marks=pytest.mark.slow)
    for head in (_in_a_function, _in_a_loop, _in_a_custom_gradient))])
def test_tables_used_outside_of_their_layer_have_right_gradients(head):
  model = _language_model(head)
  got = one_by_one.engine_sums(model, _crossentropy, _IDS, _TOKENS)
  want = one_by_one.loop_sums(
      model, lambda y, p: tf.reduce_mean(_crossentropy(y, p)), _IDS, _TOKENS)
  one_by_one.assert_same(got, want)
  # Rules of operations give the gradient of the first two.
  assert bool(got.routes.whole) == (head not in (_by_closure, OtherTable))
  if got.routes.whole:
    assert 'embeddings' in got.routes.whole and 'as well' in got.routes.whole


def test_tables_in_operations_that_cannot_be_vectorised_are_refused():
  with pytest.raises(ValueError, match='can be vectorised over examples'):
    one_by_one.engine_sums(
        _language_model(_in_a_branch), _crossentropy, _IDS, _TOKENS)


@pytest.mark.slow
def test_tables_used_outside_of_their_layer_are_exact_in_float64():
  model = _language_model(_by_closure, 'float64')
  got = one_by_one.engine_sums(model, _crossentropy, _IDS, _TOKENS)
  want = one_by_one.loop_sums(
      model, lambda y, p: tf.reduce_mean(_crossentropy(y, p)), _IDS, _TOKENS)
  one_by_one.assert_same(got, want, 1e-9)


def _classifier(*parts):
  tf.keras.utils.set_random_seed(1)
  return one_by_one.shake(tf.keras.Sequential([
      layers.Input((6,)), layers.Dense(4, 'tanh'), *parts, layers.Dense(3)]))


def _with_weights(kernel):
  """Returns a loss with a penalty on a kernel."""

  def loss(y, p):
    values = _crossentropy(y, p)
    size = tf.reduce_sum(tf.square(tf.convert_to_tensor(kernel())))
    return values + 0.1 * tf.cast(size, values.dtype)

  return loss


def test_weights_in_the_loss_have_right_gradients():
  model = _classifier()
  loss = _with_weights(lambda: model.layers[0].kernel)
  got = one_by_one.engine_sums(model, loss, X[:6], Y[:6])
  one_by_one.assert_same(got, one_by_one.loop_sums(model, loss, X[:6], Y[:6]))
  assert not got.routes.whole


def test_weights_behind_stop_gradient_in_the_loss_need_no_other_route():
  model = _classifier()
  loss = _with_weights(lambda: tf.stop_gradient(
      tf.convert_to_tensor(model.layers[0].kernel)))
  got = one_by_one.engine_sums(model, loss, X[:6], Y[:6])
  one_by_one.assert_same(got, one_by_one.loop_sums(model, loss, X[:6], Y[:6]))
  assert not got.routes.whole


def test_weights_that_are_not_trained_may_be_used_anywhere():
  model = _classifier()
  model.layers[0].trainable = False
  loss = _with_weights(lambda: model.layers[0].kernel)
  got = one_by_one.engine_sums(model, loss, X[:6], Y[:6])
  one_by_one.assert_same(got, one_by_one.loop_sums(model, loss, X[:6], Y[:6]))
  assert not got.routes.whole


def test_products_with_a_kernel_in_the_loss_have_right_gradients():
  model = _classifier()
  table = model.layers[0].kernel

  def loss(y, p):
    return _crossentropy(y, tf.matmul(p, tf.convert_to_tensor(table)[:3]))

  got = one_by_one.engine_sums(model, loss, X[:6], Y[:6])
  one_by_one.assert_same(got, one_by_one.loop_sums(model, loss, X[:6], Y[:6]))
  assert not got.routes.whole


def test_a_weight_of_two_layers_needs_no_other_route():
  first, second = layers.Dense(6), layers.Dense(6)
  first.build((None, 6))
  second.build((None, 6))
  inputs = tf.keras.Input((6,))
  x = second(layers.Activation('tanh')(first(inputs)))
  model = one_by_one.shake(tf.keras.Model(inputs, layers.Dense(3)(x)))
  second.__dict__['kernel'] = first.kernel
  if hasattr(second, '_kernel'):
    second.__dict__['_kernel'] = first._kernel
  got = one_by_one.engine_sums(model, _crossentropy, X[:6], Y[:6])
  one_by_one.assert_same(
      got, one_by_one.loop_sums(model, _crossentropy, X[:6], Y[:6]))
  assert not got.routes.whole


class Leaking(layers.Layer):
  """Uses the output of another layer, by a closure."""

  def __init__(self, kept):
    super().__init__()
    self._reach = lambda: kept[-1] if kept else tf.ones([1, 4])

  def call(self, inputs):
    return inputs + tf.reduce_mean(self._reach(), 0)


def test_a_batch_tensor_used_in_a_vectorised_layer_is_noticed():
  kept, leaky = [], layers.Dense(4)
  model = _classifier(leaky, Leaking(kept))
  inner = leaky.call

  def call(inputs, training=None):
    kept.append(inner(inputs))
    return kept[-1]

  leaky.call = call
  got = one_by_one.engine_sums(model, _crossentropy, X[:6], Y[:6])
  one_by_one.assert_same(
      got, one_by_one.loop_sums(model, _crossentropy, X[:6], Y[:6]))
  assert got.routes.whole


@pytest.mark.slow
@pytest.mark.parametrize('policy', ['mixed_bfloat16', 'mixed_float16'])
def test_casts_of_mixed_precision_need_no_other_route(policy):
  tf.keras.mixed_precision.set_global_policy(policy)
  try:
    model = _classifier(layers.LayerNormalization(), layers.Dense(4, 'relu'))
  finally:
    tf.keras.mixed_precision.set_global_policy('float32')
  plain = one_by_one.engine_sums(model, _crossentropy, X[:6], Y[:6])
  assert not plain.routes.whole
  loss = _with_weights(lambda: model.layers[0].kernel)
  assert not one_by_one.engine_sums(model, loss, X[:6], Y[:6]).routes.whole


@pytest.mark.more
def test_summary_and_physical_batch_follow_the_route_of_the_loss(
    make_plan, monkeypatch):
  monkeypatch.setattr(physical_batch, 'memory_for_steps', lambda: 2**29)
  model = _classifier(layers.Dense(1600), layers.Dense(1600))
  private = privatize(model, make_plan(sampling_prob=0.5))
  before = private.physical_batch_size
  read = tf.function(lambda: 1.0 * tf.convert_to_tensor(model.layers[0].kernel))
  for loss, whole in ((_with_weights(read), True), (_crossentropy, False)):
    private.compile('sgd', loss)
    private.fit(PoissonBatches(X, Y, 0.5), epochs=1, steps_per_epoch=1, verbose=0)
    assert ('is used outside of its layer' in private.privacy_summary()) == whole
    assert (private.physical_batch_size < before) == whole
