"""Tests of augmentation multiplicity: the mean gradient of several views is clipped."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import plan_of
from tests.representatives import representatives
import tfcactus
from tfcactus import keras as ours
from tfcactus.keras.gradients import forms

layers = tf.keras.layers
RNG = np.random.default_rng(0)


def _tensor(*shape):
  return tf.constant(RNG.normal(size=shape).astype(np.float32))


@pytest.mark.parametrize('form', [
    forms.Dense(_tensor(12, 5, 4), [5, 4]),
    forms.Dense(_tensor(12, 4, 5), [5, 4], transposed=True),
    forms.Outer(_tensor(12, 5), _tensor(12, 4)),
    forms.Rows.merged(tf.constant(RNG.integers(0, 5, (12, 3))), _tensor(12, 3, 4), 5),
], ids=['dense', 'transposed', 'outer', 'rows'])
def test_forms_of_gradients_average_over_neighbouring_rows(form):
  found, expected = form.averaged(3), form.dense().numpy().reshape(4, 3, 5, 4).mean(1)
  np.testing.assert_allclose(found.dense().numpy(), expected, atol=1e-6)
  np.testing.assert_allclose(
      found.squared_norms(), np.sum(expected**2, (1, 2)), rtol=1e-5)
  factors = tf.constant([0.5, 0.0, 1.0, 2.0], tf.float64)
  np.testing.assert_allclose(
      found.weighted_sum(factors).numpy(),
      np.einsum('b,bij->ij', factors.numpy(), expected), atol=1e-5)


def _model():
  tf.keras.utils.set_random_seed(2)
  return tf.keras.Sequential([
      layers.Input((6, 6, 1)), layers.Conv2D(2, 3, activation='tanh'), layers.Flatten(),
      layers.Dense(4)])


def _plan(**changes):
  return plan_of(**{**dict(noise=tfcactus.Gaussian(1e-6), l2_norm_clip=0.3,
                           num_examples=20, sampling_prob=1.0), **changes})


def _moved(model, views, x, y, loss, plan=None, **settings):
  """Returns the move of all weights in a step of learning rate one, and the model."""
  plan = plan or _plan()
  private = ours.privatize(model, plan, augmentation_multiplicity=views, **settings)
  private.compile(tf.keras.optimizers.SGD(1.0), loss)
  before = [weight.numpy() for weight in model.trainable_variables]
  private.fit(ours.PoissonBatches(x, y, 1.0), verbose=0)
  return np.concatenate([np.ravel(a - b.numpy()) for a, b in zip(
      before, model.trainable_variables)]), private


@representatives('engine,rows', [('auto', 3), ('vectorized', 20)])
@pytest.mark.more
def test_equal_views_give_the_step_of_one_view(engine, rows):
  x = RNG.normal(size=(20, 6, 6, 1)).astype(np.float32)
  y = RNG.integers(0, 4, 20)
  loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  once, _ = _moved(_model(), 1, x, y, loss)
  thrice, _ = _moved(_model(), 3, x, y, loss, engine=engine, physical_batch_size=rows)
  np.testing.assert_allclose(thrice, once, atol=1e-6)


def test_the_mean_gradient_of_the_views_is_clipped():
  """Noise in the input of a linear model is noise in its gradient, and averages out."""
  x = np.zeros((20, 500), np.float32)
  spread = {}
  for views in (1, 4, 16):
    model = tf.keras.Sequential([
        layers.Input((500,)), layers.GaussianNoise(1.0),
        layers.Dense(1, use_bias=False)])
    plan = _plan(l2_norm_clip=1e3)
    moved, _ = _moved(model, views, x, np.zeros((20, 1), np.float32),
                      lambda y, prediction: prediction[:, 0], plan)
    # The step is the sum over 20 examples, each a mean of `views`, divided by 20.
    spread[views] = np.std(moved) * np.sqrt(20 * views)
  for views, found in spread.items():
    assert abs(found - 1) < 6 / np.sqrt(2 * 500), views
  assert abs(spread[4] / 2 - 1) > 10 / np.sqrt(2 * 500)


def test_all_views_of_an_example_move_the_sum_by_one_clip_norm_at_most():
  x = np.full((20, 50), 9.0, np.float32)
  model = tf.keras.Sequential([
      layers.Input((50,)), layers.GaussianNoise(1.0), layers.Dense(1, use_bias=False)])
  moved, _ = _moved(model, 8, x[:1], np.zeros((1, 1), np.float32),
                    lambda y, prediction: prediction[:, 0], _plan(num_examples=1))
  assert 0.2999 < np.linalg.norm(moved) <= 0.3


def test_a_view_that_is_not_finite_drops_its_example():

  class Broken(layers.Layer):

    def call(self, inputs, training=None):
      drawn = tf.random.uniform(tf.shape(inputs)[:1])[:, None]
      return tf.where(drawn < 0.5, inputs / 0.0, inputs)

  model = tf.keras.Sequential([
      layers.Input((5,)), Broken(), layers.Dense(1, use_bias=False)])
  moved, _ = _moved(model, 32, np.ones((20, 5), np.float32),
                    np.zeros((20, 1), np.float32),
                    lambda y, prediction: prediction[:, 0])
  # All 32 views of an example are finite with probability 2^-32.
  assert np.max(np.abs(moved)) < 1e-5


@pytest.mark.more
def test_a_model_with_augmentation_trains_and_is_saved(tmp_path):
  x = RNG.normal(size=(20, 6, 6, 1)).astype(np.float32)
  model = tf.keras.Sequential([
      layers.Input((6, 6, 1)), layers.RandomTranslation(0.2, 0.2), layers.Flatten(),
      layers.Dense(4)])
  plan = _plan(noise=tfcactus.Gaussian(1.0))
  private = ours.privatize(model, plan, augmentation_multiplicity=3)
  private.compile('sgd', tf.keras.losses.SparseCategoricalCrossentropy(
      from_logits=True), metrics=['accuracy'])
  history = private.fit(
      ours.PoissonBatches(x, RNG.integers(0, 4, 20), 1.0), epochs=2, verbose=0).history
  assert np.all(np.isfinite(history['loss'])) and 0 <= history['accuracy'][0] <= 1
  assert private.guarantee().upper == plan.guarantee(2).upper
  private.save(tmp_path / 'm.keras')
  again = tf.keras.models.load_model(tmp_path / 'm.keras')
  assert again.get_config()['augmentation_multiplicity'] == 3
  assert ours.make_run_card(again)['augmentation_multiplicity'] == 3


@pytest.mark.parametrize('views', [0, 1.5, '4', True])
def test_invalid_numbers_of_views_raise(views):
  with pytest.raises(ValueError, match='augmentation_multiplicity'):
    ours.privatize(_model(), _plan(), augmentation_multiplicity=views)
