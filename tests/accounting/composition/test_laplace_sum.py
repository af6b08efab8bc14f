"""Composed Laplace releases against sums of atoms and uniform variables, and peers."""

import math

import dp_accounting
from dp_accounting import pld
import mpmath
import numpy as np
import pytest

from tests.representatives import representatives
from tfcactus import accounting
from tfcactus.accounting.bounds import IntractableError
from tfcactus.accounting.composition import laplace_sum
from tfcactus.accounting.composition.discrete_contours import MixedContours
from tfcactus.accounting.composition.laplace_sum import LaplaceSum
from tfcactus.accounting.composition.losses.laplace import LaplaceLoss


def exact_delta(top, count, epsilon):
  """Returns delta from the law of a loss: atoms at both ends, and uniform between them.

  Seen from half way between P and Q both ends weigh the same, and the density is flat;
  the density of a sum of uniform variables is that of Irwin and Hall.
  """
  with mpmath.workdps(120):
    a, at, total = mpmath.mpf(top), mpmath.mpf(epsilon), mpmath.mpf(0)
    for flat in range(count + 1):
      for ups in range(count - flat + 1):
        weight = (mpmath.binomial(count, flat) * (a / 2)**flat * mpmath.binomial(
            count - flat, ups) * mpmath.mpf(2)**(flat - count))
        total += weight * _gain(a, at, (2 * ups - count + flat) * a, flat)
    return total * mpmath.exp(-count * a / 2)


def _gain(a, at, centre, flat):
  """Returns E (e^(s / 2) - e^(epsilon - s / 2))+, s a centre plus uniform variables."""
  if not flat:
    return max(mpmath.exp(centre / 2) - mpmath.exp(at - centre / 2), mpmath.mpf(0))
  last, total = centre + flat * a, mpmath.mpf(0)
  for i in range(flat + 1):
    start = centre + (2 * i - flat) * a
    if max(at, start) < last:
      up, down = (_integral(start, max(at, start), last, flat - 1, mpmath.mpf(rate))
                  for rate in (0.5, -0.5))
      total += (-1)**i * mpmath.binomial(flat, i) * (up - mpmath.exp(at) * down)
  return total / mpmath.factorial(flat - 1) / (2 * a)**flat


def _integral(start, low, high, power, rate):
  """Integrates (s - start)^power e^(rate s) from low to high, by parts."""
  return sum((-1)**r * mpmath.factorial(power) / mpmath.factorial(power - r) / (
      rate**(r + 1)) * (mpmath.exp(rate * high) * (high - start)**(power - r) -
                        mpmath.exp(rate * low) * (low - start)**(power - r))
             for r in range(power + 1))


@representatives('seed', range(12), 3)
def test_sums_over_atoms_and_uniform_variables(seed):
  rng = np.random.default_rng(seed)
  count, top = int(rng.integers(1, 10)), float(10.0**rng.uniform(-3, 1))
  for share in (0.0, float(rng.uniform(0, 1)), 0.9999, 1.0):
    epsilon = share * top * count
    exact = exact_delta(top, count, epsilon)
    # The oracle takes the float `top` to be exact.
    with mpmath.workdps(120):
      low, high = (mpmath.mpf(x.numerator) / x.denominator
                   for x in laplace_sum._delta(top, count, epsilon))
      assert low <= exact <= high and high - low <= 1e-18 * high
    bounds = LaplaceSum(top, count).delta(epsilon)
    assert bounds.lower <= exact <= bounds.upper
    assert bounds.upper - bounds.lower <= 4e-16 * (1 + count * top)
    if 0 < share < 1:
      found = LaplaceSum(top, count).epsilon(float(exact))
      room = 4e-16 * float(exact) * (1 + epsilon)
      assert exact_delta(top, count, found.upper) <= exact + room
      assert exact_delta(top, count, found.lower) >= exact - room
      # Next to one, a float of delta determines epsilon less closely.
      assert found.upper - found.lower <= (1e-13 if exact < 0.9 else 1e-11) * (
          top + epsilon)


@pytest.mark.parametrize('top', [0.3, 1.0])
def test_where_outcomes_change_delta_is_continuous(top):
  # The sum has atoms at these losses.
  for at in (top, 3 * top):
    values = [LaplaceSum(top, 7).delta(at + move) for move in (-1e-9, 0.0, 1e-9)]
    assert values[0].lower >= values[1].lower >= values[2].lower
    assert values[0].upper - values[2].lower <= 2.1e-9


