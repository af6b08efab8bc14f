"""Exact accounting of sinh-normal noise, against quadrature and the table."""

import math

import mpmath
import numpy as np
import pytest

from tests.representatives import representatives
from tfcactus import accounting, design, noise
from tfcactus.accounting import truncated_cdp
from tfcactus.accounting.renyi import RenyiAccountant
from tfcactus.noise import scalar_table, sinh_normal
from tfcactus.papers import tcdp

ROWS = [
    # rho, A, exact rho' / rho, eps(1e-5): exact, Renyi; eps(1e-10): exact
    (0.1, 8 / math.sqrt(0.1), 1.0197, 1.878, 2.093, 3.168),
    (0.01, 10.0, 1.6383, 1.659, 2.418, 4.118),
    (0.01, 20.0, 1.1529, 0.866, 1.174, 2.039),
    (0.01, 80.0, 1.0229, 0.523, 0.587, 0.932),
    (0.001, 8 / math.sqrt(0.001), 1.0240, 0.148, 0.168, 0.280)]


def make(rho, bend):
  return noise.SinhNormal(1 / math.sqrt(2 * rho), bend)


@representatives('rho, bend, factor, at_5, renyi_5, at_10', ROWS, 2)
def test_the_table_of_exact_against_printed(rho, bend, factor, at_5, renyi_5,
                                            at_10):
  law = make(rho, bend)
  assert round(sinh_normal.epsilon(law, 1e-5), 3) == at_5
  assert round(sinh_normal.epsilon(law, 1e-10), 3) == at_10
  exact = truncated_cdp.certificate(
      lambda order: sinh_normal.renyi_divergence(law, order), bend / 8)
  assert round(exact.rho / rho, 4) == factor
  # The reference took its orders from a coarser grid: never below ours.
  renyi = RenyiAccountant(orders=1 + np.geomspace(0.1, 100, 400)).compose(
      accounting.noise_event(law)).get_epsilon(1e-5)
  assert 0.95 * renyi_5 < renyi < renyi_5 + 5e-4


@pytest.mark.parametrize('rho, bend, factor, at_5, renyi_5, at_10', ROWS)
def test_theorem_17_is_an_order_of_magnitude_above(rho, bend, factor, at_5,
                                                   renyi_5, at_10):
  printed = tcdp.sinh_normal_bound(make(rho, bend))
  assert printed.rho == pytest.approx(16 * rho)
  assert printed.omega == pytest.approx(bend / 8)
  assert printed.epsilon(1e-5) > 5 * at_5
  assert 16 > factor


def test_hundredfold_composition():
  law = make(0.001, 253.0)
  event = accounting.noise_event(law)
  exact = accounting.PhiAccountant().compose(event, 100).epsilon_bounds(1e-6)
  assert round(exact.upper, 3) == round(exact.lower, 3) == 2.005
  renyi = RenyiAccountant(orders=1 + np.geomspace(0.1, 100, 400)).compose(
      event, 100).get_epsilon(1e-6)
  assert 2.15 < renyi < 2.1575
  printed = tcdp.sinh_normal_bound(law).self_compose(100)
  assert round(printed.epsilon(1e-6), 2) == 11.00


def test_corollary_18():
  error = tcdp.histogram_error(0.01, 10, num_bins=10**6, beta=0.05)
  assert round(error, 4) == 142.8875
  law = tcdp.histogram_noise(0.01, 10)
  assert (law.sigma, law.bend) == (40.0, 80.0)
  # A replaced record changes two counts by one.
  single = truncated_cdp.certificate(
      lambda order: sinh_normal.renyi_divergence(law, order), 10.0, orders=200)
  assert 2 * single.rho <= 0.01


def test_corollary_18_as_printed_is_false_and_refused():
  counterexample = noise.SinhNormal(4 / math.sqrt(0.01), 8 * 1.25)
  divergence = sinh_normal.renyi_divergence(counterexample, 1.2)
  assert round(divergence, 6) == 0.010921
  assert divergence > 0.01 / 2 * 1.2
  assert 1.25 >= 1 / (8 * math.sqrt(0.01))  # The printed hypothesis holds.
  with pytest.raises(ValueError, match='Corollary 18 is false'):
    tcdp.histogram_noise(0.01, 1.25)
  # Below 1 / sqrt(2 rho) it may still hold: then it is checked, and given.
  assert tcdp.histogram_noise(0.01, 5.0).bend == 40.0


