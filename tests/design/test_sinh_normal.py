"""Discretised sinh-normal noise as a table."""

import numpy as np
import pytest

from tfcactus import design, noise


@pytest.mark.parametrize('sigma, bend, bins', [
    (3.0, 6.0, 50), (1.0, 1.0, 200), (4.0, 0.7, 100), (0.3, 5.0, 200)])
def test_cells_hold_the_exact_mass(sigma, bend, bins):
  law = noise.SinhNormal(sigma, bend)
  table = design.DiscretizedSinhNormal(sigma, bend, bins=bins).solve()
  i = np.arange(1, min(4 * bins, table.log_density.size))
  mass = law.cdf(-(i - 0.5) / bins) - law.cdf(-(i + 0.5) / bins)
  seen = mass > 1e-200
  np.testing.assert_allclose(
      np.exp(table.log_density[i][seen]) / bins, mass[seen], rtol=1e-8)
  assert table.monotone == law.log_concave
  assert table.std == pytest.approx(law.std, rel=2e-3)
  assert table.info['mechanism'] == 'discretized-sinh-normal'


def test_save_and_load_keep_the_digest(tmp_path):
  table = design.DiscretizedSinhNormal(2.0, 5.0, bins=20).solve()
  table.save(tmp_path / 'table.npz')
  assert noise.load(tmp_path / 'table.npz').digest == table.digest


@pytest.mark.parametrize('settings, message', [
    ({'sigma': 0}, 'sigma'), ({'bend': -1}, 'bend'), ({'bins': 0}, 'bins'),
    ({'sigma': 1e-3, 'bins': 2}, 'half a cell'), ({'cells': 1}, 'cells'),
    ({'sigma': 1e6, 'bend': 1e6}, 'cells')])
def test_bad_requests_are_refused(settings, message):
  with pytest.raises(ValueError, match=message):
    design.DiscretizedSinhNormal(**{'sigma': 2.0, 'bend': 5.0, **settings})
