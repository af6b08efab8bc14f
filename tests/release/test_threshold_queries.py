import numpy as np
import pytest

from tests.noise.tables import gaussian_scalar, wavy_scalar
from tfcactus import noise, release
from tfcactus.randomness import SystemRandom
from tfcactus.release import threshold_queries

LAWS = [noise.Gaussian(2.0), noise.Laplace(1.5), noise.SinhNormal(2.0, 3.0),
        gaussian_scalar(2.0)]


@pytest.mark.parametrize('size', [1, 2, 3, 7, 8, 9, 100, 1000])
def test_without_noise_the_counts_are_exact(size):
  counts = np.random.default_rng(size).integers(0, 9, size)
  got = threshold_queries.threshold_draws(
      counts, noise.Gaussian(1e-9), SystemRandom(0), 2)
  assert np.array_equal(got, np.tile(np.cumsum(counts), (2, 1)))


@pytest.mark.parametrize('law', LAWS)
def test_errors_hold_as_often_as_stated(law):
  size, beta, runs = 200, 0.1, 1000
  made = release.thresholds([], num_values=size, noise=law)
  got = threshold_queries.threshold_draws(
      np.zeros(size, np.int64), law, SystemRandom(1), runs)
  failed = np.mean(np.max(np.abs(got), axis=1) > made.error(beta))
  assert failed < beta + 0.03
  # Not idle either: two fifths of it are exceeded much more often.
  half = np.mean(np.max(np.abs(got), axis=1) > 0.4 * made.error(beta))
  assert half > beta


@pytest.mark.parametrize('size', [1, 2, 5, 8, 13, 64])
def test_a_record_is_in_as_many_noisy_counts_as_are_paid_for(size, monkeypatch):
  seen = []

  def record(noise, draws, scale, step):
    seen.append(draws.shape[1])
    return np.zeros(draws.shape, np.int64)

  monkeypatch.setattr(threshold_queries.noise_sources, 'in_steps', record)
  for place in range(size):
    counts = np.zeros(size, np.int64)
    counts[place] = 1
    seen.clear()
    threshold_queries.threshold_draws(counts, LAWS[0], SystemRandom(0), 1)
    assert len(seen) <= threshold_queries.num_levels(size)
  made = release.thresholds([0], num_values=size, noise=LAWS[0])
  assert getattr(made.event, 'count', 1) == size.bit_length()


@pytest.mark.parametrize('call', [
    lambda: release.thresholds([5], num_values=5, noise=LAWS[0]),
    lambda: release.thresholds([-1], num_values=5, noise=LAWS[0]),
    lambda: release.thresholds([np.nan], num_values=5, noise=LAWS[0]),
    lambda: release.thresholds([0], num_values=5, noise=wavy_scalar()),
])
def test_bad_input_is_one_clear_error(call):
  with pytest.raises(ValueError, match='Expected'):
    call()


@pytest.mark.parametrize('size', [0, 2**29, 1.5])
def test_a_wrong_domain_is_named(size):
  with pytest.raises(ValueError, match='num_values'):
    release.thresholds([0], num_values=size, noise=LAWS[0])


@pytest.mark.parametrize('method', ['binary-search', 'recursion'])
def test_sketches_name_where_the_data_are(method):
  rng = np.random.default_rng(3)
  records = 2**40 + rng.integers(0, 10**6, 40_000)
  law = noise.Gaussian(3.0)
  made = release.threshold_sketch(records, num_values=2**50, depth=3, noise=law,
                                  method=method, seed=2)
  points, counts = made.value
  assert np.all(np.diff(points) > 0) and counts.size == points.size + 1
  exact = np.searchsorted(np.sort(records), points, side='right')
  assert np.max(np.abs(counts[:-1] - exact)) <= made.error(1e-4)
  assert abs(counts[-1] - 40_000) <= made.error(1e-4)
  # Eighths, up to the rank errors of three rounds.
  gaps = np.diff(np.concatenate([[0], exact, [40_000]]))
  assert np.max(gaps) < 40_000 / 8 + 1500
  asked = {'binary-search': 50, 'recursion': 8}[method]
  assert made.event.count == 3 * asked + 4


@pytest.mark.parametrize('place', [2**53 + 1, 2**54, 2**61 + 1])
def test_sketches_count_to_the_very_value_where_floats_do_not_hold_it(place):
  records = np.array([place] * 1000 + [place + 1] * 600)
  made = release.threshold_sketch(records, num_values=2**62, depth=2,
                                  noise=noise.Gaussian(1.0), seed=1)
  points, counts = made.value
  exact = np.sum(records <= points[:, None], axis=1)
  assert place in points and np.max(np.abs(counts[:-1] - exact)) <= made.error(1e-6)


@pytest.mark.parametrize('records, size', [([], 9), ([4] * 50, 9), ([1, 2], 2)])
def test_sketches_of_little_data(records, size):
  made = release.threshold_sketch(records, num_values=size, depth=4, noise=LAWS[0])
  points, counts = made.value
  assert np.all((points >= 1) & (points < size))
  assert counts.size == points.size + 1


def test_bad_sketches_are_refused():
  for settings in ({'depth': 0}, {'num_values': 1}, {'noise': LAWS[3]},
                   {'method': 'x'}, {'num_values': 2**63},
                   {'rank_error': 1.0}):
    with pytest.raises(ValueError, match='Expected'):
      release.threshold_sketch([1], **{
          'num_values': 9, 'depth': 2, 'noise': LAWS[0], **settings})
