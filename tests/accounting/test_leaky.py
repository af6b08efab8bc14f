"""Tests that parts of an adaptive budget dominate what they are taken for."""

import fractions
import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from scipy import optimize, special

from tests.representatives import representatives
from tfcactus import accounting, relations
from tfcactus.accounting import leaky
from tfcactus.accounting.leaky import Part

ALPHAS = np.concatenate([[0.0], 10.0**np.linspace(-18, 18, 181)])
"""From nearly no alpha to nearly infinite ones, one among them."""


LEFT = Part(1e-6, 1.0)


def _part(event, count=1, left=LEFT, relation=relations.ADD_OR_REMOVE):
  return leaky.part(accounting.PhiAccountant(relation).compose(event, count), left)


def _sampled(prob, sigma):
  return dp_accounting.PoissonSampledDpEvent(prob, dp_accounting.GaussianDpEvent(sigma))


def _gaussian(mu, alpha):
  """Returns H of N(mu, 1) against N(0, 1) at alpha, in mpmath."""
  if alpha == 0 or mu == 0:
    return max(mpmath.mpf(1) - alpha, mpmath.mpf(0))
  log = mpmath.log(alpha)
  return (mpmath.ncdf(mu / 2 - log / mu) -
          alpha * mpmath.ncdf(-mu / mpmath.mpf(2) - log / mu))


def _leaky(part, alpha):
  return part.leak + (1 - mpmath.mpf(part.leak)) * _gaussian(mpmath.mpf(part.mu), alpha)


def _sampled_profiles(prob, mu, alpha):
  """Returns H of one sampled Gaussian at alpha, removed and added."""
  prob, alpha = mpmath.mpf(prob), mpmath.mpf(float(alpha))
  other = (alpha - 1 + prob) / prob
  remove = prob * _gaussian(mu, other) if other > 0 else 1 - alpha
  # The reversed pair: H(alpha) = 1 - alpha + alpha * H'(1 / alpha).
  if alpha == 0:
    return remove, mpmath.mpf(1)
  other = (1 / alpha - 1 + prob) / prob
  reverse = prob * _gaussian(mu, other) if other > 0 else 1 - 1 / alpha
  return remove, 1 - alpha + alpha * reverse


@representatives('prob, sigma', [
    (0.01, 0.8), (0.3, 2.0), (1e-4, 0.5), (0.9, 5.0), (0.5, 0.4), (1e-3, 30.0)], 2)
@representatives('leak', [1e-9, 1e-4])
def test_a_part_dominates_a_sampled_gaussian_at_all_alphas(prob, sigma, leak):
  part = _part(_sampled(prob, sigma), left=Part(leak, 1.0))
  assert 0 < part.leak <= leak
  tight, smaller = math.inf, Part(part.leak, part.mu * (1 - 2e-4))
  with mpmath.workdps(60):
    near = np.exp(np.linspace(-2, 2, 201) * np.log1p(part.mu) * 4)
    for alpha in np.concatenate([ALPHAS, near, 1 - prob + prob * ALPHAS]):
      for truth in _sampled_profiles(prob, 1 / mpmath.mpf(sigma), alpha):
        at = mpmath.mpf(float(alpha))
        assert truth <= _leaky(part, at) + mpmath.mpf(10)**-45
        tight = min(tight, _leaky(smaller, at) - truth)
  # A mu that is a little smaller does not dominate, if the points are dense enough.
  assert part.mu > 1e-3 or tight < 0


@representatives('event, count', [
    (_sampled(250 / 60000, 1.3), 3600), (_sampled(0.01, 1.0), 1000),
    (dp_accounting.LaplaceDpEvent(2.0), 1),
    (accounting.RandomAllocationDpEvent(24, dp_accounting.GaussianDpEvent(1.3)), 3)], 1)
def test_mu_is_the_least_to_1e_4(event, count):
  part = _part(event, count)
  accountant = accounting.PhiAccountant().compose(event, count)
  top = accountant.get_epsilon(1e-8)

  def least(epsilon):
    """Returns the mu that a lower bound on delta at one epsilon requires."""
    delta = (accountant.delta_bounds(epsilon).lower - part.leak) / (1 - part.leak)
    if delta <= 0:
      return 0.0
    return optimize.brentq(lambda mu: special.ndtr(mu / 2 - epsilon / mu) - math.exp(
        epsilon) * special.ndtr(-mu / 2 - epsilon / mu) - delta, 1e-6, 30, xtol=1e-12)

  best = max(map(least, np.linspace(0, top, 150)))
  assert best <= part.mu <= best * (1 + 1e-4)


@pytest.mark.parametrize('relation, shift', [
    (relations.ADD_OR_REMOVE, 1), (relations.ZERO_OUT, 1), (relations.REPLACE, 2)])
def test_gaussian_releases_take_no_leak(relation, shift):
  event = dp_accounting.ComposedDpEvent([
      dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(3.0), 5),
      dp_accounting.GaussianDpEvent(2.0)])
  part = _part(event, relation=relation)
  assert part.leak == 0
  assert part.mu == pytest.approx(shift * math.sqrt(5 / 9 + 1 / 4), rel=1e-13)
  assert part.mu >= shift * math.sqrt(5 / 9 + 1 / 4)
  assert _part(dp_accounting.NoOpDpEvent()) == Part(0.0, 0.0)


def _exact(pair):
  """Returns the outcomes of a pair as exact (P, Q)."""
  exact = [(fractions.Fraction(float(p)), fractions.Fraction(float(q)))
           for p, q in zip(pair.p, pair.q)]
  return [*exact, (fractions.Fraction(pair.p_inf), 0),
          (0, fractions.Fraction(pair.q_inf))]


