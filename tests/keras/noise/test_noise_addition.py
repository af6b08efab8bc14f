"""Tests that the sampler draws the law of its noise, at the right scale."""

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from tests.representatives import representatives
from tfcactus import noise as noise_lib
from tfcactus.keras import NoiseSampler
from tfcactus.keras.compat import precision
from tfcactus.keras.noise import noise_addition

_DRAWS = 40_000


def _p_value(draws, cdf):
  return stats.kstest(draws, cdf).pvalue


@pytest.fixture(params=['gaussian', 'laplace', 'sinh-normal', 'scalar'])
def noise(request, scalar):
  return {'gaussian': noise_lib.Gaussian(0.7), 'scalar': scalar,
          'laplace': noise_lib.Laplace(0.6),
          'sinh-normal': noise_lib.SinhNormal(1.5, 1.8)}[request.param]


@pytest.fixture(params=['host', pytest.param('device', marks=pytest.mark.more)])
def randomness(request):
  return request.param


def test_scalar_draws_follow_the_cdf_and_no_other_scale(noise, randomness):
  if randomness == 'device' and not isinstance(noise, noise_lib.Gaussian):
    pytest.skip('The device makes Gaussian noise alone.')
  draws = NoiseSampler(noise, seed=3, randomness=randomness).draw(_DRAWS).numpy()
  assert draws.dtype == np.float64
  assert _p_value(draws, noise.cdf) > 1e-3
  assert _p_value(1.1 * draws, noise.cdf) < 1e-6


def test_scalar_draws_fill_cells_and_tail_by_their_masses(scalar):
  draws = NoiseSampler(scalar, seed=4).draw(_DRAWS).numpy()
  cells = np.floor(np.abs(draws) * scalar.bins + 0.5).astype(int)
  last = 14
  counts = np.bincount(np.minimum(cells, last), minlength=last + 1)
  mass = 2 * np.exp(scalar.half_density) * scalar.width
  mass[0] /= 2
  expected = np.append(mass[:last], np.sum(mass[last:])) * _DRAWS
  assert stats.chisquare(counts, expected).pvalue > 1e-3
  wrong = np.floor(1.1 * np.abs(draws) * scalar.bins + 0.5).astype(int)
  counts = np.bincount(np.minimum(wrong, last), minlength=last + 1)
  assert stats.chisquare(counts, expected).pvalue < 1e-6


def test_radial_draws_have_the_law_of_radius_and_direction(radial):
  sampler = NoiseSampler(radial, seed=5)
  draw = tf.function(lambda: tf.map_fn(
      lambda _: sampler.draw(3), tf.range(8000),
      fn_output_signature=tf.float64))
  vectors = draw().numpy()
  radii = np.linalg.norm(vectors, axis=1)
  assert _p_value(radii, radial.radius_cdf) > 1e-3
  assert _p_value(1.1 * radii, radial.radius_cdf) < 1e-6
  # A coordinate of a uniform point on the sphere is uniform (Archimedes).
  for axis in range(3):
    height = vectors[:, axis] / radii
    assert stats.kstest(height, 'uniform', args=(-1, 2)).pvalue > 1e-3


def test_radial_noise_in_many_dimensions_is_one_joint_draw():
  dim = 2000
  log_density = -0.5 * (40 + 0.02 * np.arange(600))**2
  table = noise_lib.RadialTable.normalized(dim, 40.0, 0.02, log_density, -1.5)
  sampler = NoiseSampler(table, seed=1)
  template = [tf.zeros([40, 30]), tf.zeros([800])]
  radii = [float(tf.linalg.global_norm(sampler(template))) for _ in range(400)]
  assert _p_value(radii, table.radius_cdf) > 1e-3
  assert _p_value(1.01 * np.array(radii), table.radius_cdf) < 1e-6


class _Uniforms:
  """Stands in for a generator: returns given numbers."""

  def __init__(self, values):
    self.values = list(values)

  def random(self, size):
    return np.full(size, self.values.pop(0))


def test_uniforms_below_the_float_grid_choose_the_rarest_cells():
  table = noise_lib.ScalarTable.normalized(1, [0.0, -20.0, -40.0], -50.0)
  assert table.survival[2] > 2.0**-63
  sampler = NoiseSampler(table)
  sampler._rng = _Uniforms([0.0, 2.0**-10, .5, .5, .9, .5])
  # The numbers choose cell 2, no tail, a sign, and the middle of the cell.
  assert abs(abs(float(sampler.draw(1)[0])) - 2) < 1


