"""Composition: brackets around exact answers, laws, reference values."""

import fractions
import math

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from tests.accounting.oracles import gaussian_delta, product_delta
from tests.accounting.reference_values import POINTS
from tests.noise.tables import gaussian_scalar, wavy_scalar
from tests.representatives import representatives
from tfcactus import accounting, noise
from tfcactus.accounting import Composition
from tfcactus.accounting.composition.losses import gaussian
from tfcactus.noise import library, scalar_table
from tfcactus.pairs.dominating_pair import DominatingPair, PairBounds


@pytest.mark.parametrize('steps', [1, 2, 3, 10, 1000])
@pytest.mark.parametrize('delta', [1e-3, 1e-6, 1e-10])
def test_composed_gaussians_are_one_gaussian(steps, delta):
  sigma = math.sqrt(steps)
  bounds = accounting.dominating_pair(noise.Gaussian(sigma))
  result = Composition([(bounds, steps)]).epsilon(delta)
  assert gaussian_delta(1, result.upper) <= delta * (1 + 1e-9)
  assert gaussian_delta(1, result.lower) >= delta * (1 - 1e-9)
  assert result.upper - result.lower < 1e-4
  at = Composition([(bounds, steps)]).delta(result.estimate)
  exact = gaussian_delta(1, result.estimate)
  assert at.lower <= exact <= at.upper
  assert at.upper - at.lower < 1e-3 * exact


@pytest.mark.parametrize('seed', range(6))
def test_random_discrete_pairs_against_enumeration(seed):
  rng = np.random.default_rng(seed)
  groups, listed = [], []
  for count in ([1], [2], [3], [2, 1], [1, 1, 1], [3])[seed]:
    p, q = rng.dirichlet(np.full(6, 0.7), 2)
    if seed % 2:
      p[0], q[1] = 0, 0
      p, q = p / p.sum(), q / q.sum()
    groups.append((PairBounds.exact(DominatingPair.from_masses(p, q)), count))
    listed += [(p, q)] * count
  composition = Composition(groups)
  for epsilon in (0.0, 0.3, 1.0, 2.5):
    result = composition.delta(epsilon)
    exact = product_delta(listed, epsilon)
    assert result.lower <= exact + 1e-12
    assert exact <= result.upper + 1e-12
    assert result.upper - result.lower < 1e-3
  delta = product_delta(listed, 0.7)
  if composition.p_inf[1] < delta < 1:
    result = composition.epsilon(delta)
    assert result.lower <= 0.7 + 1e-9 and 0.7 <= result.upper + 1e-9


@pytest.mark.parametrize('steps', [1, 2, 10, 1000])
def test_randomised_response_is_binomial(steps):
  """The sum of the losses has a binomial law."""
  keep = 0.6
  pair = DominatingPair.from_masses([keep, 1 - keep], [1 - keep, keep])
  composition = Composition([(PairBounds.exact(pair), steps)])
  loss = math.log(keep / (1 - keep))
  wins = np.arange(steps + 1)
  total = (2 * wins - steps) * loss
  mass = stats.binom.pmf(wins, steps, keep)
  for epsilon in (0.1, 1.0, 0.5 * steps * loss):
    exact = np.sum(mass * np.maximum(-np.expm1(epsilon - total), 0))
    result = composition.delta(epsilon)
    assert result.lower <= exact + 1e-12 and exact <= result.upper + 1e-12
    assert result.upper - result.lower < 1e-4


# 200-bit values of two independent inversions; add/remove, Poisson sampling.
@representatives('sigma, prob, steps, delta, epsilon', POINTS[:-1], 2)
def test_subsampled_gaussian_reference(sigma, prob, steps, delta, epsilon):
  sides = accounting.dominating_pair(noise.Gaussian(sigma)).poisson(prob)
  results = [Composition([(side, steps)]).epsilon(delta) for side in sides]
  lower = max(result.lower for result in results)
  upper = max(result.upper for result in results)
  assert lower <= epsilon <= upper
  assert max(result.estimate for result in results) == pytest.approx(
      epsilon, rel=1e-6)


@representatives('sigma, prob, steps, delta, epsilon', POINTS, 3)
def test_accountant_reaches_ten_digits(sigma, prob, steps, delta, epsilon):
  bounds = accounting.PhiAccountant().compose(dp_accounting.PoissonSampledDpEvent(
      prob, dp_accounting.GaussianDpEvent(sigma)), steps).epsilon_bounds(delta)
  assert bounds.lower <= epsilon <= bounds.upper
  assert bounds.upper - bounds.lower <= 1e-8
  assert bounds.estimate == pytest.approx(epsilon, rel=1e-10)


@representatives('log_density, remove, add', [
    (lambda z: -z, 21.2631855617133, 1.83019535962863),
    (lambda z: -z * z / 2, 2.78669593257670, 2.58427556860283)])
