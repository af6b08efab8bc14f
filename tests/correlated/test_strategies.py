"""Strategies of correlated noise: errors, matrices, draws and files."""

import copy
import fractions
import json

import numpy as np
import pytest
from scipy import optimize

from tfcactus import correlated
from tfcactus.correlated import base, Workload

RNG = np.random.default_rng(0)
COSINE = 0.05 + 0.475 * (1 + np.cos(np.pi * np.arange(60) / 60))
WORKLOADS = (Workload(), Workload(momentum=0.8), Workload(COSINE),
             Workload(COSINE, momentum=0.5))
STRATEGIES = (
    correlated.BandedStrategy(1).solve(60), correlated.BandedStrategy(5).solve(60),
    correlated.BandedToeplitz([0.6, -0.3, 0.2]),
    correlated.BlockedStrategy(1).solve(60), correlated.BlockedStrategy(4).solve(60),
    correlated.BlockedBidiagonal([0.5, -0.2]))


def name_of(each):
  return f'{each.kind}{each.bands}' if isinstance(each, correlated.Strategy) else ''


strategies = pytest.mark.parametrize('strategy', STRATEGIES, ids=name_of)


def by_loop(strategy, steps, workload):
  """Errors from dense matrices and an optimizer that is run on each unit vector."""
  inverse = np.linalg.inv(strategy.matrix(steps))
  rates = np.array(workload.learning_rates or [1.0] * steps)
  rates = rates / np.sqrt(np.mean(rates**2))
  squares = np.zeros(steps)
  for column in inverse.T:
    weight = velocity = 0.0
    for step, (rate, released) in enumerate(zip(rates, column)):
      velocity = workload.momentum * velocity + released
      weight += rate * velocity
      squares[step] += weight**2
  return np.sqrt(squares)


@pytest.mark.parametrize('workload', WORKLOADS)
@strategies
def test_errors_are_those_of_an_optimizer_run_step_by_step(strategy, workload):
  found = strategy.errors(60, workload)
  np.testing.assert_allclose(found, by_loop(strategy, 60, workload), rtol=1e-9)
  assert strategy.error(60, workload) == pytest.approx(
      np.sqrt(np.mean(found**2)), rel=1e-12)


@strategies
def test_no_column_is_longer_than_one_in_exact_arithmetic(strategy):
  if strategy.kind == 'banded_toeplitz':
    columns = [[fractions.Fraction(c) for c in strategy.coefficients.tolist()]]
  else:
    shares = [fractions.Fraction(s) for s in strategy.shares.tolist()]
    scales = [fractions.Fraction(s) for s in strategy.scales.tolist()]
    columns = []
    for place, scale in enumerate(scales):
      column = [1 / scale]
      for share in shares[place:]:
        column.append(column[-1] * share)
      columns.append(column)
  norms = [sum(entry * entry for entry in column) for column in columns]
  assert max(norms) <= 1
  if strategy.bands > 1 and strategy is not STRATEGIES[2]:
    assert max(norms) > 1 - fractions.Fraction(1, 10**9)


@strategies
def test_what_is_drawn_is_the_inverse_of_the_matrix(strategy):
  z = RNG.normal(size=(200, 3))
  rows, given = strategy.rows(), iter(z.copy())
  x = np.stack([rows.next(lambda: next(given)) for _ in z])
  np.testing.assert_allclose(strategy.matrix(200) @ x, z, atol=1e-11)
  np.testing.assert_allclose(
      strategy.inverse_column(7, 200), np.linalg.inv(strategy.matrix(200))[7:, 7],
      atol=1e-12)
  # Begun anew, nothing is left of what was.
  rows.restart()
  again = iter(z.copy())
  np.testing.assert_array_equal(rows.next(lambda: next(again)), x[0])
  np.testing.assert_array_equal(rows.next(lambda: next(again)), x[1])


@strategies
def test_the_product_is_that_of_the_matrix_and_is_undone_by_draws(strategy):
  product, rows = strategy.product(), strategy.rows()
  for steps in (1, 7, 60):  # Begun anew, nothing is left of what was.
    given = RNG.normal(size=(steps, 3))
    product.restart()
    rows.restart()
    found = np.stack([product.next(row) for row in given])
    np.testing.assert_allclose(found, strategy.matrix(steps) @ given, atol=1e-14)
    back = np.stack([rows.next(row.copy) for row in found])
    np.testing.assert_allclose(back, given, atol=1e-12)


