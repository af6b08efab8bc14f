"""The matrix of environments: what it runs, and when it fails."""

import re
import subprocess

import pytest

from tests import matrix

NAMES = [environment.name for environment in matrix.ENVIRONMENTS]
USUAL = [environment.name for environment in matrix.ENVIRONMENTS
         if not environment.between]


@pytest.fixture
def machine(monkeypatch, tmp_path):
  """Yields lists to read and change: environments checked, Pythons, failures."""
  checked, pythons, failing = [], set(matrix.PYTHONS), set()
  monkeypatch.setenv('MATRIX_DIR', str(tmp_path))
  monkeypatch.setattr(matrix, 'candidates', lambda version: [version])
  monkeypatch.setattr(matrix.shutil, 'which', lambda name: (
      name if name in pythons else None))
  monkeypatch.setattr(matrix.subprocess, 'run', lambda command, **_: (
      subprocess.CompletedProcess(command, 0, f'{command[0]} at/{command[0]}')))
  monkeypatch.setattr(matrix, 'make', lambda environment, python: python)

  def check(environment, python, command):
    checked.append((environment.name, python, command))
    if environment.name in failing:
      raise subprocess.CalledProcessError(1, ['pytest'])

  monkeypatch.setattr(matrix, 'check', check)
  return checked, pythons, failing


def _checked(machine):
  return [name for name, _, _ in machine[0]]


def test_every_environment_is_checked_where_every_python_is_found(machine):
  assert matrix.main([]) == 0
  assert _checked(machine) == USUAL
  machine[0].clear()
  assert matrix.main(['all']) == 0
  assert _checked(machine) == NAMES
  machine[0].clear()
  assert matrix.main(['core', '--each', '-m', 'this']) == 0
  assert machine[0] == [('core', 'at/3.13', ['-m', 'this'])]


@pytest.mark.parametrize('python', matrix.PYTHONS)
def test_a_missing_python_is_named_and_fails_unless_allowed(
    machine, capsys, python):
  machine[1].remove(python)
  lost = [e.name for e in matrix.ENVIRONMENTS if e.pythons == (python,)]
  usual = [name for name in lost if name in USUAL]
  assert usual
  assert matrix.main([]) == 1
  said = [line for line in capsys.readouterr().out.splitlines()
          if 'LEFT OUT' in line]
  assert [line.split()[0] for line in said] == usual
  assert all(f'no Python {python} ' in line for line in said)
  assert matrix.main(['--allow-missing']) == 0
  assert matrix.main(['all', '--allow-missing']) == 0
  assert matrix.main(['all']) == 1
  for name in lost:  # Asked for by name.
    assert matrix.main([name]) == 1
    assert matrix.main([name, '--allow-missing']) == 1
    assert matrix.main(['all', name, '--allow-missing']) == 1


def test_a_failure_fails_whatever_is_allowed(machine, capsys):
  machine[2].add('core')
  assert matrix.main(['--allow-missing']) == 1
  assert matrix.main(['core']) == 1
  assert 'FAILED' in capsys.readouterr().out
  assert matrix.main(['core-py39']) == 0


@pytest.mark.parametrize('name', ['newest', 'core'])
def test_the_newest_python_found_is_used_and_named(machine, capsys, name):
  assert matrix.main([name]) == 0
  assert 'WAS FOUND' not in capsys.readouterr().out
  machine[1].difference_update({'3.13', '3.12'})
  assert matrix.main([name]) == 0
  said = capsys.readouterr().out
  assert 'Python 3.11; NO PYTHON 3.13 WAS FOUND' in said
  assert [python for _, python, _ in machine[0]] == ['at/3.13', 'at/3.11']
  machine[1].clear()
  assert matrix.main([name]) == 1
  assert 'LEFT OUT: no Python 3.13 or 3.12 or' in capsys.readouterr().out


def test_unknown_names_are_refused(machine, capsys):
  with pytest.raises(SystemExit):
    matrix.main(['py313'])
  assert 'expected names of' in capsys.readouterr().err
  assert not machine[0]


def test_each_python_has_an_environment_of_the_core_and_one_of_tensorflow():
  for part in ('core-', '-tf'):
    covered = {e.pythons for e in matrix.ENVIRONMENTS
               if part in e.name and len(e.pythons) == 1}
    assert covered >= {(python,) for python in matrix.PYTHONS}


def test_environments_run_every_case(monkeypatch, tmp_path):
  commands = []
  monkeypatch.setenv('MATRIX_DIR', str(tmp_path))
  monkeypatch.setattr(matrix, 'run', lambda command, **_: commands.append(command))
  python = tmp_path / 'python'
  for environment in matrix.ENVIRONMENTS:
    matrix.check(environment, python, None)
    assert commands[-1][:6] == [str(python), '-m', 'pytest', '-q', '-m', 'not slow']
    assert commands[-1][-len(environment.tests):] == list(environment.tests)
  matrix.check(environment, python, ['-m', 'this'])
  assert commands[-1] == [str(python), '-m', 'this']


def test_continuous_integration_runs_every_test_once():
  text = (matrix.ROOT / '.ci' / 'run').read_text(encoding='utf-8')
  usual = re.search(r'addopts = ".*-m \'(.*)\'"', (
      matrix.ROOT / 'pyproject.toml').read_text(encoding='utf-8')).group(1)
  assert usual == 'not slow and not more'
  assert re.findall(r'^make (test\S*)', text, re.M) == [
      'test', 'test-all', 'test-matrix']
  # Later markers take the place of earlier ones.
  assert 'make test-all ARGS="-m \'more and not slow\'"' in text


def test_continuous_integration_names_environments_of_the_matrix():
  text = (matrix.ROOT / '.ci' / 'run').read_text(encoding='utf-8')
  asked = re.findall(r'make test-matrix ARGS=(\S+)', text)
  assert asked and set(asked) <= {*NAMES, matrix.NEWEST.name}
