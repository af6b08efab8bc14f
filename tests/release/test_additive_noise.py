import math

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from tests.noise.tables import (
  gaussian_radial,
  gaussian_scalar,
  truncated_scalar,
  wavy_scalar,
)
from tfcactus import noise, release
from tfcactus.noise import sinh_normal
from tfcactus.randomness import SystemRandom
from tfcactus.release import additive_noise, noise_sources

LAWS = [noise.Gaussian(2.0), noise.Laplace(2.0), noise.SinhNormal(2.0, 3.0),
        gaussian_scalar(2.0)]


@pytest.mark.parametrize('law', LAWS)
def test_values_carry_exactly_the_noise(law):
  draws = np.array([release.noisy_value(
      17, sensitivity=3, noise=law, resolution=1, seed=i).value for i in range(600)])
  assert np.all(draws == np.rint(draws))
  centred = (draws - 17 + np.random.default_rng(0).random(600) - 0.5) / 3
  assert stats.kstest(centred, law.cdf).pvalue > 1e-4
  assert stats.kstest(1.6 * centred, law.cdf).pvalue < 1e-4


def test_what_is_released_lies_on_a_public_grid():
  """The low bits of a float sum tell neighbours apart; a grid has none."""
  step = 2.0**-22
  for value in (0.1, 1 / 3, 7e3 + 1e-9):
    got = release.noisy_value(value, sensitivity=0.25, noise=LAWS[0]).value
    assert got / step == np.rint(got / step)
    vector = release.noisy_vector(np.full(3, value), l2_sensitivity=0.25,
                                  noise=LAWS[0]).value
    assert np.all(vector / step == np.rint(vector / step))
  whole = release.noisy_value(5, sensitivity=1, noise=LAWS[0],
                              resolution=1).value
  assert isinstance(whole, int)


@pytest.mark.parametrize('sensitivity', [0.3, 1.0, 7.7])
def test_rounding_to_the_grid_is_within_the_sensitivity(sensitivity):
  rng = np.random.default_rng(1)
  a = rng.normal(size=2000) * 10
  b = a + rng.uniform(-sensitivity, sensitivity, 2000)
  one, step, scale = noise_sources.lattice(a, sensitivity)
  two, _, _ = noise_sources.lattice(b, sensitivity)
  assert np.max(np.abs(one - two)) * step <= scale
  assert scale <= sensitivity * (1 + 2e-6)


def test_multiples_of_a_public_resolution_stay_as_they_are():
  for value in (np.array([3, -5]), np.array([3.0, -5.0]), [3, -5.0]):
    steps, step, scale = noise_sources.lattice(value, 2, 1)
    assert (list(steps), step, scale) == ([3, -5], 1.0, 2)
  with pytest.raises(ValueError, match='multiples of resolution'):
    noise_sources.lattice(2.5, 2, 1)
  # Odd numbers that are even once they are rounded to float64.
  for odd in (2**53 + 1, -2**53 - 1, [0, 2**53 + 1], np.uint64(2**63 + 1025)):
    with pytest.raises(ValueError, match='multiples of resolution'):
      noise_sources.lattice(odd, 2.0**12, 2.0**12)
    with pytest.raises(ValueError, match='multiples of resolution'):
      noise_sources.lattice(odd, 2.0**70, 2.0**70)
  with pytest.raises(ValueError, match='multiples of resolution'):
    noise_sources.lattice(2**53 + 1, 2.0, 2.0)
  if np.finfo(np.longdouble).nmant > 52:
    with pytest.raises(ValueError, match='multiples of resolution'):
      noise_sources.lattice(np.longdouble(2)**53 + 1, 2.0, 2.0)
  for value in (2**53, -2**53, np.uint64(2**63), np.int8(0)):
    assert noise_sources.lattice(value, 2.0, 2.0**20)[0] == int(value) // 2**20
  assert noise_sources.lattice(-2**63, 2.0, 2.0**63)[0] == -1
  with pytest.raises(ValueError, match='power of two'):
    noise_sources.lattice(3, 2, 0.1)


