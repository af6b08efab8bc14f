"""Scalar tables: masses, moments, draws, files and what is refused."""

import math

from hypothesis import given, settings, strategies as st
import numpy as np
import pytest
from scipy import special, stats

from tests.noise.tables import (
  bounded_scalar,
  gaussian_scalar,
  truncated_scalar,
  wavy_scalar,
)
from tfcactus import noise

TABLES = [gaussian_scalar(), gaussian_scalar(cells=240), wavy_scalar(),
          truncated_scalar(), bounded_scalar(), bounded_scalar(bins=7, cells=5),
          gaussian_scalar(sigma=0.3, bins=7, cells=20, tail_ratio=0.2)]


def edge(table):
  """Returns the position of cell edges, modulo cells."""
  return 0.0 if table.edge_at_zero else 0.5


@pytest.mark.parametrize('table', TABLES, ids=repr)
class TestLaws:

  def test_mass_is_one(self, table):
    edges = (np.arange(-6000, 6001) + edge(table)) / table.bins
    centres = edges[:-1] + 0.5 / table.bins
    mass = np.sum(np.exp(table.log_density_at(centres))) / table.bins
    assert mass == pytest.approx(1, abs=1e-12)

  @pytest.mark.parametrize('t', [0.1, 1.0, 9.0, 11.0])
  def test_moment_generating_function(self, table, t):
    centres = (np.arange(-6000, 6000) + edge(table) + 0.5) / table.bins
    exact = special.logsumexp(table.log_density_at(centres) + t * centres) + (
        math.log(2 * math.sinh(0.5 * t / table.bins) / t))
    if t / table.bins + table.log_tail_ratio >= 0:
      exact = math.inf
    assert exact <= table.log_mgf(t) <= exact + 1e-8

  def test_is_symmetric(self, table):
    z = np.linspace(0.013, 9, 77)
    np.testing.assert_array_equal(table.log_density_at(z),
                                  table.log_density_at(-z))
    np.testing.assert_allclose(table.cdf(-z), 1 - table.cdf(z), atol=1e-15)

  def test_quantile_inverts_cdf(self, table):
    u = np.array([1e-12, 1e-4, 0.1, 0.499, 0.5, 0.77, 0.999, 1 - 1e-9])
    np.testing.assert_allclose(table.cdf(table.quantile(u)), u, rtol=1e-6,
                               atol=1e-15)

  def test_cdf_integrates_the_density(self, table):
    for low, high in ((-0.4, 0.9), (1.23, 2.81)):
      points = np.arange(low * table.bins - 1, high * table.bins + 1)
      breaks = (np.ceil(points) + edge(table)) / table.bins
      breaks = breaks[(breaks > low) & (breaks < high)]
      edges = np.concatenate([[low], breaks, [high]])
      mass = np.sum(np.diff(edges) * np.exp(
          table.log_density_at(0.5 * (edges[1:] + edges[:-1]))))
      assert table.cdf(high) - table.cdf(low) == pytest.approx(mass, abs=1e-13)

  @pytest.mark.parametrize('power', [1.0, 2.0, 3.5])
  def test_moments(self, table, power):
    edges = (np.arange(0, 4000) - edge(table)) / table.bins
    edges[0] = 0
    cells = np.diff(edges**(power + 1)) / (power + 1)
    expected = 2 * np.sum(cells * np.exp(
        table.log_density_at(0.5 * (edges[1:] + edges[:-1]))))
    assert table.moment(power) == pytest.approx(expected, rel=1e-11)

  def test_file_keeps_the_table(self, table, tmp_path):
    path = tmp_path / 'table.npz'
    table.save(path)
    loaded = noise.load(path)
    assert loaded.digest == table.digest
    np.testing.assert_array_equal(loaded.log_density, table.log_density)
    assert loaded.info == table.info
    assert loaded.log_tail_ratio == table.log_tail_ratio

  def test_draws_follow_the_table(self, table):
    z = table.sample(np.random.default_rng(5), 40_000)
    assert stats.kstest(z, table.cdf).pvalue > 1e-3
    # The test detects a wrong scale.
    assert stats.kstest(1.1 * z, table.cdf).pvalue < 1e-4

  def test_cells_are_hit_as_often_as_they_should_be(self, table):
    z = table.sample(np.random.default_rng(6), 200_000)
    cell = np.floor(np.abs(z) * table.bins + edge(table)).astype(int)
    mass = 2 * np.exp(table.half_density) / table.bins
    mass[0] *= 1 - edge(table)
    last = np.flatnonzero(mass * z.size > 20)[-1]
    expected = np.append(mass[:last + 1], 1 - mass[:last + 1].sum()) * z.size
    counts = np.bincount(np.minimum(cell, last + 1), minlength=last + 2)
    keep = expected > 5
    statistic = np.sum((counts - expected)[keep]**2 / expected[keep])
    assert stats.chi2.sf(statistic, keep.sum()) > 1e-3

  def test_draws_are_uniform_inside_cells(self, table):
    z = table.sample(np.random.default_rng(7), 40_000)
    inside = np.mod(z * table.bins + edge(table), 1)
    assert stats.kstest(inside, 'uniform').pvalue > 1e-3


