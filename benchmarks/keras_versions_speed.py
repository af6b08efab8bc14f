"""Measures the slowdown of private training with several versions of TensorFlow.

    python -m benchmarks.keras_versions_speed OLD/bin/python NEW/bin/python

Each interpreter, for example of an environment made by `make test-matrix`, trains the
tutorial CNN without and with privacy, in one child process each. The processes
alternate; the result is the best CPU time over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

from benchmarks import _processes, _results, training_speed  # noqa: E402

LONG = 'it needs the interpreters of two environments'

NAMES = ('plain', 'tfcactus')
STEPS = 60


def serve(name):
  """Trains once per input line, and prints the CPU time as a line of JSON."""
  import keras
  import tensorflow as tf
  train = training_speed.keras_contender(name)
  train(3)
  for _ in sys.stdin:
    start = time.process_time()
    train(STEPS)
    print(json.dumps({
        'cpu_seconds': time.process_time() - start,
        'tensorflow': tf.__version__, 'keras': keras.__version__}), flush=True)


def measure(interpreters, rounds):
  """Returns for each interpreter the best CPU seconds of both contenders."""
  workers = {
      (python, name): _processes.Worker('keras_versions_speed', name, python)
      for python in interpreters for name in NAMES}
  found = {python: {} for python in interpreters}
  for _ in range(rounds):
    for (python, name), worker in workers.items():
      result = worker.ask()
      best = found[python]
      best[name] = min(best.get(name, float('inf')), result.pop('cpu_seconds'))
      best.update(result)
  for worker in workers.values():
    worker.close()
  return found


def main():
  """Measures all interpreters; writes the results and the table."""
  parser = _results.parser('keras_versions_speed', __doc__)
  parser.add_argument('interpreters', nargs='*', metavar='PYTHON',
                      help='Python interpreters of two or more environments')
  parser.add_argument('--serve', help=argparse.SUPPRESS)
  parser.add_argument('--rounds', type=int, default=12,
                      help='rounds in which the processes alternate')
  args = parser.parse_args()
  if args.serve:
    serve(args.serve)
    return
  if len(args.interpreters) < 2:
    parser.error('expected two or more interpreters')
  found = list(measure(args.interpreters, args.rounds).values())
  for result in found:
    result['slowdown'] = result['tfcactus'] / result['plain']
  _results.save('keras_versions_speed', {
      'batch': training_speed.BATCH, 'steps': STEPS, 'rounds': args.rounds,
      'unit': 'CPU seconds, best of the rounds', 'environments': found})
  show(_results.load('keras_versions_speed'))


def show(found: dict) -> None:
  """Writes the table from the results."""
  _results.show('keras_versions_speed', _results.markdown(
      ['TensorFlow', 'Keras', 'plain, CPU s', 'private, CPU s', 'slowdown'],
      [[r['tensorflow'], r['keras'], f'{r["plain"]:.2f}',
        f'{r["tfcactus"]:.2f}', f'{r["slowdown"]:.2f}']
       for r in found['environments']]))


if __name__ == '__main__':
  main()
