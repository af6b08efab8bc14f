"""Tests of layers that were thawed inside of frozen ones: their routes and sums."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import backbone, one_by_one
from tests.representatives import representatives
from tfcactus.keras.compat import versions
from tfcactus.keras.gradients import layer_routes

layers = tf.keras.layers
_LOSS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
keras3 = pytest.mark.skipif(not versions.KERAS_3, reason='Keras 2 has no enable_lora')


class Pair(layers.Layer):
  """Two dense layers, and what a subclass puts between them."""

  def __init__(self, first=None, **kwargs):
    super().__init__(**kwargs)
    self.first, self.second = first or layers.Dense(4), layers.Dense(4)

  def build(self, shape):
    for each in (self.first, self.second):
      if not each.built:
        each.build((*shape[:-1], 4) if each is self.second else shape)
    self.built = True

  def between(self, x):
    return tf.tanh(x)

  def call(self, x):
    return self.second(self.between(self.first(x)))


class Tied(Pair):
  """Uses the first kernel once more, outside of its layer."""

  def between(self, x):
    return tf.matmul(x, self.first.kernel, transpose_b=True)[:, :4]


class ByLambda(Pair):
  """Calls a Lambda that closes over the first kernel."""

  def __init__(self, **kwargs):
    super().__init__(**kwargs)
    self.wrapped = layers.Lambda(lambda x: x * tf.reduce_sum(self.first.kernel, 0))

  def between(self, x):
    return self.wrapped(x)


class Mixing(Pair):
  """Centres over the batch: an example alone must have its own gradient."""

  def between(self, x):
    return x - tf.reduce_mean(x, 0, keepdims=True)


class Weighted(Pair):
  """Has a weight of its own."""

  def build(self, shape):
    self.own = self.add_weight(shape=(4,), initializer='ones', name='own')
    super().build(shape)

  def between(self, x):
    return x * self.own


class Nested(layers.Layer):
  """A Pair in a layer."""

  def __init__(self, **kwargs):
    super().__init__(**kwargs)
    self.pair = Pair()

  def build(self, shape):
    self.pair.build(shape)
    self.built = True

  def call(self, x):
    return self.pair(x)


def _around(layer, shape=(5,)):
  tf.keras.utils.set_random_seed(1)
  inputs = tf.keras.Input(shape)
  x = layer(inputs)
  x = layers.Flatten()(x) if len(x.shape) > 2 else x
  return tf.keras.Model(inputs, layers.Dense(3)(x))


def _pair(kind=Pair):
  layer = kind()
  model = _around(layer)
  layer.trainable = False
  layer.first.trainable = True
  return model


def _nested():
  layer = Nested()
  model = _around(layer)
  layer.trainable = False
  layer.pair.second.trainable = True
  return model


def _frozen_last():
  layer = Nested()
  model = _around(layer)
  layer.pair.trainable = False
  layer.pair.first.trainable = True
  layer.trainable = False  # Freezes what was thawed.
  return model


def _shared():
  tf.keras.utils.set_random_seed(1)
  dense, inputs = layers.Dense(4), tf.keras.Input((5,))
  inside = Pair(dense)
  x = layers.Add()([inside(inputs), dense(inputs)])
  model = tf.keras.Model(inputs, layers.Dense(3)(x))
  inside.trainable = False
  dense.trainable = True
  return model


def _own_weight():
  layer = Weighted()
  model = _around(layer)
  layer.trainable = False
  layer.first.trainable = True
  layer.own.trainable = True
  return model


def _wrapped(layer):
  model = _around(layer, (3, 5))
  layer.trainable = False
  inner = getattr(layer, 'forward_layer', None) or layer.layer
  inner.trainable = True
  return model


def _sequential():
  inner = tf.keras.Sequential([layers.Input((5,)), Pair(), layers.Dense(4)])
  model = _around(inner)
  inner.trainable = False
  inner.layers[0].first.trainable = True
  return model


def _one_factor():
  model = backbone.classifier(2)
  model.layers[1].blocks[0].query.lora_kernel_a.trainable = False
  return model


def _unfrozen_base():
  model = backbone.classifier(2)
  model.layers[1].blocks[0].query._kernel.trainable = True
  return model


def _float64(lora):
  tf.keras.backend.set_floatx('float64')
  try:
    return backbone.classifier(lora)
  finally:
    tf.keras.backend.set_floatx('float32')


_LORA = {
    'LoRA': functools.partial(backbone.classifier, 2),
    'LoRA of all kinds': functools.partial(
        backbone.classifier, 2, ('query', 'out', 'dense', 'table')),
    'LoRA, one factor': _one_factor,
    'LoRA, base trained': _unfrozen_base,
    'LoRA, float64': functools.partial(_float64, 2),
}
_CASES = {
    'nested': _nested, 'pair': _pair, 'tied': functools.partial(_pair, Tied),
    'whole layers': backbone.classifier, 'frozen last': _frozen_last,
    'shared': _shared, 'lambda': functools.partial(_pair, ByLambda),
    'mixing': functools.partial(_pair, Mixing),
    'own weight, frozen': functools.partial(_pair, Weighted),
    'sequential': _sequential,
    'both directions': lambda: _wrapped(layers.Bidirectional(layers.LSTM(2))),
    'over time': lambda: _wrapped(layers.TimeDistributed(layers.Dense(2))),
    'float64': functools.partial(_float64, 0),
}
_WHOLE = ('mixing',)
"""Cases in which a layer has to be vectorised."""


def _check(name, make):
  model = one_by_one.shake(make())
  if 'int' in str(model.inputs[0].dtype):
    x, y = backbone.texts()
  else:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, *model.input_shape[1:])).astype(np.float32)
    y = rng.integers(0, 3, 6)
  got = one_by_one.engine_sums(model, _LOSS, x, y)
  one_by_one.assert_same(got, one_by_one.loop_sums(model, _LOSS, x, y))
  if versions.KERAS_3:  # Keras 2 does not train layers inside of frozen ones.
    batched = not any(route.vectorized for route in got.routes.layers)
    assert batched == (name not in _WHOLE), got.routes.summary()


@representatives('name', list(_CASES), 2)
def test_sums_equal_a_loop(name):
  _check(name, _CASES[name])


@keras3
@representatives('name', [*_LORA, 'own weight, trained'], 2)
def test_sums_of_lora_and_single_weights_equal_a_loop(name):
  _check(name, {**_LORA, 'own weight, trained': _own_weight}[name])


@keras3
def test_routes_show_layers_inside_of_frozen_ones():
  model = _nested()
  found = layer_routes.routes(model)
  assert [(r.depth, str(r)) for r in found.layers][1:] == [
      (0, 'batched: by its layers'), (1, 'batched: by its layers'),
      (2, 'no variables'), (2, 'batched'), (0, 'batched')]
  assert len(model.trainable_variables) == 4
  model.layers[1].pair.second.trainable = False
  assert not found.holds_for(model)
