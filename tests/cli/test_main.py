"""The commands epsilon, delta, calibrate, steps and tables."""

import contextlib
import json

import pytest

from tests.accounting.test_tuning import coarse  # noqa: F401
from tests.cli.command import output
from tests.noise.tables import gaussian_scalar
from tfcactus.cli import main
from tfcactus.noise import library

GAUSSIAN = ['epsilon', '--noise', 'gaussian', '--noise-multiplier', '1',
            '--sampling-prob', '1/100', '--steps', '1000', '--delta', '1e-5']


def test_epsilon_of_a_reference_point(capsys):
  assert main.main(GAUSSIAN + ['--json']) == 0
  result = json.loads(capsys.readouterr().out)
  assert result['lower'] <= 1.82823666651657679 <= result['upper']
  assert result['upper'] - result['lower'] < 1e-3
  assert main.main(GAUSSIAN) == 0
  assert 'epsilon <= 1.8282' in capsys.readouterr().out


def test_directions_and_relations(capsys):
  values = {}
  for direction in ('add', 'remove', 'both'):
    main.main(GAUSSIAN + ['--direction', direction, '--json'])
    values[direction] = json.loads(capsys.readouterr().out)['upper']
  assert values['both'] == max(values['add'], values['remove'])
  assert main.main(GAUSSIAN + ['--direction', 'add']) == 0
  assert 'is no guarantee' in capsys.readouterr().out
  relations = {}
  for relation in ('add-or-remove', 'zero-out', 'replace'):
    main.main(GAUSSIAN + ['--relation', relation, '--json'])
    relations[relation] = json.loads(capsys.readouterr().out)
    assert relations[relation]['relation'] == relation
    assert 'public constants' in relations[relation]['statement']
  assert relations['zero-out']['upper'] == values['both']
  assert values['both'] < relations['replace']['upper'] < 2 * values['both']
  assert 'assumed' in relations['add-or-remove']['statement']
  assert 'assumed' not in relations['zero-out']['statement']
  # The name of the flag before.
  assert main.main(GAUSSIAN + ['--neighbors', 'replace', '--json']) == 0
  assert json.loads(capsys.readouterr().out)['upper'] == (
      relations['replace']['upper'])


def test_tables_from_files_and_by_name(tmp_path, capsys):
  path = tmp_path / 'table.npz'
  gaussian_scalar().save(path)
  for noise in (str(path), library.names()[0]):
    assert main.main(['epsilon', '--noise', noise, '--steps', '3', '--delta',
                     '1e-5', '--json']) == 0
    assert json.loads(capsys.readouterr().out)['upper'] > 0


def test_tables_are_listed(capsys):
  assert main.main(['tables']) == 0
  out = capsys.readouterr().out
  for name in library.names():
    assert name in out


@pytest.mark.parametrize('arguments, message', [
    (['--noise', 'gaussian'], 'noise-multiplier'),
    (['--noise', 'nope'], 'Shipped'),
    (['--noise', 'none.npz'], 'none.npz'),
    (['--noise', 'gaussian', '--noise-multiplier', '-1'], 'noise_multiplier'),
    (['--noise', 'gaussian', '--noise-multiplier', 'nan'], 'noise_multiplier'),
    (['--noise', 'gaussian', '--noise-multiplier', '1', '--delta', '0'],
     'delta'),
    (['--noise', 'gaussian', '--noise-multiplier', '1', '--delta', '1'],
     'delta'),
    (['--noise', 'gaussian', '--noise-multiplier', '1', '--steps', '0'],
     'steps >= 1'),
    (['--noise', 'gaussian', '--noise-multiplier', '1', '--sampling-prob',
      '2'], 'sampling'),
])
def test_bad_input_is_one_clear_line(arguments, message, capsys):
  given = ['epsilon', '--steps', '3', '--delta', '1e-5'] + arguments
  assert main.main(given) == 2
  err = capsys.readouterr().err
  assert message in err and err.count('\n') == 1


@pytest.mark.parametrize('text, message', [
    ('1e400', 'out of range'), ('1e999999999', '250/60000')])
