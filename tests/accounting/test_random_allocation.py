"""RandomAllocationDpEvent (balls-in-bins): epsilons, and events that are refused."""

import types

import dp_accounting
import numpy as np
import pytest

from tests.accounting import allocation_oracles
from tests.conformance.accountants import ACCOUNTANTS
from tests.representatives import representatives
from tfcactus import accounting, library
from tfcactus.accounting import calibration, event_steps, views

Gaussian = dp_accounting.GaussianDpEvent
Allocation = accounting.RandomAllocationDpEvent
RELATIONS = dp_accounting.NeighboringRelation


def phi(event, count=1, relation=RELATIONS.ADD_OR_REMOVE_ONE, **kwargs):
  return accounting.PhiAccountant(relation, **kwargs).compose(event, count)


def allocated(sigma, batches):
  sample = event_steps.Sample(RELATIONS.ADD_OR_REMOVE_ONE)
  [(step, _)] = event_steps.steps_of(Allocation(batches, Gaussian(sigma)), sample)
  return step


@pytest.mark.parametrize('sigma, batches, epochs, remove, add',
                         allocation_oracles.QUADRATURE + allocation_oracles.SPECTRAL)
def test_epsilon_of_epochs(sigma, batches, epochs, remove, add):
  event = Allocation(batches, Gaussian(sigma))
  assert phi(event, epochs).get_epsilon(1e-5) == pytest.approx(max(remove, add),
                                                               abs=1e-7)
  assert phi(event, epochs, direction='add').get_epsilon(1e-5) == pytest.approx(
      add, abs=1e-7)
  assert phi(event, epochs, RELATIONS.REPLACE_SPECIAL).get_epsilon(1e-5) == phi(
      event, epochs).get_epsilon(1e-5)


@representatives('name', list(ACCOUNTANTS), 2)
def test_every_accountant_accounts_for_it(name):
  event = Allocation(60, Gaussian(1.0))
  try:
    found = ACCOUNTANTS[name]().compose(event, 5).get_epsilon(1e-5)
  except dp_accounting.UnsupportedEventError:
    pytest.fail('it has a pair')
  assert found >= 1.6240836330 - 1e-9


def test_one_batch_is_the_mechanism():
  assert phi(Allocation(1, Gaussian(1.5)), 4).get_epsilon(1e-6) == phi(
      Gaussian(1.5), 4).get_epsilon(1e-6)


def test_less_than_poisson_and_than_none():
  for batches, epochs, sigma in ((15, 1, 0.892), (59, 5, 1.377), (240, 20, 0.756)):
    allocated = phi(Allocation(batches, Gaussian(sigma)), epochs).get_epsilon(1e-5)
    poisson = phi(dp_accounting.PoissonSampledDpEvent(1 / batches, Gaussian(sigma)),
                  epochs * batches).get_epsilon(1e-5)
    assert allocated < poisson < phi(Gaussian(sigma), epochs).get_epsilon(1e-5)


def test_several_releases_of_a_batch_are_one():
  both = dp_accounting.ComposedDpEvent([Gaussian(2.0), Gaussian(2.0)])
  assert phi(Allocation(30, both), 2).get_epsilon(1e-5) == pytest.approx(
      phi(Allocation(30, Gaussian(2**0.5)), 2).get_epsilon(1e-5), rel=1e-9)


def test_it_composes_with_other_events():
  event = Allocation(60, Gaussian(1.0))
  mixed = dp_accounting.ComposedDpEvent([
      dp_accounting.SelfComposedDpEvent(event, 5), Allocation(20, Gaussian(2.0)),
      dp_accounting.PoissonSampledDpEvent(0.01, Gaussian(1.0)), Gaussian(8.0)])
  alone, lower, upper = (phi(event, 5).get_epsilon(1e-5), *phi(mixed).epsilon_bounds(
      1e-5)[::2])
  assert alone < lower <= upper <= lower + 1e-7
  table = library.get('isotropic-dim3-sigma0.5').dp_event
  lower, _, upper = phi(dp_accounting.ComposedDpEvent([event, table])).epsilon_bounds(
      1e-5)
  assert phi(table).get_epsilon(1e-5) < lower <= upper < lower * (1 + 1e-3)


