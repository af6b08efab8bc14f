"""Tests of private searches: their laws, their account, and what losing runs leave."""

import functools
import gc
import itertools
import logging
import math
import os
import sys
import warnings
import weakref

import dp_accounting
import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from tests.accounting.test_tuning import coarse, law_of, masses_of  # noqa: F401
from tests.keras.tiny import MEAN, X, Y
from tests.representatives import representatives
import tfcactus
from tfcactus import accounting, keras as private, randomness, relations, sampling
from tfcactus.keras import hyperparameters, tuning

pytestmark = pytest.mark.usefixtures('random_sums')


@pytest.fixture(scope='module', autouse=True)
def few_objects():
  """Takes what other files left out of the collections after each run of a search."""
  gc.freeze()


N = len(X)
PLAN = {'num_examples': N, 'batch_size': N, 'epochs': 1, 'l2_norm_clip': 1.0}


def build(hp):
  """Returns a model by calls that a build function for KerasTuner makes."""
  model = tf.keras.Sequential([tf.keras.layers.Input((6,))])
  if hp.Boolean('hidden'):
    with hp.conditional_scope('hidden', [True]):
      model.add(tf.keras.layers.Dense(
          hp.Int('units', min_value=4, max_value=8, step=4, default=4),
          activation=hp.Choice('activation', values=['relu', 'tanh'], ordered=False)))
  model.add(tf.keras.layers.Dense(3))
  model.compile(
      tf.keras.optimizers.SGD(hp.Float('rate', 1e-2, 1.0, sampling='log')), MEAN,
      metrics=['accuracy'])
  return model


def search_of(build=build, plan=PLAN, **options):  # pylint: disable=redefined-outer-name
  return tuning.PrivateSearch(build, plan, **{**dict(
      target_epsilon=2.0, delta=1e-5, validation=(X, Y),
      runs=accounting.ListedRuns([0, 0, 0, 1])), **options})


def settings(seed=0):
  stream = randomness.KeyStream(seed)
  return hyperparameters.HyperParameters(
      lambda count: int(stream.integers(count, 1)[0]),
      lambda: float(stream.uniforms(1)[0]))


LAWS = [accounting.LogarithmicRuns(10), accounting.PoissonRuns(3.5),
        accounting.PoissonRuns(2.0, at_least_one=True), accounting.FixedRuns(4),
        accounting.GeometricRuns(3.0), accounting.LogarithmicRuns(10).capped(7)]


@pytest.mark.parametrize('law', LAWS, ids=str)
def test_numbers_of_runs_are_drawn_from_their_law(law):
  stream, made = randomness.KeyStream(1, 'runs'), []

  def run():
    made[-1] += 1
    return 0.0, None

  for _ in range(4000):
    made.append(0)
    tuning.best_of(law, run, stream)

  def p_value(other):
    expected = other.probabilities(30)
    seen = np.bincount(np.minimum(made, 31), minlength=32)
    expected = 4000 * np.append(expected, max(1 - expected.sum(), 0.0))
    rare = expected < 5
    pool = [np.append(each[~rare], each[rare].sum()) for each in (seen, expected)]
    if pool[1][-1] < 1e-9:
      if pool[0][-1]:
        return 0.0
      pool = [each[:-1] for each in pool]
    return stats.chisquare(*pool).pvalue

  assert law.most == 4 == law.expected or p_value(law) > 1e-3
  assert not set(made) - set(np.flatnonzero(law.probabilities(10_000)))
  if law.most != 4:
    wrong = accounting.LogarithmicRuns(8) if law is LAWS[0] else LAWS[0]
    assert p_value(wrong) < 1e-6


def test_quantiles_are_those_of_the_cumulated_law():
  law = accounting.ListedRuns([0.25, 0, 0.5, 0.25])
  u = [0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53]
  assert [law.quantile(each) for each in u] == [0, 0, 2, 2, 3, 3]
  heavy = accounting.NegativeBinomialRuns(50, -0.5)
  found = heavy.quantile(1 - 1e-6)
  mass = heavy.probabilities(found)
  assert mass[:-1].sum() <= 1 - 1e-6 < mass.sum()