def test_vectors_take_the_noise_that_a_plan_would():
  x = np.ones(3)
  assert release.noisy_vector(
      x, l2_sensitivity=1.0, noise=gaussian_radial()).value.shape == (3,)
  for bad in (LAWS[1], LAWS[2], LAWS[3], gaussian_radial(dim=2)):
    with pytest.raises(ValueError, match='Expected noise'):
      release.noisy_vector(x, l2_sensitivity=1.0, noise=bad)
  for good in LAWS[:3]:
    assert release.noisy_vector(
        x, l1_sensitivity=1.0, noise=good).value.shape == (3,)
  for bad in (LAWS[3], wavy_scalar(), gaussian_radial(),
              noise.SinhNormal(3, 2)):
    with pytest.raises(ValueError, match='Expected'):
      release.noisy_vector(x, l1_sensitivity=1.0, noise=bad)
  with pytest.raises(ValueError, match='exactly one'):
    release.noisy_vector(x, noise=LAWS[0])


@pytest.mark.parametrize('law', [
    noise.Gaussian(1.0), noise.Laplace(1.0), noise.SinhNormal(1.0, 1.0)])
@pytest.mark.parametrize('split', [0.5, 0.2, 0.01])
def test_a_spread_change_costs_no_more_than_a_whole_one(law, split):
  """The product of two shifts against one, on a fine grid."""
  edges = np.linspace(-14, 14, 1401)
  mass = lambda shift: np.diff(law.cdf(edges - shift))
  pair = lambda shift: (mass(shift), mass(0.0))
  (a, a0), (b, b0), (whole, whole0) = map(pair, (split, 1 - split, 1.0))
  p, q = np.outer(a, b).ravel(), np.outer(a0, b0).ravel()
  for epsilon in (0.0, 0.1, 0.4, 0.8, 1.5):
    spread = np.sum(np.maximum(p - np.exp(epsilon) * q, 0))
    at_once = np.sum(np.maximum(whole - np.exp(epsilon) * whole0, 0))
    # Whole shifts are cut on the same grid, which loses a little of them.
    assert spread <= at_once * (1 + 1e-3) + 1e-12


def test_log_concave_is_read_off_the_numbers():
  assert gaussian_scalar().log_concave_on_cells
  assert truncated_scalar().log_concave_on_cells
  assert not wavy_scalar().log_concave_on_cells
  assert not gaussian_scalar(tail_ratio=0.99999).log_concave_on_cells
  assert not noise.SinhNormal(3, 2).log_concave
  # Rounding makes the logs of a law like the Laplace law convex somewhere.
  line = -0.07 * np.arange(3000)
  assert np.any(np.diff(line, 2) > 0)
  for tail in (-0.07, -np.inf):
    assert noise.ScalarTable.normalized(100, line, tail).log_concave_on_cells
  assert not noise.ScalarTable.normalized(100, line, -0.06999).log_concave_on_cells


def test_a_table_whose_slope_rises_a_little_from_cell_to_cell_is_refused():
  # The logs are convex: two counts that change by one have losses up to 2 g(1), more
  # than g(2), the largest of one count that changes by two.
  bins, rise = 2**13, 0.9e-9
  slope = -1e-3 + rise * np.arange(3 * bins)
  log = np.append(0.0, np.cumsum(slope))
  table = noise.ScalarTable.normalized(bins, log, slope[-1])
  assert 2 * log[bins] - log[2 * bins] < -0.05
  with pytest.raises(ValueError, match='log-concave'):
    release.histogram([0, 1], num_bins=2, noise=table)


