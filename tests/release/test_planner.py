import numpy as np
import pytest

from tests.representatives import representatives
from tfcactus import accounting, noise, release
from tfcactus.noise import sinh_normal
from tfcactus.release import noise_sources, whole_numbers

LAWS = [noise.Gaussian(2.0), noise.Laplace(1.5), noise.SinhNormal(2.0, 3.0)]


@pytest.mark.parametrize('law', LAWS)
def test_the_smallest_count_survives_and_no_empty_one_does(law):
  bins, beta = 500, 0.1
  count = release.smallest_count(law, num_bins=bins, beta=beta)
  threshold = release.count_threshold(law, num_bins=bins, beta=beta / 2)
  data = np.zeros(int(count), np.int64)
  good = []
  for seed in range(600):
    value = release.histogram(data, num_bins=bins, noise=law, seed=seed).value
    good.append(value[0] >= threshold and np.all(value[1:] < threshold))
  assert np.mean(good) > 1 - beta - 0.038
  less = release.count_threshold(law, num_bins=bins, beta=0.7)
  assert less < threshold < count


@pytest.mark.parametrize('law', [noise.Gaussian(3.0), noise.Laplace(3.0)])
def test_thresholds_count_the_larger_noise_of_whole_numbers(law):
  whole = dict(num_bins=500, beta=0.1, arithmetic='integer')
  for plan in release.smallest_count, release.count_threshold:
    assert plan(law, **whole) == plan(law, num_bins=500, beta=0.1)
  # Noise of which a sensitivity is few whole numbers is 2 % larger.
  large = type(law)(3e7)
  made = whole_numbers.scaled(large, 1.0, 1.0, 500, 1.0)
  assert made.larger > 1.01
  # Uniform noise beside float noise counts once in a threshold, twice in a count.
  blur = noise_sources.blur(large, 1.0, 1.0)
  assert blur > 1e-4 * 3e7
  for plan, times in (release.smallest_count, 2), (release.count_threshold, 1):
    found = plan(large, **whole)
    drawn = plan(large, num_bins=500, beta=0.1) - times * blur
    assert made.larger * (1 - 1e-6) < found / drawn < made.larger * (1 + 1e-6)
  with pytest.raises(ValueError, match='noise large enough'):
    release.count_threshold(noise.Gaussian(0.1), **whole)
  with pytest.raises(ValueError, match='Expected arithmetic in'):
    release.count_threshold(law, num_bins=5, beta=0.1, arithmetic='whole')


@representatives('family, delta', [('gaussian', 1e-6), ('laplace', 1e-9)])
def test_noise_for_epsilon_counts_the_leaks_of_whole_numbers(family, delta):
  law = release.noise_for_epsilon(
      family, 8.0, delta, releases=2, arithmetic='integer', count=2**20)
  made = release.histogram(np.zeros(9, np.int64), num_bins=2**20, noise=law,
                           arithmetic='integer')
  cost = accounting.PhiAccountant().compose(made.event, 2).get_epsilon(delta)
  assert 7.99 < cost <= 8.0


@pytest.mark.parametrize('family, bend', [
    ('gaussian', None), ('laplace', None), ('sinh-normal', 12.0)])
def test_noise_for_an_error_has_that_error(family, bend):
  law = release.noise_for_error(family, 6.0, beta=0.05, count=40,
                                sensitivity=0.5, bend=bend)
  draws = 0.5 * law.sample(np.random.default_rng(0), (20_000, 40))
  worse = np.mean(np.max(np.abs(draws), axis=1) > 6.0)
  assert worse == pytest.approx(0.05, abs=0.005)


@pytest.mark.parametrize('family, bend', [
    ('gaussian', None), ('laplace', None), ('sinh-normal', 40.0)])
def test_noise_for_epsilon_has_that_epsilon(family, bend):
  law = release.noise_for_epsilon(family, 2.0, 1e-6, releases=5, bend=bend)
  cost = accounting.PhiAccountant().compose(
      accounting.noise_event(law), 5).get_epsilon(1e-6)
  assert 1.99 < cost <= 2.0


def test_best_sinh_normal_has_its_price_and_beats_its_neighbours():
  options = 10**30
  gap = lambda law: release.smallest_gap(law, num_options=options, beta=0.05)
  best = release.best_sinh_normal(1.0, 1e-6, gap)
  assert sinh_normal.epsilon(best, 1e-6) == pytest.approx(1.0, abs=1e-6)
  assert sinh_normal.epsilon(best, 1e-6) <= 1.0
  gaussian = release.noise_for_epsilon('gaussian', 1.0, 1e-6)
  assert gap(best) < 0.96 * gap(gaussian)
  # At k = 100 and this delta no bend is better than none.
  gap_of_few = lambda law: release.smallest_gap(law, num_options=100, beta=0.05)
  assert gap_of_few(release.best_sinh_normal(1.0, 1e-6, gap_of_few)) == (
      pytest.approx(gap_of_few(gaussian), rel=1e-4))


@pytest.mark.parametrize('call, message', [
    (lambda: release.noise_for_error('cauchy', 1, beta=0.1), 'family'),
    (lambda: release.noise_for_error('gaussian', -1, beta=0.1), 'error'),
    (lambda: release.noise_for_error('gaussian', 1, beta=2), 'beta'),
    (lambda: release.noise_for_error('gaussian', 1, beta=.1, bend=3), 'bend'),
    (lambda: release.noise_for_error('sinh-normal', 1, beta=.1), 'bend'),
    (lambda: release.noise_for_error('sinh-normal', 90, beta=.1, bend=3.),
     'bend >= sigma'),
    (lambda: release.noise_for_error('gaussian', 1, beta=.1, sensitivity=-1),
     'sensitivity'),
    (lambda: release.noise_for_epsilon('gaussian', 0, 1e-6), 'epsilon'),
    (lambda: release.noise_for_epsilon('gaussian', 1, 0), 'delta'),
    (lambda: release.noise_for_epsilon('sinh-normal', 1, 1e-6, bend=10.0),
     'raise bend'),
    (lambda: release.noise_for_error('sinh-normal', 1e9, beta=0.1, bend=1.0), 'sigma'),
    (lambda: release.noise_for_epsilon('gaussian', 1, 1e-6, arithmetic='whole'),
     'Expected arithmetic in'),
    (lambda: release.smallest_count(LAWS[0], num_bins=0, beta=0.1), 'num_bins'),
    (lambda: release.smallest_count(LAWS[0], num_bins=3, beta=1.5), 'beta'),
    (lambda: release.count_threshold(LAWS[0], num_bins=3, beta=0), 'beta'),
])
def test_bad_input_is_one_clear_error(call, message):
  with pytest.raises(ValueError, match=message):
    call()


@pytest.mark.parametrize('wrong', [{'scale': -1.0}, {'num_bins': 10**400}])
def test_thresholds_of_bad_numbers_are_refused(wrong):
  with pytest.raises(ValueError, match=next(iter(wrong))):
    release.count_threshold(
        noise.Gaussian(1.0), **{'num_bins': 5, 'beta': 0.1, **wrong})
