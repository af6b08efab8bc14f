"""The commands design, plot and tables."""

from __future__ import annotations

import builtins
import json

import numpy as np
import pytest

import tfcactus
from tfcactus import correlated, design, noise
from tfcactus.cli import design as design_command, main
from tfcactus.noise import library


def run(*argv):
  args = main.parser().parse_args(argv)
  args.run(args)


def test_design_writes_a_certified_table(tmp_path, capsys):
  path = str(tmp_path / 'table.npz')
  run('design', 'monotone', '--budget', '1/4', '--bins', '10', '--out', path,
      '--objective', 'renyi:4', '--json')
  told = json.loads(capsys.readouterr().out)
  assert set(told) == {'objective', 'lower_bound', 'gap', 'iterations',
                       'seconds', 'digest'}
  table = noise.load(path)
  assert table.digest == told['digest']
  assert design.verify(table)['objective'] == pytest.approx(told['objective'])


@pytest.mark.parametrize('argv', [
    ('cactus', '--budget', '.25', '--bins', '8', '--cells', '40',
     '--tail-ratio', '.4'),
    ('isotropic', '--budget', '.75', '--dim', '3', '--bins', '8'),
    ('monotone', '--budget', '.5', '--power', '1', '--bins', '8'),
])
def test_designs_tell_their_certificate(argv, capsys):
  run('design', *argv)
  out = capsys.readouterr().out
  assert 'no table of this grid below' in out and 'digest' in out


def test_design_optimal(tmp_path, capsys):
  run('design', 'optimal', '--budget', '.25', '--delta', '1e-5', '--steps',
      '100', '--sampling-prob', '.01', '--bins', '10', '--json')
  told = json.loads(capsys.readouterr().out)
  assert told['epsilon'] == min(cost for _, cost in told['candidates'])


@pytest.mark.parametrize('argv, words', [
    (('isotropic', '--budget', '1'), '--dim'),
    (('cactus', '--budget', '1', '--dim', '3'), 'isotropic'),
    (('cactus', '--budget', '1', '--steps', '3'), '--steps'),
    (('optimal', '--budget', '1'), '--delta with "design optimal"'),
    (('cactus', '--budget', '1', '--out', 'x.txt'), 'npz'),
    (('cactus', '--budget', '1', '--objective', 'tv'), 'objective'),
])
def test_bad_requests(argv, words):
  with pytest.raises(ValueError, match=words):
    run('design', *argv)


def test_a_long_solve_says_so(monkeypatch, capsys):
  monkeypatch.setattr(design_command, '_QUIET_SECONDS', 0.01)
  run('design', 'cactus', '--budget', '.25', '--bins', '40')
  assert 'designing cactus' in capsys.readouterr().err


def test_tables(capsys):
  run('tables', '--json')
  rows = json.loads(capsys.readouterr().out)
  assert [row['name'] for row in rows] == [e.name for e in library.entries()]
  assert all(row['gap'] < 2e-9 for row in rows)


def test_plot(tmp_path, capsys):
  pytest.importorskip('matplotlib')
  path = tmp_path / 'plot.png'
  # Losses of uniform noise are infinite with probability 1/4 or more.
  uniform = noise.ScalarTable(bins=4, log_density=np.full(8, -np.log(4)),
                              log_tail_ratio=-np.inf, edge_at_zero=True)
  uniform.save(tmp_path / 'uniform.npz')
  run('plot', 'monotone-budget1', 'isotropic-dim3-sigma1',
      str(tmp_path / 'uniform.npz'), '--out', str(path))
  assert path.stat().st_size > 10_000


@pytest.mark.parametrize('argv', [
    ('plot', 'monotone-budget1', '--out', 'x.png'),
    ('design', 'correlation', '--steps', '60', '--batches', '20', '--epsilon', '3',
     '--delta', '1e-5', '--plot', 'x.png')], ids=lambda argv: argv[0])
def test_plots_without_matplotlib_are_refused_before_any_work(argv, monkeypatch):
  known = builtins.__import__

  def missing(name, *args, **kwargs):
    if name.startswith('matplotlib'):
      raise ImportError(name)
    return known(name, *args, **kwargs)

  monkeypatch.setattr(builtins, '__import__', missing)
  monkeypatch.setattr(correlated.workload, 'least_error', None)
  with pytest.raises(ImportError, match='pip install'):
    run(*argv)


BOUNDED = ('design', 'truncated', '--range', '6', '--utility', '3/2', '--epsilon',
           '.3', '--steps', '4', '--bins', '2')


def test_design_truncated(tmp_path, capsys):
  path = str(tmp_path / 'noise.npz')
  run(*BOUNDED, '--sampling-prob', '1/5', '--out', path, '--json')
  told = json.loads(capsys.readouterr().out)
  assert set(told) == {'delta', 'utility', 'omega', 'method', 'certified',
                       'seconds', 'digest'}
  table = noise.load(path)
  assert table.digest == told['digest'] and table.range == 6
  assert told['method'] == 'direct' and told['certified'] is False
  assert told['omega'] < told['delta'] and told['utility'] <= 1.5 + 1e-9
  run(*BOUNDED)
  words = capsys.readouterr().out
  assert 'local optimum' in words and 'full shift' in words


@pytest.mark.parametrize('method, certified', [('lp', True), ('ma', False)])
def test_design_truncated_by_program(method, certified, capsys):
  run(*BOUNDED[:-3], '1', '--norm', '1', '--method', method, '--json')
  told = json.loads(capsys.readouterr().out)
  assert told['certified'] is certified and told['method'] == method


