"""Adaptive clipping: its cost, and plans that refuse it."""

import math

import dp_accounting
import pytest

from tests.noise.tables import gaussian_radial, gaussian_scalar
import tfcactus
from tfcactus import AdaptiveClipping


def plan(noise=None, rule=None, **changes):
  return tfcactus.PrivacyPlan(**{**dict(
      noise=noise or tfcactus.Gaussian(1.3), l2_norm_clip=1.5,
      num_examples=60_000, sampling_prob=250 / 60_000, steps=1000, delta=1e-5,
      adaptive_clipping=rule or AdaptiveClipping()), **changes})


@pytest.mark.parametrize('stddev', [0.9, 2.0, None])
def test_two_gaussians_from_one_sample_cost_as_one_release(stddev):
  adaptive = plan(rule=AdaptiveClipping(clipped_count_stddev=stddev))
  stddev = 12.5 if stddev is None else stddev
  gradient = 1.3 * adaptive.release_sensitivity
  # Andrew et al., Theorem 1.
  assert gradient == pytest.approx((1.3**-2 - (2 * stddev)**-2)**-0.5)
  both = dp_accounting.PoissonSampledDpEvent(
      250 / 60_000, dp_accounting.ComposedDpEvent([
          dp_accounting.GaussianDpEvent(gradient),
          dp_accounting.GaussianDpEvent(2 * stddev)]))
  accountant = tfcactus.PhiAccountant().compose(both, 1000)
  assert adaptive.guarantee().upper == pytest.approx(
      accountant.get_epsilon(1e-5), rel=1e-9)
  # As if each had its own sample it would seem to cost less.
  if stddev < 1:
    apart = tfcactus.PhiAccountant()
    for event in both.event.events:
      apart.compose(dp_accounting.PoissonSampledDpEvent(
          both.sampling_probability, event), 1000)
    assert apart.get_epsilon(1e-5) < 0.9 * adaptive.guarantee().upper


def test_a_count_of_enough_noise_costs_the_gradient_little():
  assert plan().release_sensitivity == pytest.approx(1.00135, abs=1e-5)
  assert plan(adaptive_clipping=None).release_sensitivity == 1
  # The default never has less noise than the step can bear.
  small = plan(num_examples=20, sampling_prob=0.5)
  assert small.release_sensitivity == pytest.approx(math.sqrt(4 / 3))


def test_an_isotropic_table_is_of_one_dimension_more():
  isotropic = plan(gaussian_radial(dim=11))
  isotropic.check_vector(10)
  with pytest.raises(ValueError, match='12 dimensions .the count of gradients'):
    isotropic.check_vector(11)
  with pytest.raises(ValueError, match='12 dimensions'):
    plan(gaussian_radial(dim=11), dim=11)


@pytest.mark.parametrize('call, words', [
    (lambda: plan(gaussian_scalar()), 'protects a vector with adaptive'),
    (lambda: plan(tfcactus.Laplace(1.0)), 'protects a vector with adaptive'),
    (lambda: plan(gaussian_scalar(), accounting='scalar-unproven'),
     'protects a vector with adaptive'),
    (lambda: plan(adaptive_clipping=0.5), 'AdaptiveClipping or None'),
    (lambda: plan(rule=AdaptiveClipping(clipped_count_stddev=0.65)),
     'above noise_multiplier / 2 = 0.65'),
    (lambda: AdaptiveClipping(clipped_count_stddev=0.0), '> 0'),
    (lambda: AdaptiveClipping(1.5), r'target_unclipped_quantile in \[0, 1\]'),
    (lambda: AdaptiveClipping(float('nan')), 'finite'),
    (lambda: AdaptiveClipping(learning_rate=-1.0), 'learning_rate >= 0'),
])
def test_refusals_in_words(call, words):
  with pytest.raises(ValueError, match=words):
    call()
