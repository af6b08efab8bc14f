"""Tests that every command keeps the contract of the command line.

To cover a command, list arguments that succeed and arguments that are refused.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
import json
import re
import subprocess
import sys
from typing import Any, NamedTuple

import dp_accounting
import numpy as np
import pytest

import tfcactus
from tfcactus import _format
from tfcactus.cli import command, main

NUMBER = r'([0-9]+[.]?[0-9]*(?:e[+-]?[0-9]+)?)'

STEPS = ['--noise', 'gaussian', '--noise-multiplier', '1.2345', '--steps', '7']


class Case(NamedTuple):
  """Arguments of a command and what it prints.

  Attributes:
    good: Arguments that succeed; NUMBERS is a file of numbers, SCORES one of canaries'
      scores, ACCOUNT an account, OUT a picture.
    bad: Arguments that are refused by the command, not by its parser.
    words: Words of the refusal.
    upper: Keys of the JSON that are upper bounds, and the pattern in which they
      are printed, # for the number.
    lower: Keys and patterns of lower bounds.
    json: Whether the command knows --json.
  """

  good: list[str]
  bad: list[str]
  words: str
  upper: Mapping[str, str] = {}
  lower: Mapping[str, str] = {}
  json: bool = True


ROW = r'^\S+ +\d+ +\S+'
"""Name, dimension and size of a table's row."""

COMMANDS = {
    'epsilon': Case([*STEPS, '--delta', '1e-5'], [*STEPS, '--delta', '2'],
                    'delta', {'upper': 'epsilon <= # at'},
                    {'lower': r'lower bound #\)'}),
    'delta': Case([*STEPS, '--epsilon', '1.5'], [*STEPS, '--epsilon', '-1'],
                  'epsilon', {'upper': 'delta <= # at'},
                  {'lower': r'lower bound #\)'}),
    'calibrate': Case(
        ['--noise', 'gaussian', '--steps', '7', '--target-epsilon', '1.1',
         '--delta', '1e-5'],
        ['--noise', 'gaussian', '--target-epsilon', '1', '--delta', '1e-5'],
        'just one of', {'noise_multiplier': 'noise_multiplier #:',
                   'epsilon': 'epsilon <= # at'}),
    'choose-unit': Case(
        ['NUMBERS', '--batch-size', '30', '--steps', '50', '--target-epsilon', '2.3',
         '--delta', '1e-3', '--caps', '3'],
        ['NUMBERS', '--batch-size', '30', '--steps', '50', '--target-epsilon', '2.3',
         '--delta', '1e-3', '--caps', '0'], 'caps',
        {'noise_per_row': 'noise per row #,', 'other_noise_per_row': 'against # of'}),
    'design': Case(['monotone', '--budget', '0.7', '--bins', '6'],
                   ['monotone', '--budget', '-1'], 'budget',
                   {'objective': 'objective #,', 'gap': r'gap #\)'},
                   {'lower_bound': r'below # \('}),
    'plot': Case(['monotone-budget1', '--out', 'OUT'],
                 ['nothing', '--out', 'OUT'], 'shipped', json=False),
    'tables': Case([], [], '', {'objective': ROW + ' +#',
                                'gap': ROW + r' +\S+ +\S+ +#'},
                   {'lower_bound': ROW + r' +\S+ +#'}),
    'release': Case(
        ['histogram', 'NUMBERS', '--bins', '7', '--noise-multiplier', '3.7',
         '--delta', '1e-6', '--seed', '1'],
        ['histogram', 'NUMBERS', '--delta', '1e-6', '--epsilon', '1'], '--bins',
        {'epsilon': 'epsilon <= # at', 'error': 'error of a count: # with'}),
    'gap': Case(['--options', '77', '--noise-multiplier', '2.3'],
                ['--options', '1', '--noise-multiplier', '2'], 'num_options',
                {'histogram': 'histogram: .* leads by #$',
                 'obvious-answer': 'obvious-answer: .* leads by #$'}),
    'audit': Case(['SCORES', '--delta', '1e-5'],
                  ['SCORES', '--delta', '1e-5', '--significance', '2'], 'significance'),
    'tuned-epsilon': Case(
        [*STEPS, '--runs', '10', '--delta', '1e-5'],
        [*STEPS, '--runs', '10', '--delta', '1e-5', '--score', 'training'],
        'without noise', {'upper': 'epsilon <= # at'}, {'lower': r'lower bound #\)'}),
    'account': Case(['show', 'ACCOUNT'], ['show', 'ACCOUNT', '--epsilon', '3'],
                    '"account new" only', {
                        'upper': '^epsilon <= # at',
                        'if_planned': 'fixed before: epsilon <= # at'}),
    'tcdp': Case(['--rho', '.123', '--omega', '7', '--delta', '1e-5'],
                 ['--rho', '-1', '--delta', '1e-5'], 'rho',
                 {'epsilon': 'epsilon <= # at'}),
}


