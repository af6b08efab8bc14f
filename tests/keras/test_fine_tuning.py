"""Tests of features of frozen backbones, and of GroupNormalization as a replacement."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import backbone, one_by_one
from tests.keras.tiny import plan_of
from tfcactus.keras import fine_tuning, privatize
from tfcactus.keras.checks import refused_models
from tfcactus.keras.compat import models, versions
from tfcactus.keras.gradients import clipping

_LAYERS = tf.keras.layers
_X = np.random.default_rng(0).normal(size=(7, 8, 8, 3)).astype(np.float32)


def _residual():
  inputs = _LAYERS.Input((8, 8, 3))
  x = _LAYERS.Conv2D(6, 3, padding='same')(inputs)
  y = _LAYERS.BatchNormalization(scale=False)(x)
  inner = tf.keras.Sequential([
      _LAYERS.Input((8, 8, 6)), _LAYERS.Conv2D(6, 1), _LAYERS.BatchNormalization()])
  x = _LAYERS.Add()([x, inner(y)])
  x = _LAYERS.BatchNormalization()(_LAYERS.GlobalAveragePooling2D()(x))
  return tf.keras.Model(inputs, _LAYERS.Dense(2)(x))


def test_features_are_the_outputs_of_inference_per_example():
  backbone = _residual()
  for variable in backbone.weights:  # Moving statistics that are not 0 and 1.
    variable.assign(variable + 0.3)
  got = fine_tuning.features(backbone, _X, 4)
  want = [backbone(row[None], training=False)[0] for row in _X]
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_features_of_a_recurrent_backbone_are_computed():
  backbone = tf.keras.Sequential([
      _LAYERS.Input((4, 3)), _LAYERS.SimpleRNN(2, return_sequences=True),
      _LAYERS.LSTM(2)])
  rows = _X.reshape((7, -1))[:, :12].reshape((7, 4, 3))
  got = fine_tuning.features(backbone, rows, 4)
  np.testing.assert_allclose(
      got, backbone(rows, training=False), rtol=1e-5, atol=1e-6)


def test_a_backbone_that_mixes_examples_is_refused():
  inputs = _LAYERS.Input((3,))
  mixing = tf.keras.Model(inputs, _LAYERS.Lambda(
      lambda x: x - tf.reduce_mean(x, 0), output_shape=(3,))(inputs))
  with pytest.raises(ValueError, match='each example is by itself'):
    fine_tuning.features(mixing, np.ones((4, 3), np.float32))
  with pytest.raises(ValueError, match='at least one example'):
    fine_tuning.features(mixing, np.ones((0, 3), np.float32))
  with pytest.raises(ValueError, match='Expected x to be an array'):
    fine_tuning.features(mixing, 5.0)


def test_a_backbone_of_two_outputs_is_refused():
  inputs = _LAYERS.Input((6,))
  two = tf.keras.Model(inputs, [_LAYERS.Dense(5)(inputs), _LAYERS.Dense(5)(inputs)])
  with pytest.raises(ValueError, match='of one output, got one of 2'):
    fine_tuning.features(two, np.zeros((3, 6), np.float32))


def test_group_normalization_replaces_batch_normalization_with_its_weights():
  model = _residual()
  for variable in model.trainable_weights:
    variable.assign(variable + 0.1)
  copy = fine_tuning.group_normalized(model, 4)
  found = models.flat_layers(copy)
  assert not any(isinstance(layer, _LAYERS.BatchNormalization) for layer in found)
  groups = [layer.groups for layer in found
            if isinstance(layer, _LAYERS.GroupNormalization)]
  assert sorted(groups) == [2, 2, 2]
  for mine, its in zip(copy.trainable_weights, model.trainable_weights):
    np.testing.assert_array_equal(mine, its)
  assert np.all(np.isfinite(copy(_X)))
  refused_models.check_model(copy)  # The copy can be trained privately.
  with pytest.raises(ValueError, match='a BatchNormalization'):
    refused_models.check_model(model)


def test_group_normalization_keeps_settings_and_what_is_frozen():
  inner = tf.keras.Sequential([
      _LAYERS.Input((8,)), _LAYERS.Dense(8, name='frozen', trainable=False),
      _LAYERS.BatchNormalization(
          name='norm', gamma_regularizer='l2', beta_constraint='non_neg',
          dtype='float64', epsilon=0.25)])
  copy = fine_tuning.group_normalized(tf.keras.Sequential([
      _LAYERS.Input((8,)), inner, _LAYERS.Dense(1)]))
  frozen, norm = copy.layers[0].layers
  assert (frozen.trainable, len(copy.trainable_variables)) == (False, 4)
  assert norm.epsilon == 0.25 and norm.compute_dtype == 'float64'
  assert norm.gamma_regularizer is not None and norm.beta_constraint is not None


def test_no_group_has_one_feature():
  model = tf.keras.Sequential([
      _LAYERS.Input((3,)), _LAYERS.Dense(4), _LAYERS.BatchNormalization()])
  copy = fine_tuning.group_normalized(model, 8)
  assert copy.layers[-1].groups == 1
  assert np.ptp(copy(np.ones((1, 3), np.float32))) > 0


def test_subclassed_models_cannot_be_copied():
  class Own(tf.keras.Model):
    pass

  with pytest.raises(ValueError, match='layers can be replaced'):
    fine_tuning.group_normalized(Own())


def _frozen_backbone(model):
  for layer in model.layers[:-1]:
    layer.trainable = False


def _only_biases(model):
  for layer in models.flat_layers(model):
    if isinstance(layer, _LAYERS.BatchNormalization):
      layer.trainable = False
    elif hasattr(layer, 'kernel'):
      layer.kernel.trainable = False


@pytest.mark.parametrize('freeze', [_frozen_backbone, _only_biases])
def test_trainable_weights_move_as_by_a_loop_over_examples(make_plan, freeze):
  if freeze is _only_biases and not versions.KERAS_3:
    pytest.skip('Keras 2 freezes whole layers')
  loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model, y = _residual(), np.arange(7) % 2
  freeze(model)
  variables = model.trainable_variables
  total = [np.zeros(variable.shape) for variable in variables]
  for row, label in zip(_X, y):
    with tf.GradientTape() as tape:
      value = loss(label[None], model(row[None]))
    gradient = [np.asarray(part, float) for part in tape.gradient(
        value, models.tf_variables(model))]
    norm = np.sqrt(sum(np.sum(part**2) for part in gradient))
    factor = min(1, 0.1 * (1 - clipping.CLIP_MARGIN) / norm)
    total = [each + factor * part for each, part in zip(total, gradient)]
  want = [np.asarray(variable) - part / 10 for variable, part in zip(variables, total)]
  before = [np.array(weight) for weight in model.non_trainable_variables]
  private = privatize(model, make_plan(l2_norm_clip=0.1))
  private.compile(tf.keras.optimizers.SGD(1.0), loss)
  private.train_on_batch(_X, y)
  for mine, its in zip(variables, want):
    np.testing.assert_allclose(mine, its, rtol=1e-5, atol=1e-6)
  for mine, its in zip(model.non_trainable_variables, before):
    np.testing.assert_array_equal(mine, its)


@pytest.mark.skipif(not versions.KERAS_3, reason='Keras 2 has no enable_lora')
def test_a_merged_model_has_the_outputs_of_lora(tmp_path):
  model = one_by_one.shake(backbone.classifier(
      2, ('query', 'out', 'dense', 'table')))
  model.layers[-1].enable_lora(1)  # With its rank in the config of the model.
  x, _ = backbone.texts()
  want = model.predict(x, verbose=0)
  plain = one_by_one.shake(backbone.classifier(0))
  copy = fine_tuning.merged(model)
  assert not models.lora_layers(copy) and models.lora_layers(model)
  assert len(copy.weights) == len(plain.weights)
  np.testing.assert_allclose(copy.predict(x, verbose=0), want, rtol=1e-6)
  for each, name in ((model, 'lora'), (copy, 'merged')):
    each.export(tmp_path / name, verbose=False)
    served = tf.saved_model.load(tmp_path / name)
    np.testing.assert_allclose(served.serve(x), want, rtol=1e-5)
  with pytest.raises(ValueError, match='after enable_lora'):
    fine_tuning.merged(copy)
  with pytest.raises(ValueError, match='merge private_model.inner'):
    fine_tuning.merged(privatize(model, plan_of()))
