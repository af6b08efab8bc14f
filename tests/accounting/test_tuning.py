"""The account of a search bounds the cost of its winner, for every ranking and law."""

import itertools
import math
import pathlib
import re

import dp_accounting
import numpy as np
import pytest
from scipy import optimize, stats

from tests.representatives import representatives
import tfcactus
from tfcactus import accounting, relations
from tfcactus.accounting import calibration, run_laws, tuning

TUTORIAL = dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(
    250 / 60000, dp_accounting.GaussianDpEvent(1.3)), 3600)
LOGARITHMIC = accounting.LogarithmicRuns(10)
GAUSSIAN = dp_accounting.GaussianDpEvent(3.0)


def gaussian(epsilon, delta=1e-5):
  """Returns the event of the Gaussian release with this epsilon."""
  def excess(mu):
    return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * (
        stats.norm.cdf(-mu / 2 - epsilon / mu)) - delta
  return dp_accounting.GaussianDpEvent(1 / optimize.brentq(excess, 1e-3, 20))


def search(law, event, score='released'):
  return accounting.SearchDpEvent(law, event, score=score)


def bounds(law, event, delta=1e-5, **options):
  return accounting.PhiAccountant(**options).compose(search(law, event)).epsilon_bounds(
      delta)


REFERENCE = [  # One run's epsilon at delta 1e-5, law, attained, proved upper bound.
    (1, LOGARITHMIC, 1.45275699, 1.45297654),
    (0.5, LOGARITHMIC, .73940533, .73966841),
    (2, LOGARITHMIC, 2.85280812, 2.85296962),
    (1, accounting.GeometricRuns(10), 1.53930228, 1.53950708),
    (1, accounting.NegativeBinomialRuns(10, -0.5), 1.38753615, 1.38812706),
    (1, accounting.PoissonRuns(10), 1.96873232, 1.97019120),
    (1, accounting.PoissonRuns(3, at_least_one=True), 1.32299237, 1.32314117),
    (1, accounting.BinomialRuns(20, 0.5), 2.19430428, 2.19951042),
    (1, accounting.FixedRuns(3), 1.7838, 1.83496543),
    (1, accounting.FixedRuns(10), 2.9905, 3.2983)]


@representatives('epsilon,law,attained,proved', REFERENCE, 2)
def test_reference_values(epsilon, law, attained, proved):
  lower, _, upper = bounds(law, gaussian(epsilon))
  # Narrower than an earlier computation by nothing but its own width.
  assert proved * (1 - 1e-5) <= upper <= proved * (1 + 2e-4)
  assert attained * (1 - 6e-4) <= lower <= attained * (1 + 1e-4)


def _binomial(mean, eta):
  """Returns f' of the truncated negative binomial law, by its closed form."""
  def slope(x, gamma):
    if eta == 0:
      return (gamma - 1) / math.log(gamma) / (1 - (1 - gamma) * x)
    return eta * (1 - gamma) * (1 - (1 - gamma) * x)**(-eta - 1) / (gamma**-eta - 1)
  gamma = optimize.brentq(lambda gamma: slope(1.0, gamma) - mean, 1e-9, 1 - 1e-9)
  return lambda x: slope(x, gamma)


def _poisson(mean, shown=1.0):
  return lambda x: mean * np.exp(mean * (x - 1)) / shown


def _listed(mass):
  return lambda x: sum(k * each * x**(k - 1) for k, each in enumerate(mass) if k)


def _capped(mean, most):
  """Returns f' of the logarithmic law with its tail put at `most`."""
  gamma = optimize.brentq(lambda gamma: (gamma - 1) / math.log(gamma) / gamma - mean,
                          1e-9, 1 - 1e-9)
  mass = stats.logser(1 - gamma).pmf(np.arange(most))
  return _listed([*mass, 1 - sum(mass)])


