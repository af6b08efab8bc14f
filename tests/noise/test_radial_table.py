import numpy as np
import pytest
from scipy import special, stats

from tests.noise.tables import gaussian_radial, gaussian_scalar, truncated_scalar
from tfcactus import noise

TABLES = [gaussian_radial(), gaussian_radial(dim=1), gaussian_radial(dim=2),
          gaussian_radial(dim=10, bins=20, shells=100),
          noise.RadialTable.normalized(
              500, 9.0, 0.01, -0.2 * np.arange(600), -0.21),
          noise.RadialTable.normalized(4, 0.5, 0.1, [0, -1, -2], -np.inf)]


@pytest.mark.parametrize('table', [*TABLES, gaussian_scalar(), truncated_scalar()],
                         ids=repr)
def test_no_array_of_a_table_can_be_changed(table):
  """Radii that were scaled in place once scaled the noise, and not its account."""
  for name in ('log_density', 'radii', 'survival', 'shell_mass', 'log_hollow',
               'shell_log_density', 'half_density'):
    array = getattr(table, name, None)
    if array is not None:
      with pytest.raises(ValueError, match='read-only'):
        array *= 0.1


@pytest.mark.parametrize('table', TABLES, ids=repr)
class TestLaws:

  def test_mass_is_one(self, table):
    # Shell volumes from scratch, in logs.
    outer = table.radii
    log_outer = table.dim * np.log(outer / table.first_radius)
    log_inner = np.append(-np.inf, log_outer[:-1])
    log_volume = log_outer + np.log1p(-np.exp(log_inner - log_outer))
    log_mass = special.logsumexp(table.shell_log_density + log_volume)
    assert log_mass == pytest.approx(0, abs=1e-11)

  def test_quantile_inverts_cdf(self, table):
    u = np.array([1e-6, 0.1, 0.5, 0.9, 1 - 1e-9])
    np.testing.assert_allclose(table.radius_cdf(table.radius_quantile(u)), u,
                               rtol=1e-6)

  def test_radius_follows_the_table(self, table):
    rho = table.sample_radius(np.random.default_rng(3), 40_000)
    assert stats.kstest(rho, table.radius_cdf).pvalue > 1e-3
    assert stats.kstest(1.1 * rho, table.radius_cdf).pvalue < 1e-4

  def test_second_moment_of_draws(self, table):
    z = table.sample(np.random.default_rng(4), 4000)
    square = np.sum(z**2, axis=1)
    error = np.std(square) / np.sqrt(square.size)
    assert abs(np.mean(square) - table.moment(2)) < 4 * error
    assert abs(1.21 * np.mean(square) - table.moment(2)) > 4 * error

  def test_direction_is_uniform(self, table):
    z = table.sample(np.random.default_rng(5), 4000)
    assert z.shape == (4000, table.dim)
    mean = np.mean(z / np.linalg.norm(z, axis=1, keepdims=True), axis=0)
    # |mean|^2 * dim * n is near chi-square with dim degrees of freedom.
    statistic = np.sum(mean**2) * table.dim * z.shape[0]
    assert 1e-4 < stats.chi2.cdf(statistic, table.dim) < 1 - 1e-4

  def test_file_keeps_the_table(self, table, tmp_path):
    path = tmp_path / 'table.npz'
    table.save(path)
    loaded = noise.load(path)
    assert loaded.digest == table.digest
    assert loaded.noise_multiplier == table.noise_multiplier


def test_gaussian_moments_are_those_of_the_normal_law():
  table = gaussian_radial(dim=3, sigma=0.5, bins=400, shells=2000)
  assert table.noise_multiplier == pytest.approx(0.5, rel=1e-5)
  assert table.moment(4) == pytest.approx(15 * 0.5**4, rel=1e-4)


def test_extremes_of_the_radius():
  table = gaussian_radial()
  np.testing.assert_allclose(table.radius_cdf([-1.0, 0.0, np.inf]), [0, 0, 1],
                             atol=1e-15)
  assert np.isneginf(table.log_density_at([np.inf, 0.0, 0.0]))
  flat = noise.RadialTable.normalized(3, 0.1, 0.1, [0.0, -0.5], -0.5)
  for power in (200, 1000):
    with pytest.raises(ValueError, match='smaller'):
      flat.moment(power)


def test_error_bounds_hold_for_tiny_probabilities():
  table = gaussian_radial()
  assert table.max_error(3, 1e-20) > table.max_error(3, 1e-15)
  for tailed in (table, gaussian_scalar()):
    assert tailed.max_error(1, 1e-40) == np.inf
    with pytest.raises(ValueError, match='beta'):
      tailed.max_error(1, 0.0)
  assert truncated_scalar().max_error(1, 1e-40) == truncated_scalar().range


def test_density_in_true_units():
  table = gaussian_radial(dim=3, sigma=0.5, bins=400, shells=2000)
  z = np.array([0.3, -0.2, 0.1])
  expected = stats.multivariate_normal.logpdf(z, np.zeros(3), 0.25)
  assert table.log_density_at(z) == pytest.approx(expected, abs=0.01)


def test_radius_inside_a_thick_shell_has_the_volume_law():
  """'Uniform radius' would be wrong by a lot in a ball of 10 dimensions."""
  table = noise.RadialTable.normalized(10, 1.0, 1.0, [0.0, -50.0], -60.0)
  rho = table.sample_radius(np.random.default_rng(0), 20_000)
  assert stats.kstest(rho[rho < 1]**10, 'uniform').pvalue > 1e-3
  assert stats.kstest(rho[rho < 1], 'uniform').pvalue < 1e-9


def test_log_density_at_checks_the_shape():
  with pytest.raises(ValueError, match=r'shape \(\.\.\., 3\)'):
    gaussian_radial().log_density_at(np.zeros(2))


@pytest.mark.parametrize('change, message', [
    (dict(dim=0), 'dim'),
    (dict(dim=2.0), 'dim'),
    (dict(dim=10**30), 'dim'),
    (dict(first_radius=0.0), 'first_radius'),
    (dict(first_radius=np.nan), 'first_radius'),
    (dict(width=-1.0), 'width'),
    (dict(width=np.inf), 'width'),
    (dict(log_density=[0.0, np.nan]), 'log_density'),
    (dict(log_tail_ratio=0.0), 'log_tail_ratio'),
    # In 100,000 dimensions volume grows faster than this tail falls.
    (dict(dim=100_000, log_tail_ratio=-1e-12), 'steeper'),
])
def test_bad_input_is_refused(change, message):
  arguments = dict(dim=3, first_radius=0.1, width=0.1,
                   log_density=[0.0, -1.0, -2.0], log_tail_ratio=-1.0)
  arguments.update(change)
  with pytest.raises(ValueError, match=message):
    noise.RadialTable.normalized(**arguments)


def test_unnormalised_mass_is_refused():
  with pytest.raises(ValueError, match='total mass 1'):
    noise.RadialTable(3, 0.1, 0.1, [0.0, -1.0], -1.0)
