"""The lattice where factors leave the range of numbers."""

import math

import dp_accounting
import numpy as np
import pytest
from scipy.stats import norm

from tfcactus import accounting
from tfcactus.accounting.bounds import Bounds
from tfcactus.accounting.composition.lattice import Lattice
from tfcactus.pairs.dominating_pair import PairBounds


@pytest.mark.parametrize('scale, steps, epsilons', [
    (0.1, 10**6, (0.0, 1e-3, 1.0, 100.0, 1e5)), (1e-5, 1000, (1e-3,))])
def test_delta_of_losses_far_above_epsilon_is_not_below_one(scale, steps, epsilons):
  accountant = accounting.PhiAccountant().compose(
      dp_accounting.LaplaceDpEvent(scale), steps)
  for epsilon in epsilons:
    # The mean of the loss is many deviations above: one but for what nobody sees.
    assert accountant.delta_bounds(epsilon).upper >= 1 - 1e-12


def test_a_product_that_is_nothing_but_for_rare_losses_is_a_number():
  mu = 0.5409381658
  pair = accounting.continuous_pair(norm(0, 1), norm(mu, 1)).upper
  for prob, steps in ((0.01, 300), (0.001, 3000), (0.1, 100)):
    for side in pair.poisson(prob):
      bounds = Lattice([(PairBounds(side, side), steps)]).delta(8.0)
      assert 0 <= bounds.lower <= bounds.upper < 1e-9
      exact = accounting.PhiAccountant().compose(
          dp_accounting.PoissonSampledDpEvent(
              prob, dp_accounting.GaussianDpEvent(1 / mu)), steps).delta_bounds(8.0)
      assert bounds.lower <= exact.upper * (1 + 1e-6) + side.p_inf * steps


class _Unknown(accounting.PhiAccountant):
  """An accountant whose method fails in a way that it does not tell."""

  def _epsilon_bounds(self, part, delta):
    return Bounds(math.nan, math.nan, math.nan)

  def _delta_bounds(self, part, epsilon):
    return Bounds(math.nan, 0.0, math.nan)


def test_what_is_no_number_is_never_taken_for_a_small_one():
  accountant = _Unknown().compose(dp_accounting.GaussianDpEvent(1.0))
  assert accountant.epsilon_bounds(1e-5) == (0, math.inf, math.inf)
  assert accountant.delta_bounds(1.0) == (0, 1, 1)
  assert np.isinf(accountant.get_epsilon(1e-5))
