"""Measures time and memory of training a transformer of ten million weights.

    python -m benchmarks.large_model

Trains with and without privacy, in one child process each. The time of a step is the
median over all steps but the first two; memory is the peak resident memory of the
process.
"""

from __future__ import annotations

import json
import os
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np  # noqa: E402

from benchmarks import _processes, _results  # noqa: E402

QUICK = ('--batch-size', '8', '--steps', '3')

EXAMPLES, LENGTH, WORDS, WIDTH, LAYERS, HEADS, CLASSES = 4096, 64, 16_000, 320, 4, 8, 4


def transformer(tf):
  """Returns a transformer encoder that classifies texts."""
  layers = tf.keras.layers
  inputs = tf.keras.Input((LENGTH,), dtype='int32')
  x = layers.Embedding(WORDS, WIDTH)(inputs)
  for _ in range(LAYERS):
    attended = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(x, x)
    x = layers.LayerNormalization()(layers.Add()([x, attended]))
    wide = layers.Dense(4 * WIDTH, activation='relu')(x)
    x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(WIDTH)(wide)]))
  x = layers.GlobalAveragePooling1D()(x)
  return tf.keras.Model(inputs, layers.Dense(CLASSES)(x))


def run(private, batch_size, steps):
  """Trains in this process; returns weights, seconds per step and peak memory in MB."""
  import tensorflow as tf

  import tfcactus
  from tfcactus import keras as private_keras

  rng = np.random.default_rng(0)
  x = rng.integers(0, WORDS, (EXAMPLES, LENGTH)).astype(np.int32)
  y = rng.integers(0, CLASSES, EXAMPLES)
  model = transformer(tf)
  weights = model.count_params()
  loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  data = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(batch_size)
  if private:
    plan = tfcactus.PrivacyPlan(
        noise=tfcactus.Gaussian(1.0), l2_norm_clip=1.0, num_examples=EXAMPLES,
        sampling_prob=batch_size / EXAMPLES, steps=100, delta=1e-5)
    model = private_keras.privatize(model, plan)
    data = private_keras.FixedSizeBatches(x, y, batch_size, steps_per_epoch=steps + 2)
  model.compile(tf.keras.optimizers.SGD(0.1), loss)
  moments = []

  class Clock(tf.keras.callbacks.Callback):

    def on_train_batch_end(self, batch, logs=None):
      moments.append(time.perf_counter())

  model.fit(data, steps_per_epoch=steps + 2, verbose=0, callbacks=[Clock()])
  return {'weights': weights, 'seconds': float(np.median(np.diff(moments)[1:])),
          'megabytes': _processes.peak_megabytes()}


def main():
  """Measures both trainings; writes the results and the table."""
  parser = _results.parser('large_model', __doc__)
  parser.add_argument('--batch-size', type=int, default=64,
                      help='number of texts in a batch')
  parser.add_argument('--steps', type=int, default=8, help='number of timed steps')
  parser.add_argument('--run', choices=('plain', 'private'), default=None,
                      help='train once in this process, and print JSON')
  args = parser.parse_args()
  if args.run:
    print(json.dumps(run(args.run == 'private', args.batch_size, args.steps)))
    return
  found = {name: _processes.measure(
      'large_model', '--batch-size', str(args.batch_size), '--steps', str(args.steps),
      '--run', name) for name in ('plain', 'private')}
  _results.save('large_model', {
      'batch_size': args.batch_size, 'cores': len(os.sched_getaffinity(0)), **found})
  show(_results.load('large_model'))


def show(found: dict) -> None:
  """Writes the table from the results."""
  plain = found['plain']
  _results.show('large_model', _results.markdown(
      ['training', 'weights', 'seconds per step', 'peak MB', 'time, over plain',
       'memory, over plain'],
      [[name, f'{each["weights"]:,}', f'{each["seconds"]:.2f}',
        f'{each["megabytes"]:,.0f}', f'{each["seconds"] / plain["seconds"]:.2f}',
        f'{each["megabytes"] / plain["megabytes"]:.2f}']
       for name, each in ((name, found[name]) for name in ('plain', 'private'))]))


if __name__ == '__main__':
  main()
