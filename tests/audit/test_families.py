"""Epsilons within families, and the test of a claim, by counts of canaries."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from tests.representatives import representatives
import tfcactus
from tfcactus import accounting, audit, correlated
from tfcactus.audit import families
from tfcactus.sampling import PoissonSampling, RandomAllocationSampling

# absent, present, false positives, false negatives: epsilon by Clopper and Pearson, by
# Steinke et al., and within the Gaussian and the plan's family by the sum of errors on
# coarser cells, all at delta 1e-5 and significance 0.05, computed by other programs.
REFERENCE = [
    (2031, 1969, 711, 738, 0.4856049, 0.5107990, 2.5837563, 2.8526305),
    (500, 500, 200, 200, 0.2231913, 0.2972263, 1.4087131, 1.4797247),
    (1000, 1000, 400, 400, 0.2772591, 0.3292312, 1.5797020, 1.6687827),
    (2500, 2500, 625, 625, 1.0075314, 1.0442099, 5.8259156, 7.6717897)]


def plan(sigma=1.5):
  return tfcactus.PrivacyPlan(noise=tfcactus.Gaussian(sigma), l2_norm_clip=1.0,
                              num_examples=10_000, sampling_prob=0.05, steps=300,
                              delta=1e-5)


@representatives('absent, present, false_positives, false_negatives, counts, steinke,'
                 'gaussian, claimed', REFERENCE)
def test_reference_numbers(absent, present, false_positives, false_negatives, counts,
                           steinke, gaussian, claimed):
  errors = audit.Errors(absent, present, false_positives, false_negatives)
  assert errors.epsilon(1e-5) == pytest.approx(counts, abs=1e-6)
  total = absent + present
  assert audit.OneRun(total, total, total - false_positives - false_negatives).epsilon(
      1e-5) == pytest.approx(steinke, abs=1e-5)
  # Finer cells give a slightly larger bound.
  found = audit.gaussian_epsilon(audit.gaussian_mu(errors.refutes), 1e-5)
  assert gaussian < found < gaussian + 0.05
  found = audit.Claim.of_plan(plan()).epsilon(errors.refutes)
  assert claimed < found < 1.03 * claimed


def test_p_value_against_a_fine_grid():
  errors, curve = audit.Errors(60, 40, 12, 9), audit.gaussian_curve(1.5)
  exact = max(float(stats.binom.pmf(np.arange(22), 60, a) @ stats.binom.cdf(
      21 - np.arange(22), 40, curve(a))) for a in np.linspace(0, 1, 2001))
  assert exact <= errors.p_value(curve) < 1.011 * exact


def test_the_truth_is_seldom_refuted_and_less_privacy_is_found():
  curve, rng = audit.gaussian_curve(1.0), np.random.default_rng(0)
  rate = stats.norm.sf(0.5)
  refuted, weaker = 0, 0
  for _ in range(200):
    errors = audit.Errors(300, 280, int(rng.binomial(300, rate)),
                          int(rng.binomial(280, rate)))
    refuted += errors.refutes(curve)
    weaker += errors.refutes(audit.gaussian_curve(0.6))
  assert refuted <= stats.binom.ppf(0.999, 200, 0.05)
  assert weaker > 190


def test_errors_beyond_every_test_refute_nothing():
  errors = audit.Errors(100, 100, 60, 50)
  assert errors.p_value(audit.gaussian_curve(0.0)) > 0.5
  assert audit.gaussian_mu(errors.refutes) == 0 == audit.gaussian_epsilon(0.0, 1e-5)
  assert audit.Claim.of_plan(plan(50.0)).epsilon(errors.refutes) == 0


def test_largest_refuted_value():
  assert families.largest(lambda x: x <= 0.3, 0.0, 1.0) == pytest.approx(0.3, abs=1e-5)
  assert families.largest(lambda x: False, 0.0, 1.0) == 0
  assert families.largest(lambda x: True, 0.0, 1.0) == 1


def test_claim_of_a_plan():
  claim = audit.Claim.of_plan(plan())
  assert (claim.delta, claim.noise_multiplier, claim.sampling_prob) == (1e-5, 1.5, 0.05)
  assert claim.poisson
  assert claim.account(1.0, 1.0).get_epsilon(1e-5) == plan().guarantee().upper
  assert claim.account(0.5, 1.0).get_epsilon(1e-5) == plan(0.75).guarantee().upper
  assert not audit.Claim.of_plan(plan(), RandomAllocationSampling).poisson
  other = audit.Claim.of_plan(tfcactus.PrivacyPlan(
      noise=tfcactus.Laplace(1.0), l2_norm_clip=1.0, num_examples=100,
      sampling_prob=0.1, steps=1, delta=1e-5, dim=1))
  assert other.noise_multiplier is None
  assert isinstance(other.account(1.0, 1.0), accounting.PhiAccountant)


@pytest.mark.parametrize('numbers', [(0, 1, 0, 0), (1, 1, 2, 0), (1, 1, 0, -1)])
def test_counts_that_cannot_be_are_refused(numbers):
  with pytest.raises(ValueError, match='Expected'):
    audit.Errors(*numbers)


def test_only_poisson_samples_are_claimed_to_be_some():
  one_band = dataclasses.replace(
      plan(), correlation=correlated.BandedStrategy(bands=1))
  assert audit.Claim.of_plan(plan()).poisson
  assert not audit.Claim.of_plan(one_band).poisson  # Allocated at random by default.
  assert audit.Claim.of_plan(one_band, PoissonSampling).poisson
