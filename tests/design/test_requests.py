"""Bad requests raise a ValueError that names the argument, before any solving."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys

import hypothesis
from hypothesis import strategies as st
import pytest

from tfcactus import design, noise

BAD_NUMBERS = [math.nan, math.inf, -math.inf, 0.0, -1.0, True, None, '1',
               1j, [1.0]]


@pytest.mark.parametrize('bad', BAD_NUMBERS, ids=repr)
@pytest.mark.parametrize('make, name', [
    (design.Cactus, 'budget'),
    (design.Monotone, 'budget'),
    (lambda x: design.Cactus(1.0, power=x), 'power'),
    (lambda x: design.Isotropic(3, budget=x), 'budget'),
    (lambda x: design.Isotropic(3, noise_multiplier=x), 'noise_multiplier'),
    (design.DiscretizedGaussian, 'noise_multiplier'),
    (design.DiscretizedLaplace, 'scale'),
    (lambda x: design.RadialGaussian(3, x), 'noise_multiplier'),
])
def test_bad_numbers(make, name, bad):
  with pytest.raises(ValueError, match=name):
    make(bad)


@pytest.mark.parametrize('bad', [0, -3, 2.5, math.nan, True, '2'], ids=repr)
@pytest.mark.parametrize('make, name', [
    (lambda x: design.Cactus(1.0, bins=x), 'bins'),
    (lambda x: design.Cactus(1.0, cells=x), 'cells'),
    (lambda x: design.Isotropic(x, 1.0), 'dim'),
    (lambda x: design.Isotropic(3, 1.0, bins=x), 'bins'),
    (lambda x: design.Isotropic(3, 1.0, cells=x), 'cells'),
    (lambda x: design.RadialGaussian(x, 1.0), 'dim'),
    (lambda x: design.DiscretizedGaussian(1.0, bins=x), 'bins'),
    (lambda x: design.DiscretizedGaussian(1.0, cells=x), 'cells'),
    (lambda x: design.DiscretizedLaplace(1.0, bins=x), 'bins'),
])
def test_bad_counts(make, name, bad):
  with pytest.raises(ValueError, match=name):
    make(bad)


@pytest.mark.parametrize('make, name', [
    (lambda: design.Cactus(2.0, power=1e-4), 'budget'),
    (lambda: design.Cactus(2.0, bins=10**400), 'bins'),
    (lambda: design.Isotropic(3, 1e200), 'budget'),
    (lambda: design.Isotropic(3, 1.0, bins=10**400), 'bins'),
    (lambda: design.DiscretizedGaussian(1e307), 'noise_multiplier'),
    (lambda: design.DiscretizedGaussian(1.0, cells=10**400), 'cells'),
    (lambda: design.DiscretizedLaplace(1e-310), 'scale'),
    (lambda: design.DiscretizedLaplace(1.0, bins=10**400), 'bins'),
    (lambda: design.DiscretizedSinhNormal(1.0, 1.0, cells=100_000), 'last cell'),
    (lambda: design.Staircase(5e-324), 'stairs'),
    (lambda: design.Staircase(1.0, bins=10**400), 'bins'),
    (lambda: design.RadialGaussian(10**400, 1.0), 'dim'),
    (lambda: noise.library.find('cactus', 10**400, budget=1.0), 'dim'),
])
def test_numbers_beyond_floats_are_refused_by_name(make, name):
  with pytest.raises(ValueError, match=name):
    make()


@hypothesis.settings(deadline=None, max_examples=30)
@hypothesis.given(st.one_of(
    st.floats(max_value=0), st.floats(min_value=1), st.just(math.nan)))
def test_bad_tail_ratio(ratio):
  for make in (lambda: design.Cactus(1.0, tail_ratio=ratio),
               lambda: design.Isotropic(3, 1.0, tail_ratio=ratio),
               lambda: design.DiscretizedGaussian(1.0, tail_ratio=ratio)):
    with pytest.raises(ValueError, match='tail_ratio'):
      make()


@hypothesis.settings(deadline=None, max_examples=10)
@hypothesis.given(bins=st.integers(1, 60), short=st.integers(0, 59))
def test_cells_must_exceed_bins(bins, short):
  cells = max(bins - short, 1)
  for make in (lambda: design.Cactus(1.0, bins=bins, cells=cells),
               lambda: design.Isotropic(3, 1.0, bins=bins, cells=cells)):
    with pytest.raises(ValueError, match='cells > bins'):
      make()


@pytest.mark.parametrize('make, words', [
    (lambda: design.Cactus(1.0, solver='mosek'), 'solver'),
    (lambda: design.Monotone(1.0, objective='tv'), 'objective'),
    (lambda: design.Monotone(1.0, objective=['kl']), 'objective'),
    (lambda: design.Isotropic(3, 1.0, objective=''), 'objective'),
    (lambda: design.Isotropic(3), 'exactly one'),
    (lambda: design.Isotropic(3, 1.0, budget=3.0), 'exactly one'),
    (lambda: design.Isotropic(3, 1.0, power=1.0), 'power'),
    (lambda: design.Isotropic(10**6, 90.0), 'tfcactus.Gaussian'),
    (lambda: design.Isotropic(10**7, 1.0), 'tfcactus.Gaussian'),
    (lambda: design.Cactus(1e-6), 'budget'),
    (lambda: design.Cactus(1.0, tail_ratio=1e-300), 'tail_ratio between'),
    (lambda: design.Cactus(1.0, tail_ratio=1 - 1e-9), 'tail_ratio between'),
    (lambda: design.Isotropic(3, 1.0, tail_ratio=1 - 1e-9),
     'tail_ratio between'),
    (lambda: design.Cactus(1e9), 'budget'),
    (lambda: design.Cactus(1.0, bins=50_000), '50000'),
    (lambda: design.Isotropic(3, 1.0, cells=10**9), '50000'),
    (lambda: design.DiscretizedGaussian(0.001), 'raise bins'),
    (lambda: design.DiscretizedGaussian(1.0, cells=3), 'raise cells'),
    (lambda: design.DiscretizedGaussian(1e9), 'lower bins'),
    (lambda: design.DiscretizedLaplace(1e9), 'lower bins'),
    (lambda: design.Staircase(2000.0), 'epsilon <= 700'),
    (lambda: design.RadialGaussian(3, 1.0, width=5.0), 'width'),
    (lambda: design.RadialGaussian(3, 1.0, width=1e-9), 'width'),
    (lambda: design.RadialGaussian(3, 1.0, width=math.nan), 'width'),
])
def test_bad_combinations(make, words):
  with pytest.raises(ValueError, match=words):
    make()


def test_a_grid_too_coarse_for_its_budget():
  with pytest.raises(ValueError, match='raise bins'):
    design.Cactus(0.01, bins=2).solve()


@hypothesis.settings(deadline=None, max_examples=12)
@hypothesis.given(sigma=st.floats(0.3, 8.0), power=st.floats(0.5, 4.0))
def test_any_modest_budget_solves(sigma, power):
  table = design.Monotone(sigma**power, power=power, bins=6).solve()
  assert table.info['gap'] <= 1e-6
  assert table.moment(power) <= sigma**power * (1 + 1e-9)


def test_verify_refuses_tables_without_a_certificate():
  with pytest.raises(ValueError, match='certificate'):
    design.verify(design.RadialGaussian(3, 1.0).solve())


def test_verify_catches_a_false_claim():
  table = design.Monotone(1.0, bins=6).solve()
  info = dict(table.info)
  info['parameters'] = {**info['parameters'], 'budget': 0.9}
  liar = noise.ScalarTable(table.bins, table.log_density, table.log_tail_ratio,
                           info)
  with pytest.raises(design.SolverError, match='cost'):
    design.verify(liar)
  worse = noise.ScalarTable.normalized(
      table.bins, table.log_density * 1.05, table.log_tail_ratio, table.info)
  with pytest.raises(design.SolverError, match='gap'):
    design.verify(worse)


@pytest.mark.parametrize('entry, value', [
    ('multipliers', 'x'), ('multipliers', {}), ('parameters', [1]), ('solver', ['a']),
    ('price', None), ('price', 'x'), ('shifts', [1]), ('shifts', {}),
    ('shifts', {'6': 'x'}), ('shifts', {'99': 1.0}), ('shifts', {'6': -1.0}),
    ('power', 'x'), ('objective', 'x'), ('budget', 'x'), ('budget', -1.0),
    ('budget', 0)])
def test_verify_refuses_info_that_no_design_wrote(entry, value):
  table = design.Monotone(1.0, bins=6).solve()
  info = dict(table.info)
  for group in ('multipliers', 'parameters'):
    if entry in info[group]:
      info[group] = {**info[group], entry: value}
  if entry in info:
    info[entry] = value
  with pytest.raises(ValueError, match='Expected .*got'):
    design.verify(dataclasses.replace(table, info=info))


def test_verify_takes_no_bound_from_a_negative_price():
  table = design.Monotone(1.0, bins=6).solve()
  info = {**table.info, 'parameters': {**table.info['parameters'], 'budget': 1e9},
          'multipliers': {**table.info['multipliers'], 'price': -1.0}}
  with pytest.raises(design.SolverError, match='gap'):
    design.verify(dataclasses.replace(table, info=info))


@pytest.mark.slow
def test_importing_design_loads_neither_cvxpy_nor_tensorflow():
  code = ('import sys; import tfcactus.design as d; import tfcactus.noise.'
          'library; d.Monotone(1.0, bins=4).solve(); '
          'assert not {"cvxpy", "tensorflow"} & set(sys.modules)')
  subprocess.run([sys.executable, '-c', code], check=True)