def test_table_reference(log_density, remove, add):
  """The values are independent 200-bit ones; n=200, N=1600, r=.9, q=.00417, k=14400."""
  table = noise.ScalarTable.normalized(
      200, log_density(np.arange(1601) / 200), math.log(0.9))
  sides = accounting.dominating_pair(table).poisson(0.00417)
  for side, expected in zip(sides, (add, remove)):
    result = Composition([(side, 14400)]).epsilon(1e-5)
    assert result.lower <= expected <= result.upper
    assert result.upper - result.lower < 1e-3


@pytest.fixture(scope='module')
def wavy():
  """Returns a table whose dominating pair is that of no single shift."""
  z = np.arange(1601) / 200
  return noise.ScalarTable.normalized(
      200, -z * z / 2 + np.log1p(.8 * np.cos(2 * np.pi * z)), math.log(0.9))


@pytest.mark.more
def test_envelope_reference(wavy):
  """The envelope of exp(-z^2/2)(1 + .8 cos 2 pi z) has an epsilon of 4.42774."""
  remove = accounting.dominating_pair(wavy).poisson(0.00417)[1]
  result = Composition([(remove, 14400)]).epsilon(1e-5)
  assert result.lower <= 4.42774 + 5e-6
  assert result.upper >= 4.42774 - 5e-6
  assert result.upper - result.lower < 1e-3


@representatives('cells', [140, 145, 150, 200])
@pytest.mark.more
def test_a_single_shift_lies_below_the_envelope(wavy, cells):
  shifted = PairBounds.exact(scalar_table.shifted_pair(wavy, cells).poisson(0.00417)[1])
  assert Composition([(shifted, 14400)]).delta(4.40).upper < 1e-5


@pytest.mark.more
def test_order_and_grouping_of_steps_do_not_matter():
  a = accounting.dominating_pair(gaussian_scalar()).poisson(0.02)[1]
  b = accounting.dominating_pair(wavy_scalar()).poisson(0.01)[1]
  def epsilon(groups, delta=1e-5):
    return Composition(groups).epsilon(delta)
  one = epsilon([(a, 300), (b, 200)])
  other = epsilon([(b, 200), (a, 300)])
  split = epsilon([(a, 100), (b, 200), (a, 200)])
  for result in (other, split):
    assert result.upper == pytest.approx(one.upper, abs=2e-5)
    assert result.lower == pytest.approx(one.lower, abs=2e-5)
  assert epsilon([(a, 300)]).lower <= one.upper
  assert epsilon([(a, 300)]).upper <= one.lower
  assert epsilon([(a, 299)]).upper <= epsilon([(a, 300)]).upper + 1e-6
  assert epsilon([(a, 300)], 1e-6).lower > epsilon([(a, 300)], 1e-5).upper
  curve = [Composition([(a, 300)]).delta(e).upper for e in (0.2, 0.5, 1.0)]
  assert curve[0] > curve[1] > curve[2]


def test_delta_equal_to_the_mass_at_infinity_needs_all_finite_losses():
  rare = DominatingPair.from_masses([0.6 - 1e-5, 0.4, 1e-5], [0.4, 0.6, 0.0])
  many = DominatingPair.from_masses(*np.random.default_rng(0).dirichlet(np.ones(60), 2))
  found = Composition([
      (PairBounds.exact(rare), 1), (PairBounds.exact(many), 30)]).epsilon(1e-5)
  largest = np.max(rare.loss) + 30 * np.max(many.loss)
  assert 100 < found.lower <= largest <= found.upper < 1.0001 * largest


def test_delta_below_the_mass_at_infinity_is_infinite():
  pair = DominatingPair.from_masses([0.1, 0.9, 0], [0, 0.9, 0.1])
  composition = Composition([(PairBounds.exact(pair), 2)])
  assert composition.p_inf[0] == pytest.approx(0.19)
  assert composition.epsilon(0.18).upper == math.inf
  assert composition.epsilon(0.2).upper == pytest.approx(0, abs=1e-9)


def test_small_delta_is_not_lost_in_rounding():
  """FFT accountants without a tilt report 3.4152 here; the truth is 3.51718."""
  bounds = accounting.PhiAccountant().compose(dp_accounting.PoissonSampledDpEvent(
      0.001, dp_accounting.GaussianDpEvent(0.9)), 100_000).epsilon_bounds(1e-12)
  assert bounds.estimate == pytest.approx(3.51718, abs=5e-6)
  assert bounds.upper - bounds.lower < 1e-8


@representatives('sigma, prob, steps, delta', [
    (1, 1e-4, 15_000, 1e-10), (1, 1e-4, 15_000, 1e-12), (1, 1e-4, 1000, 1e-10),
    (.8, 1e-4, 15_000, 1e-12), (1, .01, 20, 1e-6), (50, .5, 10, 1e-5),
    (.05, 1, 5, 1e-5), (1, 1, 10**6, 1e-5)], 3)
