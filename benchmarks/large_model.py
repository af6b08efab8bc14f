"""Measures time and memory of training transformers of 10 and of 109 million weights.

    python -m benchmarks.large_model
    python -m benchmarks.large_model --opacus-python VENV/bin/python

Trains with and without privacy, in one child process each; the second command trains
the same transformer in PyTorch too, without privacy and with the ghost mode of Opacus.
The CPU time of a step is the median over all steps but the first two; memory is the
peak resident memory of the process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import NamedTuple

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np  # noqa: E402

from benchmarks import _opacus_speed, _processes, _results  # noqa: E402

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


CONTENDERS = {'plain': 'plain Keras', 'private': 'tfcactus',
              'torch': 'plain PyTorch', 'opacus': 'Opacus, ghost'}
PLAIN = {'private': 'plain', 'opacus': 'torch'}


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


def data(shape):
  """Returns made-up texts, shape (EXAMPLES, length), and their classes."""
  rng = np.random.default_rng(0)
  x = rng.integers(0, shape.words, (EXAMPLES, shape.length)).astype(np.int32)
  return x, rng.integers(0, CLASSES, EXAMPLES)


def run_torch(private, shape, steps):
  """Trains in PyTorch in this process; returns the same numbers as `run`."""
  import torch
  model = _opacus_speed.transformer(
      shape.length, shape.words, shape.width, shape.layers, shape.heads, CLASSES)
  dataset = torch.utils.data.TensorDataset(*map(torch.tensor, data(shape)))
  moments = [time.process_time() for _ in _opacus_speed.trained(
      model, dataset, shape.batch, steps + 2, 'ghost' if private else None)]
  return {'weights': sum(p.numel() for p in model.parameters()),
          'cpu_seconds': float(np.median(np.diff(moments)[1:])),
          'rows': shape.batch, 'megabytes': _processes.peak_megabytes()}


def run(private, shape, steps, rows=None):
  """Trains in this process; returns weights, CPU time per step and peak memory in MB.

  `rows` is the physical batch size; None for the one that tfcactus chooses.
  """
  import tensorflow as tf

  import tfcactus
  from tfcactus import keras as private_keras

  x, y = data(shape)
  model = transformer(tf, shape)
  weights = model.count_params()
  loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  batches = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(shape.batch)
  if private:
    plan = tfcactus.PrivacyPlan(
        noise=tfcactus.Gaussian(1.0), l2_norm_clip=1.0, num_examples=EXAMPLES,
        sampling_prob=shape.batch / EXAMPLES, steps=100, delta=1e-5)
    model = private_keras.privatize(model, plan, physical_batch_size=rows)
    batches = private_keras.FixedSizeBatches(
        x, y, shape.batch, steps_per_epoch=steps + 2)
  model.compile(tf.keras.optimizers.SGD(0.1), loss)
  moments: list[float] = []
  model.fit(batches, steps_per_epoch=steps + 2, verbose=0,
            callbacks=[_processes.step_clock(moments)])
  return {'weights': weights, 'cpu_seconds': float(np.median(np.diff(moments)[1:])),
          'rows': model.physical_batch_size if private else shape.batch,
          'megabytes': _processes.peak_megabytes()}


def main():
  """Measures both trainings of each shape; writes the results and the table."""
  parser = _results.parser('large_model', __doc__)
  parser.add_argument('--only', choices=SHAPES, help='measure this shape alone')
  parser.add_argument('--steps', type=int, default=6, help='number of timed steps')
  parser.add_argument('--run', choices=CONTENDERS, default=None,
                      help='train once in this process, and print JSON')
  parser.add_argument('--rows', type=int, default=None,
                      help='physical batch size with --run; default as chosen')
  parser.add_argument('--opacus-python', default=None, metavar='PYTHON',
                      help='Python interpreter of an environment with torch and opacus')
  args = parser.parse_args()
  if args.run in ('torch', 'opacus'):
    print(json.dumps(run_torch(
        args.run == 'opacus', SHAPES[args.only], args.steps)))
    return
  if args.run:
    print(json.dumps(run(
        args.run == 'private', SHAPES[args.only], args.steps, args.rows)))
    return
  pythons = {name: sys.executable if name in ('plain', 'private') else
             args.opacus_python for name in CONTENDERS}
  found = {shape: {name: _processes.measure(
      'large_model', '--only', shape, '--steps', str(args.steps), '--run', name,
      python=python) for name, python in pythons.items() if python}
           for shape in ([args.only] if args.only else SHAPES)}
  if args.only:
    print(found)
    return
  _results.save('large_model', {'cores': len(os.sched_getaffinity(0)), **found})
  show(_results.load('large_model'))


def show(found: dict) -> None:
  """Writes the table from the results."""
  def over(each, plain, key):
    """Returns a number and its ratio to that of plain training."""
    return f'{each[key]:,.2f} ({each[key] / plain[key]:.2f})'

  _results.show('large_model', _results.markdown(
      ['training', 'weights', 'batch', 'physical batch',
       'CPU seconds per step (over plain)', 'peak MB (over plain)'],
      [[CONTENDERS[name], f'{each["weights"]:,}', str(SHAPES[shape].batch),
        str(each['rows']),
        *(over(each, found[shape][PLAIN.get(name, name)], key)
          for key in ('cpu_seconds', 'megabytes'))]
       for shape in SHAPES for name, each in found[shape].items()]))


if __name__ == '__main__':
  main()
