"""Measures the time of the structured solver for designs, and of Clarabel by cvxpy.

    python -m benchmarks.solver_speed [--largest 80]

Both solve program (20) of paper 000 at variance .25 with all shifts, in one process;
Clarabel takes minutes for 80 cells per unit. The structured solver alone is also timed
at the resolutions of the papers, and by dimension. Run it with OMP_NUM_THREADS=1, and
compare ratios of CPU times, since wall times depend on the machine's other load.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
import time
from typing import Any

import numpy as np

from benchmarks import _results
from tfcactus import design
from tfcactus.design.solvers import conic

LONG = 'Clarabel is slow, and fails for large designs'
QUICK = ('--largest', '20', '--dims', '1', '10')

BUDGET, UNITS, LOG_RATIO = 0.25, 8, 200 * np.log(0.9)
"""Variance, half-width of the grid in units of sensitivity, and log tail ratio per
unit: a ratio of .9 per cell at 200 cells per unit."""

DIMS = (1, 2, 10, 50, 100, 1000, 26_010, 100_000, 1_000_000)
"""Dimensions in which isotropic designs are timed."""


def timed(request, repeats: int = 1) -> dict:
  """Solves a request several times; returns the least wall and CPU time."""
  seconds, processor, told = [], [], {}
  for _ in range(repeats):
    begun = time.perf_counter(), time.process_time()
    told = request.solve().info
    seconds.append(time.perf_counter() - begun[0])
    processor.append(time.process_time() - begun[1])
  return {'seconds': min(seconds), 'cpu_seconds': min(processor),
          'objective': told['objective'],
          'lower_bound': told['lower_bound'], 'gap': told['gap'],
          'iterations': told['iterations']}


def cactus(bins: int, **changes) -> design.Cactus:
  """Returns program (20) with `bins` cells per unit and the paper's tail."""
  return design.Cactus(BUDGET, bins=bins, cells=UNITS * bins,
                       tail_ratio=float(np.exp(LOG_RATIO / bins)), **changes)


def against_clarabel(bins: int) -> dict:
  """Times both solvers on program (20) with `bins` cells per unit."""
  conic.MAX_EDGES = 10**6
  own = timed(cactus(bins), 5)
  begun = time.perf_counter(), time.process_time()
  try:
    other = timed(dataclasses.replace(cactus(bins), solver='cvxpy'))
  except design.SolverError as error:
    # It ran to the end; only its solution could not be certified.
    other = {'seconds': time.perf_counter() - begun[0],
             'cpu_seconds': time.process_time() - begun[1], 'error': str(error)}
  return {'n': bins, 'own': own, 'clarabel': other,
          'ratio': other['seconds'] / own['seconds'],
          'cpu_ratio': other['cpu_seconds'] / own['cpu_seconds']}


def alone(dims: Sequence[int]) -> Iterator[dict]:
  """Times the structured solver at the resolutions of the papers and by dimension."""
  fine: dict[str, Any] = {'bins': 200, 'cells': 1600, 'tail_ratio': 0.9}
  ball: dict[str, Any] = {'bins': 400, 'cells': 1200}
  requests = {
      'cactus n=200 N=1600, all shifts': cactus(200),
      'cactus n=400 N=3200, all shifts': cactus(400),
      'monotone KL n=200 N=1600': design.Monotone(0.25, **fine),
      'monotone chi2 n=200 N=1200': design.Monotone(
          0.25, bins=200, cells=1200, tail_ratio=float(np.exp(-0.025)),
          objective='chi2'),
      'isotropic m=10 n=400 N=1200 r=.98': design.Isotropic(
          10, 0.5, tail_ratio=0.98, **ball),
      'isotropic m=10 n=400 N=1200 r=.9': design.Isotropic(
          10, 0.5, tail_ratio=0.9, **ball)}
  for dim in dims:
    requests[f'isotropic m={dim}, sigma=1, default shells'] = design.Isotropic(
        dim, 1.0)
  for name, request in requests.items():
    yield {'case': name, **timed(request)}


def main() -> None:
  """Measures both parts, writes results/solver_speed.json and prints a table."""
  parser = _results.parser('solver_speed', __doc__)
  parser.add_argument('--largest', type=int, default=80,
                      help='largest number of cells per unit for Clarabel: 20, 40, 80')
  parser.add_argument('--dims', type=int, nargs='*', default=DIMS,
                      help='dimensions of the isotropic designs')
  args = parser.parse_args()
  result: dict[str, list] = {'against_clarabel': [], 'alone': []}
  for bins in (20, 40, 80):
    if bins <= args.largest:
      result['against_clarabel'].append(against_clarabel(bins))
      print(result['against_clarabel'][-1], flush=True)
      _results.save('solver_speed', result)
  for row in alone(args.dims):
    result['alone'].append(row)
    print(row, flush=True)
    _results.save('solver_speed', result)
  print(_results.markdown(
      ['n', 'structured, CPU s', 'Clarabel, CPU s', 'ratio'],
      [[str(r['n']), f'{r["own"]["cpu_seconds"]:.3f}',
        f'{r["clarabel"]["cpu_seconds"]:.1f}', f'{r["cpu_ratio"]:.0f}']
       for r in result['against_clarabel']]))


if __name__ == '__main__':
  main()
