"""Measures the speed of two replicas on one machine, and the cost of their all-reduce.

    python -m benchmarks.replicas_speed

One device and two replicas train two models alternately, with the same cores. Then
all-reduces of vectors are timed alone, as long as the weights of three models. The
shortest gives the latency, the longest the bandwidth. The time of a step with N
replicas is estimated as

    compute / N + latency + 8 bytes * weights * 2 (N - 1) / N / bandwidth.

The bandwidth measured on one machine is that of its memory, not of a network.
"""

from __future__ import annotations

import os
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from benchmarks import _processes, _results  # noqa: E402
import tfcactus  # noqa: E402
from tfcactus import keras as private  # noqa: E402
from training import networks, strategies  # noqa: E402

QUICK = ('--batch-size', '64', '--steps', '2', '--rounds', '1')

EXAMPLES = 8192
SIZES = (26_010, 25_000_000, 110_000_000)
"""Number of weights of the tutorial CNN, of a ResNet-50 and of BERT-base."""


def lstm():
  """Returns an LSTM over rows of pixels, which often leaves a core idle."""
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Input((28, 28, 1)), layers.Reshape((28, 28)), layers.LSTM(64),
      layers.Dense(10)])


MODELS = {'the tutorial CNN': lambda: networks.build('pixels', 'relu'),
          'an LSTM of 64 units': lstm}


def step_seconds(make, batch_size, steps, rounds):
  """Returns the seconds of a step in each round, by name of the strategy."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(EXAMPLES, 28, 28, 1)).astype(np.float32)
  y = rng.integers(0, 10, EXAMPLES)
  plan = tfcactus.PrivacyPlan(
      noise=tfcactus.Gaussian(1.0), l2_norm_clip=1.0, num_examples=EXAMPLES,
      sampling_prob=batch_size / EXAMPLES, steps=1000, delta=1e-5)
  models, found = {}, {}
  for name in ('none', 'mirrored'):
    with strategies.scope(name):
      model = private.privatize(make(), plan)
      model.compile(tf.keras.optimizers.SGD(0.1),
                    tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    models[name], found[name] = model, []
  for number in range(rounds + 1):
    for name, model in models.items():
      moments = []
      batches = private.FixedSizeBatches(x, y, batch_size, steps_per_epoch=steps)
      model.fit(batches, verbose=0, callbacks=[
          _processes.step_clock(moments, time.perf_counter)])
      if number:
        found[name].append(float(np.median(np.diff(moments))))
  return found


def sum_seconds(size, rounds):
  """Returns the median seconds of an all-reduce of two vectors of this length."""
  strategy = strategies.opened('mirrored')

  def one():
    vector = tf.ones([size], tf.float64)  # Noisy sums are float64 too.
    return tf.distribute.get_replica_context().all_reduce('sum', vector)[:1]

  def none():
    return tf.ones([size], tf.float64)[:1]

  times = {}
  for name, work in (('sum', one), ('none', none)):
    run = tf.function(lambda work=work: strategy.run(work))
    run()
    seconds = []
    for _ in range(rounds):
      start = time.perf_counter()
      run()
      seconds.append(time.perf_counter() - start)
    times[name] = float(np.median(seconds))
  return max(times['sum'] - times['none'], 1e-6)


def main():
  """Measures steps and all-reduces; writes the results and the tables."""
  parser = _results.parser('replicas_speed', __doc__)
  parser.add_argument('--batch-size', type=int, default=1024,
                      help='number of examples in a batch of all replicas')
  parser.add_argument('--steps', type=int, default=8, help='steps per round')
  parser.add_argument('--rounds', type=int, default=9,
                      help='rounds in which one device and two replicas alternate')
  args = parser.parse_args()
  strategies.opened('mirrored')  # TensorFlow must not have been used before.
  steps = {name: step_seconds(make, args.batch_size, args.steps, args.rounds)
           for name, make in MODELS.items()}
  sums = {size: sum_seconds(size, 9) for size in SIZES}
  latency = sums[SIZES[0]]
  slope = (sums[SIZES[-1]] - latency) / SIZES[-1]
  _results.save('replicas_speed', {
      'batch_size': args.batch_size, 'cores': len(os.sched_getaffinity(0)),
      'steps': steps, 'sums': {str(size): each for size, each in sums.items()},
      'latency': latency, 'bytes_per_second': 8 / slope})
  show(_results.load('replicas_speed'))


def show(found: dict) -> None:
  """Writes the tables from the results."""
  latency, slope = found['latency'], 8 / found['bytes_per_second']
  rows = []
  for name, each in found['steps'].items():
    one, two = (np.array(each[kind]) for kind in ('none', 'mirrored'))
    low, middle, high = np.quantile(two / one, (0.25, 0.5, 0.75))
    rows.append([name, f'{1e3 * np.median(one):.0f}', f'{1e3 * np.median(two):.0f}',
                 f'{middle:.2f} ({low:.2f} to {high:.2f})'])
  _results.show('replicas_speed', _results.markdown(
      [f'batches of {found["batch_size"]}', 'one device, ms per step',
       'two replicas, ms per step', 'ratio (quartiles of rounds)'], rows))
  _results.show('replicas_sums', _results.markdown(
      ['weights', 'all-reduce of two replicas, ms',
       'all-reduce of 8 replicas by the formula, ms'],
      [[f'{int(size):,}', f'{1e3 * each:.1f}',
        f'{1e3 * (latency + 2 * 7 / 8 * slope * int(size)):.1f}']
       for size, each in found['sums'].items()]))


if __name__ == '__main__':
  main()