@pytest.mark.parametrize('batches, sigma, delta', [
    (60, 0.02, 1e-5), pytest.param(764, 8.7, 1e-6, marks=pytest.mark.slow),
    pytest.param(60, 1000.0, 1e-5, marks=pytest.mark.slow)])
def test_bounds_where_no_contour_serves(batches, sigma, delta):
  lower, _, upper = phi(Allocation(batches, Gaussian(sigma))).epsilon_bounds(delta)
  assert 0 <= lower <= upper <= phi(Gaussian(sigma)).get_epsilon(delta)


@representatives('sigma, batches, delta', [
    (0.2, 10, 1e-5), (0.19, 1000, 1e-9), (0.13, 100, 1e-5)])
def test_bounds_are_close_with_little_noise(sigma, batches, delta):
  # Terms of high orders overflow here.
  bounds = phi(Allocation(batches, Gaussian(sigma))).epsilon_bounds(delta)
  assert 0 < bounds.lower <= bounds.upper <= phi(Gaussian(sigma)).get_epsilon(delta)
  assert bounds.upper - bounds.lower < 0.05 * bounds.upper


@pytest.mark.parametrize('mu, epsilon', [(0.25, 0.2592), (1.0, 1.55)])
def test_pilot_moments_show_nothing_smaller(mu, epsilon):
  # A million batches: errors of pilots add up, and said that delta was kept below
  # epsilon's lower bound.
  step = allocated(1 / mu, 10**6).loss('add')
  assert not accounting.Composition([(step, 10**5)]).stays_below(epsilon, 1e-5)


def test_no_noise_costs_all_and_no_release_nothing():
  for nothing in (dp_accounting.NoOpDpEvent(),
                  dp_accounting.PoissonSampledDpEvent(0.0, Gaussian(1.0))):
    assert phi(Allocation(60, nothing)).get_epsilon(1e-5) == 0
  assert phi(Allocation(60, Gaussian(0.0))).get_epsilon(1e-5) == np.inf
  assert phi(Allocation(60, Gaussian(1.0))).get_epsilon(0.5) == 0


def test_calibration_and_views():
  def cost(sigma):
    return phi(Allocation(59, Gaussian(sigma)), 5).get_epsilon(1e-5)
  sigma = calibration.calibrate_noise(1.0, cost, low=0.3, high=10.0)
  assert cost(sigma) <= 1.0 < cost(sigma * (1 - 1e-3))
  assert sigma == pytest.approx(1.377 * (1 - 0.055), rel=2e-3)
  accountant = phi(Allocation(59, Gaussian(sigma)), 5)
  pair = views.composed_pair(accountant, np.array([0.0, 0.5, 1.0, 2.0]))
  assert views.privacy_profile(pair, np.exp(0.5)) == pytest.approx(
      accountant.get_delta(0.5))
  assert 0 < views.tradeoff(pair, 0.1) < 0.9


def refused(event, relation=RELATIONS.ADD_OR_REMOVE_ONE):
  with pytest.raises(dp_accounting.UnsupportedEventError) as error:
    phi(event, relation=relation)
  return str(error.value)


def test_allocations_without_a_proof_are_refused_in_words():
  event = Allocation(60, Gaussian(1.0))
  assert 'none for REPLACE_ONE' in refused(event, RELATIONS.REPLACE_ONE)
  laplace = dp_accounting.LaplaceDpEvent(1.0)
  for inner in (dp_accounting.SelfComposedDpEvent(laplace, 2),
                dp_accounting.ComposedDpEvent([laplace, Gaussian(1.0)]),
                dp_accounting.PoissonSampledDpEvent(0.5, Gaussian(1.0)), event):
    assert refused(Allocation(60, inner))
  assert 'one release of each whole batch' in refused(
      Allocation(60, dp_accounting.SelfComposedDpEvent(laplace, 2)))
  for sampled in (dp_accounting.PoissonSampledDpEvent(0.5, event),
                  dp_accounting.SampledWithoutReplacementDpEvent(10, 10, event)):
    assert 'not sampled once more' in refused(sampled)