def _random_pair(rng, infinite):
  size = rng.integers(2, 6)
  p, q = rng.dirichlet(np.ones(size), 2)
  p, q = (0.6 * p + 0.4 * q, 0.6 * q + 0.4 * p) if rng.random() < 0.7 else (p, q)
  if infinite:
    p, q = p * (1 - infinite), q * (1 - infinite)
    p, q = np.append(p, [infinite, 0.0]), np.append(q, [0.0, infinite])
  return accounting.DominatingPair.from_masses(p / p.sum(), q / q.sum())


@representatives('infinite', [1e-9, 0.0, 1e-4])
def test_a_part_dominates_discrete_mechanisms_with_infinite_losses(infinite):
  rng = np.random.default_rng(5)
  for _ in range(12):
    pair = _random_pair(rng, infinite)
    part = _part(accounting.DominatingPairDpEvent(pair), left=Part(1e-3, 1.0))
    assert infinite <= part.leak <= 1e-3 and part.mu < math.inf
    for alpha in ALPHAS:
      at = fractions.Fraction(float(alpha))
      outcomes = _exact(pair)
      for one in (outcomes, [(q, p) for p, q in outcomes]):
        truth = float(sum(max(p - at * q, 0) for p, q in one))
        # Masses may miss one by 1e-12, and so may the profile.
        assert truth <= float(_leaky(part, mpmath.mpf(float(alpha)))) + 2e-12


@pytest.mark.more
def test_losses_that_are_infinite_too_often_have_no_part():
  pair = accounting.DominatingPair.from_masses([0.99, 0.01], [1.0, 0.0])
  event = accounting.DominatingPairDpEvent(pair)
  assert _part(event, left=Part(0.009, 1.0)).mu == math.inf
  # In either direction.
  reverse = accounting.DominatingPairDpEvent(pair.reversed())
  assert _part(reverse, left=Part(0.009, 1.0)).mu == math.inf
  assert 0.01 <= _part(reverse, left=Part(0.02, 1.0)).leak <= 0.02
  assert _part(dp_accounting.NonPrivateDpEvent()).mu == math.inf
  assert _part(_sampled(0.1, 1.0), left=Part(0.0, 1.0)).mu == math.inf
  for event, count in ((_sampled(0.25, 2.0), 10**6), (_sampled(0.9, 1e-2), 3),
                       (dp_accounting.LaplaceDpEvent(1e-3), 1)):
    assert _part(event, count).mu > 10  # Losses of hundreds and more.


def test_small_releases_take_small_parts():
  rare = _part(accounting.ThresholdDpEvent(1e-9))
  assert 1e-9 <= rare.leak < 1.02e-9 and rare.mu < 1e-3
  for scale in (1e2, 1e4, 1e6):
    part = _part(dp_accounting.LaplaceDpEvent(scale))
    assert 0.99 / scale < part.mu < 1.3 / scale and part.leak < 2e-10
  assert _part(_sampled(1e-4, 5.0)).mu < 2e-4
  assert _part(_sampled(0.01, 1.0), left=Part(1e-320, 1.0)).mu == math.inf


def test_equal_releases_use_up_leak_and_mu_together():
  event, left = _sampled(250 / 60000, 1.3), Part(1e-6, 0.75)
  for index in range(9):
    part = _part(event, 3600, left)
    left = Part(left.leak - part.leak, math.sqrt(left.mu**2 - part.mu**2))
    assert left.leak / 1e-6 == pytest.approx(
        (left.mu / 0.75)**2, rel=0.02 * (index + 1))


def _tree(rng, left, depth):
  """Returns outcomes (P, Q) of a random tree; results choose what comes next."""
  pair = _random_pair(rng, 0.0)
  mix = rng.random() * 0.6
  p, q = pair.p, pair.q
  q = (1 - mix) * p + mix * q
  event = accounting.DominatingPairDpEvent(accounting.DominatingPair.from_masses(p, q))
  part = _part(event, left=left) if depth else Part(0.0, math.inf)
  if not (part.leak <= left.leak and part.mu <= left.mu):
    return [(1.0, 1.0)], 0
  rest = Part(left.leak - part.leak, math.sqrt(max(left.mu**2 - part.mu**2, 0.0)))
  found, ran = [], 0
  for one, other in zip(p, q):
    below, deeper = _tree(rng, rest, depth - 1)
    found += [(one * a, other * b) for a, b in below]
    ran = max(ran, deeper)
  return found, ran + 1


def _excess(outcomes, whole):
  p, q = np.array(outcomes).T
  alphas = np.exp(np.linspace(-6, 6, 97))
  excess = -math.inf
  for one, other in ((p, q), (q, p)):
    for alpha in alphas:
      bound = whole.leak + (1 - whole.leak) * float(_gaussian(whole.mu, alpha))
      excess = max(excess, np.sum(np.maximum(one - alpha * other, 0)) - bound)
  return excess


@pytest.mark.parametrize('seed', [0, *(
    pytest.param(seed, marks=pytest.mark.more) for seed in range(1, 12))])
@pytest.mark.more
def test_adaptive_trees_of_discrete_mechanisms_never_exceed_the_budget(seed):
  rng = np.random.default_rng(seed)
  whole, deepest, rejected = Part(1e-2, 1.2), 0, 0
  for _ in range(12):
    outcomes, depth = _tree(rng, whole, 3)
    assert _excess(outcomes, whole) <= 1e-11
    deepest = max(deepest, depth)
    rejected += _excess(outcomes, Part(whole.leak, 0.3)) > 0
  # Trees of several levels ran, and a smaller claim is rejected.
  assert deepest >= 2 and rejected
