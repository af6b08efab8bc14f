"""Plans of whole numbers: what they cost, promise and refuse."""

import dataclasses
import math

import mpmath
import numpy as np
import pytest

from tests.representatives import representatives
import tfcactus
from tfcactus import accounting, arithmetic, correlated
from tfcactus.noise import discrete_gaussian
from tfcactus.sampling import (
  CyclicAllocationSampling,
  CyclicPoissonSampling,
  FixedSizeSampling,
  OnePassSampling,
  PoissonSampling,
  RandomAllocationSampling,
)


def plan(**changes):
  return tfcactus.PrivacyPlan(**{**dict(
      noise=tfcactus.Gaussian(1.3), l2_norm_clip=1.5, num_examples=60_000,
      sampling_prob=1 / 240, steps=1200, delta=1e-5, dim=26_010,
      arithmetic='integer'), **changes})


def test_rounding_costs_less_than_two_parts_in_ten_million():
  floats = plan(arithmetic='float').guarantee()
  whole = plan().guarantee()
  assert floats.upper < whole.upper < floats.upper * (1 + 2e-7)
  assert floats.lower < whole.lower <= whole.estimate <= whole.upper
  # Without dim the plan pays for 2^30 weights.
  assert whole.upper < plan(dim=None).guarantee().upper < floats.upper * (1 + 1e-4)


@representatives('sampling', [
    PoissonSampling, FixedSizeSampling, RandomAllocationSampling, CyclicPoissonSampling,
    CyclicAllocationSampling, OnePassSampling])
def test_every_scheme_costs_a_little_more_than_in_floats(sampling):
  # Fewer steps, larger noise: passes over all examples cost much.
  settings = dict(steps=240, noise=tfcactus.Gaussian(5.0))
  floats = plan(arithmetic='float', **settings).guarantee(sampling=sampling)
  whole = plan(**settings).guarantee(sampling=sampling)
  assert floats.upper < whole.upper < floats.upper * (1 + 2e-6)


def banded(bands, **changes):
  return plan(correlation=correlated.BandedStrategy(bands), **changes)


@pytest.mark.parametrize('sigma, dim, bands', [
    (0.5, 1, 1), (1.3, 26_010, 1), (40.0, 2**30, 1), (1.3, 26_010, 16)])
def test_the_accounted_noise_is_scale_over_sensitivity_rounded_down(sigma, dim, bands):
  found = arithmetic.accounted(
      banded(bands, dim=dim), tfcactus.Gaussian(sigma)).noise_multiplier
  with mpmath.workprec(200):
    scale = mpmath.mpf(
        discrete_gaussian.SCALE if bands == 1 else discrete_gaussian.FINE_SCALE)
    true = scale / (scale / mpmath.mpf(sigma) + mpmath.sqrt(bands * dim))
    assert 0.999999999999 * true < found < true * (1 - mpmath.mpf(2)**-50)


def test_the_distance_is_that_of_all_coordinates_and_steps():
  whole, each = plan(steps=480), 26_010 * discrete_gaussian.DISTANCE
  floats = dataclasses.replace(whole, arithmetic='float')
  assert floats.guarantee(480).account.distance == 0
  assert whole.guarantee(480).account.distance == pytest.approx(480 * each, rel=0.02)
  # Passes may be made in batches of single examples, whatever was planned.
  for sampling in (RandomAllocationSampling, OnePassSampling):
    assert whole.guarantee(2, sampling=sampling).account.distance >= 2 * 60_000 * each
  assert whole.guarantee(0).account.distance == whole.guarantee(0).upper == 0


COUNTS = dict(adaptive_clipping=tfcactus.AdaptiveClipping(),
              noisy_accuracy=tfcactus.NoisyAccuracy(3.0))


@pytest.mark.more
def test_counts_are_further_coordinates_of_the_vector():
  counted, longer = plan(**COUNTS), plan(dim=26_012)
  assert counted.release_sensitivity > 1
  for relation in ('add-or-remove', 'zero-out', 'replace'):
    ours, other = (each.guarantee(None, relation) for each in (counted, longer))
    assert (ours.lower, ours.upper) == (other.lower, other.upper)
  assert ours.account.distance == other.account.distance
  assert counted.guarantee().upper > plan().guarantee().upper
  words = counted.guarantee().statement
  assert 'Sums of gradients and counts, and' in words
  assert 'up to 26,012 weights and counts.' in words
  assert 'or of an output that is counted' in words and 'right answers' in words
  # Without dim, weights and counts together are covered.
  loose = plan(dim=None, **COUNTS)
  assert loose.guarantee().upper == plan(dim=None).guarantee().upper
  loose.check_vector(2**30 - 2)
  with pytest.raises(ValueError, match='weights and counts .*give the plan dim=1073'):
    loose.check_vector(2**30 - 1)
  arithmetic.check_step(loose, 2**16 - 2, 128)
  with pytest.raises(ValueError, match='weights and counts times the square'):
    arithmetic.check_step(loose, 2**16 - 1, 128)


