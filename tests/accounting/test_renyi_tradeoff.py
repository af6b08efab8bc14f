"""Trade-off functions from Renyi divergences, against coins and closed forms."""

import dp_accounting
import hypothesis
from hypothesis import strategies as st
import mpmath
import numpy as np
import pytest
from scipy import stats

from tfcactus import accounting
from tfcactus.accounting import views
from tfcactus.accounting.renyi import tradeoff_from_renyi

ORDERS = np.concatenate([np.linspace(0.5, 0.99, 30), 1 + np.geomspace(0.01, 300, 60)])


def coins(order, p, q):
  """Returns the Renyi divergence of two coins, with 40 digits."""
  with mpmath.workdps(40):
    a, p, q = mpmath.mpf(order), mpmath.mpf(p), mpmath.mpf(q)
    return mpmath.log(p**a * q**(1 - a) + (1 - p)**a * (1 - q)**(1 - a)) / (a - 1)


@hypothesis.given(st.floats(0.1, 50).filter(lambda a: abs(a - 1) > 1e-3),
                  st.floats(1e-9, 0.999), st.floats(1e-6, 0.999), st.booleans())
@hypothesis.settings(max_examples=60, deadline=None)
def test_one_order_of_two_coins_determines_them(order, x, share, backwards):
  """The bound is the exact value less rounding, and never above it."""
  y = (1 - x) * share
  with mpmath.workdps(40):
    def divergence(y):
      return coins(order, *((x, 1 - y) if backwards else (1 - y, x)))

    # Rounded up, so that what is found is a bound on y itself.
    known = [float(np.nextafter(float(divergence(mpmath.mpf(y))), np.inf))]
    slope = -mpmath.diff(divergence, mpmath.mpf(y), h=mpmath.mpf(y) * 1e-9)
    size = 1 + order * (30 + known[0]) + abs(mpmath.log(y))
    room = float(4e-14 * size / (abs(order - 1) * slope)) + 1e-14 * y
  nothing = [np.inf]
  found = float(tradeoff_from_renyi([order], nothing if backwards else known, x,
                                    known if backwards else nothing))
  assert y - room <= found <= y


@pytest.mark.parametrize('seed', range(12))
def test_no_pair_lies_below(seed):
  rng = np.random.default_rng(seed)
  p, q = rng.dirichlet(np.full(rng.integers(2, 8), 0.4), 2) + 1e-9
  pair = accounting.DominatingPair.from_masses(p / p.sum(), q / q.sum())
  one, other = ([way.renyi_divergence(order) for order in ORDERS]
                for way in (pair, pair.reversed()))
  x = np.append(rng.uniform(0, 1, 40), [0.0, 1e-12, 1 - 1e-12, 1.0])
  found = tradeoff_from_renyi(ORDERS, one, x, other)
  exact = views.tradeoff(pair, x)
  assert np.all(found <= exact + 1e-14)
  # More that is known never lowers it; orders below 1/2 add nothing to both ways.
  assert np.all(tradeoff_from_renyi(ORDERS, one, x) <= found)
  assert np.all(tradeoff_from_renyi(ORDERS[30:], one[30:], x, other[30:]) <= found)
  low = np.append(1 - ORDERS[1:30:6], ORDERS)
  lower, other = ([way.renyi_divergence(order) for order in low]
                  for way in (pair, pair.reversed()))
  again = tradeoff_from_renyi(low, lower, x, other)
  np.testing.assert_allclose(again, found, atol=1e-9)


def test_randomised_response_is_found_again():
  """Appendix F.3: of its own divergences the conversion is exact."""
  pair = accounting.DominatingPair.from_masses([0.7, 0.3], [0.3, 0.7])
  orders = 1 + np.geomspace(0.01, 1e8, 400)
  known = [pair.renyi_divergence(order) for order in orders]
  x = np.linspace(0, 1, 101)
  found = tradeoff_from_renyi(orders, known, x, known)
  exact = views.tradeoff(pair, x)
  assert np.all(found <= exact + 1e-15)
  np.testing.assert_allclose(found, exact, atol=1e-7)


