"""Tests that a training takes its steps from an account before they are released."""

import math

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import inner, MEAN, plan_of, privatized, X, Y
import tfcactus
from tfcactus import accounting, sampling
from tfcactus.keras import (
  AllocatedBatches,
  CyclicBatches,
  PoissonBatches,
  PrivateValidation,
  privatize,
)
from tfcactus.keras.ledger import counts, paid_steps

pytestmark = pytest.mark.usefixtures('random_sums')


@pytest.fixture
def account(tmp_path):
  return tfcactus.DataAccount(tmp_path / 'account', epsilon=30, delta=1e-5)


def _batches(steps):
  return PoissonBatches(X, Y, 0.25, steps_per_epoch=steps)


def test_a_run_reserves_its_plan_and_takes_steps_in_blocks(account, monkeypatch):
  model = privatized(account=account, account_label='march')
  assert not account.entries  # Nothing is entered before the first fit.
  spend, order = tfcactus.DataAccount.spend, []

  def watched(*args, **settings):
    order.append(model.released_steps)
    spend(*args, **settings)

  monkeypatch.setattr(tfcactus.DataAccount, 'spend', watched)
  model.fit(_batches(40), verbose=0)
  # A block is entered before its first step is counted, hence before it is released.
  assert order == [0, paid_steps.BLOCK]
  slot = account.slots['march']
  assert (slot.count, slot.used, slot.event) == (100, 64, plan_of().step_event)
  left = account.left
  model.fit(_batches(20), verbose=0)
  assert account.slots['march'].used == 64 and account.left == left


def test_a_resumed_run_goes_on_with_the_steps_that_are_left(account, tmp_path):
  model = privatized(account=account, journal=tmp_path / 'journal')
  for steps in (10, 3):
    model.fit(_batches(steps), verbose=0)
  model.save(tmp_path / 'm.keras')
  left = account.left
  for used in (64, 96):  # Two copies of it, which share the slot.
    model = tf.keras.models.load_model(tmp_path / 'm.keras')
    model.compile('sgd', MEAN)
    model.fit(_batches(5), verbose=0)
    # A block that the first process did not use up is lost.
    assert account.slots['training'].used == used and account.left == left
    model._ledger.counter.journal.close()


def test_training_stops_where_the_slot_is_used_up(account):
  model = privatized(plan_of(steps=10), account=account)
  with pytest.warns(UserWarning, match="slot 'training' of the account is used up"):
    model.fit(_batches(7), epochs=3, verbose=0)
  assert model.released_steps == 10 == account.slots['training'].used
  with pytest.raises(ValueError, match='10 used of 10; a new run'):
    model.fit(_batches(7), verbose=0)
  with pytest.raises(ValueError, match='10 used of 10; a new run'):
    privatized(plan_of(steps=10), account=account).fit(_batches(7), verbose=0)
  assert model.released_steps == 10


def test_epochs_are_taken_where_epochs_are_accounted(account):
  model = privatized(plan_of(steps=8), account=account)
  with pytest.warns(UserWarning, match='used up'):
    model.fit(AllocatedBatches(X, Y, num_batches=4), epochs=3, verbose=0)
  slot = account.slots['training']
  assert (slot.count, slot.used, model.released_steps) == (2, 2, 8)


def test_epochs_of_several_steps_each_are_counted_as_epochs(account):
  plan = plan_of(steps=12)
  batches = CyclicBatches(X, Y, plan=plan, sampling=sampling.CyclicPoissonSampling)
  model = privatized(plan, account=account)
  model.fit(batches, epochs=1, verbose=0)
  slot = account.slots['training']
  assert (slot.count, slot.used) == (12, 4)  # The slot counts steps of one batch.
  # Another fit without the account; the next one enters its epoch.
  again = privatize(model.inner, plan)
  again.compile('sgd', MEAN)
  again.fit(batches, epochs=1, verbose=0)
  last = privatize(model.inner, plan, account=account)
  last.compile('sgd', MEAN)
  with pytest.warns(UserWarning, match='used up'):
    last.fit(batches, epochs=3, verbose=0)
  assert account.slots['training'].used == 12 == last.released_steps


