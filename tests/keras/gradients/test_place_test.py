"""Gradients that depend on the place in the batch are found, others are not."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import inner, MEAN, plan_of, poisson, privatized
from tests.representatives import representatives
import tfcactus
from tfcactus.keras.compat import patches
from tfcactus.keras.gradients import place_test

ROWS = 8
SPECS = (tf.TensorSpec([ROWS, 3]), tf.TensorSpec([ROWS], tf.int64),
         tf.TensorSpec([ROWS]))


def check(run, each=1):
  return place_test.check(inner(), run, SPECS, each)


def test_rows_alike_pass():
  check(lambda batch: [batch[0] * 3, tf.reduce_sum(batch[0]**2, 1)])


def test_the_digest_is_that_of_all_bits():
  one = check(lambda batch: [batch[0], tf.math.log(batch[0])])
  assert 0 < one < 2**56
  assert one == check(lambda batch: [batch[0], -tf.math.log(batch[0]) * -1])
  assert one != check(lambda batch: [tf.math.nextafter(
      tf.cast(batch[0], tf.float64), 9.0), tf.math.log(batch[0])])
  assert one != check(lambda batch: [tf.bitcast(tf.bitcast(
      batch[0], tf.int32) ^ 1, tf.float32), tf.math.log(batch[0])])


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


def test_a_row_that_depends_on_other_rows_in_any_order_is_found():
  with pytest.raises(ValueError, match='multiple of 8'):
    check(lambda batch: [batch[0] + tf.reduce_max(batch[0])])


def _branch(batch):
  """Returns rows that take a branch which normal rows do not."""
  return [tf.vectorized_map(lambda row: tf.cond(
      tf.reduce_sum(row) > 100, lambda: tf.math.softplus(row), lambda: row), batch[0])]


def _turns(batch):
  """Returns rows whose number of turns in a loop depends on the row."""
  return [tf.vectorized_map(lambda row: tf.while_loop(
      lambda x: tf.reduce_sum(x) > 100, lambda x: [tf.math.softplus(x) / 2], [row]),
                            batch[0])]


@pytest.mark.parametrize('run', [_branch, _turns])
def test_branches_and_loops_of_single_examples_are_refused(run):
  with pytest.raises(ValueError, match='the same operations for all examples'):
    check(run)
  # As a function of its own, the operation is in the library of the graph.
  with pytest.raises(ValueError, match='the same operations for all examples'):
    check(tf.function(run, autograph=False))


def test_numbers_that_are_not_finite_hide_no_difference(recwarn):
  check(lambda batch: [tf.math.log(batch[0])])
  assert not any('could not be tested' in str(each.message) for each in recwarn.list)
  with pytest.raises(ValueError, match='multiple of 8'):
    check(lambda batch: [tf.where(batch[0] > 0, _last_bit(batch)[0], np.nan)])
  with pytest.warns(UserWarning, match='finite'):
    check(lambda batch: [batch[0] / 0])


def test_inputs_that_are_ids_in_floats_are_tested():
  table = tf.constant(np.random.default_rng(0).normal(size=(2, 4)), tf.float32)

  def looked_up(batch):
    return tf.gather(table, tf.cast(batch[0], tf.int32))

  check(lambda batch: [looked_up(batch)])
  with pytest.raises(ValueError, match='multiple of 8'):
    check(lambda batch: [looked_up(batch) + tf.reduce_sum(looked_up(batch)[:1])])


@pytest.mark.more
def test_as_many_rows_of_fewer_units_are_tested_anew(monkeypatch):
  tested = []
  monkeypatch.setattr(place_test, 'check', lambda *args: tested.append(args[2:]))
  private = privatized(plan_of(arithmetic='integer', unit='user', num_examples=20))
  private.run_eagerly = True  # Each step is traced anew, without another compile.
  for rows, each in ((16, 1), (8, 2)):
    private._step._given_rows = rows
    private.fit(poisson(units=np.arange(40) // 2, examples_per_unit=each),
                steps_per_epoch=1, verbose=0)
  assert str(tested[0][0]) == str(tested[1][0])
  assert [each for _, each in tested] == [1, 2]


@pytest.mark.more
def test_outputs_are_tested_where_right_answers_count(monkeypatch):
  tested = []
  monkeypatch.setattr(place_test, 'check', lambda model, run, specs, each: (
      tested.append([part.shape for part in run(tf.nest.map_structure(
          lambda spec: tf.zeros(spec.shape, spec.dtype), specs))])))
  for accuracy in (None, tfcactus.NoisyAccuracy()):
    private = privatized(plan_of(arithmetic='integer', unit='user', num_examples=20,
                                 noisy_accuracy=accuracy), physical_batch_size=4)
    private.fit(poisson(units=np.arange(40) // 2, examples_per_unit=2),
                steps_per_epoch=1, verbose=0)
  without, with_outputs = tested
  assert with_outputs == [*without, [4, 2 * 3]]


def test_another_loss_is_tested_anew(monkeypatch):
  tested = []
  monkeypatch.setattr(place_test, 'check', lambda *args: tested.append(args))
  private = privatized(plan_of(arithmetic='integer'), inner())
  for number in (1, 1, 2):
    if number > len(tested) > 0:
      private.compile('sgd', MEAN)
    private.fit(poisson(), steps_per_epoch=1, verbose=0)
    assert len(tested) == number


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
  assert private.released_steps == 4 and getattr(layer, 'rate', None) == rate
  assert not [each for each in recwarn if 'could not be tested' in str(each.message)]
