import json

import pytest

from tests.noise.tables import gaussian_scalar
from tfcactus import cli
from tfcactus.noise import library

GAUSSIAN = ['epsilon', '--noise', 'gaussian', '--noise-multiplier', '1',
            '--sampling-prob', '1/100', '--steps', '1000', '--delta', '1e-5']


def test_epsilon_of_a_reference_point(capsys):
  assert cli.main(GAUSSIAN + ['--json']) == 0
  result = json.loads(capsys.readouterr().out)
  assert result['lower'] <= 1.82823666651657679 <= result['upper']
  assert result['upper'] - result['lower'] < 1e-3
  assert cli.main(GAUSSIAN) == 0
  assert 'epsilon <= 1.8282' in capsys.readouterr().out


def test_directions_and_relations(capsys):
  values = {}
  for direction in ('add', 'remove', 'both'):
    cli.main(GAUSSIAN + ['--direction', direction, '--json'])
    values[direction] = json.loads(capsys.readouterr().out)['upper']
  assert values['both'] == max(values['add'], values['remove'])
  assert cli.main(GAUSSIAN + ['--neighbors', 'replace']) == 2
  assert 'replace' in capsys.readouterr().err


def test_tables_from_files_and_by_name(tmp_path, capsys):
  path = tmp_path / 'table.npz'
  gaussian_scalar().save(path)
  for noise in (str(path), library.names()[0]):
    assert cli.main(['epsilon', '--noise', noise, '--steps', '3', '--delta',
                     '1e-5', '--json']) == 0
    assert json.loads(capsys.readouterr().out)['upper'] > 0


def test_tables_are_listed(capsys):
  assert cli.main(['tables']) == 0
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
  assert cli.main(given) == 2
  err = capsys.readouterr().err
  assert message in err and err.count('\n') == 1


def test_table_with_a_multiplier_of_its_own(tmp_path, capsys):
  path = tmp_path / 'table.npz'
  gaussian_scalar().save(path)
  assert cli.main(['epsilon', '--noise', str(path), '--noise-multiplier', '1',
                   '--steps', '1', '--delta', '1e-5']) == 2
  assert 'which has its own' in capsys.readouterr().err


@pytest.mark.parametrize('text', ['x', '1/0', ''])
def test_bad_fractions_are_usage_errors(text, capsys):
  with pytest.raises(SystemExit):
    cli.main(GAUSSIAN + ['--sampling-prob', text])
  assert '250/60000' in capsys.readouterr().err
