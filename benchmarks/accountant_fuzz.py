"""Compares the accountant with independent oracles in thousands of random settings.

    python -m benchmarks.accountant_fuzz [--share 1.0] [--processes 2]

Counts wrong bounds, and measures widths and CPU times. The oracles of
tests/fuzz/phi_cases.py share no code with the accountant: quadrature for two steps,
discretisation rounded to both sides for any number of steps, and enumeration. A CPU
time is that of epsilon at a delta and delta at that epsilon, in one direction.
"""

from __future__ import annotations

import os

for _name in ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS'):
  os.environ[_name] = '1'

import concurrent.futures  # noqa: E402
import dataclasses  # noqa: E402
import math  # noqa: E402
import statistics  # noqa: E402
from typing import Any  # noqa: E402

from benchmarks import _results  # noqa: E402
from tests.fuzz import phi_cases  # noqa: E402

QUICK = ('--share', '0.005')

SETTINGS = {
    'few_gaussians': (3200, 'one or two Gaussian steps, mixed or not; quadrature'),
    'many_gaussians': (
        200, 'up to ten million Gaussian steps of up to three kinds; discretisation'),
    'fixed_size': (450, 'one or two Gaussian steps on samples of fixed size'),
    'replaced': (500, 'Gaussians without sampling under the replace relation'),
    'laplace': (500, 'one or two Laplace releases, sampled or not'),
    'discrete': (
        700, 'random discrete pairs, some with zero masses; enumeration of outcomes'),
    'table': (250, 'random monotone scalar tables')}
"""Number of settings and description of each family in `phi_cases`."""

FIRST_SEED = 200_000
SHOWN = 6
"""Number of widest and of slowest settings that the table shows."""


def outcome(job: tuple[str, int]) -> dict[str, Any]:
  """Returns the outcome of one setting, given its family and seed."""
  family, seed = job
  found = phi_cases.check(getattr(phi_cases, family)(seed))
  return {'family': family, 'seed': seed, **dataclasses.asdict(found)}


def main() -> None:
  """Checks all settings; writes results/accountant_fuzz.json and the tables."""
  parser = _results.parser('accountant_fuzz', __doc__)
  parser.add_argument('--share', type=float, default=1.0,
                      help='share of the settings of each family that are checked')
  parser.add_argument('--processes', type=int, default=2,
                      help='number of parallel processes')
  args = parser.parse_args()
  jobs = [(family, FIRST_SEED + i) for family, (count, _) in SETTINGS.items()
          for i in range(math.ceil(count * args.share))]
  with concurrent.futures.ProcessPoolExecutor(args.processes) as pool:
    outcomes = list(pool.map(outcome, jobs, chunksize=10))
  rows = []
  for family in SETTINGS:
    own = [found for found in outcomes if found['family'] == family]
    times = [found['seconds'] for found in own]
    widths = [found['width'] for found in own if math.isfinite(found['width'])]
    rows.append([
        family, f'{len(own)}', f'{sum(bool(found["wrong"]) for found in own)}',
        f'{statistics.median(widths):.0e}', f'{max(widths):.0e}',
        f'{1e3 * statistics.median(times):.1f}', f'{max(times):.2f}'])
  finite = [found for found in outcomes if math.isfinite(found['width'])]
  widest = sorted(finite, key=lambda found: -found['width'])[:SHOWN]
  slowest = sorted(outcomes, key=lambda found: -found['seconds'])[:SHOWN]
  wrong = [found for found in outcomes if found['wrong']]
  _results.save('accountant_fuzz', {
      'settings': len(outcomes), 'wrong': wrong, 'table': rows,
      'widest': widest, 'slowest': slowest})
  print(f'{len(outcomes)} settings, {len(wrong)} wrong.')
  show(_results.load('accountant_fuzz'))


def show(found: dict) -> None:
  """Writes the tables from the results, whose rows are in the order of `SETTINGS`."""
  _results.show('accountant_fuzz', _results.markdown(
      ['settings', 'number', 'wrong', 'median width', 'widest', 'median ms',
       'slowest, s'],
      [[words, *row[1:]]
       for (_, words), row in zip(SETTINGS.values(), found['table'])]))
  _results.show('accountant_fuzz_extremes', _results.markdown(
      ['widest and slowest settings', 'width', 's'],
      [[each['name'], f'{each["width"]:.0e}', f'{each["seconds"]:.2f}']
       for each in (*found['widest'], *found['slowest'])]))


if __name__ == '__main__':
  main()
