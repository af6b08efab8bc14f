"""Tests of the warnings of losses that fit neither activation nor noisy accuracy."""

import warnings

import pytest
import tensorflow as tf

from tfcactus import NoisyAccuracy
from tfcactus.keras.checks import model_warnings

layers, losses = tf.keras.layers, tf.keras.losses


def _said(activation, loss, nested=False, built=True):
  """Returns the warnings about a model of two outputs, or of one."""
  last = layers.Dense(3, activation, name='last')
  model = tf.keras.Sequential([*([layers.Input((6,))] if built else []), last])
  if nested:
    inputs = tf.keras.Input((6,))
    model = tf.keras.Model(inputs, [layers.Dense(1)(inputs), model(inputs)])
    loss = ['mse', loss]
  return _warnings_of(model, loss)


def _warnings_of(model, loss='categorical_crossentropy', accuracy=None):
  """Returns the warnings about a model with one loss, or a list of losses."""
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    model_warnings.warn_of_losses(model, loss, accuracy)
  return [str(each.message) for each in caught]


@pytest.mark.parametrize('loss', [
    'binary_crossentropy', 'sparse_categorical_crossentropy',
    losses.categorical_crossentropy, losses.CategoricalCrossentropy(),
    losses.BinaryCrossentropy(reduction='none')])
@pytest.mark.parametrize('options', [{}, {'nested': True}, {'built': False}])
def test_probabilities_of_a_linear_layer_are_told(loss, options):
  text, = _said(None, loss, **options)
  assert "from layer 'last'" in text and 'whose outputs are logits' in text


class _Subclassed(tf.keras.Model):
  """A model of unknown layers, whose attribute is not the activation of its output."""

  activation = staticmethod(tf.keras.activations.linear)

  def call(self, inputs):
    return tf.nn.softmax(inputs)


@pytest.mark.parametrize('choose, told', [
    (lambda outputs: outputs, ['linear']), (lambda outputs: outputs[0], ['linear']),
    (lambda outputs: outputs[1], []), (lambda outputs: outputs[::-1], ['linear'])])
def test_each_output_of_a_nested_model_is_that_of_its_own_layer(choose, told):
  inputs = tf.keras.Input((6,))
  first, second = (layers.Dense(3, activation, name=activation)
                   for activation in ('linear', 'softmax'))
  inner = tf.keras.Model(inputs, [first(inputs), second(inputs)])
  # A second level of nesting, and a layer of several outputs.
  inner = tf.keras.Model(inputs, inner(inputs))
  found = _warnings_of(tf.keras.Model(inputs, choose(inner(inputs))))
  assert [f'from layer {name!r}' in text for name, text in zip(told, found)] == (
      [True] * len(told)) and len(found) == len(told)


def test_a_nested_subclassed_model_is_not_told():
  inputs = tf.keras.Input((6,))
  assert _warnings_of(tf.keras.Model(inputs, _Subclassed()(inputs))) == []


@pytest.mark.parametrize('activation', ['softmax', 'sigmoid'])
def test_logits_of_a_normalised_layer_are_told(activation):
  text, = _said(activation, losses.CategoricalCrossentropy(from_logits=True))
  assert f'got probabilities ({activation})' in text


@pytest.mark.parametrize('activation, loss', [
    ('softmax', 'sparse_categorical_crossentropy'), ('sigmoid', 'binary_crossentropy'),
    (None, losses.BinaryCrossentropy(from_logits=True)), (None, 'mse'),
    (None, lambda y, p: tf.reduce_mean(p, -1)), (None, None),
    ('tanh', 'binary_crossentropy')])
def test_what_fits_or_is_not_known_is_not_told(activation, loss):
  assert _said(activation, loss) == []


@pytest.mark.parametrize('loss', [
    'mse', losses.Huber(), losses.MeanSquaredError(), ['mae', None]])
def test_the_accuracy_of_a_regression_is_told(loss):
  inputs = tf.keras.Input((6,))
  for activation, more in (None, 1), ('sigmoid', 0):
    model = tf.keras.Model(inputs, layers.Dense(1, activation)(inputs))
    found = _warnings_of(model, loss, accuracy=NoisyAccuracy())
    assert len(found) == more and all('of a regression' in text for text in found)
    assert not _warnings_of(model, loss)
  assert not _warnings_of(model, 'binary_crossentropy', accuracy=NoisyAccuracy())
  assert not _warnings_of(model, ['mse', 'hinge'], accuracy=NoisyAccuracy())
