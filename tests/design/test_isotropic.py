"""Isotropic designs: budgets, certificates, and optimality."""

from __future__ import annotations

import numpy as np
import pytest

from tests.design import oracles
from tfcactus import design
from tfcactus.design.solvers import grid

REQUESTS = [
    design.Isotropic(2, 0.5, bins=10),
    design.Isotropic(3, 0.5, bins=10),
    design.Isotropic(3, 1.0, bins=8, objective='chi2'),
    design.Isotropic(10, 0.5, bins=12),
    design.Isotropic(5, budget=1.5, power=1.0, bins=8),
]


@pytest.fixture(scope='module', params=REQUESTS, ids=str)
def solved(request):
  return request.param, request.param.solve()


def test_laws(solved):
  request, table = solved
  assert table.monotone
  assert np.sum(table.shell_mass) == pytest.approx(1, abs=1e-12)
  budget = table.info['parameters']['budget']
  assert table.moment(request.power) <= budget * (1 + 1e-9)
  assert table.moment(request.power) >= budget * (1 - 1e-6)
  info = table.info
  assert info['lower_bound'] <= info['objective'] * (1 + 1e-12)
  assert info['objective'] <= info['lower_bound'] * (1 + 1e-6)
  assert design.verify(table)['objective'] == pytest.approx(
      info['objective'], rel=1e-13)


def test_objective_by_the_law_of_the_moved_radius(solved):
  request, table = solved
  value = oracles.radial_divergence(table, request.objective)
  tolerance = 1e-5 if request.dim == 2 else 1e-6
  assert value == pytest.approx(table.info['objective'], rel=tolerance)


def test_optimum_beats_feasible_perturbations(solved):
  request, table = solved
  cost, budget, sigma = request.checked()
  program = grid.radial_program(
      request.objective, request.dim, request._layout(cost, budget, sigma)[0],
      cost, budget)
  p = np.exp(table.log_density + program.log_volume)
  rng = np.random.default_rng(11)
  for size in (1e-2, 0.1, 0.5):
    for _ in range(5):
      other = grid.into_budget(
          program, p * np.exp(size * rng.standard_normal(p.size)))
      assert program.divergences(other)[0] >= table.info['lower_bound']


def test_one_dimension_is_the_scalar_monotone_design():
  # The cells are laid out differently (half a cell apart), the optimum is not.
  radial = design.Isotropic(1, 0.5, bins=60).solve()
  scalar = design.Monotone(0.25, bins=60).solve()
  assert radial.info['objective'] == pytest.approx(
      scalar.info['objective'], rel=1e-5)


# KL gain over the Gaussian at sigma=.5 in percent, two digits.
@pytest.mark.parametrize('dim, gain', [(2, 7.2), (3, 5.8), (5, 4.3), (10, 2.6)])
def test_gain_over_the_gaussian(dim, gain):
  value = design.Isotropic(dim, 0.5).solve().info['objective']
  assert 100 * (1 - value / 2) == pytest.approx(gain, abs=0.1)


# Shells fine enough that they do not eat the gain (percent, of the notes).
@pytest.mark.parametrize('dim, gain', [(50, 0.053), (100, 0.027)])
@pytest.mark.slow
def test_gain_in_many_dimensions(dim, gain):
  value = design.Isotropic(dim, 1.0).solve().info['objective']
  assert 0.2 * gain < 100 * (1 - value / 0.5) < 1.2 * gain


def test_kkt_residuals():
  request = design.Isotropic(4, 0.7, bins=8, objective='chi2')
  table = request.solve()
  cost, budget, sigma = request.checked()
  program = grid.radial_program(
      'chi2', 4, request._layout(cost, budget, sigma)[0], cost, budget)
  p = np.exp(table.log_density + program.log_volume)
  price = table.info['multipliers']['price']
  assert program.mass @ p == pytest.approx(1, abs=1e-12)
  assert program.cost @ p == pytest.approx(budget, rel=1e-8)
  gradient = program.gradients(p)[0] + price * program.cost
  nu = float(gradient @ p)
  # The duals of the falls, per unit of density: not negative, zero where it falls.
  dual = np.cumsum((gradient - nu * program.mass) * np.exp(program.log_volume))
  scale = np.cumsum(np.exp(program.log_volume)) * table.info['objective']
  fall = -np.diff(table.log_density)
  assert np.min(dual / scale) > -1e-6
  held = np.cumsum(p)[:-1]
  assert np.max(np.abs((dual / scale)[:-1] * held * fall)) < 1e-7


def test_refining_helps():
  values = [design.Isotropic(3, 0.5, bins=n).solve().info['objective']
            for n in (5, 10, 20, 40)]
  assert values == sorted(values, reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize('ratio, value', [(0.98, 1.9480706032), (0.9, 1.9744072412)])
def test_reference_in_ten_dimensions(ratio, value):
  table = design.Isotropic(10, 0.5, bins=400, cells=1200,
                           tail_ratio=ratio).solve()
  assert table.info['objective'] == pytest.approx(value, rel=1e-9)
