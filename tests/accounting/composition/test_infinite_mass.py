"""The mass of infinite losses: composed, and added to or taken from delta."""

from fractions import Fraction

import dp_accounting
from hypothesis import given, strategies as st
import mpmath
import numpy as np
import pytest

from tests.accounting.oracles import precise_gaussian_delta
from tests.representatives import representatives
from tfcactus import accounting
from tfcactus.accounting.composition import infinite_mass
from tfcactus.pairs.dominating_pair import DominatingPair

MASSES = st.just(0.0) | st.floats(1e-290, 0.999999) | st.floats(1e-18, 1e-3)


@given(st.lists(st.tuples(MASSES, st.integers(1, 10**6)), max_size=3))
def test_composed_masses_are_bracketed(masses):
  with mpmath.workdps(60):
    truth = -mpmath.expm1(mpmath.fsum(
        count * mpmath.log1p(-mpmath.mpf(p)) for p, count in masses))
    low, high = (infinite_mass.composed(masses, sign) for sign in (-1, 1))
    rounding = truth * mpmath.mpf('1e-50')
    assert low <= truth + rounding and truth <= high + rounding
    assert high - low <= truth * 1e-14


def test_the_mass_of_one_step_is_exact():
  for sign in (-1, 1):
    assert infinite_mass.composed([(0.3, 1), (0.0, 50)], sign) == 0.3
    assert infinite_mass.composed([], sign) == 0


@given(st.floats(0, 1), st.tuples(MASSES, MASSES).map(sorted))
def test_differences_and_sums_are_rounded_outwards(delta, p_inf):
  low, high = map(Fraction, p_inf)
  most, least = infinite_mass.without(delta, tuple(p_inf))
  assert Fraction(least) <= Fraction(delta) - high
  assert Fraction(delta) - low <= Fraction(most)
  lower, upper = infinite_mass.beside(delta / 2, delta, tuple(p_inf))
  assert lower <= min(low + Fraction(delta) / 2, 1)
  assert upper >= min(high + Fraction(delta), 1)


def _delta(epsilon, p_inf, count):
  """Returns delta of a Gaussian and `count` responses with a mass of infinite loss."""
  with mpmath.workdps(60):
    loss, total = mpmath.log(mpmath.mpf(0.6) / mpmath.mpf(0.4)), mpmath.mpf(0)
    for ups in range(count + 1):
      each = precise_gaussian_delta(1, mpmath.mpf(epsilon) - (2 * ups - count) * loss)
      total += mpmath.binomial(count, ups) * mpmath.mpf(0.6)**ups * (
          mpmath.mpf(0.4)**(count - ups)) * each
    kept = (1 - mpmath.mpf(p_inf))**count
    return 1 - kept + kept * total


@pytest.mark.parametrize('p_inf, count', [(0.3, 5), (1e-6, 40), (0.01, 2)])
@representatives('room', [1e-16, 1e-15, 1e-13, 1e-9, 1e-3], 2)
def test_delta_next_to_the_mass_at_infinity(p_inf, count, room):
  kept = 1 - p_inf
  pair = DominatingPair.from_masses(np.array([0.6 * kept, 0.4 * kept, p_inf, 0]),
                                    np.array([0.4 * kept, 0.6 * kept, 0, p_inf]))
  accountant = accounting.PhiAccountant().compose(dp_accounting.ComposedDpEvent([
      dp_accounting.GaussianDpEvent(1.0), dp_accounting.SelfComposedDpEvent(
          accounting.DominatingPairDpEvent(pair), count)]))
  delta = float(-np.expm1(count * np.log1p(-p_inf))) * (1 + room)
  bounds = accountant.epsilon_bounds(delta)
  # Masses are rounded to 1e-16 of theirs where the pair is made.
  if bounds.lower < np.inf:
    assert _delta(max(bounds.lower - 1e-6, 0), p_inf, count) >= delta * (1 - 1e-15)
  if bounds.upper < np.inf:
    assert _delta(bounds.upper + 1e-9, p_inf, count) <= delta
