"""Compares views, calibration and audits with first principles, at random settings."""

from __future__ import annotations

import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from scipy import stats

from tests.fuzz import oracles
from tests.representatives import representatives
from tfcactus import accounting, audit
from tfcactus.accounting import calibration, views

ROUNDING = 1e-10


def _masses(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
  """Returns two mass vectors; some have outcomes that the other never has."""
  size = int(rng.integers(2, 40))
  p, q = (rng.exponential(1, size)**rng.uniform(0.5, 6) for _ in range(2))
  for mass in (p, q):
    mass[rng.random(size) < rng.choice([0, 0.2])] = 0.0
    mass[rng.integers(size)] += 1e-3
  return p / np.sum(p), q / np.sum(q)


def pair_violations(rng: np.random.Generator) -> list[str]:
  """Returns what is wrong with the views of one discrete pair."""
  p, q = _masses(rng)
  pair = accounting.DominatingPair.from_masses(p, q)
  wrong = []

  def expect(holds, what):
    if not holds:
      wrong.append(f'{what}: p={p.tolist()} q={q.tolist()}')

  alphas = np.append(np.sort(np.exp(rng.normal(0, 3, 12))), [0.0, 1.0])
  truth = np.array([oracles.discrete_profile(p, q, alpha) for alpha in alphas])
  expect(np.allclose(views.privacy_profile(pair, alphas), truth, 0, 1e-13),
         'profile')
  # A pair from some points of the profile dominates at all others.
  points = np.sort(np.exp(rng.normal(0, 2, int(rng.integers(2, 9)))))
  loose = np.minimum(np.array([
      oracles.discrete_profile(p, q, alpha) for alpha in points]) +
                     rng.choice([0, 0.05]) * rng.random(points.size), 1.0)
  again = views.pair_from_profile(points, loose)
  expect(np.all(views.privacy_profile(again, alphas) >= truth - 1e-13),
         f'pair from profile {points.tolist()} {loose.tolist()}')
  expect(math.isclose(float(np.sum(again.q)) + again.q_inf, 1, abs_tol=1e-12),
         'Q-mass from profile')
  # The least false negative rate of all tests, over all thresholds.
  level = float(rng.random())
  least = max(0.0, *(1 - alpha * level - value for alpha, value in zip(alphas, truth)))
  found = float(views.tradeoff(pair, level))
  expect(found >= least - 1e-13, f'trade-off at {level}')
  tests = [(q[chosen].sum(), p[~chosen].sum()) for chosen in (
      rng.random((20, p.size)) < rng.random((20, 1)))]
  expect(all(float(views.tradeoff(pair, min(x, 1.0))) <= y + 1e-12
             for x, y in tests), 'trade-off above a test')
  s = 10**rng.uniform(-5, 0)
  mixed = (1 - s) * p + s * q
  for got, (one, two) in zip(pair.poisson(s), ((p, mixed), (mixed, p))):
    expect(np.allclose(views.privacy_profile(got, alphas), [
        oracles.discrete_profile(one, two, alpha) for alpha in alphas], 0, 1e-13),
           f'sampled {s!r}')
  return wrong


@pytest.mark.parametrize('count', [
    40, pytest.param(300, marks=pytest.mark.more),
    pytest.param(5000, marks=pytest.mark.slow)])
def test_views_of_discrete_pairs_are_those_of_their_definitions(count):
  rng = np.random.default_rng(1)
  assert [text for _ in range(count) for text in pair_violations(rng)] == []


def test_a_profile_that_is_too_low_is_seen():
  rng = np.random.default_rng(2)
  p, q = _masses(rng)
  points = np.array([0.5, 1.0, 2.0])
  low = 0.9 * np.array([oracles.discrete_profile(p, q, x) for x in points])
  pair = views.pair_from_profile(points, low)
  assert views.privacy_profile(pair, 1.0) < oracles.discrete_profile(p, q, 1.0)


def test_a_loose_value_at_one_asks_for_no_more_mass_than_there_is():
  pair = accounting.DominatingPair.from_symmetric_profile(
      np.exp([0.0, 0.01, 1.0]), np.array([0.9, 0.1, 0.05]))
  assert np.sum(pair.p) + pair.p_inf <= 1 + 1e-12
  assert pair.hockey_stick(0.01) == pytest.approx(0.1)


@pytest.mark.parametrize('count', [
    2, pytest.param(12, marks=pytest.mark.more),
    pytest.param(200, marks=pytest.mark.slow)])
def test_composed_views_of_gaussians_are_those_of_one_gaussian(count):
  """Composed Gaussians have a normal privacy loss and a Gaussian trade-off."""
  rng = np.random.default_rng(3)
  for _ in range(count):
    mu = math.exp(rng.uniform(math.log(0.01), math.log(6)))
    steps = int(rng.integers(1, 50))
    accountant = accounting.PhiAccountant().compose(
        dp_accounting.GaussianDpEvent(math.sqrt(steps) / mu), steps)
    loss = float(rng.choice([0, 1e-9, abs(rng.normal(mu * mu / 2, mu))]))
    bounds = views.composed_loss_cdf(
        accountant.compositions()['remove'], loss)
    truth = float(stats.norm.cdf(loss, mu * mu / 2, mu))
    assert bounds.lower - 1e-14 <= truth <= bounds.upper + 1e-14, (mu, loss)
    epsilons = np.append(0.0, np.sort(rng.uniform(0.01, 4 * mu, 8)))
    pair = views.composed_pair(accountant, epsilons)
    for level in rng.random(5):
      least = stats.norm.cdf(stats.norm.isf(level) - mu)
      assert views.tradeoff(pair, level) <= least + 1e-12, (mu, level)


def _one_gaussian(sigma: float, prob: float, count: int):
  event = dp_accounting.PoissonSampledDpEvent(
      prob, dp_accounting.GaussianDpEvent(sigma))
  return dp_accounting.SelfComposedDpEvent(event, count)


def _true_delta(sigma: float, prob: float, epsilon: float) -> float:
  law = oracles.gaussian(sigma)
  return float(max(oracles.subsampled(
      lambda alpha: oracles.threshold_profile(law, 1, alpha), prob, way)(
          mpmath.exp(epsilon)) for way in ('add', 'remove')))


@pytest.mark.parametrize('count', [
    2, pytest.param(10, marks=pytest.mark.more),
    pytest.param(150, marks=pytest.mark.slow)])
def test_calibration_keeps_the_target_and_wastes_little(count):
  rng = np.random.default_rng(4)
  for _ in range(count):
    epsilon, delta = 10**rng.uniform(-1, 1.5), 10**rng.uniform(-12, -0.5)
    prob = 10**rng.uniform(-3, 0)
    try:
      sigma = calibration.calibrate_noise(epsilon, calibration.account(
          lambda x, prob=prob: _one_gaussian(x, prob, 1), delta))
    except ValueError:
      continue
    assert _true_delta(sigma, prob, epsilon) <= delta * (1 + ROUNDING)
    if sigma > 2e-3:
      assert _true_delta(0.99 * sigma, prob, epsilon) > delta, (sigma, prob)
    # Unsampled Gaussians compose to one: the number of steps is known.
    sigma = math.exp(rng.uniform(0, 4))
    steps = calibration.calibrate_steps(epsilon, lambda k, sigma=sigma, delta=delta: (
        accounting.PhiAccountant().compose(
            dp_accounting.GaussianDpEvent(sigma), k).get_epsilon(delta)))
    spent = [oracles.gaussian_delta(math.sqrt(max(k, 1)) / sigma, epsilon)
             for k in (steps, steps + 1)]
    assert steps == 0 or spent[0] <= delta * (1 + ROUNDING)
    assert steps > 1e6 or spent[1] > delta
    sigma = math.exp(rng.uniform(-1, 1))
    prob = calibration.calibrate_sampling_prob(epsilon, calibration.account(
        lambda x, sigma=sigma: _one_gaussian(sigma, x, 1), delta))
    assert _true_delta(sigma, prob, epsilon) <= delta * (1 + ROUNDING)
    assert prob == 1 or _true_delta(sigma, 1.01 * prob, epsilon) > delta


def test_calibration_never_returns_noise_that_costs_more_than_the_target():
  """Failed when the end of the range was returned without computing its cost."""
  cost = calibration.account(dp_accounting.GaussianDpEvent, 1e-5)
  sigma = calibration.calibrate_noise(2e5, cost)
  assert cost(sigma) <= 2e5


@representatives('significance', [0.05, 0.3, 1e-3])
def test_clopper_pearson_intervals_cover_as_often_as_stated(significance):
  """The coverage is exact, summed over all counts."""
  rng = np.random.default_rng(5)
  for _ in range(20):
    trials = int(rng.integers(1, 200))
    prob = float(rng.choice([rng.random(), 10**rng.uniform(-4, 0)]))
    counts = np.arange(trials + 1)
    chance = stats.binom.pmf(counts, trials, prob)
    ends = [audit.clopper_pearson(int(k), trials, significance=significance)
            for k in counts]
    below = sum(c for c, end in zip(chance, ends) if end.lower > prob)
    above = sum(c for c, end in zip(chance, ends) if end.upper < prob)
    assert max(below, above) <= significance / 2 * (1 + 1e-9)


def test_audited_bounds_are_wrong_no_more_often_than_stated():
  """The probability of a wrong bound is summed over all pairs of counts."""
  trials, significance = 25, 0.2
  for epsilon, delta, q in ((1.0, 0.0, 0.2), (0.3, 0.1, 0.5), (2.0, 0.01, 0.1)):
    p = min(math.exp(epsilon) * q + delta, 1.0)
    wrong = sum(
        stats.binom.pmf(i, trials, p) * stats.binom.pmf(j, trials, q)
        for i in range(trials + 1) for j in range(trials + 1)
        if audit.epsilon_lower_bound(i, j, trials, delta=delta,
                                     significance=significance) > epsilon)
    assert wrong <= significance
  for sigma, level in ((1.0, 0.2), (0.4, 0.5)):
    miss = float(stats.norm.cdf(stats.norm.isf(level) - 1 / sigma))
    wrong = sum(
        stats.binom.pmf(i, trials, level) * stats.binom.pmf(j, trials, miss)
        for i in range(trials + 1) for j in range(trials + 1)
        if audit.gaussian_noise_upper_bound(
            i, j, trials, significance=significance) < sigma)
    assert wrong <= significance
