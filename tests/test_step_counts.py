"""Counts beside a gradient: what they cost together, and plans that refuse them."""

import math

import dp_accounting
import numpy as np
import pytest

from tests.noise.tables import gaussian_radial, gaussian_scalar
import tfcactus
from tfcactus import AdaptiveClipping, correlated, NoisyAccuracy, step_counts


def plan(noise=None, **changes):
  return tfcactus.PrivacyPlan(**{**dict(
      noise=noise or tfcactus.Gaussian(1.3), l2_norm_clip=1.5,
      num_examples=60_000, sampling_prob=250 / 60_000, steps=1000, delta=1e-5,
      noisy_accuracy=NoisyAccuracy()), **changes})


BOTH = dict(adaptive_clipping=AdaptiveClipping(clipped_count_stddev=2.0),
            noisy_accuracy=NoisyAccuracy(count_stddev=1.5))


@pytest.mark.parametrize('changes, stddevs', [
    ({}, [12.5]), ({'noisy_accuracy': NoisyAccuracy(0.9)}, [0.9]), (BOTH, [2.0, 1.5])])
def test_the_parts_of_a_step_cost_as_one_release(changes, stddevs):
  made = plan(**changes)
  assert list(step_counts.stddevs(made).values()) == stddevs
  gradient = 1.3 * made.release_sensitivity
  # Andrew et al., Theorem 1: precisions add up.
  assert 1.3**-2 == pytest.approx(
      gradient**-2 + sum((2 * each)**-2 for each in stddevs), rel=1e-12)
  parts = dp_accounting.PoissonSampledDpEvent(
      250 / 60_000, dp_accounting.ComposedDpEvent([
          dp_accounting.GaussianDpEvent(each) for each in (
              gradient, *(2 * stddev for stddev in stddevs))]))
  accountant = tfcactus.PhiAccountant().compose(parts, 1000)
  assert made.guarantee().upper == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)
  # A count that nobody pays for would cost more than the plan says.
  more = tfcactus.PhiAccountant().compose(dp_accounting.PoissonSampledDpEvent(
      250 / 60_000, dp_accounting.ComposedDpEvent([
          dp_accounting.GaussianDpEvent(1.3), dp_accounting.GaussianDpEvent(
              2 * stddevs[0])])), 1000)
  assert more.get_epsilon(1e-5) > 1.0005 * made.guarantee().upper


@pytest.mark.parametrize('relation', ['add-or-remove', 'zero-out', 'replace'])
def test_epsilon_is_that_of_the_plan_without(relation):
  without = plan(noisy_accuracy=None)
  assert without.release_sensitivity == 1 and not without.counts_planned
  for changes in {}, BOTH:
    made = plan(**changes)
    assert made.counts_planned and made.release_sensitivity > 1
    ours, plain = (each.guarantee(None, relation) for each in (made, without))
    assert (ours.lower, ours.upper) == (plain.lower, plain.upper)
    assert 'noisy count of right answers' in ours.statement
    assert 'right answers' not in plain.statement


@pytest.mark.parametrize('changes', [
    {}, BOTH, {'noisy_accuracy': NoisyAccuracy(0.651)}])
def test_no_example_adds_more_than_the_sensitivity(changes):
  made = plan(**changes)
  scale = 1.5 * made.release_sensitivity
  weights = [scale * 1.3 / each for each in step_counts.stddevs(made).values()]
  rng = np.random.default_rng(0)
  halves = rng.uniform(-0.5, 0.5, (1000, len(weights)))
  halves[:8] = np.array(np.meshgrid(*[[-0.5, 0.5]] * 3)).T.reshape(-1, 3)[
      :, :len(weights)]
  norms = np.linalg.norm([np.r_[1.5, weights * each] for each in halves], axis=1)
  assert norms.max() == pytest.approx(scale, rel=1e-12)
  assert norms.max() > 1.5 * 1.001  # The gradient's own sensitivity would not do.


def test_tables_have_a_dimension_for_each_count():
  table = gaussian_radial(dim=12)
  plan(table).check_vector(11)
  plan(table, **BOTH, dim=10)
  with pytest.raises(ValueError, match='13 dimensions .the count of right'):
    plan(table).check_vector(12)
  with pytest.raises(ValueError, match='13 dimensions .*right answers are two'):
    plan(table, **BOTH).check_vector(11)


@pytest.mark.parametrize('call, words', [
    (lambda: plan(gaussian_scalar()), 'protects a vector with noisy_accuracy'),
    (lambda: plan(tfcactus.Laplace(1.0)), 'protects a vector with noisy_accuracy'),
    (lambda: plan(noisy_accuracy=True), 'noisy_accuracy of type NoisyAccuracy or None'),
    (lambda: plan(noisy_accuracy=NoisyAccuracy(0.65)),
     r'count_stddev above noise_multiplier / 2 = 0.65'),
    # Next to the limit, rounding would enter the sensitivity.
    (lambda: plan(noisy_accuracy=NoisyAccuracy(0.65 * (1 + 1e-9))), 'raise it'),
    (lambda: plan(noisy_accuracy=NoisyAccuracy(0.8), adaptive_clipping=AdaptiveClipping(
        clipped_count_stddev=0.8)),
     r'clipped_count_stddev and count_stddev above noise_multiplier / sqrt\(2\) each'),
    (lambda: plan(sampling_prob=1 / 240, correlation=correlated.BandedStrategy(2)),
     'no noisy_accuracy with a correlation'),
    (lambda: plan().check_drop_in(), 'a plan without noisy_accuracy'),
    (lambda: NoisyAccuracy(0.0), 'count_stddev > 0'),
    (lambda: NoisyAccuracy(float('nan')), 'finite'),
    (lambda: NoisyAccuracy(output=True), 'name or index of an output'),
    (lambda: AdaptiveClipping(geometric_update='no'), 'geometric_update to be True or'),
])
def test_refusals_in_words(call, words):
  with pytest.raises(ValueError, match=words):
    call()


def test_the_price_in_the_documents():
  made = plan(sampling_prob=256 / 60_000)
  assert made.release_sensitivity == pytest.approx(1.0013, abs=5e-5)


def test_targets_calibrate_the_noise_of_both():
  made = tfcactus.PrivacyPlan.for_training(
      batch_size=250, epochs=2, num_examples=60_000, delta=1e-6, l2_norm_clip=1.0,
      target_epsilon=2.0, **BOTH)
  assert made.guarantee().upper <= 2.0
  assert made.release_sensitivity == pytest.approx(1 / math.sqrt(1 - sum(
      (made.noise.noise_multiplier / (2 * each))**2 for each in (2.0, 1.5))))
