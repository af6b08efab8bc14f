"""Lower bounds of truncated CDP, against what mechanisms attain."""

import math

import mpmath
import numpy as np
import pytest
from scipy import integrate

from tfcactus.accounting.truncated_cdp import TCDP
from tfcactus.papers import tcdp


@pytest.mark.parametrize('rho, omega', [(0.01, 10.0), (0.1, 4.0), (1e-4, 300.0)])
@pytest.mark.parametrize('n', [1, 3, 8, 30, 200])
def test_theorem_26_is_at_least_the_divergence_of_its_proof(rho, omega, n):
  ours = tcdp.mutual_information(TCDP(rho, omega), n)
  printed = tcdp.printed_mutual_information(TCDP(rho, omega), n)
  with mpmath.workdps(30):
    w = mpmath.mpf(omega)
    exact = ((1 + 1 / (w - 1))**n - 1) * (w - 1) * w * mpmath.mpf(rho)
    assert printed == pytest.approx(float(mpmath.e**(n / (w - 1)) * w**2 * rho))
  assert ours == pytest.approx(min(float(exact), rho * n * n if n < omega else 1e300))
  assert ours <= printed


@pytest.mark.parametrize('rho, n', [(0.02, 3), (0.3, 4)])
def test_an_answer_does_not_tell_more(rho, n):
  """n copies of a fair bit, their sum released with Gaussian noise: rho-zCDP."""
  sigma = math.sqrt(0.5 / rho)
  normal = lambda y, mean: np.exp(-0.5 * ((y - mean) / sigma)**2) / (
      sigma * math.sqrt(2 * math.pi))

  def gain(y):
    one, mixed = normal(y, n), 0.5 * (normal(y, n) + normal(y, 0))
    return one * math.log(one / mixed)

  told = integrate.quad(gain, -8 * sigma, n + 8 * sigma, limit=200)[0]
  assert 0.05 * tcdp.mutual_information(TCDP(rho), n) < told <= (
      tcdp.mutual_information(TCDP(rho), n))


@pytest.mark.parametrize('rho, omega', [(1e-3, 40.0), (0.01, 12.0)])
def test_corollary_27_is_below_what_holds_and_what_is_attained(rho, omega):
  guarantee = TCDP(rho, omega)
  for power in (2, 6, 30, 300):
    printed = tcdp.printed_fewest_records(guarantee, 10.0**power)
    ours = tcdp.fewest_records(guarantee, 10.0**power)
    # The upper bound printed beside it: Corollary 18 at beta = 1/2.
    enough = 2 * tcdp.histogram_error(
        rho, omega, num_bins=10**power, beta=0.5)
    assert printed <= ours <= enough
    needed = 0.5 * math.log(10.0**power / 4)
    assert tcdp.mutual_information(guarantee, ours) >= needed
    assert ours == 1 or tcdp.mutual_information(guarantee, ours - 1) < needed


def test_corollary_27_number_by_number():
  with mpmath.workdps(30):
    exact = 9 * mpmath.log(mpmath.log(mpmath.mpf(10)**40 / 4) / (2 * 100 * 0.001))
  assert tcdp.printed_fewest_records(
      TCDP(0.001, 10), 1e40) == pytest.approx(float(exact))


def test_zcdp_needs_the_square_root():
  n = tcdp.fewest_records(TCDP(0.01), 1e9)
  assert n == math.ceil(math.sqrt(0.5 * math.log(2.5e8) / 0.01))


@pytest.mark.parametrize('call', [
    lambda: tcdp.mutual_information(TCDP(0.1, 3), 0),
    lambda: tcdp.mutual_information(1.0, 3),
    lambda: tcdp.printed_mutual_information((1.0, 2.0), 3),
    lambda: tcdp.fewest_records(None, 100),
    lambda: tcdp.printed_fewest_records(1.0, 100),
    lambda: tcdp.fewest_records(TCDP(0.1, 3), 4),
    lambda: tcdp.fewest_records(TCDP(0.0), 100),
    lambda: tcdp.fewest_records(TCDP(0.0, 2.0), 100),
    lambda: tcdp.mutual_information(TCDP(0.1), 10**400),
    lambda: tcdp.printed_fewest_records(TCDP(0.1), 100),
    lambda: tcdp.printed_fewest_records(TCDP(0.1, 3), math.inf)])
def test_refusals(call):
  with pytest.raises(ValueError, match='Expected'):
    call()