def test_zeroed_records_of_a_given_pair_are_refused():
  # Batches without the record show 0; the batch that holds it, zeroed or not, shows 1
  # or 2 by randomized response. The place of the record shows, so nothing is amplified.
  masses = np.exp([0.0, -3.0]) / (1 + np.exp(-3.0))
  event = accounting.DominatingPairDpEvent(
      accounting.DominatingPair.from_masses(masses, masses[::-1]),
      RELATIONS.REPLACE_SPECIAL)
  assert 'no proved account' in refused(Allocation(9, event), RELATIONS.REPLACE_SPECIAL)
  assert phi(Allocation(1, event), relation=RELATIONS.REPLACE_SPECIAL
             ).get_delta(1.0) == pytest.approx(masses[0] - np.e * masses[1])


@pytest.mark.parametrize('batches', [0, -1, 2.5, '3', True, None, 2**53 + 1, 10**400])
def test_bad_numbers_of_batches_are_refused(batches):
  with pytest.raises(ValueError, match='num_batches'):
    Allocation(batches, Gaussian(1.0))


def test_the_event_of_newer_dp_accounting_has_the_same_steps():
  whole = event_steps.Sample(RELATIONS.ADD_OR_REMOVE_ONE)
  event = types.SimpleNamespace(event=Gaussian(1.0), num_selected=1, num_steps=60)
  assert list(event_steps._random_allocation(event, whole)) == list(
      event_steps.steps_of(Allocation(60, Gaussian(1.0)), whole))
  event.num_selected = 2
  with pytest.raises(event_steps.Unsupported, match='several'):
    event_steps._random_allocation(event, whole)


@representatives('seed', [0, 2, 3, 5] + [
    pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 4, 6, 7)])
def test_fuzz_against_convex_order(seed):
  # The oracle is a bracket that shares no code with the moments.
  rng = np.random.default_rng(seed)
  batches = int(np.exp(rng.uniform(np.log(2), np.log(400))))
  epochs = int(np.exp(rng.uniform(0, np.log(60))))
  sigma = float(np.exp(rng.uniform(np.log(0.3), np.log(6))))
  delta = 10**rng.uniform(-10, -1)
  event = allocated(sigma, batches)
  for direction in ('remove', 'add'):
    step = event.loss(direction)
    found = accounting.Composition([(step, epochs)]).epsilon(delta)
    other = accounting.Composition([(step.bounds(1 << 13), epochs)]).epsilon(delta)
    assert found.lower <= found.estimate <= found.upper
    assert found.lower <= other.upper and other.lower <= found.upper
    assert found.upper - found.lower <= 1.001 * (other.upper - other.lower) + 1e-12


@representatives('sigma', [1e-12, 1e-9, 1e-6, 1e-3, 0.02], 2)
def test_noise_next_to_none_costs_as_much_as_one_sum(sigma):
  accountant = phi(Allocation(10, Gaussian(sigma)))
  found = accountant.epsilon_bounds(1e-5)
  # About that of the record's own sum: nine others have nothing of it, and it is found.
  assert 0.99 * 0.5 / sigma**2 <= found.upper < np.inf
  assert accountant.delta_bounds(1.0).upper >= 1 - 1e-9


@representatives('scale, batches, delta, remove, add', [
    (1, 3, 1e-3, .9463333, .9921080), (.5, 10, 1e-5, 1.4712137, 1.9915481),
    (.5, 100, 1e-5, .5901485, .9173535), (.25, 1000, 1e-6, .6395527, 1.0220352)])
def test_laplace_costs_more_to_add(scale, batches, delta, remove, add):
  event = Allocation(batches, dp_accounting.LaplaceDpEvent(scale))
  for direction, wanted in (('remove', remove), ('add', add)):
    accountant = accounting.PhiAccountant(direction=direction).compose(event)
    lower, _, upper = accountant.epsilon_bounds(delta)
    assert lower <= wanted + 1e-7 and wanted <= upper + 1e-7
    assert upper - lower <= 4e-4 * upper


def test_a_table_of_gaussian_cells_costs_as_much_as_its_pair_says():
  table = library.get('isotropic-dim3-sigma0.5').dp_event
  lower, _, upper = phi(Allocation(60, table)).epsilon_bounds(1e-5)
  assert 0 < lower <= upper <= phi(table).get_epsilon(1e-5)