class Scripted:
  """Stands in for a `KeyStream`: a number of runs, then labels of ties."""

  def __init__(self, u, labels):
    self._u, self._labels = u, iter(labels)

  def uniforms(self, count):
    return np.array([self._u])

  def words(self, count):
    return np.array([next(self._labels)], np.uint64)


def winners(law, mass, score):
  """Returns the exact law of the winner, by all ways in which `best_of` can go."""
  found = np.zeros(len(mass))
  number = law.probabilities(int(law.most))
  for count in np.flatnonzero(number):
    u = number[:count].sum() + number[count] / 2
    orders = list(itertools.permutations(range(count)))
    for drawn in itertools.product(range(len(mass)), repeat=count):
      weight = number[count] * np.prod(mass[list(drawn)]) / len(orders)
      for labels in orders:
        outcomes = iter(drawn)
        won = tuning.best_of(law, lambda: (lambda z: (score[z], z))(  # noqa: PLC3002
            next(outcomes)), Scripted(u, labels))  # noqa: B023
        if won is not None:
          found[won] += weight
  return found


@representatives('seed', range(60), 3)
def test_the_law_of_the_winner_is_accounted_for(seed, coarse):  # noqa: F811
  """Enumerates small mechanisms, rankings with ties and failures, and laws of K."""
  rng = np.random.default_rng(seed)
  p, q = masses_of(rng)
  p, q = (np.concatenate([each[:2], [each[2:].sum()]]) for each in (p, q))
  most = int(rng.integers(1, 4))
  law = accounting.ListedRuns(rng.dirichlet(np.ones(most + 1)))
  score = rng.choice([0.0, 1.0, 2.0, math.nan, math.inf], size=3)
  won = [winners(law, mass, score) for mass in (p, q)]
  # The winner has density p f'(F), where ties have a uniform label each.
  for mass, found in zip((p, q), won):
    for z, own in enumerate(score):
      if not math.isfinite(own):
        assert found[z] == 0
        continue
      below = sum(m for m, s in zip(mass, score) if not math.isfinite(s) or s < own)
      tied = sum(m for m, s in zip(mass, score) if s == own)
      ends = law.generating(np.array([below, min(below + tied, 1.0)]))
      assert found[z] == pytest.approx(
          np.diff(ends)[0] * mass[z] / tied if tied else 0.0, abs=1e-12)
  # The cost of the law found, with 'nothing found', is below the account's.
  event = accounting.SearchDpEvent(law, accounting.DominatingPairDpEvent(
      accounting.DominatingPair.from_masses(p, q)), score='released')
  won = [np.append(each, 1 - each.sum()) for each in won]
  for direction, (one, other) in {'add': won, 'remove': won[::-1]}.items():
    upper = event.pair_bounds(relations.ADD_OR_REMOVE, direction).upper
    for epsilon in (0.0, 0.1, 0.5, 1.0, 3.0):
      truth = np.maximum(one - math.exp(epsilon) * other, 0).sum()
      assert truth <= upper.hockey_stick(epsilon) + 1e-12 * math.exp(epsilon)


def test_a_winner_by_place_would_not_pass_as_tied():
  """Shows that the test above can fail: the first of equal runs has another law."""
  law = accounting.ListedRuns([0, 0, 1.0])
  mass, score = np.array([0.5, 0.5]), np.array([1.0, 1.0])
  assert winners(law, mass, score) == pytest.approx([0.5, 0.5])
  drawn = iter([0, 1])
  assert tuning.best_of(law, lambda: (1.0, next(drawn)), Scripted(0.5, [5, 5])) == 0


