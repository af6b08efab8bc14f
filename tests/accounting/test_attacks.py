"""Attack reports: closed forms, dp_accounting's discretisation, and their own laws."""

import math
import re

import dp_accounting
from dp_accounting.pld import privacy_loss_distribution as pld
import numpy as np
import pytest
from scipy import stats

from tests.representatives import representatives
from tfcactus import accounting, relations
from tfcactus.accounting import attacks, base, views

RATES = [1e-6, 1e-3, 1e-2, 0.3, 0.7, 0.99]


def account(event, count=1):
  return accounting.PhiAccountant().compose(event, count)


def randomised_response(epsilon):
  event = accounting.randomized_response_event(2 / (1 + math.exp(epsilon)), 2)
  return accounting.PhiAccountant(relations.REPLACE).compose(event)


def sampled(sigma=1.5):
  return dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(sigma))


@representatives('mu', [1.0, 0.1, 4.0])
def test_true_positive_rate_of_a_gaussian_release(mu):
  accountant = account(dp_accounting.GaussianDpEvent(1 / mu))
  for rate in RATES:
    exact = stats.norm.cdf(stats.norm.ppf(rate) + mu)
    found = attacks.true_positive_rate(accountant, rate)
    assert found.lower <= exact * (1 + 1e-12) and exact <= found.upper * (1 + 1e-12)
    assert found.upper - found.lower < (1e-6 if rate < 0.9 else 1e-4) * exact


@representatives('epsilon', [1.0, 0.2, 3.0])
def test_true_positive_rate_of_randomised_response(epsilon):
  accountant = randomised_response(epsilon)
  for rate in RATES:
    exact = min(math.exp(epsilon) * rate, 1 - math.exp(-epsilon) * (1 - rate))
    found = attacks.true_positive_rate(accountant, rate)
    assert found.lower <= exact + 1e-12 and exact <= found.upper + 1e-12
    assert found.upper < exact * (1 + 1e-3) and found.lower > exact * (1 - 1e-3)


def test_true_positive_rates_are_those_of_dp_accounting_within_its_grid():
  """Its pessimistic and optimistic discretisations enclose the bounds."""
  accountant = account(sampled(), 300)
  epsilon = np.linspace(0.0, 6.0, 601)
  grown = np.exp(epsilon)
  rates = []
  for pessimistic in (False, True):
    delta = np.array(pld.from_gaussian_mechanism(
        1.5, sampling_prob=0.05, value_discretization_interval=2e-4,
        pessimistic_estimate=pessimistic, use_connect_dots=False,
    ).self_compose(300).get_delta_for_epsilon(epsilon))
    rates.append([float(np.min(np.minimum(
        delta + grown * rate, 1 - (1 - rate - delta) / grown))) for rate in RATES[1:4]])
  for rate, low, high in zip(RATES[1:4], *rates):
    found = attacks.true_positive_rate(accountant, rate)
    assert low * (1 - 1e-4) < found.lower <= found.upper < high
    assert found.upper - found.lower < 1e-7 < high - low < 0.1 * high


@representatives('make', [
    lambda: account(sampled(), 300), lambda: account(dp_accounting.LaplaceDpEvent(1.0)),
    lambda: account(dp_accounting.LaplaceDpEvent(2.0), 5),
    lambda: randomised_response(1.0)])
def test_bounds_of_a_curve_enclose_each_other_and_the_composed_pair(make):
  accountant = make()
  curve = attacks.TradeoffCurve.of(accountant, points=20)
  rate = np.append(np.geomspace(1e-8, 0.5, 60), np.linspace(0.5, 1.0, 30))
  low, high = curve.best_true_positives(rate), curve.most_true_positives(rate)
  assert np.all(low <= high) and np.all(low >= rate)
  fine = views.composed_pair(accountant, np.linspace(0.0, 8.0, 81))
  exact = 1 - views.tradeoff(fine, rate)
  assert np.all(low <= exact + 1e-9)
  assert np.max(high - exact) < 0.02
  # The curve is symmetric and convex.
  np.testing.assert_allclose(curve.most_true_positives(1 - high), 1 - rate, atol=1e-7)
  for x in (1e-3, 0.2):
    found = attacks.true_positive_rate(accountant, x)
    assert curve.best_true_positives(x) <= found.upper
    assert found.lower <= curve.most_true_positives(x)


def test_wide_bounds_on_the_profile_stay_bounds():
  class Wide(accounting.PhiAccountant):
    def delta_bounds(self, target_epsilon):
      found = super().delta_bounds(target_epsilon)
      return accounting.Bounds(0.99 * found.lower, found.estimate, 1.01 * found.upper)

  accountant = Wide().compose(dp_accounting.GaussianDpEvent(1.0))
  for rate in RATES:
    found = attacks.true_positive_rate(accountant, rate)
    assert found.lower <= stats.norm.cdf(stats.norm.ppf(rate) + 1) <= found.upper


def test_gaussian_differential_privacy_of_a_gaussian():
  report = attacks.AttackReport.of(account(dp_accounting.GaussianDpEvent(0.5)), '')
  assert report.mu.lower <= 2.0 <= report.mu.upper < 2.002
  assert 0 <= report.regret.lower <= report.regret.upper < 1e-3


def test_gaussian_differential_privacy_of_dp_sgd():
  """The setting and mu of the software of Gomez et al., who round their regret down."""
  accountant = account(dp_accounting.PoissonSampledDpEvent(
      2**14 / 50_000, dp_accounting.GaussianDpEvent(9.4)), 2000)
  report = attacks.AttackReport.of(accountant, 'Stated.')
  assert report.mu.lower < 1.567013 < report.mu.upper < 1.5686
  assert 0.001 < report.regret.lower < report.regret.upper < 0.002
  for rate, found in report.true_positive.items():
    assert found.upper <= stats.norm.cdf(stats.norm.ppf(rate) + report.mu.upper)


