"""Compares private fine-tuning of a pretrained CNN on MNIST with private training.

    python -m training.fine_tuning
    python -m training.fine_tuning --target-epsilon 1

The digits 0 to 4 of MNIST stand for public data: a CNN is pretrained on them without
privacy. Some images of the digits 5 to 9 are the private data; epsilon covers only
these. Two private trainings have the same epsilon, steps and batch size: a linear head
on the features of the pretrained CNN, computed once, and the same CNN from scratch.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import json
import os
import time
from typing import Any

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import tfcactus  # noqa: E402
from tfcactus import _format  # noqa: E402
from tfcactus.keras import PoissonBatches, privatize  # noqa: E402
from tfcactus.keras.fine_tuning import features  # noqa: E402
from training import datasets, networks, options  # noqa: E402

_LOSS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

Arrays = tuple[np.ndarray, np.ndarray]
"""(images or features, labels)."""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
  """Returns the options of the command line."""
  parser = argparse.ArgumentParser(
      prog='python -m training.fine_tuning', description=__doc__.splitlines()[0],
      formatter_class=options.HelpFormatter)
  add = parser.add_argument
  add('--target-epsilon', type=float, default=1.0,
      help='epsilon of each private training')
  add('--delta', type=float, default=1e-5, help='delta of the guarantee')
  add('--private-examples', type=int, default=1000,
      help='number of private images of the digits 5 to 9')
  add('--batch-size', type=int, default=200,
      help='expected batch size of private training')
  add('--steps', type=int, default=60, help='number of steps of private training')
  add('--public-epochs', type=int, default=2, help='number of epochs of pretraining')
  add('--data-dir', default=None, help='folder of tensorflow-datasets')
  add('--dataset', choices=('mnist', 'digits'), default='mnist',
      help='MNIST, or the handwritten digits of scikit-learn')
  add('--seed', type=int, default=None,
      help='make the run repeatable, for experiments; do not release a seeded run')
  add('--json', metavar='FILE', default=None, help='write the results to FILE')
  return parser.parse_args(argv)


def split(arrays: Arrays, private: bool) -> Arrays:
  """Returns the digits 5 to 9 as labels 0 to 4 if `private`, else the digits 0 to 4."""
  x, y = arrays
  chosen = (y >= 5) == private
  return x[chosen].astype(np.float32), y[chosen] % 5


def pretrained(data: Arrays, epochs: int) -> tf.keras.Model:
  """Returns a frozen CNN trained on public images, without its two dense layers."""
  model = networks.cnn('tanh')
  model.compile('adam', _LOSS)
  model.fit(*data, batch_size=128, epochs=epochs, verbose=0)
  inputs = tf.keras.Input(model.input_shape[1:])
  outputs = inputs
  for layer in model.layers[:-2]:
    outputs = layer(outputs)
  backbone = tf.keras.Model(inputs, outputs)
  backbone.trainable = False
  return backbone


def train(model: tf.keras.Model, plan: tfcactus.PrivacyPlan, train_data: Arrays,
          test_data: Arrays, rate: float, seed: int | None) -> dict[str, Any]:
  """Trains privately; returns accuracy, epsilon and CPU seconds."""
  start = time.process_time()
  private = privatize(model, plan, seed=seed)
  private.compile(tf.keras.optimizers.SGD(
      tf.keras.optimizers.schedules.CosineDecay(rate, plan.steps, alpha=0.05)),
                  _LOSS, metrics=['accuracy'])
  private.fit(PoissonBatches(*train_data, plan.sampling_prob, seed=seed,
                             steps_per_epoch=plan.steps), verbose=0)
  _, accuracy = private.evaluate(*test_data, verbose=0)
  return {'accuracy': round(float(accuracy), 4),
          'epsilon': private.guarantee().upper,
          'cpu_seconds': round(time.process_time() - start, 1)}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
  """Runs both trainings; prints their results, writes them to --json, returns them."""
  args = parse(argv)
  if args.seed is not None:
    tf.keras.utils.set_random_seed(args.seed)
  data = datasets.load(args.dataset, args.data_dir)
  private = tuple(part[:args.private_examples] for part in split(data.train, True))
  test = split(data.test, True)
  count = len(private[0])
  settings: dict[str, Any] = {
      'l2_norm_clip': 1.0, 'num_examples': count, 'steps': args.steps,
      'sampling_prob': min(args.batch_size / count, 1.0), 'delta': args.delta}
  plan = tfcactus.PrivacyPlan(noise=tfcactus.calibrate_noise_multiplier(
      args.target_epsilon, tfcactus.Gaussian, **settings), **settings)
  print(f'Private: {count} images of the digits 5 to 9, epsilon '
        f'{args.target_epsilon} at delta {args.delta}, noise multiplier '
        f'{_format.lower(plan.noise.noise_multiplier, 4)}. Public: the digits 0 to 4.')
  start = time.process_time()
  backbone = pretrained(split(data.train, False), args.public_epochs)
  inputs, tests = (features(backbone, x) for x in (private[0], test[0]))
  seconds = time.process_time() - start
  head = tf.keras.Sequential([
      tf.keras.layers.Input(inputs.shape[1:]),
      tf.keras.layers.Dense(5, kernel_initializer='zeros')])
  results = {
      'fine-tuned': train(head, plan, (inputs, private[1]), (tests, test[1]), 1.0,
                          args.seed),
      'from scratch': train(networks.cnn('tanh'), plan, private, test, 1.0,
                            args.seed)}
  results['fine-tuned']['pretraining_cpu_seconds'] = round(seconds, 1)
  for name, result in results.items():
    print(f'{name}: {result}')
  if args.json:
    with open(args.json, 'w', encoding='utf-8') as file:
      json.dump({'private_examples': count, **results}, file, indent=2)
  return results


if __name__ == '__main__':
  main()