def test_settings_have_the_laws_of_kerastuner():
  def draws(ask, count=3000):
    stream = randomness.KeyStream(3)
    hp = [hyperparameters.HyperParameters(
        lambda n: int(stream.integers(n, 1)[0]), lambda: float(stream.uniforms(1)[0]))
          for _ in range(count)]
    return np.array([ask(each) for each in hp])

  uniform = stats.uniform().cdf
  log = draws(lambda hp: hp.Float('a', 1e-4, 1.0, sampling='log'))
  assert stats.kstest(1 + np.log(log) / math.log(1e4), uniform).pvalue > 1e-3
  assert stats.kstest(log, uniform).pvalue < 1e-9
  back = draws(lambda hp: hp.Float('a', 1.0, 10.0, sampling='reverse_log'))
  assert stats.kstest(1 - np.log10(11 - back), uniform).pvalue > 1e-3
  assert stats.kstest((draws(lambda hp: hp.Float('a', -2, 3)) + 2) / 5,
                      uniform).pvalue > 1e-3
  for ask, values in [
      (lambda hp: hp.Choice('a', ['x', 'y', 'z']), ['x', 'y', 'z']),
      (lambda hp: hp.Boolean('a'), [False, True]),
      (lambda hp: hp.Int('a', 2, 9, 3), [2, 5, 8]),
      (lambda hp: hp.Int('a', 2, 4), [2, 3, 4]),
      (lambda hp: hp.Int('a', 16, 128, step=2, sampling='log'), [16, 32, 64, 128]),
      (lambda hp: hp.Float('a', 0.1, 0.3, step=0.1), [0.1, 0.2, 0.1 + 0.2])]:
    seen, counts = np.unique(draws(ask), return_counts=True)
    assert seen.tolist() == pytest.approx(values) if isinstance(
        values[0], float) else seen.tolist() == values
    assert stats.chisquare(counts).pvalue > 1e-3
  whole = draws(lambda hp: hp.Int('a', 1, 8, sampling='log'))
  expected = np.diff(np.log(np.arange(1, 10))) / math.log(9)
  assert stats.chisquare(np.bincount(whole)[1:], 3000 * expected).pvalue > 1e-3
  assert draws(lambda hp: hp.Fixed('a', 7), 2).tolist() == [7, 7]


def test_names_are_drawn_once_and_have_scopes():
  hp = settings()
  rate = hp.Float('rate', 0, 1)
  assert hp.Float('rate', 5, 6) == rate == hp.get('rate')
  with hp.name_scope('head'):
    inner = hp.Float('rate', 5, 6)
  assert inner >= 5 and hp.values == {'rate': rate, 'head/rate': inner}


@pytest.mark.parametrize('ask, words', [
    (lambda hp: hp.Float('a', 0, 1, sampling='log'), 'above 0 for logarithms'),
    (lambda hp: hp.Float('a', 2, 1), 'min_value <= max_value'),
    (lambda hp: hp.Float('a', 1, 2, sampling='bayesian'), "sampling='bayesian'"),
    (lambda hp: hp.Float('a', 1, 2, step=0), 'a step above 0'),
    (lambda hp: hp.Int('a', 1, 2, step=1, sampling='log'), 'above 1'),
    (lambda hp: hp.Int('a', 1, 2, step=0), 'a step above 0'),
    (lambda hp: hp.Int('a', 1.5, 2), 'min_value'),
    (lambda hp: hp.Int('a', 1, 2, step='a'), 'step to be a number'),
    (lambda hp: hp.Choice('a', {1, 2}), 'a list of values'),
    (lambda hp: hp.Choice('a', None), 'a list of values'),
    (lambda hp: hp.Choice('a', []), 'to choose from, got')])
def test_settings_without_a_law_are_refused(ask, words):
  with pytest.raises(ValueError, match=words):
    ask(settings())


def test_what_only_other_tuners_have_is_refused():
  with pytest.raises(AttributeError, match='knows no other runs'):
    settings().space()


def test_outcomes_of_a_plan_are_enumerated():
  def plan(hp):
    if hp.Boolean('large'):
      return {**PLAN, 'batch_size': 40, 'epochs': hp.Int('epochs', 1, 3)}
    return {**PLAN, 'batch_size': hp.Choice('batch', [5, 10]),
            'l2_norm_clip': hp.Float('clip', 0.1, 2)}

  outcomes = dict(tuning._outcomes(plan))
  found = {key: share for key, share, _ in outcomes.values()}
  assert sorted(found.values()) == pytest.approx([1 / 6] * 3 + [1 / 4] * 2)
  for seed in range(20):
    hp = settings(seed)
    assert tuning._key(plan(hp)) == outcomes[hp.path][0]
  with pytest.raises(ValueError, match='at most 64 outcomes'):
    dict(tuning._outcomes(lambda hp: {**PLAN, 'epochs': hp.Int('epochs', 1, 65)}))
  with pytest.raises(ValueError, match="'epochs' by steps"):
    dict(tuning._outcomes(lambda hp: {
        **PLAN, 'epochs': hp.Int('epochs', 1, 65, sampling='log')}))
  assert len(dict(tuning._outcomes(
      lambda hp: {**PLAN, 'epochs': hp.Int('epochs', 1, 64)}))) == 64


