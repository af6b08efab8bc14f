"""The models of tests/keras/zoo, private and plain, and what they cost.

    python -m benchmarks.model_zoo
    OTHER/bin/python -m benchmarks.model_zoo

Once in an environment of each Keras: each run keeps what it measured, and the
tables are written from both. Every model has a process of its own, in which plain
and private training alternate at (expected) batches of 128; ratios are of CPU
times, medians of the rounds. A run that was stopped goes on with `--resume`.
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
"""Milliseconds of a plain step; in shorter ones what any private step costs is most."""


def measure(name: str, rounds: int) -> dict:
  """What a process of its own found out about a model."""
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
  """Measures models one after the other, each kept at once."""
  for name in names:
    result = measure(name, rounds)
    version = result.pop('keras', None)
    print(f'{name}: {result}', flush=True)
    found['models'][name] = result
    if version:
      found['version'] = version
    _results.save(f'model_zoo_keras{found["keras"]}', found)


def kept(version: int) -> dict:
  """What was measured with a version of Keras, or nothing."""
  return _results.load(f'model_zoo_keras{version}', {
      'keras': version, 'batch': _zoo_training.BATCH, 'models': {}})


def _cells(result: dict) -> list:
  """Route, slowdown, memory and first step of a model, as text."""
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
  """One line for each model."""
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
  """The median and the worst of each Keras."""
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
        f'{median_long:.2f} of {len(long)}',
        f'{long[worst_long]["slowdown"]:.2f} ({worst_long})',
        f'{middle[0]:.2f}', f'{ran[worst]["slowdown"]:.2f} ({worst})',
        f'{middle[1]:.1f}', f'{ran[first]["first_step"]:.1f} ({first})'])
  return _results.markdown(
      ['Keras', 'run', 'batched', 'layers vectorised', 'whole model vectorised',
       'refused', f'median slowdown where plain steps take {LONG_STEP} ms or more',
       'worst of these', 'median of all', 'worst', 'median first step', 'worst'], rows)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--serve', help=argparse.SUPPRESS)
  parser.add_argument('--rounds', type=int, default=ROUNDS)
  parser.add_argument('--only', nargs='*', metavar='NAME',
                      help='models to measure; what others gave is kept')
  parser.add_argument('--resume', action='store_true',
                      help='measure only what was not yet')
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
  """Writes the tables, from the results of both."""
  _results.show('model_zoo_summary', summary_table(both))
  _results.show('model_zoo', models_table(both))


if __name__ == '__main__':
  main()
