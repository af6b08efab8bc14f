"""Measures speed and memory of private training: tfcactus, its peers, plain Keras.

    python -m benchmarks.training_speed

Each contender trains the tutorial CNN at an (expected) batch size of 250 in a child
process. The processes alternate on one machine; the result is the best of the rounds.
Opacus takes part with each way to per-example gradients, if it is installed. It may be
in another environment, since it needs another NumPy than TensorFlow:

    python -m benchmarks.training_speed --opacus-python VENV/bin/python

Users with many rows beside as many passes by augmentation multiplicity, without writing
results:

    python -m benchmarks.training_speed --only units views
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

from benchmarks import _opacus_speed, _processes, _results  # noqa: E402

QUICK = ('--rounds', '1', '--only', 'plain', 'tfcactus')

BATCH, EXAMPLES, EACH = 250, 15_000, 5
CONTENDERS = {
    'plain': 'plain Keras',
    'tfcactus': 'tfcactus `privatize`',
    'drop_in': 'tfcactus DPKerasSGDOptimizer',
    'vectorized': "tfcactus, `engine='vectorized'`",
    'tfp_sequential': 'TensorFlow Privacy DPSequential',
    'tfp_sgd': 'TensorFlow Privacy DPKerasSGDOptimizer',
    **{f'opacus_{mode}': f'Opacus, {mode}' for mode in _opacus_speed.MODES},
}
GROUPED = {'units': f'users of {EACH} rows', 'views': f'{EACH} views of an example'}
"""Contenders of `--only`: `BATCH` passes of fewer examples, `EACH` of each."""
STEPS = {'tfp_sgd': 2, 'tfp_sequential': 20, 'vectorized': 20,
         **{f'opacus_{mode}': 20 for mode in _opacus_speed.MODES}}
"""Number of steps in a round of slow contenders; the others make 60."""


def data():
  """Returns random images and labels, which are as fast to train on as real ones."""
  import numpy as np
  rng = np.random.default_rng(0)
  return (rng.random((EXAMPLES, 28, 28, 1), dtype=np.float32),
          rng.integers(0, 10, EXAMPLES))


def keras_contender(name):
  """Returns a function that trains a Keras contender for a given number of steps."""
  import tensorflow as tf

  from training import networks
  x, y = data()
  loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  apart = tf.keras.losses.SparseCategoricalCrossentropy(
      from_logits=True, reduction='none')
  model = networks.cnn()
  if name in GROUPED:
    return grouped_contender(name, model, loss)
  if name in ('tfcactus', 'vectorized'):
    import tfcactus
    from tfcactus import keras as private
    plan = tfcactus.PrivacyPlan(
        noise=tfcactus.Gaussian(1.3), l2_norm_clip=1.5, num_examples=EXAMPLES,
        sampling_prob=BATCH / EXAMPLES, steps=1000, delta=1e-5)
    model = private.privatize(
        model, plan, engine='auto' if name == 'tfcactus' else name)
    batches = private.PoissonBatches(x, y, sampling_prob=plan.sampling_prob)
    model.compile('sgd', loss, metrics=['accuracy'])
    return lambda steps: model.fit(batches, steps_per_epoch=steps, verbose=0)
  if name == 'plain':
    model.compile('sgd', loss, metrics=['accuracy'])
  elif name in ('drop_in', 'tfp_sgd'):
    library = importlib.import_module(
        'tfcactus.keras' if name == 'drop_in' else 'tensorflow_privacy')
    model.compile(library.DPKerasSGDOptimizer(
        1.5, 1.3, num_microbatches=BATCH), apart, metrics=['accuracy'])
  else:
    from tensorflow_privacy.privacy.keras_models import dp_keras_model
    model = dp_keras_model.DPSequential(
        l2_norm_clip=1.5, noise_multiplier=1.3, layers=model.layers)
    # XLA would make it slower on a CPU.
    model.compile('sgd', apart, metrics=['accuracy'], jit_compile=False)
  return lambda steps: model.fit(
      x[:steps * BATCH], y[:steps * BATCH], batch_size=BATCH, verbose=0)


def grouped_contender(name, model, loss):
  """Returns such a function for a contender of `GROUPED`."""
  import numpy as np

  import tfcactus
  from tfcactus import keras as private
  by_units = name == 'units'
  units = EXAMPLES // EACH if by_units else EXAMPLES
  plan = tfcactus.PrivacyPlan(
      noise=tfcactus.Gaussian(1.3), l2_norm_clip=1.5, num_examples=units,
      sampling_prob=BATCH / EACH / units, steps=1000, delta=1e-5,
      unit='user' if by_units else 'example')
  model = private.privatize(
      model, plan, augmentation_multiplicity=1 if by_units else EACH)
  model.compile('sgd', loss, metrics=['accuracy'])
  batches = private.PoissonBatches(*data(), plan.sampling_prob, **({
      'units': np.arange(EXAMPLES) % units, 'examples_per_unit': EACH} if by_units else
      {}))
  return lambda steps: model.fit(batches, steps_per_epoch=steps, verbose=0)


def serve(name):
  """Trains for the number of steps on each input line; prints time and memory."""
  library, _, mode = name.partition('_')
  train = (_opacus_speed.contender(*data(), batch=BATCH, mode=mode)
           if library == 'opacus' else keras_contender(name))
  train(2)
  for line in sys.stdin:
    steps = int(line)
    start = time.perf_counter()
    train(steps)
    seconds = time.perf_counter() - start
    print(json.dumps({'seconds': seconds, 'steps': steps,
                      'peak_mb': _processes.peak_megabytes()}), flush=True)


def measure(names, rounds, opacus_python):
  """Alternates the contenders; returns examples per second and peak memory."""

  def start(name):
    return _processes.Worker('training_speed', name, (
        opacus_python if name.startswith('opacus') else sys.executable))

  found = {name: {'examples_per_second': 0.0} for name in names}
  workers = {name: start(name) for name in names if name != 'tfp_sgd'}
  for number in range(rounds):
    for name in names:
      if name == 'tfp_sgd':
        # It takes minutes and gigabytes: it runs in one round, and then ends.
        if number:
          continue
        workers[name] = start(name)
      result = workers[name].ask(STEPS.get(name, 60))
      speed = result['steps'] * BATCH / result['seconds']
      best = found[name]
      best['examples_per_second'] = max(best['examples_per_second'], speed)
      best['peak_mb'] = result['peak_mb']
      if name == 'tfp_sgd':
        workers[name].close()
  for worker in workers.values():
    worker.close()
  return found


def main():
  """Measures the contenders; writes the results and the table."""
  parser = _results.parser('training_speed', __doc__)
  parser.add_argument('--serve', help=argparse.SUPPRESS)
  parser.add_argument('--rounds', type=int, default=8,
                      help='rounds in which the contenders alternate')
  parser.add_argument('--only', nargs='*', choices=[*CONTENDERS, *GROUPED],
                      help='contenders to compare, without writing results')
  parser.add_argument('--opacus-python', default=sys.executable, metavar='PYTHON',
                      help='Python interpreter of an environment with torch and opacus')
  args = parser.parse_args()
  if args.serve:
    serve(args.serve)
    return
  names = args.only or [
      name for name in CONTENDERS if not name.startswith('opacus') or
      args.opacus_python != sys.executable or importlib.util.find_spec('opacus')]
  found = measure(names, args.rounds, args.opacus_python)
  if args.only:
    print(json.dumps(found, indent=2))
    return
  plain = found['plain']
  for result in found.values():
    result['slowdown'] = (plain['examples_per_second'] /
                          result['examples_per_second'])
    result['memory_above_plain_mb'] = result['peak_mb'] - plain['peak_mb']
  _results.save('training_speed', {
      'model': 'CNN of the MNIST tutorial, 26,010 parameters', 'batch': BATCH,
      'cores': len(os.sched_getaffinity(0)), 'rounds': args.rounds,
      'best_of_rounds': found})
  show(_results.load('training_speed'))


def show(found: dict) -> None:
  """Writes the table from the results."""
  _results.show('training_speed', _results.markdown(
      ['training', 'examples/s', 'slowdown', 'peak memory above plain'],
      [[CONTENDERS[name], f'{r["examples_per_second"]:,.0f}',
        f'{r["slowdown"]:.2f}', f'{r["memory_above_plain_mb"]:+,.0f} MB']
       for name, r in found['best_of_rounds'].items()]))


if __name__ == '__main__':
  main()