def _theorem(slope, mu, delta):
  """Returns epsilon by a grid over the theorem of the search, for Gaussian runs.

  The integrand is the largest f'(a) - e^epsilon f'(b) x over a = Phi(t) and
  b = Phi(t - mu), with x the likelihood ratio of Q to P; the integral is over P.
  """
  t = z = np.linspace(-9, 9, 2401)
  here, there = slope(stats.norm.cdf(t)), slope(stats.norm.cdf(t - mu))
  ratios, mass = np.exp(-mu * (z + mu / 2)), stats.norm.pdf(z)

  def excess(epsilon):
    best = np.array([np.max(here - math.exp(epsilon) * x * there) for x in ratios])
    return np.sum(np.maximum(best, 0) * mass) * (z[1] - z[0]) - delta
  return optimize.brentq(excess, 1e-2, 12, xtol=1e-7)


FURTHER = [  # Epsilon of a run at delta, delta, law, f' by code of this file.
    (1, 1e-5, accounting.LogarithmicRuns(10), _binomial(10, 0)),
    (0.25, 1e-5, accounting.LogarithmicRuns(10), _binomial(10, 0)),
    (4, 1e-5, accounting.LogarithmicRuns(10), _binomial(10, 0)),
    (1, 1e-5, accounting.LogarithmicRuns(100), _binomial(100, 0)),
    (1, 1e-5, accounting.GeometricRuns(3), _binomial(3, 1)),
    (0.5, 1e-6, accounting.GeometricRuns(30), _binomial(30, 1)),
    (1, 1e-8, accounting.NegativeBinomialRuns(30, -0.5), _binomial(30, -0.5)),
    (2, 1e-5, accounting.NegativeBinomialRuns(5, 2), _binomial(5, 2)),
    (0.5, 1e-6, accounting.PoissonRuns(5), _poisson(5)),
    (1, 1e-5, accounting.PoissonRuns(1, at_least_one=True),
     _poisson(1, -math.expm1(-1))),
    (3, 1e-5, accounting.PoissonRuns(3, at_least_one=True),
     _poisson(3, -math.expm1(-3))),
    (1, 1e-7, accounting.BinomialRuns(10, 0.3),
     _listed(stats.binom(10, 0.3).pmf(np.arange(11)))),
    (1, 1e-5, accounting.LogarithmicRuns(10).capped(20), _capped(10, 20))]


@representatives('epsilon,delta,law,slope', FURTHER, 3)
def test_further_values_by_an_independent_grid(epsilon, delta, law, slope):
  run = gaussian(epsilon, delta)
  lower, _, upper = bounds(law, run, delta)
  truth = _theorem(slope, 1 / run.noise_multiplier, delta)
  assert truth * (1 - 1e-3) <= lower <= truth
  assert truth * (1 - 1e-6) <= upper <= truth * (1 + 1e-4)


def test_lists_that_change_later_change_no_account(coarse):
  """A list that served for a cheaper search once made the first one cheaper too."""
  parts, settings = [GAUSSIAN], [(1.0, GAUSSIAN)]
  first = [search(LOGARITHMIC, event) for event in (
      dp_accounting.ComposedDpEvent(parts), settings)]
  parts[0] = dp_accounting.GaussianDpEvent(30.0)
  settings[0] = (1.0, parts[0])
  for event in first:
    assert accounting.PhiAccountant().compose(event).get_epsilon(1e-5) == bounds(
        LOGARITHMIC, GAUSSIAN).upper


class _PlainDpEvent(accounting.SteppedDpEvent):
  """Randomised response by a plain class, whose constructor has a default."""

  proved_relations = (relations.ADD_OR_REMOVE,)

  def __init__(self, keep=0.51):
    object.__setattr__(self, 'keep', keep)

  def pair_bounds(self, relation, direction):
    del relation, direction
    masses = [self.keep, 1 - self.keep]
    return accounting.PairBounds.exact(
        accounting.DominatingPair.from_masses(masses, masses[::-1]))


def test_a_run_of_a_plain_class_keeps_its_cost():
  """It once was made anew, with its defaults: by them epsilon is 0.08."""
  plain = _PlainDpEvent(0.9)
  assert search(LOGARITHMIC, plain).event is plain
  inside = search(LOGARITHMIC, dp_accounting.ComposedDpEvent([plain]))
  found = accounting.PhiAccountant().compose(inside).get_epsilon(1e-5)
  assert found > math.log(9)