def test_settings_of_different_cost_are_accounted_as_a_mixture(coarse):  # noqa: F811
  search = search_of(plan=lambda hp: {
      **PLAN, 'epochs': hp.Choice('epochs', [1, 1, 3]),
      'l2_norm_clip': hp.Float('clip', 0.1, 1)})
  one, three = search.plans.values()
  assert 1.2 < three.noise.noise_multiplier / one.noise.noise_multiplier < 2.2
  event = accounting.SearchDpEvent(accounting.ListedRuns([0, 0, 0, 1]), [
      (2 / 3, dp_accounting.GaussianDpEvent(one.noise.noise_multiplier)),
      (1 / 3, dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(
          three.noise.noise_multiplier), 3))], score='public')
  found = tfcactus.search_guarantee(event, 1e-5, 'add-or-remove').upper
  assert search.guarantee.upper == pytest.approx(found, rel=1e-6)
  assert 1.98 < search.guarantee.upper <= 2.0


def test_a_winner_has_the_guarantee_of_the_search(coarse, tmp_path):  # noqa: F811
  search = search_of(lambda hp: build(hp), objective='val_loss',
                     runs=accounting.ListedRuns([0, 0, 1]))
  found = search.search(X, Y)
  loss, accuracy = found.model.evaluate(X, Y, verbose=0)
  assert -loss == pytest.approx(found.score, rel=1e-5) and 0 <= accuracy <= 1
  assert found.guarantee is search.guarantee and found.guarantee.upper <= 2.0
  assert 'one result of a search' in found.guarantee.statement
  assert found.model.plan.noise == next(iter(search.plans.values())).noise
  assert 1e-2 <= found.values['rate'] <= 1
  card = found.run_card()
  assert card['epsilon']['upper'] == search.guarantee.upper and 'reason' not in card
  assert card['statement'] == search.guarantee.statement
  assert card['sampling'] == 'poisson' and card['settings'] == found.values
  assert 'target_epsilon' not in card and not any(
      'hyperparameters' in each for each in card['not_covered'])
  assert any('early stopping' in each for each in card['not_covered'])
  # The smaller epsilon of the winning run alone is shown nowhere, nor after a save.
  with pytest.raises(ValueError, match='won a search'):
    found.model.guarantee()
  assert private.make_run_card(found.model)['epsilon'] is None
  found.model.save(tmp_path / 'm.keras')
  with pytest.raises(ValueError, match='No epsilon'):
    tf.keras.models.load_model(tmp_path / 'm.keras').guarantee()
  with pytest.raises(ValueError, match='not trained privately by another plan'):
    private.privatize(found.model.inner, tfcactus.PrivacyPlan.for_training(
        target_epsilon=1, delta=1e-5, **PLAN))


def test_losing_runs_leave_nothing(coarse, tmp_path, monkeypatch, capfd):  # noqa: F811
  monkeypatch.chdir(tmp_path)
  models = []

  def loud(hp):
    print('Building a model.')
    print('Building a model.', file=sys.stderr)
    warnings.warn('Building a model.', stacklevel=1)
    logging.getLogger('absl').error('Building a model.')
    models.append(weakref.ref(made := build(hp)))
    return made

  best = []
  search = search_of(loud, validation=lambda model: best.append(1) or len(best))
  with warnings.catch_warnings(record=True):
    found = search.search(X, Y)
  # Both models of the rehearsal, and no run.
  out, err = capfd.readouterr()
  assert out.count('Building') == 2 and err.count('Building') <= 4
  assert os.listdir(tmp_path) == [] and found.model.history is None
  gc.collect()
  assert [each() is not None for each in models] == [False] * 4 + [True]
  assert found.score == 4 and found.model.name == 'private_sequential'
  # Names of layers, metrics of the last epoch and seeds tell no place of a run.
  assert [layer.name for layer in found.model.inner.layers][-1] in ('dense', 'dense_1')
  assert tf.keras.layers.Dense(1).name == 'dense'
  assert all(not np.any(np.asarray(value)) for metric in found.model.metrics
             for value in metric.variables)
  assert logging.root.manager.disable == logging.NOTSET


