"""Composed power curves: exact where they are known, and above exact groups."""

import dp_accounting
import numpy as np
import pytest
from scipy import optimize, stats

from tests.accounting.composition.losses.test_grouped import accountant, poisson
from tests.representatives import representatives
from tfcactus import accounting
from tfcactus.accounting.bounds import Bounds
from tfcactus.accounting.composition.repeated import Lines, lower_lines, Repeated
from tfcactus.pairs.dominating_pair import DominatingPair

# (rows, sampling probability, noise multiplier, steps, delta, epsilon of the exact
# account, epsilon of the composed power curve on a coarse grid, from above).
TABLE = [(2, .01, 1, 2000, 1e-6, 6.4326, 6.5787), (3, .2, 1, 1, 1e-5, 8.6037, 9.8876),
         (5, 250 / 60000, 1.3, 3600, 1e-5, 5.2055, 5.2495),
         (4, .001, .7, 10_000, 1e-6, 6.2424, 10.4208)]


@representatives('rows, prob, std, steps, delta, exact, above', TABLE)
def test_above_exact_and_below_a_coarse_grid(
    rows, prob, std, steps, delta, exact, above):
  found = accountant(poisson(prob, std), rows, steps, sampled_alike=False)
  lower, _, upper = found.epsilon_bounds(delta)
  assert exact < lower <= upper <= above + 5e-5
  assert upper - lower <= 2e-6 * upper


class OfPair:
  """A pair as an account of one row."""

  def __init__(self, pair):
    self.pair = pair

  def epsilon(self, delta):
    # Halves the range of a grid of 40,001 values: the hockey stick falls with epsilon.
    grid = np.append(np.linspace(0, 40, 40_001), np.inf)
    low, high = 0, len(grid) - 1
    while low < high:
      middle = (low + high) // 2
      if self.pair.hockey_stick(grid[middle]) <= delta:
        high = middle
      else:
        low = middle + 1
    return Bounds(*[grid[low]] * 3)

  def delta(self, epsilon):
    return Bounds(*[self.pair.hockey_stick(epsilon)] * 3)


def power(pair, level, rows):
  """Returns the power curve of `pair`, applied `rows` times."""
  order = np.argsort(-pair.loss)
  x = np.append(0.0, np.cumsum(pair.q[order]))
  y = pair.p_inf + np.append(0.0, np.cumsum(pair.p[order]))
  for _ in range(rows):
    level = np.interp(level, x, y)
  return level


@pytest.mark.parametrize('rows', [2, 3, 7])
def test_brackets_the_power_curve_of_discrete_pairs(rows):
  rng = np.random.default_rng(rows)
  level = np.geomspace(1e-60, 1, 400_001)
  for _ in range(10):
    p, q = rng.dirichlet(np.ones(5), 2)
    if rng.random() < 0.5:
      q = np.append(q, 0.0)
      p = np.append(p, 0.001) / 1.001
    pair = DominatingPair.from_masses(p, q)
    one = Repeated(OfPair(pair), rows, pair.p_inf)
    for delta in (1e-4, 1e-2, 0.1):
      lower, _, upper = one.epsilon(delta)
      value = power(pair, level, rows)
      if power(pair, 0.0, rows) > delta:
        assert upper == np.inf
        continue
      # On a grid of levels the largest ratio is slightly less.
      exact = max(np.log(np.max((value - delta) / level).clip(1e-300)), 0.0)
      assert lower <= exact + 1e-3 and exact <= upper + 1e-9


def test_lower_lines_are_below_where_delta_is_known_worse_than_infinite_losses():
  # delta is 1e-5 wherever e^x is above 1 - 1e-5.
  lines = lower_lines(np.array([0.0, 1.0]), np.array([5e-6, 1e-5]), np.full(2, 1e-5),
                      1e-5)
  assert lines(np.array([0.5])) <= (1 - 1e-5) * 0.5 + 1e-5


@pytest.mark.parametrize('distance', [3e-9, 1e-8, 2e-7])
def test_lower_lines_are_below_chords_of_points_that_are_hardly_apart(distance):
  # The power curve of two outcomes is two lines: delta is linear in e^x near x = 0.
  p, q = 0.57, 0.567
  x = distance * np.arange(3)
  delta = (p - q) - np.expm1(x) * q
  lines = lower_lines(x, np.nextafter(delta, 0.0), np.nextafter(delta, 1.0), 0.0)
  level = np.linspace(0.01, 0.99, 99)
  above = p + (level - q) * (1 - p) / (1 - q)
  assert np.all(lines(level) <= np.minimum(level * p / q, above) * (1 + 1e-13))


