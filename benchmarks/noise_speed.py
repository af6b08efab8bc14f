"""Time of one draw of noise against TensorFlow's own normals.

    python -m benchmarks.noise_speed

All take turns in one process, each inside a tf.function, and the medians count.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from benchmarks import _results  # noqa: E402
import tfcactus  # noqa: E402
from tfcactus import keras as private  # noqa: E402

DRAWS = 26_010


def contenders():
  """Functions that draw once, by name."""
  sampler = private.NoiseSampler(tfcactus.Gaussian(1.0))
  return {
      'tfcactus, float64, AES-256': lambda: sampler.draw(DRAWS),
      'tf.random.normal, float32': lambda: tf.random.normal([DRAWS]),
      'tf.random.normal, float64': lambda: tf.random.normal(
          [DRAWS], dtype=tf.float64),
  }


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--rounds', type=int, default=1000)
  args = parser.parse_args()
  draws = {name: tf.function(tf.autograph.experimental.do_not_convert(draw))
           for name, draw in contenders().items()}
  seconds = {name: [] for name in draws}
  for number in range(args.rounds + 10):
    for name, draw in draws.items():
      start = time.perf_counter()
      draw()
      if number >= 10:
        seconds[name].append(time.perf_counter() - start)
  result = {name: {'median_us': 1e6 * float(np.median(values)),
                   'best_us': 1e6 * min(values)}
            for name, values in seconds.items()}
  _results.save('noise_speed', {
      'draws': DRAWS, 'rounds': args.rounds,
      'cores': len(os.sched_getaffinity(0)), 'microseconds': result})
  _results.show('noise_speed', _results.markdown(
      ['one draw of 26,010 normals', 'median, us', 'best, us'],
      [[name, f'{r["median_us"]:.0f}', f'{r["best_us"]:.0f}']
       for name, r in result.items()]))


if __name__ == '__main__':
  main()
