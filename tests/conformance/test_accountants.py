"""Tests that every accountant keeps one contract, whatever its method.

To cover an accountant, add a line to `accountants`. Exact values come from
`tests.fuzz.oracles`, which share no code with the package.
"""

from __future__ import annotations

import math
from typing import Callable, NamedTuple

import dp_accounting
import mpmath
import numpy as np
import pytest

from tests.conformance.accountants import ACCOUNTANTS
from tests.fuzz import oracles
from tfcactus import accounting, noise as noise_lib
from tfcactus.accounting.base import TwoSidedAccountant

REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE
ROUNDING = 1e-9
GAUSSIAN = dp_accounting.GaussianDpEvent(2.0)


class Setting(NamedTuple):
  """A release and its exact delta at an epsilon."""

  event: dp_accounting.DpEvent
  count: int
  delta: Callable[[float], float]


def _sampled_gaussian() -> Setting:
  law = oracles.gaussian(3.0)
  profiles = [oracles.subsampled(
      lambda alpha: oracles.threshold_profile(law, 1, alpha), 0.2, way)
              for way in ('add', 'remove')]
  return Setting(
      dp_accounting.PoissonSampledDpEvent(0.2, dp_accounting.GaussianDpEvent(3.0)), 1,
      lambda epsilon: float(max(h(mpmath.exp(epsilon)) for h in profiles)))


def _table() -> Setting:
  masses = np.array([.04, .11, .35, .35, .11, .04])
  noise = noise_lib.ScalarTable.from_cell_masses(2, masses)
  p, q = oracles.moved(masses, 2)
  mixed = 0.7 * q + 0.3 * p
  return Setting(
      dp_accounting.PoissonSampledDpEvent(0.3, accounting.noise_event(noise)), 3,
      lambda epsilon: max(oracles.composed_delta(mixed, q, 3, epsilon),
                          oracles.composed_delta(q, mixed, 3, epsilon)))


def _responses(told: float) -> Setting:
  win = (1 - told) / (1 + math.exp(-0.4))
  lose = 1 - told - win
  pair = accounting.DominatingPair.from_masses(
      [win, lose, told, 0], [lose, win, 0, told])
  return Setting(
      accounting.DominatingPairDpEvent(pair), 30,
      lambda epsilon: float(oracles.binomial_delta(told, 0.4, 30, epsilon)))


SETTINGS = {
    'Gaussian': Setting(
        GAUSSIAN, 8,
        lambda epsilon: float(oracles.gaussian_delta(math.sqrt(2), epsilon))),
    'sampled Gaussian': _sampled_gaussian(), 'sampled table': _table(),
    'responses': _responses(0.0), 'responses, some told': _responses(1e-7),
}


@pytest.fixture(params=list(ACCOUNTANTS))
def make(request):
  return ACCOUNTANTS[request.param]


@pytest.fixture(params=list(SETTINGS))
def setting(request):
  return SETTINGS[request.param]


def refused(accountant, event):
  with pytest.raises(dp_accounting.UnsupportedEventError) as refusal:
    accountant.compose(event)
  return str(refusal.value)


def test_epsilon_and_delta_are_never_below_the_truth(make, setting):
  accountant = make().compose(setting.event, setting.count)
  for delta in (1e-6, 1e-3, 0.3):
    epsilon = accountant.get_epsilon(delta)
    assert epsilon == math.inf or setting.delta(epsilon) <= delta * (1 + ROUNDING)
  for epsilon in (0.0, 0.5, 3.0):
    assert setting.delta(epsilon) <= accountant.get_delta(epsilon) * (1 + ROUNDING)


def test_two_sided_bounds_are_ordered_and_the_upper_is_reported(make, setting):
  accountant = make().compose(setting.event, setting.count)
  if not isinstance(accountant, TwoSidedAccountant):
    assert not hasattr(accountant, 'epsilon_bounds')
    assert not hasattr(accountant, 'delta_bounds')
    return
  for delta in (1e-6, 0.1):
    lower, estimate, upper = accountant.epsilon_bounds(delta)
    assert 0 <= lower <= estimate <= upper == accountant.get_epsilon(delta)
    assert lower in (0, math.inf) or setting.delta(lower) >= delta * (1 - ROUNDING)
  for epsilon in (0.0, 1.0):
    lower, estimate, upper = accountant.delta_bounds(epsilon)
    assert 0 <= lower <= estimate <= upper == accountant.get_delta(epsilon) <= 1
    assert lower <= setting.delta(epsilon) * (1 + ROUNDING)


