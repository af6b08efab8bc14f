"""The exponential mechanism's account, against explicit neighbours."""

import math

from hypothesis import given, settings, strategies
import mpmath
import numpy as np
import pytest

from tfcactus import accounting, relations
from tfcactus.accounting import exponential
from tfcactus.accounting.truncated_cdp import TCDP


def law(scores):
  weight = np.exp(scores - np.max(scores))
  return weight / np.sum(weight)


def hockey_stick(p, q, loss):
  return float(np.sum(np.maximum(p - math.exp(loss) * q, 0.0)))


@settings(max_examples=200, deadline=None)
@given(strategies.integers(2, 12), strategies.floats(0.01, 8),
       strategies.floats(-1, 1), strategies.integers(0, 2**32))
def test_no_neighbours_are_above_the_profile(options, epsilon, share, seed):
  rng = np.random.default_rng(seed)
  scores = rng.normal(size=options) * 3
  # Moved within a range of epsilon, whatever its place.
  other = scores + epsilon * (rng.integers(0, 2, options) if seed % 2 else
                              rng.random(options)) + rng.normal()
  p, q, loss = law(scores), law(other), share * epsilon
  bound = float(exponential.profile(epsilon, loss))
  assert hockey_stick(p, q, loss) <= bound * (1 + 1e-9) + 1e-14


@pytest.mark.parametrize('epsilon', [0.1, 1.0, 6.0])
@pytest.mark.parametrize('share', [-0.5, 0.0, 0.3, 0.9])
def test_many_options_attain_it(epsilon, share):
  """The profile is attained if the right share of a million equal options moves.

  The share is that at which the larger of the two losses is t.
  """
  loss = share * epsilon
  t, options = 0.5 * (loss + epsilon), 10**6
  # Losses are t of those that move down and t - epsilon of the rest.
  moving = round(options * math.expm1(t) / math.expm1(epsilon)) if share > -1 else 0
  base = np.zeros(options)
  moved = base + np.where(np.arange(options) < moving, epsilon, 0.0)
  attained = max(hockey_stick(law(base), law(moved), loss),
                 hockey_stick(law(moved), law(base), loss))
  assert attained == pytest.approx(float(exponential.profile(epsilon, loss)), rel=1e-4)


@pytest.mark.parametrize('epsilon', [
    1e-9, 1e-8, 1e-6, 1e-4, 1e-3, 0.3, 2.0, 20.0, 250.0, 500.0])
def test_pairs_hold_the_profile_between_them(epsilon):
  """Rounding e^epsilon once made the profile 5e-8 too low at an epsilon of 1e-8."""
  bounds = exponential.bounded_range_pair(epsilon)
  points = bounds.upper.loss[bounds.upper.loss > 0][::101] / epsilon
  for share in [0.0, *np.random.default_rng(0).random(50), *points, 0.99999]:
    loss = float(share) * epsilon
    with mpmath.workdps(40):
      exact = (1 - mpmath.exp((mpmath.mpf(loss) - epsilon) / 2))**2 / (
          1 - mpmath.exp(-mpmath.mpf(epsilon)))
    low, high = bounds.lower.hockey_stick(loss), bounds.upper.hockey_stick(loss)
    # What is summed here: near the last atoms a few losses' roundings.
    slack = 1e-15 * float(exact) + 1e-300
    assert low - slack <= exact <= high + slack
    # The square of a cell's width.
    assert high - low < (epsilon / exponential.POINTS)**2 + min(1e-6, epsilon * 1e-5)
  assert bounds.upper.p_inf == 0 and bounds.upper.q_inf < 1e-9


def test_a_release_costs_its_epsilon_at_most_and_half_for_one_at_zero():
  account = accounting.PhiAccountant().compose(
      accounting.ExponentialMechanismDpEvent(1.0))
  assert 0.99 < account.get_epsilon(1e-9) <= 1.0
  assert account.get_delta(0.0) == pytest.approx(math.tanh(0.25), rel=1e-6)


def test_a_replaced_record_costs_twice_the_epsilon():
  event = accounting.ExponentialMechanismDpEvent
  replaced = accounting.PhiAccountant(relations.REPLACE).compose(event(0.4), 5)
  added = accounting.PhiAccountant().compose(event(0.8), 5)
  zeroed = accounting.PhiAccountant(relations.ZERO_OUT).compose(event(0.8), 5)
  assert replaced.get_epsilon(1e-6) == pytest.approx(added.get_epsilon(1e-6), rel=1e-9)
  assert zeroed.get_epsilon(1e-6) == added.get_epsilon(1e-6)


def test_composition_is_above_that_of_any_two_sided_range():
  """Ten releases with losses t or t - epsilon are convolved, for many t."""
  epsilon, count = 0.7, 10
  account = accounting.PhiAccountant().compose(
      accounting.ExponentialMechanismDpEvent(epsilon), count)
  for t in np.linspace(0.05, 0.95, 10) * epsilon:
    share = -math.expm1(t - epsilon) / -math.expm1(-epsilon)
    k = np.arange(count + 1)
    mass = np.array([math.comb(count, i) for i in k]) * share**k * (1 - share)**(
        count - k)
    loss = k * t + (count - k) * (t - epsilon)
    for x in (0.2, 1.0, 2.5):
      true = float(np.sum(mass * np.maximum(-np.expm1(x - loss), 0.0)))
      assert true <= account.get_delta(x) * (1 + 1e-9)


@pytest.mark.parametrize('epsilon', [0.2, 1.0, 4.0])
@pytest.mark.parametrize('t', [0.1, 0.5, 0.9])
@pytest.mark.parametrize('order', [1.001, 1.5, 4.0, 40.0])
def test_bounded_range_is_concentrated(epsilon, t, order):
  """The worst laws have losses t epsilon and (t - 1) epsilon."""
  high, low = t * epsilon, (t - 1) * epsilon
  share = -math.expm1(low) / (math.exp(high) - math.exp(low))  # Q's on the upper end.
  log_moment = np.logaddexp(math.log(share) + order * high,
                            math.log1p(-share) + order * low)
  rho = TCDP.from_bounded_range(epsilon).rho
  assert log_moment / (order - 1) <= rho * order
  if abs(t - 0.5) < 0.1 and epsilon < 0.3 and order < 2:
    assert log_moment / (order - 1) > 0.95 * rho * order


@pytest.mark.parametrize('epsilon', [
    0, -1, 1e-10, math.nan, math.inf, 251, True, None])
def test_bad_epsilons_are_refused(epsilon):
  with pytest.raises(ValueError, match='epsilon'):
    accounting.ExponentialMechanismDpEvent(epsilon)


def test_sampling_is_refused():
  import dp_accounting
  assert not accounting.PhiAccountant().supports(dp_accounting.PoissonSampledDpEvent(
      0.1, accounting.ExponentialMechanismDpEvent(1.0)))
