"""Objectives and costs of designs, and properties that every design has."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import integrate

from tests.design import oracles
from tfcactus import design
from tfcactus.design.solvers import divergence, grid, interior_point

NAMES = ('kl', 'chi2', 'renyi:0.5', 'renyi:3', 'renyi:8', 'kl@0.01',
         'chi2@0.1', 'renyi:4@0.01')


@pytest.mark.parametrize('name', NAMES)
def test_slope_and_curvature_are_derivatives(name):
  parsed = divergence.parse(name)
  rng = np.random.default_rng(3)
  a, b = np.exp(0.7 * rng.standard_normal((2, 50)))
  h = 1e-5

  def value(x, y):
    return parsed.value(x, y)

  slope = (value(a + h, b) - value(a - h, b)) / (2 * h)
  np.testing.assert_allclose(parsed.slope(a, b), slope, rtol=2e-5, atol=2e-6)
  mixed = (parsed.slope(a, b + h) - parsed.slope(a, b - h)) / (2 * h)
  np.testing.assert_allclose(parsed.curvature(a, b), -a * b * mixed, rtol=1e-4,
                             atol=1e-6)
  np.testing.assert_allclose(
      a * parsed.slope(a, b) + b * parsed.slope(b, a), value(a, b), rtol=1e-9,
      atol=1e-13)


def direct(table, name):
  """Returns the divergence of a scalar table at full shift, from its definition."""
  kind, _, rate = name.partition('@')
  q = float(rate) if rate else 1.0
  reach = table.half_density.size + 4 * table.bins
  z = np.arange(-reach, reach + 1) / table.bins
  base = np.exp(table.log_density_at(z)) / table.bins
  moved = np.exp(table.log_density_at(z - 1)) / table.bins
  ratio = 1 + q * (moved / base - 1)
  order = {'kl': 1.0, 'chi2': 2.0}.get(kind) or float(kind.split(':')[1])
  if kind == 'kl':
    return float(np.sum(base * ratio * np.log(ratio)))
  moment = float(np.sum(base * ratio**order))
  return moment - 1 if kind == 'chi2' else np.log(moment) / (order - 1)


@pytest.mark.parametrize('name', NAMES)
def test_reported_objective_is_the_divergence_of_that_name(name):
  table = design.Monotone(0.5, bins=10, objective=name).solve()
  assert table.info['objective'] == pytest.approx(direct(table, name), rel=1e-6)
  assert table.info['gap'] < 1e-8
  assert design.verify(table)['lower_bound'] <= table.info['objective']
  for other in NAMES:
    rival = design.Monotone(0.5, bins=10, objective=other).solve()
    assert table.info['objective'] <= direct(rival, name) * (1 + 1e-3)


def test_renyi_of_order_two_is_chi_square_and_of_order_one_kl():
  tables = {name: design.Monotone(0.5, bins=10, cells=60, tail_ratio=0.5,
                                  objective=name).solve()
            for name in ('chi2', 'renyi:2', 'kl', 'renyi:1')}
  assert tables['renyi:2'].info['objective'] == pytest.approx(
      np.log1p(tables['chi2'].info['objective']), rel=1e-9)
  assert tables['renyi:1'].info['objective'] == pytest.approx(
      tables['kl'].info['objective'], rel=1e-9)


def test_small_rates_approach_chi_square():
  chi2 = design.Monotone(0.5, bins=10, cells=60, tail_ratio=0.5,
                         objective='chi2').solve().info['objective']
  rate = 1e-4
  small = design.Monotone(0.5, bins=10, cells=60, tail_ratio=0.5,
                          objective=f'kl@{rate}').solve().info['objective']
  assert 2 * small / rate**2 == pytest.approx(chi2, rel=1e-3)


@pytest.mark.parametrize('name', ['chi2', 'renyi:4', 'kl@0.01'])
def test_all_shifts_and_radial_designs_take_every_objective(name):
  cactus = design.Cactus(0.5, bins=8, objective=name).solve()
  monotone = design.Monotone(0.5, bins=8, objective=name).solve()
  assert cactus.info['objective'] <= monotone.info['objective'] * (1 + 1e-6)
  ball = design.Isotropic(3, 0.7, bins=8, objective=name).solve()
  assert ball.info['gap'] < 1e-8 and ball.monotone


def test_chi2_of_full_releases_is_chi2():
  assert divergence.parse('chi2@1').report(0.3) == divergence.parse('chi2').report(0.3)


@pytest.mark.parametrize('bad', ['', 'renyi', 'renyi:', 'renyi:x', 'renyi:-1',
                                 'renyi:1e9', 'kl@', 'kl@0', 'kl@2', 'kl@nan',
                                 'tv', None, 3, ['kl']])
def test_bad_objectives(bad):
  with pytest.raises(ValueError, match='objective'):
    divergence.parse(bad)


def test_a_cost_function_is_the_power_it_computes():
  told = design.Monotone(0.5, power=3.0, bins=8, cells=40, tail_ratio=0.4).solve()
  given = design.Monotone(0.5, cost=lambda z: z**3, bins=8, cells=40,
                          tail_ratio=0.4).solve()
  assert given.info['objective'] == pytest.approx(told.info['objective'],
                                                  rel=1e-9)


def test_another_cost_is_met_and_verified():
  def huber(z):
    return np.where(z < 1, 0.5 * z * z, z - 0.5)

  table = design.Monotone(0.3, cost=huber, bins=10).solve()
  half = table.half_density
  edges = (np.arange(half.size + 1) - 0.5) / table.bins
  edges[0] = 0.0
  spent = sum(2 * np.exp(f) * integrate.quad(huber, a, b)[0]
              for f, a, b in zip(half[:200], edges, edges[1:]))
  assert spent == pytest.approx(0.3, rel=1e-4)
  assert design.verify(table, cost=huber)['gap'] < 1e-8
  with pytest.raises(ValueError, match='cost function'):
    design.verify(table)
  ball = design.Isotropic(3, budget=0.9, cost=huber, bins=8).solve()
  assert design.verify(ball, cost=huber)['gap'] < 1e-8


@pytest.mark.parametrize('cost, words', [
    (lambda z: z + 1, 'to be 0 at'),
    (lambda z: z * np.exp(-z), 'never falls'),
    (lambda z: -z, 'at least 0'),
    (lambda z: np.minimum(z, 1.0), 'power'),
    (lambda z: z + (z > 1), 'continuous'),
    (lambda z: np.where(z > 5, np.inf, z), 'finite'),
    (lambda z: 1.0, 'shape'),
    ('z**2', 'function'),
])
def test_costs_outside_the_papers(cost, words):
  with pytest.raises(ValueError, match=words):
    design.Monotone(1.0, cost=cost)


def test_sensitivity_and_budget_scale_together():
  # Sensitivity 2 on half as many cells per unit, with four times the budget.
  one = design.Cactus(0.25, bins=16, cells=100, tail_ratio=0.7).solve()
  wide = design.Cactus(0.25 * 4, bins=8, cells=100, tail_ratio=0.7).spec()
  program = wide.program(np.arange(1, 17))
  solution = interior_point.solve(program, grid.exponential_start(program))
  assert np.max(program.divergences(solution.p)) == pytest.approx(
      one.info['objective'], rel=1e-9)


@pytest.mark.parametrize('request_', [
    design.Cactus(0.25, bins=10), design.Monotone(0.5, bins=10)], ids=str)
def test_kkt_residuals(request_):
  spec = request_.spec()
  shifts = np.arange(spec.bins if spec.monotone else 1, spec.bins + 1)
  program = spec.program(shifts)
  found = interior_point.solve(program, grid.exponential_start(program))
  p, theta, price = found.p, found.theta, found.price
  values = program.divergences(p)
  top = np.max(values)
  assert program.mass @ p == pytest.approx(1, abs=1e-9)
  assert program.cost @ p == pytest.approx(spec.budget, rel=1e-8)
  assert np.all(theta > 0) and np.sum(theta) == pytest.approx(1, abs=1e-9)
  # Complementary slackness.
  assert np.max(theta * (top - values)) < 1e-8 * top
  gradient = theta @ program.gradients(p) + price * program.cost
  nu = -float(gradient @ p)
  dual = gradient + nu * program.mass
  if spec.monotone:
    # Multipliers of the falls: the running sums, non-negative where flat.
    running = np.cumsum(dual)
    fall = -np.diff(np.log(p))
    assert np.min(running) > -1e-6 * top
    assert np.max(np.abs(running[:-1] * p[:-1] * fall)) < 1e-7 * top
  else:
    assert np.max(np.abs(p * dual)) < 1e-8 * top


def test_refining_by_whole_factors_never_worsens():
  values = [design.Cactus(0.25, bins=n, cells=6 * n,
                          tail_ratio=float(np.exp(-8 / n))).solve()
            .info['objective'] for n in (4, 8, 24, 48)]
  assert values == sorted(values, reverse=True)


def test_active_shifts_found_coarsely_are_the_right_ones():
  table = design.Cactus(0.25, bins=40, cells=320, tail_ratio=0.59).solve()
  values = [oracles.scalar_divergence(table, k) for k in range(1, 41)]
  assert max(values) == pytest.approx(table.info['objective'], rel=1e-9)
  assert table.info['gap'] < 1e-9


@pytest.mark.parametrize('budget', [0.02, 400.0])
def test_extreme_budgets(budget):
  table = design.Monotone(budget).solve()
  assert table.info['gap'] < 1e-8
  if budget > 1:
    assert table.info['objective'] == pytest.approx(0.5 / budget, rel=1e-3)


@pytest.mark.parametrize('dim, sigma', [(100, 0.5), (400, 1.0)])
@pytest.mark.slow
def test_many_dimensions(dim, sigma):
  table = design.Isotropic(dim, sigma).solve()
  gaussian = 0.5 / sigma**2
  assert table.monotone and table.first_radius > table.width
  assert table.noise_multiplier == pytest.approx(sigma, rel=1e-6)
  assert table.info['objective'] < gaussian * 1.002
  fresh = dataclasses.replace(table)
  assert design.verify(fresh)['lower_bound'] == pytest.approx(
      table.info['lower_bound'], rel=1e-10)
