"""Tests that layers which keep data in variables are refused."""

import numpy as np
import pytest
import tensorflow as tf

from tests.representatives import representatives
from tfcactus.keras import (
  DPKerasSGDOptimizer,
  EpsilonCallback,
  PoissonBatches,
  privatize,
)
from tfcactus.keras.checks.refused_models import check_model
from tfcactus.keras.checks.state_writes import check_no_writes
from tfcactus.keras.compat import models, versions

layers = tf.keras.layers


class _Hoarder(layers.Layer):
  """Keeps a row of the data in a weight, in several ways."""

  def __init__(self, how):
    super().__init__()
    self._how = how

  def build(self, input_shape):
    self.kept = self.add_weight(name='kept', shape=(6,), trainable=False)

  def call(self, inputs, training=None):
    if training:
      getattr(self, self._how)(inputs)
    return inputs

  def assign(self, inputs):
    self.kept.assign(inputs[0])

  def assign_if(self, inputs):
    tf.cond(tf.reduce_sum(inputs) > 0, lambda: self.kept.assign(inputs[0]),
            lambda: self.kept.assign_add(inputs[0]))

  def scatter(self, inputs):
    models.tf_variable(self.kept).scatter_nd_update([[0]], inputs[0, :1])

  def in_function(self, inputs):
    tf.function(self.assign)(inputs)

  def python(self, inputs):
    tf.py_function(lambda x: self.kept.assign(x[0]), [inputs], [])


class _BackwardHoarder(_Hoarder):

  def call(self, inputs, training=None):
    @tf.custom_gradient
    def identity(x):

      def gradient(upstream):
        self.kept.assign(upstream[0])
        return upstream

      return tf.identity(x), gradient

    return identity(inputs)


def _model(layer):
  # The first layer lets a gradient flow through the second.
  return tf.keras.Sequential([layers.Input((6,)), layers.Dense(6), layer,
                              layers.Dense(3)])


@pytest.mark.parametrize('how', [
    'assign', 'assign_if', 'scatter', 'in_function', 'python', 'backward'])
def test_layers_that_write_are_refused(make_plan, how):
  layer = _BackwardHoarder('') if how == 'backward' else _Hoarder(how)
  with pytest.raises(ValueError, match=(
      'runs Python' if how == 'python' else 'write no variables')):
    privatize(_model(layer), make_plan())


class _Complex(layers.Layer):
  """Makes complex numbers; their custom gradient keeps data if `keeps`."""

  def __init__(self, keeps):
    super().__init__(dtype='float32')
    self._keeps = keeps

  def build(self, input_shape):
    self.kept = self.add_weight(name='kept', shape=(3,), trainable=False)

  def compute_output_spec(self, inputs, **_):
    return tf.keras.KerasTensor(inputs.shape, 'complex64')

  def call(self, inputs):
    @tf.custom_gradient
    def identity(x):

      def gradient(upstream):
        if self._keeps:
          self.kept.assign(tf.math.real(upstream)[0])
        return upstream

      return tf.identity(x), gradient

    return identity(tf.complex(inputs, inputs))


@pytest.mark.parametrize('keeps', [True, False])
def test_custom_gradients_of_complex_outputs_are_traced(make_plan, keeps):
  model = tf.keras.Sequential(
      [layers.Input((6,)), layers.Dense(3), _Complex(keeps)])
  assert model.outputs[0].dtype == 'complex64'
  if keeps:
    with pytest.raises(ValueError, match='write no variables'):
      check_no_writes(model)
    with pytest.raises(ValueError, match='write no variables'):
      privatize(model, make_plan())
  else:
    check_no_writes(model)
    privatize(model, make_plan())


class _Late(_Hoarder):
  """Writes only after `writes` was set."""

  writes = False

  def call(self, inputs, training=None):
    return super().call(inputs, training) if self.writes else inputs


class _LateWithWeights(_Late):

  def build(self, input_shape):
    super().build(input_shape)
    self.scale = self.add_weight(name='scale', shape=(6,), initializer='ones')

  def call(self, inputs, training=None):
    return super().call(inputs, training) * self.scale


@representatives('kind, how, engine', [
    pytest.param(kind, how, engine, marks=(
        [] if how == 'assign' else [pytest.mark.slow]))
    for how, engine in (('assign', 'auto'), ('assign', 'vectorized'),
                        ('assign_if', 'auto'), ('in_function', 'auto'),
                        ('python', 'auto'))
    for kind in (_LateWithWeights, _Late)])
