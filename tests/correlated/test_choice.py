"""The choice of the number of bands."""

import types

import pytest

from tfcactus.correlated import workload


def _plan(bands, multiplier, error):
  return types.SimpleNamespace(
      bands=bands, steps=10, noise=types.SimpleNamespace(noise_multiplier=multiplier),
      correlation=types.SimpleNamespace(error=lambda steps, workload: error))


def test_numbers_to_try_have_a_multiple_near_the_batches():
  assert list(workload.numbers_of_bands(240)) == [
      1, 2, 3, 4, 6, 8, 12, 16, 24, 40, 60, 80, 120, 240]
  assert list(workload.numbers_of_bands(16)) == [1, 2, 4, 8, 16]
  assert list(workload.numbers_of_bands(1)) == [1]
  assert list(workload.numbers_of_bands(0.6)) == [1]
  assert list(workload.numbers_of_bands(1000))[-1] == 512
  for batches in (2, 7.3, 59, 234.4, 500):
    numbers = list(workload.numbers_of_bands(batches))
    assert numbers[0] == 1 and numbers[-1] == round(batches)
    assert numbers == sorted(set(numbers))
    for bands in numbers:
      multiple = bands * max(round(batches / bands), 1)
      assert abs(multiple - batches) <= max(0.05 * batches, 0.5)


def test_the_least_product_of_noise_and_error_wins():
  prices = {1: (1.0, 9.0), 2: (1.1, 7.0), 3: (1.2, 6.0), 4: (1.3, 5.0),
            6: (1.5, 5.5), 8: (2.0, 5.2), 12: (3.0, 5.1), 16: (0.1, 0.1)}
  best, seen = workload.least_error(
      workload.numbers_of_bands(48), lambda bands: _plan(bands, *prices[bands]))
  assert best.bands == 4
  # Three worse ones end it: the price of many bands is never asked for.
  assert [plan.bands for plan in seen] == [1, 2, 3, 4, 6, 8, 12]
  assert workload.total_error(best) == pytest.approx(6.5)
