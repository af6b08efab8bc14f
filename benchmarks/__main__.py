"""Runs benchmarks.

    python -m benchmarks list              # what there is, and how long it takes
    python -m benchmarks NAME ...          # these
    python -m benchmarks all               # all but the long ones
    python -m benchmarks all --quick       # minutes; shows that they run
    python -m benchmarks ... --results DIR # write there, and into no document

Each script runs in a process of its own. What it takes is noted in
results/durations.json. A script says by itself, as constants of its module,

    LONG = 'why'           # not a part of `all`
    QUICK = ('--rounds', '1')  # the arguments of a quick run, which it has then

Quick runs write into a folder that is thrown away.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Sequence
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from benchmarks import _results

HERE = pathlib.Path(__file__).parent
DURATIONS = 'durations'


class Benchmark(NamedTuple):
  """A script, as its source tells it: nothing is imported.

  Attributes:
    name: Of the module.
    summary: First line of its docstring.
    long: Why it is no part of `all`; None if it is.
    quick: Arguments of its quick run; None if it has none.
  """

  name: str
  summary: str
  long: str | None
  quick: tuple[str, ...] | None


def described(path: pathlib.Path) -> Benchmark:
  """The benchmark in a file.

  Raises:
    ValueError: if it has no docstring, or constants of another kind.
  """
  tree = ast.parse(path.read_text(encoding='utf-8'))
  told = {target.id: ast.literal_eval(node.value)
          for node in tree.body if isinstance(node, ast.Assign)
          for target in node.targets
          if isinstance(target, ast.Name) and target.id in ('LONG', 'QUICK')}
  text, long, quick = ast.get_docstring(tree), told.get('LONG'), told.get('QUICK')
  if not text or not isinstance(long, (str, type(None))) or not isinstance(
      quick, (tuple, type(None))):
    raise ValueError(
        f'Expected a docstring, a string LONG or none, and a tuple QUICK or none in '
        f'{path.name}, got LONG={long!r} and QUICK={quick!r}.')
  return Benchmark(path.stem, text.splitlines()[0], long, quick)


def benchmarks() -> dict[str, Benchmark]:
  """All benchmarks, by name."""
  return {path.stem: described(path) for path in sorted(HERE.glob('*.py'))
          if not path.stem.startswith('_')}


def listed() -> str:
  """A line or two for each benchmark."""
  took = _results.load(DURATIONS, {})
  lines = []
  for each in benchmarks().values():
    lines.append(f'{each.name:24} {_time(took.get(each.name)):>16}  {each.summary}')
    if each.long:
      lines.append(' ' * 43 + f'Not a part of `all`: {each.long}.')
  return '\n'.join(lines)


def _time(taken: dict | None) -> str:
  if taken is None:
    return 'not measured'
  # Of the processor: the clock's depends on what else the machine did.
  seconds = taken['cpu_seconds']
  return f'{seconds:.0f} s CPU' if seconds < 100 else f'{seconds / 60:.0f} min CPU'


def run(each: Benchmark, *, quick: bool, folder: str | None) -> bool:
  """Runs a benchmark; returns whether it ended well.

  Args:
    each: The benchmark.
    quick: Its quick way; what it takes is not noted then.
    folder: For results, instead of the one in the tree.
  """
  environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(
      [str(HERE.parent), *filter(None, [os.environ.get('PYTHONPATH')])])}
  if folder is not None:
    environment[_results.ELSEWHERE] = folder
  arguments = each.quick if quick and each.quick else ()
  print(f'== {each.name} {" ".join(arguments)}', flush=True)
  begun, used = time.perf_counter(), _processor()
  done = subprocess.run(
      [sys.executable, '-m', f'benchmarks.{each.name}', *arguments],
      cwd=HERE.parent, env=environment, check=False)
  seconds = time.perf_counter() - begun
  print(f'== {each.name}: {seconds:.0f} s' + (
      '' if done.returncode == 0 else f', FAILED with {done.returncode}'), flush=True)
  if done.returncode == 0 and not quick:
    took = _results.load(DURATIONS, {})
    took[each.name] = {'seconds': round(seconds, 3),
                       'cpu_seconds': round(_processor() - used, 2),
                       'cores': os.cpu_count()}
    _results.save(DURATIONS, dict(sorted(took.items())))
  return done.returncode == 0


def _processor() -> float:
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  return used.ru_utime + used.ru_stime


def chosen(names: Sequence[str], quick: bool) -> list[Benchmark]:
  """What the arguments ask for.

  Raises:
    ValueError: if there is no such benchmark, or no quick way of it.
  """
  known = benchmarks()
  if list(names) == ['all']:
    return [each for each in known.values()
            if (each.quick is not None if quick else each.long is None)]
  for name in names:
    if name not in known:
      raise ValueError(f'Expected list, all, or names out of {", ".join(known)}, '
                       f'got {name!r}.')
    if quick and known[name].quick is None:
      raise ValueError(f'Expected a benchmark that has a quick run, got {name!r}, '
                       'whose module has no QUICK; run it without --quick.')
  return [known[name] for name in names]


def main(argv: Sequence[str] | None = None) -> int:
  """Does what the command line says; returns 1 if a benchmark failed."""
  parser = argparse.ArgumentParser(
      prog='python -m benchmarks', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('names', nargs='*', metavar='NAME', help='or: list, all')
  parser.add_argument('--quick', action='store_true', help='minutes, not an hour')
  parser.add_argument('--results', metavar='DIR', help='where to write')
  args = parser.parse_args(argv)
  if args.names == ['list'] or not (args.names or args.quick):
    print(listed())
    return 0
  try:
    wanted = chosen(args.names or ['all'], args.quick)
  except ValueError as error:
    parser.error(str(error))
  with tempfile.TemporaryDirectory() as thrown_away:
    folder = args.results or (thrown_away if args.quick else None)
    if folder is not None:
      folder = str(pathlib.Path(folder).resolve())
      _results.RESULTS = pathlib.Path(folder)
    failed = [each.name for each in wanted
              if not run(each, quick=args.quick, folder=folder)]
  print(f'{len(wanted) - len(failed)} of {len(wanted)} ended well.' + (
      f' Failed: {", ".join(failed)}.' if failed else ''))
  return 1 if failed else 0


if __name__ == '__main__':
  sys.exit(main())