def test_a_law_of_one_run_is_the_run():
  whole = accounting.PhiAccountant().compose(GAUSSIAN).get_epsilon(1e-5)
  lower, _, upper = bounds(accounting.FixedRuns(1), GAUSSIAN)
  assert whole * (1 - 1e-3) <= lower <= whole <= upper <= whole * (1 + 1e-4)


@pytest.mark.parametrize('law', [
    accounting.PoissonRuns(1e-16, at_least_one=True),
    accounting.PoissonRuns(1e-9, at_least_one=True),
    accounting.LogarithmicRuns(1 + 1e-9),
    accounting.NegativeBinomialRuns(1 + 1e-9, 1e4)])
def test_a_law_of_hardly_more_than_one_run_is_one_run(law):
  x = np.linspace(0.0, 1.0, 11)
  assert law.generating(x) == pytest.approx(x, abs=1e-8)
  assert np.all(np.diff(law.generating(x)) == pytest.approx(0.1, abs=1e-8))
  whole = accounting.PhiAccountant().compose(GAUSSIAN).get_epsilon(1e-5)
  lower, _, upper = bounds(law, GAUSSIAN)
  assert whole * (1 - 1e-3) <= lower <= upper <= whole * (1 + 1e-4)
  assert lower <= whole * (1 + 1e-7)


@representatives('name, value', re.findall(
    r'^\| `(\w+Runs\(\d+\))`.* \| ([\d.]+) \|$',
    (pathlib.Path(tfcactus.__file__).parents[1] / 'docs' / 'epsilon.md').read_text(
        encoding='utf-8'), re.M))
def test_the_table_of_searches_in_the_documents(name, value):
  law = eval(f'accounting.{name}')  # pylint: disable=eval-used
  assert 0 <= float(value) - bounds(law, TUTORIAL).upper < 1e-4


def test_more_runs_cost_more_and_less_than_all_of_them(coarse):
  found = [bounds(accounting.LogarithmicRuns(mean), GAUSSIAN).upper
           for mean in (1.5, 10, 100)]
  assert found == sorted(found)
  everything = accounting.PhiAccountant().compose(GAUSSIAN, 10).get_epsilon(1e-5)
  assert found[1] < everything
  # All runs shown bound what is always the same number of runs.
  assert bounds(accounting.FixedRuns(3), GAUSSIAN).upper <= (
      accounting.PhiAccountant().compose(GAUSSIAN, 3).get_epsilon(1e-5) * (1 + 1e-2))


PMF = {
    'logarithmic': (LOGARITHMIC, None),
    'poisson': (accounting.PoissonRuns(3.5), stats.poisson(3.5)),
    'binomial': (accounting.BinomialRuns(9, 0.3), stats.binom(9, 0.3)),
    'geometric': (accounting.GeometricRuns(4.0), stats.geom(0.25)),
    'always': (accounting.FixedRuns(6), None),
    'at least one': (accounting.PoissonRuns(2.0, at_least_one=True), None),
    'negative binomial': (accounting.NegativeBinomialRuns(5, -0.5), None),
    'nearly logarithmic': (accounting.NegativeBinomialRuns(5, 5e-324), None),
    'light tail': (accounting.NegativeBinomialRuns(5, 1e4), None),
    'capped': (LOGARITHMIC.capped(7), None)}


@pytest.mark.parametrize('name', PMF)
def test_functions_of_a_law_are_those_of_its_probabilities(name):
  law, known = PMF[name]
  most = 400
  mass = law.probabilities(most)
  if known is not None:
    assert mass == pytest.approx(known.pmf(np.arange(most + 1)), abs=1e-13)
  x = np.array([0.0, 0.3, 0.7])
  k = np.arange(most + 1)
  powers = x[:, None]**k
  assert law.generating(x) == pytest.approx(powers @ mass, rel=1e-11)
  assert law.derivative(x) == pytest.approx(powers[:, :-1] @ (k * mass)[1:], rel=1e-11)
  assert law.generating(np.ones(1)) == pytest.approx(1)
  if name not in ('poisson', 'binomial', 'always', 'at least one', 'capped'):
    assert law.expected == pytest.approx(law.mean, rel=1e-12) and mass[0] == 0