def exact_matrix(strategy, steps):
  """Returns C in rational numbers, a list of rows."""
  fields = {name: [fractions.Fraction(each) for each in getattr(
      strategy, name).tolist()] for name in ('coefficients', 'shares', 'scales')
            if hasattr(strategy, name)}
  matrix = [[fractions.Fraction(0)] * steps for _ in range(steps)]
  for step in range(steps):
    if 'coefficients' in fields:
      column = fields['coefficients']
    else:
      place = step % strategy.bands
      column = [1 / fields['scales'][place]]
      for share in fields['shares'][place:]:
        column.append(column[-1] * share)
    for row, entry in zip(matrix[step:], column):
      row[step] = entry
  return matrix


@pytest.mark.parametrize('strategy', [
    correlated.BandedStrategy(2).solve(60), correlated.BandedStrategy(16).solve(60),
    correlated.BandedToeplitz([0.6, -0.3, 0.2]), correlated.BlockedBidiagonal([-1.5]),
    correlated.BlockedStrategy(16).solve(60),
    correlated.BlockedBidiagonal([0.5, -0.2, 3.0, -1.0])], ids=name_of)
def test_rounding_of_the_product_is_within_what_is_proved(strategy):
  steps, bands = 3 * strategy.bands, strategy.bands
  exact = exact_matrix(strategy, steps)
  gamma = fractions.Fraction(2 * bands, 2**53 - 2 * bands)
  used = 0
  for trial in range(4):
    given = RNG.normal(size=(steps, 4)) * 10.0**RNG.integers(-8, 8, (steps, 4))
    if trial % 2:  # Rows that nearly cancel: the product is small numbers.
      small, rows = RNG.normal(size=(steps, 4)), strategy.rows()
      given[bands:] = np.stack([rows.next(row.copy) for row in small])[bands:]
    product = strategy.product()
    for t in range(steps):
      found = product.next(given[t])
      for i in range(4):
        terms = [exact[t][s] * fractions.Fraction(given[s, i]) for s in range(t + 1)]
        error = abs(fractions.Fraction(found[i]) - sum(terms))
        assert error <= gamma * sum(map(abs, terms))
        used = max(used, error)
  assert used > 0


def test_rounding_of_products_of_shares_is_counted_in_norms():
  # The norm of unit() leaves room for some 4,000 bands.
  correlated.BandedToeplitz(base.unit(0.999**np.arange(2000)))
  found = base._squared_norm(np.array([0.6, 0.8] + [0.0] * 198))
  assert 1 + 203 * 2.0**-53 < found < 1 + 210 * 2.0**-53


def test_draws_that_are_repeated_give_what_kept_ones_do():
  strategy, z = STRATEGIES[4], RNG.normal(size=(50, 3))
  rows, step = strategy.rows(), 0
  drawn = []
  for step in range(50):
    drawn.append(rows.next(lambda step=step: z[step].copy(),
                           lambda step=step: z[step - 1].copy()))
    assert rows._last is None  # Nothing of the model's size is held.
  np.testing.assert_allclose(strategy.matrix(50) @ np.stack(drawn), z, atol=1e-11)


@pytest.mark.parametrize('steps,bands,error', [
    (1000, 4, 11.4310008892), (1000, 16, 6.2781619343), (1200, 16, 6.7959908814),
    (1200, 30, 5.3870406396), (4800, 16, 12.8049829580)])
def test_banded_errors_are_those_of_jax_privacy(steps, bands, error):
  # Of its optimize_banded_toeplitz, version 2.0.
  found = correlated.BandedStrategy(bands).solve(steps)
  assert found.error(steps) == pytest.approx(error, abs=2e-10)


def test_banded_coefficients_are_those_of_jax_privacy():
  found = correlated.BandedStrategy(16).solve(1200)
  np.testing.assert_allclose(
      found.coefficients[:4], [.46270681, .31338307, .27792333, .26004228], atol=5e-8)


