"""Tests of batches of fixed size and of shuffled passes, and of their cost."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import inner, NONE, plan_of, privatized, X, Y
import tfcactus
from tfcactus.keras import (
  DPKerasSGDOptimizer,
  EpsilonCallback,
  FixedSizeBatches,
  PoissonBatches,
  ShuffledBatches,
)
from tfcactus.keras.ledger import counts
from tfcactus.sampling import FixedSizeSampling, OnePassSampling, PoissonSampling

pytestmark = pytest.mark.usefixtures('random_sums')
_PLAN = plan_of(noise=tfcactus.Gaussian(2.0))


def _ids(batches):
  return [y[weights == 1] for _, y, weights in batches]


def test_batches_of_fixed_size_are_fresh_subsets():
  batches = FixedSizeBatches(X, np.arange(40), 10)
  assert len(batches) == 4
  drawn = _ids(batches) + _ids(batches)
  assert all(len(set(ids)) == 10 for ids in drawn)
  assert len({tuple(ids) for ids in drawn}) == batches.draws == 8
  np.testing.assert_array_equal(
      *[_ids(FixedSizeBatches(X, np.arange(40), 7, seed=1))] * 2)
  x, y, _ = FixedSizeBatches(X, np.arange(40), 7)[0]
  np.testing.assert_array_equal(x, X[y])


def test_a_shuffled_pass_holds_each_example_once():
  batches = ShuffledBatches(X, np.arange(40), 12)
  passes = [_ids(batches) for _ in range(2)]
  for ids in passes:
    assert [len(part) for part in ids] == [12, 12, 12, 4]
    assert sorted(np.concatenate(ids)) == list(range(40))
  assert not np.array_equal(*[np.concatenate(ids) for ids in passes])
  feed = batches.feed()
  assert sorted(np.concatenate([y for _, y, _ in feed.as_numpy_iterator()])
               ) == list(range(40))
  assert len(batches) == feed.cardinality() == 4 and batches.draws == 3


@pytest.mark.parametrize('kind', [FixedSizeBatches, ShuffledBatches])
def test_broken_examples_are_left_out_and_forked_processes_raise(kind):
  x = X.copy()
  x[3, 2] = np.nan
  batches = kind(x, np.arange(40), 40)
  assert sorted(_ids(batches)[0]) == [i for i in range(40) if i != 3]
  batches._pid += 1
  with pytest.raises(RuntimeError, match='forked'):
    list(batches)


@pytest.mark.parametrize('kind, sampling, steps, cost', [
    (FixedSizeBatches, FixedSizeSampling.code, 8,
     lambda plan: plan.guarantee(8, sampling=FixedSizeSampling)),
    (ShuffledBatches, OnePassSampling.code, 8,
     lambda plan: plan.guarantee(2, sampling=OnePassSampling)),
    (PoissonBatches, PoissonSampling.code, 8, lambda plan: plan.guarantee(8)),
])
def test_each_kind_of_batches_is_accounted_by_its_scheme(kind, sampling, steps, cost):
  plan = _PLAN
  private, callback = privatized(plan), EpsilonCallback()
  batches = kind(X, Y, 0.25 if kind is PoissonBatches else 10)
  history = private.fit(batches, epochs=2, callbacks=[callback],
                        verbose=0).history
  ledger = private.ledger()
  assert (ledger.sampling, ledger.steps) == (sampling, steps)
  assert private.guarantee() == callback.guarantee == cost(plan)
  assert history['epsilon'][-1] == cost(plan).upper
  other = PoissonBatches if kind is FixedSizeBatches else FixedSizeBatches
  private.fit(other(X, Y, 0.25 if other is PoissonBatches else 10), verbose=0)
  assert private.ledger().sampling == counts.MIXED
  with pytest.raises(ValueError, match='some in another'):
    private.guarantee()


def test_a_budget_stops_training_on_batches_of_fixed_size():
  plan = _PLAN
  private = privatized(plan)
  target = plan.guarantee(6, sampling=FixedSizeSampling).upper + 1e-9
  private.fit(FixedSizeBatches(X, Y, 10), epochs=5, verbose=0,
              callbacks=[EpsilonCallback(target_epsilon=target)])
  assert private.guarantee().steps == 6


def test_a_pass_that_is_broken_off_counts_as_one(make_plan, tmp_path):
  private = privatized(make_plan(), journal=tmp_path / 'journal')

  def stop(batch, logs):
    raise KeyboardInterrupt

  stopping = tf.keras.callbacks.LambdaCallback(on_train_batch_end=stop)
  for _ in range(2):
    with pytest.raises(KeyboardInterrupt):
      private.fit(ShuffledBatches(X, Y, 10), verbose=0, callbacks=[stopping])
  assert private.guarantee().steps == 2
  entry = private._ledger.counter.journal.entry
  assert (entry.released_steps, entry.epochs_begun, entry.sampling) == (
      32, 2, OnePassSampling.code)


def test_a_drop_in_optimizer_reports_epsilon_of_batches_of_fixed_size():
  plan, model = _PLAN, inner()
  model.compile(DPKerasSGDOptimizer.from_plan(plan), NONE)
  batches = FixedSizeBatches(X, Y, 10)
  history = model.fit(batches, verbose=0, callbacks=[
      EpsilonCallback(batches=batches)]).history
  assert history['epsilon'] == [plan.guarantee(4, sampling=FixedSizeSampling).upper]


@pytest.mark.parametrize('call, words', [
    (lambda p: p.fit(FixedSizeBatches(X, Y, 9)), 'batch_size=10'),
    (lambda p: p.fit(FixedSizeBatches(X[:20], Y[:20], 10)),
     'num_examples=40'),
    (lambda p: p.fit(ShuffledBatches(X[:20], Y[:20], 10)), 'num_examples=40'),
    (lambda p: p.fit(ShuffledBatches(X, Y, 10), steps_per_epoch=2),
     'steps_per_epoch=None'),
    (lambda p: p.fit(FixedSizeBatches(X, Y, 10), Y), 'FixedSizeBatches, wh'),
    (lambda p: FixedSizeBatches(X, Y), 'batch_size to be an integer'),
    (lambda p: FixedSizeBatches(X, Y, 41), 'at most num_examples=40'),
    (lambda p: ShuffledBatches(X, Y, 0), 'batch_size >= 1'),
    (lambda p: FixedSizeBatches(X, Y, 10, steps_per_epoch=0), '>= 1'),
    (lambda p: EpsilonCallback(batches=ShuffledBatches(X, Y, 10)),
     'PoissonBatches or FixedSizeBatches'),
])
def test_batches_other_than_those_of_the_plan_raise(make_plan, call, words):
  with pytest.raises(ValueError, match=words):
    call(privatized(make_plan()))
