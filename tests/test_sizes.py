"""Source files and functions are short enough to be read in one go."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).parent.parent
FILES = sorted(path for room in ('tfcactus', 'training', 'benchmarks')
               for path in (ROOT / room).rglob('*.py'))


def too_long(text):
  """Yields what is too long in a module's source."""
  if text.count('\n') > 500:
    yield 'the file'
  for node in ast.walk(ast.parse(text)):
    if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno + 1 > 50:
      yield node.name


def test_files_and_functions_are_short():
  assert len(FILES) > 100
  assert [f'{path.relative_to(ROOT)}: {what}' for path in FILES
          for what in too_long(path.read_text(encoding='utf-8'))] == []


def test_long_files_and_functions_are_found():
  function = 'def f():\n' + '  pass\n' * 50
  assert list(too_long(function)) == ['f'] and not list(too_long(function[:-7]))
  assert list(too_long('\n' * 501)) == ['the file'] and not list(too_long('\n' * 500))