@pytest.mark.more
def test_the_model_that_a_search_leaves_is_weights_alone(coarse, tmp_path):  # noqa: F811
  x, y = X.copy(), Y.copy()
  watched = [weakref.ref(each) for each in (x, y)]
  found = search_of(validation=lambda model: 1.0,
                    runs=accounting.FixedRuns(1)).search(x, y)
  del x, y
  gc.collect()
  assert [each() for each in watched] == [None, None]
  model = found.model
  model.save(tmp_path / 'm.keras')
  again = tf.keras.models.load_model(tmp_path / 'm.keras')
  np.testing.assert_allclose(
      again.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5)
  # More training, on the same data, has no epsilon of its own.
  with pytest.warns(UserWarning, match='beyond steps=1'):
    model.fit(private.PoissonBatches(X, Y, batch_size=N), verbose=0)
  with pytest.raises(ValueError, match='won a search'):
    model.guarantee()


@pytest.mark.more
def test_a_search_enters_an_account_before_its_first_run(coarse, tmp_path):  # noqa: F811
  sides = private.Split(0.25, key=bytes(32)).sides(X, Y)
  trained = sides.training.num_examples
  validation = private.PrivateValidation(
      sides.validation, noise=tfcactus.Gaussian(9.0), releases=1, num_examples=10,
      metrics=[('loss', 2.0)])
  search = search_of(
      runs=accounting.FixedRuns(1), validation=validation,
      plan={**PLAN, 'num_examples': trained, 'batch_size': trained},
      objective=('val_private_loss', 'min'))
  # The event holds both sides: their composition costs more than the maximum.
  whole = accounting.PhiAccountant().compose(search.event).get_epsilon(1e-5)
  assert search.guarantee.upper <= whole
  found, least = [], tfcactus.DataAccount(tmp_path / 'least', epsilon=1, delta=1e-5)
  run, search._run = search._run, lambda *args: found.append(
      len(account.entries)) or run(*args)
  with pytest.raises(ValueError, match='release nothing'):
    search.search(sides.training, account=least)
  with pytest.raises(ValueError, match='account to be a DataAccount'):
    search.search(sides.training, account=str(tmp_path))
  assert not found and not least.entries and search._begun == 0
  account = tfcactus.DataAccount(tmp_path / 'account', epsilon=9, delta=1e-5)
  # The noisy loss may be below zero.
  assert search.search(sides.training, account=account) is not None
  assert found == [1] and account.entries[0]['label'] == 'search'
  assert account.epsilon_if_planned() >= whole


@pytest.mark.more
def test_models_of_a_seeded_process_start_apart(coarse):  # noqa: F811
  starts = []

  def seen(hp):
    made = build(hp)
    starts.append(float(np.sum(made.get_weights()[0])))
    return made

  search = search_of(seen, searches=2)
  for _ in range(2):
    tf.keras.utils.set_random_seed(7)
    search.search(X, Y)
  assert len(set(starts)) >= 8  # But for the rehearsals, all runs differ.


@pytest.mark.more
def test_failures_cannot_win(coarse):  # noqa: F811
  calls = []

  def sometimes(model):
    del model
    calls.append(1)
    if len(calls) == 1:
      return 0.0  # The rehearsal.
    if len(calls) == 2:
      raise RuntimeError('It fails.')
    return math.nan if len(calls) == 3 else -5.0

  assert search_of(validation=sometimes).search(X, Y).score == -5.0
  calls[:] = [1]

  def fails(hp):
    if len(calls) > 2:
      raise RuntimeError('It fails.')
    calls.append(1)
    return build(hp)

  assert search_of(fails).search(X, Y) is None
  none = {'runs': accounting.ListedRuns([1 - 1e-9, 1e-9])}
  assert search_of(**none).search(X, Y) is None
  validation = private.PrivateValidation(
      X, Y, noise=tfcactus.Gaussian(40.0), releases=1, num_examples=len(X))
  assert search_of(**none, validation=validation, objective='val_private_accuracy'
                   ).search(X, Y) is None


