"""Runs the tests with every Python and TensorFlow that is supported.

    python tests/matrix.py                      # versions that differ in behaviour
    python tests/matrix.py all                  # every version in between, too
    python tests/matrix.py py313-tf2.21 core    # the environments named
    python tests/matrix.py newest               # the newest Python found
    python tests/matrix.py --each COMMAND ...   # another command in each

The script needs no package. It builds a wheel of the checkout, makes an environment
for each combination under .venvs (or $MATRIX_DIR) with the newest versions that fit,
and installs the wheel. It runs `pip check`, tries the wheel away from the checkout,
and then runs the tests: every case of each class, as `make test-all` does. Pythons are
looked for on PATH and where pyenv keeps them. An environment whose Python is not found
is named and fails the run, as a failed test does; with --allow-missing it passes,
unless it was asked for by name.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import dataclasses
import glob
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
KERAS_TESTS = ('tests/keras', 'tests/conformance', 'tests/learned', 'tests/training',
               'tests/test_examples.py', 'tests/test_readme.py',
               'tests/test_imports.py', 'tests/test_paths.py',
               'tests/test_packaging.py')
# Tests that run code of every part of the core.
SMALL_TESTS = ('tests/cli/test_main.py', 'tests/cli/test_release.py',
               'tests/test_packaging.py')
# Every case, as `make test-all` runs, not only the representatives of `make test`.
MARKERS = ('-m', 'not slow')
# The workers of the Makefile, for environments with pytest-xdist.
WORKERS = ('-n', '2', '--dist', 'worksteal')
PYTHONS = ('3.13', '3.12', '3.11', '3.10', '3.9')
SMOKE = """
import tfcactus, sys
assert tfcactus.library.get('isotropic-dim3-sigma0.5').dim == 3
version = 'Python ' + sys.version.split()[0]
try:
  import tensorflow
except ImportError:
  print(version)
  sys.exit()
print(version, 'TensorFlow', tensorflow.__version__)
import numpy as np
from tfcactus import keras as private
plan = tfcactus.PrivacyPlan(
    noise=tfcactus.Gaussian(1.0), l2_norm_clip=1.0, num_examples=40,
    sampling_prob=0.25, steps=4, delta=1e-5)
model = private.privatize(tensorflow.keras.Sequential(
    [tensorflow.keras.layers.Input((3,)), tensorflow.keras.layers.Dense(2)]), plan)
model.compile('sgd', 'mse')
model.fit(private.PoissonBatches(np.ones((40, 3), np.float32),
                                 np.ones((40, 2), np.float32), 0.25), verbose=0)
