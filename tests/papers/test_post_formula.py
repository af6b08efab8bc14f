"""Post's formula against quadrature, closed forms and its own error bound."""

from decimal import Decimal
import math

import mpmath
import numpy as np
import pytest

from tfcactus.papers.conversions import profile_by_post

LOSS = math.log(7 / 3)
MOST = LOSS * (1 + 1e-15)


def response(s):
  """Returns the log moment of randomised response kept with .7."""
  loss = (Decimal(7) / 3).ln()
  return (Decimal('.7') * (-s * loss).exp() + Decimal('.3') * (s * loss).exp()).ln()


def delta(epsilon):
  return 0.7 * max(0.0, 1 - math.exp(epsilon - LOSS)) + 0.3 * max(
      0.0, 1 - math.exp(epsilon + LOSS))


def laplace(s):
  """Returns the log moment of Laplace noise of scale one."""
  return (((1 - s) * (-s).exp() - s * (s - 1).exp()) / (1 - 2 * s)).ln()


@pytest.mark.parametrize('epsilon, terms', [(0.5, 8), (0.5, 30), (-0.3, 12), (0.8, 60)])
def test_it_is_a_mean_of_deltas(epsilon, terms):
  at = epsilon + MOST
  rate = math.fsum(1 / i for i in range(terms, 2 * terms + 1)) / at
  weight = mpmath.factorial(2 * terms) / mpmath.factorial(terms) / mpmath.factorial(
      terms - 1)
  with mpmath.workdps(25):
    mean = mpmath.quad(lambda u: weight * rate * (1 - mpmath.exp(-rate * u))**terms * (
        mpmath.exp(-terms * rate * u)) * delta(float(u) - MOST),
                       mpmath.linspace(0, MOST + LOSS, 9))
  assert profile_by_post(response, MOST, epsilon, terms).estimate == pytest.approx(
      float(mean), abs=1e-9)


@pytest.mark.parametrize('terms', [5, 30, 80])
def test_bounds_hold_and_close(terms):
  for epsilon in np.linspace(-0.8, 1.2, 7):
    bounds = profile_by_post(response, MOST, float(epsilon), terms)
    assert bounds.lower <= delta(epsilon) <= bounds.upper
    assert bounds.upper - bounds.lower <= 1.1 * (epsilon + MOST) / math.sqrt(terms)
    # Away from the kinks the error is of order 1 / k.
    if abs(epsilon) < 0.3:
      assert abs(bounds.estimate - delta(epsilon)) <= 0.4 / terms


def test_laplace_noise():
  for epsilon in (-0.5, 0.0, 0.5):
    bounds = profile_by_post(laplace, 1.0, epsilon, 80)
    exact = -math.expm1(0.5 * (epsilon - 1))
    assert bounds.lower <= exact <= bounds.upper
    assert bounds.estimate == pytest.approx(exact, abs=5e-3)


def test_orders_next_to_one():
  """An epsilon for which one of the orders is one, to all digits of a float."""
  terms = 20
  rates = math.fsum(1 / i for i in range(terms, 2 * terms + 1))
  for j in (0, 3):
    at = rates * (terms + j)
    for move in (0.0, 1e-13):
      bounds = profile_by_post(response, MOST, at - MOST + move, terms)
      assert abs(bounds.estimate) <= 1e-12


def test_infinite_losses():
  finite = lambda s: response(s) + Decimal('.9').ln()
  bounds = profile_by_post(finite, MOST, 3.0, 60)
  assert bounds.lower <= 0.1 <= bounds.upper
  assert bounds.estimate == pytest.approx(0.1, abs=1e-3)


def test_an_epsilon_of_single_precision():
  assert profile_by_post(response, MOST, np.float32(0.5), 10) == profile_by_post(
      response, MOST, 0.5, 10)


@pytest.mark.parametrize('call, message', [
    (lambda: profile_by_post(response, MOST, -2.0), 'epsilon > -most'),
    (lambda: profile_by_post(response, 0.0, 0.5), 'most > 0'),
    (lambda: profile_by_post(response, MOST, 0.5, 1), 'terms >= 2'),
    (lambda: profile_by_post(lambda s: Decimal(float(response(s))), MOST, 0.5, 40),
     'digits of the decimal context')])
def test_bad_input(call, message):
  with pytest.raises(ValueError, match=message):
    call()
