"""The numbers half of the library must not load TensorFlow or cvxpy."""

import os
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest

import tfcactus

ROOT = pathlib.Path(tfcactus.__file__).parent
CORE = sorted(
    module.name for module in pkgutil.walk_packages(
        [str(ROOT)], 'tfcactus.', onerror=lambda name: None)
    if not module.name.startswith(('tfcactus.keras', 'tfcactus.learned')))

# What a room may import from: only rooms below it, and itself.
BELOW = {
    '_checks.py': (), '_format.py': (), '_numerics.py': (), 'relations.py': (),
    'adaptive_clipping.py': ('_checks',),
    'randomness.py': (),
    'pairs': ('_checks', '_numerics'),
    'noise': ('_checks', 'pairs', 'randomness'),
    'sampling': ('_checks', 'relations', 'randomness'),
    'accounting': ('_checks', '_format', '_numerics', 'relations', 'pairs',
                   'noise'),
    'guarantee.py': ('_format', 'relations', 'accounting'),
    'plan.py': ('_checks', 'relations', 'adaptive_clipping', 'noise', 'sampling',
                'accounting', 'guarantee'),
    'design': ('_checks', '_format', '_numerics', 'noise'),
    'search': ('_checks', '_format', '_numerics', 'noise', 'accounting', 'plan',
               'design', 'guarantee'),
    'release': ('_checks', '_format', '_numerics', 'relations', 'randomness',
                'noise', 'accounting', 'plan', 'guarantee'),
    'learned': ('_checks', '_format', 'noise', 'accounting'),
    'keras': ('_checks', '_format', 'relations', 'adaptive_clipping', 'randomness',
              'pairs', 'noise', 'sampling', 'accounting', 'plan', 'guarantee'),
}


def test_core_loads_neither_tensorflow_nor_cvxpy():
  script = (
      f'import importlib, sys\nfor name in {CORE!r}: '
      'importlib.import_module(name)\n'
      'print([n for n in ("tensorflow", "cvxpy", "tensorflow_privacy") '
      'if n in sys.modules])')
  result = subprocess.run(
      [sys.executable, '-c', script], capture_output=True, text=True,
      env={**os.environ, 'PYTHONPATH': str(ROOT.parent)}, check=True)
  assert result.stdout.strip() == '[]'
  assert len(CORE) > 15


def rooms_imported(file):
  """The rooms of tfcactus that a file imports from, wherever in it."""
  text = file.read_text(encoding='utf-8')
  return {name for pair in re.findall(
      r'^\s*(?:from|import) tfcactus(?:\.(\w+)[\w.]*| import (\w+))', text, re.M)
          for name in pair if name}


@pytest.mark.parametrize('room', BELOW)
def test_imports_run_one_way(room):
  path = ROOT / room
  files = [path] if path.is_file() else sorted(path.rglob('*.py'))
  assert files
  for file in files:
    strange = rooms_imported(file) - set(BELOW[room]) - {room}
    assert not strange, f'{file.relative_to(ROOT)} imports from {strange}'


def test_every_room_is_drawn():
  rooms = {path.name for path in ROOT.iterdir()
           if path.suffix == '.py' or (path / '__init__.py').exists()}
  assert rooms - {'__init__.py', 'cli'} == set(BELOW)


def test_tensorflow_privacy_is_the_business_of_one_room():
  users = {str(file.parent.relative_to(ROOT)) for file in ROOT.rglob('*.py')
           if re.search(r"^\s*(import|from) tensorflow_privacy|'tensorflow_privacy",
                        file.read_text(encoding='utf-8'), re.M)}
  assert users == {'keras/tfp'}


def test_keras_does_not_load_tensorflow_privacy_until_asked():
  pytest.importorskip('tensorflow')
  script = (
      'import sys, tfcactus.keras\n'
      'print(sorted({"tensorflow_privacy", "tfcactus.keras.tfp.query"} & '
      'set(sys.modules)))\n'
      'print(tfcactus.keras.TableNoiseQuery.__name__)')
  result = subprocess.run(
      [sys.executable, '-c', script], capture_output=True, text=True,
      env={**os.environ, 'PYTHONPATH': str(ROOT.parent)}, check=True)
  assert result.stdout.split() == ['[]', 'TableNoiseQuery']
