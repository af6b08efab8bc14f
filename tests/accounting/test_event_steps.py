"""Relations, sampling schemes and joint releases."""

import math

import attr
import dp_accounting
from dp_accounting import pld
import numpy as np
import pytest
from scipy import stats

from tests.noise.tables import gaussian_scalar, truncated_scalar
from tfcactus import accounting
from tfcactus.accounting import Composition, PhiAccountant
from tfcactus.pairs.dominating_pair import DominatingPair, PairBounds

ADD_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE
ZERO_OUT = dp_accounting.NeighboringRelation.REPLACE_SPECIAL


def fixed(event, taken=1, total=10):
  return dp_accounting.SampledWithoutReplacementDpEvent(total, taken, event)


GAUSSIAN = dp_accounting.GaussianDpEvent(2.0)


def test_replace_needs_shift_two():
  """sigma 2, q .1, 200 steps, the concrete pair mixes N(-1), N(0) and N(1).

  A record worth -1 replaced by one worth +1: the sum is N(0) unless it is
  sampled. That pair attains 6.54 where shift one would report 3.36.
  """
  step = np.linspace(-24, 24, 8_001)
  def cells(mean):
    return np.diff(stats.norm.cdf(step, mean, 2.0))
  p = 0.9 * cells(0) + 0.1 * cells(1)
  q = 0.9 * cells(0) + 0.1 * cells(-1)
  attained = Composition([(PairBounds.exact(
      DominatingPair.from_masses(p / p.sum(), q / q.sum())), 200)]).epsilon(1e-5)
  assert attained.estimate == pytest.approx(6.54, abs=0.01)
  shift_one = PhiAccountant().compose(dp_accounting.PoissonSampledDpEvent(
      0.1, GAUSSIAN), 200).get_epsilon(1e-5)
  assert shift_one == pytest.approx(3.36, abs=0.01)
  poisson = PhiAccountant(REPLACE).compose(dp_accounting.PoissonSampledDpEvent(
      0.1, GAUSSIAN), 200).epsilon_bounds(1e-5)
  assert poisson.lower <= attained.upper and attained.lower <= poisson.upper
  assert poisson.upper == pytest.approx(attained.estimate, rel=1e-3)
  # Fixed-size sampling of one in ten, records replaced: accounted at shift 2.
  claimed = PhiAccountant(REPLACE).compose(fixed(GAUSSIAN), 200).get_epsilon(1e-5)
  assert claimed >= attained.lower


def test_fixed_size_add_remove_is_poisson_at_shift_two():
  one = PhiAccountant().compose(fixed(GAUSSIAN), 50).epsilon_bounds(1e-5)
  other = PhiAccountant().compose(dp_accounting.PoissonSampledDpEvent(
      0.1, dp_accounting.GaussianDpEvent(1.0)), 50).epsilon_bounds(1e-5)
  assert one.estimate == pytest.approx(other.estimate, rel=1e-12)


def test_fixed_size_replace_is_above_both_directions():
  event = fixed(accounting.NoiseTableDpEvent(gaussian_scalar()))
  both = PhiAccountant().compose(event, 50).epsilon_bounds(1e-5)
  replace = PhiAccountant(REPLACE).compose(event, 50).epsilon_bounds(1e-5)
  assert replace.upper >= both.lower


def test_a_sample_of_the_whole_data_set_is_no_sampling():
  for relation in (ADD_REMOVE, REPLACE):
    whole = PhiAccountant(relation).compose(fixed(GAUSSIAN, 10)).get_epsilon(1e-5)
    plain = PhiAccountant(REPLACE).compose(GAUSSIAN).get_epsilon(1e-5)
    assert whole == pytest.approx(plain, rel=1e-9)


@pytest.mark.parametrize('event', [
    fixed(GAUSSIAN, 11, 10), fixed(GAUSSIAN, -1, 10), fixed(GAUSSIAN, 0, 0),
    fixed(dp_accounting.PoissonSampledDpEvent(0.5, GAUSSIAN)),
    dp_accounting.PoissonSampledDpEvent(0.5, fixed(GAUSSIAN)),
    fixed(accounting.DominatingPairDpEvent(
        DominatingPair.from_masses([.5, .5], [.4, .6]))),
])
def test_events_without_an_account_are_refused(event):
  assert not PhiAccountant().supports(event)


