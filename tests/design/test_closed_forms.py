"""The Gaussian and the Laplace as tables."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tfcactus import design


@pytest.mark.parametrize('sigma', [0.1, 0.5, 1.0, 1.3, 10.0])
def test_discretized_gaussian(sigma):
  table = design.DiscretizedGaussian(sigma).solve()
  assert table.noise_multiplier == pytest.approx(sigma, rel=1e-12)
  assert table.monotone
  z = np.linspace(-6 * sigma, 6 * sigma, 101)
  step = 1 / (table.bins * sigma)
  np.testing.assert_allclose(table.cdf(z), stats.norm.cdf(z / sigma),
                             atol=0.2 * step**2)
  # Far out too, in relative terms.
  far = 11 * sigma
  assert np.log(table.cdf(-far)) == pytest.approx(
      stats.norm.logcdf(-11), rel=0.05)
  assert 'not an optimised design' in table.info['statement']


def test_discretized_gaussian_cells_hold_the_mass_of_the_normal():
  table = design.DiscretizedGaussian(1.0, bins=4).solve()
  ratio = np.exp(table.log_density[1] - table.log_density[0])
  # Sheppard's correction twice: rounding to cells, and the spread inside them.
  sigma = np.sqrt(1 - 2 / (12 * 16))
  mass = np.diff(stats.norm.cdf(np.array([-0.125, 0.125, 0.375]) / sigma))
  assert ratio == pytest.approx(mass[1] / mass[0], rel=1e-6)


@pytest.mark.parametrize('scale, bins', [(1.0, 200), (0.2, 50), (7.0, 10),
                                         (0.001, 1)])
def test_discretized_laplace_has_exact_cell_probabilities(scale, bins):
  table = design.DiscretizedLaplace(scale, bins=bins).solve()
  assert table.monotone
  edges = (np.arange(40) + 0.5) / bins
  law = stats.laplace(scale=scale)
  mass = law.sf(edges[:-1]) - law.sf(edges[1:])
  cells = table.log_density_at(np.arange(1, 40) / bins)
  seen = mass > 1e-250
  np.testing.assert_allclose(np.exp(cells[seen]) / bins, mass[seen], rtol=1e-9)


@pytest.mark.parametrize('dim, sigma', [
    (1, 1.0), (2, 0.5), (3, 0.5), (10, 1.3), (100, 0.05), (1000, 2.0),
    (26010, 0.8), (26010, 1.3)])
def test_radial_gaussian(dim, sigma):
  table = design.RadialGaussian(dim, sigma).solve()
  assert table.noise_multiplier == pytest.approx(sigma, rel=1e-12)
  assert table.monotone
  assert np.all(np.diff(table.log_density[1:]) < 0)
  law = stats.chi(dim, scale=sigma)
  u = np.array([1e-9, 0.001, 0.1, 0.5, 0.9, 0.999, 1 - 1e-9])
  np.testing.assert_allclose(
      (table.radius_quantile(u) - law.ppf(u)) / sigma, 0, atol=0.03)
  statement = table.info['statement']
  assert 'quantised on shells' in statement
  assert 'not an optimised design' in statement


def test_radial_gaussian_default_width_keeps_the_cost_small():
  table = design.RadialGaussian(26010, 1.3).solve()
  # The relative cost in epsilon is width^2 dim / 8, by measurement.
  assert table.width**2 * 26010 / 8 < 0.002
  assert table.info['quantisation'] < 0.002
  assert table.log_density[0] == table.log_density[1]
  assert table.shell_mass[0] < 1e-15
  assert table.log_density.size < 30_000


def test_radial_gaussian_matches_log_density():
  table = design.RadialGaussian(4, 1.0, width=0.01).solve()
  z = np.array([[0.3, -0.2, 1.0, 0.1], [2.0, 2.0, 0.0, 1.0]])
  exact = stats.multivariate_normal(np.zeros(4)).logpdf(z)
  np.testing.assert_allclose(table.log_density_at(z), exact, atol=0.03)