def _killed():
  """Returns a validation that is interrupted in its second call."""
  calls = []

  def validation(model):
    del model
    calls.append(1)
    if len(calls) == 2:
      raise KeyboardInterrupt
    return 1.0

  return validation


def test_a_search_that_is_broken_off_counts(coarse, tmp_path):  # noqa: F811
  path, killed = tmp_path / 'journal', _killed()
  of_one_run = functools.partial(search_of, runs=accounting.FixedRuns(1))

  with pytest.raises(KeyboardInterrupt):
    of_one_run(validation=killed, journal=path).search(X, Y)
  with pytest.raises(ValueError, match='1 began before, and one that was broken off'):
    of_one_run(validation=killed, journal=path).search(X, Y)
  with pytest.raises(ValueError, match='the journal of another'):
    of_one_run(journal=path, target_epsilon=3.0).search(X, Y)


@pytest.mark.more
def test_a_search_planned_for_two_goes_on(coarse, tmp_path):  # noqa: F811
  """Each of both costs less."""
  other, killed = tmp_path / 'other', _killed()
  of_one_run = functools.partial(search_of, runs=accounting.FixedRuns(1))

  with pytest.raises(KeyboardInterrupt):
    of_one_run(validation=killed, journal=other, searches=2).search(X, Y)
  again = of_one_run(validation=killed, journal=other, searches=2)
  assert again.search(X, Y) is not None and again.guarantee.upper <= 2.0
  assert again.guarantee.lower > of_one_run(plan={
      **PLAN}, target_epsilon=1.0).guarantee.lower
  assert 'results of 2 searches' in again.guarantee.statement
  with pytest.raises(ValueError, match='2 began before'):
    again.search(X, Y)


@pytest.mark.more
def test_mistakes_show_before_a_search_counts(coarse):  # noqa: F811
  one = build(settings())
  search = search_of(lambda hp: one)
  with pytest.raises(ValueError, match='share variables; make all layers inside'):
    search.search(X, Y)
  for make, words in [
      (lambda hp: tf.keras.Sequential([tf.keras.layers.Dense(3)]), 'a compiled'),
      (lambda hp: hp.Float('x', 1, 0), 'min_value'), (lambda hp: 3, 'a compiled')]:
    search._build = make
    with pytest.raises(ValueError, match=words):
      search.search(X, Y)
  search._build = build
  with pytest.raises(ValueError, match='num_examples'):
    search.search(X[:20], Y[:20])
  assert search.search(X, Y) is not None


@pytest.mark.parametrize('batches, words', [
    (lambda data, plan: private.PoissonBatches(data, sampling_prob=1.0, seed=1),
     'unseeded batches by PoissonSampling'),
    (lambda data, plan: private.FixedSizeBatches(data, batch_size=N),
     'unseeded batches by PoissonSampling'),
    (lambda data, plan: private.PoissonBatches(data, sampling_prob=0.5),
     'sampling_prob')])
def test_batches_that_the_guarantee_does_not_count_are_refused(
    batches, words, coarse):  # noqa: F811
  with pytest.raises(ValueError, match=words):
    search_of(batches=batches).search(X, Y)


def test_costs_that_a_plan_hides_are_refused(coarse):  # noqa: F811
  def hidden(hp):
    return {**PLAN, 'epochs': 2 if hp.Float('x', 0, 1) >= 0 else 1}

  with pytest.raises(ValueError, match='l2_norm_clip alone may'):
    search_of(plan=hidden).search(X, Y)


def test_sampling_without_an_account_for_the_relation_is_refused():
  with pytest.raises(ValueError, match='no account of that is known'):
    search_of(plan={**PLAN, 'sampling': sampling.OnePassSampling})


@pytest.mark.more
def test_bands_of_correlated_noise_can_be_searched(coarse):  # noqa: F811
  search = search_of(runs=accounting.FixedRuns(1), plan=lambda hp: {
      **PLAN, 'batch_size': 10, 'epochs': 2,
      'correlation': tfcactus.correlated.BandedStrategy(hp.Choice('bands', [2, 4]))})
  assert len(search.plans) == 2
  found = search.search(X, Y)
  assert found.model.plan.groups == found.values['bands']
  assert found.sampling == found.run_card()['sampling'] != 'unknown'