def test_only_seeded_draws_repeat(noise):
  first, again, other = (
      NoiseSampler(noise, seed=s).draw(50).numpy() for s in (1, 1, 2))
  np.testing.assert_array_equal(first, again)
  assert not np.any(first == other)
  free, more = (NoiseSampler(noise).draw(50).numpy() for _ in range(2))
  assert not np.any(free == more)
  sampler = NoiseSampler(noise, seed=1)
  assert sampler.seeded and not NoiseSampler(noise).seeded
  np.testing.assert_array_equal(sampler.draw(50), first)
  assert not np.any(sampler.draw(50).numpy() == first)


def test_graphs_draw_fresh_noise_without_retracing(radial):
  sampler = NoiseSampler(radial, seed=1)
  traces = []

  @tf.function
  def step():
    traces.append(1)
    return sampler([tf.TensorSpec([2], tf.float32), tf.TensorSpec([])])

  draws = [step() for _ in range(3)]
  assert len(traces) == 1
  assert draws[0][0].dtype == tf.float32
  assert len({float(d[1]) for d in draws}) == 3
  eager = NoiseSampler(radial, seed=1)(tf.TensorShape([3]))
  np.testing.assert_allclose(eager[:2], draws[0][0], rtol=1e-6)


def test_draws_have_the_given_scale_and_shape(randomness):
  one, two = (NoiseSampler(noise_lib.Gaussian(1.0), seed=1, randomness=randomness)
              for _ in range(2))
  np.testing.assert_allclose(3 * one((2, 5)).numpy(), two((2, 5), scale=3.0))
  assert one((7,)).shape == (7,)


@pytest.mark.parametrize('call, words', [
    (lambda t: NoiseSampler(1.1), 'Gaussian'),
    (lambda t: NoiseSampler(t, dim=4), 'dim=3'),
    (lambda t: NoiseSampler(t).draw(4), '3 coordinates'),
    (lambda t: NoiseSampler(t, seed=-1), 'seed >= 0'),
    (lambda t: NoiseSampler(t, seed=1.5), 'integer'),
    (lambda t: NoiseSampler(t).draw(0), 'size >= 1'),
    (lambda t: NoiseSampler(t)(tf.TensorSpec([None])), 'fully known'),
    (lambda t: NoiseSampler(t)('abc'), 'template'),
    (lambda t: NoiseSampler(t)(tf.zeros([3], tf.int32)), 'floating dtypes, got int32'),
])
def test_invalid_arguments_raise(radial, call, words):
  with pytest.raises(ValueError, match=words):
    call(radial)


class TestBoundedNoise:

  def _table(self, bins=7, cells=21):
    z = (np.arange(cells) + 0.5) / bins
    return noise_lib.ScalarTable.normalized(
        bins, -0.5 * z * z, float('-inf'), edge_at_zero=True)

  def test_draws_follow_the_cdf_and_no_other_scale(self):
    table = self._table()
    draws = NoiseSampler(table, seed=8).draw(_DRAWS).numpy()
    assert _p_value(draws, table.cdf) > 1e-3
    assert _p_value(1.1 * draws, table.cdf) < 1e-6

  @pytest.mark.more
  def test_ten_million_draws_fill_the_outermost_cells(self):
    table = self._table()
    sampler = NoiseSampler(table, seed=9)
    expected = 1e7 * np.exp(table.log_density[-1]) / 7
    low = high = half = 0
    for _ in range(10):
      draws = sampler.draw(1_000_000).numpy()
      assert np.max(np.abs(draws)) <= table.range
      low, high = low + np.sum(draws < -20 / 7), high + np.sum(draws > 20 / 7)
      half += np.sum(draws > 20.5 / 7)
    for count in (low, high):
      assert abs(count - expected) < 4 * expected**0.5
    assert abs(half - expected) > 20 * expected**0.5

  @representatives('dtype, bins, scale', [
      (dtype, bins, scale) for scale in (0.1, 1.0, -1.3, 3.7) for bins in (7, 1, 3, 10)
      for dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16)], 13)
  def test_rounding_does_not_leave_the_range(self, dtype, bins, scale):
    # With two cells and uniforms close to one, every draw is at the end of the range.
    table = self._table(bins, 2)
    sampler = NoiseSampler(table, seed=1)
    largest = np.nextafter(1.0, 0)
    sampler._rng = _Uniforms([0.0, 0.0, 0.0, largest])
    drawn = sampler(tf.TensorSpec([3], dtype), scale)
    assert drawn.dtype == dtype
    end = table.range * abs(scale)
    size = np.abs(tf.cast(drawn, tf.float64).numpy())
    assert np.all(size <= end)
    assert np.all(size > 0.97 * end)
    # Rounding to nearest leaves the range in this case.
    if (dtype, bins, scale) == (tf.float32, 7, 0.1):
      assert float(tf.cast(tf.cast(end, dtype), tf.float64)) != end


