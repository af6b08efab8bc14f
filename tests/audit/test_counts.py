"""Audits: bounds from counted outcomes, against exact laws and scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from tfcactus import audit


def test_clopper_pearson_against_scipy():
  for hits, runs in ((0, 10), (3, 10), (10, 10), (512, 100_000)):
    expected = stats.binomtest(hits, runs).proportion_ci(0.999, 'exact')
    found = audit.clopper_pearson(hits, runs)
    assert found == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_lower_bound_never_passes_the_truth_of_randomised_response():
  """Loss exactly 1: over many audits the bound stays below, and comes near."""
  rng = np.random.default_rng(0)
  p = math.e / (1 + math.e)
  bounds = [audit.epsilon_lower_bound(
      rng.binomial(100_000, p), rng.binomial(100_000, 1 - p), 100_000)
            for _ in range(300)]
  assert max(bounds) <= 1.0
  assert np.mean(bounds) > 0.95


def test_lower_bound_counts_delta_off():
  assert audit.epsilon_lower_bound(500, 0, 1000, delta=0.6) == 0
  assert audit.epsilon_lower_bound(500, 10, 1000) > audit.epsilon_lower_bound(
      500, 10, 1000, delta=0.1) > 0


def test_gaussian_bound():
  runs = 1_000_000
  rate = stats.norm.sf(0.5 / 1.3)
  bound = audit.gaussian_noise_upper_bound(
      round(rate * runs), round(rate * runs), runs)
  assert 1.3 < bound < 1.33
  assert audit.gaussian_noise_upper_bound(500, 500, 1000) == math.inf


@pytest.mark.parametrize('call', [
    lambda: audit.clopper_pearson(3, 2),
    lambda: audit.clopper_pearson(-1, 2),
    lambda: audit.clopper_pearson(1, 0),
    lambda: audit.OneRun(9, 9, 9).epsilon(1e-5, significance=2),
    lambda: audit.OneRun(9, 9, 9).refutes(audit.gaussian_curve(1.0), significance=2),
    lambda: audit.Errors(9, 9, 0, 0).refutes(audit.gaussian_curve(1.0), significance=2),
    lambda: audit.Errors(9, 9, 0, 0).p_value(lambda rate: rate * math.nan),
    lambda: audit.clopper_pearson(0, 10**17),  # Its upper end would be zero.
    lambda: audit.Errors(10**15, 10**15, 0, 0),  # Sums of logarithms lose digits.
    lambda: audit.clopper_pearson(1, 2, significance=0),
    lambda: audit.epsilon_lower_bound(1, 1, 2, delta=-1)])
def test_bad_arguments_are_refused(call):
  with pytest.raises(ValueError, match='Expected'):
    call()


@pytest.mark.parametrize('errors', [70, 73, 76])
def test_p_values_near_the_mass_that_is_left_out_are_found_too(errors):
  """P-values of 1e-12 to 1e-10, where that mass exceeds the relative error."""
  curve = audit.gaussian_curve(0.25)
  counts = np.arange(2 * errors + 1)
  exact = max(
      stats.binom.pmf(counts, 240, a) @ stats.binom.cdf(
          2 * errors - counts, 240, curve(a)) for a in np.linspace(0.3, 0.6, 301))
  found = audit.Errors(240, 240, errors, errors).p_value(curve)
  assert exact <= found <= 1.02 * exact + 3e-12
