"""Views of what is composed: profiles, trade-off functions, loss distributions, phi."""

import dp_accounting
from hypothesis import given, settings, strategies as st
import numpy as np
import pytest
from scipy import stats

import tfcactus
from tfcactus.accounting import views
from tfcactus.accounting.composition.composition import Composition
from tfcactus.pairs.dominating_pair import DominatingPair, PairBounds


def random_pair(seed, outcomes=8):
  rng = np.random.default_rng(seed)
  p, q = rng.dirichlet(np.full(outcomes, 0.5), 2)
  p[0], q[1] = 0, 0
  return DominatingPair.from_masses(p / p.sum(), q / q.sum())


ALPHA = np.exp(np.linspace(-5, 5, 41))


@pytest.mark.parametrize('seed', range(4))
def test_round_trips(seed):
  pair = random_pair(seed)
  x = np.append(0.0, np.cumsum(pair.q[np.argsort(-pair.loss)]))
  if pair.q_inf:
    x = np.append(x, 1.0)
  x[-1] = 1.0
  y = views.tradeoff(pair, x)
  y[-1] = 0.0
  again = views.pair_from_tradeoff(x, y)
  np.testing.assert_allclose(views.privacy_profile(again, ALPHA),
                             views.privacy_profile(pair, ALPHA), atol=1e-12)


@pytest.mark.parametrize('seed', range(4))
def test_profile_points_give_a_dominating_pair(seed):
  pair = random_pair(seed)
  alpha = np.exp(np.linspace(-4, 4, 25))
  built = views.pair_from_profile(alpha, views.privacy_profile(pair, alpha))
  exact = views.privacy_profile(pair, ALPHA)
  above = views.privacy_profile(built, ALPHA)
  assert np.all(above >= exact - 1e-12)
  np.testing.assert_allclose(views.privacy_profile(built, alpha),
                             views.privacy_profile(pair, alpha), atol=1e-9)


def test_profile_and_tradeoff_are_conjugate():
  pair = random_pair(5)
  x = np.linspace(0, 1, 4001)
  f = views.tradeoff(pair, x)
  for alpha in (0.3, 1.0, 4.0):
    assert views.privacy_profile(pair, alpha) == pytest.approx(
        np.max(1 - f - alpha * x), abs=2e-3)


