"""The phi accountant: events that it composes or refuses, and epsilons of peers."""

import math

import dp_accounting
from dp_accounting import pld
from hypothesis import given, settings, strategies as st
import pytest

from tests.noise.tables import gaussian_radial, gaussian_scalar, wavy_scalar
from tfcactus import accounting, noise
from tfcactus.accounting import PhiAccountant

REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE


def sampled(event, prob=0.01):
  return dp_accounting.PoissonSampledDpEvent(prob, event)


GAUSSIAN = sampled(dp_accounting.GaussianDpEvent(1.0))


def test_against_the_peer_accountant():
  for noise_multiplier, prob, steps in ((1.3, 250 / 60000, 1200), (0.8, 0.1, 50)):
    event = sampled(dp_accounting.GaussianDpEvent(noise_multiplier), prob)
    peer = pld.PLDAccountant(value_discretization_interval=1e-4)
    expected = peer.compose(event, steps).get_epsilon(1e-5)
    mine = PhiAccountant().compose(event, steps).epsilon_bounds(1e-5)
    assert mine.upper == pytest.approx(expected, abs=1e-3)
    assert mine.lower <= mine.estimate <= mine.upper


@pytest.mark.parametrize('event', [
    dp_accounting.NoOpDpEvent(),
    dp_accounting.NonPrivateDpEvent(),
    dp_accounting.GaussianDpEvent(2.0),
    dp_accounting.LaplaceDpEvent(1.0),
    accounting.NoiseTableDpEvent(gaussian_scalar()),
    sampled(accounting.NoiseTableDpEvent(gaussian_radial())),
    dp_accounting.SelfComposedDpEvent(GAUSSIAN, 10),
    dp_accounting.ComposedDpEvent([GAUSSIAN, dp_accounting.LaplaceDpEvent(2)]),
    sampled(dp_accounting.SelfComposedDpEvent(
        dp_accounting.GaussianDpEvent(1.0), 3)),
])
def test_supports_the_events_that_it_knows(event):
  assert PhiAccountant().supports(event)


@pytest.mark.parametrize('event', [
    dp_accounting.UnsupportedDpEvent(),
    sampled(dp_accounting.UnsupportedDpEvent()),
    dp_accounting.SingleEpochTreeAggregationDpEvent(1.0, 3),
    dp_accounting.GaussianDpEvent(-1.0),
    dp_accounting.PoissonSampledDpEvent(1.5, dp_accounting.GaussianDpEvent(1)),
    sampled(dp_accounting.ComposedDpEvent(
        [dp_accounting.GaussianDpEvent(1), dp_accounting.LaplaceDpEvent(1)])),
])
def test_refuses_events_that_it_does_not_know(event):
  accountant = PhiAccountant()
  assert not accountant.supports(event)
  with pytest.raises(dp_accounting.UnsupportedEventError):
    accountant.compose(event)
  assert accountant.get_epsilon(1e-5) == 0


def test_replace_has_twice_the_sensitivity():
  one = PhiAccountant(REPLACE).compose(
      dp_accounting.GaussianDpEvent(2.0), 5).epsilon_bounds(1e-5)
  other = PhiAccountant().compose(
      dp_accounting.GaussianDpEvent(1.0), 5).epsilon_bounds(1e-5)
  assert one.upper == pytest.approx(other.upper, abs=1e-4)


def test_releases_from_one_sample_are_one_step():
  """Two sigma=1 Gaussians, q=.01, 1000 steps, cost 4.481 jointly and 2.584 apart."""
  joint = sampled(dp_accounting.ComposedDpEvent(
      [dp_accounting.GaussianDpEvent(1.0)] * 2))
  result = PhiAccountant().compose(joint, 1000).epsilon_bounds(1e-5)
  assert result.lower == pytest.approx(4.481, abs=5e-4)
  assert result.upper == pytest.approx(4.481, abs=5e-4)
  apart = PhiAccountant().compose(GAUSSIAN, 2000).get_epsilon(1e-5)
  assert apart == pytest.approx(2.584, abs=5e-4)


def test_counts_add_up():
  whole = PhiAccountant().compose(GAUSSIAN, 500)
  parts = PhiAccountant().compose(GAUSSIAN, 200).compose(
      dp_accounting.SelfComposedDpEvent(GAUSSIAN, 300))
  assert parts.get_epsilon(1e-5) == whole.get_epsilon(1e-5)
  builder = dp_accounting.DpEventBuilder()
  builder.compose(GAUSSIAN, 200)
  builder.compose(dp_accounting.SelfComposedDpEvent(GAUSSIAN, 300))
  assert parts.ledger == builder.build()


