"""The Renyi accountant and its conversions to epsilon and delta."""

import dp_accounting
from dp_accounting import rdp
import numpy as np
import pytest

from tfcactus import accounting
from tfcactus.accounting.renyi import divergence_bounds, RenyiAccountant
from tfcactus.pairs.dominating_pair import DominatingPair, MASS_ROUNDOFF, PairBounds

EVENT = dp_accounting.PoissonSampledDpEvent(
    0.01, dp_accounting.GaussianDpEvent(1.1))


def test_against_the_peer():
  peer = rdp.RdpAccountant().compose(EVENT, 500).get_epsilon(1e-5)
  mine = RenyiAccountant().compose(EVENT, 500).get_epsilon(1e-5)
  # More orders than the peer's can only help.
  assert peer * 0.97 <= mine <= peer * 1.001


def test_conversions_are_ordered_and_sound():
  exact = accounting.PhiAccountant().compose(EVENT, 500).epsilon_bounds(1e-5)
  got = {name: RenyiAccountant(conversion=name).compose(EVENT, 500).get_epsilon(
      1e-5) for name in ('moments', 'tight', 'optimal')}
  assert exact.lower <= got['optimal'] <= got['tight'] * 1.01 < got['moments']


def test_optimal_conversion_is_exact_for_randomised_response():
  """Figure 1 of Zhu et al.: its orders determine randomised response."""
  event = accounting.randomized_response_event(0.5, 2)
  relation = dp_accounting.NeighboringRelation.REPLACE_ONE
  exact = accounting.PhiAccountant(relation).compose(event).epsilon_bounds(0.05)
  got = RenyiAccountant(relation, conversion='optimal').compose(event)
  assert got.get_epsilon(0.05) >= exact.lower - 1e-6
  assert got.get_epsilon(0.05) == pytest.approx(exact.estimate, abs=0.06)


def test_divergences_bound_the_rounding_of_masses():
  exact = DominatingPair.from_masses([0.75, 0.25], [0.25, 0.75])
  rounded = DominatingPair(exact.loss, exact.p * (1 - MASS_ROUNDOFF), exact.q)
  orders = np.array([1.02, 1.5, 3.0])
  bound = divergence_bounds(
      accounting.Composition([(PairBounds.exact(rounded), 7)]), orders)
  truth = np.array([7 * exact.renyi_divergence(order) for order in orders])
  assert np.all(truth <= bound) and np.all(bound <= truth * (1 + 1e-8))


def test_delta_inverts_epsilon():
  accountant = RenyiAccountant().compose(EVENT, 500)
  delta = accountant.get_delta(1.0)
  assert accountant.get_epsilon(delta) == pytest.approx(1.0, rel=1e-6)


def test_empty_and_non_private():
  assert RenyiAccountant().get_epsilon(1e-5) == 0
  broken = RenyiAccountant().compose(dp_accounting.NonPrivateDpEvent())
  assert broken.get_epsilon(1e-5) == float('inf')


def test_bad_arguments():
  with pytest.raises(ValueError, match='conversion'):
    RenyiAccountant(conversion='magic')
  with pytest.raises(ValueError, match='orders > 1'):
    RenyiAccountant(orders=[1.0, 2.0])