def test_gaussians_far_from_the_usual_have_tight_bounds(sigma, prob, steps, delta):
  accountant = accounting.PhiAccountant().compose(
      dp_accounting.PoissonSampledDpEvent(
          prob, dp_accounting.GaussianDpEvent(sigma)), steps)
  bounds = accountant.epsilon_bounds(delta)
  assert bounds.lower <= bounds.estimate <= bounds.upper
  assert bounds.upper - bounds.lower < 2e-4 * (1 + bounds.upper)
  at = accountant.delta_bounds(bounds.estimate)
  assert at.lower <= delta * (1 + 1e-3) and at.upper >= delta * (1 - 1e-3)


@pytest.mark.parametrize('epsilon', [0.0, 5.0, 800.0])
def test_delta_far_out_is_a_number(epsilon):
  for sigma, prob, steps in ((1, 1, 1), (1, .004, 3600), (.3, .5, 100)):
    bounds = accounting.PhiAccountant().compose(
        dp_accounting.PoissonSampledDpEvent(
            prob, dp_accounting.GaussianDpEvent(sigma)), steps
    ).delta_bounds(epsilon)
    assert 0 <= bounds.lower <= bounds.estimate <= bounds.upper <= 1


def test_large_epsilon_has_a_lower_bound():
  table = gaussian_scalar(sigma=0.2, bins=10, cells=40)
  bounds = Composition(
      [(accounting.dominating_pair(table), 400)]).epsilon(1e-5)
  assert bounds.lower > 700
  assert bounds.upper - bounds.lower < 1


def test_upper_pairs_lose_no_mass():
  for law in (noise.Gaussian(0.05), noise.Gaussian(1.0), noise.Laplace(0.1)):
    pair = accounting.dominating_pair(law).upper
    assert np.sum(pair.p) + pair.p_inf >= 1 - 1e-13
    assert np.sum(pair.q) + pair.q_inf >= 1 - 1e-13


def test_lower_bounds_stay_below_what_is_possible():
  """Randomised response with a loss of five has no epsilon above five."""
  keep = 1 / (1 + math.exp(-5))
  pair = PairBounds.exact(DominatingPair.from_masses(
      [keep, 1 - keep], [1 - keep, keep]))
  for steps in (1, 100):
    bounds = Composition([(pair, steps)]).epsilon(1e-15)
    assert bounds.lower <= 5 * steps <= bounds.upper + 1e-9


@pytest.mark.more
def test_lattice_and_buckets_agree_on_random_pairs():
  """Lattice and buckets share no arithmetic, and their bounds overlap."""
  for seed in range(4):
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(int(rng.integers(300, 1500)), 2.0), 2)
    event = dp_accounting.PoissonSampledDpEvent(
        float(rng.uniform(0.003, 0.05)),
        accounting.DominatingPairDpEvent(DominatingPair.from_masses(p, q)))
    steps, delta = int(rng.integers(500, 6000)), 10.0**-rng.integers(2, 6)
    one, other = (accountant.compose(event, steps).epsilon_bounds(delta)
                  for accountant in (accounting.PhiAccountant(),
                                     accounting.PrivacyBucketsAccountant()))
    assert one.lower <= other.upper + 1e-9
    assert other.lower <= one.upper + 1e-9
    assert one.upper - one.lower < 1e-5 * (1 + one.upper)


def test_epsilon_is_never_below_where_delta_is_next_to_its_value_at_zero():
  """The deltas are within the error of delta at epsilon zero."""
  for sigma, prob in ((0.05, 1e-7), (1.0, 0.5), (0.3, 1.0), (100.0, 1.0)):
    accountant = accounting.PhiAccountant(direction='remove').compose(
        dp_accounting.PoissonSampledDpEvent(
            prob, dp_accounting.GaussianDpEvent(sigma)))
    at = accountant.delta_bounds(0.0)
    for delta in (at.lower, at.estimate, at.upper):
      bounds = accountant.epsilon_bounds(delta)
      assert accountant.delta_bounds(bounds.upper).upper <= delta
      # Where delta hardly falls at first, one next to it may be reached far away.
      assert bounds.lower == 0 or (
          accountant.delta_bounds(bounds.lower).upper >= delta)


@pytest.mark.parametrize('steps', [2, 5, 30])
def test_few_rare_steps_of_a_table_have_close_bounds(steps):
  """The lattice is fine enough for an epsilon that is next to zero."""
  event = dp_accounting.PoissonSampledDpEvent(
      250 / 60000, accounting.noise_event(library.get('cactus-budget0.25')))
  bounds = accounting.PhiAccountant().compose(event, steps).epsilon_bounds(1e-5)
  assert bounds.upper - bounds.lower <= 2e-5 * bounds.upper