assert model.guarantee().steps == 4
"""


@dataclasses.dataclass(frozen=True)
class Environment:
  """One combination of versions.

  Attributes:
    name: Name of its directory.
    pythons: Versions such as '3.12'; the first one that is found is used.
    extras: Extras of tfcactus to install; '' for the bare wheel.
    requirements: Further packages to install.
    tests: Arguments of pytest: the tests of Keras, or those of the core.
    variables: Variables added to the environment of its processes.
    between: Whether it is left out, since other environments represent it, unless it
      is asked for.
  """

  name: str
  pythons: tuple[str, ...]
  extras: str
  requirements: tuple[str, ...] = ()
  tests: tuple[str, ...] = KERAS_TESTS
  variables: tuple[tuple[str, str], ...] = ()
  between: bool = False


ENVIRONMENTS = (
    Environment('py39-tf2.14', ('3.9',),
                'test,training,tensorflow-privacy,datasets',
                ('tensorflow==2.14.*',)),
    Environment('py311-tf2.15', ('3.11',),
                'test,training,tensorflow-privacy,datasets'),
    # TensorFlow Privacy's queries can be imported with these versions.
    Environment('py311-tf2.16-keras3.5', ('3.11',), 'test,training,datasets',
                ('tensorflow==2.16.*', 'keras==3.5.*',
                 'tensorflow-privacy==0.9.0')),
    Environment('py312-tf2.21', ('3.12',), 'test,training,datasets,hub',
                ('tensorflow==2.21.*',)),
    # With Grappler, which tests/keras/conftest.py turns off elsewhere to save time.
    Environment('py313-tf2.21', ('3.13',), 'test,training,datasets,hub',
                ('tensorflow==2.21.*',), variables=(('WITH_GRAPPLER', '1'),)),
    Environment('core', PYTHONS, 'test', (),
                ('tests', '--ignore=tests/keras', '--ignore=tests/learned',
                 '--ignore=tests/training',
                 '--ignore=tests/test_readme.py')),
    # The bare wheel with the packages that its metadata requires, on each Python.
    *(Environment(f'core-py{python.replace(".", "")}', (python,), '',
                  ('pytest',), SMALL_TESTS) for python in reversed(PYTHONS)),
    Environment('py310-tf2.17', ('3.10',), 'test,training,datasets',
                ('tensorflow==2.17.*',), between=True),
    Environment('py310-tf2.18', ('3.10',), 'test,training,datasets',
                ('tensorflow==2.18.*',), between=True),
    Environment('py312-tf2.19', ('3.12',), 'test,training,datasets',
                # Later versions need protobuf 6; this TensorFlow needs protobuf 5.
                ('tensorflow==2.19.*', 'tensorflow-metadata<1.18'),
                between=True),
    # The last TensorFlow for Python 3.9.
    Environment('py39-tf2.20', ('3.9',), 'test,training,datasets',
                ('tensorflow==2.20.*',), between=True),
    # Keras 2 on a TensorFlow that comes with Keras 3.
    Environment('py311-tf2.21-tf-keras', ('3.11',), 'test,training,datasets',
                ('tensorflow==2.21.*', 'tf-keras==2.21.*'),
                variables=(('TF_USE_LEGACY_KERAS', '1'),), between=True),
)
# For machines with one Python: the newest versions that pip finds for it.
NEWEST = Environment('newest', PYTHONS, 'test,training,datasets,hub',
                     variables=(('WITH_GRAPPLER', '1'),))


def candidates(version: str) -> list[str]:
  """Returns commands that may start a Python of this version."""
  roots = [os.environ.get('PYENV_ROOT'), os.path.expanduser('~/.pyenv')]
  found = [f'python{version}', 'python3', 'python', sys.executable]
  for root in filter(None, roots):
    found += sorted(glob.glob(f'{root}/versions/{version}*/bin/python'),
                    reverse=True)
  return found


def find_python(versions: Sequence[str]) -> tuple[str, str] | None:
  """Returns the first version with an interpreter, and its path, or None."""
  for version in versions:
    for candidate in candidates(version):
      path = shutil.which(candidate)
      if path is None:
        continue
      answer = subprocess.run(
          [path, '-c', 'import sys, venv, ensurepip\n'
           'print("%d.%d" % sys.version_info[:2], sys.executable)'],
          capture_output=True, text=True, check=False)
      if answer.returncode == 0 and answer.stdout.split()[0] == version:
        return version, answer.stdout.split(maxsplit=1)[1].strip()
  return None


def run(command: list[str], **kwargs) -> None:
  """Runs a command and raises if it fails."""
  print('+', ' '.join(map(str, command))[:200], flush=True)
  # With PYTHONPATH set, pip would take a checkout for an installed package.
  variables = {k: v for k, v in kwargs.pop('env', os.environ).items()
               if k != 'PYTHONPATH'}
  subprocess.run(command, check=True, env=variables, **kwargs)


def directory() -> pathlib.Path:
  """Returns the directory of the environments."""
  return pathlib.Path(os.environ.get('MATRIX_DIR', ROOT / '.venvs')).resolve()


def build_wheel(python: str) -> pathlib.Path:
  """Builds the wheel of the checkout and returns its path."""
  into = directory() / 'wheel'
  shutil.rmtree(into, ignore_errors=True)
  # Stale files in build/ would go into the wheel.
  shutil.rmtree(ROOT / 'build', ignore_errors=True)
  run([python, '-m', 'pip', 'wheel', '--quiet', '--disable-pip-version-check',
       '--no-deps', '--wheel-dir', str(into), str(ROOT)])
  return next(into.glob('*.whl'))


def make(environment: Environment, python: str) -> pathlib.Path:
  """Makes an environment unless it exists; returns the path of its Python."""
  home = directory() / environment.name
  wanted = hashlib.sha256(
      repr((python, environment.extras, environment.requirements)).encode() +
      (ROOT / 'setup.py').read_bytes()).hexdigest()
  inside, stamp = home / 'bin' / 'python', home / '.made'
  pip = [str(inside), '-m', 'pip', 'install', '--quiet',
         '--disable-pip-version-check']
  if not stamp.exists() or stamp.read_text() != wanted:
    shutil.rmtree(home, ignore_errors=True)
    run([python, '-m', 'venv', str(home)])
    # Older versions of pip take minutes to resolve the requirements.
    run([*pip, '--upgrade', 'pip'])
    wheel = build_wheel(str(inside))
    extras = f'[{environment.extras}]' if environment.extras else ''
    run([*pip, f'{wheel}{extras}', *environment.requirements])
    stamp.write_text(wanted)
  else:
    run([*pip, '--force-reinstall', '--no-deps', str(build_wheel(str(inside)))])
  return inside


def check(environment: Environment, python: pathlib.Path,
          command: list[str] | None) -> None:
  """Checks an environment and runs the tests, or the command, in it."""
  run([str(python), '-m', 'pip', 'check', '--disable-pip-version-check'])
  away = directory() / 'away'
  away.mkdir(exist_ok=True)
  variables = {**os.environ, **dict(environment.variables)}
  run([str(python), '-c', SMOKE], cwd=away, env=variables)
  run([str(python.parent / 'tfcactus'), 'tables'], cwd=away, env=variables,
      stdout=subprocess.DEVNULL)
  workers = WORKERS if 'test' in environment.extras.split(',') else ()
  command = command or ['-m', 'pytest', '-q', *MARKERS, *workers, *environment.tests]
  run([str(python), *command], cwd=ROOT,
      env={**variables, 'MATRIX_ENVIRONMENT': environment.name})


def outcome_of(environment: Environment, command: list[str] | None) -> str:
  """Makes and checks one environment; returns 'passed ...' or why it did not pass."""
  found = find_python(environment.pythons)
  if found is None:
    return (f'LEFT OUT: no Python {" or ".join(environment.pythons)} with venv '
            'was found on PATH or under PYENV_ROOT')
  version, python = found
  start = time.time()
  try:
    check(environment, make(environment, python), command)
    result = 'passed'
  except subprocess.CalledProcessError as error:
    result = f'FAILED: {" ".join(map(str, error.cmd))[:100]}'
  result = f'{result} ({time.time() - start:.0f} s, Python {version}'
  if version != environment.pythons[0]:
    # An older version of several was used: the newest was not tested.
    return f'{result}; NO PYTHON {environment.pythons[0]} WAS FOUND)'
  return f'{result})'


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs what the command line asks for; returns 0 if every environment passed."""
  known = {environment.name: environment
           for environment in (*ENVIRONMENTS, NEWEST)}
  usual = [environment.name for environment in ENVIRONMENTS
           if not environment.between]
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('names', nargs='*', metavar='NAME',
                      help=f'of {", ".join(known)}, or all; by default '
                      f'{", ".join(usual)}')
  parser.add_argument('--allow-missing', action='store_true',
                      help='pass where no Python is found for an environment, '
                      'unless it was asked for by name')
  parser.add_argument('--each', nargs=argparse.REMAINDER, metavar='ARGUMENT',
                      help='arguments of python in each environment, instead '
                      'of the tests')
  args = parser.parse_args(arguments)
  if set(args.names) - {*known, 'all'}:
    parser.error(f'expected names of {", ".join(known)}, or all, got '
                 f'{" ".join(args.names)}')
  chosen = args.names or usual
  if 'all' in args.names:
    chosen = [environment.name for environment in ENVIRONMENTS]
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  directory().mkdir(parents=True, exist_ok=True)
  outcomes = {name: outcome_of(environment, args.each)
              for name, environment in known.items()
              if name in {*chosen, *args.names}}
  for name, result in outcomes.items():
    print(f'{name:24} {result}')
  allowed = ('passed', 'LEFT OUT') if args.allow_missing else ('passed',)
  return int(not all(
      result.startswith('passed' if name in args.names else allowed)
      for name, result in outcomes.items()))


if __name__ == '__main__':
  sys.exit(main())
