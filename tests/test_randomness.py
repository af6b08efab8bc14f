"""A system-keyed source with the methods of numpy's generators."""

import math

import numpy as np
import pytest
from scipy import stats

from tests.noise.tables import gaussian_radial
from tests.noise.tables import gaussian_scalar
from tfcactus import noise
from tfcactus.randomness import SystemRandom


@pytest.mark.parametrize('law', [
    noise.Gaussian(2.0), noise.Laplace(0.5), noise.SinhNormal(3.0, 4.0),
    gaussian_scalar()])
def test_noise_draws_from_it_with_its_law(law):
  draws = law.sample(SystemRandom(5), 40_000)
  assert stats.kstest(draws, law.cdf).pvalue > 1e-3
  assert stats.kstest(1.04 * draws, law.cdf).pvalue < 1e-3


def test_radial_noise_draws_from_it():
  table = gaussian_radial()
  norm = np.linalg.norm(table.sample(SystemRandom(6), 20_000), axis=1)
  assert stats.kstest(norm, table.radius_cdf).pvalue > 1e-3


def test_only_seeds_repeat():
  assert np.array_equal(SystemRandom(1).random(5), SystemRandom(1).random(5))
  assert not np.array_equal(SystemRandom(1).random(5), SystemRandom(2).random(5))
  assert not np.array_equal(SystemRandom(1, 'a').random(5),
                            SystemRandom(1, 'b').random(5))
  assert not np.array_equal(SystemRandom().random(5), SystemRandom().random(5))


def test_shapes_and_ranges():
  rng = SystemRandom(3)
  for draw in (rng.random, rng.standard_normal,
               lambda size: rng.laplace(size=size),
               lambda size: rng.integers(0, 7, size)):
    assert draw((2, 3)).shape == (2, 3)
    assert draw(4).shape == (4,)
    assert np.shape(draw(())) == ()
  whole = rng.integers(-2, 5, 70_000)
  assert stats.chisquare(np.bincount(whole + 2, minlength=7)).pvalue > 1e-3
  # Three quarters of the range of a word: a remainder would favour the first.
  large = rng.integers(0, 3 * 2**61, 40_000) / (3 * 2**61)
  assert stats.kstest(large, 'uniform').pvalue > 1e-3
  with pytest.raises(ValueError, match='low < high'):
    rng.integers(3, 3, 5)
  assert math.isfinite(float(rng.laplace(scale=2.0)))
