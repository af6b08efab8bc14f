"""The commands release, gap and tcdp."""

import numpy as np
import pytest

from tests.cli.command import output
from tfcactus.cli import main


@pytest.fixture
def files(tmp_path):
  np.savetxt(tmp_path / 'whole.txt', np.arange(300) % 7, fmt='%d')
  np.save(tmp_path / 'real.npy', np.linspace(0, 1, 5001))
  return {'whole': str(tmp_path / 'whole.txt'), 'real': str(tmp_path / 'real.npy')}


@pytest.mark.parametrize('arguments', [
    ['histogram', 'whole', '--bins', '7'],
    ['most-frequent', 'whole', '--bins', '9'],
    ['thresholds', 'whole', '--bins', '7'],
    ['quantile', 'whole', '--low', '0', '--high', '10'],
    ['quantile', 'real', '--low', '0', '--high', '1'],
    ['sum', 'real', '--clip', '1'],
    ['histogram', 'whole', '--bins', '7', '--arithmetic', 'integer'],
    ['sum', 'real', '--clip', '1', '--arithmetic', 'integer']])
def test_statistics_meet_their_budget(arguments, files, capsys):
  statistic, name, *rest = arguments
  given = ['release', statistic, files[name], *rest, '--delta', '1e-6']
  found = output(capsys, *given, '--epsilon', '1')
  assert 0.98 < found['epsilon'] <= 1
  assert not found['seeded'] and found['error'] > 0
  assert main.main([*given, '--noise-multiplier', '3', '--seed', '1']) == 0
  told = capsys.readouterr().out
  assert 'epsilon <=' in told and 'experiment' in told
  assert ('in whole numbers' in told) == ('integer' in rest)


def test_values_make_sense(files, capsys):
  common = ['--delta', '1e-6', '--noise', 'sinh-normal', '--noise-multiplier',
            '0.5', '--bend', '2']
  counts = output(capsys, 'release', 'histogram', files['whole'], '--bins', '7',
                  *common)['value']
  assert np.max(np.abs(np.array(counts) - 43)) < 10
  median = output(capsys, 'release', 'quantile', files['real'], '--low', '0',
                  '--high', '2', *common)['value']
  assert 0.45 < median < 0.55


def test_gaps(capsys):
  found = output(capsys, 'gap', '--options', '1000000', '--noise-multiplier', '2')
  assert 20 < found['histogram'] < found['obvious-answer'] < 40
  assert main.main(['gap', '--options', '5', '--noise-multiplier', '2']) == 0
  assert 'obvious-answer: the best of 5 options is selected' in (
      capsys.readouterr().out)


@pytest.mark.parametrize('options, words', [
    (1, 'Expected num_options >= 2'), (10**400, 'Expected '), (10**24, '')],
                         ids=['one', 'huge', 'many'])
def test_no_number_of_options_ends_in_a_traceback(options, words, capsys):
  main.main(['gap', '--options', str(options), '--noise-multiplier', '8'])
  assert words in capsys.readouterr().err


def test_tcdp(capsys):
  found = output(capsys, 'tcdp', '--rho', '.1', '--omega', '5', '--delta', '1e-5')
  assert round(found['epsilon'], 6) == 3.378231
  group = output(capsys, 'tcdp', '--rho', '.01', '--omega', '10', '--group',
                 '30', '--delta', '1e-6')
  assert round(group['epsilon'], 4) == 332.4208
  sampled = output(capsys, 'tcdp', '--rho', '.01', '--sampling-prob', '1e-3',
                   '--steps', '100', '--delta', '1e-6')
  assert sampled['rho'] == pytest.approx(13e-6)
  assert main.main(['tcdp', '--rho', '.1', '--delta', '1e-5']) == 0
  assert '(0.1, inf)-tCDP: epsilon <= 2.2459' in capsys.readouterr().out


def test_sinh_normal_steps(capsys):
  given = ['--noise', 'sinh-normal', '--bend', '253', '--steps', '100', '--delta',
           '1e-6']
  found = output(capsys, 'epsilon', *given, '--noise-multiplier', '22.36068')
  assert round(found['upper'], 3) == 2.005
  calibrated = output(capsys, 'calibrate', *given, '--target-epsilon', '2.005')
  assert calibrated['noise_multiplier'] == pytest.approx(22.36, abs=0.01)


@pytest.mark.parametrize('arguments, message', [
    (['release', 'histogram', 'none.txt', '--bins', '3', '--epsilon', '1'],
     'found none'),
    (['release', 'histogram', 'WHOLE', '--epsilon', '1'], '--bins'),
    (['release', 'thresholds', 'WHOLE', '--bins', '3', '--epsilon', '1',
      '--arithmetic', 'integer'], 'only histogram and sum add noise in whole'),
    (['release', 'histogram', 'WHOLE', '--bins', '3', '--epsilon', '1'],
     'outside'),
    (['release', 'histogram', 'WHOLE', '--bins', '7'], 'exactly one'),
    (['release', 'histogram', 'WHOLE', '--bins', '7', '--epsilon', '1',
      '--noise', 'sinh-normal'], 'a bend with sinh-normal noise'),
    (['release', 'histogram', 'WHOLE', '--bins', '7', '--epsilon', '1', '--bend',
      '3'], 'a bend with sinh-normal noise'),
    (['release', 'histogram', 'BROKEN', '--bins', '7', '--epsilon', '1'],
     'to hold numbers'),
    # One record of three numbers is no three records.
    (['release', 'histogram', 'ROW', '--bins', '7', '--epsilon', '1'],
     'one number per record'),
    (['release', 'quantile', 'WHOLE', '--epsilon', '1'], '--low'),
    (['release', 'quantile', 'WHOLE', '--low', '1', '--high', '0', '--epsilon',
      '1'], 'low < high'),
    (['release', 'sum', 'WHOLE', '--epsilon', '1'], '--clip'),
    (['release', 'quantile', 'WHOLE', '--low', '0', '--high', '1', '--fraction', '1',
      '--epsilon', '1'], 'fraction in (0, 1)'),
    (['tcdp', '--rho', '-1'], 'rho'), (['tcdp', '--rho', '1', '--omega', '1'],
                                       'omega'),
    (['tcdp', '--rho', '.01', '--omega', '3', '--sampling-prob', '.01'],
     'condition (5)')])
def test_bad_input_is_one_clear_line(arguments, message, files, tmp_path, capsys):
  (tmp_path / 'broken.txt').write_text('1\ntwo\n')
  (tmp_path / 'row.txt').write_text('1 2 3\n')
  names = {'WHOLE': files['whole'], 'BROKEN': str(tmp_path / 'broken.txt'),
           'ROW': str(tmp_path / 'row.txt')}
  given = [names.get(word, word) for word in arguments]
  assert main.main([*given, '--delta', '1e-6']) == 2
  err = capsys.readouterr().err
  assert message in err and err.count('\n') == 1