def test_sums_are_clipped_and_exact():
  rows = np.random.default_rng(2).normal(size=(500, 4)) * 5
  quiet = noise.Gaussian(1e-6)
  got = release.noisy_sum(rows, l2_norm_clip=2.0, noise=quiet).value
  norm = np.linalg.norm(rows, axis=1, keepdims=True)
  np.testing.assert_allclose(
      got, np.sum(rows * np.minimum(1, 2.0 / norm), axis=0), atol=1e-4)
  order = np.random.default_rng(3).permutation(500)
  same = [release.noisy_sum(part, l2_norm_clip=2.0, noise=quiet, seed=1).value
          for part in (rows, rows[order], iter([rows[:7], rows[7:]]))]
  assert np.array_equal(same[0], same[1]) and np.array_equal(same[0], same[2])


@pytest.mark.parametrize('scale', [1e-300, 1e-8, 1.0, 1e12, 1e300])
def test_no_record_is_longer_than_the_clip_norm(scale):
  rows = np.random.default_rng(4).normal(size=(400, 7)) * scale
  steps = additive_noise._clipped_steps(rows, 0.3, 2.0**-32)
  longest = max(sum(int(x)**2 for x in row) for row in steps)
  assert longest * 2.0**-64 <= 0.3**2
  if scale >= 1:
    assert longest * 2.0**-64 > 0.3**2 * (1 - 1e-6)


def test_no_clipped_record_depends_on_the_others():
  # Columns in a row of memory, as tables of columns have. The bisection ends where a
  # record's steps depend on the last bit of its norm.
  first, second = np.random.default_rng(1).normal(size=(2, 100))

  def clipped(entry, records):
    first[50:] = entry
    return additive_noise._clipped_steps(
        np.asfortranarray(np.stack([first, second])[:records]), 1.0, 2.0**-30)[0]

  low, high = 0.5, 0.5000001
  last = clipped(high, 1)[-1]
  assert clipped(low, 1)[-1] < last
  while low < (middle := (low + high) / 2) < high:
    np.testing.assert_array_equal(clipped(middle, 1), clipped(middle, 2))
    low, high = (low, middle) if clipped(middle, 1)[-1] >= last else (middle, high)


def test_histogram_counts():
  data = np.array([0, 2, 2, 5])
  quiet = noise.Gaussian(1e-3)
  for records in (data, list(data), iter([data[:1], data[1:]]), data.astype(
      float), [0, 2, 2, 5]):
    assert list(release.histogram(
        records, num_bins=6, noise=quiet).value) == [1, 0, 2, 0, 0, 1]
  empty = release.histogram([], num_bins=3, noise=quiet)
  assert list(empty.value) == [0, 0, 0]
  dropped = release.histogram(data, num_bins=3, noise=quiet, outside='drop')
  assert list(dropped.value) == [1, 0, 2]
  with pytest.raises(ValueError, match="outside='drop'"):
    release.histogram(data, num_bins=3, noise=quiet)


def test_tf_data_comes_in():
  tf = pytest.importorskip('tensorflow')
  dataset = tf.data.Dataset.from_tensor_slices([0, 2, 2, 5]).batch(3)
  quiet = noise.Gaussian(1e-3)
  assert list(release.histogram(
      dataset, num_bins=6, noise=quiet).value) == [1, 0, 2, 0, 0, 1]
  empty = release.noisy_sum([], dim=3, l2_norm_clip=1.0, noise=quiet).value
  assert np.shape(empty) == (3,)
  total = release.noisy_sum(
      tf.data.Dataset.from_tensor_slices(tf.ones((5, 2))).batch(2),
      l2_norm_clip=9.0, noise=quiet).value
  np.testing.assert_allclose(total, 5, atol=0.1)
  pairs = tf.data.Dataset.from_tensor_slices(([[1.0]], [2])).batch(1)
  with pytest.raises(ValueError, match='select the part'):
    release.noisy_sum(pairs, l2_norm_clip=1.0, noise=quiet)


