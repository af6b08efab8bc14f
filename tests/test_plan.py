"""Privacy plans: guarantees, calibration, sampling schemes and what is refused."""

import dataclasses
import math

import dp_accounting
import dp_accounting.rdp
import numpy as np
import pytest

from tests.noise.tables import gaussian_radial, gaussian_scalar, wavy_scalar
from tests.representatives import representatives
import tfcactus
from tfcactus import _format, accounting, correlated, noise
from tfcactus.sampling import (
  CyclicPoissonSampling,
  FixedSizeSampling,
  OnePassSampling,
  PoissonSampling,
  RandomAllocationSampling,
)

SETTINGS = dict(noise=noise.Gaussian(1.3), l2_norm_clip=1.5,
                num_examples=60_000, sampling_prob=250 / 60_000, steps=1200,
                delta=1e-5)


def plan(**changes):
  return tfcactus.PrivacyPlan(**{**SETTINGS, **changes})


def test_guarantee_is_what_the_accountant_says():
  guarantee = plan().guarantee()
  accountant = tfcactus.PhiAccountant().compose(plan().step_event, 1200)
  assert guarantee.upper == accountant.get_epsilon(1e-5)
  assert guarantee.lower <= guarantee.estimate <= guarantee.upper
  assert guarantee.proven
  assert guarantee.neighboring_relation == 'add-or-remove-one'
  assert '1200 noisy sums' in guarantee.statement
  assert 'epsilon <=' in str(guarantee)


def test_nothing_released_costs_nothing():
  assert plan().guarantee(0).upper == 0


def test_more_steps_cost_more():
  costs = [plan().guarantee(steps).upper for steps in (1, 10, 100, 1200)]
  assert costs == sorted(costs) and costs[0] < costs[-1]


def test_expected_batch_size():
  assert plan().expected_batch_size == pytest.approx(250)


def test_steps_within_stops_before_the_budget():
  steps = plan().steps_within(0.4)
  assert plan().guarantee(steps).upper <= 0.4
  assert plan().guarantee(steps + 1).upper > 0.4
  assert plan().steps_within(100.0) == 1200
  assert plan().steps_within(1e-6) == 0