def test_pairs_of_replaced_records_are_not_sampled():
  """Pairs for replaced or zeroed records only cannot be sampled."""
  pair = DominatingPair.from_masses([.5, .5], [.4, .6])
  sampled = [lambda event: dp_accounting.PoissonSampledDpEvent(0.5, event), fixed]
  for relation, refused in ((REPLACE, sampled[:1]), (ZERO_OUT, sampled)):
    event = accounting.DominatingPairDpEvent(pair, relation)
    assert PhiAccountant(relation).supports(event)
    for sample in refused:
      assert not PhiAccountant(relation).supports(sample(event))
  with pytest.raises(dp_accounting.UnsupportedEventError, match='Poisson'):
    PhiAccountant(REPLACE).compose(dp_accounting.PoissonSampledDpEvent(
        0.5, accounting.randomized_response_event(0.5, 2)))


@pytest.mark.parametrize('event', [
    GAUSSIAN, dp_accounting.LaplaceDpEvent(2.0),
    accounting.NoiseTableDpEvent(truncated_scalar())])
def test_a_zeroed_record_costs_what_a_removed_one_does(event):
  """The two laws are the same without sampling and under Poisson sampling."""
  for sampled in (event, dp_accounting.PoissonSampledDpEvent(0.1, event)):
    for direction in ('add', 'remove', 'both'):
      zeroed, removed = (
          PhiAccountant(relation, direction=direction).compose(
              sampled, 40).epsilon_bounds(0.1) for relation in (
                  ZERO_OUT, ADD_REMOVE))
      assert zeroed == removed
  whole = PhiAccountant(ZERO_OUT).compose(fixed(event, 10)).delta_bounds(1.0)
  assert whole == PhiAccountant(ADD_REMOVE).compose(event).delta_bounds(1.0)


def test_samples_of_samples_under_replace():
  twice = dp_accounting.PoissonSampledDpEvent(
      0.2, dp_accounting.PoissonSampledDpEvent(0.5, GAUSSIAN))
  once = dp_accounting.PoissonSampledDpEvent(0.1, GAUSSIAN)
  got, want = (PhiAccountant(REPLACE).compose(event, 3).delta_bounds(0.2)
               for event in (twice, once))
  assert got == want


def test_two_gaussians_of_one_sample_are_one_under_replace():
  both = dp_accounting.ComposedDpEvent([GAUSSIAN, GAUSSIAN])
  joint = dp_accounting.GaussianDpEvent(math.sqrt(2.0))
  got, want = (PhiAccountant(REPLACE).compose(
      dp_accounting.PoissonSampledDpEvent(0.1, event), 5).delta_bounds(0.3)
               for event in (both, joint))
  assert got == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize('kind', [
    accounting.TCDPAccountant, accounting.PrivacyBucketsAccountant])
def test_other_accountants_take_the_relations(kind):
  """Each accountant with finite divergences is above the exact epsilon."""
  event = dp_accounting.PoissonSampledDpEvent(0.1, accounting.NoiseTableDpEvent(
      gaussian_scalar(bins=5, cells=20)))
  for relation in (ZERO_OUT, REPLACE):
    exact = PhiAccountant(relation).compose(event, 20).epsilon_bounds(1e-4)
    assert math.inf > kind(relation).compose(event, 20).get_epsilon(
        1e-4) >= exact.lower


def test_randomised_response():
  """Binary response kept with .75 has a pure epsilon of log 3 for replaced records."""
  event = accounting.randomized_response_event(0.5, 2)
  assert not PhiAccountant().supports(event)
  one = PhiAccountant(REPLACE).compose(event)
  assert one.get_epsilon(1e-9) == pytest.approx(math.log(3), abs=1e-6)
  bounds = one.delta_bounds(0.5)
  exact = 0.75 - math.exp(0.5) * 0.25
  assert bounds.lower <= exact <= bounds.upper
  assert bounds.upper - bounds.lower < 1e-6
  with pytest.raises(ValueError, match='num_buckets'):
    accounting.randomized_response_event(0.5, 1)
  with pytest.raises(ValueError, match='num_buckets <= 9007199254740992'):
    accounting.randomized_response_event(0.5, 10**400)
  with pytest.raises(ValueError, match='noise_parameter'):
    accounting.randomized_response_event(0.0, 2)


