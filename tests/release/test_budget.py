"""Releases and training in one accountant and one budget."""

import dataclasses

import dp_accounting
import pytest

import tfcactus
from tfcactus import guarantee as guarantee_lib, relations, release
from tfcactus.sampling import OnePassSampling

SETTINGS = {'noise': tfcactus.Gaussian(1.3), 'l2_norm_clip': 1.0,
            'num_examples': 1000, 'sampling_prob': 0.05, 'steps': 40,
            'delta': 1e-5}


def statistics():
  law = tfcactus.SinhNormal(8.0, 40.0)
  return [
      release.histogram([1, 2, 2], num_bins=4, noise=law),
      release.quantile([1.0, 2.0], 0.5, low=0, high=3, noise=law, resolution=1),
      release.gap_max([1, 5], sensitivity=1, noise=tfcactus.Gaussian(9.0))]


def test_one_accountant_takes_both():
  made = statistics()
  plan = tfcactus.PrivacyPlan(**SETTINGS)
  accountant = tfcactus.PhiAccountant()
  for one in made:
    accountant.compose(one.event)
  alone = accountant.get_epsilon(1e-5)
  accountant.compose(plan.step_event, plan.steps)
  whole = accountant.get_epsilon(1e-5)
  assert max(alone, plan.guarantee().upper) < whole < (
      alone + plan.guarantee().upper)
  beside = tfcactus.PrivacyPlan(**SETTINGS, releases=made)
  assert beside.guarantee().upper == pytest.approx(whole, rel=1e-12)
  assert beside.guarantee(0).upper == pytest.approx(alone, rel=1e-12)
  assert '3 statistics' in beside.guarantee().statement
  truncated = tfcactus.accounting.TCDPAccountant()
  for one in made:
    truncated.compose(one.event)
  assert truncated.get_epsilon(1e-5) > alone


def test_the_budget_leaves_fewer_steps():
  made = statistics()
  free = tfcactus.PrivacyPlan(**SETTINGS)
  beside = tfcactus.PrivacyPlan(**SETTINGS, releases=made)
  budget = free.guarantee().upper
  assert free.steps_within(budget) == 40
  left = beside.steps_within(budget)
  assert 0 < left < 40
  assert beside.guarantee(left).upper <= budget < beside.guarantee(
      left + 1).upper


def test_events_serve_as_well_as_results():
  event = dp_accounting.GaussianDpEvent(5.0)
  one = tfcactus.PrivacyPlan(**SETTINGS, releases=[event])
  assert one.guarantee(0).upper == tfcactus.PhiAccountant().compose(
      event).get_epsilon(1e-5)
  replaced = one.guarantee(2, sampling=OnePassSampling)
  assert replaced.upper > tfcactus.PrivacyPlan(
      **SETTINGS).guarantee(2, sampling=OnePassSampling).upper


@pytest.mark.parametrize('event', [
    dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(2.0), 20),
    dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(1.0), 1000),
    dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0)),
    dp_accounting.SampledWithoutReplacementDpEvent(
        100, 5, dp_accounting.GaussianDpEvent(2.0)),
    dp_accounting.ComposedDpEvent([dp_accounting.LaplaceDpEvent(3.0)] * 3)])
def test_an_event_with_an_event_inside_is_kept_whole(event):
  """A thousand releases once counted as one: an epsilon of 4.4 instead of 634."""
  plan = tfcactus.PrivacyPlan(**SETTINGS, releases=[event])
  alone = tfcactus.PhiAccountant().compose(event).get_epsilon(1e-5)
  assert plan.releases == (event,)
  assert plan.guarantee(0).upper == alone
  again = dataclasses.replace(plan, steps=41)
  assert again.releases == (event,) and again.guarantee(0).upper == alone
  assert dataclasses.replace(again, releases=plan.releases).guarantee(
      0).upper == alone


def test_releases_stay_what_they_are_when_a_plan_is_replaced():
  made = release.quantile([1.0, 2.0], 0.5, low=0, high=3, resolution=1,
                          noise=tfcactus.Gaussian(4.0))
  plan = tfcactus.PrivacyPlan(**SETTINGS, releases=[made])
  again = dataclasses.replace(plan, delta=1e-5)
  assert again.releases == (made.event,)
  assert again.guarantee() == plan.guarantee()


class _Lookalike:
  event = dp_accounting.GaussianDpEvent(9.0)


def test_a_seeded_release_is_no_part_of_a_guarantee():
  seeded = release.histogram([1], num_bins=2, noise=tfcactus.Gaussian(5.0), seed=1)
  with pytest.raises(ValueError, match='without a seed'):
    tfcactus.PrivacyPlan(**SETTINGS, releases=[seeded])
  assert tfcactus.PrivacyPlan(**SETTINGS, releases=[seeded.event])