@pytest.mark.parametrize('mu', [0.5, 2.0, 3.0])
def test_orders_below_one_matter_for_gaussians(mu):
  x = np.linspace(0.001, 0.999, 200)
  known = 0.5 * mu**2 * ORDERS
  found = tradeoff_from_renyi(ORDERS, known, x, known)
  above = tradeoff_from_renyi(ORDERS[30:], known[30:], x, known[30:])
  exact = stats.norm.cdf(stats.norm.isf(x) - mu)
  assert np.all(found <= exact)
  assert np.all(above <= found) and np.max(found - above) > 1e-3 * mu
  # One point by hand, of mpmath's roots.
  at = 0.1
  with mpmath.workdps(30):
    least = max(mpmath.findroot(
        lambda y, a=a, d=d, way=way: coins(
            a, *((1 - y, at) if way else (at, 1 - y))) - d,
        (mpmath.mpf(10)**-25, mpmath.mpf(1) - at), solver='bisect', tol=1e-20,
        maxsteps=400, verify=False)
                for a, d in zip(ORDERS[::6], known[::6]) for way in (0, 1)
                if coins(a, *((1 - 1e-25, at) if way else (at, 1 - 1e-25))) > d)
  found = tradeoff_from_renyi(ORDERS[::6], known[::6], at, known[::6])
  assert float(found) == pytest.approx(float(least), abs=1e-11)


def test_the_accountant_stays_below_the_certified_curve():
  event = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(0.8))
  x = np.linspace(0.01, 1, 41)
  certified = views.tradeoff(views.composed_pair(
      accounting.PhiAccountant().compose(event, 50), np.linspace(0, 6, 120)), x)
  account = accounting.RenyiAccountant().compose(event, 50)
  found, above = account.tradeoff(x), account.tradeoff(x, below_one=False)
  assert np.all(above <= found) and np.all(found <= certified)
  assert np.max(certified - found) < 0.15 and np.max(found - above) > 1e-3


def test_divergences_below_one_of_all_kinds_of_steps():
  """Van Erven and Harremos: D_a(P || Q) = a / (1 - a) D_(1 - a)(Q || P)."""
  sampled = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0))
  for event in (sampled, dp_accounting.GaussianDpEvent(2.0),
                dp_accounting.LaplaceDpEvent(1.0)):
    parts = accounting.PhiAccountant().compose(event, 3).compositions()
    one, other = (parts[way].renyi_divergence([0.3, 0.5]) for way in ('add', 'remove'))
    back = parts['remove'].renyi_divergence([0.7, 0.5])
    np.testing.assert_allclose(one, np.array([3 / 7, 1.0]) * back, rtol=1e-5)
    assert one[1] == pytest.approx(other[1], rel=1e-5)


def test_infinite_losses_leave_orders_below_one():
  pair = accounting.DominatingPair.from_masses([0.5, 0.4, 0.1], [0.6, 0.4, 0.0])
  account = accounting.RenyiAccountant().compose(
      accounting.DominatingPairDpEvent(pair))
  x = np.linspace(0, 1, 21)
  found = account.tradeoff(x)
  exact = np.minimum(views.tradeoff(pair, x), views.tradeoff(pair.reversed(), x))
  assert np.all(found <= exact + 1e-15) and found[0] > 0.8


def test_laws_with_nothing_in_common():
  pair = accounting.DominatingPair.from_masses([1.0, 0.0], [0.0, 1.0])
  assert pair.renyi_divergence(0.5) == pair.renyi_divergence(2.0) == np.inf
  account = accounting.RenyiAccountant().compose(
      accounting.DominatingPairDpEvent(pair))
  assert account.tradeoff([0.0, 0.5]).tolist() == [0.0, 0.0]


def test_nothing_and_no_privacy():
  np.testing.assert_allclose(
      accounting.RenyiAccountant().tradeoff([0.0, 0.3, 1.0]), [1.0, 0.7, 0.0],
      atol=1e-6)
  broken = accounting.RenyiAccountant().compose(dp_accounting.NonPrivateDpEvent())
  assert broken.tradeoff([0.0, 0.3]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize('call, message', [
    (lambda: tradeoff_from_renyi([1.0], [1.0], 0.5), 'slightly above'),
    (lambda: tradeoff_from_renyi([-1.0], [1.0], 0.5), 'orders > 0'),
    (lambda: tradeoff_from_renyi([2.0], [-1.0], 0.5), 'divergences >= 0'),
    (lambda: tradeoff_from_renyi([2.0], [1.0], 0.5, [1.0, 2.0]), 'reverse'),
    (lambda: tradeoff_from_renyi([2.0], [1.0], 1.5), 'false_positive'),
    (lambda: accounting.RenyiAccountant(direction='add').tradeoff(0.5), 'direction'),
    (lambda: accounting.DominatingPair.from_masses([0.7, 0.3], [0.3, 0.7])
     .renyi_divergence(1.0), 'order')])
def test_bad_input(call, message):
  with pytest.raises(ValueError, match=message):
    call()