def test_tail_is_geometric_and_really_drawn():
  table = gaussian_scalar(bins=4, cells=2, tail_ratio=0.5)
  z = np.abs(table.sample(np.random.default_rng(1), 400_000))
  depth = np.floor(z * 4 + 0.5)[z > 2.5 / 4] - 2
  counts = np.bincount(depth.astype(int))[1:12]
  np.testing.assert_allclose(counts[1:] / counts[:-1], 0.5, atol=0.12)
  assert depth.max() >= 12


def test_deep_tail_is_reached_by_small_uniforms():

  class Stub:
    """Generator whose uniforms are tiny: the deepest draw of all."""

    def random(self, size):
      return np.full(size, 1e-300)

  table = gaussian_scalar()
  assert np.abs(table.sample(Stub(), 1)[0]) > 8.0


def test_truncated_noise_never_leaves_its_support():
  table = truncated_scalar()
  z = table.sample(np.random.default_rng(2), 1_000_000)
  assert np.max(np.abs(z)) <= 3.05
  outermost = np.mean(np.abs(z) > 2.95)
  assert outermost == pytest.approx(2 * np.exp(table.log_density[-1]) / 10,
                                    rel=0.1)


def test_monotone_is_read_from_the_numbers():
  assert gaussian_scalar().monotone
  assert not wavy_scalar().monotone
  bumped = gaussian_scalar().log_density.copy()
  bumped[50] = np.nextafter(bumped[49], 1)
  assert not noise.ScalarTable.normalized(20, bumped, -0.1,
                                          {'monotone': True}).monotone


def test_digest_names_the_numbers_only():
  table = gaussian_scalar()
  same = noise.ScalarTable(table.bins, table.log_density, table.log_tail_ratio,
                           {'note': 'other words'})
  assert same.digest == table.digest
  assert gaussian_scalar(tail_ratio=0.5).digest != table.digest


def test_tables_are_equal_where_they_draw_the_same():
  table = gaussian_scalar()
  same = noise.ScalarTable(table.bins, table.log_density, table.log_tail_ratio,
                           {'note': 'other words'})
  assert same == table and {table: 1}[same] == 1
  assert table != gaussian_scalar(tail_ratio=0.5)
  assert table != noise.Gaussian(1.0) and table != table.digest


def test_tables_are_frozen():
  table = gaussian_scalar()
  with pytest.raises(ValueError):
    table.log_density[0] = 0
  with pytest.raises(AttributeError):
    table.bins = 3