def test_gaussian_differential_privacy_of_randomised_response():
  report = attacks.AttackReport.of(randomised_response(1.0), '')
  # Proposition 6.1 of Gomez et al.
  exact = -2 * stats.norm.ppf(1 / (math.e + 1))
  assert exact == pytest.approx(report.mu.upper, abs=1e-3)
  assert report.mu.lower <= exact <= report.mu.upper
  assert report.regret.lower > 0.01


def test_report_in_plain_quantities():
  accountant = account(sampled(), 300)
  report = attacks.AttackReport.of(accountant, 'Stated.', prior=0.2,
                                   false_positive=(0.05,))
  assert report.advantage == accountant.delta_bounds(0.0)
  tpr = report.true_positive[0.05].upper
  assert report.posterior[0.05].upper == pytest.approx(
      0.2 * tpr / (0.2 * tpr + 0.8 * 0.05))
  assert 'advantage: at most 0.24848' in str(report) and str(report).endswith('Stated.')
  assert report.as_dict()['true_positive']['0.05']['upper'] == tpr


def test_a_report_names_the_rate_and_the_prior_that_it_bounds():
  """At a lower rate alarms are right more often, at a higher one found more often."""
  rate, sigma = 0.0123456789, 2.0
  report = attacks.AttackReport.of(
      account(dp_accounting.GaussianDpEvent(sigma)), 'Stated.', prior=0.12345678,
      false_positive=[rate])
  assert f'rate of {rate},' in str(report) and 'prior of 0.12345678 ' in str(report)

  def right(rate):
    """Returns the probability that an alarm of the best test is right, exactly."""
    found = stats.norm.cdf(stats.norm.ppf(rate) + 1 / sigma)
    return 0.12345678 * found / (0.12345678 * found + (1 - 0.12345678) * rate)

  told = float(re.search('right with probability at most ([0-9.]+) ', str(report))[1])
  assert right(rate) <= told < right(0.0123)


def test_the_smallest_rates_and_priors_have_a_posterior():
  rate = accounting.Bounds(1e-200, 1e-200, 2e-200)
  assert attacks.posterior(1e-200, 1e-200, rate).upper == pytest.approx(2e-200)


def test_infinite_losses_and_pairs_that_are_not_symmetric():
  pair = accounting.DominatingPair.from_masses([0.5, 0.4, 0.1], [0.4, 0.6, 0.0])
  for relation in (relations.ADD_OR_REMOVE, relations.REPLACE):
    accountant = accounting.PhiAccountant(relation).compose(
        accounting.DominatingPairDpEvent(pair, relation), 3)
    curve = attacks.TradeoffCurve.of(accountant, points=30)
    assert curve.alpha[-1] < math.exp(20)  # Finite losses are smaller.
    rate = np.linspace(0.0, 1.0, 101)
    low, high = curve.best_true_positives(rate), curve.most_true_positives(rate)
    exact = 1 - views.tradeoff(
        views.composed_pair(accountant, np.linspace(0.0, 3.0, 61)), rate)
    assert np.all(low <= exact + 1e-9) and np.all(high < exact + 0.05)
    # Each outcome of three releases: a record is seen with probability 1 - 0.9^3.
    assert high[0] == pytest.approx(1 - 0.9**3, abs=0.005)


def test_nothing_released_and_nothing_protected():
  nothing = attacks.AttackReport.of(accounting.PhiAccountant(), '')
  assert nothing.true_positive[1e-3].upper == pytest.approx(1e-3)
  assert nothing.advantage.upper == 0 and nothing.mu.upper < 1e-6
  everything = attacks.AttackReport.of(account(dp_accounting.NonPrivateDpEvent()), '')
  assert everything.true_positive[1e-3].upper == everything.advantage.upper == 1
  assert everything.mu.upper == math.inf


@pytest.mark.parametrize('call, said', [
    (lambda: attacks.true_positive_rate(account(sampled()), 0.0), 'false_positive'),
    (lambda: attacks.true_positive_rate(
        accounting.PhiAccountant(direction='add'), 0.1), "direction 'both'"),
    (lambda: attacks.AttackReport.of(account(sampled()), '', prior=1.0), 'prior'),
    (lambda: attacks.AttackReport.of(account(sampled()), '', false_positive=0.1),
     'a vector'),
    (lambda: attacks.check_target(0.05), 'a pair'),
    (lambda: attacks.check_target((0.01, 0.05)), 'above the false'),
    (lambda: attacks.TradeoffCurve.of(account(sampled())).false_negatives(2),
     'false_positive')])
def test_bad_arguments_are_refused(call, said):
  with pytest.raises(ValueError, match=said):
    call()


def test_a_report_composes_once(monkeypatch):
  made = []
  compose = base.PairAccountant.compositions

  def counted(accountant):
    made.append(accountant._kept)
    return compose(accountant)

  monkeypatch.setattr(base.PairAccountant, 'compositions', counted)
  accountant = accounting.PhiAccountant().compose(dp_accounting.GaussianDpEvent(2.0), 3)
  attacks.AttackReport.of(accountant, '')
  assert len(made) > 10 and sum(kept is None for kept in made) == 1
  # What is composed later counts.
  before = accountant.get_epsilon(1e-5)
  assert accountant.compose(dp_accounting.GaussianDpEvent(2.0)).get_epsilon(
      1e-5) > before
