"""Rare large losses: the split against quadrature, and against one tilt."""

import math

import mpmath
import numpy as np
import pytest

import tfcactus
from tfcactus.privacy import contour
from tfcactus.privacy import rare
from tfcactus.privacy.bounds import Hard
from tfcactus.privacy.composition import Composition
from tfcactus.privacy.gaussian import GaussianLoss
from tfcactus.privacy.sampling import Release
from tfcactus.privacy.sampling import Source

# Noise multiplier, sampling probability and delta of two rare steps.
TWO_STEPS = [(1.0, 0.01, 1e-8), (1.0, 0.01, 1e-4), (1.231, 0.01871, 3.75e-9),
             (0.8, 1e-4, 1e-12), (3.0, 0.003, 1e-7), (2.5, 1e-4, 1e-11)]

# The same for more steps, with their number; all too rare for one tilt.
RARE = [(0.817, 0.000522, 114, 1e-11), (1.0, 1e-4, 15000, 1e-12),
        (1.0, 1e-5, 1000, 1e-9), (1.0, 0.01, 4, 1e-6), (0.3, 1e-4, 10, 1e-10),
        (1.958, 1.314e-5, 2065, 2.02e-8), (5.0, 1e-3, 3, 1e-9)]


def removal(sigma, prob):
  return GaussianLoss(1 / sigma, prob, 'remove')


def delta_of_two(sigma, prob, epsilon):
  """delta of two steps: the second in closed form, the first by quadrature."""
  mu, s = 1 / mpmath.mpf(sigma), mpmath.mpf(prob)
  def one(eps):
    top = mpmath.expm1(eps) + s
    if top <= 0:
      return -mpmath.expm1(eps)
    z = mpmath.log(top / s)
    return s * (mpmath.ncdf(mu / 2 - z / mu) -
                mpmath.exp(z) * mpmath.ncdf(-mu / 2 - z / mu))
  def term(y):
    u = 1 - s + s * mpmath.exp(mu * y - mu * mu / 2)
    return mpmath.npdf(y) * u * one(epsilon - mpmath.log(u))
  # The rest of epsilon is below any loss from here on.
  u = mpmath.exp(epsilon) / (1 - s)
  edge = (mpmath.log((u - 1 + s) / s) + mu * mu / 2) / mu
  return mpmath.quad(term, sorted([*mpmath.linspace(-12, 15 + 3 * mu, 33), edge]))


@pytest.mark.parametrize('sigma, prob, delta', TWO_STEPS)
def test_two_steps_against_quadrature(sigma, prob, delta):
  bounds = rare.epsilon([(removal(sigma, prob), 2)], delta)
  assert bounds.upper - bounds.lower <= 1e-9 * bounds.upper
  with mpmath.workdps(20):
    assert delta_of_two(sigma, prob, bounds.lower) >= delta
    assert delta_of_two(sigma, prob, bounds.upper) <= delta
    exact = delta_of_two(sigma, prob, bounds.estimate)
  found = rare.delta([(removal(sigma, prob), 2)], bounds.estimate)
  assert found.lower <= exact <= found.upper
  assert float(exact) == pytest.approx(delta, rel=1e-10)


@pytest.mark.parametrize('sigma, prob, steps, delta', RARE)
def test_epsilon_and_delta_are_inverse_and_narrow(sigma, prob, steps, delta):
  groups = [(removal(sigma, prob), steps)]
  bounds = rare.epsilon(groups, delta)
  assert bounds.upper - bounds.lower <= 1e-9 * bounds.upper
  assert rare.delta(groups, bounds.lower).upper >= delta
  assert rare.delta(groups, bounds.upper).lower <= delta
  back = rare.delta(groups, bounds.estimate)
  assert back.upper - back.lower <= 1e-8 * delta


@pytest.mark.parametrize('sigma, prob, steps, delta', [
    (0.5, 0.001, 2000, 1e-8), (1.0, 0.5, 2, 1e-6), (1.0, 0.1, 2, 1e-12),
    (1.274, 0.004786, 197, 1.98e-12)])
def test_agrees_with_one_tilt(sigma, prob, steps, delta):
  groups = [(removal(sigma, prob), steps)]
  one, split = contour.Contour(groups).epsilon(delta), rare.epsilon(groups, delta)
  assert max(one.lower, split.lower) <= min(one.upper, split.upper)
  assert split.estimate == pytest.approx(one.estimate, rel=1e-8)