def test_both_directions_are_composed():
  table = sampled(accounting.NoiseTableDpEvent(wavy_scalar()))
  sides = {direction: PhiAccountant(direction=direction).compose(
      table, 100).get_epsilon(1e-5) for direction in ('add', 'remove', 'both')}
  assert sides['both'] == max(sides['add'], sides['remove'])
  assert sides['add'] != sides['remove']


def test_nothing_costs_nothing_and_no_noise_costs_all():
  assert PhiAccountant().get_epsilon(1e-5) == 0
  assert PhiAccountant().get_delta(1.0) == 0
  for event in (dp_accounting.NonPrivateDpEvent(),
                dp_accounting.GaussianDpEvent(0.0)):
    accountant = PhiAccountant().compose(event)
    assert accountant.get_epsilon(1e-5) == math.inf
    assert accountant.get_delta(1.0) == 1


def test_calibration_by_dp_accounting_works():
  multiplier = dp_accounting.calibrate_dp_mechanism(
      PhiAccountant, lambda sigma: dp_accounting.SelfComposedDpEvent(
          sampled(dp_accounting.GaussianDpEvent(sigma)), 200),
      target_epsilon=1.0, target_delta=1e-5, tol=1e-3)
  reached = PhiAccountant().compose(
      sampled(dp_accounting.GaussianDpEvent(multiplier)), 200).get_epsilon(1e-5)
  assert 0.98 < reached <= 1.0


def test_events_are_equal_when_the_tables_are():
  assert accounting.NoiseTableDpEvent(gaussian_scalar()) == (
      accounting.NoiseTableDpEvent(gaussian_scalar()))
  assert accounting.NoiseTableDpEvent(gaussian_scalar()) != (
      accounting.NoiseTableDpEvent(wavy_scalar()))
  assert gaussian_scalar().digest in repr(
      accounting.NoiseTableDpEvent(gaussian_scalar()))


@pytest.mark.parametrize('delta', [0, 1, -1e-5, 2, math.nan, None, '1e-5'])
def test_bad_delta_is_refused(delta):
  with pytest.raises(ValueError, match='delta'):
    PhiAccountant().compose(GAUSSIAN).get_epsilon(delta)


@pytest.mark.parametrize('count', [-1, 0, 1.5, math.nan])
def test_bad_counts_are_refused(count):
  with pytest.raises(ValueError, match='count'):
    PhiAccountant().compose(GAUSSIAN, count)


def test_bad_construction_is_refused():
  with pytest.raises(ValueError, match='direction'):
    PhiAccountant(direction='sideways')
  with pytest.raises(ValueError, match='direction'):
    PhiAccountant(REPLACE, direction='add')
  with pytest.raises(ValueError, match='neighboring_relation'):
    PhiAccountant('neighbours')


@pytest.mark.more
def test_closed_form_and_table_agree():
  event = accounting.noise_event(noise.Gaussian(1.0))
  assert event == dp_accounting.GaussianDpEvent(1.0)
  fine = gaussian_scalar(sigma=1.0, bins=200, cells=2400)
  table = PhiAccountant().compose(
      sampled(accounting.NoiseTableDpEvent(fine)), 300).get_epsilon(1e-5)
  exact = PhiAccountant().compose(GAUSSIAN, 300).get_epsilon(1e-5)
  assert table == pytest.approx(exact, rel=1e-3)


def check_stays_below(sigma, prob, steps, log_delta):
  """Checks `stays_below` of the one direction with the other's bounds on epsilon."""
  event = dp_accounting.PoissonSampledDpEvent(
      prob, dp_accounting.GaussianDpEvent(sigma))
  account = PhiAccountant().compose(event, steps)
  remove, add = (account.compositions()[name] for name in ('remove', 'add'))
  delta = 10**log_delta
  epsilon = remove.epsilon(delta).lower
  bounds = add.epsilon(delta)
  if epsilon > 0 and add.stays_below(epsilon, delta):
    assert bounds.lower <= epsilon
  if bounds.lower > 1e-6:
    assert not add.stays_below(0.999 * bounds.lower, delta)


@pytest.mark.parametrize('number', [3, pytest.param(15, marks=pytest.mark.more)])
def test_the_quick_proof_that_one_direction_costs_less_is_right(number):
  settings(max_examples=number, deadline=None)(given(
      st.floats(0.4, 5.0), st.floats(1e-4, 0.3), st.integers(2, 3000),
      st.floats(-9, -3))(check_stays_below))()


def test_the_larger_direction_is_never_skipped():
  """Adding a record costs more than removing one here."""
  event = sampled(accounting.noise_event(noise.Laplace(0.5)), 0.9)
  account = PhiAccountant().compose(event, 30)
  parts = [part.epsilon(1e-6) for part in account.compositions().values()]
  both = account.epsilon_bounds(1e-6)
  assert both.upper >= max(part.lower for part in parts)
  assert both.lower == max(part.lower for part in parts)
