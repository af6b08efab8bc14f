import fractions

import numpy as np
import pytest

from tests.noise.tables import gaussian_scalar
from tfcactus import accounting, noise, release


def test_quantiles_of_numbers():
  rng = np.random.default_rng(6)
  data = rng.normal(size=20_000)
  law = noise.Gaussian(3.0)
  for fraction in (0.25, 0.5, 0.99):
    made = release.quantile(data, fraction, low=-6, high=6, noise=law, seed=1)
    near = np.searchsorted(np.sort(data), made.value) - fraction * 20_000
    assert abs(near) < made.error(1e-6) + 5
  whole = release.quantile(np.arange(1000), 0.5, low=0, high=1023, noise=law,
                           resolution=1)
  assert isinstance(whole.value, int) and whole.event.count == 10
  far = release.quantile(data, 0.5, low=10, high=20, noise=law)
  assert far.value == pytest.approx(10, abs=1e-4)
  batched = release.quantile(iter([data[:9], data[9:]]), 0.5, low=-6, high=6,
                             noise=law)
  assert abs(batched.value) < 0.1
  assert 1 <= release.interior_point([], num_values=9, noise=law).value <= 9
  coarse = release.quantile(data, 0.5, low=-6, high=6, noise=law, resolution=0.5)
  assert coarse.value in np.arange(-6, 6.5, 0.5)


def test_no_answer_is_above_the_domain():
  found = release.quantile([0.7] * 9, 0.5, low=0.1, high=0.7, resolution=0.1, seed=0,
                           noise=noise.Gaussian(0.01))
  assert found.value == 0.7 < 0.1 + 6 * 0.1


def test_the_cost_is_that_of_its_questions():
  law = noise.Gaussian(2.0)
  made = release.quantile(np.arange(100), 0.5, low=0, high=100, noise=law,
                          resolution=1)
  exact = accounting.PhiAccountant().compose(accounting.noise_event(law), 7)
  assert made.guarantee(1e-6).upper == exact.get_epsilon(1e-6)


@pytest.mark.parametrize('call', [
    lambda law: release.quantile([1.0], 0, low=0, high=1, noise=law),
    lambda law: release.quantile([1.0], 1, low=0, high=1, noise=law),
    lambda law: release.quantile([1.0], np.nan, low=0, high=1, noise=law),
    lambda law: release.quantile([1.0], 0.5, low=1, high=1, noise=law),
    lambda law: release.quantile([1.0], 0.5, low=2, high=1, noise=law),
    lambda law: release.quantile([1.0], 0.5, low=np.nan, high=1, noise=law),
    lambda law: release.quantile([1.0], 0.5, low=0, high=1, noise=law,
                                 resolution=0),
    lambda law: release.quantile([np.nan], 0.5, low=0, high=1, noise=law),
    lambda law: release.quantile([[1.0]], 0.5, low=0, high=1, noise=law),
    lambda law: release.quantile([1.0], 0.5, low=0, high=1, noise=law,
                                 method='magic'),
    lambda law: release.quantile([1.0], 0.5, low=0, high=1, noise=law,
                                 rank_error=3.0),
    lambda law: release.quantile([1.0], 0.5, low=0, high=1, noise=law,
                                 method='recursion', rank_error=0),
    lambda law: release.quantile([1.0], 0.5, low=0, high=1,
                                 noise=gaussian_scalar()),
])
def test_bad_input_is_one_clear_error(call):
  with pytest.raises(ValueError, match='Expected'):
    call(noise.Gaussian(2.0))


def test_fractions_may_be_of_any_real_type():
  assert '0.5-quantile' in release.quantile(
      [1, 2, 3], fractions.Fraction(1, 2), low=0, high=10,
      noise=noise.Gaussian(1.0)).mechanism