@pytest.mark.parametrize('sigma, prob, steps, delta', RARE[3:4])
def test_the_lattice_holds_it(sigma, prob, steps, delta):
  release = Release(Source(noise=tfcactus.Gaussian(sigma)), prob)
  composition = Composition([(release.step('remove'), steps)])
  wide = composition._lattice.epsilon(delta)
  assert wide.lower - 1e-12 <= composition.epsilon(delta).estimate
  assert composition.epsilon(delta).estimate <= wide.upper + 1e-12


def test_groups_of_different_steps():
  groups = [(removal(1.0, 1e-3), 7), (removal(0.7, 3e-4), 5)]
  bounds = rare.epsilon(groups, 1e-9)
  assert rare.epsilon(groups[::-1], 1e-9).estimate == pytest.approx(
      bounds.estimate, rel=1e-9)
  more = rare.epsilon([*groups, (removal(2.0, 1e-3), 3)], 1e-9)
  assert more.lower > bounds.upper
  back = rare.delta(groups, bounds.estimate)
  assert back.lower <= 1e-9 <= back.upper


PARTS = [(0.0, 0.02), (0.02, 0.16), (0.16, math.inf)]


@pytest.mark.parametrize('sigma, prob', [(1.0, 1e-3), (0.5, 1e-4), (3.0, 0.01)])
def test_parts_make_the_whole(sigma, prob):
  loss = removal(sigma, prob)
  orders = np.array([0.3, 2.0, 9.0])
  parts = [rare.PartLoss.of(loss, *ends).cumulants(orders) for ends in PARTS]
  whole = loss.cumulants(orders)
  np.testing.assert_allclose(
      np.logaddexp.reduce([part[0] for part in parts]), whole[0], atol=1e-13)
  weights = [np.exp(part[0] - whole[0]) for part in parts]
  np.testing.assert_allclose(
      sum(w * part[1] for w, part in zip(weights, parts)), whole[1], atol=1e-12)


def laws(steps=40):
  loss = removal(0.9, 1e-3)
  groups = ((loss, steps),)
  return [rare.PartLoss.of(loss, *ends) for ends in PARTS] + [
      rare.RareLoss(groups, 0.02, 0.16), rare.RareLoss(groups, 0.16, math.inf)]


@pytest.mark.parametrize('index', range(5))
def test_cumulants_are_derivatives(index):
  law = laws()[index]
  value, slope, curvature = law.cumulants(np.array([2.999, 3.0, 3.001]))
  assert (value[2] - value[0]) / 0.002 == pytest.approx(slope[1], rel=1e-5)
  assert (slope[2] - slope[0]) / 0.002 == pytest.approx(curvature[1], rel=1e-4)


@pytest.mark.parametrize('index', range(5))
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
  """M of a part of removal(0.9, 1e-3) by mpmath, for complex orders."""
  mu, s = 1 / mpmath.mpf('0.9'), mpmath.mpf('0.001')
  def above(level, y):
    if level == 0:
      return mpmath.mpf(1)
    if level == math.inf:
      return mpmath.mpf(0)
    middle = (mpmath.log(mpmath.expm1(level) * (1 - s) / s) + mu * mu / 2) / mu
    v = mu * (y - middle)
    return mpmath.ncdf(v / rare.SHARPNESS + rare.CUTOFF * mpmath.expm1(v))
  def term(y):
    u = 1 - s + s * mpmath.exp(mu * y - mu * mu / 2)
    return mpmath.npdf(y) * (above(low, y) - above(high, y)) * u**(1 + order)
  return mpmath.quad(term, mpmath.linspace(-12, 18, 41))


@pytest.mark.parametrize('low, high', PARTS)
def test_phi_of_a_part(low, high):
  part = rare.PartLoss.of(removal(0.9, 1e-3), low, high)
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


@pytest.mark.parametrize('loss', [
    GaussianLoss(1.0, 1e-3, 'add'), GaussianLoss(1.0, 1.0, 'remove')])
def test_what_cannot_be_split_is_hard(loss):
  with pytest.raises(Hard):
    rare.epsilon([(loss, 3)], 1e-6)
