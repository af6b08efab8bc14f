"""No file and no function too long to be read in one go."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FILES = sorted(path for room in ('tfcactus', 'training', 'benchmarks')
               for path in (ROOT / room).rglob('*.py'))


@pytest.mark.parametrize('file', FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_files_and_functions_are_short(file):
  text = file.read_text(encoding='utf-8')
  assert text.count('\n') <= 500
  for node in ast.walk(ast.parse(text)):
    if isinstance(node, ast.FunctionDef):
      assert node.end_lineno - node.lineno + 1 <= 50, node.name