def test_a_cap_moves_the_rest_of_the_law_to_the_cap():
  law = LOGARITHMIC.capped(7)
  assert law.most == 7 and law.probability[:7] == pytest.approx(
      LOGARITHMIC.probabilities(6))
  assert math.fsum(law.probability) == pytest.approx(1)
  assert accounting.BinomialRuns(5, 0.3).capped(9).most == 5


def law_of(rng):
  """Returns a random law of any kind."""
  mean = 1 + 10.0**rng.uniform(-2, 2)
  kinds = [
      lambda: accounting.LogarithmicRuns(mean), lambda: accounting.GeometricRuns(mean),
      lambda: accounting.NegativeBinomialRuns(mean, rng.uniform(-0.7, 5)),
      lambda: accounting.PoissonRuns(mean - 1),
      lambda: accounting.PoissonRuns(mean - 1, at_least_one=True),
      lambda: accounting.BinomialRuns(int(rng.integers(1, 60)), rng.uniform(0.02, 1)),
      lambda: accounting.FixedRuns(int(rng.integers(1, 15))),
      lambda: accounting.LogarithmicRuns(mean).capped(int(rng.integers(1, 30))),
      lambda: accounting.PoissonRuns(mean).capped(int(rng.integers(1, 30))),
      lambda: accounting.ListedRuns(rng.dirichlet(np.ones(rng.integers(2, 9))))]
  return kinds[rng.integers(len(kinds))]()


def masses_of(rng):
  """Returns random P and Q: losses small or rare and large, masses at infinity."""
  size, kind = rng.integers(2, 6), rng.integers(6)
  p = np.maximum(rng.dirichlet(np.full(size, rng.choice([0.1, 1, 5]))), 1e-12)
  q = rng.dirichlet(np.ones(size)) if kind == 0 else p * np.exp(
      rng.normal(size=size) * 10.0**-rng.uniform(0, 8 if kind == 1 else 0.5))
  if kind == 2:
    p[0], q[0] = 10.0**-rng.uniform(2, 8), 0.0
  if kind == 3:
    p[-1], q[0] = 0.0, 0.0
  if kind == 4:
    p[0] = 10.0**-rng.uniform(1, 7)
    q[0] = p[0] * 10.0**-rng.uniform(0, 6)
  return (p / p.sum(), q / q.sum())[::rng.choice([-1, 1])]


def worst_ranking(law, p, q, epsilon):
  """Returns the largest delta over rankings of the outcomes, at each epsilon.

  Up to three outcomes are split into halves; all outcomes tied is one ranking too.
  """
  p, q = np.longdouble(p), np.longdouble(q)
  if p.size <= 3:
    p, q = np.repeat(p / 2, 2), np.repeat(q / 2, 2)
  ranks = np.array(list(itertools.permutations(range(p.size))))
  none = np.zeros((len(ranks), 1))
  wins, losses = (np.diff(law.generating(np.concatenate(
      [none, np.minimum(np.cumsum(mass[ranks], axis=1), 1)], axis=1)), axis=1)
                  for mass in (p, q))
  shown = 1 - law.generating(np.zeros(1))[0]
  return [max(np.sum(np.maximum(wins - np.exp(x) * losses, 0), axis=1).max(),
              shown * np.sum(np.maximum(p - np.exp(x) * q, 0))) for x in epsilon]


@pytest.fixture
def coarse(monkeypatch):
  """Computes fewer points: bounds are wider, hold as well, and take less time."""
  for name, value in {'POINTS': 40, 'NODES': 600, 'TUNED_POINTS': 150, 'PLACES': 20,
                      'LEVELS': 10.0**np.arange(-1, -9, -2)}.items():
    monkeypatch.setattr(tuning, name, value)