def test_layers_that_begin_to_write_are_refused_when_the_step_is_traced(
    make_plan, kind, how, engine):
  layer = kind(how)
  private = privatize(_model(layer), make_plan(), engine=engine)
  private.compile('sgd', tf.keras.losses.SparseCategoricalCrossentropy(True))
  layer.writes = True
  before = [np.array(weight) for weight in private.get_weights()]
  with pytest.raises(ValueError, match='write no variables'):
    private.fit(PoissonBatches(np.ones((40, 6), np.float32),
                               np.zeros(40, np.int64), 0.25), verbose=0)
  for weight, after in zip(before, private.get_weights()):
    np.testing.assert_array_equal(weight, after)


_OTHER_KINDS = [] if versions.KERAS_3 else [
    layers.experimental.SyncBatchNormalization(),
    tf.compat.v1.keras.layers.BatchNormalization(),
    tf.compat.v1.keras.layers.BatchNormalization(trainable=False)]


@pytest.mark.parametrize('layer', [
    layers.BatchNormalization(),
    layers.BatchNormalization(synchronized=True),
    *_OTHER_KINDS])
def test_every_batch_normalization_is_refused(make_plan, layer):
  with pytest.raises(ValueError, match='GroupNormalization'):
    privatize(_model(layer), make_plan())


def test_a_drop_in_optimizer_has_no_epsilon_with_layers_that_write(make_plan):
  x, y = np.ones((40, 6), np.float32), np.zeros(40, np.int64)
  model = _model(_Hoarder('assign'))
  model.compile(
      DPKerasSGDOptimizer.from_plan(make_plan()),
      tf.keras.losses.SparseCategoricalCrossentropy(True, reduction='none'))
  batches = PoissonBatches(x, y, 0.25)
  with pytest.warns(UserWarning, match='write no variables'):
    history = model.fit(batches, verbose=0, callbacks=[
        EpsilonCallback(batches=batches)]).history
  assert 'epsilon' not in history


@pytest.mark.skipif(versions.KERAS_3, reason='Keras 2 has two kinds of generators')
@pytest.mark.parametrize('generator', [False, True])
def test_layers_with_either_generator_of_keras_2_are_taken(make_plan, generator):
  experimental = tf.keras.backend.experimental
  before = experimental.is_tf_random_generator_enabled()
  (experimental.enable_tf_random_generator if generator else
   experimental.disable_tf_random_generator)()
  try:
    for layer in (layers.Dropout(0.5), layers.GaussianNoise(0.1),
                  layers.Dropout(0.5, seed=3)):
      privatize(_model(layer), make_plan())
  finally:
    (experimental.enable_tf_random_generator if before else
     experimental.disable_tf_random_generator)()


def test_random_layers_are_taken(make_plan):
  for layer in (layers.Dropout(0.5), layers.GaussianNoise(0.1),
                layers.Dropout(0.5, seed=3)):
    privatize(_model(layer), make_plan())


def test_models_of_many_kinds_are_taken():
  inputs = [tf.keras.Input((5,)), tf.keras.Input((5, 4))]
  ids = layers.Embedding(9, 4)(inputs[0])
  both = layers.MultiHeadAttention(2, 3)(ids, inputs[1])
  outputs = layers.LSTM(3)(both), layers.GRU(3, unroll=True)(both)
  check_model(tf.keras.Model(inputs, outputs))
  check_model(tf.keras.Model({'a': inputs[0], 'b': inputs[1]}, outputs[0]))


def test_a_model_needs_known_inputs():
  class Late(tf.keras.Model):

    def __init__(self):
      super().__init__()
      self.dense = layers.Dense(3)

    def call(self, inputs):
      return self.dense(inputs)

  model = Late()
  model.build((None, 6))
  model._saved_model_inputs_spec = model._build_shapes_dict = None
  with pytest.raises(ValueError, match='known inputs'):
    check_model(model)
  model = Late()
  model(tf.ones([2, 6]))
  check_model(model)


class _LaterHoarder(_Hoarder):
  """Mixes examples, so that it is vectorised; keeps data once it is told to."""

  later = ''

  def build(self, input_shape):
    super().build(input_shape)
    self.scale = self.add_weight(name='scale', shape=(6,))

  def call(self, inputs, training=None):
    if self.later == 'forward':
      self.kept.assign(inputs[0])
    if self.later == 'backward':
      inputs = _BackwardHoarder.call(self, inputs)
    return self.scale * (inputs - tf.reduce_mean(inputs, 0))


@pytest.mark.parametrize('later', ['forward', 'backward'])
def test_what_a_vectorised_layer_writes_only_after_privatize_is_refused(
    make_plan, later):
  layer = _LaterHoarder('assign')
  with pytest.warns(UserWarning, match='statistic over the batch'):
    private = privatize(_model(layer), make_plan())
  private.compile('sgd', 'mse')
  layer.later = later
  x = np.ones((40, 6), np.float32)
  with pytest.raises(ValueError, match='write no variables'):
    private.fit(x, x[:, :3], batch_size=4, verbose=0)
  assert private.released_steps == 0
