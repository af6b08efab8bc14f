"""Recomputes certificates of designs and statements of accuracy independently."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import integrate, stats

from tests.fuzz import oracles
from tfcactus import design, noise as noise_lib
from tfcactus.design.solvers import bounded_problem, moments_bound
from tfcactus.release import planner, selection
from tfcactus.search import truncated

cvxpy = pytest.importorskip('cvxpy')


def _request(rng: np.random.Generator) -> tuple[dict, int]:
  bins, cells = int(rng.integers(1, 4)), int(rng.integers(3, 12))
  reach = cells / bins
  norm = int(rng.integers(1, 3))
  flat = reach / 2 if norm == 1 else reach / math.sqrt(3)
  utility = flat * rng.uniform(0.5, 1.1)
  return {'range': reach, 'utility': utility, 'epsilon': rng.uniform(0, 2),
          'sampling_prob': float(rng.choice([1.0, rng.random()])),
          'norm': norm, 'bins': bins}, cells


def _optimum(request: dict, cells: int) -> float:
  """Returns the least delta, by cvxpy and the definition of the hockey stick."""
  bins, norm, s = request['bins'], request['norm'], request['sampling_prob']
  w = cvxpy.Variable(cells, nonneg=True)
  whole = cvxpy.hstack([w[::-1], w]) / 2
  nothing = np.zeros(bins)
  p, q = cvxpy.hstack([whole, nothing]), cvxpy.hstack([nothing, whole])
  mixed = (1 - s) * p + s * q
  gain = lambda a, b: cvxpy.sum(cvxpy.pos(a - math.exp(request['epsilon']) * b))
  edges = np.arange(cells + 1) / bins
  cost = np.diff(edges**(norm + 1)) / (norm + 1) * bins
  problem = cvxpy.Problem(
      cvxpy.Minimize(cvxpy.maximum(gain(mixed, p), gain(p, mixed))),
      [cvxpy.sum(w) == 1, cost @ w <= request['utility']**norm,
       cvxpy.diff(w) <= 0])
  problem.solve(solver='CLARABEL')
  return float(problem.value)


@pytest.mark.parametrize('count', [
    3, pytest.param(10, marks=pytest.mark.more),
    pytest.param(150, marks=pytest.mark.slow)])
def test_the_linear_program_is_optimal_and_its_delta_exact(count):
  rng = np.random.default_rng(1)
  solved = 0
  for _ in range(count):
    request, cells = _request(rng)
    try:
      found = truncated.truncated_noise(method='lp', **request)
    except (ValueError, design.SolverError):
      continue
    solved += 1
    truth, info = _optimum(request, cells), found.noise.info
    assert info['lower_bound'] <= truth + 1e-7
    assert info['objective'] >= truth - 1e-7
    masses = oracles.cell_masses(np.exp(np.asarray(
        found.noise.log_density, np.longdouble)), -math.inf, True)
    # The accountant's delta of the frozen table contains that of its cells.
    p, q = oracles.moved(masses, request['bins'])
    s = request['sampling_prob']
    mixed = (1 - s) * q + s * p
    delta = max(oracles.array_profile(a, b, math.exp(request['epsilon']))
                for a, b in ((mixed, q), (q, mixed)))
    assert found.delta.lower - 1e-14 <= delta <= found.delta.upper + 1e-14
    told = max(oracles.array_profile(mixed, q, 1e300),
               oracles.array_profile(q, mixed, 1e300))
    assert found.omega == pytest.approx(told, abs=1e-14)
    if found.certified:
      assert truth >= delta * (1 - 2e-4) - 1e-8
  assert solved >= count // 2


def test_a_certificate_holds_for_its_own_settings_only():
  """Failed when a table stayed certified at any epsilon, steps or sampling."""
  found = truncated.truncated_noise(3, utility=1, epsilon=0.5, bins=3, method='lp')
  assert found.certified
  for other in ({'epsilon': 1.5}, {'steps': 10}, {'sampling_prob': 0.1},
                {'norm': 1}):
    assert not truncated.account(
        found.noise, **{'epsilon': 0.5, **other}).certified


def test_a_table_with_an_open_gap_is_not_certified():
  found = truncated.truncated_noise(3, utility=1, epsilon=0.5, bins=3, method='lp')
  info = {**found.noise.info, 'gap': 0.5}
  loose = dataclasses.replace(found.noise, info=info)
  assert not truncated.account(loose, epsilon=0.5).certified


def _feasible(rng, problem: bounded_problem.Problem) -> np.ndarray:
  """Returns random non-increasing masses within the budget."""
  w = np.sort(rng.exponential(1, problem.cells)**rng.uniform(0.2, 4))[::-1]
  return bounded_problem.within_budget(problem, w)


@pytest.mark.parametrize('count', [
    1, pytest.param(3, marks=pytest.mark.more),
    pytest.param(40, marks=pytest.mark.slow)])
def test_no_masses_are_below_the_moments_bound(count):
  rng = np.random.default_rng(2)
  for _ in range(count):
    request, cells = _request(rng)
    problem = bounded_problem.Problem(
        request['bins'], cells, request['norm'], request['utility'],
        request['epsilon'], int(rng.integers(1, 20)), request['sampling_prob'])
    order = float(10**rng.uniform(-1, 1))
    if problem.cost[0] >= problem.budget:
      continue
    found = moments_bound.solve(problem, order)
    for _ in range(200):
      w = _feasible(rng, problem)
      if np.min(w) > 1e-12:
        assert moments_bound.bound(
            problem, w, order)[0] >= found.lower_bound * (1 - 1e-9)


@pytest.mark.parametrize('count', [
    1, pytest.param(3, marks=pytest.mark.more),
    pytest.param(30, marks=pytest.mark.slow)])
def test_no_table_is_below_a_certificate(count):
  """The other tables are mixtures of the optimum with geometric ones."""
  rng = np.random.default_rng(3)
  for _ in range(count):
    bins, budget = int(rng.integers(3, 9)), 10**rng.uniform(-1, 0.5)
    objective = str(rng.choice(['kl', 'chi2', 'renyi:3']))
    try:
      table = design.Monotone(budget, bins=bins, objective=objective).solve()
    except design.SolverError:
      continue
    fresh = design.verify(table)
    assert fresh['lower_bound'] <= fresh['objective'] * (1 + 1e-12)
    half = np.exp(np.asarray(table.log_density, np.longdouble))
    best = oracles.cell_masses(half, table.log_tail_ratio, table.edge_at_zero)
    assert _worst(best, bins, objective) == pytest.approx(fresh['objective'], rel=1e-7)
    index = np.arange(best.size) - best.size // 2
    for _ in range(10):
      # Non-increasing, and mostly less spread than the optimum: within its budget.
      other = np.exp(-np.abs(index) / bins * rng.uniform(1, 4) / math.sqrt(budget))
      other = np.maximum(other / other.sum(), 0)
      share = rng.uniform(0, 0.5)
      mixed = (1 - share) * best + share * other
      cost = (index**2 + 1 / 12) / bins**2
      if float(cost @ mixed) <= budget:
        assert _worst(mixed, bins, objective) >= fresh['lower_bound'] * (1 - 1e-9)


def _worst(mass: np.ndarray, bins: int, objective: str) -> float:
  """Returns the largest divergence over shifts by whole cells, term by term."""
  values = []
  for cells in range(1, bins + 1):
    p, q = mass[cells:], mass[:-cells]
    if objective == 'kl':
      values.append(float(np.sum(p * np.log(p / q))))
    else:
      order = 2.0 if objective == 'chi2' else 3.0
      moment = float(np.sum(p * (p / q)**(order - 1)))
      values.append(moment - 1 if objective == 'chi2' else
                    math.log(moment) / (order - 1))
  return max(values)


@pytest.mark.parametrize('count', [
    8, pytest.param(40, marks=pytest.mark.more),
    pytest.param(1000, marks=pytest.mark.slow)])
def test_errors_are_no_more_frequent_than_stated(count):
  """The probabilities are exact, from scipy's laws."""
  rng = np.random.default_rng(4)
  for _ in range(count):
    scale = 10**rng.uniform(-1, 2)
    noise, law = ((noise_lib.Gaussian(scale), stats.norm(0, scale))
                  if rng.random() < 0.5 else
                  (noise_lib.Laplace(scale), stats.laplace(0, scale)))
    beta = float(rng.choice([0.5, 0.9, 10**rng.uniform(-12, -1)]))
    size = int(10**rng.uniform(0, 6))
    t = noise.max_error(size, beta)
    found = -math.expm1(size * math.log1p(-2 * law.sf(t)))
    assert found == pytest.approx(beta, rel=1e-6)
    threshold = planner.count_threshold(noise, num_bins=size, beta=beta)
    # Noise is rounded to whole counts: half a count below reaches it.
    assert -math.expm1(size * math.log1p(-law.sf(threshold - 0.5))) <= beta * (
        1 + 1e-9)
    options = int(rng.integers(2, 200))
    gap = selection.obvious_answer_gap(noise, options, beta)
    right = (1 / options if gap / 2 - 1 <= 0 else law.cdf(
        gap / 2 - 1 - law.isf(1 / options)))
    assert 1 - right <= beta * (1 + 1e-6)


@pytest.mark.parametrize('count', [
    2, pytest.param(6, marks=pytest.mark.more),
    pytest.param(60, marks=pytest.mark.slow)])
def test_top_m_is_right_at_least_as_often_as_stated(count):
  """The probability that m shifted normals exceed all others is by quadrature."""
  rng = np.random.default_rng(5)
  for _ in range(count):
    scale, beta = 10**rng.uniform(-1, 1), float(10**rng.uniform(-4, -0.3))
    m, rivals = int(rng.integers(1, 5)), int(rng.integers(1, 200))
    gap = selection.top_m_gap(noise_lib.Gaussian(scale), m + rivals, beta, m)
    law = stats.norm(0, scale)
    right = integrate.quad(
        lambda x, law=law, gap=gap, m=m, rivals=rivals: m * law.pdf(x) *
        law.sf(x)**(m - 1) * law.cdf(x + gap / 2)**rivals,
        -12 * scale, 12 * scale, epsabs=1e-13, limit=400)[0]
    assert 1 - right <= beta * (1 + 1e-6), (scale, beta, m, rivals, gap)
