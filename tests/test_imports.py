"""Imports between rooms are as drawn, and the core loads no TensorFlow or cvxpy."""

import ast
import os
import pathlib
import re
import subprocess
import sys

import pytest

import tfcactus

ROOT = pathlib.Path(tfcactus.__file__).parent
MODULES = {
    '.'.join(('tfcactus', *file.relative_to(ROOT).with_suffix('').parts)).removesuffix(
        '.__init__'): file for file in ROOT.rglob('*.py')}
CORE = sorted(name for name in MODULES
              if not name.startswith(('tfcactus.keras', 'tfcactus.learned')))


def drawn():
  """Returns, for each room of docs/architecture.md, the rooms it imports from."""
  text = (ROOT.parent / 'docs' / 'architecture.md').read_text(encoding='utf-8')
  rows = re.findall(r'^\| `([\w.]+)` \| [^|]* \|([^|]*)\|$', text, re.M)
  return {room: set(re.findall(r'`([\w.]+)`', names)) for room, names in rows}


DRAWN = drawn()
BELOW = {room: below for room, below in DRAWN.items() if '.' not in room}
KERAS = {room: below for room, below in DRAWN.items() if '.' in room}


def printed(script):
  """Returns what a script prints in a new Python process."""
  return subprocess.run(
      [sys.executable, '-c', script], capture_output=True, text=True,
      env={**os.environ, 'PYTHONPATH': str(ROOT.parent)}, check=True).stdout


def test_core_loads_neither_tensorflow_nor_cvxpy():
  assert printed(
      f'import importlib, sys\nfor name in {CORE!r}: '
      'importlib.import_module(name)\n'
      'print([n for n in ("tensorflow", "cvxpy", "tensorflow_privacy") '
      'if n in sys.modules])').strip() == '[]'
  assert len(CORE) > 15


def test_scipy_signal_loads_only_when_used():
  # Newer versions of dp_accounting need scipy.stats while they are imported.
  assert printed(
      'import sys, tfcactus\nprint("scipy.signal" in sys.modules)\n'
      'from dp_accounting import pld\n'
      'part = pld.privacy_loss_distribution.from_gaussian_mechanism(1.0)\n'
      'print(part.self_compose(3).get_delta_for_epsilon(1.0) > 0)\n'
      'print(pld.common.signal.fftconvolve([1.0], [2.0])[0] == 2)').split() == [
          'False', 'True', 'True']


def imported(file):
  """Yields the modules of tfcactus that a file imports, in functions too."""
  for node in ast.walk(ast.parse(file.read_text(encoding='utf-8'))):
    if isinstance(node, ast.Import):
      found = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      found = [f'{node.module}.{alias.name}' for alias in node.names]
    else:
      continue
    for name in found:
      while name.startswith('tfcactus') and name not in MODULES:
        name = name.rpartition('.')[0]
      if name.startswith('tfcactus'):
        yield name


def test_imports_between_rooms_are_as_drawn():
  found = {}
  for room in BELOW:
    files = sorted((ROOT / room).rglob('*.py')) or [ROOT / f'{room}.py']
    found[room] = {name.split('.')[1] for file in files for name in imported(file)
                   if '.' in name} - {room}
  assert found == BELOW


def test_imports_between_rooms_of_keras_are_as_drawn():
  found = {}
  for room in KERAS:
    names = {'.'.join(name.split('.')[1:3])
             for file in (ROOT / room.replace('.', '/')).rglob('*.py')
             for name in imported(file)}
    found[room] = names & set(KERAS) - {room}
  assert found == KERAS


def test_modules_import_each_other_in_no_circle():
  below = {name: set(imported(file)) - {name} for name, file in MODULES.items()}
  # Take away modules that import nothing that is left, or that nothing left imports.
  while free := {name for name, names in below.items() if not names & below.keys() or
                 not any(name in others for others in below.values())}:
    below = {name: names for name, names in below.items() if name not in free}
  assert not below, f'circles among {sorted(below)}'


def test_the_drawing_has_every_room_and_imports_go_one_way():
  rooms = {path.stem for path in ROOT.iterdir()
           if path.suffix == '.py' or (path / '__init__.py').exists()}
  assert rooms - {'__init__'} == set(BELOW)
  rooms = {path.parent.name for path in (ROOT / 'keras').glob('*/__init__.py')}
  assert {f'keras.{room}' for room in rooms} == set(KERAS)
  order = list(DRAWN)
  for room, below in DRAWN.items():
    assert all(order.index(other) < order.index(room) for other in below), room


def test_only_keras_tfp_imports_tensorflow_privacy():
  users = {str(file.parent.relative_to(ROOT)) for file in ROOT.rglob('*.py')
           if re.search(r"^\s*(import|from) tensorflow_privacy|'tensorflow_privacy",
                        file.read_text(encoding='utf-8'), re.M)}
  assert users == {'keras/tfp'}


def test_keras_loads_tensorflow_privacy_only_when_used():
  pytest.importorskip('tensorflow')
  assert printed(
      'import sys, tfcactus.keras\n'
      'print(sorted({"tensorflow_privacy", "tfcactus.keras.tfp.query"} & '
      'set(sys.modules)))\n'
      'print(tfcactus.keras.TableNoiseQuery.__name__)').split() == [
          '[]', 'TableNoiseQuery']
