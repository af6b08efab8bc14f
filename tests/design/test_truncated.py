"""Designed truncated noise against programs, closed forms and the accountant."""

import math

import numpy as np
import pytest

import tfcactus
from tfcactus import accounting, design
from tfcactus.design.solvers import density_descent, moments_bound
from tfcactus.design.solvers.bounded_problem import Problem
from tfcactus.noise import scalar_table, tiling
from tfcactus.search import truncated

# steps, range, utility, bins, sampling_prob, epsilon; deltas of the truncated
# Gaussian and of the first prototype of the direct method at equal utility.
TABLE = [
    ((8, 200, 25, 2, 1.0, 0.3), 1.6286e-4, 1.466e-4),
    ((8, 60, 20, 4, 1.0, 0.3), 2.932e-3, 1.993e-3),
    ((16, 140, 35, 1, 1.0, 0.3), 2.423e-4, 1.984e-4),
    ((128, 800, 100, 1, 1.0, 0.3), 1.6284e-4, 1.6271e-4),
    ((128, 400, 100, 1, 1.0, 0.3), 3.372e-4, 1.708e-4),
    ((1, 8, 2, 20, 0.1, 0.3), 4.93e-5, 1.92e-5),
    ((16, 16, 4, 5, 0.1, 0.3), 2.046e-4, 1.727e-4),
    ((128, 40, 10, 4, 0.1, 0.3), 3.92e-4, 2.056e-4),
    ((1000, 6, 1, 10, 0.01, 1.0), 2.62e-3, 1.02e-3),
]
STAIRCASE = {'utility': 1.884781, 'epsilon': 0.3, 'norm': 1}


def ask(case):
  steps, reach, utility, bins, sampling_prob, epsilon = case
  return reach, utility, bins, {
      'steps': steps, 'sampling_prob': sampling_prob, 'epsilon': epsilon}


@pytest.mark.parametrize('case, gaussian, learned', TABLE, ids=repr)
@pytest.mark.slow
def test_learned_deltas(case, gaussian, learned):
  reach, utility, bins, rest = ask(case)
  found = tfcactus.search.truncated_noise(reach, utility=utility, bins=bins, **rest)
  assert found.delta.upper <= 1.02 * learned
  assert found.delta.upper < gaussian
  assert found.noise.monotone and found.noise.range <= reach
  assert found.utility <= utility * (1 + 1e-9)
  assert found.delta.lower > 0.995 * found.delta.upper
  assert found.certified == (case[0] == 1)
  assert ('local optimum' in found.statement) == (case[0] > 1)


@pytest.mark.parametrize('case, gaussian, learned', TABLE, ids=repr)
def test_truncated_gaussians(case, gaussian, learned):
  del learned
  reach, utility, bins, rest = ask(case)
  table = design.TruncatedGaussian(reach, utility=utility, bins=bins).solve()
  assert table.std == pytest.approx(utility, rel=1e-10)
  found = truncated.account(table, **rest)
  assert found.delta.estimate == pytest.approx(gaussian, rel=5e-3)
  # A wrong scale is seen.
  wrong = design.TruncatedGaussian(reach, utility=0.97 * utility, bins=bins
                                   ).solve()
  assert truncated.account(wrong, **rest).delta.estimate != pytest.approx(
      gaussian, rel=5e-3)


@pytest.mark.slow
def test_many_releases_under_l2_are_nearly_gaussian():
  table = design.Truncated(800, 100, 0.3, steps=128, bins=1).solve()
  normal = design.TruncatedGaussian(800, utility=100, bins=1).solve()
  p, q = (2 * np.exp(x.log_density) for x in (table, normal))
  assert p.size == q.size and np.sum(p) == pytest.approx(1)
  assert 0 < np.sum(p * np.log(p / q)) < 1e-4