@pytest.mark.parametrize('law', LAWS)
def test_errors_hold_as_often_as_stated(law):
  truth = np.zeros(20, np.int64)
  bound = release.histogram([], num_bins=20, noise=law).error(0.1)
  worse = np.array([np.max(np.abs(release.histogram(
      [], num_bins=20, noise=law, seed=i).value - truth)) > bound
                    for i in range(800)])
  # Rounding to integers is covered by half a count.
  assert np.mean(worse) < 0.1 + 3.1 * 0.3 / np.sqrt(800)
  tight = bound - 1.5
  assert stats.binomtest(int(np.sum([np.max(np.abs(release.histogram(
      [], num_bins=20, noise=law, seed=i).value)) > tight
                                     for i in range(800)])), 800, 0.1,
                         'greater').pvalue < 1e-2


def test_what_a_release_says():
  made = release.noisy_value(3, sensitivity=1, noise=LAWS[2], seed=1)
  text = made.report(1e-6)
  assert 'epsilon <=' in text.splitlines()[0]
  assert 'truncated CDP' in text.splitlines()[1]
  assert 'experiment' in text and made.seeded
  assert not release.noisy_value(3, sensitivity=1, noise=LAWS[2]).seeded
  guarantee = made.guarantee(1e-6)
  assert guarantee.seeded and 'SEEDED' in str(guarantee)
  assert 'SEEDED (noise)' in guarantee.statement
  exact = sinh_normal.epsilon(LAWS[2], 1e-6)
  assert guarantee.lower <= exact <= guarantee.upper
  assert made.tcdp(1e-6).epsilon(1e-6) > exact
  replaced = made.guarantee(
      1e-6, dp_accounting.NeighboringRelation.REPLACE_ONE)
  assert replaced.lower <= sinh_normal.epsilon(
      LAWS[2], 1e-6, shift=2) <= replaced.upper
  with pytest.raises(ValueError, match='beta'):
    made.error(0)


@pytest.mark.parametrize('call', [
    lambda: release.noisy_value(np.nan, sensitivity=1, noise=LAWS[0]),
    lambda: release.noisy_value(np.inf, sensitivity=1, noise=LAWS[0]),
    lambda: release.noisy_value('3', sensitivity=1, noise=LAWS[0]),
    lambda: release.noisy_value(None, sensitivity=1, noise=LAWS[0]),
    lambda: release.noisy_value([1, 2], sensitivity=1, noise=LAWS[0]),
    lambda: release.noisy_value(1e300, sensitivity=1, noise=LAWS[0]),
    lambda: release.noisy_value(1j, sensitivity=1, noise=LAWS[0]),
    lambda: release.noisy_value(3, sensitivity=1, noise=None),
    lambda: release.noisy_value(3, sensitivity=1, noise=gaussian_radial()),
    lambda: release.noisy_value(3, sensitivity=1, noise=LAWS[0], seed=-1),
    lambda: release.noisy_value(3, sensitivity=1, noise=LAWS[0], seed='x'),
    lambda: release.noisy_vector([], l2_sensitivity=1, noise=LAWS[0]),
    lambda: release.noisy_vector([[1.0]], l2_sensitivity=1, noise=LAWS[0]),
    lambda: release.noisy_vector([np.nan], l2_sensitivity=1, noise=LAWS[0]),
    lambda: release.noisy_sum([], l2_norm_clip=0, noise=LAWS[0]),
    lambda: release.noisy_sum(iter([]), l2_norm_clip=1, noise=LAWS[0]),
    lambda: release.noisy_sum([[np.nan]], l2_norm_clip=1, noise=LAWS[0]),
    lambda: release.noisy_sum([[np.inf]], l2_norm_clip=1, noise=LAWS[0]),
    lambda: release.noisy_sum(
        iter([np.ones((2, 2)), np.ones((2, 3))]), l2_norm_clip=1,
        noise=LAWS[0]),
    lambda: release.histogram('abc', num_bins=3, noise=LAWS[0]),
    lambda: release.histogram({'a': 1}, num_bins=3, noise=LAWS[0]),
    lambda: release.histogram(5, num_bins=3, noise=LAWS[0]),
    lambda: release.histogram([0.5], num_bins=3, noise=LAWS[0]),
    lambda: release.histogram([np.nan], num_bins=3, noise=LAWS[0]),
    lambda: release.histogram([0], num_bins=0, noise=LAWS[0]),
    lambda: release.histogram([0], num_bins=3, noise=wavy_scalar()),
    lambda: release.histogram([0], num_bins=3, noise=LAWS[0], outside='x'),
])
def test_bad_input_is_one_clear_error(call):
  with pytest.raises(ValueError, match='Expected'):
    call()


