"""Compares the phi accountant on random settings with oracles that share no code."""

import math

import mpmath
import numpy as np
import pytest

from tests.fuzz import phi_cases, phi_oracles as oracles
from tests.representatives import representatives
from tfcactus import accounting
from tfcactus.accounting.bounds import IntractableError
from tfcactus.accounting.composition.losses import gaussian_parts
from tfcactus.accounting.composition.losses.gaussian import GaussianLoss
from tfcactus.accounting.composition.split_contours import SplitContours

# Settings of each family: one of twelve in `make test`, all of them in `make test-all`;
# thousands more, from seeds of their own, in `make test-slow`.
SEEDED = dict(few_gaussians=225, many_gaussians=10, fixed_size=110, replaced=130,
              laplace=110, discrete=170, table=15)
SLOW = dict(few_gaussians=2600, many_gaussians=600, fixed_size=500, replaced=400,
            laplace=500, discrete=700, table=250)
CHUNKS = 10


def violations(family, seeds):
  """Returns the settings of a family in which a bound is wrong."""
  make = getattr(phi_cases, family)
  outcomes = [phi_cases.check(make(seed)) for seed in seeds]
  # Bounds of the oracle that are far apart would not reveal a wrong bound.
  assert sum(outcome.vacuous for outcome in outcomes) <= 0.6 * len(outcomes)
  return [(outcome.name, outcome.wrong) for outcome in outcomes if outcome.wrong]


@pytest.mark.parametrize('step', [12, pytest.param(1, marks=pytest.mark.more)])
@pytest.mark.parametrize('family', SEEDED)
def test_no_bound_is_wrong(family, step):
  assert violations(family, range(0, SEEDED[family], step)) == []


