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
    if not module.name.startswith('tfcactus.keras'))

FORBIDDEN = {
    'noise': ('design', 'privacy', 'plan', 'keras', 'release', 'cli'),
    'design': ('privacy', 'plan', 'keras', 'release', 'cli'),
    'privacy': ('design', 'plan', 'keras', 'release', 'cli'),
    'plan.py': ('keras', 'release', 'cli'),
    'release': ('keras', 'design', 'cli'),
    'keras': ('cli', 'design', 'release'),
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


@pytest.mark.parametrize('part', FORBIDDEN)
def test_imports_run_one_way(part):
  path = ROOT / part
  files = [path] if path.is_file() else sorted(path.glob('*.py'))
  assert files
  for file in files:
    for line in file.read_text(encoding='utf-8').splitlines():
      found = re.match(r'\s*(?:from|import) tfcactus(?:\.| import )(\w+)', line)
      if found:
        assert found.group(1) not in FORBIDDEN[part], f'{file}: {line}'


def test_tensorflow_privacy_is_imported_in_one_module():
  users = {file.name for file in ROOT.rglob('*.py')
           if re.search(r"^\s*(import|from) tensorflow_privacy|'tensorflow_privacy",
                        file.read_text(encoding='utf-8'), re.M)}
  assert users == {'_tfp.py'}
