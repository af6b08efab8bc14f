"""Composed delta against enumeration, and its derivative against differences."""

import numpy as np
import pytest

from tests.accounting.oracles import product_delta
from tfcactus.design.solvers.bounded_problem import Problem
from tfcactus.design.solvers.composed_delta import composed_delta


@pytest.fixture
def masses():
  rng = np.random.default_rng(3)
  p = rng.random(6) + 0.05
  p /= p.sum()
  return np.append(p, [0.0, 0.0]), np.append([0.0, 0.0], p)


@pytest.mark.parametrize('steps', [1, 2, 4])
@pytest.mark.parametrize('epsilon', [0.0, 0.3, 2.0])
def test_against_enumeration(masses, steps, epsilon):
  value = composed_delta(*masses, epsilon=epsilon, steps=steps, points=1 << 20)
  assert value.delta == pytest.approx(
      product_delta([masses] * steps, epsilon), rel=1e-5)


def test_infinite_losses_are_never_lost(masses):
  p, q = masses
  far = composed_delta(p, q, epsilon=50.0, steps=3)
  assert far.delta == pytest.approx(1 - (1 - p[0] - p[1])**3)


@pytest.mark.parametrize('steps', [2, 7])
@pytest.mark.parametrize('which', [0, 1])
def test_derivative_by_differences(masses, steps, which):
  value = composed_delta(*masses, epsilon=0.3, steps=steps, points=1 << 18)
  slope = (value.by_p, value.by_q)[which]
  for i in np.flatnonzero(masses[which]):
    moved = [masses[0].copy(), masses[1].copy()]
    moved[which][i] += 1e-7
    after = composed_delta(*moved, epsilon=0.3, steps=steps, points=1 << 18)
    # Moving the grid with the masses moves delta a little, too.
    assert (after.delta - value.delta) / 1e-7 == pytest.approx(
        slope[i], rel=2e-4, abs=2e-4)


@pytest.mark.parametrize('sampling_prob', [1.0, 0.2])
def test_problem_takes_the_worse_direction_and_its_slope(sampling_prob):
  problem = Problem(2, 6, 2, 1.0, 0.37, 3, sampling_prob)
  w = np.exp(-0.3 * np.arange(6.0))
  w /= w.sum()
  delta, slope = problem.delta(w)
  each = [composed_delta(p, q, epsilon=0.37, steps=3).delta
          for p, q in problem.pairs(w)]
  assert len(each) == (1 if sampling_prob == 1 else 2)
  assert delta == max(each)
  for i in range(6):
    moved = w.copy()
    moved[i] += 1e-6
    assert (problem.delta(moved)[0] - delta) / 1e-6 == pytest.approx(
        slope[i], rel=2e-3, abs=2e-3)
