"""Two steps, one in cells and one in closed form, against quadrature."""

import pytest

from tests.fuzz import phi_oracles as oracles
from tests.representatives import representatives
from tfcactus.accounting.bounds import IntractableError
from tfcactus.accounting.composition.losses.gaussian import GaussianLoss
from tfcactus.accounting.composition.two_steps import TwoSteps

# Noise multiplier and sampling probability of both steps, and delta.
SETTINGS = [
    ((.681, .1239), (.681, .1239), .0068416), ((.06, .14), (.66, .49), .28),
    ((.47, 9.2e-5), (.98, .0188), 8.8e-11), ((.88, .38), (.79, 2.3e-7), .0187),
    ((8.2, .036), (.45, 1.1e-6), 1.4e-10), ((1., 1.), (.7, .01), 1e-15),
    ((.05, .9), (.05, .2), 1e-15), ((200., .5), (.3, .5), .3),
    ((2.355, 2.164e-7), (2.355, 2.164e-7), 1.3333e-14)]


@pytest.mark.parametrize('direction', ['add', 'remove'])
@representatives('one, other, delta', SETTINGS, 3)
def test_against_quadrature(one, other, delta, direction):
  losses = [GaussianLoss(1 / sigma, prob, direction) for sigma, prob in (one, other)]
  steps = [oracles.Gaussian(sigma, prob, direction == 'remove')
           for sigma, prob in (one, other)]
  pair = TwoSteps.of(*losses)
  low, _, high = bounds = pair.epsilon(delta)
  assert high - low <= 1e-6 * (1 + high)
  if low > 0:
    assert oracles.quadrature(steps, low) >= delta * (1 - 1e-11)
  assert oracles.quadrature(steps, high) <= delta * (1 + 1e-11)
  at = pair.delta(bounds.estimate + 0.01)
  exact = oracles.quadrature(steps, bounds.estimate + 0.01)
  assert at.lower - 1e-30 <= exact * (1 + 1e-11)
  assert exact * (1 - 1e-11) <= at.upper + 1e-30
  if exact > 1e-20:
    assert not at.lower <= exact * 1.01 <= at.upper


def test_order_does_not_matter():
  one, other = (GaussianLoss(1 / s, q, 'remove') for s, q in ((1., .1), (.5, .01)))
  assert TwoSteps.of(one, other) == TwoSteps.of(other, one)


def test_losses_too_large_for_cells_are_refused():
  with pytest.raises(IntractableError):
    TwoSteps.of(*[GaussianLoss(1000.0, 0.1, 'remove')] * 2)


def test_a_delta_next_to_one_has_epsilon_zero():
  loss = GaussianLoss(1.0, 0.1, 'add')
  assert TwoSteps(loss, loss).epsilon(0.999) == (0.0, 0.0, 0.0)


def test_a_delta_below_the_mass_outside_of_all_cells_is_refused():
  loss = GaussianLoss(1.0, 0.1, 'add')
  with pytest.raises(IntractableError):
    TwoSteps(loss, loss).epsilon(1e-300)
