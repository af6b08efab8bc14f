"""Batches of fixed size and passes in random order, and what they cost."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import inner as _inner, NONE as _NONE, X as _X, Y as _Y
import tfcactus
from tfcactus.keras import (
  DPKerasSGDOptimizer,
  EpsilonCallback,
  FixedSizeBatches,
  PoissonBatches,
  privatize,
  ShuffledBatches,
)
from tfcactus.keras.ledger import counts
from tfcactus.sampling import FixedSizeSampling, OnePassSampling, PoissonSampling


def _private(plan, **kwargs):
  private = privatize(_inner(), plan, **kwargs)
  private.compile('sgd', _NONE)
  return private


def _real_plan(**changes):
  return tfcactus.PrivacyPlan(**{**dict(
      noise=tfcactus.Gaussian(2.0), l2_norm_clip=1.0, num_examples=40,
      sampling_prob=0.25, steps=100, delta=1e-5), **changes})


def _ids(batches):
  return [y[weights == 1] for _, y, weights in batches]


def test_batches_of_fixed_size_are_fresh_subsets():
  batches = FixedSizeBatches(_X, np.arange(40), 10)
  assert len(batches) == 4
  drawn = _ids(batches) + _ids(batches)
  assert all(len(set(ids)) == 10 for ids in drawn)
  assert len({tuple(ids) for ids in drawn}) == batches.draws == 8
  np.testing.assert_array_equal(
      *[_ids(FixedSizeBatches(_X, np.arange(40), 7, seed=1))] * 2)
  x, y, _ = FixedSizeBatches(_X, np.arange(40), 7)[0]
  np.testing.assert_array_equal(x, _X[y])


def test_a_shuffled_pass_holds_each_example_once():
  batches = ShuffledBatches(_X, np.arange(40), 12)
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
def test_broken_examples_and_other_processes(kind):
  x = _X.copy()
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
def test_each_way_is_accounted_as_itself(kind, sampling, steps, cost):
  plan = _real_plan()
  private, callback = _private(plan), EpsilonCallback()
  batches = kind(_X, _Y, 0.25 if kind is PoissonBatches else 10)
  history = private.fit(batches, epochs=2, callbacks=[callback],
                        verbose=0).history
  ledger = private.ledger()
  assert (ledger.sampling, ledger.steps) == (sampling, steps)
  assert private.guarantee() == callback.guarantee == cost(plan)
  assert history['epsilon'][-1] == cost(plan).upper
  other = PoissonBatches if kind is FixedSizeBatches else FixedSizeBatches
  private.fit(other(_X, _Y, 0.25 if other is PoissonBatches else 10), verbose=0)
  assert private.ledger().sampling == counts.MIXED
  with pytest.raises(ValueError, match='some in another'):
    private.guarantee()


def test_budgets_of_samples_of_fixed_size():
  plan = _real_plan()
  private = _private(plan)
  target = plan.guarantee(6, sampling=FixedSizeSampling).upper + 1e-9
  private.fit(FixedSizeBatches(_X, _Y, 10), epochs=5, verbose=0,
              callbacks=[EpsilonCallback(target_epsilon=target)])
  assert private.guarantee().steps == 6


def test_a_broken_pass_counts_as_one(make_plan, tmp_path):
  private = _private(make_plan(), journal=tmp_path / 'journal')

  def stop(batch, logs):
    raise KeyboardInterrupt

  stopping = tf.keras.callbacks.LambdaCallback(on_train_batch_end=stop)
  for _ in range(2):
    with pytest.raises(KeyboardInterrupt):
      private.fit(ShuffledBatches(_X, _Y, 10), verbose=0, callbacks=[stopping])
  assert private.guarantee().steps == 2
  assert private._ledger.counter.journal.entry[:3] == (
      32, 2, OnePassSampling.code)


def test_a_drop_in_optimizer_on_batches_of_fixed_size():
  plan, model = _real_plan(), _inner()
  model.compile(DPKerasSGDOptimizer.from_plan(plan), _NONE)
  batches = FixedSizeBatches(_X, _Y, 10)
  history = model.fit(batches, verbose=0, callbacks=[
      EpsilonCallback(batches=batches)]).history
  assert history['epsilon'] == [plan.guarantee(4, sampling=FixedSizeSampling).upper]


@pytest.mark.parametrize('call, words', [
    (lambda p: p.fit(FixedSizeBatches(_X, _Y, 9)), 'batch_size=10'),
    (lambda p: p.fit(FixedSizeBatches(_X[:20], _Y[:20], 10)),
     'num_examples=40'),
    (lambda p: p.fit(ShuffledBatches(_X[:20], _Y[:20], 10)), 'num_examples=40'),
    (lambda p: p.fit(ShuffledBatches(_X, _Y, 10), steps_per_epoch=2),
     'steps_per_epoch=None'),
    (lambda p: p.fit(FixedSizeBatches(_X, _Y, 10), _Y), 'FixedSizeBatches, wh'),
    (lambda p: FixedSizeBatches(_X, _Y), 'batch_size to be an integer'),
    (lambda p: FixedSizeBatches(_X, _Y, 41), 'at most num_examples=40'),
    (lambda p: ShuffledBatches(_X, _Y, 0), 'batch_size >= 1'),
    (lambda p: FixedSizeBatches(_X, _Y, 10, steps_per_epoch=0), '>= 1'),
    (lambda p: EpsilonCallback(batches=ShuffledBatches(_X, _Y, 10)),
     'PoissonBatches or FixedSizeBatches'),
])
def test_refusals_in_words(make_plan, call, words):
  with pytest.raises(ValueError, match=words):
    call(_private(make_plan()))
