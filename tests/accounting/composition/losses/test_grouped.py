"""Several rows of one person in a sampled Gaussian, against independent numbers."""

import dp_accounting
import numpy as np
import pytest
from scipy import integrate, stats

from tests.representatives import representatives
from tfcactus import accounting
from tfcactus.accounting.composition.composition import Composition, StepLoss
from tfcactus.accounting.composition.losses.gaussian import GaussianLoss
from tfcactus.accounting.composition.losses.grouped import GroupedGaussian
from tfcactus.pairs import groups

# (rows, sampling probability, noise multiplier, steps, delta, epsilon to 1e-9): by a
# Mellin contour at two abscissas.
TABLE = [
    (2, 250 / 60000, 1.3, 3600, 1e-5, 1.834589395),
    (5, 250 / 60000, 1.3, 3600, 1e-5, 5.205511763),
    (10, 250 / 60000, 1.3, 3600, 1e-5, 12.003683261),
    (20, 250 / 60000, 1.3, 3600, 1e-5, 29.629255645),
    (2, .01, 1, 2000, 1e-6, 6.432599930),
    (4, .01, 1, 2000, 1e-6, 14.534976382),
    (8, .01, 1, 2000, 1e-6, 34.890695620),
    (4, .001, .7, 10_000, 1e-6, 6.242385801),
    (3, .2, 1, 1, 1e-5, 8.603651550),
    (100, .001, 5, 1000, 1e-6, 3.000223109),
]


def accountant(event, rows, count=1, **settings):
  found = accounting.PhiAccountant(rows_of_one=rows, **settings)
  return found.compose(event, count)


def poisson(prob, std):
  return dp_accounting.PoissonSampledDpEvent(prob, dp_accounting.GaussianDpEvent(std))


@representatives('rows, prob, std, steps, delta, epsilon', TABLE)
def test_table(rows, prob, std, steps, delta, epsilon):
  lower, _, upper = accountant(poisson(prob, std), rows, steps).epsilon_bounds(delta)
  assert lower - 1e-9 <= epsilon <= upper + 1e-9
  assert upper - lower <= 1e-8 * upper


@pytest.mark.parametrize('direction', ['remove', 'add'])
@pytest.mark.parametrize('deviations', [-1.0, 0.0, 2.0])
def test_brackets_hold_where_e_to_the_epsilon_is_no_float(deviations, direction):
  # Always in the sample, three rows are one shift by three times as much.
  shift = 40.0
  epsilon = 0.5 * (3 * shift)**2 + 3 * shift * deviations
  value, error = GroupedGaussian.of(
      shift, groups.poisson_weights(3, 1.0), direction).delta(epsilon)
  exact, exact_error = GaussianLoss(3 * shift, 1.0, direction).delta(epsilon)
  assert abs(value - exact) <= error + exact_error <= 1e-9


@pytest.mark.parametrize('direction', ['remove', 'add'])
@representatives('rows, prob, shift', [(2, .3, .5), (5, .05, 1.5), (9, .6, .2)])
def test_one_release_is_an_integral(rows, prob, shift, direction):
  loss = GroupedGaussian.of(shift, groups.poisson_weights(rows, prob), direction)
  weights = stats.binom(rows, prob).pmf(np.arange(rows + 1))
  for epsilon in (0.0, 0.1, 0.7):
    def gain(y, epsilon=epsilon):
      q = stats.norm.pdf(y)
      p = float(weights @ stats.norm.pdf(y - shift * np.arange(rows + 1)))
      one, other = (p, q) if direction == 'remove' else (q, p)
      return max(one - np.exp(epsilon) * other, 0.0)

    exact = integrate.quad(gain, -12, 12 + rows * shift, limit=500, epsabs=1e-13)[0]
    value, error = loss.delta(epsilon)
    assert abs(value - exact) <= error + 1e-9 and error <= 1e-12
    pair = loss.pair_bounds(1 << 12)
    assert pair.lower.hockey_stick(epsilon) <= value + 1e-12
    assert value <= pair.upper.hockey_stick(epsilon) + 1e-12