def test_normal_losses_are_exact():
  found = accountant(dp_accounting.GaussianDpEvent(9.0), 3, 4, sampled_alike=False)
  assert found.get_epsilon(1e-5) == pytest.approx(
      accountant(dp_accounting.GaussianDpEvent(1.5), 1).get_epsilon(1e-5), rel=1e-9)


def test_every_event_with_an_account_has_one_for_several_rows():
  events = [accounting.RandomAllocationDpEvent(20, dp_accounting.GaussianDpEvent(1.0)),
            accounting.randomized_response_event(0.9, 2)]
  for event, relation in zip(events, ('ADD_OR_REMOVE_ONE', 'REPLACE_ONE')):
    relation = getattr(dp_accounting.NeighboringRelation, relation)
    one, two = (accountant(event, rows, 3, neighboring_relation=relation).get_epsilon(
        1e-4) for rows in (1, 2))
    assert one < two < np.inf
    # Half of the least float is none: this raised ValueError, for a delta of zero.
    assert accountant(event, 2, 3, neighboring_relation=relation).epsilon_bounds(
        5e-324).lower > 0


@pytest.mark.parametrize('sigma, rows', [(0.06, 2), (0.045, 36), (0.03, 2), (0.02, 8)])
def test_brackets_hold_beyond_the_exponents_of_floats(sigma, rows):
  """Lower bounds were inf, and 1 for delta; a round of refinement did not end."""
  one = accounting.PhiAccountant().compose(dp_accounting.GaussianDpEvent(sigma))
  found = Repeated(one.compositions()['remove'], rows, 0.0)
  mu = rows / sigma

  def exact(epsilon):
    return stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(
        epsilon + stats.norm.logcdf(-epsilon / mu - mu / 2))

  most = optimize.brentq(lambda epsilon: exact(epsilon) - 1e-5, 0, mu * (mu + 10))
  bounds = found.epsilon(1e-5)
  assert bounds.lower <= most * (1 + 1e-9) and most * (1 - 1e-9) <= bounds.upper
  for epsilon in (0.9 * most, most, 1.1 * most, 800.0):
    bounds = found.delta(epsilon)
    assert bounds.lower <= exact(epsilon) * (1 + 1e-6) + 1e-300
    assert exact(epsilon) * (1 - 1e-6) <= bounds.upper


def test_many_rows_in_nearly_every_sample_have_no_infinite_lower_bound():
  """All 36 rows without sampling cost less than 801."""
  one = accounting.PhiAccountant().compose(
      dp_accounting.PoissonSampledDpEvent(0.99999, dp_accounting.GaussianDpEvent(1.0)))
  assert one.compositions()['remove'].repeated(36).epsilon(1e-5).lower < 801


@pytest.mark.parametrize('event, rows, least, most', [
    # Ten releases of largest loss 1 / 2 to eight rows cost 40 at most.
    (dp_accounting.SelfComposedDpEvent(dp_accounting.LaplaceDpEvent(2.0), 10), 8,
     39.98, 40.3),
    (dp_accounting.GaussianDpEvent(1.0), 16, 193.7, 195.7)])
def test_lower_bounds_see_the_kinks_of_all_applications(event, rows, least, most):
  """Lower bounds were 12.0 and 189.5: they had the kinks of one application only."""
  one = accounting.PhiAccountant().compose(event)
  bounds = Repeated(one.compositions()['remove'], rows, 0.0).epsilon(1e-5)
  assert least < bounds.lower <= bounds.upper < most


def test_a_power_is_a_line_between_neighbouring_kinks():
  slope, height = np.array([0.0, 0.5, 1.0, 4.0]), np.array([1.0, 0.6, 0.45, 0.1])
  for lines in (Lines.of(slope, height), Lines.of(slope[1:], height[1:])):
    for rows in (1, 2, 3):
      ends = np.append(0.0, lines.kinks_of_power(rows))
      at, between = (lines.power(level, rows) for level in (
          ends, 0.5 * (ends[1:] + ends[:-1])))
      np.testing.assert_allclose(between, 0.5 * (at[1:] + at[:-1]), rtol=1e-14)
