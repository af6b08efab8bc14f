"""Replaced and zeroed records, against laws summed and enumerated directly.

The oracles know densities and outcomes only: nothing of pairs, profiles' hulls or
reflections.
"""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from tests.noise.tables import gaussian_radial, wavy_scalar
from tests.representatives import representatives
from tfcactus import noise as noise_lib, relations
from tfcactus.accounting import Composition, PhiAccountant
from tfcactus.pairs import overlap
from tfcactus.pairs.dominating_pair import DominatingPair

EPSILONS = (0.0, 1e-3, 0.03, 0.3, 1.0, 3.0)


def gain(p, q, epsilon):
  """The hockey-stick divergence of two laws on the same outcomes."""
  return float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0.0)))


def mixture(cells, prob, without, drawn):
  """The law of a sum whose mean is moved by `drawn` with probability prob."""
  return (1 - prob) * cells(without) + prob * cells(drawn)


def normal_cells(sigma, points=200_001):
  """Cell masses of a normal law around any mean within [-2, 2]."""
  edges = np.linspace(-10 * sigma - 2, 10 * sigma + 2, points)
  middle = 0.5 * (edges[1:] + edges[:-1])
  return lambda mean: stats.norm.pdf(middle, mean, sigma) * (edges[1] - edges[0])


SETTINGS = [(1.3, 0.004), (0.7, 0.1), (3.0, 0.5), (0.3, 0.02), (0.1, 0.3),
            (20.0, 0.9), (1.0, 1e-6)]


@representatives('sigma, prob', SETTINGS, 2)
def test_one_step_of_gaussian_noise(sigma, prob):
  cells = normal_cells(sigma)
  law = noise_lib.Gaussian(sigma)
  replaced = law.replaced_pair(prob)
  zeroed = law.zeroed_pair(prob)
  for epsilon in EPSILONS:
    exact = gain(mixture(cells, prob, 0, 1), mixture(cells, prob, 0, -1), epsilon)
    slack = 1e-9 * exact + 1e-13
    for bounds in (replaced, replaced.reversed()):
      assert bounds.lower.hockey_stick(epsilon) <= exact + slack
      assert exact <= bounds.upper.hockey_stick(epsilon) + slack
      assert bounds.upper.hockey_stick(epsilon) <= 1.02 * exact + 1e-10
    zero = gain(mixture(cells, prob, -1, 1), mixture(cells, prob, -1, 0), epsilon)
    assert zeroed.lower.hockey_stick(epsilon) <= zero + slack
    assert zero <= zeroed.upper.hockey_stick(epsilon) + slack
    assert zeroed.upper.hockey_stick(epsilon) <= 1.02 * zero + 1e-10
    restored = gain(mixture(cells, prob, 0, 1), cells(0), epsilon)
    assert restored <= zeroed.reversed().upper.hockey_stick(epsilon) + slack


@representatives('sigma, prob, other', [
    (0.7, 0.1, (0.7, 0.1)), (1.3, 0.3, (0.6, 0.02)), (0.5, 0.5, (2.0, 1.0))])
def test_two_steps_of_gaussian_noise(sigma, prob, other):
  """Replaced records: both outputs together, also beside an unsampled release."""
  laws = []
  for s, q in ((sigma, prob), other):
    cells = normal_cells(s, 1501)
    laws.append([mixture(cells, q, 0, sign) for sign in (1, -1)])
  p, q = (np.multiply.outer(laws[0][i], laws[1][i]) for i in (0, 1))
  accountant = PhiAccountant(relations.REPLACE)
  accountant.compose(dp_accounting.PoissonSampledDpEvent(
      prob, dp_accounting.GaussianDpEvent(sigma)))
  accountant.compose(dp_accounting.PoissonSampledDpEvent(
      other[1], dp_accounting.GaussianDpEvent(other[0])))
  for epsilon in (0.0, 0.3, 1.0, 2.5):
    exact = gain(p, q, epsilon)
    bounds = accountant.delta_bounds(epsilon)
    # The sum over cells of width .01 is right to 1e-5.
    assert bounds.lower <= exact * (1 + 2e-4)
    assert exact * (1 - 2e-4) <= bounds.upper
    assert bounds.upper - bounds.lower <= 1e-3 * exact + 1e-6