@pytest.mark.slow
@pytest.mark.parametrize('chunk', range(CHUNKS))
@pytest.mark.parametrize('family', SLOW)
def test_no_bound_is_wrong_in_thousands(family, chunk):
  first = 10_000 + chunk * (SLOW[family] // CHUNKS)
  assert violations(family, range(first, first + SLOW[family] // CHUNKS)) == []


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(60))
def test_three_mixed_steps(seed):
  outcome = phi_cases.check(phi_cases.few_gaussians(50_000 + seed, 3))
  assert not outcome.wrong


# Removals whose epsilon was once reported below the truth, and the true epsilon.
REPORTED = [
    ([(.681, .1239)] * 2, 1.4719), ([(.5354, .2588)] * 2, 1.8265),
    ([(.3648, .3916)] * 2, 3.6785), ([(.5227, .2065), (.4621, .0054)], .3315),
    ([(.3368, .01757), (.8383, .5)], 1.0)]


@representatives('kinds, epsilon', REPORTED)
def test_bounds_hold_where_they_were_once_below_the_truth(kinds, epsilon):
  steps = [oracles.Gaussian(sigma, prob, True) for sigma, prob in kinds]
  delta = oracles.quadrature(steps, epsilon)
  accountant = accounting.PhiAccountant(direction='remove')
  for sigma, prob in kinds:
    accountant.compose(phi_cases._sampled(
        phi_cases.dp_accounting.GaussianDpEvent(sigma), prob))
  low, _, high = accountant.delta_bounds(epsilon)
  assert low * (1 - 1e-12) <= delta <= high * (1 + 1e-12)
  assert high - low <= 1e-8 * delta
  bounds = accountant.epsilon_bounds(delta)
  assert bounds.lower - 1e-12 <= epsilon <= bounds.upper + 1e-12
  assert bounds.upper - bounds.lower < 1e-8
  # The split contours, which were wrong, on their own.
  groups = [(GaussianLoss(1 / sigma, prob, 'remove'), 1) for sigma, prob in kinds]
  try:
    low, _, high = SplitContours(groups).delta(epsilon)
  except IntractableError:
    return
  assert low * (1 - 1e-12) <= delta <= high * (1 + 1e-12)


@representatives('sigma, prob', [(.681, .1239), (.9, 1e-3)])
@pytest.mark.parametrize('missing', [
    lambda self, y, step: 1.0, lambda self, y, step: 1e-6])
def test_parts_that_do_not_add_up_are_refused(monkeypatch, sigma, prob, missing):
  monkeypatch.setattr(gaussian_parts.PartLoss, '_missing', missing)
  groups = [(GaussianLoss(1 / sigma, prob, 'remove'), 2)]
  delta = oracles.quadrature([oracles.Gaussian(sigma, prob, True)] * 2, 0.5)
  try:
    low, _, high = SplitContours(groups).delta(0.5)
  except IntractableError:
    return
  assert low * (1 - 1e-12) <= delta <= high * (1 + 1e-12)


def test_a_part_with_a_wrong_density_is_refused(monkeypatch):
  """The density of one part is wrong by one in a million."""
  plain = gaussian_parts.PartLoss._log_density

  def off(self, y):
    return plain(self, y) + (1e-6 if self.low > 0 else 0.0)

  groups = [(GaussianLoss(1 / .9, 1e-3, 'remove'), 40)]
  SplitContours(groups).delta(0.5)
  monkeypatch.setattr(gaussian_parts.PartLoss, '_log_density', off)
  with pytest.raises(IntractableError):
    SplitContours(groups).delta(0.5)


def test_the_oracles_agree_with_each_other():
  """Quadrature, discretisation and mpmath with 40 digits give one delta."""
  step = oracles.Gaussian(.681, .1239, True)
  value = oracles.quadrature([step, step], 1.4719)
  low, high = oracles.Groups(((step, 2),)).delta(1.4719)
  assert low <= value <= high <= low * (1 + 1e-6)
  with mpmath.workdps(40):
    s, q = mpmath.mpf(.681), mpmath.mpf(.1239)
    def u(y):
      return 1 - q + q * mpmath.exp(y / s - 1 / (2 * s * s))
    def one(e):
      t = (mpmath.expm1(e) + q) / q
      if t <= 0:
        return -mpmath.expm1(e)
      at = s * mpmath.log(t) + 1 / (2 * s)
      return q * (mpmath.ncdf(1 / s - at) - t * mpmath.ncdf(-at))
    edge = s * mpmath.log((mpmath.exp(1.4719) / (1 - q) - 1 + q) / q) + 1 / (2 * s)
    exact = mpmath.quad(
        lambda y: mpmath.npdf(y) * u(y) * one(1.4719 - mpmath.log(u(y))),
        sorted([*mpmath.linspace(-13, 15, 57), edge]))
  assert float(exact) == pytest.approx(value, rel=1e-12)
  # A bound that is off by one in a thousand is noticed.
  assert not low <= value * 1.001 <= high


@pytest.mark.parametrize('direction', ['add', 'remove'])
def test_extreme_settings_have_finite_bounds(direction):
  """Extremes: next to no sampling, next to no noise, ten million steps."""
  for sigma, prob, steps in ((1, 1e-300, 10), (1, 1e-12, 10**6), (1e-3, .1, 1),
                             (1e-3, .1, 2), (1e6, .5, 3), (1e6, 1, 10**7)):
    accountant = accounting.PhiAccountant(direction=direction).compose(
        phi_cases._sampled(phi_cases.dp_accounting.GaussianDpEvent(sigma), prob),
        steps)
    bounds = accountant.epsilon_bounds(1e-5)
    assert 0 <= bounds.lower <= bounds.estimate <= bounds.upper < math.inf


# Settings in which oracles of fixed cells missed narrow losses of the second release.
NARROW = [
    (oracles.Gaussian(42.45, 1.4e-4, True), oracles.Gaussian(165.8, .155, True), 0.0),
    (oracles.Gaussian(20.87, 1.445e-6, False), oracles.Gaussian(94.84, .001554, False),
     3.875e-5),
    (oracles.Laplace(3.626, .5189, False), oracles.Laplace(30.02, 7.593e-7, False),
     .13275),
    (oracles.Laplace(.5877, 1.0, True), oracles.Laplace(19.28, .5156, True), 1.7283)]


@pytest.mark.parametrize('first, second, epsilon', NARROW)
def test_oracles_of_two_steps_agree_in_either_order(first, second, epsilon):
  """Either release may be the one whose delta is in closed form."""
  if isinstance(first, oracles.Laplace):
    one, other = (oracles.laplace_two(*pair, epsilon)
                  for pair in ((first, second), (second, first)))
  else:
    one, other = (float(oracles._two(*pair, np.array([epsilon]), 2.0)[0])
                  for pair in ((first, second), (second, first)))
  assert one == pytest.approx(other, rel=1e-9)