def test_a_run_that_does_not_fit_releases_nothing(account):
  model = privatized(plan_of(noise=tfcactus.Gaussian(0.3)), account=account)
  with pytest.raises(ValueError, match='release nothing'):
    model.fit(_batches(2), verbose=0)
  assert model.released_steps == 0 and not account.entries


def test_steps_from_before_are_entered_first(account):
  model = privatized()
  model.fit(_batches(40), verbose=0)
  again = privatize(model.inner, plan_of(), account=account)
  again.compile('sgd', MEAN)
  again.fit(_batches(1), verbose=0)
  assert [entry['count'] for entry in account.entries] == [100, 40, paid_steps.BLOCK]


def test_steps_of_a_file_are_entered_once_whatever_the_slot_was_used_for(
    account, tmp_path):
  privatized(plan_of(), account=account).fit(_batches(20), verbose=0)
  unpaid = privatized()
  unpaid.fit(_batches(20), verbose=0)
  unpaid.save(tmp_path / 'm.keras')
  for _ in range(2):  # The second time nothing is owed.
    loaded = tf.keras.models.load_model(tmp_path / 'm.keras')
    paid = privatize(loaded.inner, plan_of(), account=account)
    paid.compile('sgd', MEAN)
    paid.fit(_batches(4), verbose=0)
    paid.save(tmp_path / 'm.keras')
  assert [entry['count'] for entry in account.entries] == [
      100, paid_steps.BLOCK, 20, paid_steps.BLOCK, 100 - 20 - 2 * paid_steps.BLOCK]


@pytest.mark.more
def test_steps_from_before_are_entered_beside_those_of_another_model(account):
  """The other model's steps in the slot are more than those of this one."""
  other, model = privatized(account=account), privatized()
  for each in (other, model):
    each.fit(_batches(20), verbose=0)
  again = privatize(model.inner, plan_of(), account=account)
  again.compile('sgd', MEAN)
  for _ in range(2):  # The second time nothing is owed.
    again.fit(_batches(1), verbose=0)
  assert [entry['count'] for entry in account.entries] == [
      100, paid_steps.BLOCK, 20, paid_steps.BLOCK]


def test_steps_from_before_are_entered_once_where_fits_are_refused(account):
  plan = plan_of(releases=[dp_accounting.GaussianDpEvent(0.01)])  # Too dear.
  model = privatized(plan)
  model.fit(_batches(2), verbose=0)
  again = privatized(plan, model.inner, account=account)
  for _ in range(2):
    with pytest.raises(ValueError, match='release nothing'):
      again.fit(_batches(1), verbose=0)
  assert [entry['count'] for entry in account.entries] == [100, 2]


@pytest.mark.parametrize('options, data, words', [
    ({}, lambda: tf.data.Dataset.from_tensor_slices((X, Y)).batch(10), 'on one worker'),
    ({}, lambda: PoissonBatches(X, Y, 0.25, steps_per_epoch=2, seed=1),
     'without a seed'),
    ({}, lambda: tf.constant(X), 'Expected neighboring_relation'),
    ({'plan': plan_of(unit='user')}, None, "unit='example'"),
])
def test_batches_without_a_cost_there_are_refused(account, options, data, words):
  if data is None:
    data = lambda: PoissonBatches(X, Y, units=np.arange(40), batch_size=10,
                                  examples_per_unit=1, steps_per_epoch=2)
  model = privatized(account=account, **options)
  y = (Y,) if isinstance(data(), tf.Tensor) else ()
  with pytest.raises(ValueError, match=words):
    model.fit(np.asarray(data()) if y else data(), *y, verbose=0)
  assert model.released_steps == 0 and not account.entries


@pytest.mark.parametrize('changes', [
    {'seed': 1},
    {'plan': plan_of(noise=tfcactus.Laplace(1.0), accounting='scalar-unproven')}])
def test_plans_without_a_place_in_an_account_are_refused(account, changes):
  with pytest.raises(ValueError, match='Expected a plan with a proven accounting'):
    privatized(account=account, **changes)


