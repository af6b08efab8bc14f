"""Parts of a loss: moments, bounds and phi against the whole and quadrature."""

import math

import mpmath
import numpy as np
import pytest

from tests.representatives import representatives
from tfcactus.accounting.composition.losses import gaussian_parts
from tfcactus.accounting.composition.losses.gaussian import GaussianLoss

PARTS = [(0.0, 0.02), (0.02, 0.16), (0.16, math.inf)]


def removal(sigma, prob):
  return GaussianLoss(1 / sigma, prob, 'remove')


@pytest.mark.parametrize('sigma, prob', [(1.0, 1e-3), (0.5, 1e-4), (3.0, 0.01)])
def test_parts_make_the_whole(sigma, prob):
  loss = removal(sigma, prob)
  orders = np.array([0.3, 2.0, 9.0])
  parts = [gaussian_parts.PartLoss.of(loss, *ends).cumulants(orders) for ends in PARTS]
  whole = loss.cumulants(orders)
  np.testing.assert_allclose(
      np.logaddexp.reduce([part[0] for part in parts]), whole[0], atol=1e-13)
  weights = [np.exp(part[0] - whole[0]) for part in parts]
  np.testing.assert_allclose(
      sum(w * part[1] for w, part in zip(weights, parts)), whole[1], atol=1e-12)


def laws(steps=40):
  loss = removal(0.9, 1e-3)
  groups = ((loss, steps),)
  return [gaussian_parts.PartLoss.of(loss, *ends) for ends in PARTS] + [
      gaussian_parts.RareLoss(groups, 0.02, 0.16),
      gaussian_parts.RareLoss(groups, 0.16, math.inf)]


@pytest.mark.parametrize('index', range(5))
def test_cumulants_are_derivatives(index):
  law = laws()[index]
  value, slope, curvature = law.cumulants(np.array([2.999, 3.0, 3.001]))
  assert (value[2] - value[0]) / 0.002 == pytest.approx(slope[1], rel=1e-5)
  assert (slope[2] - slope[0]) / 0.002 == pytest.approx(curvature[1], rel=1e-4)


@pytest.mark.parametrize('index', [
    0, 1, 2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_decay_bound_holds_along_the_line(index):
  law = laws()[index]
  t = np.geomspace(1, 2000, 30)
  bound = law.log_decay(3.0, t)
  assert np.all(np.diff(bound) <= 1e-9)
  seen = law.tilted(3.0, 2500.0, 1e-15).log_phi(0.5, 5000).real
  for start, value in zip(t, bound):
    # Below 1e-13 only rounding is seen.
    assert np.max(seen[int(np.ceil(start / 0.5)):]) <= max(value, -29.9) + 1e-9
  if index:
    assert bound[-1] < -5


def exact_part(low, high, order):
  """Returns the moment of a part of removal(0.9, 1e-3), for complex orders."""
  mu, s = 1 / mpmath.mpf('0.9'), mpmath.mpf('0.001')
  def above(level, y):
    if level == 0:
      return mpmath.mpf(1)
    if level == math.inf:
      return mpmath.mpf(0)
    middle = (mpmath.log(mpmath.expm1(level) * (1 - s) / s) + mu * mu / 2) / mu
    v = mu * (y - middle)
    return mpmath.ncdf(
        v / gaussian_parts.SHARPNESS + gaussian_parts.CUTOFF * mpmath.expm1(v))
  def term(y):
    u = 1 - s + s * mpmath.exp(mu * y - mu * mu / 2)
    return mpmath.npdf(y) * (above(low, y) - above(high, y)) * u**(1 + order)
  return mpmath.quad(term, mpmath.linspace(-12, 18, 41))


@representatives('low, high', PARTS)
def test_phi_of_a_part(low, high):
  part = gaussian_parts.PartLoss.of(removal(0.9, 1e-3), low, high)
  t = 31.7
  tilted = part.tilted(3.0, 40.0, 1e-16)
  with mpmath.workdps(20):
    base = exact_part(low, high, mpmath.mpf(3))
    phi = complex(exact_part(low, high, mpmath.mpc(3, t)) / base)
    assert float(mpmath.log(base)) == pytest.approx(tilted.log_mgf, abs=1e-12)
  got = complex(np.exp(tilted.log_phi(t, 2)[1]))
  assert abs(got - phi) <= 1e-14 + float(tilted.error(np.array([t]))[0])


def test_phi_of_a_composition_with_a_large_loss():
  steps, order, t = 40, 3.0, 31.7
  law = laws(steps)[3]
  tilted = law.tilted(order, 40.0, 1e-16)
  with mpmath.workdps(20):
    def power_gap(s):
      small = exact_part(0, 0.02, s)
      return (small + exact_part(0.02, 0.16, s))**steps - small**steps
    base = power_gap(mpmath.mpf(3))
    phi = complex(power_gap(mpmath.mpc(3, t)) / base)
    assert tilted.log_mgf == pytest.approx(float(mpmath.log(base)), abs=1e-11)
  got = complex(np.exp(tilted.log_phi(t, 2)[1]))
  assert abs(got - phi) <= 1e-13 + float(tilted.error(np.array([t]))[0])