@representatives('seed', range(40), 2)
def test_no_ranking_costs_more_than_the_upper_bound(seed, coarse, monkeypatch):
  rng = np.random.default_rng(seed)
  for case in range(30):
    p, q = masses_of(rng)
    law = law_of(rng)
    # Compositions of discrete pairs take seconds; one case in 30 has them.
    monkeypatch.setattr(tuning, 'NEARLY_ALWAYS', 1.5 if case == 0 else 0.0)
    event = search(law, accounting.DominatingPairDpEvent(
        accounting.DominatingPair.from_masses(p, q)))
    finite = (p > 0) & (q > 0)
    epsilon = np.concatenate([[0, 1e-9], 10.0**rng.uniform(-6, 1, 3), np.minimum(
        np.abs(np.log(p[finite] / q[finite])), 15)])
    for direction, (one, other) in {'add': (p, q), 'remove': (q, p)}.items():
      pairs = event.pair_bounds(relations.ADD_OR_REMOVE, direction)
      for x, truth in zip(epsilon, worst_ranking(law, one, other, epsilon)):
        upper, lower = (pair.hockey_stick(x) for pair in (pairs.upper, pairs.lower))
        room = 1e-15 * (1 + math.exp(x))  # The laws give float64 numbers up to one.
        assert upper >= truth * (1 - 1e-9) - room, (law, one, other, direction, x)
        assert lower <= upper * (1 + 1e-9) + 1e-15, (law, one, other, direction, x)


def test_brute_force_refutes_a_smaller_bound(coarse):
  # Small outcomes: the bound is nearly attained by a ranking.
  p, q = np.array([0.001, 0.999]), np.array([0.0005, 0.9995])
  event = search(LOGARITHMIC, accounting.DominatingPairDpEvent(
      accounting.DominatingPair.from_masses(p, q)))
  upper = event.pair_bounds(relations.ADD_OR_REMOVE, 'add').upper.hockey_stick(0.3)
  [truth] = worst_ranking(LOGARITHMIC, p, q, [0.3])
  assert truth <= upper < 1.1 * truth


def test_the_lower_bound_is_below_the_upper_at_every_delta():
  for law in (LOGARITHMIC, accounting.PoissonRuns(3), accounting.FixedRuns(4)):
    found = accounting.PhiAccountant().compose(search(law, GAUSSIAN))
    for delta in (1e-4, 1e-6, 1e-8):
      lower, _, upper = found.epsilon_bounds(delta)
      assert 0 < lower <= upper <= lower * (2 if law.most < math.inf else 1.01)


def test_infinite_losses_stay_infinite():
  pair = accounting.DominatingPair.from_masses([0.5, 0.5 - 1e-4, 1e-4], [0.5, 0.5, 0])
  found = accounting.PhiAccountant().compose(search(
      LOGARITHMIC, accounting.DominatingPairDpEvent(pair)))
  assert found.get_epsilon(5e-4) == math.inf
  # The mean number of runs times the mass: attained by ranking that outcome highest.
  assert found.delta_bounds(3.0).lower == pytest.approx(1e-3, rel=0.02)
  assert found.delta_bounds(3.0).upper == pytest.approx(1e-3, rel=0.02)
  assert found.get_epsilon(2e-3) < 1e-2


def test_pure_privacy_of_runs_stays_pure():
  event = accounting.randomized_response_event(0.5, 2)  # epsilon log 3
  found = accounting.PhiAccountant(relations.REPLACE).compose(
      search(accounting.GeometricRuns(10), event))
  # Liu and Talwar: three times epsilon at delta 0, for every mean.
  assert found.get_delta(3 * math.log(3) + 1e-6) < 1e-9


def test_epsilon_near_zero():
  lower, _, upper = bounds(LOGARITHMIC, dp_accounting.GaussianDpEvent(1e6))
  assert 0 == lower <= upper < 1e-5
  with pytest.raises(ValueError, match='target_epsilon >= 0'):
    accounting.PhiAccountant().compose(search(LOGARITHMIC, GAUSSIAN)).get_delta(-0.1)


