"""Rebuilds or re-verifies the shipped noise tables.

  python -m tfcactus.design.build_library [--only NAME] [--check]
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from typing import Any
from typing import Optional
from typing import Sequence

import numpy as np

from tfcactus import design
from tfcactus import noise

TABLES = pathlib.Path(noise.__file__).parent / 'tables'
"""Where the shipped tables live in a checkout."""

REPRODUCIBLE = 1e-9
"""How closely, relatively, a rebuilt objective must meet the stored one."""

_CNN_DIM = 26_010
"""Parameters of the tutorial's convolutional network."""


def requests() -> dict[str, Any]:
  """Every shipped table's name and the request that makes it."""
  table = {}
  for budget in (0.1, 0.25, 1.0):
    table[f'cactus-budget{budget:g}'] = design.Cactus(budget, bins=40)
    table[f'monotone-budget{budget:g}'] = design.Monotone(budget, bins=40)
    table[f'monotone-chi2-budget{budget:g}'] = design.Monotone(
        budget, bins=40, objective='chi2')
  for dim in (2, 3, 5, 10):
    for sigma in (0.5, 1.0):
      table[f'isotropic-dim{dim}-sigma{sigma:g}'] = design.Isotropic(dim, sigma)
      table[f'isotropic-chi2-dim{dim}-sigma{sigma:g}'] = design.Isotropic(
          dim, sigma, objective='chi2')
  for sigma in (0.8, 1.0, 1.1, 1.3):
    # The isotropic optimum here is the Gaussian to five digits; its info says
    # that this is the quantised Gaussian and not a solved design.
    table[f'isotropic-dim{_CNN_DIM}-sigma{sigma:g}'] = design.RadialGaussian(
        _CNN_DIM, sigma)
  return table


def check(name: str, request: Any) -> str:
  """Solves a table anew and compares it with the shipped one.

  Args:
    name: The table's name.
    request: The request that makes it.

  Returns:
    A line for the report.

  Raises:
    ValueError: if the shipped table is unreadable or differs.
  """
  shipped = noise.load(TABLES / f'{name}.npz')
  rebuilt = request.solve()
  if shipped.info['mechanism'] != rebuilt.info['mechanism']:
    raise ValueError(
        f'Expected mechanism {rebuilt.info["mechanism"]} in {name}, got '
        f'{shipped.info["mechanism"]}.')
  for key in ('objective', 'lower_bound'):
    old, new = shipped.info[key], rebuilt.info[key]
    if (old is None) != (new is None) or (
        old is not None and not abs(old / new - 1) <= REPRODUCIBLE):
      raise ValueError(f'Expected {key}={new!r} in {name}, got {old!r}.')
  # The stored claim is not evidence: the stored density itself is evaluated.
  if shipped.info['objective'] is not None:
    value = design.verify(shipped)['objective']
    if not abs(value / rebuilt.info['objective'] - 1) <= REPRODUCIBLE:
      raise ValueError(
          f'Expected the density of {name} to attain '
          f'{rebuilt.info["objective"]!r}, got {value!r}.')
  ratio = shipped.noise_multiplier / rebuilt.noise_multiplier
  if not np.isclose(ratio, 1, rtol=REPRODUCIBLE, atol=0):
    raise ValueError(f'Expected noise_multiplier {rebuilt.noise_multiplier!r} '
                     f'in {name}, got {shipped.noise_multiplier!r}.')
  return _line(name, shipped)


def build(name: str, request: Any) -> str:
  """Solves a table and writes it; returns a line for the report."""
  table = request.solve()
  TABLES.mkdir(exist_ok=True)
  table.save(TABLES / f'{name}.npz')
  return _line(name, table)


def _line(name: str, table: Any) -> str:
  info = table.info
  size = (TABLES / f'{name}.npz').stat().st_size
  certificate = (
      'radial Gaussian, no certificate' if info['objective'] is None else
      f'objective {info["objective"]:.10g} bound {info["lower_bound"]:.10g} '
      f'gap {info["gap"]:.1e}')
  return f'{name}: {certificate}, digest {table.digest}, {size} bytes'


def main(argv: Optional[Sequence[str]] = None) -> int:
  """Runs the command; returns its exit status."""
  parser = argparse.ArgumentParser(
      prog='python -m tfcactus.design.build_library', description=__doc__)
  parser.add_argument('--only', metavar='NAME', help='one table, by its name')
  parser.add_argument('--check', action='store_true',
                      help='re-verify the shipped files, write nothing')
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
      line = (check if args.check else build)(name, request)
    except (ValueError, OSError, design.SolverError) as error:
      failures += 1
      line = f'{name}: FAILED: {error}'
    print(f'{line}, {time.perf_counter() - begun:.1f} s', flush=True)
  return 1 if failures else 0


if __name__ == '__main__':
  sys.exit(main())