def test_numbers_beyond_floats_are_one_clear_line(text, message, capsys):
  with pytest.raises(SystemExit) if message == '250/60000' else (
      contextlib.nullcontext()):
    assert main.main(['design', 'cactus', '--budget', text]) == 2
  assert message in capsys.readouterr().err


def test_files_that_are_something_else_are_refused(tmp_path, capsys):
  zipped, deep = tmp_path / 'zip.npy', tmp_path / 'deep.json'
  zipped.write_bytes(b'PK\x03\x04abc')
  assert main.main(['release', 'sum', str(zipped), '--clip', '1', '--epsilon', '1',
                    '--delta', '1e-5']) == 2
  assert 'to hold numbers' in capsys.readouterr().err
  for text in (b'[' * 100_000, b'\xff'):
    deep.write_bytes(text)
    assert main.main(['epsilon', '--steps-file', str(deep), '--delta', '1e-5']) == 2
    assert f"Expected JSON in '{deep}'" in capsys.readouterr().err


def test_table_with_a_multiplier_of_its_own(tmp_path, capsys):
  path = tmp_path / 'table.npz'
  gaussian_scalar().save(path)
  assert main.main(['epsilon', '--noise', str(path), '--noise-multiplier', '1',
                   '--steps', '1', '--delta', '1e-5']) == 2
  assert 'which has its own' in capsys.readouterr().err
  assert main.main(['epsilon', '--noise', str(path), '--bend', '1', '--steps', '1',
                    '--delta', '1e-5']) == 2
  assert 'which has its own' in capsys.readouterr().err


@pytest.mark.parametrize('text', ['x', '1/0', ''])
def test_bad_fractions_are_usage_errors(text, capsys):
  with pytest.raises(SystemExit):
    main.main(GAUSSIAN + ['--sampling-prob', text])
  assert '250/60000' in capsys.readouterr().err


def test_delta_inverts_epsilon(capsys):
  epsilon = output(capsys, *GAUSSIAN)['estimate']
  delta = output(capsys, 'delta', *GAUSSIAN[1:-2], '--epsilon', str(epsilon))
  assert delta['lower'] <= 1e-5 * (1 + 1e-6)
  assert delta['upper'] >= 1e-5 * (1 - 1e-6)


@pytest.mark.parametrize('given, found', [
    (['--steps', '500', '--sampling-prob', '1/100'], 'noise_multiplier'),
    (['--noise-multiplier', '1', '--sampling-prob', '1/100'], 'steps'),
    (['--noise-multiplier', '1', '--steps', '500'], 'sampling_prob')])
def test_calibrate_finds_the_third(given, found, capsys):
  result = output(capsys, 'calibrate', '--noise', 'gaussian', *given,
                  '--target-epsilon', '1', '--delta', '1e-5')
  assert 0.98 < result['epsilon'] <= 1 and result[found] > 0


def test_calibrate_says_that_one_direction_is_no_guarantee(capsys):
  for direction in ('both', 'add'):
    assert main.main(['calibrate', '--noise', 'laplace', '--steps', '1', '--direction',
                      direction, '--target-epsilon', '1', '--delta', '1e-5']) == 0
    told = capsys.readouterr().out
    assert f'(add-or-remove, direction {direction}).' in told
    assert ('no guarantee' in told) == (direction == 'add')


def test_groups_of_steps(tmp_path, capsys):
  step = 'noise=gaussian,noise_multiplier=2,sampling_prob=1/10,steps=5'
  typed = output(capsys, 'epsilon', '--delta', '1e-6', '--step', step, '--step',
                 'noise=laplace,noise_multiplier=4,steps=2')
  path = tmp_path / 'steps.json'
  path.write_text(json.dumps([
      {'noise': 'gaussian', 'noise_multiplier': 2, 'sampling_prob': '1/10',
       'steps': 5}, {'noise': 'laplace', 'noise_multiplier': 4, 'steps': 2}]))
  for encoding in ('utf-8', 'utf-8-sig'):
    path.write_text(path.read_text(encoding='utf-8'), encoding=encoding)
    read = output(capsys, 'epsilon', '--delta', '1e-6', '--steps-file', str(path))
    assert read['upper'] == typed['upper'] > 0