@pytest.mark.parametrize('change, message', [
    (dict(bins=0), 'bins'),
    (dict(bins=2.5), 'bins'),
    (dict(bins=10**30), 'bins'),
    (dict(bins=True), 'bins'),
    (dict(log_density=[0.0, np.nan]), 'finite entries in log_density'),
    (dict(log_density=[0.0, np.inf]), 'finite entries in log_density'),
    (dict(log_density=[0.0, -np.inf]), 'finite entries in log_density'),
    (dict(log_density=[[0.0, -1.0]]), 'vector'),
    (dict(log_density=[]), 'vector'),
    (dict(log_density='noise'), 'vector'),
    (dict(log_density=[0.0]), 'two cells'),
    (dict(log_tail_ratio=0.0), 'log_tail_ratio'),
    (dict(log_tail_ratio=0.3), 'log_tail_ratio'),
    (dict(log_tail_ratio=np.nan), 'log_tail_ratio'),
    (dict(log_tail_ratio=np.inf), 'log_tail_ratio'),
    (dict(info={'x': object()}), 'info'),
])
def test_bad_input_is_refused(change, message):
  arguments = dict(bins=10, log_density=[0.0, -1.0, -2.0], log_tail_ratio=-1.0)
  arguments.update(change)
  with pytest.raises(ValueError, match=message):
    noise.ScalarTable.normalized(**arguments)


def test_unnormalised_mass_is_refused_with_the_remedy():
  with pytest.raises(ValueError, match='normalized'):
    noise.ScalarTable(10, [0.0, -1.0], -1.0)


def test_distribution_functions_reach_from_zero_to_one():
  for table in (gaussian_scalar(), truncated_scalar(), bounded_scalar()):
    assert table.cdf([-math.inf, math.inf, 1e300]).tolist() == [0, 1, 1]
    assert np.isneginf(table.log_density_at(math.inf))
    with pytest.raises(ValueError, match='without NaN'):
      table.cdf(math.nan)


def test_moments_that_the_left_out_tail_decides_are_refused():
  table = gaussian_scalar(bins=4, cells=2, tail_ratio=0.5)
  assert table.moment(20) > 5e9
  for power in (60, 200, 1000):
    with pytest.raises(ValueError, match='smaller'):
      table.moment(power)
  assert truncated_scalar().moment(60) < truncated_scalar().range**60


def test_a_tail_without_end_is_refused():
  table = noise.ScalarTable.normalized(10, [0.0, -1.0], -1e-9)
  with pytest.raises(ValueError, match='steeper'):
    table.moment(2)


@given(bins=st.integers(1, 50), slope=st.floats(0.01, 5),
       cells=st.integers(2, 80))
@settings(max_examples=40, deadline=None)
@pytest.mark.more
def test_exponential_tables_have_exact_moments(bins, slope, cells):
  log_density = -slope * np.arange(cells)
  table = noise.ScalarTable.normalized(bins, log_density, -slope)
  # A geometric law on |cell|, plus the dither of Definition 6.
  r = math.exp(-slope)
  total = 1 + 2 * r / (1 - r)
  second = 2 * r * (1 + r) / (1 - r)**3 / total
  assert table.moment(2) == pytest.approx((second + 1 / 12) / bins**2,
                                          rel=1e-9)


