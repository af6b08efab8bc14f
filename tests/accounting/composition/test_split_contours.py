"""Split contours for rare large losses, against quadrature and the plain contour."""


import mpmath
import pytest

from tests.representatives import representatives
import tfcactus
from tfcactus import relations
from tfcactus.accounting.bounds import IntractableError
from tfcactus.accounting.composition import contour
from tfcactus.accounting.composition.composition import Composition
from tfcactus.accounting.composition.losses.gaussian import GaussianLoss
from tfcactus.accounting.composition.split_contours import SplitContours
from tfcactus.accounting.event_steps import NoiseStep, Sample

# Noise multiplier, sampling probability and delta of two rare steps.
TWO_STEPS = [(1.0, 0.01, 1e-8), (1.0, 0.01, 1e-4), (1.231, 0.01871, 3.75e-9),
             (0.8, 1e-4, 1e-12), (3.0, 0.003, 1e-7), (2.5, 1e-4, 1e-11)]

# Noise multiplier, sampling probability, steps and delta, too rare for one tilt.
RARE = [(0.817, 0.000522, 114, 1e-11), (1.0, 1e-4, 15000, 1e-12),
        (1.0, 1e-5, 1000, 1e-9), (1.0, 0.01, 4, 1e-6), (0.3, 1e-4, 10, 1e-10),
        (1.958, 1.314e-5, 2065, 2.02e-8), (5.0, 1e-3, 3, 1e-9)]


def removal(sigma, prob):
  return GaussianLoss(1 / sigma, prob, 'remove')


def delta_of_two(sigma, prob, epsilon):
  """Returns delta of two steps: the first by quadrature, the second in closed form."""
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
  # Beyond this outcome the rest of epsilon is below every loss of the other step.
  u = mpmath.exp(epsilon) / (1 - s)
  edge = (mpmath.log((u - 1 + s) / s) + mu * mu / 2) / mu
  return mpmath.quad(term, sorted([*mpmath.linspace(-12, 15 + 3 * mu, 33), edge]))


@representatives('sigma, prob, delta', TWO_STEPS)
def test_two_steps_against_quadrature(sigma, prob, delta):
  bounds = SplitContours([(removal(sigma, prob), 2)]).epsilon(delta)
  assert bounds.upper - bounds.lower <= 1e-9 * bounds.upper
  with mpmath.workdps(20):
    assert delta_of_two(sigma, prob, bounds.lower) >= delta
    assert delta_of_two(sigma, prob, bounds.upper) <= delta
    exact = delta_of_two(sigma, prob, bounds.estimate)
  found = SplitContours([(removal(sigma, prob), 2)]).delta(bounds.estimate)
  assert found.lower <= exact <= found.upper
  assert float(exact) == pytest.approx(delta, rel=1e-10)


@representatives('sigma, prob, steps, delta', RARE, 2)
def test_epsilon_and_delta_are_inverse_and_narrow(sigma, prob, steps, delta):
  groups = [(removal(sigma, prob), steps)]
  bounds = SplitContours(groups).epsilon(delta)
  assert bounds.upper - bounds.lower <= 1e-9 * bounds.upper
  assert SplitContours(groups).delta(bounds.lower).upper >= delta
  assert SplitContours(groups).delta(bounds.upper).lower <= delta
  back = SplitContours(groups).delta(bounds.estimate)
  assert back.upper - back.lower <= 1e-8 * delta


@representatives('sigma, prob, steps, delta', [
    (0.5, 0.001, 2000, 1e-8), (1.0, 0.5, 2, 1e-6), (1.0, 0.1, 2, 1e-12),
    (1.274, 0.004786, 197, 1.98e-12)])
def test_agrees_with_one_tilt(sigma, prob, steps, delta):
  groups = [(removal(sigma, prob), steps)]
  one = contour.Contour(groups).epsilon(delta)
  split = SplitContours(groups).epsilon(delta)
  assert max(one.lower, split.lower) <= min(one.upper, split.upper)
  assert split.estimate == pytest.approx(one.estimate, rel=1e-8)


@pytest.mark.more
@pytest.mark.parametrize('sigma, prob, steps, delta', RARE[3:4])
def test_the_lattice_agrees(sigma, prob, steps, delta):
  step = NoiseStep(tfcactus.Gaussian(sigma), Sample(relations.ADD_OR_REMOVE, prob))
  composition = Composition([(step.loss('remove'), steps)])
  wide = composition._lattice.epsilon(delta)
  assert wide.lower - 1e-12 <= composition.epsilon(delta).estimate
  assert composition.epsilon(delta).estimate <= wide.upper + 1e-12


@pytest.mark.more
def test_groups_of_different_steps():
  groups = [(removal(1.0, 1e-3), 7), (removal(0.7, 3e-4), 5)]
  bounds = SplitContours(groups).epsilon(1e-9)
  assert SplitContours(groups[::-1]).epsilon(1e-9).estimate == pytest.approx(
      bounds.estimate, rel=1e-9)
  more = SplitContours([*groups, (removal(2.0, 1e-3), 3)]).epsilon(1e-9)
  assert more.lower > bounds.upper
  back = SplitContours(groups).delta(bounds.estimate)
  assert back.lower <= 1e-9 <= back.upper


@pytest.mark.parametrize('loss', [
    GaussianLoss(1.0, 1e-3, 'add'), GaussianLoss(1.0, 1.0, 'remove')])
def test_losses_that_cannot_be_split_are_refused(loss):
  with pytest.raises(IntractableError):
    SplitContours([(loss, 3)]).epsilon(1e-6)
