"""Discrete Gaussian draws: masses to 200 bits, the law of draws and of their sums."""

import mpmath
import numpy as np
import pytest
from scipy import stats

from tfcactus.noise import discrete_gaussian
from tfcactus.randomness import KeyStream, SystemRandom

HALF = 2**15
K = np.arange(-HALF, HALF)


@pytest.fixture(scope='module')
def true():
  """Returns the discrete Gaussian of scale 2^11 at 0, ..., 2^15 - 1, to 200 bits."""
  with mpmath.workprec(200):
    weights = [mpmath.exp(-mpmath.mpf(k)**2 / 2**23) for k in range(HALF)]
    total = 1 + 2 * mpmath.fsum(weights[1:])
    return [weight / total for weight in weights]


def test_probabilities_are_right_entry_by_entry(true):
  found = discrete_gaussian.probabilities()
  assert found[0] == 0 and found[1:] == found[:0:-1] and sum(found) == 2**128
  with mpmath.workprec(200):
    errors = [mpmath.mpf(mass) - 2**128 * mass_
              for mass, mass_ in zip(found[HALF:], true)]
    assert all(-1 < error <= 0 for error in errors[1:])
    assert 0 <= errors[0] < 2**16
    # Half of the sum of errors, and less than 2^-180 for what is cut off.
    assert errors[0] + 2 * mpmath.fsum(map(abs, errors[1:])) < 2 * 2**16 - 1


def _table_chance(draws):
  """Returns the p-value of draws of the table: chi-square over cells of 8 numbers."""
  masses = np.array(discrete_gaussian.probabilities(), float).reshape(-1, 8).sum(1)
  masses *= draws.size / 2**128
  counts = np.bincount((draws + HALF) // 8, minlength=masses.size)
  rare = masses < 10
  return stats.chisquare(
      [*counts[~rare], counts[rare].sum()], [*masses[~rare], masses[rare].sum()]).pvalue


def test_draws_of_the_table_have_its_law_and_a_scale_of_1_01_is_rejected():
  draws = discrete_gaussian.table_draws(KeyStream(1, 'test'), 4_000_000)
  assert _table_chance(draws) > 1e-3
  assert _table_chance(np.rint(1.01 * draws).astype(np.int64)) < 1e-9
  odd = np.bincount(draws & 7)  # The last bits are next to uniform.
  assert stats.chisquare(odd).pvalue > 1e-3


def _normal_chance(z, scale):
  """Returns the p-value of whole numbers that should be normal with std `scale`."""
  cells = np.sort(stats.norm.ppf(np.linspace(0, 1, 201)[1:-1]))
  return stats.chisquare(
      np.bincount(np.searchsorted(cells, z / scale),
                  minlength=200)).pvalue


@pytest.mark.parametrize('draw, scale, digits', [
    (discrete_gaussian.draw, discrete_gaussian.SCALE, (0, 10, 20)),
    (discrete_gaussian.fine_draw, discrete_gaussian.FINE_SCALE, (0, 10, 20, 30))])
def test_sums_of_draws_have_their_law(draw, scale, digits):
  z = draw(SystemRandom(2), 2_500_000)  # In parallel streams.
  assert z.dtype == np.int64
  assert np.abs(z).max() < discrete_gaussian.LARGEST * scale / discrete_gaussian.SCALE
  assert _normal_chance(z, scale) > 1e-3
  assert _normal_chance(np.rint(1.01 * z), scale) < 1e-9
  for shift in digits:  # Digits other than the leading ones are uniform.
    assert stats.chisquare(np.bincount(z >> shift & 255)).pvalue > 1e-3
  again = draw(SystemRandom(2), 1000)
  assert np.array_equal(again, draw(SystemRandom(2), 1000))
  assert not np.array_equal(again, draw(SystemRandom(3), 1000))


def test_the_law_of_a_sum_is_a_discrete_gaussian_within_the_distance():
  # With s = 2^3 and m = 2^2 the ratio s / m is that of the real table, so that the
  # law's deviation from a discrete Gaussian is as large, and it can be enumerated.
  s, m = 8, 4
  with mpmath.workprec(260):
    def weight(k, variance):
      return mpmath.exp(-mpmath.mpf(k)**2 / (2 * variance))

    reach = range(-18 * s, 18 * s + 1)
    single = {k: weight(k, s**2) for k in reach}
    total = mpmath.fsum(single.values())
    variance = s**2 * (1 + m**2)
    norm = mpmath.fsum(weight(k, variance) for k in range(-600, 601))
    for y in (0, 1, 2, 3, 17):
      law = mpmath.fsum(single[k] * single[y - m * k] for k in reach
                        if y - m * k in single) / total**2
      ratio = law / (weight(y, variance) / norm)
      # r^2 = s^2 / (1 + m^2) is a little less than 4; eta = 2 exp(-2 pi^2 r^2).
      eta = 2 * mpmath.exp(-2 * mpmath.pi**2 * mpmath.mpf(s)**2 / (1 + m**2))
      assert abs(ratio - 1) < 2.1 * eta
      assert abs(ratio - 1) > 1e-4 * eta or y == 17  # The bound is no idle one.


def test_constants_fit_together():
  scale, variance = discrete_gaussian.SCALE, discrete_gaussian.VARIANCE
  assert variance == 2**22 * (2**40 + 2**20 + 1) and variance - scale**2 == 3 * 2**20
  with mpmath.workprec(200):
    def eta(r_squared):
      return 2 * mpmath.exp(-2 * mpmath.pi**2 * r_squared) * (1 + mpmath.mpf(2)**-64)

    levels = [2**22 / (1 + mpmath.mpf(2)**20),
              2**22 / (2**20 + 1 / (1 + mpmath.mpf(2)**20))]
    assert all(eta(each) < mpmath.mpf(1.03e-34) for each in levels)
    assert eta(variance - scale**2) < mpmath.mpf(10)**-999
    found = 3 * mpmath.mpf(2)**-112 + sum(
        eta(each) / (1 - eta(each)) for each in [*levels, variance - scale**2])
    assert found < discrete_gaussian.DISTANCE
    # A fourth draw.
    fine, t = discrete_gaussian.FINE_VARIANCE, mpmath.mpf(variance)
    rest = fine - discrete_gaussian.FINE_SCALE**2
    assert fine == 2**82 + variance and rest == 3 * 2**40 + 2**22
    last = 2**22 * t / (t + 2**82)
    assert eta(last) < mpmath.mpf(1.03e-34) and eta(rest) < mpmath.mpf(10)**-999
    assert found + mpmath.mpf(2)**-112 + eta(last) / (1 - eta(last)) + eta(
        rest) < discrete_gaussian.DISTANCE
