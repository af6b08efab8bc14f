"""Truncated Gaussian, Laplace and staircase tables against closed forms."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from tfcactus import accounting, design
from tfcactus.search import truncated


def test_gaussian_has_the_normals_cells():
  table = design.TruncatedGaussian(3, scale=1.3, bins=5).solve()
  edges = np.arange(16) / 5
  mass = np.diff(stats.norm.cdf(edges, scale=1.3))
  np.testing.assert_allclose(np.exp(table.log_density) / 5,
                             0.5 * mass / np.sum(mass), rtol=1e-12)
  assert table.range == 3 and table.monotone


@pytest.mark.parametrize('steps, expected', [
    (1, 3.9445e-4), (8, 0.0448694), (16, 0.0963528)])
def test_wide_gaussian_has_the_gaussians_delta(steps, expected):
  """sigma = 8, epsilon = .3, n = 1, 8, 16: golden values of the issue."""
  mu = math.sqrt(steps) / 8
  exact = stats.norm.cdf(mu / 2 - 0.3 / mu) - math.exp(0.3) * stats.norm.cdf(
      -mu / 2 - 0.3 / mu)
  assert exact == pytest.approx(expected, rel=2e-5)
  table = design.TruncatedGaussian(64, scale=8, bins=20).solve()
  found = truncated.account(table, epsilon=0.3, steps=steps)
  assert found.delta.estimate == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize('norm', [1, 2])
def test_laplace(norm):
  table = design.TruncatedLaplace(4, scale=0.8, bins=64, norm=norm).solve()
  density = lambda z: math.exp(-z / 0.8)
  total = integrate.quad(density, 0, 4)[0]
  moment = integrate.quad(lambda z: z**norm * density(z), 0, 4)[0] / total
  assert table.moment(norm) == pytest.approx(moment, rel=1e-3)
  again = design.TruncatedLaplace(4, utility=moment**(1 / norm), bins=64,
                                  norm=norm).solve()
  assert again.moment(norm) == pytest.approx(moment, rel=1e-10)
  assert again.info['parameters']['scale'] == pytest.approx(0.8, rel=1e-3)


def test_nearly_uniform_noise():
  for utility in (1 - 1e-6, 1 - 1.5e-9):  # E|Z| of uniform noise on [-2, 2] is one.
    table = design.TruncatedLaplace(2, utility=utility).solve()
    assert table.moment(1) == pytest.approx(utility, rel=1e-11)
  for scale in (3e6, 1e100):
    table = design.TruncatedGaussian(2, scale=scale).solve()
    assert table.std == pytest.approx(2 / math.sqrt(3), rel=1e-9)


class TestStaircase:

  def test_steps_keep_their_digits_at_large_epsilon(self):
    table = design.Staircase(60, range=2.0, bins=10).solve()
    np.testing.assert_allclose(np.diff(table.log_density[1:10]), 0, atol=1e-12)
    assert design.Staircase(700, range=2.0).solve().monotone

  def test_truncated_to_the_digits(self):
    table = design.Staircase(0.3, range=5, bins=500).solve()
    assert table.moment(1) == pytest.approx(1.884781, abs=1e-6)
    for bins in (3, 20):
      table = design.Staircase(0.3, range=5, bins=bins).solve()
      found = truncated.account(table, epsilon=0.3, norm=1)
      # Quantisation keeps delta exactly.
      assert found.delta.upper == pytest.approx(0.0502427, abs=5e-8)
      assert found.omega == pytest.approx(found.delta.upper, rel=1e-9)

  @pytest.mark.parametrize('epsilon', [0.3, 1.0, 3.0])
  def test_untruncated_is_pure(self, epsilon):
    table = design.Staircase(epsilon, bins=200).solve()
    best = math.exp(epsilon / 2) / math.expm1(epsilon)
    assert table.moment(1) == pytest.approx(best, rel=1e-4)
    assert table.monotone
    accountant = accounting.PhiAccountant().compose(accounting.noise_event(table))
    assert accountant.get_delta(epsilon) < 1e-11
    assert accountant.get_delta(epsilon * 0.99) > 1e-4

  def test_least_utility_at_the_default_gamma(self):
    best = design.Staircase(1.0).solve().moment(1)
    for gamma in (0.2, 0.3, 0.5, 0.7):
      assert design.Staircase(1.0, gamma=gamma).solve().moment(1) > best

  def test_steps_are_where_they_should_be(self):
    table = design.Staircase(0.7, range=3, gamma=0.25, bins=4).solve()
    falls = np.flatnonzero(np.diff(table.log_density) < -1e-9)
    np.testing.assert_array_equal(falls, [0, 4, 8])
    np.testing.assert_allclose(np.diff(table.log_density)[falls], -0.7)


@pytest.mark.parametrize('make, words', [
    (lambda: design.TruncatedGaussian(5), 'scale or utility'),
    (lambda: design.TruncatedGaussian(5, scale=1, utility=1), 'scale or'),
    (lambda: design.TruncatedGaussian(5, scale=0), 'scale'),
    (lambda: design.TruncatedGaussian(0.4, scale=1), 'range > 0.5'),
    (lambda: design.TruncatedLaplace(5, utility=2.6), 'uniform'),
    (lambda: design.TruncatedLaplace(5, scale=math.inf), 'scale'),
    (lambda: design.Staircase(0.0), 'epsilon'),
    (lambda: design.Staircase(1e-6), 'bins'),
    (lambda: design.Staircase(1.0, gamma=1.0), 'gamma'),
    (lambda: design.Staircase(1.0, range=2.5, bins=3), 'tile'),
])
def test_bad_requests(make, words):
  with pytest.raises(ValueError, match=words):
    make()
