"""Elementary functions against computations to fifty digits."""

import mpmath
import numpy as np
import pytest

from tfcactus import _numerics


@pytest.mark.parametrize('order', [
    1e-12, 1e-3, 0.5, 1.0, 80.0, 1e6, 1e9, 1e12, 1e15, 1e18, 1e30])
def test_the_largest_gain_of_chernoffs_bound_keeps_its_digits(order):
  """Failed from 1e9 on: two products of about order log(order) cancelled."""
  with mpmath.workdps(50 + int(np.log10(order + 1))):
    c = mpmath.mpf(order)
    exact = c * mpmath.log(c) - (1 + c) * mpmath.log(1 + c)
  found = _numerics.log_kernel(order)
  assert abs(mpmath.mpf(float(found)) - exact) <= 4 * _numerics.EPS * abs(exact)
