"""The program's lower bound, against a linear-programming solver."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

from tfcactus import design
from tfcactus.design.solvers import convex_program


@pytest.mark.parametrize('seed', range(40))
def test_best_bound_is_the_linear_programs(seed):
  rng = np.random.default_rng(seed)
  size = int(rng.integers(2, 60))
  lead = rng.normal(size=size) * 10.0**rng.integers(-3, 3, size)
  cost = rng.normal(size=size) * 10.0**rng.integers(-3, 3, size)
  cost[0] = -abs(cost[0])  # Some density is within the budget.
  guess = 10.0**rng.uniform(-6, 6)
  # max t with t <= lead_i + price * cost_i and price >= 0.
  solved = optimize.linprog(
      [-1.0, 0.0], np.column_stack([np.ones(size), -cost]), lead,
      bounds=[(None, None), (0, None)], method='highs')
  found = convex_program.best_bound(lead, cost, guess)
  assert found == pytest.approx(-solved.fun, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize('request_', [
    design.Cactus(0.25, bins=8), design.Monotone(1.0, bins=6, objective='chi2')],
    ids=['cactus', 'monotone chi2'])
def test_lower_bound_holds_at_any_point_and_is_tight_at_the_optimum(request_):
  table = request_.solve()
  spec = request_.spec()
  program = spec.program()
  p = np.exp(table.log_density) / table.bins
  theta = np.zeros(table.bins)
  for shift, share in table.info['multipliers']['shifts'].items():
    theta[int(shift) - 1] = share
  price = table.info['multipliers']['price']
  best = table.info['objective']
  assert program.lower_bound(p, theta, price) == pytest.approx(best, rel=1e-8)
  # A bad guess of the price costs nothing.
  assert program.lower_bound(p, theta, 1e6 * price) == pytest.approx(
      best, rel=1e-8)
  rng = np.random.default_rng(3)
  for _ in range(20):
    anywhere = p * np.exp(0.1 * rng.standard_normal(p.size))
    weights = theta * rng.uniform(0.2, 1, theta.size) + 0.01 * rng.uniform(
        size=theta.size)
    assert program.lower_bound(anywhere, weights) <= best * (1 + 1e-9)


def test_gradients_are_the_derivatives_of_the_divergences():
  spec = design.Cactus(0.25, bins=6).spec()
  program = spec.program()
  rng = np.random.default_rng(5)
  p = rng.uniform(0.5, 1.5, program.mass.size)
  move = rng.standard_normal(p.size)
  slope = (program.divergences(p + 1e-6 * move) -
           program.divergences(p - 1e-6 * move)) / 2e-6
  np.testing.assert_allclose(program.gradients(p) @ move, slope, rtol=1e-7,
                             atol=1e-8)
  # Homogeneous of degree one.
  np.testing.assert_allclose(program.gradients(p) @ p, program.divergences(p),
                             rtol=1e-12)
