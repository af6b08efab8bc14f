"""Scalar designs, cactus and monotone: budgets, certificates, and optimality."""

from __future__ import annotations

import numpy as np
import pytest

from tests.design import oracles
from tfcactus import design
from tfcactus.design import scalar
from tfcactus.design.solvers import grid

REQUESTS = [
    design.Cactus(0.25, bins=12),
    design.Cactus(0.1, bins=12),
    design.Cactus(1.0, bins=8),
    design.Cactus(0.3, power=1.0, bins=12),
    design.Monotone(0.25, bins=12),
    design.Monotone(1.0, bins=8),
    design.Monotone(0.5, power=3.0, bins=8),
    design.Monotone(0.25, bins=12, objective='chi2'),
    design.Monotone(4.0, bins=6, objective='chi2'),
]


@pytest.fixture(scope='module', params=REQUESTS, ids=str)
def solved(request):
  return request.param, request.param.solve()


def _objective(table):
  return table.info['parameters']['objective']


def test_mass_cost_and_symmetry(solved):
  request, table = solved
  z = np.arange(-40 * table.bins, 40 * table.bins + 1) / table.bins
  density = np.exp(table.log_density_at(z))
  assert np.sum(density) / table.bins == pytest.approx(1, abs=1e-12)
  np.testing.assert_array_equal(density, density[::-1])
  cost = oracles.scalar_cost(table, request.power)
  assert cost <= request.budget * (1 + 1e-9)
  assert cost >= request.budget * (1 - 1e-6)


def test_objective_is_the_largest_divergence_over_all_shifts(solved):
  _, table = solved
  values = [oracles.scalar_divergence(table, k, _objective(table))
            for k in range(1, table.bins + 1)]
  assert max(values) == pytest.approx(table.info['objective'], rel=1e-9)


def test_bound_and_gap(solved):
  _, table = solved
  info = table.info
  assert info['lower_bound'] <= info['objective'] * (1 + 1e-12)
  assert info['objective'] <= info['lower_bound'] * (1 + 1e-6)
  assert info['gap'] == pytest.approx(
      max(1 - info['lower_bound'] / info['objective'], 0), abs=1e-12)
  again = design.verify(table)
  assert again['objective'] == pytest.approx(info['objective'], rel=1e-13)


def test_monotone_exactly_where_promised(solved):
  request, table = solved
  if isinstance(request, design.Monotone):
    assert table.monotone


def test_optimum_beats_feasible_perturbations(solved):
  request, table = solved
  spec = request.spec()
  program = spec.program()
  p = np.exp(table.log_density) / table.bins
  rng = np.random.default_rng(7)
  for size in (1e-3, 1e-2, 0.1, 0.5):
    for _ in range(5):
      noisy = p * np.exp(size * rng.standard_normal(p.size))
      other = grid.into_budget(program, noisy)
      assert np.max(program.divergences(other)) >= (
          table.info['lower_bound'] * (1 - 1e-12))


def test_beats_the_gaussian():
  for budget in (0.1, 0.25, 0.5, 1.0):
    table = design.Cactus(budget, bins=20).solve()
    assert table.info['objective'] < 1 / (2 * budget)


# Values at n=200 of an independent structured solver; coarse cells cost a
# little, and never less than nothing.
@pytest.mark.parametrize('budget, fine', [
    (0.1, 2.967639673), (0.25, 1.727298531), (0.5, 0.967854616),
    (1.0, 0.495913918)])
def test_cactus_approaches_the_fine_grid_from_above(budget, fine):
  values = [design.Cactus(budget, bins=n).solve().info['objective']
            for n in (10, 20, 40)]
  assert values[0] > values[1] > values[2] > fine * (1 - 1e-9)
  assert values[2] == pytest.approx(fine, rel=4e-4)


# Every printed decimal of an independent structured solver.
@pytest.mark.slow
@pytest.mark.parametrize('budget, power, value', [
    (0.05, 2, '3.952884798'), (0.1, 2, '2.967639673'), (0.5, 2, '0.967854616'),
    (1, 2, '0.495913918'), (2, 2, '0.249442309'), (4, 2, '0.125766780'),
    (0.1, 1, '4.05371'), (0.25, 1, '2.17999610'), (0.5, 1, '0.98463306'),
    (1, 1, '0.30126283'), (2, 1, '0.08734821')])
def test_cactus_digits(budget, power, value):
  table = design.Cactus(budget, power=float(power), bins=200, cells=1600,
                        tail_ratio=0.9).solve()
  last = 10.0**-len(value.split('.')[1])
  assert abs(table.info['objective'] - float(value)) <= 0.6 * last
  assert table.info['gap'] < 1e-10


# Where the independent solver had stopped early, the certified bound decides.
@pytest.mark.slow
@pytest.mark.parametrize('budget, value', [
    (0.05, 4.0340908683), (0.1, 3.0368123311), (0.25, 1.7536060322),
    (0.5, 0.9698469527), (1, 0.4959187672)])
def test_monotone_kl_digits(budget, value):
  table = design.Monotone(budget, bins=200, cells=1600, tail_ratio=0.9).solve()
  assert table.info['objective'] == pytest.approx(value, rel=2e-10)
  assert table.info['gap'] < 1e-10


@pytest.mark.slow
def test_cactus_at_the_resolution_of_the_paper():
  table = design.Cactus(0.25, bins=200, cells=1600, tail_ratio=0.9).solve()
  assert table.info['objective'] == pytest.approx(1.727298531, abs=1e-9)
  shares = table.info['multipliers']['shifts']
  assert shares['200'] == pytest.approx(0.9641, abs=1e-4)
  assert shares['125'] == pytest.approx(0.0233, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('budget, cells, log_ratio, value', [
    (0.1, 869, -0.039528, 27.92500), (0.25, 1200, -0.025, 8.468082),
    (1.0, 2100, -0.0125, 1.407853)])
def test_monotone_chi2_at_fine_resolution(budget, cells, log_ratio, value):
  table = design.Monotone(budget, bins=200, cells=cells, objective='chi2',
                          tail_ratio=float(np.exp(log_ratio))).solve()
  assert table.info['objective'] == pytest.approx(value, rel=3e-7)


def test_full_shift_is_not_the_worst_of_the_cactus():
  shares = design.Cactus(0.25, bins=20).solve().info['multipliers']['shifts']
  assert len(shares) > 1 and 0.9 < shares['20'] < 1
  assert sum(shares.values()) == pytest.approx(1, abs=1e-9)


def test_multiples_of_a_grid_never_do_worse():
  coarse = design.Monotone(0.25, bins=10).solve().info['objective']
  fine = design.Monotone(0.25, bins=30).solve().info['objective']
  assert fine < coarse


def test_tail_default_is_better_than_far_off_tails():
  best = design.Monotone(1.0, bins=10).solve().info['objective']
  for ratio in (0.05, 0.99):
    worse = design.Monotone(1.0, bins=10, cells=40, tail_ratio=ratio).solve()
    assert best < worse.info['objective']


def test_solving_twice_is_the_same():
  first, second = (design.Cactus(0.25, bins=10).solve() for _ in range(2))
  assert first.digest == second.digest


def test_rounds_that_run_out_leave_the_judgement_to_the_certificate(monkeypatch):
  monkeypatch.setattr(scalar, '_ROUNDS', 1)
  monkeypatch.setattr(scalar, '_near', lambda shifts, factor, bins: np.array([bins]))
  with pytest.raises(design.SolverError, match='gap'):
    design.Cactus(0.25, bins=50).solve()