@pytest.mark.parametrize('delta', [5e-324, 1e-320, 2e-308])
@pytest.mark.parametrize('prob', [1.0, 0.1])
def test_deltas_next_to_the_least_number_have_bounds(delta, prob):
  event = dp_accounting.GaussianDpEvent(1.0)
  if prob < 1:
    event = dp_accounting.PoissonSampledDpEvent(prob, event)
  bounds = accounting.PhiAccountant().compose(event).epsilon_bounds(delta)
  # At 1e-300 it is 37.4 without sampling, 35.0 with it.
  assert bounds.lower < 39 and bounds.upper > 35


@pytest.mark.parametrize('delta', [1e-30, 1e-100, 1e-300])
@pytest.mark.parametrize('steps', [2, 30])
def test_pure_privacy_is_kept_at_any_delta(delta, steps):
  accountant = accounting.PhiAccountant().compose(
      dp_accounting.LaplaceDpEvent(1.0), steps)
  assert accountant.get_epsilon(delta) <= steps * (1 + 1e-3)


@pytest.mark.parametrize('prob', [0.999999, 1 - 2.0**-30, 1 - 2.0**-50])
@pytest.mark.parametrize('epsilon', [5.0, 12.0])
def test_bounds_hold_where_nearly_everything_is_sampled(prob, epsilon):
  p, q = [0.65, 0.35], [2.0**-40, 1 - 2.0**-40]
  event = dp_accounting.PoissonSampledDpEvent(
      prob, accounting.DominatingPairDpEvent(DominatingPair.from_masses(p, q)))
  bounds = accounting.PhiAccountant(direction='add').compose(event).delta_bounds(
      epsilon)
  s = fractions.Fraction(prob)
  mixed = [float((1 - s) * fractions.Fraction(a) + s * fractions.Fraction(b))
           for a, b in zip(p, q)]
  truth = sum(max(a - math.exp(epsilon) * b, 0.0) for a, b in zip(p, mixed))
  assert bounds.lower <= truth <= bounds.upper


def test_more_steps_cost_no_less_than_one_with_very_little_noise():
  """A bound on phi was too small, which cut an integral short."""
  little, much = (dp_accounting.PoissonSampledDpEvent(
      prob, dp_accounting.GaussianDpEvent(sigma))
                  for prob, sigma in ((0.3, 1 / 45), (0.01, 50.0)))
  accountant = accounting.PhiAccountant().compose(little)
  alone = accountant.delta_bounds(1100.0)  # In closed form.
  assert accountant.compose(much, 3).delta_bounds(1100.0).upper >= alone.lower


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('epsilon', [5e-324, 1e-300, 1e16, 1e155, 1.7e308])
@pytest.mark.parametrize('rows', [1, 3])
@pytest.mark.parametrize('event', [
    dp_accounting.GaussianDpEvent(1e8), dp_accounting.GaussianDpEvent(1e-6),
    dp_accounting.LaplaceDpEvent(1.0),
    dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0))])
def test_tiny_and_huge_epsilons_have_bounds(event, rows, epsilon):
  """Laplace noise and several rows raised OverflowError; Gaussian noise warned."""
  found = accounting.PhiAccountant(rows_of_one=rows).compose(event)
  lower, _, upper = found.delta_bounds(epsilon)
  assert lower <= upper <= 1
  assert epsilon < 1 or (lower == 0 and upper < 1e-13)


def test_delta_of_the_largest_shifts_falls_at_the_right_epsilon():
  """Delta is one up to about mu^2 / 2, and then zero."""
  for sigma in (1e-80, 1e-6):
    found = accounting.PhiAccountant().compose(dp_accounting.GaussianDpEvent(sigma))
    assert found.delta_bounds(0.49 / sigma**2).lower > 0.99
    assert found.delta_bounds(0.51 / sigma**2).upper < 1e-300


def test_misuse_is_refused_in_words():
  """An infinite order searched without end; rows of zero divided by zero."""
  pair = DominatingPair.from_masses([0.9, 0.1], [0.1, 0.9])
  with pytest.raises(ValueError, match='PairBounds.exact'):
    Composition([(pair, 1)])
  composed = Composition([(PairBounds.exact(pair), 3)])
  for rows in (0, -1, 1.5):
    with pytest.raises(ValueError, match='rows'):
      composed.repeated(rows)
  sampled = Composition([(accounting.StepLoss(
      lambda cells: None, gaussian.GaussianLoss(1.0, 0.01, 'add')), 1)])
  for order in (math.inf, math.nan, 0.0, 1.0):
    with pytest.raises(ValueError, match='order'):
      sampled.renyi_divergence(order)