@pytest.mark.parametrize('sensitivity', [0, -1, np.nan, np.inf, None, '1'])
def test_bad_sensitivities_are_explained(sensitivity):
  for call in (
      lambda: release.noisy_value(3, sensitivity=sensitivity, noise=LAWS[0]),
      lambda: release.noisy_vector([3.0], l1_sensitivity=sensitivity or 0,
                                   noise=LAWS[0]),
      lambda: release.gap_max([1, 2], sensitivity=sensitivity, noise=LAWS[0]),
      lambda: release.top_m([1, 2], 1, sensitivity=sensitivity, noise=LAWS[0])):
    with pytest.raises(ValueError, match='never measured on the data'):
      call()


@pytest.mark.parametrize('law', LAWS + [truncated_scalar()])
def test_moment_generating_functions_are_bounded_closely(law):
  z = np.linspace(-60, 60, 600_001)
  density = np.exp(law.log_density_at(z))
  for t in (0.05, 0.2, 0.4):
    exact = np.log(np.sum(density * np.cosh(t * z)) * (z[1] - z[0]))
    # The sinh-normal's bound is that of the normal inside.
    slack = 1.5 if isinstance(law, noise.SinhNormal) else 1.01
    assert exact * (1 - 1e-6) <= law.log_mgf(t) <= slack * exact + 1e-4
  table = gaussian_scalar(tail_ratio=0.9)
  assert table.log_mgf(20 * 0.2) == np.inf  # 20 log(1 / 0.9) = 2.1.


class Listed(SystemRandom):
  """A generator of given uniforms, in blocks of equal numbers; notes its integers."""

  def __init__(self, *uniforms):
    super().__init__(1)
    self.left, self.spans = [*uniforms], []

  def random(self, size=()):
    return np.full(size, self.left.pop(0))

  def integers(self, span, count):
    self.spans.append(span)
    return super().integers(span, count)


@pytest.mark.parametrize('scale, size, resolution', [
    (2.0**26, 2.0**19.4, 1.0), (1.0, 1e6, None)])
def test_the_grid_of_floats_does_not_show_in_a_release(
    scale, size, resolution, monkeypatch):
  """Counts the uniforms that lead to each answer, for Laplace noise, on two inputs.

  Without the uniform noise, ratios of probabilities were off by up to a percent where
  epsilon was 1.4e-6: a delta of 1e-3.
  """
  law, random = noise.Laplace(size), Listed(0.1, 0.3, 0.0)
  monkeypatch.setattr(noise_sources, 'generator', lambda seed: random)
  release.noisy_value(0.0, sensitivity=scale, noise=law, resolution=resolution)
  reach = (random.spans[-1] - 1) // 2
  step = resolution or noise_sources.step_below(scale, 20)

  def below(steps):
    """Returns how many uniforms lead to at most so many steps, by bisection."""
    low, high = 0, 2**52
    while low < high:
      middle = (low + high) // 2
      drawn = law.sample(Listed(0.1, 1 - middle * 2.0**-53, 0.0), 1)
      if noise_sources.in_steps(law, drawn, scale, step)[0] > steps:
        high = middle
      else:
        low = middle + 1
    return low

  def log_ratio(answer, reach):
    """Returns the log of the ratio of the answer's probabilities, one record apart."""
    there, here = (below(x + reach) - below(x - reach - 1) for x in (
        answer - round(scale / step), answer))
    return math.log(there / here)

  answers = np.linspace(0.2, 0.5, 12) * size * scale / step
  off = {each: max(abs(log_ratio(round(answer), each) - 1 / size) for answer in answers)
         for each in (0, reach)}
  assert off[reach] < 1e-3 / size and off[0] > 20 / size