def plane(density, reach=9.0, points=361):
  """Cell masses in the plane around any mean."""
  x = np.linspace(-reach, reach, points)
  first, second = np.meshgrid(x, x, indexing='ij')
  cell = (x[1] - x[0])**2
  return lambda mean: density(
      np.hypot(first - mean[0], second - mean[1])) * cell


def directions(rng, count):
  for _ in range(count):
    angles = rng.uniform(0, 2 * math.pi, 2)
    radii = np.where(rng.uniform(size=2) < 0.6, 1.0, rng.uniform(0, 1, 2))
    yield [radius * np.array([math.cos(angle), math.sin(angle)])
           for radius, angle in zip(radii, angles)]


ORIGIN = np.zeros(2)


@representatives('sigma, prob', [(0.9, 0.2), (1.4, 0.6)])
def test_no_two_directions_exceed_the_line(sigma, prob):
  """Two dimensions: records of any length at any angle."""
  cells = plane(lambda r: np.exp(-0.5 * (r / sigma)**2) / (2 * np.pi * sigma**2))
  replaced = noise_lib.Gaussian(sigma).replaced_pair(prob).upper
  zeroed = noise_lib.Gaussian(sigma).zeroed_pair(prob).upper
  for one, two in directions(np.random.default_rng(1), 25):
    laws = {
        'replaced': (mixture(cells, prob, ORIGIN, one),
                     mixture(cells, prob, ORIGIN, two), replaced),
        'zeroed': (mixture(cells, prob, two, one),
                   mixture(cells, prob, two, ORIGIN), zeroed)}
    for p, q, pair in laws.values():
      for epsilon in (0.0, 0.05, 0.4, 1.2):
        assert gain(p, q, epsilon) <= pair.hockey_stick(epsilon) + 1e-6
        assert gain(q, p, epsilon) <= pair.reversed().hockey_stick(
            epsilon) + 1e-6


@representatives('density', [
    lambda r: np.exp(-2 * r) * 2 / np.pi,
    lambda r: 2 / (1 + np.exp((r - 0.3) / 0.04)) + 0.12 / (
        1 + np.exp((r - 1.2) / 0.04)),
    lambda r: 1 / (1 + 3 * r * r)**2])
def test_the_worst_are_on_one_line_for_any_falling_density(density):
  """Peaked, in steps and with a fat tail: no log-concavity is needed."""
  cells, prob = plane(density, points=241), 0.3
  east, west = np.array([1.0, 0]), np.array([-1.0, 0])
  for one, two in directions(np.random.default_rng(2), 15):
    for epsilon in (0.0, 0.1, 0.6):
      for others, best in (
          (((ORIGIN, one), (ORIGIN, two)), ((ORIGIN, east), (ORIGIN, west))),
          (((two, one), (two, ORIGIN)), ((west, east), (west, ORIGIN)))):
        least, most = (
            gain(*(mixture(cells, prob, *way) for way in ways), epsilon)
            for ways in (others, best))
        assert least <= most * (1 + 1e-3) + 1e-5


def test_radial_tables_are_bounded_at_any_angle():
  table = gaussian_radial(dim=2)
  radius = table.first_radius + table.width * np.arange(table.log_density.size - 1)

  def density(r):
    inside = np.searchsorted(radius, r, side='right')
    return np.exp(table.log_density[np.minimum(inside, table.log_density.size - 1)])

  shape, prob = plane(density, reach=6.0, points=401), 0.2
  total = float(np.sum(shape(ORIGIN)))
  cells = lambda mean: shape(mean) / total
  replaced = table.replaced_pair(prob).upper
  zeroed = table.zeroed_pair(prob).upper
  for one, two in [(np.array([1.0, 0]), np.array([-1.0, 0])),
                   *directions(np.random.default_rng(3), 8)]:
    for epsilon in (0.0, 0.2, 1.0):
      assert gain(mixture(cells, prob, ORIGIN, one), mixture(
          cells, prob, ORIGIN, two), epsilon) <= replaced.hockey_stick(
              epsilon) + 1e-3
      assert gain(mixture(cells, prob, two, one), mixture(
          cells, prob, two, ORIGIN), epsilon) <= zeroed.hockey_stick(
              epsilon) + 1e-3


