"""The accountant on thousands of random settings: violations, widths, times.

    python -m benchmarks.accountant_fuzz [--share 1.0] [--processes 2]

Each setting has an oracle that shares no code with the accountant: quadrature of
two steps, discretisation in exact directions of any number, enumeration. See
tests/fuzz/phi_cases.py. CPU times are of both questions together, epsilon at a
delta and delta at that epsilon, in one direction.
"""

from __future__ import annotations

import os

for _name in ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS'):
  os.environ[_name] = '1'

import argparse  # noqa: E402
import concurrent.futures  # noqa: E402
import dataclasses  # noqa: E402
import math  # noqa: E402
import statistics  # noqa: E402
from typing import Any  # noqa: E402

from benchmarks import _results  # noqa: E402
from tests.fuzz import phi_cases  # noqa: E402

QUICK = ('--share', '0.005')

SETTINGS = {'few_gaussians': 3200, 'many_gaussians': 200, 'fixed_size': 450,
            'replaced': 500, 'laplace': 500, 'discrete': 700, 'table': 250}
FIRST_SEED = 200_000
SHOWN = 6


def outcome(job: tuple[str, int]) -> dict[str, Any]:
  """What became of one setting."""
  family, seed = job
  found = phi_cases.check(getattr(phi_cases, family)(seed))
  return {'family': family, 'seed': seed, **dataclasses.asdict(found)}


def main() -> None:
  """Runs everything and writes results/accountant_fuzz.json."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--share', type=float, default=1.0,
                      help='of the settings of each kind')
  parser.add_argument('--processes', type=int, default=2)
  args = parser.parse_args()
  jobs = [(family, FIRST_SEED + i) for family, count in SETTINGS.items()
          for i in range(math.ceil(count * args.share))]
  with concurrent.futures.ProcessPoolExecutor(args.processes) as pool:
    outcomes = list(pool.map(outcome, jobs, chunksize=10))
  rows = []
  for family in SETTINGS:
    own = [found for found in outcomes if found['family'] == family]
    times = [found['seconds'] for found in own]
    widths = [found['width'] for found in own if math.isfinite(found['width'])]
    rows.append([
        getattr(phi_cases, family).__doc__.split(':')[0].splitlines()[0].rstrip('.'),
        f'{len(own)}', f'{sum(bool(found["wrong"]) for found in own)}',
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
  """Writes the tables, from the results."""
  _results.show('accountant_fuzz', _results.markdown(
      ['settings', 'number', 'wrong', 'median width', 'widest', 'median ms',
       'slowest, s'], found['table']))
  _results.show('accountant_fuzz_extremes', _results.markdown(
      ['the widest and the slowest', 'width', 's'],
      [[each['name'], f'{each["width"]:.0e}', f'{each["seconds"]:.2f}']
       for each in (*found['widest'], *found['slowest'])]))


if __name__ == '__main__':
  main()
