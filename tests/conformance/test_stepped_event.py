"""Tests that every accountant takes an event that returns its own pairs."""

import math

import dp_accounting
import pytest

from tests.conformance.accountants import ACCOUNTANTS
from tests.conformance.half_and_half import ADD_OR_REMOVE, HalfAndHalfDpEvent
from tests.fuzz import oracles
import tfcactus
from tfcactus import accounting

EVENT = HalfAndHalfDpEvent(0.7)


def truth(epsilon, count):
  """Returns the exact delta of both directions, from the four outcomes."""
  mixed, plain = [.21, .29, .29, .21], [.49, .21, .21, .09]
  return max(oracles.composed_delta(mixed, plain, count, epsilon),
             oracles.composed_delta(plain, mixed, count, epsilon))


@pytest.mark.parametrize('name', list(ACCOUNTANTS))
def test_every_accountant_takes_the_event(name):
  accountant = ACCOUNTANTS[name]().compose(EVENT, 3)
  for delta in (1e-4, 0.1):
    assert truth(accountant.get_epsilon(delta), 3) <= delta * (1 + 1e-9)
  assert ACCOUNTANTS[name]().compose(HalfAndHalfDpEvent(0.7)).compose(
      dp_accounting.SelfComposedDpEvent(EVENT, 2)).get_epsilon(
          0.1) == accountant.get_epsilon(0.1)


def test_its_delta_is_exact():
  for count in (1, 5):
    lower, _, upper = accounting.PhiAccountant().compose(
        EVENT, count).delta_bounds(0.3)
    assert lower <= truth(0.3, count) <= upper <= lower * (1 + 1e-9)


@pytest.mark.parametrize('relation', [
    relation for relation in dp_accounting.NeighboringRelation
    if relation != ADD_OR_REMOVE])
def test_relations_without_a_proof_are_refused_in_words(relation):
  with pytest.raises(dp_accounting.UnsupportedEventError,
                     match=f'proof for ADD_OR_REMOVE_ONE, none for {relation.name}'):
    accounting.PhiAccountant(relation).compose(EVENT)


@pytest.mark.parametrize('sampled', [
    dp_accounting.PoissonSampledDpEvent(0.5, EVENT),
    dp_accounting.SampledWithoutReplacementDpEvent(10, 10, EVENT)])
def test_sampling_the_event_again_is_refused(sampled):
  with pytest.raises(dp_accounting.UnsupportedEventError, match='samples itself'):
    accounting.PhiAccountant().compose(sampled)


def test_it_composes_with_other_events():
  both = accounting.PhiAccountant().compose(dp_accounting.ComposedDpEvent(
      [EVENT, dp_accounting.GaussianDpEvent(2.0)]))
  assert math.inf > both.get_epsilon(1e-3) > accounting.PhiAccountant().compose(
      EVENT).get_epsilon(1e-3)


def test_plans_name_events_from_outside_as_a_condition():
  settings = dict(noise=tfcactus.Gaussian(2.0), l2_norm_clip=1.0, num_examples=1000,
                  sampling_prob=0.01, steps=10, delta=1e-5)
  for event in (EVENT, dp_accounting.SelfComposedDpEvent(EVENT, 2)):
    plan = tfcactus.PrivacyPlan(**settings, releases=[event])
    condition, = plan.guarantee().conditions
    assert 'SteppedDpEvent from outside of tfcactus' in condition
  own = accounting.ExponentialMechanismDpEvent(0.1)
  assert not tfcactus.PrivacyPlan(**settings, releases=[own]).guarantee().conditions