@pytest.mark.parametrize('direction', ['remove', 'add'])
def test_one_row_is_the_subsampled_gaussian(direction):
  one = GroupedGaussian.of(0.8, groups.poisson_weights(1, 0.02), direction)
  found, wanted = (Composition([(accounting_step(loss), 50)]).epsilon(1e-6)
                   for loss in (one, GaussianLoss(0.8, 0.02, direction)))
  assert found.upper == pytest.approx(wanted.upper, rel=1e-8)


def accounting_step(loss):
  return StepLoss(lambda cells: None, loss)


@pytest.mark.parametrize('rows, size, total, steps', [(4, 10, 1000, 200), (3, 5, 8, 2)])
def test_added_rows_under_samples_of_fixed_size(rows, size, total, steps):
  """The mixture is hypergeometric, of shifts by twice the rows; and larger than one."""
  event = dp_accounting.SampledWithoutReplacementDpEvent(
      total, size, dp_accounting.GaussianDpEvent(2.0))
  found = accountant(event, rows, steps).epsilon_bounds(1e-5)
  loss = GroupedGaussian.of(
      1.0, groups.fixed_size_weights(rows, size, total), 'remove')
  assert found.upper == pytest.approx(
      Composition([(accounting_step(loss), steps)]).epsilon(1e-5).upper, rel=1e-7)
  assert found.upper > accountant(event, 1, steps).get_epsilon(1e-5)


def test_what_was_refuted_is_refused_in_words():
  event = dp_accounting.SampledWithoutReplacementDpEvent(
      10, 8, dp_accounting.GaussianDpEvent(2.0))
  with pytest.raises(ValueError, match='samples of fixed size'):
    accountant(event, 3).get_epsilon(1e-5)


def test_rows_without_sampling_shift_by_their_number():
  three, one = (accountant(dp_accounting.GaussianDpEvent(std), rows).get_epsilon(1e-5)
                for std, rows in ((6.0, 3), (2.0, 1)))
  assert three == pytest.approx(one)


@pytest.mark.parametrize('rows', [0, -1, 1.5, True, None, 1001, 10**9])
def test_bad_numbers_of_rows(rows):
  with pytest.raises(ValueError, match='rows_of_one'):
    accounting.PhiAccountant(rows_of_one=rows)


# (rows, sampling probability, noise multiplier, steps, delta, spacing of its grid).
PEER = [(3, .2, 1.0, 1, 1e-5, 1e-2), (3, 1.0, 9.0, 5, 1e-5, 1e-3),
        (4, .01, 1.0, 20, 1e-6, 5e-3)]


@representatives('rows, prob, std, steps, delta, spacing', PEER)
def test_between_the_bounds_of_dp_accounting(rows, prob, std, steps, delta, spacing):
  """Its mixture of Gaussians has bounds on a grid, from above and from below."""
  if not hasattr(dp_accounting.pld.privacy_loss_distribution,
                 'from_mixture_gaussian_mechanism'):
    pytest.skip('an older dp_accounting, which has no mixtures of Gaussians')
  weights = stats.binom(rows, prob).pmf(np.arange(rows + 1))
  below, above = (
      dp_accounting.pld.privacy_loss_distribution.from_mixture_gaussian_mechanism(
          std, np.arange(rows + 1.0), weights, pessimistic_estimate=pessimistic,
          value_discretization_interval=spacing, use_connect_dots=pessimistic
      ).self_compose(steps).get_epsilon_for_delta(delta)
      for pessimistic in (False, True))
  found = accountant(poisson(prob, std), rows, steps).epsilon_bounds(delta)
  assert below - 1e-9 <= found.lower <= found.upper <= above + 1e-9
  assert above - found.lower <= steps * spacing
