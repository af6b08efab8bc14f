"""Enumeration of few discrete releases, against sums over all sequences."""

import math

import numpy as np
import pytest

from tests.accounting.oracles import product_delta
from tfcactus.accounting.bounds import IntractableError
from tfcactus.accounting.composition import enumeration
from tfcactus.pairs.dominating_pair import DominatingPair, PairBounds


def random_pair(seed, atoms):
  p, q = np.random.default_rng(seed).dirichlet(np.full(atoms, 2.0), 2)
  return DominatingPair.from_masses(p, q)


@pytest.mark.parametrize('one, count, other, more', [
    (2, 7, 3, 1), (4, 3, 2, 2), (1, 5, 3, 2), (5, 1, 5, 1), (3, 4, 2, 1)])
def test_against_all_sequences(one, count, other, more):
  a, b = random_pair(1, one), random_pair(2, other)
  groups = [(PairBounds.exact(a), count), (PairBounds.exact(b), more)]
  whole = enumeration.Enumeration.of(groups, (0.0, 0.0))
  outcomes = math.comb(one + count - 1, count) * math.comb(other + more - 1, more)
  assert whole.upper.loss.size == outcomes
  assert np.sum(whole.upper.p) == pytest.approx(1, abs=1e-13)
  pairs = [(a.p, a.q)] * count + [(b.p, b.q)] * more
  for epsilon in (0.0, 0.3, 1.5):
    exact = product_delta(pairs, epsilon)
    low, _, high = whole.delta(epsilon)
    assert low <= exact * (1 + 1e-13) and exact * (1 - 1e-13) <= high
    assert high - low <= 1e-10
    if 1e-12 < exact < 1:
      bounds = whole.epsilon(exact)
      assert bounds.lower <= epsilon + 1e-12 and epsilon <= bounds.upper + 1e-12
      assert bounds.upper - bounds.lower <= 1e-9


def test_masses_below_the_least_float_leave_an_upper_bound_above_zero():
  pair = DominatingPair.from_masses([1 - 1e-170, 1e-170], [1 - 1e-171, 1e-171])
  whole = enumeration.Enumeration.of([(PairBounds.exact(pair), 2)], (0.0, 0.0))
  # Two rare outcomes together lose log 100. They have a P-mass of 1e-340.
  assert 0 == max(whole.delta(3.0).lower, 0) < whole.delta(3.0).upper < 1e-290
  assert whole.delta(5.0).upper == 0


def test_compositions_with_too_many_outcomes_are_left_to_other_methods():
  pair = PairBounds.exact(random_pair(3, 50))
  response = PairBounds.exact(DominatingPair.from_masses([.7, .3], [.3, .7]))
  for group in ((pair, 10), (response, 10**12)):
    with pytest.raises(IntractableError):
      enumeration.Enumeration.of([group], (0.0, 0.0))
  long = enumeration.Enumeration.of([(response, 10**5)], (0.0, 0.0))
  assert long.upper.loss.size == 10**5 + 1


def test_upper_and_lower_pairs_that_differ_have_bounds_apart():
  low, high = random_pair(4, 3), random_pair(5, 3)
  outcomes = enumeration.Enumeration.of([(PairBounds(low, high), 2)], (0.0, 0.1))
  assert outcomes.lower is not outcomes.upper
  bounds = outcomes.delta(0.5)
  assert bounds.upper == pytest.approx(
      max(0.1 + product_delta([(high.p, high.q)] * 2, 0.5), bounds.lower), abs=1e-10)
  assert outcomes.epsilon(0.05).upper == math.inf
  assert enumeration.Enumeration.of(
      [(PairBounds.exact(low), 1)], (0.2, 0.2)).epsilon(0.1).lower == math.inf