def test_samples_of_fixed_size_cost_as_poisson_ones_at_half_the_noise():
  """Zhu et al., section 4.1, subsample the pair for replaced records."""
  fixed = plan().guarantee(300, sampling=FixedSizeSampling)
  half = plan(noise=noise.Gaussian(0.65)).guarantee(300)
  assert fixed.upper == pytest.approx(half.upper, rel=1e-9)
  assert fixed.neighboring_relation == 'add-or-remove-one'
  assert '250 of 60000' in fixed.statement
  assert fixed.upper > 2 * plan().guarantee(300).upper
  # dp_accounting takes the multiplier as of the sensitivity to replacing.
  renyi = dp_accounting.rdp.RdpAccountant(
      neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
  renyi.compose(dp_accounting.SampledWithoutReplacementDpEvent(
      60_000, 250, dp_accounting.GaussianDpEvent(0.65)), 300)
  assert fixed.upper < renyi.get_epsilon(1e-5)
  steps = plan().steps_within(1.5, sampling=FixedSizeSampling)
  assert plan().guarantee(steps, sampling=FixedSizeSampling).upper <= 1.5
  assert plan().guarantee(steps + 1, sampling=FixedSizeSampling).upper > 1.5
  with pytest.raises(ValueError, match='got 250.2'):
    plan(sampling_prob=250.2 / 60_000).guarantee(sampling=FixedSizeSampling)


def test_shuffled_epochs_are_accounted_without_amplification():
  """Each example is used once per epoch, without amplification."""
  guarantee = plan(noise=noise.Gaussian(2.0)).guarantee(3, sampling=OnePassSampling)
  # Three Gaussians of sigma 2 at shift 2 are one of mu = sqrt 3.
  mu = math.sqrt(3)
  def normal(x):
    return 0.5 * math.erfc(-x / math.sqrt(2))
  epsilon = guarantee.estimate
  delta = normal(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal(
      -mu / 2 - epsilon / mu)
  assert delta == pytest.approx(1e-5, rel=1e-3)
  assert guarantee.neighboring_relation == 'replace-one'
  assert 'no amplification' in guarantee.statement
  # The statement names the scheme that is amplified.
  other = plan(noise=noise.Gaussian(2.0)).guarantee(
      3, sampling=RandomAllocationSampling)
  assert other.upper < 0.1 * guarantee.upper
  assert (f'AllocatedBatches of 240 batches use each example once an epoch too, for '
          f'epsilon <= {_format.upper(other.upper)} with one added or removed.'
         ) in guarantee.statement
  for silent in (plan(noise=noise.Laplace(2.0), dim=1), plan(sampling_prob=1.0), plan(
      noise=noise.Gaussian(2.0), releases=[dp_accounting.GaussianDpEvent(1.0)])):
    assert 'AllocatedBatches' not in silent.guarantee(
        3, sampling=OnePassSampling).statement


def test_plans_for_random_allocation():
  settings = dict(batch_size=250, num_examples=60_000, epochs=3, delta=1e-5,
                  l2_norm_clip=1.0, sampling=RandomAllocationSampling)
  found = tfcactus.PrivacyPlan.for_training(target_epsilon=1.0, **settings)
  assert (found.sampling_prob, found.steps) == (1 / 240, 720)
  cost = found.guarantee(sampling=RandomAllocationSampling)
  assert 0.999 < cost.upper <= 1.0 and cost.steps == 3
  assert found.guarantee().upper > 1.0  # Poisson batches cost more.
  assert found.steps_within(0.9, sampling=RandomAllocationSampling) < 3
  # Sizes that do not divide: as many batches as are nearest.
  other = tfcactus.PrivacyPlan.for_training(
      noise=noise.Gaussian(1.0), **{**settings, 'batch_size': 256})
  assert (other.sampling_prob, other.steps) == (1 / 234, 702)
  with pytest.raises(ValueError, match='take 1 / 234'):
    plan(sampling_prob=256 / 60_000).guarantee(3, sampling=RandomAllocationSampling)
  for bad in (0, 60_001, 2.5, None):
    with pytest.raises(ValueError, match='batch_size'):
      tfcactus.PrivacyPlan.for_training(
          noise=noise.Gaussian(1.0), **{**settings, 'batch_size': bad})


def test_zero_out_costs_the_same_and_assumes_less():
  """Zeroed examples give the same two laws, and num_examples need not be secret."""
  added, zeroed, replaced = (
      plan().guarantee(100, name)
      for name in ('add-or-remove', 'zero-out', 'replace'))
  assert (zeroed.lower, zeroed.upper) == (added.lower, added.upper)
  assert zeroed.neighboring_relation == 'replace-special'
  assert 'contributes zero' in zeroed.statement
  assert 'assumed' in added.statement and 'assumed' not in zeroed.statement
  assert added.upper < replaced.lower <= replaced.upper < 2.2 * added.upper
  assert replaced.neighboring_relation == 'replace-one'
  assert 'replaced by any other' in replaced.statement
  relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
  assert plan().guarantee(100, relation) == zeroed
  with pytest.raises(ValueError, match='neighboring_relation.*swap'):
    plan().guarantee(100, 'swap')


@representatives('cost', [
    lambda made, relation: made.guarantee(20, relation),
    lambda made, relation: made.guarantee(20, relation, sampling=FixedSizeSampling),
    lambda made, relation: made.guarantee(2, relation, sampling=OnePassSampling)])
def test_every_statement_says_what_is_public(cost):
  for relation in ('add-or-remove', 'zero-out', 'replace'):
    try:
      guarantee = cost(plan(), relation)
    except ValueError as error:
      assert relation == 'add-or-remove' and 'a pass over all' in str(error)
      continue
    assert 'num_examples=60000' in guarantee.statement
    assert f'sampling_prob={250 / 60000!r} ' in guarantee.statement
    assert 'are public constants' in guarantee.statement
    assert ('same number of examples' in guarantee.statement) == (
        relation != 'add-or-remove')


@pytest.mark.more
def test_a_zeroed_example_changes_one_sum_of_a_pass_by_one_clip_norm():
  zeroed = plan(noise=noise.Gaussian(2.0)).guarantee(
      3, 'zero-out', sampling=OnePassSampling)
  replaced = plan(noise=noise.Gaussian(4.0)).guarantee(3, sampling=OnePassSampling)
  assert zeroed.upper == pytest.approx(replaced.upper, rel=1e-9)


def test_fixed_size_samples_under_the_other_relations():
  zeroed, added, replaced = (
      plan().guarantee(300, name, sampling=FixedSizeSampling)
      for name in ('zero-out', 'add-or-remove', 'replace'))
  # Other examples take the place of a zeroed one, unlike under Poisson sampling.
  assert plan().guarantee(300).upper < zeroed.lower
  assert zeroed.upper < added.upper <= replaced.upper


@pytest.mark.slow
def test_budgets_keep_to_the_relation():
  steps = plan().steps_within(0.4, neighboring_relation='replace')
  assert steps < plan().steps_within(0.4)
  assert plan().guarantee(steps, 'replace').upper <= 0.4
  assert plan().guarantee(steps + 1, 'replace').upper > 0.4
  settings = {k: v for k, v in SETTINGS.items() if k not in ('noise', 'steps')}
  found = tfcactus.calibrate_noise_multiplier(
      1.0, noise.Gaussian, tolerance=3e-2, neighboring_relation='replace',
      steps=200, **settings)
  reached = tfcactus.PrivacyPlan(noise=found, steps=200, **settings).guarantee(
      neighboring_relation='replace').upper
  assert 0.8 < reached <= 1.0


def test_conditions_are_said_wherever_a_guarantee_is():
  guarantee = plan().guarantee(1).given('The moon is full.')
  assert 'on conditions that its statement names' in str(guarantee)
  assert guarantee.statement.endswith(' The moon is full.')
  assert guarantee.given('It rains.').conditions == (
      'The moon is full.', 'It rains.')
  assert guarantee.upper == plan().guarantee(1).upper


@pytest.mark.parametrize('bad', [gaussian_scalar(), wavy_scalar(),
                                 noise.Laplace(1.0)])
def test_scalar_noise_for_a_vector_is_refused(bad):
  with pytest.raises(ValueError, match='no valid one-dimensional account'):
    plan(noise=bad, dim=26_010)
  with pytest.raises(ValueError, match='isotropic table of dim=10'):
    plan(noise=bad).check_vector(10)
  plan(noise=bad, dim=1).check_vector(1)


def test_radial_noise_of_another_dimension_is_refused():
  with pytest.raises(ValueError, match='its own dimension only'):
    plan(noise=gaussian_radial(dim=3), dim=4)
  plan(noise=gaussian_radial(dim=3), dim=3)


def test_radial_noise_that_is_not_monotone_is_refused():
  bad = noise.RadialTable.normalized(3, 0.1, 0.1, [0.0, 0.1, -3.0], -1.0)
  with pytest.raises(ValueError, match='never increases'):
    plan(noise=bad)


def test_another_vector_than_planned_is_refused():
  with pytest.raises(ValueError, match='dim=10, as the plan says'):
    plan(dim=10).check_vector(11)


def test_the_published_scalar_account_is_labelled():
  unproven = plan(noise=wavy_scalar(), dim=26_010,
                  accounting='scalar-unproven')
  guarantee = unproven.guarantee(10)
  assert not guarantee.proven
  for text in (str(guarantee), guarantee.statement):
    assert 'NOT a privacy guarantee' in text
  assert 'epsilon <=' not in str(guarantee)
  with pytest.raises(ValueError, match='scalar noise'):
    plan(accounting='scalar-unproven')


def test_plans_are_frozen():
  with pytest.raises(dataclasses.FrozenInstanceError):
    plan().steps = 3


@pytest.mark.parametrize('name', ['noise', 'l2_norm_clip', 'num_examples',
                                  'sampling_prob', 'steps', 'delta', 'dim',
                                  'accounting'])
@pytest.mark.parametrize('value', [math.nan, math.inf, -1, 0, 'x', True, 1e9])
def test_bad_arguments_are_refused_by_name(name, value):
  if (name, value) in (('l2_norm_clip', 1e9), ('num_examples', 1e9)):
    value = [value]
  with pytest.raises(ValueError, match=name):
    plan(**{name: value})


@pytest.mark.parametrize('name, value', [
    ('sampling_prob', 1.0000001), ('delta', 1.0), ('steps', 2.5),
    ('l2_norm_clip', 0.99e-30), ('l2_norm_clip', 1.01e30),
    ('num_examples', 2.5)])
def test_values_just_outside_are_refused(name, value):
  with pytest.raises(ValueError, match=name):
    plan(**{name: value})


def test_calibration_reaches_the_target_from_below():
  settings = {k: v for k, v in SETTINGS.items() if k != 'noise'}
  found = tfcactus.calibrate_noise_multiplier(
      1.0, noise.Gaussian, tolerance=1e-3, **settings)
  reached = plan(noise=found).guarantee().upper
  assert 0.98 < reached <= 1.0
  with pytest.raises(ValueError, match='target_epsilon'):
    tfcactus.calibrate_noise_multiplier(0, noise.Gaussian, **settings)


CORRELATED = dict(sampling_prob=1 / 240, correlation=correlated.BandedStrategy(16))


@representatives('multiplier,bands,epsilon', [
    (1.2, 16, 2.9037306773), (1.5, 30, 2.8826010806), (0.8, 16, 6.6331838572)])
def test_cyclic_poisson_costs_the_visits_of_one_group(multiplier, bands, epsilon):
  # dp_accounting's PLD accountant has seven of these digits.
  found = plan(**{**CORRELATED, 'noise': noise.Gaussian(multiplier),
                  'correlation': correlated.BandedStrategy(bands)}
              ).guarantee(sampling=CyclicPoissonSampling)
  assert found.upper == pytest.approx(epsilon, abs=2e-10)
  pld = dp_accounting.pld.PLDAccountant()
  pld.compose(dp_accounting.PoissonSampledDpEvent(
      bands / 240, dp_accounting.GaussianDpEvent(multiplier)), 5 * 240 // bands)
  assert found.upper == pytest.approx(pld.get_epsilon(1e-5), abs=1e-3)


def test_cyclic_allocation_costs_random_allocation_to_the_visits_of_one_group():
  planned = plan(**CORRELATED)
  event = accounting.RandomAllocationDpEvent(15, planned.noise.dp_event)
  accountant = tfcactus.PhiAccountant().compose(event, 5)
  assert planned.guarantee().upper == accountant.get_epsilon(1e-5)
  assert planned.guarantee().upper < planned.guarantee(
      sampling=CyclicPoissonSampling).upper
  # An epoch that is begun counts whole.
  assert dataclasses.replace(planned, steps=1201).guarantee() == planned.guarantee(6)
  assert plan(**{**CORRELATED, 'steps': 1201}).guarantee().steps == 6


def test_correlated_noise_is_named_and_has_no_epsilon_of_a_step():
  planned = plan(**CORRELATED)
  assert planned.correlation == planned.strategy and planned.groups == 16
  statement = planned.guarantee().statement
  assert f'over 16 steps (banded_toeplitz {planned.strategy.digest})' in statement
  assert 'no single step has a guarantee of its own' in statement
  with pytest.raises(ValueError, match='without a correlation'):
    _ = planned.step_event
  assert plan().strategy is None and plan().groups == 1


@pytest.mark.parametrize('changes,words', [
    ({'noise': noise.Laplace(1.0)}, 'Gaussian noise with a correlation'),
    ({'noise': gaussian_scalar(), 'accounting': 'scalar-unproven'}, 'Gaussian noise'),
    ({'adaptive_clipping': tfcactus.AdaptiveClipping()}, 'no adaptive_clipping'),
    ({'correlation': 'auto'}, 'for_training'), ({'correlation': 16}, 'BandedStrategy'),
    ({'steps': 3}, 'bands=16 of 3 steps')])
def test_correlations_without_a_proof_are_refused(changes, words):
  with pytest.raises(ValueError, match=words):
    plan(**{**CORRELATED, **changes})


@pytest.mark.parametrize('scheme', [
    PoissonSampling, FixedSizeSampling, OnePassSampling, RandomAllocationSampling])
def test_other_batches_have_no_account_under_correlated_noise(scheme):
  with pytest.raises(ValueError, match='CyclicAllocationSampling or Cyclic'):
    plan(**CORRELATED).guarantee(sampling=scheme)
  one = plan(**{**CORRELATED, 'correlation': correlated.BandedStrategy(1)})
  assert one.guarantee(sampling=PoissonSampling).upper == plan(
      sampling_prob=1 / 240).guarantee().upper


@pytest.mark.parametrize('changes,words', [
    ({'sampling_prob': 0.0041}, 'one over a whole number'),
    ({'sampling_prob': 1 / 250}, 'num_batches=256, or as many bands as divide 250')])
def test_batches_have_to_fit_the_bands(changes, words):
  with pytest.raises(ValueError, match=words):
    plan(**{**CORRELATED, **changes}).guarantee()


def test_replaced_examples_have_no_account_under_correlated_noise():
  assert plan(**CORRELATED).guarantee(neighboring_relation='zero-out').upper == plan(
      **CORRELATED).guarantee().upper
  with pytest.raises(ValueError, match='new value of a replaced example is in'):
    plan(**CORRELATED).guarantee(neighboring_relation='replace')


TRAINING = dict(batch_size=500, epochs=3, num_examples=20_000, delta=1e-5,
                l2_norm_clip=1.0)


@pytest.mark.slow
def test_auto_is_the_number_of_bands_of_least_total_error():
  best = tfcactus.PrivacyPlan.for_training(
      **TRAINING, target_epsilon=2.0, correlation='auto')
  # A multiple of the bands, next to 40 batches.
  assert best.guarantee().upper <= 2.0 and best.steps in (114, 117, 120, 123, 126)

  def total(bands, epsilon=2.0):
    planned = tfcactus.PrivacyPlan.for_training(
        **TRAINING, target_epsilon=epsilon,
        correlation=correlated.BandedStrategy(bands))
    return planned.noise.noise_multiplier * planned.strategy.error(planned.steps)

  totals = {bands: total(bands) for bands in (1, 4, 5, 8, 20)}
  assert totals[1] > 1.25 * min(totals.values())
  # Numbers to try lie 1.3 to 1.8 apart: near the least the error is flat.
  assert best.noise.noise_multiplier * best.strategy.error(
      best.steps) < 1.02 * min(totals.values())


def test_auto_is_independent_noise_where_nothing_is_gained():
  settings = {**TRAINING, 'batch_size': 10_000, 'epochs': 40}
  best = tfcactus.PrivacyPlan.for_training(
      **settings, target_epsilon=1.0, correlation='auto')
  assert best.groups == 1
  alone = tfcactus.PrivacyPlan.for_training(
      **settings, target_epsilon=1.0, sampling=RandomAllocationSampling)
  assert best.noise.noise_multiplier == alone.noise.noise_multiplier


@pytest.mark.parametrize('settings', [
    {'correlation': 'auto', 'noise': noise.Gaussian(1.0)}, {'correlation': 'auto'},
    {'correlation': 'most', 'target_epsilon': 1.0},
    {'correlation': 3, 'target_epsilon': 1.0}])
def test_auto_needs_a_target(settings):
  with pytest.raises(ValueError, match="'auto'"):
    tfcactus.PrivacyPlan.for_training(**TRAINING, **settings)


@pytest.mark.parametrize('name, value', [('steps', 3), ('sampling_prob', 0.9)])
def test_what_batch_size_and_epochs_determine_is_refused(name, value):
  with pytest.raises(ValueError, match=f'Expected no {name}, which follows from'):
    tfcactus.PrivacyPlan.for_training(
        **TRAINING, noise=noise.Gaussian(1.0), **{name: value})


@pytest.mark.parametrize('relation', [
    'replace', dp_accounting.NeighboringRelation.REPLACE_ONE])
def test_a_relation_in_place_of_steps_is_refused_by_its_name(relation):
  with pytest.raises(ValueError, match='relation by name, as in'):
    plan().guarantee(relation)


@representatives('target, kind', [
    ({'target_advantage': 0.1}, None), ({'target_tpr': (0.05, 0.01)}, None),
    ({'target_tpr': (0.05, 0.01)}, RandomAllocationSampling)])
@pytest.mark.more
def test_plans_for_a_target_of_attacks(target, kind):
  planned = tfcactus.PrivacyPlan.for_training(**TRAINING, **target, sampling=kind)

  def reached(plan):
    report = plan.guarantee(sampling=kind).report(false_positive=(0.01,))
    return report.advantage.upper if 'target_advantage' in target else (
        report.true_positive[0.01].upper)

  most = 0.1 if 'target_advantage' in target else 0.05
  assert reached(planned) <= most
  less = noise.Gaussian(0.998 * planned.noise.noise_multiplier)
  assert reached(dataclasses.replace(planned, noise=less)) > most
  # `fit` stops at the epsilon that the target costs.
  epsilon = planned.guarantee(sampling=kind).upper
  assert epsilon <= planned.target_epsilon < 1.0001 * epsilon


@pytest.mark.parametrize('target, said', [
    ({'target_tpr': 0.05}, 'a pair'), ({'target_tpr': (0.01, 0.05)}, 'above the false'),
    ({'target_advantage': 1.0}, 'target_advantage'),
    ({}, 'got noise=None and no target'),
    ({'target_advantage': 0.1, 'target_epsilon': 1.0}, 'noise or one of'),
    ({'target_advantage': 0.1, 'noise': noise.Gaussian(1.0)}, 'noise or one of')])
def test_targets_of_attacks_are_checked(target, said):
  with pytest.raises(ValueError, match=said):
    tfcactus.PrivacyPlan.for_training(**TRAINING, **target)


def test_a_report_says_whom_the_guarantee_protects_and_needs_a_proof():
  planned = tfcactus.PrivacyPlan.for_training(**TRAINING, noise=noise.Gaussian(1.0))
  found = planned.guarantee()
  assert found == dataclasses.replace(found, account=None)
  assert found.seeded_by('noise').report().statement.endswith('not a private release.')
  assert planned.guarantee(0).report().advantage.upper == 0
  for bad in (dataclasses.replace(found, account=None),
              dataclasses.replace(found, proven=False)):
    with pytest.raises(ValueError, match='a proven guarantee with its account'):
      bad.report()


def test_batch_sizes_are_rounded_to_whole_turns():
  planned = tfcactus.PrivacyPlan.for_training(
      **{**TRAINING, 'batch_size': 485}, noise=noise.Gaussian(1.0),
      correlation=correlated.BandedStrategy(7))
  assert planned.sampling_prob == 1 / 42 and planned.steps == 126


def test_rows_of_one_person():
  plan = tfcactus.PrivacyPlan(
      noise=noise.Gaussian(1.3), l2_norm_clip=1.0, num_examples=60_000,
      sampling_prob=250 / 60_000, steps=3600, delta=1e-5)
  assert plan.guarantee(rows_of_one=1) == plan.guarantee()
  five = plan.guarantee(rows_of_one=5)
  assert five.upper == pytest.approx(5.205511763, abs=1e-8)
  assert 'a person with up to 5 examples' in five.statement
  with pytest.raises(ValueError, match='nobody has more rows'):
    plan.guarantee(rows_of_one=60_001)


@pytest.mark.more
def test_replaced_rows_of_one_person_have_the_power_curve_of_all_steps():
  plan = tfcactus.PrivacyPlan(
      noise=noise.Gaussian(1.3), l2_norm_clip=1.0, num_examples=60_000,
      sampling_prob=250 / 60_000, steps=3600, delta=1e-5)
  assert plan.guarantee(neighboring_relation='replace', rows_of_one=2).upper > (
      plan.guarantee(rows_of_one=2).upper)


@pytest.mark.parametrize('rows', [0, 1.5, True, None, '2'])
def test_bad_rows_of_one_person(rows):
  plan = tfcactus.PrivacyPlan(
      noise=noise.Gaussian(1.3), l2_norm_clip=1.0, num_examples=100, sampling_prob=0.1,
      steps=10, delta=1e-5)
  with pytest.raises(ValueError, match='rows_of_one'):
    plan.guarantee(rows_of_one=rows)


def test_steps_within_warns_if_releases_alone_cost_more():
  beside = plan(releases=[dp_accounting.GaussianDpEvent(1.0)])
  with pytest.warns(UserWarning, match='the cost of the releases beside'):
    assert beside.steps_within(0.5) == 0


def test_an_unproven_plan_has_no_event():
  unproven = plan(noise=noise.Laplace(1.0), accounting='scalar-unproven')
  with pytest.raises(ValueError, match="accounting='proven' with an event"):
    _ = unproven.step_event


@pytest.mark.parametrize('name', ['num_examples', 'steps'])
def test_numbers_beyond_all_use_are_refused(name):
  with pytest.raises(ValueError, match=f'Expected {name} <= '):
    plan(**{name: 10**400})
  with pytest.raises(ValueError, match='Expected steps <= '):
    plan().guarantee(10**30)


def test_accountants_take_integers_of_numpy():
  event = dp_accounting.GaussianDpEvent(1.0)
  assert tfcactus.PhiAccountant().compose(event, np.int64(5)).get_epsilon(
      1e-5) == tfcactus.PhiAccountant().compose(event, 5).get_epsilon(1e-5)