def _profile(epsilon):
  return accounting.PhiAccountant().compose(
      tfcactus.accounting.noise_event(tfcactus.Gaussian(1.0))).delta_bounds(epsilon)


def test_a_distance_adds_to_delta_what_it_should():
  far = accounting.PhiAccountant(distance=1e-9)
  far.compose(tfcactus.accounting.noise_event(tfcactus.Gaussian(1.0)))
  for epsilon in (0.0, 1.0, 4.0):
    added = 1e-9 * (1 + math.exp(epsilon))
    lower, _, upper = far.delta_bounds(epsilon)
    assert _profile(epsilon).upper + added <= upper <= (
        _profile(epsilon).upper + 1.02 * added)
    assert lower <= _profile(epsilon).lower - added
  for delta in (1e-2, 1e-5, 1e-6):
    lower, _, upper = far.epsilon_bounds(delta)
    # The bounds are consistent: delta at the upper bound is at most that delta.
    assert far.get_delta(upper) <= delta <= far.delta_bounds(lower * 0.999).upper
  assert far.get_epsilon(1e-9) == math.inf and far.get_delta(800.0) == 1
  # In place of a distance, an event within it: outcomes of one law alone.
  near = accounting.PhiAccountant().compose(
      tfcactus.accounting.noise_event(tfcactus.Gaussian(1.0)))
  assert near.get_epsilon(1e-5) < far.get_epsilon(1e-5)
  with pytest.raises(ValueError, match='distance'):
    accounting.PhiAccountant(distance=-1e-9)


def test_reports_and_groups_of_rows_count_the_distance():
  whole = plan(noise=tfcactus.Gaussian(5.0), steps=10)
  assert whole.guarantee(rows_of_one=2).account.distance > 0
  floats = dataclasses.replace(whole, arithmetic='float').guarantee()
  # What reports of attacks are made of.
  assert whole.guarantee().account.get_delta(0.0) > floats.account.get_delta(0.0)


def test_the_statement_names_the_mode_and_what_it_promises():
  words = plan().guarantee().statement
  assert "arithmetic='integer'" in words and 'up to 26,010 weights' in words
  assert 'do not depend on its place' in words
  assert 'arithmetic' not in plan(arithmetic='float').guarantee().statement
  assert '1,073,741,824' in plan(dim=None).guarantee().statement


@pytest.mark.more
def test_targets_calibrate_the_noise_of_the_mode():
  settings = dict(batch_size=250, epochs=2, num_examples=60_000, delta=1e-5,
                  l2_norm_clip=1.0, target_epsilon=2.0)
  whole = tfcactus.PrivacyPlan.for_training(arithmetic='integer', **settings)
  floats = tfcactus.PrivacyPlan.for_training(**settings)
  assert whole.guarantee().upper <= 2.0
  assert whole.noise.noise_multiplier == pytest.approx(
      floats.noise.noise_multiplier, rel=1e-3)


@pytest.mark.parametrize('changes, words', [
    (dict(arithmetic='int'), "Expected arithmetic in .*got arithmetic='int'"),
    (dict(noise=tfcactus.Laplace(1.0), dim=1), 'Gaussian noise, the only'),
    (dict(l2_norm_clip=1e-30), 'l2_norm_clip and the noise multiplier'),
    (dict(noise=tfcactus.Gaussian(1e40)), 'l2_norm_clip and the noise multiplier')])
def test_plans_without_a_proof_are_refused(changes, words):
  with pytest.raises(ValueError, match=words):
    plan(**changes)


def test_uses_without_a_proof_are_refused():
  whole = plan(dim=None)
  with pytest.raises(ValueError, match="'float' with an event.*not hold how far"):
    _ = whole.step_event
  with pytest.raises(ValueError, match='drop-in optimizer.*nothing tests there that'):
    whole.check_drop_in()
  whole.check_vector(2**30)
  with pytest.raises(ValueError, match='give the plan dim=1073741825'):
    whole.check_vector(2**30 + 1)


