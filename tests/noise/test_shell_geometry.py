import mpmath
import numpy as np
import pytest
from scipy import integrate, special

from tfcactus.noise import shell_geometry


def _exact_cap(dim, s):
  """Returns a unit ball's fraction beyond a plane at distance s, by mpmath."""
  if s < 0:
    return 1 - _exact_cap(dim, -s)
  return mpmath.betainc(mpmath.mpf(dim + 1) / 2, mpmath.mpf(1) / 2, 0, 1 - s * s,
                        regularized=True) / 2 if s < 1 else mpmath.mpf(0)


@pytest.mark.parametrize('dim', [1, 2, 3, 10, 100, 201, 1000, 26010, 1_000_000])
def test_cap_error_is_within_its_bound(dim):
  with mpmath.workdps(40):
    for z in np.append(np.linspace(-11, 11, 45), [1.413, 1.415, 1e-9]):
      s = float(z / np.sqrt(dim + 2))
      if abs(s) >= 1:
        continue
      exact = _exact_cap(dim, mpmath.mpf(s))
      value, _, bound, _ = shell_geometry._cap(dim, np.array([s]), np.array([0.0]))
      assert abs(float(value[0] - exact)) <= bound[0]


def _exact_fraction(dim, a, b):
  """Returns vol(B(0, a) & B(e, b)) / vol(B(0, a)), and its complement, by mpmath."""
  apart = a * a - b * b
  plane = (1 + apart) / (2 * a)
  other = (b / a)**dim * _exact_cap(dim, (1 - apart) / (2 * b))
  return _exact_cap(dim, plane) + other, _exact_cap(dim, -plane) - other


def _worst_fraction(dim, a, step, exact_a, exact_step):
  """Returns the largest ratio of an error to its bound, for one fraction."""
  found = shell_geometry._fraction(dim, np.array([a]), np.array([step]))
  value, lens = _exact_fraction(dim, exact_a, exact_a + exact_step)
  return max(float(abs(given[0] - exact) / (bound[0] or 1e-290))
             for given, bound, exact in ((found.value, found.error, value),
                                         (found.lens, found.lens_error, lens)))


@pytest.mark.parametrize('dim', [1, 2, 3, 5, 20, 201, 1000])
def test_fraction_error_is_within_its_bound(dim):
  """In balls of any size, also where they nearly touch, or one nearly has the other."""
  rng = np.random.default_rng(dim)
  with mpmath.workdps(120):
    for a in (1e-10, 1e-8, 1e-5, 1e-4, 1e-3, 0.01, 0.3, 0.5, 2.0, 20.0):
      for tiny in (1e-16, 1e-12, 1e-10, 1e-8, 1e-6, 1e-5, 1e-3, 0.3, 0.9, 1 - 1e-9):
        least = max(0.0, 1 - 2 * a)
        step = float(1 - (1 - least) * tiny * rng.uniform(0.5, 1))
        assert _worst_fraction(dim, a, step, mpmath.mpf(a), mpmath.mpf(step)) <= 1


@pytest.mark.parametrize('dim', [1, 2, 3, 20])
def test_fraction_error_covers_the_rounding_of_radii(dim):
  with mpmath.workdps(120):
    for first in (1e-9, 1e-5, 0.001, 0.3):
      for width, shift in ((0.7, 1.0), (1 / 3, 0.7), (0.1, 0.3)):
        exact = mpmath.mpf(first) / mpmath.mpf(shift), (
            mpmath.mpf(width) / mpmath.mpf(shift))
        for i in range(4):
          for d in range(1 + round(shift / width) + 1):
            assert _worst_fraction(
                dim, first / shift + i * (width / shift), d * (width / shift),
                exact[0] + i * exact[1], d * exact[1]) <= 1


def uniform_in_shell(rng, dim, inner, outer, count):
  u = rng.random(count)
  radius = outer * np.exp(np.log1p(
      -u * -np.expm1(dim * np.log(max(inner, 1e-300) / outer))) / dim)
  direction = rng.standard_normal((count, dim))
  return direction / np.linalg.norm(direction, axis=1, keepdims=True) * (
      radius[:, None])


@pytest.mark.parametrize('dim, first, width, shell', [
    (1, 0.1, 0.1, 7), (2, 0.1, 0.1, 0), (3, 1 / 40, 1 / 40, 30),
    (10, 0.05, 0.05, 25), (200, 6.0, 0.02, 40)])
def test_transition_against_simulation(dim, first, width, shell):
  count = 100_000
  rng = np.random.default_rng(dim)
  inner = first + width * (shell - 1) if shell else 0.0
  x = uniform_in_shell(rng, dim, inner, first + width * shell, count)
  x[:, 0] -= 1
  moved = np.maximum(np.ceil(
      (np.linalg.norm(x, axis=1) - first) / width), 0).astype(int)
  band, _ = shell_geometry.transition(dim, first, width, shell + 1)
  reach = (band.shape[1] - 1) // 2
  seen = np.bincount(moved, minlength=shell + reach + 1) / count
  for offset in range(max(-reach, -shell), reach + 1):
    p = band[shell, reach + offset]
    assert abs(seen[shell + offset] - p) < 5 * np.sqrt(p / count) + 1e-4


