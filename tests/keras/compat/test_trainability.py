"""Tests of what a loaded model trains: what it trained when it was saved."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import backbone, one_by_one
from tests.keras.tiny import inner, MEAN, plan_of, poisson
from tfcactus.keras import FixedSizeBatches, privatize
from tfcactus.keras.compat import models, trainability, versions
from tfcactus.keras.compat.versions import keras

_load = tf.keras.models.load_model
_X, _Y = backbone.texts(40)
keras3 = pytest.mark.skipif(not versions.KERAS_3, reason='Keras 2 has no enable_lora')


def _private(model):
  private = privatize(model, plan_of())
  private.compile('adam', MEAN)
  return private


def _trained(model):
  private = _private(model)
  private.fit(FixedSizeBatches(_X, _Y, 10, steps_per_epoch=2), verbose=0)
  return private


def _half_frozen():
  tf.keras.utils.set_random_seed(1)
  block = backbone.Block()
  inputs = tf.keras.Input((3, 4))
  x = tf.keras.layers.Flatten()(block(inputs))
  model = tf.keras.Model(inputs, tf.keras.layers.Dense(3)(x))
  block.dense.trainable = block.norm.trainable = False
  return model


def _flags(model):
  return [(v.shape, v.trainable) for v in model.weights], [
      layer.trainable for layer in models.flat_layers(model)]


def _assert_equal(again, private):
  assert _flags(again.inner) == _flags(private.inner)
  assert len(again.inner.trainable_variables) == len(private.inner.trainable_variables)
  for ours, theirs in zip(again.inner.weights, private.inner.weights, strict=True):
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize('make', [
    pytest.param(lambda: backbone.classifier(
        2, ('query', 'out', 'dense', 'table')), id='LoRA', marks=keras3),
    pytest.param(lambda: backbone.classifier(0, ('query',)), id='thawed',
                 marks=(keras3, pytest.mark.more))])
def test_a_loaded_model_goes_on_with_the_variables_it_trained(tmp_path, make):
  private = _trained(make())
  private.save(tmp_path / 'm.keras')
  again = _load(tmp_path / 'm.keras')
  _assert_equal(again, private)
  for ours, theirs in zip(again.optimizer.variables, private.optimizer.variables,
                          strict=True):
    np.testing.assert_array_equal(ours, theirs)
  np.testing.assert_array_equal(again.predict(_X, verbose=0),
                                private.predict(_X, verbose=0))
  assert again.guarantee() == private.guarantee()
  # The next step is the same step.
  sums = [one_by_one.engine_sums(each.inner, MEAN, _X[:6], _Y[:6])
          for each in (again, private)]
  np.testing.assert_array_equal(sums[0].sums, sums[1].sums)
  again.fit(FixedSizeBatches(_X, _Y, 10, steps_per_epoch=2), verbose=0)
  assert again.guarantee().steps == 4


def test_inner_layers_stay_frozen(tmp_path):
  private = _private(_half_frozen())
  private.save(tmp_path / 'm.keras')
  again = _load(tmp_path / 'm.keras')
  assert len(again.inner.trainable_variables) == 9
  _assert_equal(again, private)


@keras3
def test_single_weights_and_the_scale_of_lora_are_restored(tmp_path):
  model = tf.keras.Sequential([
      tf.keras.layers.Input((4,)), tf.keras.layers.Dense(4), tf.keras.layers.Dense(3)])
  model.layers[0].enable_lora(2)
  if hasattr(model.layers[0], 'lora_alpha'):  # From Keras 3.11 on.
    model.layers[0].lora_alpha = 6
  model.layers[0].lora_kernel_b.assign(model.layers[0].lora_kernel_b + 1)
  model.layers[1].bias.trainable = False
  private = _private(model)
  private.save(tmp_path / 'm.keras')
  again = _load(tmp_path / 'm.keras')
  _assert_equal(again, private)
  x = np.ones((2, 4), np.float32)
  np.testing.assert_array_equal(again.predict(x, verbose=0),
                                private.predict(x, verbose=0))


def test_a_model_that_is_built_later_is_restored_then():
  private = _private(_half_frozen())
  config = private.get_config()
  inner = tf.keras.Sequential([backbone.Block(), tf.keras.layers.Dense(3)])
  config['trained'] = trainability.config(_built(inner))
  inner.layers[0].dense.trainable = False
  config['trained'] = trainability.config(inner)
  config['model'] = keras.saving.serialize_keras_object(
      tf.keras.Sequential([backbone.Block(), tf.keras.layers.Dense(3)]))
  again = type(private).from_config(config)
  assert not again.inner.built
  again.build((None, 3, 4))
  assert not again.inner.layers[0].dense.trainable
  assert len(again.inner.trainable_variables) == len(inner.trainable_variables)


def _built(model):
  model.build((None, 3, 4))
  return model


def test_a_model_that_cannot_train_the_same_is_refused():
  private = _private(_half_frozen())
  config = private.get_config()
  config['trained'] = {**config['trained'], 'layers': config['trained']['layers'][:-1],
                       'variables': [[4, 3], [3]]}
  with pytest.raises(ValueError, match=(
      '(?s)to train 2 variables of 15 weights.*got 13 variables.*load_weights')):
    type(private).from_config(config)


def test_files_of_older_versions_restore_nothing():
  private = _private(_half_frozen())
  config = private.get_config()
  del config['trained']
  assert len(type(private).from_config(config).inner.trainable_variables) > 9


@keras3
def test_weights_bring_the_factors_of_lora(tmp_path):
  private = _trained(backbone.classifier(2))
  private.save_weights(tmp_path / 'm.weights.h5')
  again = _private(backbone.classifier(2, seed=5))
  with warnings.catch_warnings():
    warnings.filterwarnings('error', '.*of a run that trained')
    again.load_weights(tmp_path / 'm.weights.h5')
  _assert_equal(again, private)
  block = again.inner.layers[1].blocks[0]
  assert 'load_own_variables' not in vars(block.query)


@keras3
def test_weights_of_a_run_that_trained_other_variables_warn(tmp_path):
  private = _trained(backbone.classifier(0))
  private.save_weights(tmp_path / 'm.weights.h5')
  again = _private(backbone.classifier(2))
  first = [np.array(each) for layer in models.lora_layers(again.inner)
           for each in models.lora_variables(layer)[1:]][0]
  with pytest.warns(UserWarning, match='a run that trained 10 variables of '):
    again.load_weights(tmp_path / 'm.weights.h5')
  np.testing.assert_allclose(again.predict(_X, verbose=0),
                             private.predict(_X, verbose=0), rtol=1e-6)
  # Keras sets both factors to zero, where no gradient moves them.
  np.testing.assert_array_equal(
      models.lora_variables(models.lora_layers(again.inner)[0])[1], first)
  assert np.any(first)


@keras3
def test_a_failed_load_leaves_nothing_behind(tmp_path):
  private = _trained(backbone.classifier(2))
  private.save_weights(tmp_path / 'm.weights.h5')
  again = _private(backbone.classifier(2, blocks=1))
  with pytest.raises(Exception, match='.'), warnings.catch_warnings():
    warnings.simplefilter('ignore')
    again.load_weights(tmp_path / 'm.weights.h5')
    _private(backbone.classifier(2, words=7)).load_weights(tmp_path / 'm.weights.h5')
  assert not any('load_own_variables' in vars(layer)
                 for layer in models.flat_layers(again.inner))


@keras3
def test_a_file_of_lora_in_quantised_layers_keeps_the_account(tmp_path):
  model = inner(tf.keras.layers.Dense(8))
  model.layers[0].quantize('int8')
  model.layers[0].enable_lora(2)
  private = _private(model)
  private.fit(poisson(), verbose=0)
  private.save(tmp_path / 'm.keras')
  loaded = _load(tmp_path / 'm.keras')
  loaded.fit(poisson(), verbose=0)
  assert loaded.guarantee().steps == 8