ALLOCATED = ['epsilon', '--noise', 'gaussian', '--noise-multiplier', '1', '--delta',
             '1e-5', '--sampling', 'allocation']


def test_random_allocation(capsys):
  found = output(capsys, *ALLOCATED, '--batches', '60', '--epochs', '5')
  assert found['lower'] <= 1.6240836330 <= found['upper'] + 1e-10
  step = 'noise=gaussian,noise_multiplier=1,sampling=allocation,batches=60,epochs=5'
  assert output(capsys, 'epsilon', '--delta', '1e-5', '--step', step)[
      'upper'] == found['upper']
  calibrate = ['calibrate', '--noise', 'gaussian', '--delta', '1e-5', '--sampling',
               'allocation', '--batches', '60', '--target-epsilon',
               str(found['upper'])]
  assert output(capsys, *calibrate, '--epochs', '5')[
      'noise_multiplier'] == pytest.approx(1, rel=1e-3)
  assert output(capsys, *calibrate, '--noise-multiplier', '1')['epochs'] == 5


@pytest.mark.parametrize('arguments, words', [
    ([*ALLOCATED, '--batches', '60', '--steps', '5'], '--epochs'),
    ([*ALLOCATED, '--epochs', '5'], 'batches'),
    ([*ALLOCATED, '--batches', '0', '--epochs', '5'], 'num_batches'),
    ([*ALLOCATED, '--batches', '60', '--epochs', '5', '--sampling-prob', '1/60'],
     'without sampling_prob'),
    ([*ALLOCATED, '--batches', '60', '--epochs', '5', '--relation', 'replace'],
     'REPLACE_ONE'),
    ([*GAUSSIAN, '--batches', '60'], 'batches'),
    ([*GAUSSIAN, '--epochs', '60'], '--steps')])
def test_what_is_no_allocation_is_one_clear_line(capsys, arguments, words):
  assert main.main(arguments) == 2
  error = capsys.readouterr().err
  assert words in error and 'Traceback' not in error


def test_fixed_size_sampling(capsys):
  poisson = output(capsys, *GAUSSIAN)['upper']
  fixed = output(capsys, *GAUSSIAN, '--sampling', 'fixed')['upper']
  replace = output(capsys, *GAUSSIAN, '--sampling', 'fixed', '--neighbors',
                   'replace')['upper']
  assert poisson < fixed <= replace


@pytest.mark.parametrize('arguments, message', [
    (['epsilon', '--delta', '1e-5'], '--noise'),
    (['epsilon', '--delta', '1e-5', '--noise', 'gaussian'], '--steps'),
    (['epsilon', '--delta', '1e-5', '--steps-file', '/nonexistent'],
     'No such file'),
    (['delta', *GAUSSIAN[1:-2], '--epsilon', '-1'], 'epsilon'),
    (['calibrate', '--noise', 'gaussian', '--target-epsilon', '1', '--delta',
      '1e-5'], 'just one of'),
    (['calibrate', '--noise', 'gaussian', '--noise-multiplier', '1', '--sampling',
      'allocation', '--batches', '10', '--sampling-prob', '0', '--target-epsilon', '1',
      '--delta', '1e-5'], 'got sampling_prob=0.0'),
    (['calibrate', '--noise', 'gaussian', '--noise-multiplier', '1', '--sampling',
      'allocation', '--batches', '10', '--epochs', '2', '--target-epsilon', '1',
      '--delta', '1e-5'], 'got --noise-multiplier, --epochs.'),
    (['calibrate', '--noise', 'monotone-budget1', '--steps', '10', '--sampling-prob',
      '0.1', '--target-epsilon', '1', '--delta', '1e-5'],
     'a table has its own noise multiplier; got --steps, --sampling-prob.'),
])
def test_other_bad_input(arguments, message, capsys):
  assert main.main(arguments) == 2
  err = capsys.readouterr().err
  assert message in err and err.count('\n') == 1