class TestLinearProgram:

  @pytest.mark.parametrize('method', ['direct', 'lp'])
  def test_is_the_truncated_staircase(self, method):
    found = tfcactus.search.truncated_noise(5, bins=40, method=method, **STAIRCASE)
    assert found.delta.upper == pytest.approx(0.0502427, rel=1e-4)
    assert found.certified and 'global optimum' in found.statement
    info = found.noise.info
    assert 0 <= info['gap'] < 1e-8
    assert found.delta.upper == pytest.approx(info['lower_bound'], rel=1e-4)

  @pytest.mark.parametrize('sampling_prob', [1.0, 0.3])
  @pytest.mark.parametrize('norm', [1, 2])
  def test_against_cvxpy(self, sampling_prob, norm):
    cp = pytest.importorskip('cvxpy')
    reach, bins, utility, epsilon = 3, 4, 1.1, 0.4
    table = design.Truncated(
        reach, utility, epsilon, sampling_prob=sampling_prob, norm=norm,
        bins=bins, method='lp').solve()
    n = 2 * reach * bins
    x = cp.Variable(n, nonneg=True)
    edges = np.arange(n + 1) / bins - reach
    power = np.abs(edges)**norm * edges / (norm + 1)
    p = cp.hstack([x, np.zeros(bins)])
    q = cp.hstack([np.zeros(bins), x])
    mixed = (1 - sampling_prob) * p + sampling_prob * q
    pairs = [(mixed, p), (p, mixed)]
    delta = cp.maximum(*[cp.sum(cp.pos(a - math.exp(epsilon) * b))
                         for a, b in pairs])
    half = x[n // 2:]
    problem = cp.Problem(cp.Minimize(delta), [
        cp.sum(x) == 1, x == x[::-1], half[:-1] >= half[1:],
        np.diff(power) * bins @ x <= utility**norm])
    problem.solve(solver=cp.CLARABEL)
    assert table.info['objective'] == pytest.approx(problem.value, rel=1e-6)
    assert table.info['lower_bound'] <= problem.value * (1 + 1e-7)

  def test_bound_holds_for_whatever_meets_the_budget(self):
    table = design.Truncated(4, 1.5, 0.5, bins=5, method='lp').solve()
    problem = Problem(5, 20, 2, 1.5, 0.5, 1)
    rng = np.random.default_rng(0)
    seen = 0
    for _ in range(300):
      w = np.sort(rng.random(20)**rng.uniform(1, 12))[::-1]
      w /= w.sum()
      if w @ problem.cost <= problem.budget:
        seen += 1
        assert problem.delta(w)[0] >= table.info['lower_bound'] - 1e-9
    assert seen > 30

  def test_towers_pay_for_smaller_changes(self):
    found = tfcactus.search.truncated_noise(5, bins=10, method='lp', monotone=False,
                                     **STAIRCASE)
    assert not found.noise.monotone and not found.certified
    full = accounting.dominating_pair(found.noise).upper
    assert found.noise.info['objective'] < 0.0502427 * 1.001
    assert found.delta.upper == pytest.approx(full.hockey_stick(0.3), rel=1e-6)
    assert found.delta.upper > 2 * found.noise.info['objective']
    # The full shift's delta, and the utility, are those of the table with its floor.
    whole = scalar_table.shifted_pair(found.noise, 10).hockey_stick(0.3)
    assert found.noise.info['objective'] == pytest.approx(whole, rel=1e-11)
    assert found.utility <= STAIRCASE['utility'] * (1 + 1e-14)


class TestMoments:

  def test_fixed_order_against_cvxpy(self):
    cp = pytest.importorskip('cvxpy')
    order, epsilon, bins, cells, utility = 3.0, 0.5, 2, 8, 1.5
    table = design.Truncated(4, utility, epsilon, bins=bins, method='ma',
                             order=order).solve()
    w = cp.Variable(cells, nonneg=True)
    full = 0.5 * cp.hstack([w[::-1], w])
    p, q = full[:-bins], full[bins:]
    terms = cp.Variable(2 * cells - bins)
    cost = (np.arange(cells) + 0.5)**2 / bins**2 + 1 / (12 * bins**2)
    problem = cp.Problem(cp.Minimize(
        cp.sum(full[-bins:]) + math.exp(-order * epsilon) * cp.sum(terms)),
                         [cp.sum(w) == 1, w[:-1] >= w[1:],
                          cost @ w <= utility**2,
                          # terms >= p^(1 + order) / q^order.
                          cp.PowCone3D(terms, q, p, 1 / (1 + order))])
    problem.solve(solver=cp.CLARABEL)
    assert table.info['objective'] == pytest.approx(problem.value, rel=1e-4)
    assert table.info['lower_bound'] <= problem.value * (1 + 1e-6)
    assert 'global optimum' in table.info['statement']

  @pytest.mark.parametrize('sampling_prob', [1.0, 0.2])
  def test_is_the_accountants_bound_and_not_the_best_delta(self, sampling_prob):
    request = {'utility': 4, 'epsilon': 0.5, 'steps': 8, 'bins': 2,
               'sampling_prob': sampling_prob}
    moments = tfcactus.search.truncated_noise(16, method='ma', **request)
    direct = tfcactus.search.truncated_noise(16, **request)
    assert moments.delta.upper > direct.delta.upper
    assert not moments.certified
    told = moments.noise.info['objective']
    assert told >= moments.delta.upper
    problem = Problem(2, 32, 2, 4.0, 0.5, 8, sampling_prob)
    w = 2 * np.exp(direct.noise.log_density) / 2
    if w.size == 32:
      # The noise of least delta has a larger bound at the order chosen.
      assert moments_bound.bound(problem, w, moments.noise.info['order'])[0] > told


@pytest.mark.parametrize('problem', [
    Problem(1, 60, 2, 20.0, 0.3, 8), Problem(2, 32, 2, 4.0, 0.3, 16, 0.1)],
                         ids=['plain', 'sampled'])
@pytest.mark.slow
def test_random_starts_find_nothing_better(problem):
  best = problem.delta(density_descent.solve(problem)[0])[0]
  rng = np.random.default_rng(0)
  slope = np.linspace(0.05, 1, problem.cells - 1) * 4 / problem.cells
  ratios = [problem.delta(density_descent.descend(
      problem, rng.gamma(0.3, 1.0, problem.cells - 1) * slope, problem.delta
  )[0])[0] / best for _ in range(4)]
  assert min(ratios) > 1 - 1e-3
  # The same optimum again, from most of them.
  assert sorted(ratios)[2] < 1 + 1e-3


def test_descent_is_near_the_program_where_both_apply():
  """One release is not smooth; the descent alone is 1 % off there."""
  problem = Problem(10, 50, 1, 1.884781, 0.3, 1)
  w, _ = density_descent.solve(problem)
  assert problem.delta(w)[0] == pytest.approx(0.0502427, rel=0.02)


def test_loose_utility_is_not_used_up():
  tight = tfcactus.search.truncated_noise(60, utility=25, epsilon=0.3, steps=8, bins=1)
  loose = tfcactus.search.truncated_noise(60, utility=32, epsilon=0.3, steps=8, bins=1)
  assert loose.delta.upper < 1.001 * tight.delta.upper
  assert loose.utility < 30


def test_table_keeps_its_words(tmp_path):
  table = design.Truncated(6, 2, 0.5, steps=3, bins=2).solve()
  path = str(tmp_path / 'noise.npz')
  table.save(path)
  loaded = tfcactus.load(path)
  assert loaded.digest == table.digest and loaded.edge_at_zero
  assert 'local optimum' in loaded.info['statement']
  assert loaded.info['parameters']['steps'] == 3


GOOD = {'range': 5, 'utility': 1.5, 'epsilon': 0.3}


@pytest.mark.parametrize('change, words', [
    ({'range': 0.5}, 'range > 0.5'),
    ({'range': -1}, 'range'),
    ({'range': math.inf}, 'range'),
    ({'range': 5.01, 'bins': 7}, 'tile'),
    ({'range': 2**0.5}, 'whole cells'),
    ({'bins': 2.5}, 'bins to be an integer'),
    ({'bins': 0}, 'bins'),
    ({'bins': 10_000}, 'lower bins'),
    ({'range': 1, 'bins': 1, 'utility': 0.6}, 'two cells'),
    ({'utility': 1 / math.sqrt(12 * 20**2)}, 'dither'),
    ({'utility': 2.9}, 'uniform'),
    ({'utility': -1}, 'utility'),
    ({'utility': math.nan}, 'utility'),
    ({'norm': 3}, 'norm'),
    ({'norm': 'L1'}, 'norm'),
    ({'bins': 10**400}, 'bins'),
    ({'epsilon': -0.1}, 'epsilon'),
    ({'epsilon': 701.0}, 'epsilon <= 700'),
    ({'method': 'ma', 'order': 1e300}, 'order of at most'),
    ({'steps': 0}, 'steps'),
    ({'steps': 1.5}, 'steps'),
    ({'sampling_prob': 0}, 'sampling_prob'),
    ({'sampling_prob': 1.1}, 'sampling_prob'),
    ({'method': 'adam'}, 'method'),
    ({'method': 'lp', 'steps': 2}, "method='direct'"),
    ({'order': 3.0}, 'order'),
    ({'method': 'ma', 'order': -1.0}, 'order'),
    ({'monotone': False}, 'monotone'),
], ids=repr)
def test_bad_requests(change, words):
  with pytest.raises(ValueError, match=words):
    design.Truncated(**{**GOOD, **change})


def test_limits_of_the_utility_are_sharp():
  bins, cells = tiling.check_range(5, 4)
  for norm in (1, 2):
    uniform = 5 / 2 if norm == 1 else 5 / 3**0.5
    assert tiling.check_utility(uniform * 0.999, cells, bins, norm)
    with pytest.raises(ValueError, match='uniform'):
      tiling.check_utility(uniform * 1.001, cells, bins, norm)
    least = 1 / 8 if norm == 1 else 1 / 4 / 3**0.5
    assert tiling.check_utility(least * 1.001, cells, bins, norm)
    with pytest.raises(ValueError, match='dither'):
      tiling.check_utility(least * 0.999, cells, bins, norm)
