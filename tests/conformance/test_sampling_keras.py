"""Tests of every sampling scheme in Keras: batches, `fit`, ledger, guarantee."""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import numpy as np
import pytest

pytest.importorskip('tensorflow')

import tensorflow as tf

from tests.conformance import sampling_cases as cases
from tests.conformance.sampling_cases import each_case  # noqa: F401
from tests.keras.conftest import random_sums  # noqa: F401
from tests.representatives import representatives
import tfcactus
from tfcactus import keras as ours, sampling
from tfcactus.keras.data.base import SampledBatches

pytestmark = pytest.mark.usefixtures('random_sums')

ALL = (*cases.CASES, cases.TOY)
X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 2, 40)

_one_scheme = representatives('case', ALL, ids=cases.id_of, indirect=True)


def _plan(case):
  return tfcactus.PrivacyPlan(
      noise=tfcactus.Gaussian(2.0), l2_norm_clip=1.0, num_examples=40,
      sampling_prob=0.25, steps=100, delta=1e-5, **case.settings)


def _compiled(model, optimizer='sgd'):
  model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(
      from_logits=True, reduction='none'))
  return model


def _plain():
  return tf.keras.Sequential([
      tf.keras.layers.Input((3,)), tf.keras.layers.Dense(2)])


def _private(case, **kwargs):
  return _compiled(ours.privatize(_plain(), _plan(case), **kwargs))


def _by_hand(case, epochs, relation=None):
  """Returns the plan's guarantee for epochs of four batches."""
  count = epochs if case.scheme.draws_epochs else 4 * epochs
  return _plan(case).guarantee(count, relation, sampling=type(case.scheme))


def test_batches_hold_what_the_scheme_drew(case):
  batches = SampledBatches(X, np.arange(40), case.scheme, seed=1)
  assert len(batches) == 4
  for x, y, weights in batches:
    drawn = y[weights == 1]
    assert len(set(drawn)) == len(drawn)
    np.testing.assert_array_equal(x[weights == 1], X[drawn])
  assert batches.draws == (1 if case.scheme.draws_epochs else 4)


def test_fit_is_accounted_as_the_plan_accounts(case, tmp_path):
  private = _private(case, journal=tmp_path / 'journal')
  callback = ours.EpsilonCallback(run_card=tmp_path / 'card.json')
  history = private.fit(SampledBatches(X, Y, case.scheme), epochs=2, verbose=0,
                        callbacks=[callback]).history
  ledger = private.ledger()
  assert ledger.scheme is type(case.scheme) and ledger.steps == 8
  assert private.guarantee() == callback.guarantee == _by_hand(case, 2)
  assert history['epsilon'] == [_by_hand(case, n).upper for n in (1, 2)]
  for relation in case.scheme.relations:
    assert private.guarantee(relation) == _by_hand(case, 2, relation)
  card = ours.make_run_card(private)
  assert card['sampling'] == case.scheme.name
  assert card['epsilon']['upper'] == private.guarantee().upper
  assert private._ledger.counter.journal.entry == private._ledger.record.merge_counts()


@_one_scheme
def test_a_ledger_computes_each_guarantee_once(case, tmp_path, monkeypatch):
  found = []
  real = tfcactus.PrivacyPlan.guarantee
  monkeypatch.setattr(
      tfcactus.PrivacyPlan, 'guarantee',
      lambda plan, steps=None, relation=None, **kwargs: found.append(
          (steps, relation)) or real(plan, steps, relation, **kwargs))
  private = _private(case)
  private.fit(SampledBatches(X, Y, case.scheme), verbose=0, callbacks=[
      ours.EpsilonCallback(run_card=tmp_path / 'card.json')])
  private.guarantee()
  ours.make_run_card(private)
  assert len(found) == len(set(found))


@_one_scheme
def test_a_file_keeps_the_scheme(case, tmp_path):
  private = _private(case)
  private.fit(SampledBatches(X, Y, case.scheme), verbose=0)
  private.save(tmp_path / 'm.keras')
  again = tf.keras.models.load_model(tmp_path / 'm.keras')
  assert again.ledger() == private.ledger()
  assert again.guarantee() == private.guarantee()


@_one_scheme
def test_budgets_stop_in_time(case):
  private = _private(case)
  target = _by_hand(case, 2).upper + 1e-9
  private.fit(SampledBatches(X, Y, case.scheme), epochs=5, verbose=0,
              callbacks=[ours.EpsilonCallback(target_epsilon=target)])
  assert private.ledger().steps == 8 and private.guarantee().upper <= target


@_one_scheme
def test_mixed_or_unlisted_schemes_give_no_guarantee(
    case, monkeypatch):
  private = _private(case)
  private.fit(SampledBatches(X, Y, case.scheme), verbose=0)
  other = next(one.scheme for one in cases.CASES
               if one is not case and one.settings == case.settings)
  private.fit(SampledBatches(X, Y, other), verbose=0)
  with pytest.raises(ValueError, match='some in another'):
    private.guarantee()
  monkeypatch.setattr(sampling, 'SCHEMES', ())
  unlisted = _private(case)
  unlisted.fit(SampledBatches(X, Y, case.scheme), verbose=0)
  with pytest.raises(ValueError, match='unknown'):
    unlisted.guarantee()


@_one_scheme
def test_guarantees_name_seeds(case):
  private = _private(case)
  private.fit(SampledBatches(X, Y, case.scheme, seed=3), verbose=0)
  assert private.guarantee().seeded
  assert 'SEEDED (batches)' in private.guarantee().statement


def test_other_plans_are_refused(case):
  for other in case.others:
    x = np.zeros((other.num_examples, 3), np.float32)
    with pytest.raises(ValueError, match='Expected batches with'):
      _private(case).fit(SampledBatches(x, np.zeros(len(x)), other), verbose=0)


@_one_scheme
def test_drop_in_optimizers_offer_the_same_ledger(case):
  batches = SampledBatches(X, Y, case.scheme)
  if case.scheme.draws_epochs:
    with pytest.raises(ValueError, match='each of which is a draw'):
      ours.EpsilonCallback(batches=batches)
    return
  model = _compiled(_plain(), ours.DPKerasSGDOptimizer.from_plan(_plan(case)))
  callback = ours.EpsilonCallback(batches=batches)
  model.fit(batches, epochs=2, verbose=0, callbacks=[callback])
  by_hand = _by_hand(case, 2)
  assert callback.guarantee.upper == by_hand.upper
  assert callback.guarantee.statement.startswith(by_hand.statement)
  assert callback.guarantee.conditions
