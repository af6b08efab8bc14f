"""Rebuilds or re-verifies the shipped noise tables.

  python -m tfcactus.design.build_library [--only NAME] [--check | --reproduce]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import pathlib
import sys
import time
from typing import Union

from tfcactus import _format, design, noise

TABLES = pathlib.Path(noise.__file__).parent / 'tables'
"""Directory of the shipped tables in a checkout."""

REPRODUCIBLE = 1e-9
"""Maximum relative difference of a recomputed number from the stored one."""

_BINS = 100
"""Cells per unit of sensitivity of the shipped scalar tables."""

Request = Union[design.Cactus, design.Monotone, design.Isotropic]

_CNN_DIM = 26_010
"""Number of parameters of the tutorial's convolutional network."""


def requests() -> dict[str, Request]:
  """Returns {name: request} of every shipped table."""
  table: dict[str, Request] = {}
  for budget in (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0):
    table[f'cactus-budget{budget:g}'] = design.Cactus(budget, bins=_BINS)
    table[f'monotone-budget{budget:g}'] = design.Monotone(budget, bins=_BINS)
    table[f'monotone-chi2-budget{budget:g}'] = design.Monotone(
        budget, bins=_BINS, objective='chi2')
  for budget in (0.1, 0.25):  # The grid that Alghamdi et al. (ISIT 2022) print.
    table[f'cactus-paper-budget{budget:g}'] = design.Cactus(
        budget, bins=200, cells=1600, tail_ratio=0.9)
  for dim in (2, 3, 5, 10, 20, 50, 100, 1000, _CNN_DIM):
    for sigma in (0.3, 0.5, 1.0, 1.3, 2.0):
      table[f'isotropic-dim{dim}-sigma{sigma:g}'] = design.Isotropic(dim, sigma)
      table[f'isotropic-chi2-dim{dim}-sigma{sigma:g}'] = design.Isotropic(
          dim, sigma, objective='chi2')
  for sigma in (0.8, 1.1):
    table[f'isotropic-dim{_CNN_DIM}-sigma{sigma:g}'] = design.Isotropic(_CNN_DIM, sigma)
  return table


def check(name: str, request: Request) -> str:
  """Returns a report line of a shipped table whose recomputed certificate is the same.

  Raises ValueError if a number differs, SolverError if the certificate does not hold.
  """
  shipped = noise.load(TABLES / f'{name}.npz')
  stored = shipped.info['parameters']
  budget = (request.checked()[1] if isinstance(request, design.Isotropic) else
            request.budget)
  wanted = {'budget': budget, 'objective': request.objective}
  for key, value in wanted.items():
    if stored[key] != value:
      raise ValueError(f'Expected {key}={value!r} in {name}, got {stored[key]!r}.')
  fresh = design.verify(shipped)
  for key in ('objective', 'lower_bound'):
    _compare(name, key, fresh[key], shipped.info[key])
  return _line(name, shipped)


def _compare(name: str, key: str, new: float, old: float) -> None:
  """Raises ValueError if the numbers differ by more than `REPRODUCIBLE`, relatively."""
  if not abs(old / new - 1) <= REPRODUCIBLE:
    raise ValueError(f'Expected {key}={new!r} in {name}, got {old!r}.')


def reproduce(name: str, request: Request) -> str:
  """Solves a table anew; returns a report line, ValueError if the objective differs."""
  shipped = noise.load(TABLES / f'{name}.npz')
  _compare(name, 'objective', request.solve().info['objective'],
           shipped.info['objective'])
  return f'{_line(name, shipped)}, reproduced'


def build(name: str, request: Request) -> str:
  """Solves a table and writes it; returns a report line."""
  table = request.solve()
  TABLES.mkdir(exist_ok=True)
  table.save(TABLES / f'{name}.npz')
  return _line(name, table)


def _line(name: str, table: noise.library.Table) -> str:
  """Returns the report line of a table: certificate, digest and size of its file."""
  info = table.info
  size = (TABLES / f'{name}.npz').stat().st_size
  certificate = (
      f'objective {_format.upper(info["objective"], 10)} bound '
      f'{_format.lower(info["lower_bound"], 10)} gap {_format.upper(info["gap"], 2)}')
  return f'{name}: {certificate}, digest {table.digest}, {size} bytes'


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit status, 1 if a table failed, else 0."""
  parser = argparse.ArgumentParser(
      prog='python -m tfcactus.design.build_library', description=__doc__)
  parser.add_argument('--only', metavar='NAME', help='one table, by its name')
  how = parser.add_mutually_exclusive_group()
  how.add_argument('--check', dest='work', action='store_const', const=check,
                   default=build,
                   help='recompute the certificates of the shipped files')
  how.add_argument('--reproduce', dest='work', action='store_const',
                   const=reproduce,
                   help='solve again and compare, write nothing')
  args = parser.parse_args(argv)
  wanted = requests()
  if args.only is not None:
    if args.only not in wanted:
      parser.error(f'expected --only to be one of {", ".join(sorted(wanted))}, '
                   f'got {args.only!r}')
    wanted = {args.only: wanted[args.only]}
  failures = 0
  for name, request in wanted.items():
    begun = time.perf_counter()
    try:
      line = args.work(name, request)
    except (ValueError, KeyError, OSError, design.SolverError) as error:
      failures += 1
      line = f'{name}: FAILED: {error}'
    print(f'{line}, {time.perf_counter() - begun:.1f} s', flush=True)
  return 1 if failures else 0


if __name__ == '__main__':
  sys.exit(main())
