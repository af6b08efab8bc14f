"""Gradients that depend on the place in the batch are found, others are not."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import inner, plan_of, poisson, privatized
from tests.representatives import representatives
from tfcactus.keras.compat import patches
from tfcactus.keras.gradients import place_test

ROWS = 8
SPECS = (tf.TensorSpec([ROWS, 3]), tf.TensorSpec([ROWS], tf.int64),
         tf.TensorSpec([ROWS]))


def check(run, each=1):
  place_test.check(inner(), run, SPECS, each)


def test_rows_alike_pass():
  check(lambda batch: [batch[0] * 3, tf.reduce_sum(batch[0]**2, 1)])


def _last_bit(batch):
  """Returns inputs; the entry at one place has another last bit."""
  x = batch[0]
  bits = tf.bitcast(x, tf.int32) ^ tf.constant(
      np.eye(ROWS, 3, k=-5), tf.int32)
  return [tf.bitcast(bits, tf.float32)]


@pytest.mark.parametrize('run', [
    _last_bit, lambda batch: [batch[0] + tf.reduce_sum(batch[0][:1])],
    lambda batch: [batch[0], tf.range(ROWS)]])
def test_a_place_that_differs_in_its_last_bit_is_found(run):
  with pytest.raises(ValueError, match=r'multiple of 8 \(got 8\)'):
    check(run)


def test_rows_of_an_example_move_together():
  def pairs(batch):
    both = tf.reshape(batch[0], [ROWS // 2, 2, 3])
    return [both[:, 0] + 2 * both[:, 1]]

  check(pairs, each=2)
  with pytest.raises(ValueError, match='multiple of 8'):
    check(lambda batch: [tf.repeat(pairs(batch)[0], 2, 0)])


def test_models_that_draw_give_a_warning_only_if_draws_matter():
  def drawing(batch):
    return [batch[0] + tf.random.stateless_normal([ROWS, 3], patches.seed_maker()())]

  with pytest.warns(UserWarning, match='could not be tested'):
    check(drawing)

  def idle(batch):
    drawing(batch)
    return _last_bit(batch)

  with pytest.raises(ValueError, match='multiple of 8'):
    check(idle)


@representatives('layer', [
    tf.keras.layers.Dropout(0.5), tf.keras.layers.GaussianNoise(0.5),
    tf.keras.layers.Dense(7, 'tanh')])
def test_models_train_on_whole_registers(layer, recwarn):
  rate = getattr(layer, 'rate', None)
  private = privatized(plan_of(arithmetic='integer'), inner(layer),
                       physical_batch_size=16)
  private.fit(poisson(), verbose=0)
  assert private.releases == 4 and getattr(layer, 'rate', None) == rate
  assert not [each for each in recwarn if 'could not be tested' in str(each.message)]
