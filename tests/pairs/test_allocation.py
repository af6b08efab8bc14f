"""Brackets in convex order, by enumeration and against other methods."""

import itertools

import numpy as np
import pytest

from tests.accounting import allocation_oracles
from tests.representatives import representatives
from tfcactus.noise import gaussian
from tfcactus.pairs import allocation
from tfcactus.pairs.dominating_pair import DominatingPair, PairBounds


def enumerated(p, q, bins, direction, epsilon):
  """Returns delta of random allocation, summed over all outcomes of all releases."""
  total = 0.0
  for outcome in itertools.product(range(len(p)), repeat=bins):
    without = np.prod([q[i] for i in outcome])
    with_it = np.mean([without * p[i] / q[i] for i in outcome])
    one, other = (with_it, without) if direction == 'remove' else (without, with_it)
    total += max(one - np.exp(epsilon) * other, 0.0)
  return total


@pytest.mark.parametrize('bins', [1, 2, 3, 5])
@pytest.mark.parametrize('direction', ['remove', 'add'])
def test_few_outcomes_by_enumeration(bins, direction):
  p, q = np.array([.5, .3, .2]), np.array([.1, .3, .6])
  found = allocation.allocated(
      PairBounds.exact(DominatingPair.from_masses(p, q)), bins, direction, 400)
  for epsilon in (0.0, 0.05, 0.3, 0.9, 1.5):
    exact = enumerated(p, q, bins, direction, epsilon)
    lower, upper = (pair.hockey_stick(epsilon) for pair in (found.lower, found.upper))
    assert lower <= exact + 1e-15 and exact <= upper + 1e-15
    assert upper - lower <= 2e-4


@pytest.mark.parametrize('bins', [2, 3])
@pytest.mark.parametrize('direction', ['remove', 'add'])
@representatives('sigma', [0.5, 1.0, 4.0])
def test_gaussian_against_quadrature(bins, direction, sigma):
  widths = []
  for nodes in (128, 256):
    found = gaussian.allocated_pair(1 / sigma, bins, direction, nodes)
    lower, upper = [], []
    for epsilon in (0.0, 0.1, 0.5, 2.0):
      exact = allocation_oracles.delta(1 / sigma, bins, direction, epsilon)
      lower.append(found.lower.hockey_stick(epsilon))
      upper.append(found.upper.hockey_stick(epsilon))
      assert lower[-1] <= exact + 1e-14 and exact <= upper[-1] + 1e-14
    widths.append(np.subtract(upper, lower).max())
  assert widths[1] < 0.45 * widths[0] < 0.01


def test_masses_and_mean_are_kept():
  for bins in (2, 7, 64):
    found = gaussian.allocated_pair(0.8, bins, 'remove', 256)
    upper = found.upper
    assert np.sum(upper.q) + upper.q_inf == pytest.approx(1, abs=1e-10)
    assert np.sum(upper.p) + upper.p_inf == pytest.approx(1, abs=1e-10)
    assert upper.p_inf < 1e-25 and upper.q_inf < 1e-25
    lower = found.lower
    assert np.sum(lower.q) <= 1 + 1e-13 and np.sum(lower.p) <= 1 + 1e-15


def test_shifts_beyond_numbers():
  found = gaussian.allocated_pair(100.0, 30, 'add', 256)
  assert found.lower.hockey_stick(0.0) == 0
  assert found.upper.hockey_stick(0.0) == pytest.approx(1)


@pytest.mark.parametrize('direction', ['remove', 'add'])
@pytest.mark.parametrize('mu', [20.0, 25.0, 40.0, 50.0, 51.0, 1e3, 1e6, 1e9, 1e15])
def test_noise_next_to_none_hides_nothing(mu, direction):
  """Cells too wide for their rule once lost all mass."""
  found = gaussian.allocated_pair(mu, 10, direction, 256)
  for pair in (found.lower, found.upper):
    assert np.isfinite(pair.loss).all() and np.isfinite(pair.p).all()
  assert np.sum(found.upper.p) + found.upper.p_inf >= 1 - 1e-12
  assert np.sum(found.upper.q) + found.upper.q_inf >= 1 - 1e-12
  for epsilon in (0.0, 1.0, 10.0):
    # Whoever sees all sums finds the record's by the largest, nearly surely.
    assert found.upper.hockey_stick(epsilon) >= 1 - 1e-8
    assert found.lower.hockey_stick(epsilon) <= 1


@pytest.mark.parametrize('direction', ['remove', 'add'])
def test_infinite_masses_by_enumeration(direction):
  """Lower pairs once lost such masses, and pairs without common atoms failed."""
  rng = np.random.default_rng(3)
  for _ in range(8):
    p, q = rng.dirichlet(np.ones(3), 2)
    p[0], q[-1] = 0.0, rng.choice([0.0, q[-1]])
    p, q = p / p.sum(), q / q.sum()
    found = allocation.allocated(
        PairBounds.exact(DominatingPair.from_masses(p, q)), 3, direction, 400)
    for epsilon in (0.0, 0.3, 1.5):
      exact = enumerated_pair(p, q, 3, direction, epsilon)
      lower, upper = (pair.hockey_stick(epsilon) for pair in (found.lower, found.upper))
      assert lower <= exact + 1e-13 and exact <= upper + 1e-13
      assert upper - lower <= 3e-3


def enumerated_pair(p, q, bins, direction, epsilon):
  """Returns delta from all outcomes, also those that one of the two cannot have."""
  total = 0.0
  for outcome in itertools.product(range(len(p)), repeat=bins):
    without = np.prod([q[i] for i in outcome])
    with_it = np.mean([np.prod([(p if place == j else q)[i] for place, i in enumerate(
        outcome)]) for j in range(bins)])
    one, other = (with_it, without) if direction == 'remove' else (without, with_it)
    total += max(one - np.exp(epsilon) * other, 0.0)
  return total


def test_distributions_without_a_common_outcome():
  apart = PairBounds.exact(DominatingPair.from_masses([1.0, 0.0], [0.0, 1.0]))
  for direction in ('remove', 'add'):
    found = allocation.allocated(apart, 5, direction)
    assert found.lower.p_inf == pytest.approx(1) and found.upper.p_inf == 1
