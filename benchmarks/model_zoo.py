"""Measures time and memory of private training for each model of tests/keras/zoo.

    python -m benchmarks.model_zoo
    OTHER/bin/python -m benchmarks.model_zoo

Run it once with Keras 2 and once with Keras 3: each run saves its own results, and the
tables are written from both. Each model has a child process, in which plain and private
training alternate at an (expected) batch size of 128. Ratios are those of CPU times,
medians over the rounds. `--resume` continues an interrupted run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

from benchmarks import _results, _zoo_training  # noqa: E402

LONG = 'it trains some 160 models, in an environment of each Keras'

ROUNDS, PATIENCE = 5, 900
VERSIONS = (2, 3)
LONG_STEP = 10
"""Milliseconds of a plain step. In shorter steps the fixed cost of a private step
dominates."""


def measure(name: str, rounds: int) -> dict:
  """Measures a model in a child process; returns its results or how it failed."""
  command = [sys.executable, '-m', 'benchmarks.model_zoo', '--serve', name,
             '--rounds', str(rounds)]
  try:
    run = subprocess.run(command, capture_output=True, text=True,
                         timeout=PATIENCE, check=False)
  except subprocess.TimeoutExpired:
    return {'failed': f'took longer than {PATIENCE} s'}
  lines = run.stdout.strip().splitlines()
  if run.returncode or not lines:
    return {'failed': f'the process ended with {run.returncode}: '
                      f'{run.stderr.strip().splitlines()[-1:]}'}
  return json.loads(lines[-1])


def measure_all(names: list, rounds: int, found: dict) -> None:
  """Measures models one after the other, and saves after each."""
  for name in names:
    result = measure(name, rounds)
    version = result.pop('keras', None)
    print(f'{name}: {result}', flush=True)
    found['models'][name] = result
    if version:
      found['version'] = version
    _results.save(f'model_zoo_keras{found["keras"]}', found)


def kept(version: int) -> dict:
  """Returns the saved results for a version of Keras; without models if none."""
  return _results.load(f'model_zoo_keras{version}', {
      'keras': version, 'batch': _zoo_training.BATCH, 'models': {}})


def _cells(result: dict) -> list:
  """Returns route, slowdown, memory and first step of a model, as text."""
  if not result:
    return ['', '', '', '']
  for kind in ('refused', 'failed', 'wrong'):
    if kind in result:
      reason = ' '.join(result[kind].split()).replace('|', '/')
      return [f'{kind}: {reason[:140]}', '', '', '']
  return [result['route'], f'{result["slowdown"]:.2f}',
          f'{result["memory_above_plain_mb"]:+.0f}',
          f'{result["first_step"]:.1f}']


def models_table(found: dict) -> str:
  """Returns a table with one row per model."""
  names = sorted({name for each in found.values() for name in each['models']},
                 key=str.casefold)
  heads = ('route', 'slowdown', 'memory, MB', 'first step')
  return _results.markdown(
      ['model', *(f'{head}, Keras {version}' for version in VERSIONS
                  for head in heads)],
      [[name, *(cell for version in VERSIONS
                for cell in _cells(found[version]['models'].get(name, {})))]
       for name in names])


def summary_table(found: dict) -> str:
  """Returns a table with medians and worst cases for each version of Keras."""
  rows = []
  for version in VERSIONS:
    models = found[version]['models']
    ran = {name: each for name, each in models.items() if 'slowdown' in each}
    if not ran:
      continue
    routes = [each['route'] for each in ran.values()]
    worst = max(ran, key=lambda name: ran[name]['slowdown'])
    long = {name: each for name, each in ran.items() if each['plain_ms'] >= LONG_STEP}
    worst_long = max(long, key=lambda name: long[name]['slowdown'])
    median_long = statistics.median(each['slowdown'] for each in long.values())
    first = max(ran, key=lambda name: ran[name]['first_step'])
    middle = [statistics.median(each[key] for each in ran.values())
              for key in ('slowdown', 'first_step')]
    rows.append([
        found[version].get('version', str(version)), str(len(ran)),
        str(sum(route == 'batched' for route in routes)),
        str(sum(route.startswith('vectorised') for route in routes)),
        str(sum(route.startswith('whole') for route in routes)),
        str(sum('refused' in each for each in models.values())),
        f'{median_long:.2f} ({len(long)} models)',
        f'{long[worst_long]["slowdown"]:.2f} ({worst_long})',
        f'{middle[0]:.2f}', f'{ran[worst]["slowdown"]:.2f} ({worst})',
        f'{middle[1]:.1f}', f'{ran[first]["first_step"]:.1f} ({first})'])
  return _results.markdown(
      ['Keras', 'run', 'batched', 'layers vectorised', 'whole model vectorised',
       'refused', f'median slowdown where plain steps take {LONG_STEP} ms or more',
       'worst of these', 'median of all', 'worst', 'median first step', 'worst'], rows)


def main() -> None:
  """Measures the models for the installed Keras, and writes the tables."""
  parser = _results.parser('model_zoo', __doc__)
  parser.add_argument('--serve', help=argparse.SUPPRESS)
  parser.add_argument('--rounds', type=int, default=ROUNDS,
                      help='rounds in which plain and private training alternate')
  parser.add_argument('--only', nargs='*', metavar='NAME',
                      help='models to measure; saved results of others are kept')
  parser.add_argument('--resume', action='store_true',
                      help='measure only models without saved results')
  args = parser.parse_args()
  if args.serve:
    print(json.dumps(_zoo_training.measure(args.serve, args.rounds)))
    return
  version, names = _zoo_training.names()
  found = kept(version)
  if args.only:
    names = [name for name in names if name in args.only]
  elif args.resume:
    names = [name for name in names if name not in found['models']]
  else:
    found['models'] = {}
  measure_all(names, args.rounds, found)
  show({each: kept(each) for each in VERSIONS})


def show(both: dict) -> None:
  """Writes the tables from the results for both versions of Keras."""
  _results.show('model_zoo_summary', summary_table(both))
  _results.show('model_zoo', models_table(both))


if __name__ == '__main__':
  main()