def test_both_directions_have_their_own_pair(coarse):
  found = {direction: bounds(LOGARITHMIC, TUTORIAL, direction=direction).upper
           for direction in ('add', 'remove', 'both')}
  assert found['both'] == max(found['add'], found['remove'])
  assert found['add'] != pytest.approx(found['remove'], rel=1e-3)
  replaced, added = (bounds(LOGARITHMIC, GAUSSIAN, neighboring_relation=relation).upper
                     for relation in (relations.REPLACE, relations.ADD_OR_REMOVE))
  assert added < replaced == pytest.approx(
      bounds(LOGARITHMIC, dp_accounting.GaussianDpEvent(1.5)).upper)


def test_persons_with_several_rows(coarse):
  event = search(LOGARITHMIC, GAUSSIAN)
  one, two = (accounting.PhiAccountant(rows_of_one=rows).compose(event).epsilon_bounds(
      1e-5) for rows in (1, 2))
  twice = bounds(LOGARITHMIC, dp_accounting.GaussianDpEvent(1.5)).lower
  assert one.upper < twice <= two.upper < 4 * one.upper
  # A search hides that more rows change the share of the others.
  fixed = search(LOGARITHMIC, dp_accounting.SampledWithoutReplacementDpEvent(
      100, 10, GAUSSIAN))
  for rows in (1, 2):
    with pytest.raises(dp_accounting.UnsupportedEventError, match='none for ADD_OR'):
      accounting.PhiAccountant(rows_of_one=rows).compose(fixed)
  assert accounting.PhiAccountant(relations.ZERO_OUT).compose(fixed).get_epsilon(
      1e-5) > 0


def test_settings_of_different_cost_are_a_mixture(coarse):
  cheap, dear = gaussian(0.5), gaussian(1)
  mixed = bounds(LOGARITHMIC, [(0.5, cheap), (0.5, dear)]).upper
  assert bounds(LOGARITHMIC, cheap).upper < mixed < bounds(LOGARITHMIC, dear).upper
  assert bounds(LOGARITHMIC, [(0.25, dear), (0.75, dear)]).upper == pytest.approx(
      bounds(LOGARITHMIC, dear).upper, rel=1e-9)


def test_a_search_composes_and_has_a_guarantee_on_conditions():
  event = search(LOGARITHMIC, GAUSSIAN)
  both = accounting.PhiAccountant().compose(event).compose(GAUSSIAN)
  alone = bounds(LOGARITHMIC, GAUSSIAN)
  assert alone.upper < both.get_epsilon(1e-5) < alone.upper + 2
  found = tfcactus.search_guarantee(event, 1e-5, 'add-or-remove')
  assert found.upper == alone.upper and found.lower == alone.lower and found.proven
  condition, = found.conditions
  assert 'LogarithmicRuns (mean 10) and stays secret' in condition
  assert 'one result of a search' in found.statement and condition in found.statement
  plan = tfcactus.PrivacyPlan(
      noise=tfcactus.Gaussian(2.0), l2_norm_clip=1.0, num_examples=1000,
      sampling_prob=0.01, steps=10, delta=1e-5, releases=[event])
  assert plan.guarantee().conditions == (condition,)
  given = search(LOGARITHMIC, accounting.DominatingPairDpEvent(
      accounting.DominatingPair.from_masses([0.6, 0.4], [0.4, 0.6])))
  assert len(tfcactus.search_guarantee(given, 1e-5, 'add-or-remove').conditions) == 2
  with pytest.raises(ValueError, match='account for replace-one'):
    tfcactus.search_guarantee(given, 1e-5, 'replace')


def test_a_run_is_calibrated_to_a_target_of_the_search(coarse):
  cost = calibration.account(
      lambda noise: search(LOGARITHMIC, dp_accounting.GaussianDpEvent(noise)), 1e-5)
  noise = calibration.calibrate_noise(1.0, cost, tolerance=1e-3)
  assert 0.99 < cost(noise) <= 1.0


def coin(law, one):
  """Returns the probability that a search shows 1, of fair coins of which `one` wins.

  The score is 1 if the coin equals the bit `one` of the data.
  """
  lost = float(law.generating(np.array([0.5]))[0])
  return 1 - lost if one else lost


