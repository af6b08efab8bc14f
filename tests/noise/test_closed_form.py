import math

import numpy as np
import pytest
from scipy import stats

from tests.noise.tables import gaussian_radial, gaussian_scalar
from tfcactus import noise
from tfcactus.randomness import SystemRandom


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


def of_all_laws():
  return [noise.Gaussian(1.0), noise.Laplace(1.0), noise.SinhNormal(1.0, 2.0),
          gaussian_scalar(), gaussian_radial()]


@pytest.mark.parametrize('bad', [
    None, 'a', {}, math.nan, 1j, True, [None], [1, 'a'], b'x', [[1], [1, 2]]], ids=repr)
@pytest.mark.parametrize('law', of_all_laws(), ids=lambda law: law.kind)
def test_what_is_no_number_is_refused_by_name(law, bad):
  for method, name in (('cdf', 'z'), ('log_density_at', 'z'), ('quantile', 'u'),
                       ('log_mgf', 't'), ('radius_cdf', 'radius'),
                       ('radius_quantile', 'u'), ('moment', 'power')):
    if hasattr(law, method):
      with pytest.raises(ValueError, match=f'^Expected {name} '):
        getattr(law, method)(bad)
  if law.kind != 'radial':
    with pytest.raises(ValueError, match='^Expected dim '):
      law.max_error(bad, 0.1)
  if not isinstance(bad, list):
    with pytest.raises(ValueError, match='^Expected size '):
      law.sample(SystemRandom(1), bad)


@pytest.mark.parametrize('law', of_all_laws(), ids=lambda law: law.kind)
def test_probabilities_and_sizes_out_of_range_are_refused(law):
  quantile = getattr(law, 'quantile', None) or law.radius_quantile
  for bad in (0, 1, -0.1, [0.5, 2]):
    with pytest.raises(ValueError, match=r'^Expected u in \(0, 1\)'):
      quantile(bad)
  for size in (-1, (2, -1), 1.5, (1.5,)):
    with pytest.raises(ValueError, match='^Expected size '):
      law.sample(SystemRandom(1), size)
  # With NaN for a probability the pair was once empty: nothing at all to account for.
  for prob in (math.nan, 0, -0.1, 1.5, 'a', None, True):
    for pair in (law.replaced_pair, law.zeroed_pair):
      with pytest.raises(ValueError, match='^Expected sampling_prob '):
        pair(prob)


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