@pytest.mark.parametrize('options, expected', [
    (1e2, 12.7258), (1e4, 16.9437), (1e8, 20.8699)])
def test_thresholds_of_the_obvious_answer(options, expected):
  law = make(0.01, 10.0)
  assert round(float(-law.quantile(1 / options)), 4) == expected


def _mp_log_density(x, law):
  return (mpmath.log(mpmath.cosh(x / law.bend)) -
          (law.bend / law.sigma * mpmath.sinh(x / law.bend))**2 / 2 -
          mpmath.log(law.sigma * mpmath.sqrt(2 * mpmath.pi)))


def _mp_delta(law, epsilon):
  """Returns the hockey-stick divergence by quadrature from where the sign changes."""
  loss = lambda x: _mp_log_density(x - 1, law) - _mp_log_density(x, law) - epsilon
  low, high = mpmath.mpf(0.5), mpmath.mpf(1)
  while loss(high) < 0:
    low, high = high, 1.5 * high
  for _ in range(90):
    middle = (low + high) / 2
    low, high = (middle, high) if loss(middle) < 0 else (low, middle)
  cut = low
  f = lambda x: (mpmath.exp(_mp_log_density(x - 1, law)) -
                 mpmath.exp(epsilon) * mpmath.exp(_mp_log_density(x, law)))
  far = 1 + float(law.bend * np.arcsinh(25 * law.sigma / law.bend))
  points = [cut + (max(far, float(cut) + 5) - cut) * mpmath.mpf(i) / 12
            for i in range(13)]
  return mpmath.quad(f, points)


@pytest.mark.parametrize('count', [4, pytest.param(20, marks=pytest.mark.more)])
def test_exact_epsilon_against_quadrature_at_random(count):
  rng = np.random.default_rng(7)
  with mpmath.workdps(25):
    for _ in range(count):
      sigma = math.exp(rng.uniform(math.log(0.3), math.log(20)))
      bend = sigma * math.exp(rng.uniform(0.0, math.log(15)))
      law = noise.SinhNormal(sigma, bend)
      epsilon = rng.uniform(0.05, 4) / max(sigma, 0.7)
      delta = _mp_delta(law, mpmath.mpf(epsilon))
      assert delta > 0
      assert sinh_normal.delta(law, epsilon) == pytest.approx(
          float(delta), rel=1e-9)
      assert sinh_normal.epsilon(law, float(delta)) == pytest.approx(
          epsilon, abs=1e-9)


@representatives('sigma, bend, order', [
    (7.07, 10, 1.2), (40, 10, 5.0), (1, 1, 1.1), (22.36, 253, 80.0),
    (3, 8, 4.4), (1, 100, 9.0)], 2)
def test_renyi_divergence_against_quadrature(sigma, bend, order):
  law = noise.SinhNormal(sigma, bend)
  with mpmath.workdps(20):
    f = lambda x: mpmath.exp(order * _mp_log_density(x, law) +
                             (1 - order) * _mp_log_density(x - 1, law))
    reach = 3 + 1.5 * float(bend * np.arcsinh(30 * sigma / bend))
    integral = mpmath.quad(f, [-reach + 2 * reach * mpmath.mpf(i) / 40
                               for i in range(41)])
    expected = float(mpmath.log(integral) / (mpmath.mpf(order) - 1))
  assert sinh_normal.renyi_divergence(law, order) == pytest.approx(
      expected, rel=1e-9)


def test_renyi_divergence_is_infinite_from_its_limit_on():
  law = noise.SinhNormal(7.07, 10)
  limit = sinh_normal.renyi_limit(law)
  assert limit == pytest.approx(1 / (1 - math.exp(-0.2)))
  assert math.isfinite(sinh_normal.renyi_divergence(law, 0.999 * limit))
  assert sinh_normal.renyi_divergence(law, limit) == math.inf
  assert sinh_normal.renyi_divergence(law, 0.99 * limit) > 0.5 * limit / 100


