"""Measures time and memory of training transformers of 10 and of 109 million weights.

    python -m benchmarks.large_model

Trains with and without privacy, in one child process each. The CPU time of a step is
the median over all steps but the first two; memory is the peak resident memory of the
process.
"""

from __future__ import annotations

import json
import os
import time
from typing import NamedTuple

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np  # noqa: E402

from benchmarks import _processes, _results  # noqa: E402

QUICK = ('--only', 'small', '--steps', '3')

EXAMPLES, CLASSES = 4096, 4


class Shape(NamedTuple):
  """Sizes of a transformer encoder, and of its batches."""

  length: int
  words: int
  width: int
  layers: int
  heads: int
  batch: int


SHAPES = {'small': Shape(64, 16_000, 320, 4, 8, 64),
          'base': Shape(128, 30_522, 768, 12, 12, 32)}


def transformer(tf, shape):
  """Returns a transformer encoder that classifies texts."""
  layers = tf.keras.layers
  inputs = tf.keras.Input((shape.length,), dtype='int32')
  x = layers.Embedding(shape.words, shape.width)(inputs)
  for _ in range(shape.layers):
    attended = layers.MultiHeadAttention(
        shape.heads, shape.width // shape.heads)(x, x)
    x = layers.LayerNormalization()(layers.Add()([x, attended]))
    wide = layers.Dense(4 * shape.width, activation='relu')(x)
    x = layers.LayerNormalization()(
        layers.Add()([x, layers.Dense(shape.width)(wide)]))
  x = layers.GlobalAveragePooling1D()(x)
  return tf.keras.Model(inputs, layers.Dense(CLASSES)(x))


def run(private, shape, steps, rows=None):
  """Trains in this process; returns weights, CPU time per step and peak memory in MB.

  `rows` is the physical batch size; None for the one that tfcactus chooses.
  """
  import tensorflow as tf

  import tfcactus
  from tfcactus import keras as private_keras

  rng = np.random.default_rng(0)
  x = rng.integers(0, shape.words, (EXAMPLES, shape.length)).astype(np.int32)
  y = rng.integers(0, CLASSES, EXAMPLES)
  model = transformer(tf, shape)
  weights = model.count_params()
  loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  data = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(shape.batch)
  if private:
    plan = tfcactus.PrivacyPlan(
        noise=tfcactus.Gaussian(1.0), l2_norm_clip=1.0, num_examples=EXAMPLES,
        sampling_prob=shape.batch / EXAMPLES, steps=100, delta=1e-5)
    model = private_keras.privatize(model, plan, physical_batch_size=rows)
    data = private_keras.FixedSizeBatches(
        x, y, shape.batch, steps_per_epoch=steps + 2)
  model.compile(tf.keras.optimizers.SGD(0.1), loss)
  moments = []

  class Clock(tf.keras.callbacks.Callback):

    def on_train_batch_end(self, batch, logs=None):
      moments.append(time.process_time())

  model.fit(data, steps_per_epoch=steps + 2, verbose=0, callbacks=[Clock()])
  return {'weights': weights, 'cpu_seconds': float(np.median(np.diff(moments)[1:])),
          'rows': model.physical_batch_size if private else shape.batch,
          'megabytes': _processes.peak_megabytes()}


def main():
  """Measures both trainings of each shape; writes the results and the table."""
  parser = _results.parser('large_model', __doc__)
  parser.add_argument('--only', choices=SHAPES, help='measure this shape alone')
  parser.add_argument('--steps', type=int, default=6, help='number of timed steps')
  parser.add_argument('--run', choices=('plain', 'private'), default=None,
                      help='train once in this process, and print JSON')
  parser.add_argument('--rows', type=int, default=None,
                      help='physical batch size with --run; default as chosen')
  args = parser.parse_args()
  if args.run:
    print(json.dumps(run(
        args.run == 'private', SHAPES[args.only], args.steps, args.rows)))
    return
  found = {shape: {name: _processes.measure(
      'large_model', '--only', shape, '--steps', str(args.steps), '--run', name)
                   for name in ('plain', 'private')}
           for shape in ([args.only] if args.only else SHAPES)}
  if args.only:
    print(found)
    return
  _results.save('large_model', {'cores': len(os.sched_getaffinity(0)), **found})
  show(_results.load('large_model'))


def show(found: dict) -> None:
  """Writes the table from the results."""
  def over(each, plain, key):
    """Returns a number and its ratio to plain training's."""
    return f'{each[key]:,.2f} ({each[key] / plain[key]:.2f})'

  _results.show('large_model', _results.markdown(
      ['training', 'weights', 'batch', 'physical batch',
       'CPU seconds per step (over plain)', 'peak MB (over plain)'],
      [[name, f'{each["weights"]:,}', str(SHAPES[shape].batch), str(each['rows']),
        *(over(each, found[shape]['plain'], key)
          for key in ('cpu_seconds', 'megabytes'))]
       for shape in SHAPES for name, each in found[shape].items()]))


if __name__ == '__main__':
  main()