@pytest.mark.parametrize('command', [['epsilon'], ['delta', '--epsilon', '1']])
@pytest.mark.parametrize('flags', [
    ['--steps', '1000'], ['--noise-multiplier', '2', '--bend', '3'],
    ['--sampling-prob', '1', '--sampling', 'poisson'],
    ['--sampling', 'allocation', '--batches', '10', '--epochs', '2']])
def test_arguments_of_noise_are_refused_without_it(command, flags, tmp_path, capsys):
  path = tmp_path / 'steps.json'
  path.write_text('[{"noise": "gaussian", "noise_multiplier": 1}]', encoding='utf-8')
  if command == ['epsilon']:
    command = [*command, '--delta', '1e-5']
  for steps in (['--step', 'noise=gaussian,noise_multiplier=1'],
                ['--steps-file', str(path)]):
    assert main.main([*command, *steps]) == 0
    capsys.readouterr()
    assert main.main([*command, *steps, *flags]) == 2
    error = capsys.readouterr().err
    for flag in flags[::2]:
      assert flag in error and f'{flag[2:].replace("-", "_")}=...' in error


@pytest.mark.parametrize('step', ['gaussian', 'noise=gaussian,foo=1',
                                  'noise=gaussian,steps=x', 'steps=3',
                                  'noise=gaussian,sampling_prob=1/0'])
def test_bad_groups_are_usage_errors(step, capsys):
  with pytest.raises(SystemExit):
    main.main(['epsilon', '--delta', '1e-5', '--step', step])
  assert 'noise=gaussian' in capsys.readouterr().err


@pytest.mark.parametrize('entry, words', [
    ('"steps": "x"', 'steps to be int'), ('"noise_multiplier": "x"', 'int or float'),
    ('"sampling_prob": "1/0"', 'a fraction')])
def test_bad_groups_in_a_file_are_named(entry, words, tmp_path, capsys):
  path = tmp_path / 'steps.json'
  path.write_text(f'[{{"noise": "gaussian", {entry}}}]', encoding='utf-8')
  assert main.main(['epsilon', '--delta', '1e-5', '--steps-file', str(path)]) == 2
  assert words in capsys.readouterr().err


def test_a_search_is_accounted_for_and_calibrated(coarse, capsys):  # noqa: F811
  run = ['--noise', 'gaussian', '--steps', '1', '--delta', '1e-5', '--runs', '5']
  assert main.main(['calibrate', *run, '--target-epsilon', '1']) == 0
  told = capsys.readouterr().out
  assert 'LogarithmicRuns (mean 5) and stays secret' in told
  noise = told.split()[1].rstrip(':')
  values = {}
  for law in ([], ['--runs-law', 'geometric'], ['--runs-law', 'always'],
              ['--most-runs', '7'], ['--runs-law', 'negative-binomial', '--eta', '3']):
    assert main.main(['tuned-epsilon', *run, '--noise-multiplier', noise, *law,
                      '--json']) == 0
    values[tuple(law[-1:])] = json.loads(capsys.readouterr().out)
  assert 0.999 < values[()]['upper'] <= 1
  assert values[()]['upper'] < values['geometric',]['upper'] < values['3',]['upper']
  assert 'stays secret, as' not in values['always',]['statement']


@pytest.mark.parametrize('arguments, words', [
    (['tuned-epsilon', '--runs', '5', '--score', 'training'], 'without noise'),
    (['tuned-epsilon', '--runs', '5', '--eta', '1'], 'negative-binomial and no other'),
    (['tuned-epsilon', '--runs', '2.5', '--runs-law', 'always'], 'whole number'),
    (['calibrate', '--eta', '1', '--target-epsilon', '1'], '--runs with --eta')])
def test_searches_without_a_proof_are_refused(arguments, words, capsys):
  noise = [] if arguments[0] == 'calibrate' else ['--noise-multiplier', '3']
  assert main.main([*arguments, '--noise', 'gaussian', '--steps', '1', '--delta',
                    '1e-5', *noise]) == 2
  assert words in capsys.readouterr().err