class TestEdgeAtZero:

  def test_cells_tile_the_range(self):
    table = bounded_scalar(bins=7, cells=5)
    assert table.range == 5 / 7
    assert np.isfinite(table.log_density_at([-table.range, 0.0, table.range])
                       ).all()
    assert np.isneginf(table.log_density_at(np.nextafter(table.range, 1)))
    assert table.cdf(table.range) == 1 and table.cdf(-table.range) == 0
    assert table.quantile(1 - 1e-16) <= table.range
    assert gaussian_scalar().range == math.inf
    assert truncated_scalar().range == 3.05

  @pytest.mark.parametrize('bins', [1, 3, 7, 10, 49])
  def test_no_draw_leaves_the_range(self, bins):

    class Stub:
      """Generator that returns one uniform, such as the largest or the smallest."""

      def __init__(self, value):
        self.value = value

      def random(self, size):
        return np.full(size, self.value)

    table = noise.ScalarTable.normalized(
        bins, np.zeros(5 * bins + 1), -math.inf, edge_at_zero=True)
    for value in (0.0, 2.0**-53, 0.5, 1 - 2.0**-53):
      assert np.abs(table.sample(Stub(value), 1))[0] <= table.range

  def test_ten_million_draws_and_the_outermost_cells(self):
    table = bounded_scalar(bins=7, cells=21)
    z = table.sample(np.random.default_rng(11), 10_000_000)
    assert np.max(np.abs(z)) <= table.range
    expected = 1e7 * np.exp(table.log_density[-1]) / 7
    for outermost in (z > 20 / 7, z < -20 / 7):
      assert abs(np.sum(outermost) - expected) < 4 * expected**0.5
    # A cell half as wide, as with a cell around zero, is told apart.
    assert abs(np.sum(z > 20.5 / 7) - expected) > 20 * expected**0.5

  def test_files_of_the_new_geometry_have_a_new_version(self, tmp_path):
    for table, version in ((bounded_scalar(), 2), (truncated_scalar(), 1)):
      path = str(tmp_path / f'{version}.npz')
      table.save(path)
      with np.load(path) as arrays:
        assert arrays['format_version'] == version
        assert ('edge_at_zero' in arrays) == (version == 2)
      assert noise.load(path).edge_at_zero == (version == 2)

  def test_digests_differ_by_geometry(self):
    log_density = np.log(np.full(4, 0.5))
    on_edges = noise.ScalarTable(4, log_density, -math.inf, edge_at_zero=True)
    again = noise.ScalarTable(4, log_density, -math.inf, {'note': 'other'}, True)
    around = noise.ScalarTable.normalized(4, log_density, -math.inf)
    assert on_edges.digest == again.digest != around.digest

  def test_bad_geometry(self):
    with pytest.raises(ValueError, match='edge_at_zero'):
      noise.ScalarTable.normalized(2, [0.0, 0.0], -math.inf, edge_at_zero=1)


class TestCellMasses:

  def test_even_and_odd(self):
    even = noise.ScalarTable.from_cell_masses(2, [0.1, 0.4, 0.4, 0.1])
    assert even.edge_at_zero and even.range == 1
    np.testing.assert_allclose(even.cdf([-0.5, 0.0, 0.5]), [0.1, 0.5, 0.9])
    odd = noise.ScalarTable.from_cell_masses(2, [0.1, 0.8, 0.1])
    assert not odd.edge_at_zero and odd.range == 0.75
    np.testing.assert_allclose(odd.cdf([-0.25, 0.25]), [0.1, 0.9])

  def test_empty_ends_are_left_out(self):
    table = noise.ScalarTable.from_cell_masses(2, [0, 0.1, 0.4, 0.4, 0.1, 0])
    assert table.range == 1

  @pytest.mark.parametrize('masses, words', [
      ([0.5, -0.1, 0.6], '>= 0'),
      ([-1e-300, 1.0, -1e-300], '>= 0'),
      ([0.4, 0.4, 0.4], 'sum to 1'),
      ([0.0, 0.0], 'sum to 1'),
      ([0.2, 0.5, 0.3], 'asymmetric'),
      ([0.25, 0, 0.5, 0, 0.25], 'gaps'),
      ([0.5, 0, 0, 0.5], 'gaps'),
      ([0.5, math.nan, 0.5], 'finite'),
      ([[0.5, 0.5]], 'vector'),
      ([1.0], 'two cells'),
  ], ids=repr)
  def test_bad_masses(self, masses, words):
    with pytest.raises(ValueError, match=words):
      noise.ScalarTable.from_cell_masses(2, masses)


def test_extreme_densities_have_quantiles_and_moments():
  hollow = noise.ScalarTable.normalized(1, [-800.0, 0.0], -np.inf)
  assert -0.5 <= hollow.quantile(0.5) <= 0.5
  spike = noise.ScalarTable.normalized(1, [0.0, -1e300], -1e-300)
  assert spike.noise_multiplier == pytest.approx(1 / math.sqrt(12))
