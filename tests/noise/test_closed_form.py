import numpy as np
import pytest
from scipy import stats

from tfcactus import noise


@pytest.mark.parametrize('law, oracle', [
    (noise.Gaussian(0.7), stats.norm(scale=0.7)),
    (noise.Laplace(0.7), stats.laplace(scale=0.7))])
def test_against_scipy(law, oracle):
  z = np.linspace(-4, 4, 33)
  u = np.linspace(0.01, 0.99, 33)
  np.testing.assert_allclose(law.cdf(z), oracle.cdf(z), atol=1e-14)
  np.testing.assert_allclose(law.quantile(u), oracle.ppf(u), atol=1e-12)
  np.testing.assert_allclose(law.log_density_at(z), oracle.logpdf(z),
                             atol=1e-12)
  assert law.std == pytest.approx(oracle.std())
  draws = law.sample(np.random.default_rng(0), 20_000)
  assert stats.kstest(draws, oracle.cdf).pvalue > 1e-3
  assert stats.kstest(1.1 * draws, oracle.cdf).pvalue < 1e-3


@pytest.mark.parametrize('bad', [0, -1, np.nan, np.inf, '1', None, True])
def test_bad_scales_are_refused(bad):
  with pytest.raises(ValueError, match='noise_multiplier'):
    noise.Gaussian(bad)
  with pytest.raises(ValueError, match='scale'):
    noise.Laplace(bad)


def test_digests_tell_laws_and_parameters_apart():
  laws = [noise.Gaussian(1), noise.Gaussian(2), noise.Laplace(1)]
  assert len({law.digest for law in laws}) == 3
  assert noise.Gaussian(1).digest == noise.Gaussian(1.0).digest


def test_no_noise_is_refused_with_what_does_the_same_to_training():
  with pytest.raises(ValueError, match='nothing is private.* of 1e-100') as error:
    noise.Gaussian(0)
  told = float(str(error.value).rstrip('.').split()[-1])
  draws = noise.Gaussian(told).sample(np.random.default_rng(0), 99)
  assert 0 < np.max(np.abs(draws)) < 1e-98


@pytest.mark.parametrize('config', [5, None, {}, {'kind': ['gaussian']},
                                    {'kind': 'gaussian', 'noise_multiplier': '1'},
                                    {'kind': 'gaussian', 1: 2, 'scale': 3},
                                    {'kind': 'scalar', 'npz': 5}], ids=repr)
def test_damaged_configs_are_refused(config):
  with pytest.raises(ValueError, match='Expected'):
    noise.from_config(config)