def test_releases_and_training_under_replaced_records():
  """A release that is not sampled counts at twice its sensitivity."""
  statistic = dp_accounting.GaussianDpEvent(8.0)
  plan = tfcactus.PrivacyPlan(**SETTINGS, releases=[statistic])
  replace = dp_accounting.NeighboringRelation.REPLACE_ONE
  accountant = tfcactus.PhiAccountant(replace)
  accountant.compose(plan.step_event, plan.steps).compose(statistic)
  whole = plan.guarantee(neighboring_relation=replace)
  assert whole.upper == accountant.get_epsilon(1e-5)
  assert whole.lower > tfcactus.PrivacyPlan(**SETTINGS).guarantee(
      neighboring_relation=replace).upper
  assert whole.upper > plan.guarantee().upper
  alone = plan.guarantee(0, replace)
  assert alone.upper == pytest.approx(tfcactus.PhiAccountant().compose(
      dp_accounting.GaussianDpEvent(4.0)).get_epsilon(1e-5), rel=1e-9)
  zeroed = plan.guarantee(neighboring_relation='zero-out')
  assert zeroed.upper == plan.guarantee().upper


def test_a_release_whose_pair_is_for_another_relation_is_refused():
  pair = tfcactus.accounting.DominatingPair.from_masses([.6, .4], [.4, .6])
  plan = tfcactus.PrivacyPlan(
      **SETTINGS, releases=[tfcactus.accounting.DominatingPairDpEvent(pair)])
  assert plan.guarantee().upper > 0
  for relation in ('zero-out', 'replace'):
    with pytest.raises(ValueError, match='Expected releases with a known cost'):
      plan.guarantee(neighboring_relation=relation)


_PAIR_EVENT = tfcactus.accounting.DominatingPairDpEvent(
    tfcactus.accounting.DominatingPair.from_masses([.6, .4], [.4, .6]))


@pytest.mark.parametrize('event', [
    _PAIR_EVENT, dp_accounting.SelfComposedDpEvent(_PAIR_EVENT, 3),
    dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(9.0), _PAIR_EVENT]),
    dp_accounting.SelfComposedDpEvent(dp_accounting.ComposedDpEvent(
        [dp_accounting.SelfComposedDpEvent(_PAIR_EVENT, 2)]), 2),
    dp_accounting.PoissonSampledDpEvent(0.1, _PAIR_EVENT)])
def test_a_pair_that_was_handed_in_is_named_as_a_condition(event):
  """The guarantee says that the pair's dominance is assumed."""
  beside = dp_accounting.GaussianDpEvent(8.0)
  found = tfcactus.PrivacyPlan(**SETTINGS, releases=[beside, event]).guarantee()
  condition, = found.conditions
  assert 'DominatingPairDpEvent' in condition and 'monotone' in condition
  assert found.statement.endswith(condition) and 'on conditions' in str(found)
  whole, none = (guarantee_lib.guarantee(
      event, count, 1e-5, relations.ADD_OR_REMOVE, statement='A.') for count in (2, 0))
  assert whole.conditions == found.conditions and none.conditions == ()
  without = tfcactus.PrivacyPlan(**SETTINGS, releases=[beside]).guarantee()
  assert without.conditions == () and 'DominatingPair' not in without.statement


def test_a_statistic_says_whom_it_protects():
  made = statistics()[0]
  one, other, zeroed = (
      made.guarantee(1e-6, relation) for relation in (
          dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
          dp_accounting.NeighboringRelation.REPLACE_ONE,
          dp_accounting.NeighboringRelation.REPLACE_SPECIAL))
  assert 'added to or removed' in one.statement
  assert 'replaced by any other' in other.statement
  assert 'contributes zero' in zeroed.statement
  assert one.upper == zeroed.upper < other.upper


@pytest.mark.parametrize('bad', [
    None, 3, 'x', dp_accounting.GaussianDpEvent(1.0), [_Lookalike()], [None],
    {dp_accounting.GaussianDpEvent(1.0)},
    [dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(1.0), -1)],
    [dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(1.0), 0.5)],
    [3], ['x'], [dp_accounting.UnsupportedDpEvent()],
    [tfcactus.accounting.TCDPDpEvent(tfcactus.accounting.TCDP(0.1, 5))]])
def test_what_has_no_exact_cost_is_refused(bad):
  with pytest.raises(ValueError, match='Expected releases'):
    tfcactus.PrivacyPlan(**SETTINGS, releases=bad)


def test_sinh_normal_noise_in_a_plan_protects_scalars_only():
  law = tfcactus.SinhNormal(2.0, 4.0)
  settings = {**SETTINGS, 'noise': law}
  assert tfcactus.PrivacyPlan(**settings, dim=1).guarantee().upper > 0
  with pytest.raises(ValueError, match='scalar noise'):
    tfcactus.PrivacyPlan(**settings, dim=5)
  with pytest.raises(ValueError, match='bend >= sigma'):
    tfcactus.PrivacyPlan(**{**SETTINGS, 'noise': tfcactus.SinhNormal(4., 2.)})
