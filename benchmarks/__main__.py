"""Lists and runs the benchmarks.

    python -m benchmarks list              # names, times and descriptions
    python -m benchmarks NAME ...          # run the named benchmarks
    python -m benchmarks all               # run all but the long ones
    python -m benchmarks all --quick       # short runs, to see that they work
    python -m benchmarks ... --results DIR # write to DIR, and change no document

Each benchmark runs in a child process. Its time is saved in results/durations.json.
A benchmark may define two constants in its module:

    LONG = 'reason'            # `all` leaves it out, for this reason
    QUICK = ('--rounds', '1')  # arguments of its quick run

Quick runs write their results to a temporary folder.
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
  """A benchmark, described by its source code, which is not imported.

  Attributes:
    name: Name of the module.
    summary: First line of the module's docstring.
    long: The reason why `all` leaves it out; None if `all` runs it.
    quick: Arguments of the quick run; None if there is no quick run.
  """

  name: str
  summary: str
  long: str | None
  quick: tuple[str, ...] | None


def described(path: pathlib.Path) -> Benchmark:
  """Returns the benchmark in a file.

  Raises ValueError if the file has no docstring, or LONG or QUICK has a wrong type.
  """
  tree = ast.parse(path.read_text(encoding='utf-8'))
  constants = {target.id: ast.literal_eval(node.value)
               for node in tree.body if isinstance(node, ast.Assign)
               for target in node.targets
               if isinstance(target, ast.Name) and target.id in ('LONG', 'QUICK')}
  text = ast.get_docstring(tree)
  long, quick = constants.get('LONG'), constants.get('QUICK')
  if not text or not isinstance(long, (str, type(None))) or not isinstance(
      quick, (tuple, type(None))):
    raise ValueError(
        f'Expected a docstring, a string LONG or none, and a tuple QUICK or none in '
        f'{path.name}, got LONG={long!r} and QUICK={quick!r}.')
  return Benchmark(path.stem, text.splitlines()[0], long, quick)


def benchmarks() -> dict[str, Benchmark]:
  """Returns all benchmarks by name."""
  return {path.stem: described(path) for path in sorted(HERE.glob('*.py'))
          if not path.stem.startswith('_')}


def listed() -> str:
  """Returns the text of `list`: one or two lines per benchmark."""
  took = _results.load(DURATIONS, {})
  lines = []
  for each in benchmarks().values():
    lines.append(f'{each.name:24} {_time(took.get(each.name)):>16}  {each.summary}')
    if each.long:
      lines.append(' ' * 43 + f'Not a part of `all`: {each.long}.')
  return '\n'.join(lines)


def _time(taken: dict | None) -> str:
  """Returns CPU time as text; wall time depends on the machine's other load."""
  if taken is None:
    return 'not measured'
  seconds = taken['cpu_seconds']
  return f'{seconds:.0f} s CPU' if seconds < 100 else f'{seconds / 60:.0f} min CPU'


def run(each: Benchmark, *, quick: bool, folder: str | None) -> bool:
  """Runs a benchmark in a child process; returns whether it succeeded.

  Args:
    each: The benchmark.
    quick: Whether to make the quick run, whose time is not saved.
    folder: Folder for the results; None for benchmarks/results.
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
  """Returns the CPU seconds of all child processes that have ended."""
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  return used.ru_utime + used.ru_stime


def chosen(names: Sequence[str], quick: bool) -> list[Benchmark]:
  """Returns the benchmarks that the command line names.

  Raises ValueError for an unknown name, or a benchmark without a quick run.
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
  """Runs the command line; returns 1 if a benchmark failed, else 0."""
  parser = argparse.ArgumentParser(
      prog='python -m benchmarks', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('names', nargs='*', metavar='NAME',
                      help='names of benchmarks, or list, or all')
  parser.add_argument('--quick', action='store_true',
                      help='make quick runs: minutes in all, instead of an hour')
  parser.add_argument('--results', metavar='DIR',
                      help='folder for the results; documents are left unchanged')
  args = parser.parse_args(argv)
  if args.names == ['list'] or not (args.names or args.quick):
    print(listed())
    return 0
  try:
    wanted = chosen(args.names or ['all'], args.quick)
  except ValueError as error:
    parser.error(str(error))
  with tempfile.TemporaryDirectory() as temporary:
    folder = args.results or (temporary if args.quick else None)
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