@pytest.mark.parametrize('workload', WORKLOADS)
def test_no_change_of_a_banded_optimum_helps(workload):
  found = correlated.BandedStrategy(4, workload).solve(60)
  least = found.error(60, workload)

  def error(others):
    free = np.append(1.0, others)
    return correlated.BandedToeplitz(
        free / np.linalg.norm(free) * (1 - 1e-12)).error(60, workload)

  direct = optimize.minimize(
      error, found.coefficients[1:] / found.coefficients[0] + 0.05,
      method='Nelder-Mead', options={'xatol': 1e-7, 'fatol': 1e-10, 'maxiter': 2000})
  # Rates are looked at in some steps only, 60 of 60 here.
  assert least <= direct.fun * (1 + 1e-7)


def test_no_change_of_a_blocked_optimum_helps():
  found = correlated.BlockedStrategy(4).solve(24)
  direct = optimize.minimize(
      lambda shares: by_loop(correlated.BlockedBidiagonal(shares), 24, Workload()
                            ) @ by_loop(correlated.BlockedBidiagonal(shares), 24,
                                        Workload()),
      [0.7, 0.7, 0.7], method='Nelder-Mead', options={
          'xatol': 1e-8, 'fatol': 1e-12, 'maxiter': 4000})
  assert found.error(24) == pytest.approx(np.sqrt(direct.fun / 24), rel=1e-8)
  np.testing.assert_allclose(found.shares, direct.x, atol=1e-3)


def test_blocked_errors_are_less_than_of_shares_below_one():
  # The design's own values, of a search in which no step takes back more than the
  # draw before.
  for steps, bands, error in ((24, 4, 2.39934146), (1200, 4, 14.27007539),
                              (1200, 16, 8.43836438), (1200, 30, 7.02264250)):
    found = correlated.BlockedStrategy(bands).solve(steps)
    assert found.error(steps) < error and found.shares[-1] > 1
  assert correlated.BlockedBidiagonal([1.0, 1.0, 1.0]).error(1200) == pytest.approx(
      14.27007539, rel=1e-5)


def test_more_bands_leave_less_and_one_is_independent_noise():
  errors = [correlated.BandedStrategy(bands).solve(240).error(240)
            for bands in (1, 2, 4, 8, 16, 60, 240)]
  assert errors[0] == pytest.approx(np.sqrt(241 / 2))
  assert all(b < a for a, b in zip(errors, errors[1:]))
  blocked = [correlated.BlockedStrategy(bands).solve(240).error(240)
             for bands in (1, 2, 4, 8, 16)]
  assert blocked[0] == errors[0]
  assert all(a < b < 1.25 * a for a, b in zip(errors[1:5], blocked[1:]))


@pytest.mark.parametrize('make,words', [
    (lambda: correlated.BandedToeplitz([0.8, 0.6]), 'norm of at most one'),
    (lambda: correlated.BandedToeplitz([-0.5, 0.5]), 'first is positive'),
    (lambda: correlated.BandedToeplitz([0.0, 0.5]), 'first is positive'),
    (lambda: correlated.BandedToeplitz([]), 'at least one entry'),
    (lambda: correlated.BandedToeplitz([0.5, np.nan]), 'finite entries'),
    (lambda: correlated.BandedToeplitz([1e-3] + 20 * [0.2]), 'does not grow'),
    (lambda: correlated.BandedToeplitz([0.5]), 'one if it is the only one'),
    (lambda: correlated.BlockedBidiagonal([0.0, 1e150]), 'does not grow'),
    (lambda: correlated.BandedToeplitz([0.6, 0.63]).check_growth(4800),
     'within 4800 steps'),
    (lambda: correlated.BandedStrategy(4, 0.9), 'workload=tfcactus'),
    (lambda: Workload(0.1), 'learning_rates to be a vector'),
    (lambda: Workload(None), 'learning_rates to be a vector'),
    (lambda: Workload([True, 1.0]), 'learning_rates to be a vector'),
    (lambda: STRATEGIES[1].errors('a'), 'steps to be an integer'),
    (lambda: STRATEGIES[1].error(0), 'steps >= 1'),
    (lambda: STRATEGIES[4].matrix(-1), 'steps >= 1'),
    (lambda: correlated.from_config([1, 2]), 'a mapping with kind'),
    (lambda: correlated.from_config({'kind': []}), 'a mapping with kind'),
    (lambda: correlated.from_config({'kind': 'banded_toeplitz', 'coefficients': [2.0,
                                     1.0]}), 'but: Expected columns of a norm'),
    (lambda: correlated.save(correlated.BandedStrategy(4), 'x.json'), 'solve.steps'),
    (lambda: correlated.BlockedBidiagonal([1e200]), 'Expected'),
    (lambda: correlated.BlockedBidiagonal([np.inf]), 'finite entries'),
    (lambda: correlated.BandedStrategy(0), 'bands >= 1'),
    (lambda: correlated.BandedStrategy(2.5), 'bands to be an integer'),
    (lambda: correlated.BandedStrategy(11).solve(10), 'bands=11 of 10 steps'),
    (lambda: correlated.BandedStrategy(3, Workload([1.0, 2.0])).solve(9), 'each of 9'),
    (lambda: Workload([1.0, -1.0]), 'at least zero'),
    (lambda: Workload([0.0, 0.0]), 'not all of them zero'),
    (lambda: Workload(momentum=1.0), 'below 1'),
    (lambda: Workload(momentum=-0.1), '>= 0'),
])
def test_bad_strategies_are_refused_in_words(make, words):
  with np.errstate(all='ignore'), pytest.raises(ValueError, match=words):
    make()


