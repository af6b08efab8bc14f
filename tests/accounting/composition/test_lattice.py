"""The lattice at extremes: overflowing or vanishing factors, pairs without losses."""

import math

import dp_accounting
import numpy as np
import pytest
from scipy.stats import norm

import tfcactus
from tfcactus import accounting
from tfcactus.accounting.bounds import Bounds
from tfcactus.accounting.composition import lattice as lattice_lib
from tfcactus.accounting.composition.lattice import Lattice
from tfcactus.noise import gaussian
from tfcactus.pairs.dominating_pair import PairBounds


@pytest.mark.parametrize('scale, steps, epsilons', [
    (1e-5, 1000, (1e-3,)),
    pytest.param(0.1, 10**6, (0.0, 1e-3, 1.0, 100.0, 1e5), marks=pytest.mark.more)])
@pytest.mark.more
def test_delta_of_losses_far_above_epsilon_is_not_below_one(scale, steps, epsilons):
  accountant = accounting.PhiAccountant().compose(
      dp_accounting.LaplaceDpEvent(scale), steps)
  for epsilon in epsilons:
    # The mean of the loss is many standard deviations above epsilon.
    assert accountant.delta_bounds(epsilon).upper >= 1 - 1e-12


def test_rare_losses_keep_delta_finite_where_factors_underflow():
  mu = 0.5409381658
  pair = accounting.continuous_pair(norm(0, 1), norm(mu, 1)).upper
  for prob, steps in ((0.01, 300), (0.001, 3000), (0.1, 100)):
    for side in pair.poisson(prob):
      bounds = Lattice([(PairBounds(side, side), steps)]).delta(8.0)
      assert 0 <= bounds.lower <= bounds.upper < 1e-9
      exact = accounting.PhiAccountant().compose(
          dp_accounting.PoissonSampledDpEvent(
              prob, dp_accounting.GaussianDpEvent(1 / mu)), steps).delta_bounds(8.0)
      # `pair` dominates the normal laws, and its delta is a little larger.
      assert bounds.lower <= exact.upper * (1 + 1e-4) + side.p_inf * steps


class _Unknown(accounting.PhiAccountant):
  """Accountant whose method returns nan instead of an error."""

  def _epsilon_bounds(self, part, delta):
    return Bounds(math.nan, math.nan, math.nan)

  def _delta_bounds(self, part, epsilon):
    return Bounds(math.nan, 0.0, math.nan)


def test_nan_is_never_taken_for_a_small_epsilon():
  accountant = _Unknown().compose(dp_accounting.GaussianDpEvent(1.0))
  assert accountant.epsilon_bounds(1e-5) == (0, math.inf, math.inf)
  assert accountant.delta_bounds(1.0) == (0, 1, 1)
  assert np.isinf(accountant.get_epsilon(1e-5))


@pytest.mark.parametrize('steps', [1, 3])
def test_a_lower_pair_without_losses_does_not_change_the_upper_bound(steps):
  nothing = np.zeros(0)
  pair = accounting.DominatingPair.from_masses([0.6, 0.3, 0.1], [0.2, 0.3, 0.5])
  lattice = Lattice([(PairBounds(accounting.DominatingPair(
      nothing, nothing, nothing), pair), steps)])
  exact = accounting.Composition([(PairBounds.exact(pair), steps)])
  for epsilon in (0.0, 0.4):
    truth, found = exact.delta(epsilon), lattice.delta(epsilon)
    assert found.lower == 0 and truth.lower <= found.upper <= truth.upper + 1e-4
  truth, found = exact.epsilon(0.01), lattice.epsilon(0.01)
  assert found.lower == 0 and truth.lower <= found.upper <= truth.upper + 1e-2


@pytest.mark.more
def test_bounds_stay_close_after_very_many_steps():
  table = tfcactus.library.get('monotone-chi2-budget4')
  accountant = accounting.PhiAccountant().compose(dp_accounting.PoissonSampledDpEvent(
      1e-4, accounting.noise_event(table)), 10**6)
  bounds = accountant.epsilon_bounds(1e-6)
  # The Gaussian of equal variance has an epsilon close to it.
  alike = accounting.PhiAccountant().compose(dp_accounting.PoissonSampledDpEvent(
      1e-4, dp_accounting.GaussianDpEvent(table.noise_multiplier)), 10**6)
  assert bounds.upper - bounds.lower < 2e-5
  assert bounds.upper == pytest.approx(alike.get_epsilon(1e-6), rel=0.05)


def test_allocation_to_very_many_batches_has_a_positive_delta():
  pair = gaussian.allocated_pair(1.0, 2**40, 'remove', 64)
  # E|L - 1| / 2 of a mean L of 2^40 lognormals, about normal.
  truth = math.sqrt((math.e - 1) / 2**40 / (2 * math.pi))
  assert accounting.Composition([(pair, 1)]).delta(0.0).upper > 0.99 * truth
  assert Lattice([(pair, 1)]).delta(0.0).upper > 0.99 * truth


def test_one_view_serves_deltas_at_many_epsilons(monkeypatch):
  made = []

  class Counted(lattice_lib._View):

    def __init__(self, *args):
      made.append(args)
      super().__init__(*args)

  monkeypatch.setattr(lattice_lib, '_View', Counted)
  pair = tfcactus.Gaussian(1.0).replaced_pair(0.05)
  epsilons = np.linspace(1.0, 3.0, 60)
  lattice = Lattice([(pair, 20)])
  found = [lattice.delta(float(epsilon)) for epsilon in epsilons]
  assert len(made) < 20
  for i in (3, 17, 44):
    alone = Lattice([(pair, 20)]).delta(float(epsilons[i]))
    assert alone.lower <= found[i].upper and found[i].lower <= alone.upper
    assert found[i].upper - found[i].lower <= 2 * (alone.upper - alone.lower)
  # Kept views answer the same questions once more, in any order.
  count = len(made)
  assert [lattice.delta(float(epsilon)) for epsilon in epsilons[::-1]] == found[::-1]
  assert len(made) == count
