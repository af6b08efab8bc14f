"""Tests of the arguments of `PrivateModel.compile`, and of the loss that `fit` logs."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import inner, poisson, X, Y
from tests.representatives import representatives
from tfcactus.keras import DPKerasSGDOptimizer, privatize
from tfcactus.keras.compat import versions

SGD = tf.keras.optimizers.SGD
_KERAS_3 = pytest.mark.skipif(
    not versions.KERAS_3, reason='optimizers of Keras 2 scale no gradients')


def _loss(reduction='none'):
  return tf.keras.losses.SparseCategoricalCrossentropy(
      from_logits=True, reduction=reduction)


def _private(make_plan, **kwargs):
  private = privatize(inner(seed=1), make_plan())
  private.compile(**{'optimizer': SGD(0.5), 'loss': _loss(), **kwargs})
  return private


@_KERAS_3
@pytest.mark.parametrize('make', [
    lambda: SGD(0.5, loss_scale_factor=1024.0),
    lambda: {'class_name': 'SGD', 'config': {
        'learning_rate': 0.5, 'loss_scale_factor': 1024.0}}])
def test_optimizers_that_would_unscale_averages_are_refused(make_plan, make):
  with pytest.raises(ValueError, match='loss_scale_factor=None, got 1024.0'):
    _private(make_plan, optimizer=make())


@_KERAS_3
def test_a_loss_scale_that_is_set_after_compile_is_refused(make_plan):
  private = _private(make_plan)
  private.optimizer.loss_scale_factor = 8.0
  with pytest.raises(ValueError, match='loss_scale_factor=None, got 8.0'):
    private.fit(poisson(), verbose=0)
  assert private.released_steps == 0


def test_private_optimizers_are_refused_also_after_compile_and_wrapped(make_plan):
  private = _private(make_plan)
  drop_in = DPKerasSGDOptimizer(1.0, 1.0, expected_batch_size=10)
  private.optimizer = drop_in
  with pytest.raises(ValueError, match='added twice'):
    private.fit(poisson(), verbose=0)
  wrapped = tf.keras.mixed_precision.LossScaleOptimizer(drop_in)
  with pytest.raises(ValueError, match='added twice'):
    private.compile(wrapped, _loss())


def test_an_optimizer_may_be_a_config(make_plan):
  config = {'class_name': 'SGD', 'config': {'learning_rate': 0.5}}
  found = []
  for optimizer in (config, SGD(0.5)):
    private = _private(make_plan, optimizer=optimizer)
    private.fit(X, Y, batch_size=40, verbose=0)
    found.append(private.inner.get_weights()[0])
  np.testing.assert_allclose(*found, atol=1e-7)


@pytest.mark.skipif(not versions.KERAS_3, reason='Keras 2 cannot accumulate')
def test_all_accumulated_averages_are_counted(make_plan):
  once = _private(make_plan)
  before = once.inner.get_weights()[0]
  once.fit(X, Y, batch_size=40, verbose=0)
  twice = _private(
      make_plan, optimizer=SGD(0.5, gradient_accumulation_steps=2))
  twice.fit(X, Y, batch_size=40, verbose=0)
  np.testing.assert_array_equal(twice.inner.get_weights()[0], before)
  twice.fit(X, Y, batch_size=40, verbose=0)
  # The weights did not move between the two steps: both averages are equal.
  np.testing.assert_allclose(
      twice.inner.get_weights()[0], once.inner.get_weights()[0], atol=1e-6)
  assert twice.released_steps == 2


@pytest.mark.usefixtures('random_sums')
@representatives('value', ['auto', None, False])
def test_xla_is_not_used_by_default(make_plan, value):
  private = _private(make_plan, jit_compile=value)
  assert not private.jit_compile
  private.fit(poisson(), verbose=0)


@pytest.mark.parametrize('value', [True, 1, 'always'])
def test_xla_is_refused_if_asked_for(make_plan, value):
  with pytest.raises(ValueError, match=f'jit_compile=False, got {value!r}'):
    _private(make_plan, jit_compile=value)


@representatives('reduction, eager', [
    ('sum', False), ('sum_over_batch_size', False), ('none', False),
    ('none', True), ('sum', True), ('sum_over_batch_size', True)])
def test_the_logged_loss_is_the_mean_over_all_examples(make_plan, reduction, eager):
  private = _private(make_plan, loss=_loss(reduction), optimizer=SGD(0.0),
                     run_eagerly=eager)
  # Batches of different sizes, where a mean of batch means is another number.
  logged = private.fit(X, Y, batch_size=24, verbose=0).history['loss'][0]
  expected = np.mean(_loss()(Y, private.inner(X)))
  assert abs(logged - expected) < 1e-5 * expected
  weights = np.arange(40) % 4
  logged = private.fit(X, Y, batch_size=24, sample_weight=weights, verbose=0)
  losses = np.asarray(_loss()(Y, private.inner(X)))[weights > 0]
  expected = np.mean(losses * weights[weights > 0])
  assert abs(logged.history['loss'][0] - expected) < 1e-5 * expected
