"""Measures the time of a draw of Gaussian noise against TensorFlow and NumPy.

    python -m benchmarks.noise_speed
    python -m benchmarks.noise_speed --large 10000000

The samplers alternate in one process; those of TensorFlow run inside a tf.function.
"""

from __future__ import annotations

import os
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from benchmarks import _results  # noqa: E402
import tfcactus  # noqa: E402
from tfcactus import keras as private  # noqa: E402

QUICK = ('--rounds', '20', '--large', '1000000')

SMALL = 26_010
"""Number of weights of the tutorial CNN."""

OURS, NUMPY = 'tfcactus, float64, AES-256', 'numpy, float64'


def contenders(draws):
  """Returns functions that draw `draws` normals, by name of the sampler."""
  sampler, generator = private.NoiseSampler(tfcactus.Gaussian(1.0)), (
      np.random.default_rng())
  graphs = {
      OURS: lambda: sampler.draw(draws),
      'tf.random.normal, float32': lambda: tf.random.normal([draws]),
      'tf.random.normal, float64': lambda: tf.random.normal(
          [draws], dtype=tf.float64)}
  return {**{name: tf.function(tf.autograph.experimental.do_not_convert(draw))
             for name, draw in graphs.items()},
          NUMPY: lambda: generator.standard_normal(draws)}


def measured(draws, rounds):
  """Returns median and best microseconds of a draw, by name of the sampler."""
  made = contenders(draws)
  seconds = {name: [] for name in made}
  warm = min(10, rounds)
  for number in range(rounds + warm):
    for name, draw in made.items():
      start = time.perf_counter()
      draw()
      if number >= warm:
        seconds[name].append(time.perf_counter() - start)
  return {name: {'median_us': 1e6 * float(np.median(values)),
                 'best_us': 1e6 * min(values)} for name, values in seconds.items()}


def main():
  """Measures both sizes; writes the results and the table."""
  parser = _results.parser('noise_speed', __doc__)
  parser.add_argument('--rounds', type=int, default=1000,
                      help=f'number of draws for {SMALL:,} weights')
  parser.add_argument('--large', type=int, default=10**8,
                      help='number of weights of a large model, with 7 draws')
  args = parser.parse_args()
  found = {draws: measured(draws, rounds)
           for draws, rounds in ((SMALL, args.rounds), (args.large, 7))}
  _results.save('noise_speed', {
      'rounds': args.rounds, 'cores': len(os.sched_getaffinity(0)),
      'microseconds': {str(draws): each for draws, each in found.items()}})
  show(_results.load('noise_speed'))


def show(found: dict) -> None:
  """Writes the table from the results."""
  _results.show('noise_speed', _results.markdown(
      ['normals', 'sampler', 'median', 'best', 'median, over NumPy'],
      [[f'{int(draws):,}', name, _time(each['median_us']), _time(each['best_us']),
        f'{each["median_us"] / times[NUMPY]["median_us"]:.2f}']
       for draws, times in found['microseconds'].items()
       for name, each in times.items()]))


def _time(microseconds):
  return f'{microseconds:.0f} us' if microseconds < 1e4 else (
      f'{1e-3 * microseconds:.0f} ms')


if __name__ == '__main__':
  main()