@strategies
def test_files_keep_a_strategy_to_the_last_digit(strategy, tmp_path):
  path = tmp_path / 'strategy.json'
  correlated.save(strategy, path)
  again = correlated.load(path)
  assert again == strategy and hash(again) == hash(strategy)
  np.testing.assert_array_equal(again.matrix(20), strategy.matrix(20))
  assert strategy.digest in repr(again)
  assert [each for each in STRATEGIES if each == strategy] == [strategy]


def test_files_that_were_altered_are_refused(tmp_path):
  path = tmp_path / 'strategy.json'
  correlated.save(STRATEGIES[1], path)
  config = json.loads(path.read_text())
  config['coefficients'][1] *= 0.99
  path.write_text(json.dumps(config))
  with pytest.raises(ValueError, match='altered'):
    correlated.load(path)
  path.write_text(json.dumps({'kind': 'dense', 'digest': ''}))
  with pytest.raises(ValueError, match='banded_toeplitz or blocked_bidiagonal'):
    correlated.load(path)
  path.write_text('noise')
  with pytest.raises(ValueError, match='to be JSON'):
    correlated.load(path)
  with pytest.raises(ValueError, match='end in ".json"'):
    correlated.save(STRATEGIES[1], tmp_path / 'strategy.npz')


@strategies
def test_strategies_are_frozen(strategy):
  for name in ('coefficients', 'shares', 'scales', '_numbers', 'bands', 'rows'):
    with pytest.raises(AttributeError, match='make another one'):
      setattr(strategy, name, 1e-6)
  before = strategy.matrix(20)
  for array in (getattr(copy.deepcopy(strategy), 'coefficients', None),
                getattr(strategy, 'shares', None), getattr(strategy, 'scales', None),
                getattr(strategy, 'coefficients', None)):
    if array is not None:
      array *= 5
  np.testing.assert_array_equal(strategy.matrix(20), before)


def test_other_strategies_and_requests_are_not_accounted():

  class Long(correlated.BandedToeplitz):

    def _check(self):
      pass

  class Quiet(correlated.BandedToeplitz):

    def rows(self):
      return correlated.BandedToeplitz([1.0]).rows()

  class Nothing(correlated.Correlation):

    def solve(self, steps):
      return None

  class Again(correlated.Correlation):

    def solve(self, steps):
      return correlated.BandedStrategy(self.bands)

  with pytest.raises(ValueError, match='whose inverse float64 can apply'):
    Quiet([0.7, 0.2])
  for found in (Long([1.0, 0.9]), Nothing(2), Again(2)):
    with pytest.raises(ValueError, match='BandedToeplitz|to come to a strategy'):
      correlated.solved(found, 100)


@pytest.mark.parametrize('scale', [1e200, 1e-200])
def test_only_ratios_of_learning_rates_matter(scale):
  np.testing.assert_array_equal(
      Workload([2.0 * scale, scale]).rates(2), Workload([2.0, 1.0]).rates(2))