def test_design_truncated_of_least_utility(tmp_path, capsys):
  path = str(tmp_path / 'noise.npz')
  ask = ('design', 'truncated', '--range', '6', '--delta', '.06', '--epsilon', '.3',
         '--bins', '2', '--norm', '1', '--steps')
  run(*ask, '1', '--out', path, '--json')
  told = json.loads(capsys.readouterr().out)
  assert told['delta'] <= 0.06 and noise.load(path).digest == told['digest']
  assert told['utility'] / 1.002 < told['least_utility'] <= told['utility']
  run(*ask, '1')
  assert 'No table of this grid' in capsys.readouterr().out


@pytest.mark.more
def test_design_truncated_by_learning(capsys):
  pytest.importorskip('tensorflow')
  run(*BOUNDED, '--method', 'sigmoid-adp', '--seconds', '.1', '--seed', '3',
      '--json')
  told = json.loads(capsys.readouterr().out)
  assert told['method'] == 'sigmoid-adp' and told['certified'] is False


def test_a_time_of_zero_is_no_default():
  pytest.importorskip('tensorflow')
  with pytest.raises(ValueError, match='max_seconds > 0'):
    run(*BOUNDED, '--method', 'sigmoid-adp', '--seconds', '0')


@pytest.mark.parametrize('argv, words', [
    (BOUNDED[:-4], '--steps with "design truncated"'),
    (BOUNDED + ('--budget', '1'), "Expected --budget .*got it with 'truncated'"),
    (BOUNDED + ('--power', '1'), 'power'),
    (BOUNDED + ('--seed', '1'), 'sigmoid'),
    (BOUNDED + ('--delta', '.01'), 'Expected --utility.* or --delta'),
    (BOUNDED[:4] + BOUNDED[6:], 'Expected --utility.* or --delta'),
    (BOUNDED[:4] + BOUNDED[6:] + ('--delta', '.01', '--method', 'sigmoid-ma'),
     'Expected --utility'),
    (BOUNDED[:4] + BOUNDED[6:] + ('--delta', '1e-9'), 'widen the range'),
    (BOUNDED + ('--method', 'lp'), "method='direct'"),
    (BOUNDED + ('--out', 'x.txt'), 'npz'),
    (('design', 'truncated', '--range', '.5', '--utility', '1', '--epsilon', '1',
      '--steps', '1'), 'range > 0.5'),
    (('design', 'cactus', '--budget', '1', '--range', '5'), '--range'),
    (('design', 'optimal', '--budget', '1', '--dim', '0', '--delta', '.1',
      '--sampling-prob', '1', '--steps', '1'), '--dim'),
    (('design', 'cactus'), '--budget'),
], ids=repr)
def test_bad_truncated_requests(argv, words):
  with pytest.raises(ValueError, match=words):
    run(*argv)


@pytest.mark.more
def test_design_correlation_writes_what_a_plan_takes(tmp_path, capsys):
  path, picture = tmp_path / 'c.json', tmp_path / 'c.png'
  run('design', 'correlation', '--steps', '60', '--batches', '20', '--epsilon', '3',
      '--delta', '1e-5', '--out', str(path), '--plot', str(picture), '--json')
  told = json.loads(capsys.readouterr().out)
  strategy = correlated.load(path)
  assert told['digest'] == strategy.digest and strategy.bands > 1
  assert told['error'] == strategy.error(60) < told['error_of_independent_noise']
  assert min(told['alternatives'], key=lambda row: row['total_error']
            )['bands'] == strategy.bands
  assert picture.read_bytes()[:4] == b'\x89PNG'
  planned = tfcactus.PrivacyPlan(
      noise=noise.Gaussian(2.0), l2_norm_clip=1.0, num_examples=100,
      sampling_prob=1 / 20, steps=60, delta=1e-5, correlation=strategy)
  assert planned.strategy.digest == told['digest']


@pytest.mark.parametrize('argv,words', [
    (('--steps', '60', '--bands', '4', '--momentum', '.9'), 'of 4 bands for 60 steps'),
    (('--steps', '60', '--bands', '4', '--blocked'), 'keeps 1 vector'),
    (('--steps', '40', '--bands', '4', '--batches', '8', '--epsilon', '3', '--delta',
      '1e-3'), 'total error 100.0 %')])
def test_design_correlation_tells_what_is_left(argv, words, capsys, recwarn):
  run('design', 'correlation', *argv)
  assert not recwarn.list  # Such as of delta and a number of examples, not given here.
  out = capsys.readouterr().out
  assert words in out and 'digest' in out


@pytest.mark.parametrize('argv,words', [
    ((), '--steps'), (('--steps', '9'), '--bands'),
    (('--steps', '9', '--bands', '10'), 'bands=10 of 9'),
    (('--steps', '9', '--bands', '3', '--delta', '1e-5'), '--epsilon with'),
    (('--steps', '9', '--epsilon', '1'), '--batches'),
    (('--steps', '9', '--epsilon', '1', '--batches', '3'), '--delta'),
    (('--steps', '9', '--epsilon', '1', '--batches', '2', '--delta', '1e-5'),
     'multiple of --batches'),
    (('--steps', '9', '--bands', '3', '--budget', '1'), '--budget'),
    (('--steps', '9', '--bands', '3', '--power', '1'), '--power'),
    (('--steps', '9', '--bands', '3', '--blocked', '--momentum', '.5'), '--momentum'),
    (('--steps', '9', '--bands', '3', '--out', 'x.npz'), '.json')])
def test_design_correlation_says_what_is_wrong(argv, words):
  with pytest.raises(ValueError, match=words):
    run('design', 'correlation', *argv)


def test_bands_go_with_correlations_only():
  with pytest.raises(ValueError, match='--bands with "design correlation" only'):
    run('design', 'cactus', '--budget', '1', '--bands', '3')