def test_a_score_on_training_data_without_noise_is_refused():
  # Each run is a fair coin, which protects everything; the search does not.
  assert math.log(coin(LOGARITHMIC, 1) / coin(LOGARITHMIC, 0)) == pytest.approx(
      1.487, abs=1e-3)
  for score in ('training', 'noiseless', None):
    with pytest.raises(ValueError, match='reads private data without noise.* 1.487'):
      search(LOGARITHMIC, GAUSSIAN, score)
  with pytest.raises(TypeError):
    accounting.SearchDpEvent(LOGARITHMIC, GAUSSIAN)  # pylint: disable=missing-kwoa


@pytest.mark.parametrize('event, words', [
    ([GAUSSIAN, GAUSSIAN], 'a grid.*ComposedDpEvent'), ([], 'a grid'),
    ('sgd', 'a grid'), ([(0.5, GAUSSIAN), (0.4, GAUSSIAN)], 'sum of 0.9'),
    ([(0.0, GAUSSIAN), (1.0, GAUSSIAN)], 'probability'),
    (dp_accounting.NonPrivateDpEvent(), 'add noise'),
    (dp_accounting.NoOpDpEvent(), 'add noise'),
    (dp_accounting.ComposedDpEvent([GAUSSIAN, dp_accounting.NonPrivateDpEvent()]),
     'add noise'),
    (dp_accounting.UnsupportedDpEvent(), 'add noise')])
def test_runs_that_the_proof_does_not_cover_are_refused(event, words):
  with pytest.raises(ValueError, match=words):
    search(LOGARITHMIC, event)


@pytest.mark.parametrize('make, words', [
    (lambda: accounting.LogarithmicRuns(1), 'mean > 1'),
    (lambda: accounting.LogarithmicRuns(1 + 1e-12), 'do not search'),
    (lambda: accounting.LogarithmicRuns(math.nan), 'finite'),
    (lambda: accounting.LogarithmicRuns(1e30), 'lower the mean'),
    (lambda: accounting.NegativeBinomialRuns(5, -1), 'eta in'),
    (lambda: accounting.PoissonRuns(0), 'rate > 0'),
    (lambda: accounting.PoissonRuns(1e5), 'to 10000'),
    (lambda: accounting.PoissonRuns(5e-324, at_least_one=True), 'rate from 1e-300'),
    (lambda: accounting.BinomialRuns(5, 1e-320), 'prob >= 1e-300'),
    (lambda: accounting.ListedRuns([1.0, 1e-320]), 'at least 1e-300'),
    (lambda: accounting.BinomialRuns(5, 0), 'prob in'),
    (lambda: accounting.FixedRuns(2.5), 'an integer'),
    (lambda: LOGARITHMIC.capped(0), 'most >= 1'),
    (lambda: accounting.ListedRuns([0.5, 0.4]), 'sum of 0.9'),
    (lambda: accounting.ListedRuns([1.0, 0.0]), 'the last'),
    (lambda: accounting.ListedRuns([0.5, -0.5, 1.0]), 'none negative'),
    (lambda: search(10, GAUSSIAN), 'LogarithmicRuns')])
def test_laws_that_are_none_are_refused(make, words):
  with pytest.raises(ValueError, match=words):
    make()


@pytest.mark.parametrize('name', ['negative binomial', 'binomial'])
def test_derivatives_are_right_to_their_stated_rounding(name):
  mpmath = pytest.importorskip('mpmath')
  heavy, wide = accounting.NegativeBinomialRuns(50, 7.5), accounting.BinomialRuns(
      9999, 0.3)
  with mpmath.workdps(40):
    gamma, prob = mpmath.mpf(heavy.gamma), mpmath.mpf(0.3)
    law, f = {
        'negative binomial': (heavy, lambda x: (
            (1 - (1 - gamma) * x)**-7.5 - 1) / (gamma**-7.5 - 1)),
        'binomial': (wide, lambda x: (1 - prob + prob * x)**9999)}[name]
    for x in (0.5, 0.999, 1 - 1e-9):
      assert law.derivative(np.array([x]))[0] == pytest.approx(
          float(mpmath.diff(f, mpmath.mpf(x))), rel=run_laws.ROUNDOFF)