@pytest.mark.parametrize('scale, count', [(1.0, 128), (0.5, 100), (0.25, 120)])
def test_contours_agree(scale, count):
  mixed = MixedContours([(LaplaceLoss(1 / scale), count)], (0.0, 0.0))
  exact = LaplaceSum(1 / scale, count)
  for delta in (1e-3, 1e-8):
    one, other = mixed.epsilon(delta), exact.epsilon(delta)
    assert max(one.lower, other.lower) <= min(one.upper, other.upper)
    assert one.upper - one.lower <= 1e-9 and other.upper - other.lower <= 1e-12
  epsilon = exact.epsilon(1e-5).upper
  one, other = mixed.delta(epsilon), exact.delta(epsilon)
  assert max(one.lower, other.lower) <= min(one.upper, other.upper)


@pytest.mark.parametrize('scale, count', [(5.0, 2), (5.0, 30), (20.0, 100), (80.0, 60)])
def test_dp_accounting_brackets_it(scale, count):
  event = dp_accounting.LaplaceDpEvent(scale)
  bounds = accounting.PhiAccountant().compose(event, count).epsilon_bounds(1e-5)
  assert bounds.upper - bounds.lower <= 1e-13
  peer = [pld.privacy_loss_distribution.from_laplace_mechanism(
      scale, pessimistic_estimate=above, value_discretization_interval=1e-4
      ).self_compose(count).get_epsilon_for_delta(1e-5) for above in (False, True)]
  assert peer[0] - 1e-9 <= bounds.upper and bounds.lower <= peer[1] + 1e-9
  assert peer[1] - peer[0] <= 1e-4 * count


def test_all_relations_and_directions():
  event = dp_accounting.LaplaceDpEvent(10.0)
  replaced = accounting.PhiAccountant(
      dp_accounting.NeighboringRelation.REPLACE_ONE).compose(event, 50)
  assert replaced.epsilon_bounds(1e-6) == LaplaceSum(0.2, 50).epsilon(1e-6)
  for direction in ('add', 'remove'):
    account = accounting.PhiAccountant(direction=direction).compose(event, 20)
    account.compose(dp_accounting.LaplaceDpEvent(10.0), 30)
    assert account.epsilon_bounds(1e-6) == LaplaceSum(0.1, 50).epsilon(1e-6)


def test_other_compositions_are_left_to_other_methods():
  for top, count in ((1.0, 301), (1.0, 200), (30.0, 100)):
    with pytest.raises(IntractableError):
      LaplaceSum.of(top, count)
  assert LaplaceSum.of(0.01, 300).count == 300
  account = accounting.PhiAccountant().compose(dp_accounting.ComposedDpEvent([
      dp_accounting.LaplaceDpEvent(1.0), dp_accounting.LaplaceDpEvent(2.0)]))
  assert account.epsilon_bounds(1e-3).upper == pytest.approx(1.5, abs=0.01)


@pytest.mark.parametrize('top, count, delta', [
    (0.01, 100, 1e-300), (5.0, 3, 1e-200), (0.2, 300, 1e-50), (1e-8, 10, 1e-9),
    (20.0, 90, 0.999), (0.1, 40, 0.24), (1e-3, 1, 1e-300)])
def test_ends_of_the_range(top, count, delta):
  bounds = LaplaceSum(top, count).epsilon(delta)
  assert 0 <= bounds.lower <= bounds.estimate <= bounds.upper
  assert bounds.upper <= count * top * (1 + 1e-12)
  assert bounds.upper - bounds.lower <= 2e-14 * count * top + 1e-18
  if bounds.lower > 0:
    assert LaplaceSum(top, count).delta(bounds.lower).lower >= delta
  assert LaplaceSum(top, count).delta(bounds.upper).upper <= delta


def test_nothing_is_left_beyond_the_largest_loss():
  assert LaplaceSum(0.5, 4).delta(2.1) == (0.0, 0.0, 0.0)
  one = LaplaceSum(0.5, 1).delta(0.0)
  assert one.lower <= -math.expm1(-0.25) <= one.upper