def _answer(args: argparse.Namespace) -> None:
  if args.value < 0:
    raise ValueError(f'Expected --value of at least 0, got {args.value}.')
  command.show(args, {'bound': args.value},
               f'bound <= {_format.upper(args.value)}')


def _answer_arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--value', type=float, required=True)
  parser.add_argument('--json', action='store_true', help='print JSON')


NEW = command.Command('answer', 'a command as somebody would add it',
                      _answer_arguments, _answer)
"""An example of a command of one's own: one file and a line in `cli.main`."""

CASES = {**COMMANDS, NEW.name: Case(
    ['--value', '0.12345678'], ['--value', '-1'], '--value',
    {'bound': 'bound <= #$'})}


@pytest.fixture
def call(tmp_path, capsys):
  """Returns a function that runs a command: (exit code, stdout, stderr)."""
  np.savetxt(tmp_path / 'numbers.txt', np.arange(100) % 7, fmt='%d')
  np.savetxt(tmp_path / 'scores.csv', [(each % 5, each % 2) for each in range(100)],
             fmt='%d', delimiter=',', header='score,present', comments='')
  names = {'NUMBERS': str(tmp_path / 'numbers.txt'),
           'SCORES': str(tmp_path / 'scores.csv'),
           'ACCOUNT': str(tmp_path / 'census.account'),
           'OUT': str(tmp_path / 'plot.png')}
  tfcactus.DataAccount(names['ACCOUNT'], epsilon=1.2345, delta=1e-6).spend(
      dp_accounting.GaussianDpEvent(12.345))

  def run(*arguments):
    given = [names.get(word, word) for word in arguments]
    code = main.main(given, (*main.COMMANDS, NEW))
    return code, *capsys.readouterr()

  return run


def test_every_command_is_listed():
  assert set(COMMANDS) == {one.name for one in main.COMMANDS}


@pytest.mark.parametrize('name', CASES)
def test_help_says_what_it_does(name, capsys):
  with pytest.raises(SystemExit) as stopped:
    main.main([name, '--help'], (*main.COMMANDS, NEW))
  assert stopped.value.code == 0
  told = ' '.join(capsys.readouterr().out.split())
  summary = next(one.help for one in (*main.COMMANDS, NEW) if one.name == name)
  assert summary in told and len(summary) > 15
  with pytest.raises(SystemExit):
    main.main(['--help'], (*main.COMMANDS, NEW))
  assert summary in ' '.join(capsys.readouterr().out.split())


@pytest.mark.parametrize('name', [n for n in CASES if CASES[n].words])
def test_bad_input_is_one_clear_line(name, call):
  case = CASES[name]
  code, told, complaint = call(name, *case.bad)
  assert code == 2 and not told
  assert case.words in complaint and complaint.count('\n') == 1
  assert complaint.startswith('tfcactus: Expected')


@pytest.mark.parametrize('name', CASES)
def test_unknown_arguments_are_refused_by_name(name, capsys):
  with pytest.raises(SystemExit) as stopped:
    main.main([name, *CASES[name].good, '--nonsense'], (*main.COMMANDS, NEW))
  assert stopped.value.code == 2
  assert '--nonsense' in capsys.readouterr().err


def _leaves(report: Any, key: str) -> list[float]:
  rows = report if isinstance(report, list) else [report]
  return [float(row[key]) for row in rows]


def _rows(report: Any) -> list[dict[str, Any]]:
  return report if isinstance(report, list) else [report]


@pytest.mark.parametrize('name', [n for n in CASES if CASES[n].json])
def test_bounds_are_rounded_to_the_side_that_was_proved(name, call):
  case = CASES[name]
  code, told, _ = call(name, *case.good)
  assert code == 0
  code, text, _ = call(name, *case.good, '--json')
  assert code == 0
  rows = _rows(json.loads(text))
  for patterns, sign in ((case.upper, 1), (case.lower, -1)):
    for key, pattern in patterns.items():
      printed = re.findall(pattern.replace('#', NUMBER), told, re.M)
      assert len(printed) == len(rows) > 0, (pattern, told)
      for number, row in zip(printed, rows):
        exceeds = sign * (float(number) - row[key])
        assert 0 <= exceeds <= 0.1 * row[key], (number, row[key])


def test_the_package_is_a_command():
  told = subprocess.run(
      [sys.executable, '-m', 'tfcactus.cli', 'tcdp', '--rho', '.1', '--delta',
       '1e-5'], capture_output=True, text=True, check=True).stdout
  assert 'epsilon <= 2.24' in told