def test_noise_of_many_coordinates_is_drawn_per_variable(monkeypatch):
  monkeypatch.setattr(noise_addition, 'TOGETHER', 1000)
  sizes = []
  sampler = noise_addition.NoiseSampler(noise_lib.Gaussian(2.0))
  sample = sampler._sample
  monkeypatch.setattr(sampler, '_sample', lambda size: (
      sizes.append(size), sample(size))[1])
  sums = [tf.zeros([40, 50]), tf.zeros([7]), tf.zeros([30_000])]
  noisy = tf.function(lambda: sampler.add_to(sums, tf.constant(0.5, tf.float64)))()
  assert sizes == [2000, 7, 30_000]
  assert [each.shape for each in noisy] == [each.shape for each in sums]
  assert np.std(noisy[2]) == pytest.approx(1, rel=0.03)
  assert abs(np.corrcoef(np.ravel(noisy[0]), noisy[2][:2000])[0, 1]) < 0.15


@pytest.mark.parametrize('dtype', [tf.bfloat16, tf.float16, tf.float32, tf.float64])
def test_noisy_sums_keep_shapes_and_dtypes_in_graphs_and_eagerly(dtype, randomness):
  def added():
    sampler = noise_addition.NoiseSampler(noise_lib.Gaussian(2.0), seed=1,
                                          randomness=randomness)
    return sampler.add_to([tf.ones([300, 2], dtype), tf.ones([], dtype)],
                          tf.constant(1.5, tf.float64))

  eager, graph = added(), tf.function(added)()
  for one, other in zip(eager, graph):
    assert one.dtype == other.dtype == dtype and one.shape == other.shape
    np.testing.assert_array_equal(tf.cast(one, tf.float64), tf.cast(other, tf.float64))
  assert np.std(tf.cast(eager[0], tf.float64)) == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize('scale', [1.0, 1.5, 0.1, 3e-5, 2.0**-7 * (1 - 2.0**-50), 700])
def test_noisy_sums_lie_on_a_grid_a_billion_times_finer_than_the_noise(
    scale, randomness):
  """Low bits of a float64 sum, and of small float32 noise, would reveal both."""
  wide = tf.constant(scale, tf.float64)
  step = precision.grid(wide).numpy()
  assert np.frexp(step)[0] == 0.5 and scale * 2.0**-31 < step <= scale * 2.0**-30
  sampler = NoiseSampler(noise_lib.Gaussian(0.01), randomness=randomness)
  sums = np.random.default_rng(0).normal(size=2000) * scale / 50
  for given, dtypes in [(tf.float64, None), (tf.float32, None),
                        (tf.float64, ['float32']), (tf.float32, ['bfloat16'])]:
    [noisy] = sampler.add_to([tf.constant(sums, given)], wide, dtypes=dtypes)
    assert noisy.dtype == (given if dtypes is None else dtypes[0])
    on_grid = tf.cast(noisy, tf.float64).numpy() / step
    np.testing.assert_array_equal(on_grid, np.rint(on_grid))
    assert np.std(on_grid * step / scale) == pytest.approx(np.hypot(0.01, 1 / 50), 0.1)


@pytest.mark.parametrize('multiplier', [0.01, 1.0, 2.0**24, 1.6e9])
def test_the_grid_grows_with_the_noise(multiplier, randomness):
  """Large float64 noise would skip points of a grid for small noise."""
  sampler = NoiseSampler(noise_lib.Gaussian(multiplier), randomness=randomness)
  [noisy] = sampler.add_to([tf.zeros([500], tf.float64)], tf.constant(3.0, tf.float64))
  step = 2.0**np.floor(np.log2(3 * max(1, multiplier)) - 30)
  np.testing.assert_array_equal(noisy / step, np.rint(noisy / step))


def test_noise_of_scale_zero_is_zero(randomness):
  sampler = NoiseSampler(noise_lib.Gaussian(1.0), randomness=randomness)
  [noisy] = sampler.add_to([tf.zeros([3])], tf.constant(0.0, tf.float64))
  np.testing.assert_array_equal(noisy, 0)