@pytest.mark.parametrize('dim, first, width, count', [
    (1, 0.05, 0.05, 100), (3, 0.02, 0.02, 300), (26010, 200.0, 0.002, 4000)])
def test_rows_sum_to_one_and_volumes_are_symmetric(dim, first, width, count):
  band, error = shell_geometry.transition(dim, first, width, count)
  reach = (band.shape[1] - 1) // 2
  np.testing.assert_allclose(band.sum(axis=1), 1, atol=1e-11)
  assert np.max(error) < 1e-8
  log_outer = dim * np.log(first + width * np.arange(count))
  log_volume = log_outer + np.log(
      -np.expm1(np.append(-np.inf, -np.diff(log_outer))))
  rng = np.random.default_rng(0)
  for i in rng.integers(reach, count - reach, 50):
    for offset in rng.integers(1, reach, 5):
      forward = band[i, reach + offset]
      back = band[i + offset, reach - offset] * np.exp(
          log_volume[i + offset] - log_volume[i])
      assert forward == pytest.approx(back, rel=1e-5, abs=1e-10)


def test_one_dimension_is_the_line():
  """A shell of the line is two intervals; a shift by 10 widths maps one to another."""
  band, _ = shell_geometry.transition(1, 0.1, 0.1, 30)
  reach = (band.shape[1] - 1) // 2
  row = np.zeros(band.shape[1])
  row[[reach - 10, reach + 10]] = 0.5
  np.testing.assert_allclose(band[20], row, atol=1e-12)


def _lens(dim, r, s):
  """Volume shared by balls of radii r and s one apart, over the unit ball's."""
  log_ratio = (special.gammaln(dim / 2 + 1) - special.gammaln(dim / 2 + 0.5) -
               0.5 * np.log(np.pi))

  def slice_(x):
    room = min(r * r - x * x, s * s - (x - 1)**2)
    return max(room, 0.0)**((dim - 1) / 2)

  low, high = max(-r, 1 - s), min(r, 1 + s)
  if high <= low:
    return 0.0
  meet = np.clip((1 + r * r - s * s) / 2, low, high)
  parts = [integrate.quad(slice_, a, b, epsabs=0, epsrel=1e-12, limit=400)[0]
           for a, b in ((low, meet), (meet, high)) if b > a]
  return np.exp(log_ratio) * sum(parts)


@pytest.mark.parametrize('dim', [1, 2, 3, 10])
@pytest.mark.parametrize('r, s', [
    (0.3, 0.5), (0.3, 0.8), (1.0, 1.0), (0.2, 1.1), (1.5, 0.4), (2.0, 2.9),
    (3.0, 1.5), (5.0, 5.05)])
def test_ball_overlap_by_quadrature(dim, r, s):
  small = min(r, s)
  found = shell_geometry._fraction(dim, np.array([small]), np.array([abs(s - r)]))
  value = found.value[0] * small**dim
  assert value == pytest.approx(_lens(dim, r, s), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize('dim, first, width', [
    (3, 0.5, 0.1), (20, 0.8, 0.02), (100, 1.8, 0.01), (1000, 7.0, 0.005)])
def test_tiny_inward_moves_keep_their_digits(dim, first, width):
  """They meet huge ratios of densities: an absolute error would not do."""
  count = 200
  found, _ = shell_geometry.transition(dim, first, width, count)
  band = shell_geometry.reach(dim, first, width)

  def meet(a, b):
    """Volume of two balls' intersection, in units of the unit ball's."""
    if a <= 0 or b <= 0 or a + b <= 1:
      return mpmath.mpf(0)
    if abs(a - b) >= 1:
      return min(a, b)**dim
    apart = a * a - b * b
    return (a**dim * _exact_cap(dim, (1 + apart) / (2 * a)) +
            b**dim * _exact_cap(dim, (1 - apart) / (2 * b)))

  with mpmath.workdps(60):
    radius = [mpmath.mpf(first) + mpmath.mpf(width) * k for k in range(count)]
    for i in (count // 2, count - 1):
      for d in sorted({1, band // 4, band // 2, 3 * band // 4, band - 1} - {0}):
        if d > i:
          continue
        j = i - d
        inner = radius[j - 1] if j else mpmath.mpf(0)
        exact = (meet(radius[i], radius[j]) - meet(radius[i - 1], radius[j]) -
                 meet(radius[i], inner) + meet(radius[i - 1], inner)) / (
                     radius[i]**dim - radius[i - 1]**dim)
        assert found[i, band - d] == pytest.approx(
            float(exact), rel=1e-11, abs=1e-26)