def test_epsilon_falls_with_delta_and_both_grow_with_steps(make, setting):
  few, many = (make().compose(setting.event, count)
               for count in (setting.count, setting.count + 5))
  deltas, epsilons = (1e-7, 1e-4, 0.05, 0.5), (0.0, 0.3, 1.0, 4.0)
  for ask, points in (('get_epsilon', deltas), ('get_delta', epsilons)):
    values = [getattr(few, ask)(x) for x in points]
    assert all(low <= high for high, low in zip(values, values[1:]))
    assert all(value <= getattr(many, ask)(x) * (1 + 1e-6)
               for x, value in zip(points, values))


def test_composition_commutes_and_is_associative(make):
  pair = accounting.DominatingPairDpEvent(
      accounting.DominatingPair.from_masses([.55, .45], [.45, .55]))
  table = SETTINGS['sampled table'].event
  at_once = make().compose(pair, 4).compose(table, 3)
  orders = (
      make().compose(table, 3).compose(pair, 4),
      make().compose(dp_accounting.ComposedDpEvent(
          [table, dp_accounting.SelfComposedDpEvent(pair, 4), table])).compose(table),
      make().compose(dp_accounting.SelfComposedDpEvent(
          dp_accounting.SelfComposedDpEvent(pair, 2), 2)).compose(table, 3))
  one_by_one = make()
  for event in (pair, table, pair, table, pair, table, pair):
    one_by_one.compose(event)
  for other in (*orders, one_by_one):
    for delta in (1e-5, 0.2):
      assert other.get_epsilon(delta) == pytest.approx(
          at_once.get_epsilon(delta), rel=1e-9)
    assert other.get_delta(0.5) == pytest.approx(at_once.get_delta(0.5), rel=1e-9)


@pytest.mark.parametrize('wrap', [
    lambda event: event,
    lambda event: dp_accounting.SelfComposedDpEvent(event, 10),
    lambda event: dp_accounting.ComposedDpEvent([GAUSSIAN, event]),
    lambda event: dp_accounting.PoissonSampledDpEvent(0.1, event)])
def test_an_unsupported_event_is_refused_and_changes_nothing(make, wrap):

  class UnknownDpEvent(dp_accounting.DpEvent):
    pass

  for unknown in (UnknownDpEvent(), dp_accounting.UnsupportedDpEvent()):
    accountant = make().compose(GAUSSIAN)
    before = accountant.get_epsilon(0.1), accountant.ledger
    error = accountant._maybe_compose(wrap(unknown), 1, False)
    assert error.invalid_event is unknown and error.error_message
    assert not accountant.supports(wrap(unknown))
    assert 'caused by subevent' in refused(accountant, wrap(unknown))
    assert (accountant.get_epsilon(0.1), accountant.ledger) == before


@pytest.mark.parametrize('event', [
    None, dp_accounting.NoOpDpEvent(), dp_accounting.ComposedDpEvent([]),
    dp_accounting.SelfComposedDpEvent(dp_accounting.NoOpDpEvent(), 3),
    dp_accounting.PoissonSampledDpEvent(0.0, GAUSSIAN)])
def test_nothing_costs_nothing(make, event):
  accountant = make()
  if event is not None:
    assert accountant.supports(event)
    assert accountant.compose(event) is accountant
  for value in (1e-12, 0.5):
    assert accountant.get_epsilon(value) == 0
    assert accountant.get_delta(value) == 0


def test_a_release_without_noise_has_no_finite_epsilon(make):
  event = dp_accounting.NonPrivateDpEvent()
  accountant = make()
  assert accountant.supports(event)
  accountant.compose(GAUSSIAN).compose(event)
  assert accountant.get_epsilon(0.99) == math.inf
  assert accountant.get_delta(0.0) == accountant.get_delta(100.0) == 1


def test_relations_and_directions(make):
  """Replacing costs no less than removing; both directions, no less than one."""
  event = SETTINGS['sampled table'].event
  both, add, remove = (make(direction=direction).compose(event, 4).get_delta(0.3)
                       for direction in ('both', 'add', 'remove'))
  assert both == max(add, remove)
  replaced = make(REPLACE)
  assert replaced.neighboring_relation == REPLACE
  assert replaced.compose(event, 4).get_delta(0.3) >= both * (1 - ROUNDING)
  with pytest.raises(ValueError, match='direction'):
    make(REPLACE, direction='add')
  with pytest.raises(ValueError, match='neighboring_relation'):
    make('nobody')


@pytest.mark.parametrize('delta', [-0.1, 0.0, 1.0, math.nan, 'x', None])
def test_invalid_deltas_are_refused(make, delta):
  with pytest.raises(ValueError, match='target_delta'):
    make().compose(GAUSSIAN).get_epsilon(delta)


def test_the_ledger_is_what_was_composed(make):
  accountant = make().compose(GAUSSIAN, 3)
  assert accountant.ledger == dp_accounting.SelfComposedDpEvent(GAUSSIAN, 3)
  with pytest.raises(TypeError):
    accountant.compose('Gaussian')
