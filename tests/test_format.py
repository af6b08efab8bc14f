"""Bounds as text: read back, they are still bounds."""

import decimal
import math
import re

import numpy as np
import pytest

from tfcactus import _format

_RNG = np.random.default_rng(0)
_VALUES = [
    *_RNG.uniform(0, 40, 400), *np.exp(_RNG.uniform(-740, 709, 400)),
    *_RNG.random(50).astype(np.float32), *np.round(_RNG.uniform(0, 9, 50), 3),
    *_RNG.integers(0, 10**7, 50), 5e-324, 2.2e-308, 1e-5, 9e-6, 0.1 + 0.2,
    1 - 2**-53, 1 + 2**-52, 9.9999999, 999999.5, 1e15, 1e16, 1e22, 1e300,
    float(np.nextafter(np.inf, 0)), 0.85304999999, 2**53 + 2]


@pytest.mark.parametrize('digits', [1, 2, 4, 6, 10, 17])
@pytest.mark.parametrize('sign', [1, -1])
def test_what_is_read_back_is_still_a_bound(digits, sign):
  for value in _VALUES:
    value = sign * float(value)
    above, below = _format.upper(value, digits), _format.lower(value, digits)
    assert float(below) <= value <= float(above)
    # Off by less than one unit of the last digit, and no longer than need be.
    unit = decimal.Decimal(10)**(
        decimal.Decimal(repr(value)).adjusted() - digits + 1)
    for text in filter(_finite, (above, below)):
      assert abs(decimal.Decimal(text) - decimal.Decimal(repr(value))) < unit
      kept = re.sub('e.*|[-.]', '', text).strip('0')
      assert len(kept) <= digits
      assert not re.search(r'\.\d*0(e|$)', text)


def _finite(text):
  return math.isfinite(float(text))


def test_a_short_number_stays_as_it_is():
  for text in ('1e-05', '0.1', '0.853', '12', '4.75', '1e-07', '250000'):
    value = float(text)
    assert float(_format.upper(value)) == value == float(_format.lower(value))
  assert _format.upper(1e-5) == '1e-05'
  assert _format.upper(1e16) == '1e+16' and _format.upper(250000.0) == '250000'
  assert (_format.upper(0.8530499), _format.lower(0.8530499, 4)) == (
      '0.85305', '0.853')
  assert _format.upper(9.00001e-6, 4) == '9.001e-06'
  assert _format.upper(12.3456701) == '12.3457'


def test_ends_of_the_range():
  assert (_format.upper(0.0), _format.lower(-0.0)) == ('0', '0')
  assert _format.upper(math.inf) == _format.lower(math.inf) == 'inf'
  assert _format.lower(-math.inf) == '-inf' and _format.upper(math.nan) == 'nan'
  assert float(_format.upper(5e-324, 1)) == 5e-324
  largest = float(np.nextafter(np.inf, 0))
  assert _format.upper(largest) == 'inf' and float(
      _format.lower(largest)) == 1.79769e308
