from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest

from tfcactus.privacy import views
from tfcactus.privacy.pair import DominatingPair


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


@pytest.mark.parametrize('call, message', [
    (lambda: views.pair_from_profile([1.0, 0.5], [0.1, 0.1]), 'increasing'),
    (lambda: views.pair_from_profile([1.0], [1.5]), r'\[0, 1\]'),
    (lambda: views.pair_from_profile([1.0], [0.1, 0.2]), 'same shape'),
    (lambda: views.pair_from_profile([1.0, np.nan], [0.1, 0.2]), 'finite'),
    (lambda: views.pair_from_tradeoff([0, 1], [1.0, 0.5]), 'fall to 0'),
    (lambda: views.pair_from_tradeoff([0, .5, 1], [1, .9, 0]), 'convex'),
    (lambda: views.pair_from_tradeoff([0.1, 1], [1.0, 0.0]), 'from 0 to 1'),
    (lambda: views.tradeoff(random_pair(0), 1.2), 'false_positive'),
    (lambda: views.privacy_profile(random_pair(0), -1.0), 'alpha'),
    (lambda: random_pair(0).renyi_divergence(1.0), 'order'),
])
def test_bad_input(call, message):
  with pytest.raises(ValueError, match=message):
    call()