def test_replicas_are_covered_by_the_account_without_dim():
  whole = plan(dim=None)
  arithmetic.check_step(whole, 2**16, 128)
  arithmetic.check_step(plan(), 26_010, 1)
  arithmetic.check_step(plan(arithmetic='float'), 2**30, 128)
  # R replicas round each entry by R / 2 at most, with and without the example.
  assert 128 * math.sqrt(2**16) == math.sqrt(arithmetic.LARGEST_DIM)
  for refused, replicas, dim, words in (
      (whole, 129, 2**16, 'use fewer replicas'), (plan(), 2, 26_010, 'Leave dim out'),
      (plan(dim=None, num_examples=6_000_000, delta=1e-8), 2, 100, 'may not hold')):
    with pytest.raises(ValueError, match=words):
      arithmetic.check_step(refused, dim, replicas)
  assert 'square of the number of replicas' in whole.guarantee().statement
  assert 'square of the number of replicas' not in plan().guarantee().statement


def test_coordinates_of_canaries_are_covered_by_the_account_without_dim():
  whole = plan(dim=None)
  arithmetic.check_step(whole, 2**30 - 600, 1, 600)
  with pytest.raises(ValueError, match='weights and two coor.*use fewer canaries'):
    arithmetic.check_step(whole, 2**30 - 599, 1, 600)
  with pytest.raises(ValueError, match='counts and two coordinates for each canary'):
    arithmetic.check_step(plan(dim=None, **COUNTS), 2**30 - 601, 1, 600)
  with pytest.raises(ValueError, match="without dim .* audit=, got dim=26010"):
    arithmetic.check_step(plan(), 26_010, 1, 600)


def test_float64_holds_all_sums_of_replicas():
  # The largest sums that are not refused: every gradient along one coordinate.
  whole = plan(dim=None, num_examples=5_000_000, delta=1e-8)
  arithmetic.check_step(whole, 100, 2)
  per_clip = discrete_gaussian.SCALE / 1.3 * (1 + 2.0**-40)
  assert 5_000_001 * per_clip + discrete_gaussian.LARGEST + 128 < 2**53
  # Shares of noise add up to noise of a larger scale, and so sums are larger.
  with pytest.raises(ValueError, match=r'over sqrt\(2\) .* float64 may not hold'):
    arithmetic.check_step(whole, 100, 2, draws=2)
  arithmetic.check_step(dataclasses.replace(whole, num_examples=3_600_000), 100, 2,
                        draws=2)


def test_rounding_in_all_rows_of_a_block_costs_less_than_a_billionth():
  floats, whole = banded(16, arithmetic='float').guarantee(), banded(16).guarantee()
  assert floats.upper < whole.upper < floats.upper * (1 + 1e-9)
  assert floats.lower < whole.lower <= whole.estimate <= whole.upper
  # A step draws as many numbers as without correlation.
  assert whole.account.distance == plan().guarantee(
      5, sampling=RandomAllocationSampling).account.distance
  words = whole.statement
  assert 'multiplied by the matrix of the correlation' in words
  assert 'up to 26,010 weights.' in words and 'replica' not in words


def test_without_dim_weights_times_bands_are_covered():
  loose = banded(16, dim=None)
  assert loose.guarantee().upper < banded(
      16, arithmetic='float').guarantee().upper * (1 + 1e-7)
  assert arithmetic.accounted(loose, loose.noise) == arithmetic.accounted(
      banded(16, dim=2**26), loose.noise)
  assert 'up to 67,108,864 weights.' in loose.guarantee().statement
  loose.check_vector(2**26)
  with pytest.raises(ValueError, match='67,108,864 weights .*16 bands and without dim'):
    loose.check_vector(2**26 + 1)
  banded(16, dim=2**26 + 1).check_vector(2**26 + 1)


def test_replicas_have_no_proof_with_a_correlation():
  arithmetic.check_step(banded(16, dim=None), 100, 1, shadow=600)
  with pytest.raises(ValueError, match='one replica .*and a correlation, got 2 repl'):
    arithmetic.check_step(banded(16, dim=None), 100, 2)
  with pytest.raises(ValueError, match='at most 67,108,864 weights and two coord'):
    arithmetic.check_step(banded(16, dim=None), 2**26, 1, shadow=600)


def test_correlation_of_one_step_is_none():
  strategy = correlated.BandedStrategy(1)
  assert plan(correlation=strategy, steps=480).guarantee(480).upper > 0


def test_rounding_moves_a_sum_by_no_more_than_is_accounted():
  # Half-way entries: every coordinate is rounded the other way.
  a, b = np.full(26_010, 0.5), np.full(26_010, 0.5 + 2.0**-40)
  moved = np.linalg.norm(np.rint(a) - np.rint(b))
  assert moved == math.sqrt(26_010)
