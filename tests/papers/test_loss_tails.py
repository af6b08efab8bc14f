"""Tail bounds against the losses of mechanisms that keep each definition."""

import math

import numpy as np
import pytest
from scipy import special

from tfcactus import noise
from tfcactus.accounting import truncated_cdp
from tfcactus.accounting.truncated_cdp import TCDP
from tfcactus.papers import tcdp

LOSSES = np.linspace(-1, 12, 300)


def gaussian_tail(sigma, loss):
  """Returns P(Z > loss) where Z is normal with mean rho and variance 2 rho."""
  rho = 0.5 / sigma**2
  return special.ndtr(-(np.asarray(loss) - rho) / math.sqrt(2 * rho))


def pair_tail(pair, loss):
  return np.array([np.sum(pair.p[pair.loss > x]) + pair.p_inf for x in loss])


@pytest.mark.parametrize('rho, omega', [(0.1, 4.0), (0.5, 1.5), (0.02, 30.0),
                                        (0.3, math.inf)])
def test_truncated_cdp_as_the_paper_writes_it(rho, omega):
  t = np.linspace(0, 6, 200)
  far = t > 2 * rho * (omega - 1)
  near = np.exp(-t**2 / (4 * rho))
  beyond = near if math.isinf(omega) else np.exp(
      (omega - 1)**2 * rho - (omega - 1) * t)
  bound = tcdp.truncated_cdp_tail(TCDP(rho, omega), t + rho)
  np.testing.assert_allclose(bound, np.where(far, beyond, near), rtol=1e-10)
  # What Lemma 6 gives as delta is the same number.
  np.testing.assert_allclose(
      bound, [TCDP(rho, omega).delta(x + rho) for x in t], rtol=1e-10)


@pytest.mark.parametrize('sigma', [0.7, 1.0, 3.0])
def test_the_gaussian_is_below_zcdp(sigma):
  rho = 0.5 / sigma**2
  true = gaussian_tail(sigma, LOSSES)
  assert np.all(true <= tcdp.truncated_cdp_tail(TCDP(rho), LOSSES))
  for order in (1.5, 4.0, 20.0):
    assert np.all(true <= tcdp.renyi_dp(order, order * rho, LOSSES))
  # And above what a smaller rho would allow.
  assert np.any(true > tcdp.truncated_cdp_tail(TCDP(0.6 * rho), LOSSES))


def test_sinh_normal_noise_is_below_its_own_truncated_cdp():
  pair = noise.SinhNormal(2.0, 6.0).dominating_pair().lower
  guarantee = truncated_cdp.certificate(lambda order: max(
      way.renyi_divergence(order) for way in (pair, pair.reversed())), 3.0, orders=300)
  assert np.all(pair_tail(pair, LOSSES) <= tcdp.truncated_cdp_tail(
      guarantee, LOSSES) * (1 + 1e-9))


def test_randomised_response_is_pure_and_sharp():
  loss = np.array([-0.5, 0.99, 1.0, 1.5])
  assert list(tcdp.pure_dp(1.0, loss)) == [1, 1, 0, 0]
  assert list(tcdp.renyi_dp(math.inf, 1.0, loss)) == [1, 1, 0, 0]
  assert list(tcdp.truncated_cdp_tail(TCDP(0.0), [-1.0, 0.0, 1.0])) == [1, 0, 0]


@pytest.mark.parametrize('epsilon, delta, s', [(0.5, 1e-3, 0.2), (1.0, 0.01, 3.0)])
def test_approximate_dp_is_attained(epsilon, delta, s):
  """One outcome of loss epsilon + s, as likely as delta lets it be."""
  likely = delta / -math.expm1(-s)
  q = likely * math.exp(-epsilon - s)
  excess = max(likely - math.exp(epsilon) * q, 0)
  assert excess == pytest.approx(delta)
  bound = float(tcdp.approximate_dp(epsilon, delta, epsilon + s))
  assert bound == pytest.approx(likely) and bound >= delta
  assert float(tcdp.approximate_dp(epsilon, delta, epsilon)) == 1


@pytest.mark.parametrize('rho, delta', [(0.1, 1e-3), (0.5, 1e-6)])
def test_approximate_zcdp_holds_for_a_gaussian_that_fails_at_times(rho, delta):
  """Approximate zCDP holds for a mechanism that sometimes reveals the data.

  The loss is infinite with probability delta, and a Gaussian's otherwise.
  """
  sigma = math.sqrt(0.5 / rho)
  true = delta + (1 - delta) * gaussian_tail(sigma, LOSSES)
  bound = tcdp.approximate_zcdp(rho, delta, LOSSES)
  assert np.all(true <= bound)
  assert bound[-1] == pytest.approx(delta, rel=0.01)
  # It fails where only one neighbour does: then losses move by -log(1 - delta).
  assert np.all((1 - delta) * gaussian_tail(
      sigma, LOSSES + math.log1p(-delta)) <= bound)


@pytest.mark.parametrize('rho', [1e-300, 0.1, 1e200])
@pytest.mark.parametrize('omega', [2.0, math.inf])
def test_losses_at_the_ends_of_floats(rho, omega):
  bound = tcdp.truncated_cdp_tail(
      TCDP(rho, omega), [-math.inf, -1e300, 0.0, 1e250, 1e300, math.inf])
  assert np.all(np.diff(bound) <= 0) and bound[0] == 1 and bound[-1] == 0
  assert float(tcdp.approximate_zcdp(0.1, 1e-3, math.inf)) == pytest.approx(1e-3)


@pytest.mark.parametrize('call', [
    lambda: tcdp.pure_dp(-1, 0.0), lambda: tcdp.pure_dp(1, math.nan),
    lambda: tcdp.renyi_dp(1.0, 1.0, 0.0),
    lambda: tcdp.approximate_dp(1.0, 0.0, 0.0),
    lambda: tcdp.approximate_zcdp(-1.0, 0.1, 0.0),
    lambda: tcdp.pure_dp(1.0, 'x'), lambda: tcdp.pure_dp(1.0, None),
    lambda: tcdp.truncated_cdp_tail(1.0, 1.0)])
def test_refusals(call):
  with pytest.raises(ValueError, match='Expected'):
    call()


def test_tails_are_not_zero_where_they_are_no_floats():
  loss = np.array([1e4, np.inf])
  for bound in (tcdp.truncated_cdp_tail(TCDP(0.5), loss),
                tcdp.renyi_dp(3.0, 1.0, loss)):
    assert 0 < bound[0] < 1e-300 and bound[1] == 0