@pytest.mark.more
def test_validation_people_pay_for_scores_alone(coarse):  # noqa: F811
  sides = private.Split(0.25, key=bytes(32)).sides(X, Y)
  trained = sides.training.num_examples
  validation = private.PrivateValidation(
      sides.validation, noise=tfcactus.Gaussian(9.0), releases=1, num_examples=10)
  plan = {**PLAN, 'num_examples': trained, 'batch_size': trained}
  search = search_of(validation=validation, objective='val_private_accuracy', plan=plan)
  one, other = (each.upper for each in search.guarantee.sides)
  law = accounting.ListedRuns([0, 0, 0, 1])
  assert other == pytest.approx(tfcactus.search_guarantee(accounting.SearchDpEvent(
      law, dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(9.0), 2),
      score='released'), 1e-5, 'add-or-remove').upper, rel=1e-6)
  assert other < one == search.guarantee.upper <= 2.0
  scores = []
  score, search._score = search._score, lambda model: scores.append(
      score(model)) or scores[-1]
  found = search.search(sides.training)
  assert len(scores) == 3 and found.score == max(scores)
  assert len(set(scores)) == 3  # Each run draws noise of its own.
  # Runs of more releases than planned, or of none, would all fail in secret.
  for epochs, every in ((2, 1), (1, 2), (4, 2)):
    with pytest.raises(ValueError, match='Expected 1 to 1 releases of validation'):
      search_of(validation=private.PrivateValidation(
          sides.validation, noise=tfcactus.Gaussian(9.0), releases=1, every=every,
          num_examples=10), objective='val_private_accuracy', plan={
              **plan, 'epochs': epochs})
  # Without a split, the costs of both add up in each run.
  both = search_of(
      validation=private.PrivateValidation(
          X, Y, noise=tfcactus.Gaussian(9.0), releases=1, num_examples=10),
      objective='val_private_accuracy')
  assert not both.guarantee.sides
  first, second = (next(iter(each.plans.values())).noise.noise_multiplier
                   for each in (search, both))
  assert second > first
  moved = private.Split(0.25, by='id').sides(X, Y, ids=np.arange(N))
  for options in ({'objective': 'val_accuracy'}, {'neighboring_relation': 'replace'}):
    with pytest.raises(ValueError, match='val_private_|a split by id'):
      search_of(validation=private.PrivateValidation(
          moved.validation, noise=tfcactus.Gaussian(9.0), releases=1, num_examples=10),
          plan=plan, **{'objective': 'val_private_accuracy', **options})


@pytest.mark.parametrize('options, words', [
    ({'objective': 'accuracy'}, 'training data without noise.* 1.487'),
    ({'objective': 'val_auc'}, "'min' or 'max'"),
    ({'objective': 5}, 'got 5'), ({'objective': ('val_auc',)}, "'min' or 'max'"),
    ({'max_trials': 10}, 'all runs count'), ({'seed': 1}, 'all runs count'),
    ({'oracle': 'bayesian'}, 'a grid, Bayesian search'),
    ({'runs': 10}, 'a law of the number of runs'),
    ({'validation': X}, 'public data'), ({'build': None}, 'a function of hp'),
    ({'plan': {**PLAN, 'noise': tfcactus.Gaussian(1.0)}}, 'without .*noise'),
    ({'plan': {'epochs': 1}}, 'a dict with batch_size'),
    ({'plan': {'epochs': 1, 'batch_size': 8, 'l2_norm_clip': 1.0, 1: 2}},
     'a dict with batch_size'),
    ({'plan': lambda hp: None}, 'a dict with batch_size'),
    ({'plan': lambda hp: {**PLAN, 'epochs': hp.Float('e', 1, 2)}}, 'epochs'),
    ({'target_epsilon': 0}, 'target_epsilon'), ({'searches': 0}, 'searches')])
def test_searches_without_an_account_are_refused(options, words):
  with pytest.raises(ValueError, match=words):
    search_of(**options)
