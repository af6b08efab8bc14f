import numpy as np
import pytest

from tests.noise.tables import gaussian_scalar
from tests.noise.tables import wavy_scalar
from tfcactus import noise
from tfcactus import release
from tfcactus.noise.bits import SystemRandom
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

  def record(draws, step):
    seen.append(draws.shape[1])
    return np.zeros(draws.shape, np.int64)

  monkeypatch.setattr(threshold_queries._noise, 'on_lattice', record)
  for place in range(size):
    counts = np.zeros(size, np.int64)
    counts[place] = 1
    seen.clear()
    threshold_queries.threshold_draws(counts, LAWS[0], SystemRandom(0), 1)
    assert len(seen) <= threshold_queries.num_levels(size)
  made = release.thresholds([0], num_values=size, noise=LAWS[0])
  assert getattr(made.event, 'count', 1) == size.bit_length()


@pytest.mark.parametrize('call', [
    lambda: release.thresholds([0], num_values=0, noise=LAWS[0]),
    lambda: release.thresholds([5], num_values=5, noise=LAWS[0]),
    lambda: release.thresholds([-1], num_values=5, noise=LAWS[0]),
    lambda: release.thresholds([np.nan], num_values=5, noise=LAWS[0]),
    lambda: release.thresholds([0], num_values=5, noise=wavy_scalar()),
])
def test_bad_input_is_one_clear_error(call):
  with pytest.raises(ValueError, match='Expected'):
    call()
