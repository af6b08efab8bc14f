import math

import numpy as np
import pytest
from scipy import integrate, stats

from tfcactus import noise
from tfcactus.noise import sinh_normal

LAWS = [noise.SinhNormal(1.0, 2.0), noise.SinhNormal(7.0, 10.0),
        noise.SinhNormal(4.0, 0.7), noise.SinhNormal(1.0, 0.02),
        noise.SinhNormal(0.2, 500.0)]


@pytest.mark.parametrize('law', LAWS)
def test_density_distribution_and_quantile_agree(law):
  reach = law.bend * np.arcsinh(9 * law.sigma / law.bend)
  mass, _ = integrate.quad(lambda z: math.exp(law.log_density_at(z)), -reach,
                           reach, epsabs=1e-12, limit=200)
  assert mass == pytest.approx(1, abs=1e-10)
  z = np.linspace(-0.9 * reach, 0.9 * reach, 41)
  np.testing.assert_allclose(law.quantile(law.cdf(z)[z < 0]), z[z < 0],
                             rtol=1e-9, atol=1e-12)
  step = 1e-5 * law.std
  slope = (law.cdf(z + step) - law.cdf(z - step)) / (2 * step)
  middle = slope > 1e-4 / law.std
  np.testing.assert_allclose(np.log(slope[middle]),
                             law.log_density_at(z)[middle], atol=1e-5)
  variance, _ = integrate.quad(
      lambda z: z * z * math.exp(law.log_density_at(z)), -reach, reach,
      epsabs=1e-12, limit=200)
  assert law.std == pytest.approx(math.sqrt(variance), rel=1e-9)


@pytest.mark.parametrize('law', LAWS)
def test_draws_have_the_law_and_a_wrong_scale_is_seen(law):
  draws = law.sample(np.random.default_rng(3), 40_000)
  assert stats.kstest(draws, law.cdf).pvalue > 1e-3
  assert stats.kstest(1.04 * draws, law.cdf).pvalue < 1e-3


def test_one_peak_if_and_only_if_the_bend_is_at_least_sigma():
  for law in LAWS + [noise.SinhNormal(2.0, 2.0)]:
    z = np.linspace(0, 3 * law.std, 2000)
    falls = np.all(np.diff(law.log_density_at(z)) <= 1e-12)
    assert law.log_concave == falls == (law.bend >= law.sigma)


def test_far_tails_do_not_overflow():
  law = noise.SinhNormal(1.0, 0.5)
  assert law.log_density_at(1e4) == -math.inf
  assert law.cdf(-1e4) == 0 and law.cdf(1e4) == 1
  assert -law.quantile(1e-300) < 5


@pytest.mark.parametrize('law', [noise.SinhNormal(1e-3, 1e-3),
                                 noise.SinhNormal(1e-100, 1e100)])
def test_hardly_any_noise_is_accounted_as_none(law):
  assert law.dominating_pair(2).upper.p_inf >= 1
  assert sinh_normal.delta(law, 1.0) == 1
  assert sinh_normal.epsilon(law, 1e-5) == math.inf
  assert sinh_normal.renyi_divergence(law, 1.001) == math.inf


def test_log_density_is_minus_infinity_far_out():
  assert noise.SinhNormal(1e-100, 1e-100).log_density_at(1e300) == -math.inf


def test_digests_tell_parameters_apart():
  digests = {noise.SinhNormal(1, 2).digest, noise.SinhNormal(2, 1).digest,
             noise.SinhNormal(1.0, 2.0).digest, noise.Gaussian(1).digest}
  assert len(digests) == 3


@pytest.mark.parametrize('bad', [0, -1, math.nan, math.inf, '1', None, True])
def test_bad_parameters_are_refused(bad):
  with pytest.raises(ValueError, match='sigma'):
    noise.SinhNormal(bad, 1)
  with pytest.raises(ValueError, match='bend'):
    noise.SinhNormal(1, bad)