def test_discrete_pairs_are_events():
  pair = DominatingPair.from_masses([0.6, 0.4], [0.4, 0.6])
  event = dp_accounting.PoissonSampledDpEvent(
      0.5, accounting.DominatingPairDpEvent(pair))
  got = PhiAccountant().compose(event, 3).delta_bounds(0.1)
  mixed = 0.5 * pair.p + 0.5 * pair.q
  worst = 0.0
  for p, q in ((pair.p, mixed), (mixed, pair.p)):
    total = 0.0
    for index in np.ndindex(2, 2, 2):
      a = math.prod(p[i] for i in index)
      b = math.prod(q[i] for i in index)
      total += max(a - math.exp(0.1) * b, 0)
    worst = max(worst, total)
  assert got.lower <= worst <= got.upper
  assert got.upper - got.lower < 1e-4


class _PlainDpEvent(accounting.SteppedDpEvent):
  """Randomised response, as a plain class, which does not say what is equal."""

  proved_relations = (ADD_REMOVE,)

  def __init__(self, keep):
    object.__setattr__(self, 'keep', keep)

  def pair_bounds(self, relation, direction):
    del relation, direction
    masses = [self.keep, 1 - self.keep]
    return accounting.PairBounds.exact(DominatingPair.from_masses(masses, masses[::-1]))


@attr.s(frozen=True, auto_attribs=True)
class _OuterDpEvent(accounting.SteppedDpEvent):
  """A scheme that holds the event of a pair."""

  inner: accounting.DominatingPairDpEvent

  proved_relations = (ADD_REMOVE,)

  def pair_bounds(self, relation, direction):
    del relation, direction
    return self.inner.bounds


@pytest.mark.parametrize('make', [
    lambda pair: accounting.DominatingPairDpEvent(pair),
    lambda pair: _OuterDpEvent(accounting.DominatingPairDpEvent(pair)),
    lambda pair: _PlainDpEvent(float(np.max(pair.p)))])
def test_events_of_different_pairs_are_different(make):
  """They once were equal: the second counted as the first, or was missing."""
  cheap, dear = (make(DominatingPair.from_masses([p, 1 - p], [1 - p, p]))
                 for p in (0.51, 0.9))
  assert cheap != dear and cheap == cheap and len({cheap, dear}) == 2
  accountant = PhiAccountant().compose(cheap).compose(dear)
  assert accountant.get_epsilon(1e-9) == pytest.approx(math.log(0.51 / 0.49 * 9))
  assert accountant.ledger == dp_accounting.ComposedDpEvent([cheap, dear])


def test_truncated_noise_keeps_its_mass_at_infinity_when_removed():
  table = truncated_scalar()
  base = accounting.dominating_pair(table).upper
  event = dp_accounting.PoissonSampledDpEvent(
      0.01, accounting.NoiseTableDpEvent(table))
  beyond = 1 - (1 - 0.01 * base.p_inf)**20
  remove = PhiAccountant(direction='remove').compose(event, 20)
  assert remove.get_delta(50.0) == pytest.approx(beyond, rel=1e-6)
  assert remove.get_epsilon(0.9 * beyond) == math.inf
  add = PhiAccountant(direction='add').compose(event, 20)
  assert add.get_epsilon(0.9 * beyond) < 1


def test_noise_that_never_overlaps_protects_nothing():
  """The truncated noise is narrower than the sensitivity."""
  table = truncated_scalar(bins=10, cells=3)
  accountant = PhiAccountant().compose(accounting.NoiseTableDpEvent(table))
  assert accountant.get_epsilon(0.5) == math.inf
  assert accountant.get_delta(3.0) == pytest.approx(1.0)


@pytest.mark.skipif(not hasattr(dp_accounting, 'RandomizedResponseDpEvent'),
                    reason='an event of dp_accounting 0.6')
def test_random_allocation_of_newer_dp_accounting_is_accepted():
  theirs = dp_accounting.RandomizedResponseDpEvent(0.5, 4)
  bounds = [
      PhiAccountant(REPLACE).compose(event, 20).epsilon_bounds(1e-5)
      for event in (theirs, accounting.randomized_response_event(0.5, 4))]
  assert bounds[0] == bounds[1]
  peer = pld.PLDAccountant(REPLACE)
  for _ in range(20):  # Its compose(event, 20) composes it once.
    peer.compose(theirs)
  assert bounds[0].upper == pytest.approx(peer.get_epsilon(1e-5), abs=1e-2)
  # 0 is outright disclosure there, and no noise here.
  silent = dp_accounting.RandomizedResponseDpEvent(0.0, 4)
  assert not PhiAccountant(REPLACE).supports(silent)