@given(st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_tradeoff_is_convex_and_falls(seed):
  f = views.tradeoff(random_pair(seed), np.linspace(0, 1, 101))
  assert np.all(np.diff(f) <= 1e-12)
  assert np.all(np.diff(f, 2) >= -1e-9)


def test_loss_distribution_and_phi():
  pair = random_pair(1)
  finite = 1 - pair.p_inf
  assert views.loss_cdf(pair, 100.0) == pytest.approx(finite)
  assert views.loss_cdf(pair, -100.0) == 0
  t = np.array([0.0, 0.7])
  expected = np.log(np.sum(pair.p * np.exp(1j * t[:, None] * pair.loss), axis=1))
  np.testing.assert_allclose(pair.log_phi(t), expected)


def test_renyi_divergence():
  p, q = np.array([0.7, 0.3]), np.array([0.4, 0.6])
  pair = DominatingPair.from_masses(p, q)
  assert pair.renyi_divergence(3.0) == pytest.approx(
      np.log(np.sum(p**3 / q**2)) / 2)
  assert random_pair(0).renyi_divergence(2.0) == np.inf


def gaussian_account(prob=1.0, steps=4):
  event = dp_accounting.GaussianDpEvent(2.0)
  if prob < 1:
    event = dp_accounting.PoissonSampledDpEvent(prob, event)
  return tfcactus.PhiAccountant().compose(event, steps)


def test_composed_tradeoff_of_gaussians():
  """Four releases at noise multiplier 2 are Gaussian DP with mu = 1."""
  pair = views.composed_pair(gaussian_account(), np.linspace(0, 8, 801))
  level = np.linspace(0.001, 0.999, 41)
  exact = stats.norm.cdf(stats.norm.ppf(1 - level) - 1)
  found = views.tradeoff(pair, level)
  assert np.all(found <= exact + 1e-12)
  np.testing.assert_allclose(found, exact, atol=1e-4)


def test_composed_pair_keeps_the_profile():
  account = gaussian_account(0.1, 50)
  grid = np.linspace(0, 6, 61)
  pair = views.composed_pair(account, grid)
  for epsilon in (0.0, 0.5, 0.55, 3.0):
    exact, found = account.get_delta(epsilon), pair.hockey_stick(epsilon)
    assert found >= exact * (1 - 1e-9)
    assert found <= exact * 1.05


@pytest.mark.parametrize('loss', [0.0, 0.3, 1.0, 4.0])
def test_composed_loss_distribution_of_gaussians(loss):
  # The loss of mu = 1 is normal with mean 1/2 and variance 1 under P.
  part = gaussian_account().compositions()['remove']
  bounds = views.composed_loss_cdf(part, loss)
  exact = stats.norm.cdf(loss - 0.5)
  assert bounds.lower <= exact <= bounds.upper
  if loss:
    assert bounds.upper - bounds.lower < 1e-4


def test_composed_loss_distribution_by_enumeration():
  p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
  pair = DominatingPair.from_masses(p, q)
  part = Composition([(PairBounds.exact(pair), 2)])
  mass = np.multiply.outer(p, p).ravel()
  losses = np.add.outer(np.log(p / q), np.log(p / q)).ravel()
  for loss in (0.5, 1.2):
    bounds = views.composed_loss_cdf(part, loss)
    assert bounds.lower - 1e-12 <= mass[losses <= loss].sum() <= bounds.upper + 1e-12


@pytest.mark.filterwarnings('error')
def test_extreme_points():
  part = gaussian_account().compositions()['add']
  assert views.composed_loss_cdf(part, 1e12).upper == 1
  views.pair_from_tradeoff([0.0, 1e-320, 1.0], [1.0, 0.5, 0.0]).check()


@pytest.mark.parametrize('call, message', [
    (lambda: views.composed_pair(gaussian_account(), [1.0, 2.0]), 'from 0'),
    (lambda: views.composed_pair(gaussian_account(), [0.0, 1.0, 800.0]), 'to 700'),
    (lambda: views.loss_cdf(random_pair(0), np.nan), 'without NaN'),
    (lambda: views.composed_pair(
        tfcactus.PhiAccountant(direction='add'), [0.0, 2.0]), "'both'"),
    (lambda: views.composed_loss_cdf(
        gaussian_account().compositions()['add'], -1.0), 'loss'),
    (lambda: views.pair_from_profile([1.0, 0.5], [0.1, 0.1]), 'increasing'),
    (lambda: views.pair_from_profile([1.0], [1.5]), r'\[0, 1\]'),
    (lambda: views.pair_from_profile([1.0], [0.1, 0.2]), 'same shape'),
    (lambda: views.pair_from_profile([1.0, np.nan], [0.1, 0.2]), 'finite'),
    (lambda: views.pair_from_tradeoff([0, 1], [1.0, 0.5]), 'fall to 0'),
    (lambda: views.pair_from_tradeoff([0, .5, 1], [1, .9, 0]), 'convex'),
    (lambda: views.pair_from_tradeoff([0.1, 1], [1.0, 0.0]), 'from 0 to 1'),
    (lambda: views.tradeoff(random_pair(0), 1.2), 'false_positive'),
    (lambda: views.privacy_profile(random_pair(0), -1.0), 'alpha'),
    (lambda: views.privacy_profile(random_pair(0), 1j), 'alpha'),
    (lambda: random_pair(0).renyi_divergence(1.0), 'order'),
])
def test_bad_input(call, message):
  with pytest.raises(ValueError, match=message):
    call()