def test_radial_tables_near_the_gaussian_cost_what_it_costs():
  """Shells as fine as the shipped tables'; the law is the Gaussian's, nearly."""
  table = gaussian_radial(dim=5, sigma=0.8, bins=100, shells=700)
  for make in ('replaced_pair', 'zeroed_pair'):
    shelled, exact = (getattr(law, make)(0.05).upper for law in (
        table, noise_lib.Gaussian(0.8)))
    for epsilon in (0.0, 0.02, 0.2, 1.0):
      for one, other in ((shelled, exact), (shelled.reversed(), exact.reversed())):
        assert one.hockey_stick(epsilon) == pytest.approx(
            other.hockey_stick(epsilon), rel=0.08)
        assert one.hockey_stick(epsilon) >= other.hockey_stick(epsilon) * 0.9999


def scalar_cells(table, reach=3):
  """Cell masses of a table shifted by whole cells, tails cut far out."""
  last = table.log_density.size + 40 * table.bins
  index = np.arange(-last - reach * table.bins, last + reach * table.bins + 1)

  def cells(mean):
    i = np.abs(index - round(mean * table.bins))
    beyond = np.maximum(i - table.log_density.size + 1, 0)
    with np.errstate(invalid='ignore'):
      tail = np.where(beyond > 0, beyond * table.log_tail_ratio, 0.0)
    return np.exp(table.log_density[np.minimum(
        i, table.log_density.size - 1)] + tail) / table.bins

  return cells


TABLES = {
    # Monotone, far from log-concave.
    'steps': noise_lib.ScalarTable.normalized(
        4, [0, -2, -2.1, -2.1, -2.1, -2.1, -4, -4, -4, -4.5], -0.3),
    'ends': noise_lib.ScalarTable.normalized(
        2, [0, -.1, -.5, -.5, -1.0, -1.0], -np.inf),
    'wavy': wavy_scalar()}


