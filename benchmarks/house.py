"""Measures the source code: files, lines, docstrings, import circles and tests.

    python -m benchmarks.house
    python -m benchmarks.house --no-tests --list
    python -m benchmarks.house --functions 40 --seed 7

The first command prints all measures; collecting the tests takes minutes, which
--no-tests saves. --list names the docstrings that are counted. --functions prints
functions of the library that are chosen at random, each with its file and source, for
a reader who judges whether they are understood at first reading.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
import functools
import pathlib
import random
import re
import statistics
import subprocess
import sys
from typing import NamedTuple

from benchmarks import _results

LONG = 'it measures the source code'
QUICK = ('--no-tests',)

ROOT = pathlib.Path(__file__).parent.parent
PACKAGES = ('tfcactus', 'training', 'tests', 'benchmarks')
OPENING = re.compile(r'(Of|What|As|How|Whether|In|By|For|With|The same|It|Its)\b(?!-)')
"""First words of a docstring that hide its subject."""
COMMANDS = {'make test': (), 'make test-all': ('-m', 'not slow')}
"""Arguments of pytest, by command of the Makefile."""


class Source(NamedTuple):
  """A Python file: its path in the repository, its lines, and its syntax tree."""

  path: pathlib.Path
  lines: list[str]
  tree: ast.Module


@functools.cache
def sources(package: str) -> list[Source]:
  """Returns the files of a package."""
  texts = {path.relative_to(ROOT): path.read_text(encoding='utf-8')
           for path in sorted((ROOT / package).rglob('*.py'))}
  return [Source(path, text.splitlines(), ast.parse(text))
          for path, text in texts.items()]


def openings(package: str) -> Iterator[str]:
  """Yields place and first line of each docstring that `OPENING` matches."""
  for source in sources(package):
    for node in ast.walk(source.tree):
      if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
        text = ast.get_docstring(node) or ''
        if OPENING.match(text):
          yield (f'{source.path}:{getattr(node, "lineno", 1)}: '
                 f'{text.splitlines()[0]}')


def imports() -> dict[str, set[str]]:
  """Returns the modules of all packages that each module imports, also in functions."""
  modules = {'.'.join(source.path.with_suffix('').parts).removesuffix('.__init__'):
             source for package in PACKAGES for source in sources(package)}
  found = {}
  for name, source in modules.items():
    targets = []
    for node in ast.walk(source.tree):
      if isinstance(node, ast.Import):
        targets += [alias.name for alias in node.names]
      elif isinstance(node, ast.ImportFrom):
        whole = [f'{node.module}.{alias.name}' for alias in node.names]
        targets += [each if each in modules else str(node.module) for each in whole]
    found[name] = set(targets) & set(modules) - {name}
  return found


def circles() -> list[str]:
  """Returns the groups of modules that import each other in a circle."""
  below, reached = imports(), {}
  for name in below:
    seen, ahead = set(), set(below[name])
    while ahead:
      seen |= ahead
      ahead = set().union(*(below[each] for each in ahead)) - seen
    reached[name] = seen
  return sorted({', '.join(sorted(each for each in seen if name in reached[each]))
                 for name, seen in reached.items() if name in seen})


def count_tests(arguments: tuple[str, ...]) -> int:
  """Returns the number of tests that pytest collects with these arguments."""
  output = subprocess.run(
      [sys.executable, '-m', 'pytest', '--collect-only', '-q', *arguments], cwd=ROOT,
      capture_output=True, text=True, check=False).stdout
  found = re.search(r'(\d+)(?:/\d+)? tests collected', output)
  if found is None:
    raise RuntimeError(f'Expected pytest to collect tests, got {output[-500:]!r}.')
  return int(found[1])


def chosen(number: int, seed: int) -> Iterator[str]:
  """Yields place and source of functions of the library, chosen at random."""
  found = [(source, node) for package in ('tfcactus', 'training')
           for source in sources(package) for node in ast.walk(source.tree)
           if isinstance(node, ast.FunctionDef)]
  for source, node in random.Random(seed).sample(found, number):
    yield '\n'.join([f'== {source.path}:{node.lineno}',
                     *source.lines[node.lineno - 1:node.end_lineno], ''])


def main() -> None:
  """Prints the measures, or functions."""
  parser = _results.parser('house', __doc__)
  parser.add_argument('--functions', type=int, metavar='N',
                      help='print N functions of the library instead of the measures')
  parser.add_argument('--seed', type=int, default=0, help='seed of --functions')
  parser.add_argument('--no-tests', action='store_true', help='do not count tests')
  parser.add_argument('--list', action='store_true',
                      help='print the docstrings that are counted')
  args = parser.parse_args()
  if args.functions is not None:
    print('\n'.join(chosen(args.functions, args.seed)))
    return
  rows, listed = [], []
  for package in PACKAGES:
    lines = [len(source.lines) for source in sources(package)]
    found = list(openings(package))
    listed += found
    rows.append([package, f'{len(lines):,}', f'{sum(lines):,}',
                 f'{statistics.median(lines):g}', f'{max(lines):,}', f'{len(found)}'])
  print(_results.markdown(
      ['package', 'files', 'lines', 'median lines', 'most lines',
       'docstrings that begin with a preposition or pronoun'], rows))
  print(*(listed if args.list else ()), sep='\n')
  print('Import circles:', '; '.join(circles()) or 0)
  for command, arguments in () if args.no_tests else COMMANDS.items():
    print(f'Tests of `{command}`: {count_tests(arguments):,}')


if __name__ == '__main__':
  main()