def test_releases_of_a_plan_enter_once_for_each_training(account, tmp_path):
  validation = PrivateValidation(X, Y, noise=tfcactus.Gaussian(30.0), releases=4)
  plan = plan_of(releases=[dp_accounting.GaussianDpEvent(40.0), validation])
  model = privatized(plan, account=account, account_label='march')
  for _ in range(2):
    model.fit(_batches(3), verbose=0)

  def beside():
    return [entry['mu'] for entry in account.entries
            if entry.get('label') == 'march, beside steps']

  # As if each record were in training and validation, whose number is released too.
  assert beside() == pytest.approx([1 / 40, math.sqrt(5) / 30], rel=1e-4)
  whole = accounting.PhiAccountant().compose(plan.step_event, plan.steps)
  for event in plan.releases:
    whole.compose(event)
  model.save(tmp_path / 'm.keras')
  resumed = tf.keras.models.load_model(tmp_path / 'm.keras')
  resumed.compile('sgd', MEAN)
  resumed.fit(_batches(3), verbose=0)
  assert len(beside()) == 2
  # Another training takes the steps that are left, and has releases of its own.
  privatized(plan, account=account, account_label='march').fit(_batches(3), verbose=0)
  assert len(beside()) == 4 and account.slots['march'].used > 64
  assert account.guarantee().upper >= whole.get_epsilon(1e-5)


def test_releases_that_do_not_fit_stop_the_training(account):
  plan = plan_of(releases=[dp_accounting.GaussianDpEvent(0.02)])
  model = privatized(plan, account=account)
  for _ in range(2):
    with pytest.raises(ValueError, match='release nothing'):
      model.fit(_batches(3), verbose=0)
  assert model.released_steps == 0 == account.slots['training'].used


def test_steps_outside_of_fit_are_refused(account):
  model = privatized(account=account)
  with pytest.raises(Exception, match='one of fit'):
    model.train_on_batch(X, Y)
  model = privatized(account=account, model=inner())
  model.fit(_batches(2), verbose=0)
  model.inner.layers[-1].kernel.assign(tf.ones((6, 3)))
  with pytest.raises(Exception, match='nothing else changed'):
    model.fit(_batches(2), verbose=0)


def test_a_slot_for_other_steps_is_refused_before_anything_is_entered(tmp_path):
  planned = plan_of(noise=tfcactus.Gaussian(9.0))
  account = tfcactus.DataAccount(tmp_path / 'account', epsilon=30, delta=1e-5, slots={
      'march': (planned.step_event, planned.steps)})
  plan = plan_of(releases=[accounting.noise_event(tfcactus.Gaussian(40.0))])
  model = privatized(plan, account=account, account_label='march')
  with pytest.raises(ValueError, match="got 'march', a slot for .*=9.0"):
    model.fit(_batches(1), verbose=0)
  assert not account.entries


def test_steps_that_a_callback_loads_are_paid_for(account, tmp_path):
  path = tmp_path / 'w.weights.h5'
  before, model = privatized(), privatized(account=account, model=inner())
  before.fit(_batches(5), verbose=0)
  before.save_weights(path)
  load = tf.keras.callbacks.LambdaCallback(
      on_train_begin=lambda logs: model.load_weights(path))
  model.fit(_batches(3), verbose=0, callbacks=[load])
  assert model.guarantee().steps == 8
  assert account.slots['training'].used == 5 + paid_steps.BLOCK


def test_releases_of_another_run_are_not_those_of_steps_without_account(
    account, tmp_path):
  plan = plan_of(releases=[dp_accounting.GaussianDpEvent(40.0)])
  path = tmp_path / 'w.weights.h5'
  unpaid = privatized(plan)
  unpaid.fit(_batches(1), verbose=0)
  unpaid.save_weights(path)
  for _ in range(2):
    model = privatized(plan, account=account, model=inner())
    model.load_weights(path)
    model.fit(_batches(1), verbose=0)
  labels = [entry['label'] for entry in account.entries]
  assert labels.count('training, beside steps') == 2


def test_paying_joins_no_segments_that_fit():
  record = counts.Record(1)
  record.merge_counts(counts.Counts(tuple(
      (2 * number, 1, 0) for number in range(1, counts.MAX_SEGMENTS + 1))))
  assert record.pay() == record.merge_counts()
  assert record.released_steps == counts.MAX_SEGMENTS
  assert not record.merge_counts().unpaid.segments
