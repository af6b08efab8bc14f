"""Conversions against closed forms of the Gaussian and dp_accounting's."""

import math

import dp_accounting
import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
from scipy import stats

from tests.accounting.oracles import gaussian_delta
from tfcactus import _numerics, accounting
from tfcactus.accounting import views
from tfcactus.pairs import dominating_pair
from tfcactus.papers import conversions
from tfcactus.papers.levy import LevyComposition, PhiFunction


@pytest.mark.parametrize('mu', [0.1, 1.0, 4.0])
def test_a_distribution_function_becomes_a_pair(mu):
  loss = mu * np.linspace(-12, 12, 20001) + 0.5 * mu**2
  pair = conversions.pair_from_loss_cdf(
      loss, stats.norm.cdf((loss - 0.5 * mu**2) / mu))
  pair.check()
  for epsilon in (0.0, 0.3, 2.0):
    exact = gaussian_delta(mu, epsilon)
    found = pair.hockey_stick(epsilon)
    assert exact <= found + 1e-15 and found <= exact + 1.3e-3 * mu
    # The other direction is dominated as well; the Gaussian's is the same.
    assert pair.reversed().hockey_stick(epsilon) >= exact - 1e-15


def test_phi_to_distribution_function_to_pair():
  """The lossless circle of the paper's figure 2, bounds in hand."""
  whole = LevyComposition([(PhiFunction.gaussian(0.5), 4)])
  loss = np.linspace(-5, 7, 121)
  pair = conversions.pair_from_loss_cdf(
      loss, np.maximum.accumulate([whole.loss_cdf(x).lower for x in loss]))
  for epsilon in (0.0, 0.5, 2.0):
    exact = gaussian_delta(1.0, epsilon)
    assert exact <= pair.hockey_stick(epsilon) <= exact + 0.1


def test_mass_beyond_the_points_is_infinite():
  pair = conversions.pair_from_loss_cdf([0.0, 1.0], [0.2, 0.9])
  assert pair.p_inf == pytest.approx(0.1)
  np.testing.assert_allclose(pair.p, [0.2, 0.7])


@pytest.mark.parametrize('rest', [1e-3, 1e-9, 2.0**-53])
def test_all_mass_beyond_the_points_is_kept(rest):
  loss = np.linspace(-1, 4, 1001)
  pair = conversions.pair_from_loss_cdf(loss, np.append(
      np.random.default_rng(3).uniform(0.5, 0.9, 1000).cumsum() / 1000, 1 - rest))
  pair.check()
  assert pair.p_inf >= 1 - (1 - rest) > 0


def test_masses_that_are_no_floats_are_infinite_losses():
  pair = conversions.pair_from_loss_cdf([-1, 650, 690], [1e-100, 2e-100, 1])
  pair.check()
  accounting.DominatingPairDpEvent(dominating_pair.PairBounds.exact(pair))
  # The last has a Q-mass of 1e-300.
  assert pair.p_inf == pytest.approx(1.0)
  assert pair.loss.tolist() == [-1.0]
  assert pair.p_inf + np.sum(pair.p) == pytest.approx(1.0, abs=1e-15)


@hypothesis.given(
    st.lists(st.floats(0, 800), min_size=1, max_size=8, unique=True),
    st.lists(st.floats(1e-305, 1), min_size=9, max_size=9))
@hypothesis.settings(max_examples=60, deadline=None)
def test_any_points_dominate_the_law_at_them(losses, weights):
  """A law on the points itself, the least that has that distribution function."""
  loss = np.sort(losses)
  cdf = np.minimum(np.cumsum(weights[:loss.size]) / np.sum(weights), 1.0)
  pair = conversions.pair_from_loss_cdf(loss, cdf)
  pair.check()
  mass = np.diff(cdf, prepend=0.0)
  for epsilon in (0.0, 1.0, 100.0, 699.0, 790.0):
    gain = -np.expm1(np.minimum(epsilon - loss, 0.0))
    least = math.fsum(mass * gain) + (1 - cdf[-1])
    assert pair.hockey_stick(epsilon) >= least * (1 - 1e-14)


@pytest.mark.parametrize('mu', [0.05, 1.0, 5.0])
def test_renyi_divergences_become_a_profile(mu):
  orders = 1 + np.geomspace(0.01, 500, 400)
  epsilon = np.array([0.0, 0.1, 1.0, 5.0, 20.0])
  delta = conversions.profile_from_renyi(orders, 0.5 * mu**2 * orders, epsilon)
  assert np.all(delta >= gaussian_delta(mu, epsilon))
  account = dp_accounting.rdp.RdpAccountant(list(orders))
  account.compose(dp_accounting.GaussianDpEvent(1 / mu))
  for x, found in zip(epsilon, delta):
    if 1e-12 < found < 0.5:
      assert account.get_epsilon(found) == pytest.approx(x, abs=1e-6)
  keep = delta > 0
  pair = views.pair_from_profile(np.exp(epsilon[keep]), delta[keep])
  for x in epsilon[keep]:
    assert pair.hockey_stick(x) >= gaussian_delta(mu, x)


def test_one_order_by_hand():
  # The largest of e^-x (1 - e^-x) is a quarter.
  assert conversions.profile_from_renyi([2.0], [1.0], 4.0) == pytest.approx(
      0.25 * np.exp(-3.0))


def test_a_profile_is_not_zero_where_it_is_no_float():
  assert list(conversions.profile_from_renyi([2.0], [1.0], [1e4, np.inf])) == [
      _numerics.LEAST, 0]


def test_orders_whose_products_are_no_floats_prove_nothing():
  epsilon = np.array([0.0, 1e10, 1e308, np.inf])
  assert list(conversions.profile_from_renyi([1e300], [1e10], epsilon)) == [1, 1, 1, 0]


@pytest.mark.parametrize('call, message', [
    (lambda: conversions.pair_from_loss_cdf([1.0, 0.0], [0.1, 0.2]),
     'loss to increase, got 1.0 and then 0.0'),
    (lambda: conversions.pair_from_loss_cdf([0.0, 1.0], [0.1]), 'each'),
    (lambda: conversions.pair_from_loss_cdf([0.0, 1.0], [0.3, 0.2]),
     'cdf not to fall, got 0.3 and then 0.2'),
    (lambda: conversions.pair_from_loss_cdf([0.0, 1.0], [0.3, 1.2]),
     'from 0.3 to 1.2'),
    (lambda: conversions.pair_from_loss_cdf([-5.0, 1.0], [0.9, 1.0]), 'E exp'),
    (lambda: conversions.profile_from_renyi([0.5], [1.0], 1.0), 'orders'),
    (lambda: conversions.profile_from_renyi(2.0, 1.0, 1.0), 'orders'),
    (lambda: conversions.profile_from_renyi([2.0], [1.0], 'a'), 'epsilon'),
    (lambda: conversions.profile_from_renyi([2.0], [1.0], np.nan), 'epsilon'),
    (lambda: conversions.profile_from_renyi([2.0], [1.0], None), 'epsilon'),
])
def test_bad_input(call, message):
  with pytest.raises(ValueError, match=message):
    call()
