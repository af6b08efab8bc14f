"""Measures what noise costs a step whose device leaves the cores of the host free.

    python -m benchmarks.noise_ahead
    python -m benchmarks.noise_ahead --weights 20000000 --seconds 2

The device is one that sleeps. A step waits for it, then adds noise to the sums of
parts of at most 24 million weights: none, noise drawn when it is asked for, or noise
drawn ahead.
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

QUICK = ('--weights', '200000', '--seconds', '.1', '--rounds', '2')

_PART = 24_000_000


def steps(weights, seconds):
  """Returns functions that make a step, by what they do about noise."""
  sizes = [min(_PART, weights - start) for start in range(0, weights, _PART)]
  sums = [tf.Variable(tf.zeros([size])) for size in sizes]

  def device():
    """Sleeps, as a host does that waits for a device."""
    time.sleep(seconds)
    return np.float32(0)

  def step(noise, ahead):
    sampler = private.NoiseSampler(tfcactus.Gaussian(1.0), randomness='host')
    sampler._draws_ahead = lambda size: ahead

    @tf.function(autograph=False)
    def run():
      zero = tf.ensure_shape(tf.numpy_function(device, [], tf.float32), [])
      found = [each + zero for each in sums]
      noisy = sampler.add_to(found, tf.ones([], tf.float64)) if noise else found
      return tf.add_n([each[0] for each in noisy])

    return run

  return {'without noise': step(False, False),
          'noise when asked for': step(True, False), 'noise ahead': step(True, True)}


def main():
  """Measures the three steps; writes the results and the table."""
  parser = _results.parser('noise_ahead', __doc__)
  parser.add_argument('--weights', type=int, default=110_000_000)
  parser.add_argument('--seconds', type=float, default=8.0,
                      help='time that the device takes for a step')
  parser.add_argument('--rounds', type=int, default=5)
  args = parser.parse_args()
  seconds = {}
  for name, step in steps(args.weights, args.seconds).items():
    step()  # The first step has no noise ahead.
    moments = [time.perf_counter()]
    for _ in range(args.rounds):
      step()
      moments.append(time.perf_counter())
    seconds[name] = float(np.median(np.diff(moments)))
  _results.save('noise_ahead', {
      'weights': args.weights, 'device': args.seconds, 'seconds': seconds,
      'cores': len(os.sched_getaffinity(0))})
  show(_results.load('noise_ahead'))


def show(found: dict) -> None:
  """Writes the table from the results."""
  plain = found['seconds']['without noise']
  _results.show('noise_ahead', _results.markdown(
      ['step', 'seconds', 'over a step without noise'],
      [[name, f'{each:.2f}', f'{each / plain:.2f}']
       for name, each in found['seconds'].items()]))


if __name__ == '__main__':
  main()
