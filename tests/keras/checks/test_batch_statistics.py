"""Tests of the warning of statistics over a batch."""

import warnings

import pytest
import tensorflow as tf

from tfcactus.keras.checks import model_warnings, state_writes

layers = tf.keras.layers


class _Centred(layers.Layer):
  """Subtracts a mean over an axis, and scales."""

  def __init__(self, axis, **kwargs):
    super().__init__(**kwargs)
    self.axis = axis

  def build(self, shape):
    self.scale = self.add_weight(shape=(shape[-1],), name='scale')

  def call(self, inputs):
    return self.scale * (inputs - tf.reduce_mean(inputs, self.axis, keepdims=True))


def _said(*parts, shape=(6,), dtype='float32'):
  """Returns the warnings of statistics about a Sequential model, and no others."""
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    model = tf.keras.Sequential([
        layers.Input(shape, dtype=dtype), *parts, layers.Dense(3)])
    model_warnings.warn_of_batch_statistics(
        model, state_writes.check_no_writes(model, gradients=False))
  return [text for text in (str(each.message) for each in caught)
          if 'statistic over the batch' in text]


def test_a_mean_over_the_batch_is_told_with_its_layer():
  text, = _said(_Centred(0, name='centred'))
  assert text.startswith("Layer 'centred' computes a statistic over the batch")
  assert 'z - mean(z, axis=0) is zero' in text


@pytest.mark.parametrize('make', [
    lambda: _Centred(-1), lambda: layers.LayerNormalization(),
    lambda: layers.Dropout(0.5), lambda: layers.GaussianNoise(1.0)])
def test_layers_of_one_example_are_not_told(make):
  assert _said(make()) == []


def test_bins_for_the_largest_label_are_not_told():
  encoding = layers.CategoryEncoding(5, output_mode='multi_hot')
  assert _said(encoding, shape=(3,), dtype='int32') == []
