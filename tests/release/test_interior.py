"""Interior points and quantiles by noisy search: rank errors and what they cost."""

import math

import numpy as np
import pytest

from tfcactus import noise, release
from tfcactus.randomness import SystemRandom
from tfcactus.release import interior

LAWS = [noise.Gaussian(2.0), noise.Laplace(1.5), noise.SinhNormal(2.0, 3.0)]


def rank_error(records, answer, fraction):
  """Returns how many records the answer is away from being a fraction-quantile."""
  balance = interior.Balance.of(np.sort(records), fraction, 2**62)
  return max(-float(balance(np.int64(answer))),
             float(balance(np.int64(answer - 1))), 0.0)


def draws(records, fraction, size, law, method, runs, width=None, seed=0):
  balance = interior.Balance.of(np.asarray(records), fraction, size)
  if method == 'binary-search':
    return interior.binary_search_draws(balance, law, SystemRandom(seed), runs)
  return interior.recursion_draws(balance, width, law, SystemRandom(seed), runs)


DATA = {
    'uniform': lambda n: np.random.default_rng(0).integers(1, 5000, n),
    'one value': lambda n: np.full(n, 777),
    'two heaps': lambda n: np.repeat([3, 4990], [n // 2, n - n // 2]),
    'dense': lambda n: 2000 + np.arange(n) // 40,
    'at the ends': lambda n: np.repeat([1, 5000], [n - 3, 3])}


@pytest.mark.parametrize('law', LAWS)
@pytest.mark.parametrize('method', interior.METHODS)
@pytest.mark.parametrize('name', DATA)
@pytest.mark.parametrize('fraction', [0.5, 0.9])
def test_rank_errors_hold_as_often_as_stated(law, method, name, fraction):
  size, beta, runs = 5000, 0.1, 1500
  bound = interior.planned_error(law, size, fraction, beta, method)
  records = DATA[name](3000)
  got = draws(records, fraction, size, law, method, runs, bound)
  assert np.all((got >= 1) & (got <= size))
  worst = {answer: rank_error(records, answer, fraction)
           for answer in np.unique(got)}
  failed = np.mean([worst[answer] > bound for answer in got])
  assert failed < beta + 3.1 * math.sqrt(beta * (1 - beta) / runs)


def test_the_recursion_without_noise_is_right_everywhere():
  """Theorem 25's tree by itself, on data of every size and shape."""
  rng = np.random.default_rng(1)
  quiet = noise.Gaussian(1e-9)
  for _ in range(400):
    size = int(2**rng.integers(1, 20) + rng.integers(0, 3))
    records = np.sort(rng.integers(1, size + 1, rng.integers(1, 60)))
    if rng.random() < 0.3:
      records[:] = records[0]
    fraction = rng.uniform(0.05, 0.95)
    width = rng.uniform(0.3, 40)
    answer = draws(records, fraction, size, quiet, 'recursion', 1, width)[0]
    assert rank_error(records, answer, fraction) <= width + 1e-6
    answer = draws(records, fraction, size, quiet, 'binary-search', 1)[0]
    assert rank_error(records, answer, fraction) <= 1e-6


def test_the_recursion_in_the_largest_domain():
  records = 2**61 + np.arange(4000)
  made = release.interior_point(records, num_values=2**62, method='recursion',
                                noise=LAWS[2], seed=3)
  assert records[0] <= made.value <= records[-1]
  assert made.error(0.05) < 200
  assert made.event.count == 8  # Six comparisons, a maximum, a choice of ends.
  searched = release.interior_point(records, num_values=2**62, noise=LAWS[2])
  assert searched.event.count == 62


def test_moves_of_nodes_are_as_the_account_assumes():
  """One record more moves all nodes by two in total and each by one at most."""
  rng = np.random.default_rng(2)
  for _ in range(600):
    size = int(rng.integers(2, 40))
    records = rng.integers(1, size + 1, rng.integers(0, 12))
    more = np.append(records, rng.integers(1, size + 1))
    fraction, width = rng.uniform(0.05, 0.95), rng.uniform(0.2, 8)
    one, two = (interior.Balance.of(x, fraction, size) for x in (records, more))
    assert np.max(np.abs(one(np.arange(size + 1)) - two(
        np.arange(size + 1)))) <= one.sensitivity + 1e-12
    for level in range(int(size).bit_length() + 1):
      nodes = (size >> level) + 1
      full = []
      for balance in (one, two):
        values = np.zeros(nodes)
        places, value = interior._nodes(balance, width, level)
        values[places] = value
        assert np.sum(values) == pytest.approx(2 * width)
        full.append(values)
      move = np.abs(full[0] - full[1])
      assert np.max(move) <= 1 + 1e-9 and np.sum(move) <= 2 + 1e-9


def test_empty_nodes_are_named_uniformly_and_as_often_as_one_by_one():
  law, runs = noise.Gaussian(1.0), 40_000
  places, value = np.array([1, 4]), np.array([2.0, 1.0])
  named = interior._noisy_maximum(places, value, 6, 0, law, SystemRandom(4),
                                   runs)
  noisy = 2 * law.sample(np.random.default_rng(5), (runs, 7))
  noisy[:, places] += value
  direct = np.argmax(noisy, axis=1)
  a, b = (np.bincount(x, minlength=7) / runs for x in (named, direct))
  np.testing.assert_allclose(a, b, atol=4 * np.sqrt(0.25 / runs))


class Highest(SystemRandom):
  """A generator whose uniforms are all the largest below one."""

  def random(self, size=()):
    return np.full(size, 1 - 2.0**-53)


def test_the_largest_noise_of_empty_nodes_has_no_probability_of_being_infinite():
  """A sum of uniforms was once rounded up to one, the quantile of infinite noise."""
  places, value = np.array([0]), np.array([1e6])
  for law in LAWS:
    named = interior._noisy_maximum(places, value, 5, 0, law, Highest(1), 3)
    assert named.tolist() == [0, 0, 0]


@pytest.mark.parametrize('law', LAWS)
def test_the_largest_noise_of_empty_nodes_has_its_law(law):
  """The best of 10^6 nodes against one node, at each quantile of the best."""
  runs, empty = 20_000, 10**6
  for prob in (0.01, 0.5, 0.99):
    top = 2 * float(law.quantile(prob**(1 / empty)))
    quiet = SystemRandom(3)
    quiet.standard_normal = lambda size: np.zeros(size)
    named = interior._noisy_maximum(
        np.array([0]), np.array([top]), empty, 0, law, quiet, runs)
    if not isinstance(law, noise.Laplace):  # Its own noise is not from normals.
      assert abs(np.mean(named == 0) - prob) < 4 * math.sqrt(prob * (1 - prob) / runs)


@pytest.mark.parametrize('method', interior.METHODS)
def test_no_bound_on_a_rank_error_is_below_zero(method):
  for law in LAWS:
    release_ = release.interior_point(
        [1, 2], num_values=2, noise=law, method=method,
        rank_error=9.0 if method == 'recursion' else None)
    assert release_.error(0.9) >= 0


@pytest.mark.parametrize('call', [
    lambda law: release.interior_point([0], num_values=5, noise=law),
    lambda law: release.interior_point([6], num_values=5, noise=law),
    lambda law: release.interior_point([1.5], num_values=5, noise=law),
    lambda law: release.interior_point([1], num_values=1, noise=law),
    lambda law: release.interior_point([1], num_values=2**63, noise=law),
])
def test_bad_input_is_one_clear_error(call):
  with pytest.raises(ValueError, match='Expected'):
    call(LAWS[0])
