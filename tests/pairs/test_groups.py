"""Probabilities of rows in samples, and means of power curves."""

import numpy as np
import pytest
from scipy import stats

from tfcactus.accounting import views
from tfcactus.noise import base, Gaussian, Laplace
from tfcactus.pairs import groups
from tfcactus.pairs.dominating_pair import DominatingPair, PairBounds


@pytest.mark.parametrize('rows, prob', [(1, .3), (5, .004), (40, .9), (1000, 1e-3)])
def test_poisson_weights_are_binomial(rows, prob):
  found = np.exp(groups.poisson_weights(rows, prob))
  assert found == pytest.approx(stats.binom(rows, prob).pmf(np.arange(rows + 1)),
                                rel=1e-9, abs=1e-300)


@pytest.mark.parametrize('rows, size, total', [
    (1, 3, 10), (5, 20, 100), (5, 3, 100), (5, 98, 100), (30, 250, 60_000)])
def test_fixed_size_weights_are_hypergeometric(rows, size, total):
  found = np.exp(groups.fixed_size_weights(rows, size, total))
  assert found == pytest.approx(
      stats.hypergeom(total, rows, size).pmf(np.arange(rows + 1)), rel=1e-9, abs=1e-300)


def test_all_rows_are_in_a_sample_of_all():
  assert groups.poisson_weights(3, 1.0).tolist() == [-np.inf] * 3 + [0.0]


def test_the_power_curve_is_the_mean_of_power_curves():
  rng = np.random.default_rng(1)
  level = np.linspace(0, 1, 101)
  for _ in range(20):
    pairs = []
    for _ in range(3):
      p, q = rng.dirichlet(np.ones(4), 2)
      p[0], q[-1] = rng.choice([0.0, p[0]]), rng.choice([0.0, q[-1]])
      pairs.append(DominatingPair.from_masses(p / p.sum(), q / q.sum()))
    weights = rng.dirichlet(np.ones(4))
    found = groups.mean_of([PairBounds.exact(pair) for pair in pairs], weights)
    wanted = weights[0] * level + sum(
        weight * (1 - views.tradeoff(pair, level))
        for weight, pair in zip(weights[1:], pairs))
    for pair in (found.lower, found.upper):
      assert 1 - views.tradeoff(pair, level) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize('noise', [Gaussian(1.1), Laplace(0.7)])
def test_bounds_bracket_the_divergence_of_the_mixture(noise):
  """Noise whose likelihood ratios increase together attains the mean."""
  weights = np.exp(groups.poisson_weights(3, 0.2))
  found = groups.mean_of(
      [base.known_pair(noise, rows) for rows in (1, 2, 3)], weights)
  x = np.linspace(-40, 40, 800_001)
  q = np.exp(noise.log_density_at(x))
  p = sum(weight * np.exp(noise.log_density_at(x - rows))
          for rows, weight in enumerate(weights))
  for epsilon in (0.0, 0.3, 1.0, 2.5):
    for pair, one, other in ((found, p, q), (found.reversed(), q, p)):
      exact = (x[1] - x[0]) * float(np.sum(
          np.maximum(one - np.exp(epsilon) * other, 0)))
      lower, upper = (side.hockey_stick(epsilon) for side in (pair.lower, pair.upper))
      assert lower <= exact + 1e-8 and exact <= upper + 1e-8
      assert upper - lower <= 1e-6