@pytest.mark.parametrize('sigma, bend', [
    (0.3, 0.3), (1, 2), (7.07, 10), (5, 5), (22.4, 253), (1, 1e4)])
@pytest.mark.parametrize('shift', [1, 2])
def test_the_pair_brackets_the_closed_form(sigma, bend, shift):
  law = noise.SinhNormal(sigma, bend)
  bounds = accounting.dominating_pair(law, shift=shift)
  for epsilon in (0.0, 0.1, 1.0, 5.0):
    exact = sinh_normal.delta(law, epsilon, shift=shift)
    low = bounds.lower.hockey_stick(epsilon)
    high = bounds.upper.hockey_stick(epsilon)
    assert low * (1 - 1e-9) - 1e-15 <= exact <= high * (1 + 1e-9) + 1e-15
    if exact > 1e-12:
      assert high - low < 1e-4 * exact + 1e-14
  for pair in (bounds.lower, bounds.upper):
    assert np.sum(pair.p) + pair.p_inf == pytest.approx(1, abs=1e-9)


def test_the_far_bend_is_the_gaussian():
  law, normal = noise.SinhNormal(2.0, 1e6), noise.Gaussian(2.0)
  exact = accounting.PhiAccountant().compose(
      accounting.noise_event(normal)).get_epsilon(1e-6)
  assert sinh_normal.epsilon(law, 1e-6) == pytest.approx(exact, rel=1e-9)
  assert sinh_normal.renyi_divergence(law, 3.0) == pytest.approx(
      3 / 8, rel=1e-9)


def test_the_table_costs_what_the_closed_form_does():
  law = noise.SinhNormal(3.0, 6.0)
  table = design.DiscretizedSinhNormal(3.0, 6.0, bins=200).solve()
  for delta in (1e-3, 1e-6, 1e-10):
    accounted = accounting.PhiAccountant().compose(
        accounting.noise_event(table)).epsilon_bounds(delta)
    assert accounted.estimate == pytest.approx(
        sinh_normal.epsilon(law, delta), rel=2e-3)
    sampled = accounting.PhiAccountant().compose(
        accounting.noise_event(law)).epsilon_bounds(delta)
    assert sampled.lower <= sinh_normal.epsilon(law, delta) <= sampled.upper


def test_two_peaks_are_refused_in_closed_form_and_accounted_as_a_table():
  law = noise.SinhNormal(4.0, 1.0)
  for call in (lambda: sinh_normal.epsilon(law, 1e-5),
               lambda: sinh_normal.delta(law, 1.0),
               lambda: accounting.dominating_pair(law)):
    with pytest.raises(ValueError, match='bend >= sigma'):
      call()
  assert not accounting.PhiAccountant().supports(accounting.noise_event(law))
  table = design.DiscretizedSinhNormal(4.0, 1.0, bins=20).solve()
  assert not table.monotone
  full = accounting.Composition((((accounting.PairBounds.exact(
      scalar_table.shifted_pair(table, table.bins))), 1),)).epsilon(1e-2)
  assert accounting.PhiAccountant().compose(
      accounting.noise_event(table)).get_epsilon(1e-2) >= full.lower


@pytest.mark.parametrize('sigma, bend, message', [
    (50**0.5, 8.0, 'says nothing'), (0.5, 10.0, 'hypothesis'),
    (10.0, 9.0, 'hypothesis')])
def test_theorem_17_outside_its_hypotheses_is_refused(sigma, bend, message):
  with pytest.raises(ValueError, match=message):
    tcdp.sinh_normal_bound(noise.SinhNormal(sigma, bend))


def test_bad_arguments_are_refused():
  law = noise.SinhNormal(3.0, 6.0)
  for call in (lambda: sinh_normal.delta(law, -1), lambda: sinh_normal.delta(
      law, math.nan), lambda: sinh_normal.epsilon(law, 0),
               lambda: sinh_normal.renyi_divergence(law, 1.0),
               lambda: sinh_normal.delta(law, 1, shift=0)):
    with pytest.raises(ValueError, match='Expected'):
      call()
  assert sinh_normal.epsilon(law, 0.9) == 0