@representatives('name', TABLES, 2)
@pytest.mark.parametrize('prob', [0.02, 0.4])
def test_tables_by_enumeration(name, prob):
  """All neighbours on the table's own grid."""
  table = TABLES[name]
  cells = scalar_cells(table)
  steps = np.arange(-table.bins, table.bins + 1, max(table.bins // 4, 1))
  values = steps / table.bins
  replaced, zeroed = table.replaced_pair(prob), table.zeroed_pair(prob)
  for epsilon in (0.0, 0.02, 0.2, 0.7, 2.0):
    worst = max(gain(mixture(cells, prob, 0, u), mixture(cells, prob, 0, v), epsilon)
                for u, v in itertools.product(values, values))
    away, back = (max(
        gain(*(mixture(cells, prob, w, x) for x in order), epsilon)
        for u, w in itertools.product(values, values)
        for order in [(u, 0) if way else (0, u)]) for way in (True, False))
    assert worst <= replaced.upper.hockey_stick(epsilon) + 1e-12
    assert away <= zeroed.upper.hockey_stick(epsilon) + 1e-12
    assert back <= zeroed.upper.reversed().hockey_stick(epsilon) + 1e-12
    for bounds, attained in ((replaced, worst), (zeroed, away)):
      assert bounds.lower.hockey_stick(epsilon) <= (
          bounds.upper.hockey_stick(epsilon) + 1e-12)
      if table.monotone:
        assert bounds.lower.hockey_stick(epsilon) <= attained + 1e-12
    if table.monotone:
      assert worst == pytest.approx(
          replaced.upper.hockey_stick(epsilon), abs=1e-12)
      assert away == pytest.approx(zeroed.upper.hockey_stick(epsilon), abs=1e-12)
      assert back == pytest.approx(
          zeroed.upper.reversed().hockey_stick(epsilon), abs=1e-12)


def test_three_steps_whose_neighbours_differ():
  """Records that are worth something else in each step."""
  table, prob = TABLES['ends'], 0.3
  cells = scalar_cells(table, reach=1)
  cut = cells(0) + cells(1) + cells(-1) > 0
  bounds = Composition([(table.replaced_pair(prob), 3)])
  for ways in itertools.product([(1, -1), (-1, 1), (1, 0), (0.5, -1)], repeat=3):
    p, q = (np.ones(1), np.ones(1))
    for u, v in ways:
      p = np.multiply.outer(p, mixture(cells, prob, 0, u)[cut]).ravel()
      q = np.multiply.outer(q, mixture(cells, prob, 0, v)[cut]).ravel()
    for epsilon in (0.1, 1.0):
      assert gain(p, q, epsilon) <= bounds.delta(epsilon).upper + 1e-9


def samples(prob, size, scheme):
  """(probability, members) of each sample of records 0..size-1."""
  if scheme == 'poisson':
    for taken in itertools.product([0, 1], repeat=size):
      members = [i for i, t in enumerate(taken) if t]
      yield (prob**len(members) * (1 - prob)**(size - len(members)), members)
  else:
    ways = list(itertools.combinations(range(size), round(prob * size)))
    for members in ways:
      yield 1 / len(ways), list(members)


def released(records, prob, scheme, sigma, edges):
  """The law of the noisy sum of a sample, in cells."""
  return sum(weight * np.diff(stats.norm.cdf(
      edges, sum(records[i] for i in members), sigma))
             for weight, members in samples(prob, len(records), scheme))


@pytest.mark.parametrize('scheme, relation', [
    ('poisson', relations.REPLACE), ('poisson', relations.ZERO_OUT),
    ('fixed', relations.ZERO_OUT), ('fixed', relations.REPLACE)])
def test_whole_mechanisms_by_enumeration(scheme, relation):
  """Every sample of every small data set of records -1, 0 and 1."""
  sigma, size, prob = 0.8, 4, 0.5
  edges = np.linspace(-12, 12, 2001)
  event = dp_accounting.GaussianDpEvent(sigma)
  event = (dp_accounting.PoissonSampledDpEvent(prob, event) if scheme == 'poisson'
           else dp_accounting.SampledWithoutReplacementDpEvent(size, 2, event))
  accountant = PhiAccountant(relation).compose(event)
  worst = dict.fromkeys((0.0, 0.3, 1.0, 2.0), 0.0)
  for rest in itertools.combinations_with_replacement([-1, 0, 1], size - 1):
    laws = {x: released([x, *rest], prob, scheme, sigma, edges)
            for x in (-1, 0, 1)}
    for one, two in itertools.permutations(laws, 2):
      if relation == relations.REPLACE or 0 in (one, two):
        for epsilon in worst:
          worst[epsilon] = max(worst[epsilon],
                               gain(laws[one], laws[two], epsilon))
  for epsilon, found in worst.items():
    upper = accountant.get_delta(epsilon)
    assert found <= upper + 1e-9
    if scheme == 'poisson' or relation == relations.ZERO_OUT:
      assert found == pytest.approx(upper, rel=1e-3)


def test_zeroed_in_a_fixed_sample_costs_more_than_removed():
  """Others take the place of the zeroed record in samples without it.

  So shift one at the sampling probability, the account of a removed record, is
  below the truth for data that are all opposite to the record.
  """
  sigma, prob = 1.3, 0.25
  edges = np.linspace(-16, 16, 4001)
  with_it, without = (released([x, -1, -1, -1], prob, 'fixed', sigma, edges)
                      for x in (1, 0))
  removed = PhiAccountant(direction='remove').compose(
      dp_accounting.PoissonSampledDpEvent(
          prob, dp_accounting.GaussianDpEvent(sigma)))
  zeroed = PhiAccountant(relations.ZERO_OUT).compose(
      dp_accounting.SampledWithoutReplacementDpEvent(
          4, 1, dp_accounting.GaussianDpEvent(sigma)))
  truth = gain(with_it, without, 0.5)
  assert removed.get_delta(0.5) < 0.7 * truth
  assert truth <= zeroed.get_delta(0.5) <= truth * (1 + 1e-4)


@pytest.mark.parametrize('law', [
    noise_lib.Laplace(1.2), noise_lib.SinhNormal(1.5, 4.0)])
def test_noise_per_coordinate_keeps_the_bound_for_spread_changes(law):
  """Two coordinates of bounded l1 norm, which is why no line is worst there."""
  prob = 0.3
  x = np.linspace(-14, 14, 301)

  def coordinate(mean):
    if isinstance(law, noise_lib.Laplace):
      mass = np.exp(-np.abs(x - mean) / law.scale) / (2 * law.scale)
    else:
      mass = np.exp(law.log_density_at(x - mean))
    return mass * (x[1] - x[0])

  def cells(mean):
    return np.multiply.outer(coordinate(mean[0]), coordinate(mean[1]))

  upper = law.replaced_pair(prob).upper
  zeroed = law.zeroed_pair(prob).upper
  for one, two in [((1, 0), (-1, 0)), ((1, 0), (0, 1)), ((.5, .5), (-.5, -.5)),
                   ((.5, .5), (-1, 0)), ((.3, -.7), (-.6, .4))]:
    for epsilon in (0.0, 0.1, 0.5, 1.0):
      assert gain(mixture(cells, prob, (0, 0), one), mixture(
          cells, prob, (0, 0), two), epsilon) <= upper.hockey_stick(epsilon) + 2e-4
      assert gain(mixture(cells, prob, two, one), mixture(
          cells, prob, two, (0, 0)), epsilon) <= zeroed.hockey_stick(epsilon) + 2e-4


def test_joint_convexity_by_enumeration():
  """Any three laws: the mixtures' profile lies below the bound."""
  rng = np.random.default_rng(4)
  for _ in range(40):
    without, one, two = rng.dirichlet(0.5 * np.ones(5), 3) + 1e-3
    without, one, two = (law / law.sum() for law in (without, one, two))
    prob = float(rng.uniform(0.01, 0.9))
    alpha, value = overlap.mixed_profile(
        DominatingPair.from_masses(one, without),
        DominatingPair.from_masses(one, two), prob)
    for at in (0, 100, 4000, 12_000, alpha.size - 1):
      exact = np.sum(np.maximum(
          (1 - prob) * without + prob * one - alpha[at] * (
              (1 - prob) * without + prob * two), 0))
      assert exact <= value[at] + 1e-15
    # At one both are the share of what tells the two drawn laws apart.
    assert value[0] == pytest.approx(prob * 0.5 * np.sum(np.abs(one - two)))


def test_random_settings_of_one_step():
  rng = np.random.default_rng(5)
  for _ in range(60):
    sigma, prob = math.exp(rng.uniform(math.log(0.05), math.log(200))), math.exp(
        rng.uniform(math.log(1e-7), math.log(0.999)))
    cells = normal_cells(sigma, 40_001)
    upper = noise_lib.Gaussian(sigma).replaced_pair(prob).upper
    for epsilon in (0.0, 0.1 * prob / sigma, 0.1, 2.0):
      exact = gain(mixture(cells, prob, 0, 1), mixture(cells, prob, 0, -1), epsilon)
      assert upper.hockey_stick(epsilon) >= exact * (1 - 1e-6) - 1e-12


def test_masses_are_laws():
  for bounds in (noise_lib.Gaussian(0.02).replaced_pair(0.1),
                 noise_lib.Gaussian(1e-3).replaced_pair(0.1),
                 noise_lib.Gaussian(1e-3).zeroed_pair(0.1),
                 noise_lib.Gaussian(1.0).zeroed_pair(1e-6),
                 noise_lib.Laplace(1.0).zeroed_pair(0.1)):
    upper = bounds.upper
    assert np.sum(upper.p) + upper.p_inf == pytest.approx(1, abs=1e-9)
    assert np.sum(upper.q) + upper.q_inf == pytest.approx(1, abs=1e-9)


def test_many_steps_lie_between_group_and_single_privacy():
  """Replaced: above a zeroed record, below two of them, one after the other."""
  event = dp_accounting.PoissonSampledDpEvent(
      0.01, dp_accounting.GaussianDpEvent(1.0))
  one = PhiAccountant(relations.ZERO_OUT).compose(event, 1000)
  both = PhiAccountant(relations.REPLACE).compose(event, 1000)
  bounds = both.epsilon_bounds(1e-5)
  assert bounds.upper - bounds.lower < 1e-4
  assert one.get_epsilon(1e-5) < bounds.lower
  # delta of a group of two: delta (1 + e^epsilon) at twice epsilon.
  epsilon = 0.5 * bounds.upper
  assert 1e-5 <= one.get_delta(epsilon) * (1 + math.exp(epsilon))


def test_relations_have_names():
  assert relations.check('zero-out') == relations.ZERO_OUT
  assert relations.label(relations.ZERO_OUT) == 'replace-special'
  with pytest.raises(ValueError, match='got None'):
    relations.check(None)
