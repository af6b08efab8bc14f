"""Measures whether early stopping on noisy validation stops where the exact one does.

    python -m benchmarks.early_stopping          # 50 runs, some minutes
    python -m benchmarks.early_stopping --show   # the table of the saved runs

Each run divides 20,000 images of MNIST anew by a secret coin, trains a linear model
within epsilon 2, and releases the accuracy of the validation side after each epoch.
One rule is applied to the released and to the exact accuracies of the same epochs:
stop after an epoch that is not better than the best so far by `MIN_DELTA`.
"""

from __future__ import annotations

from collections.abc import Sequence
import os
from typing import Any

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np

from benchmarks import _results
import tfcactus
from tfcactus import _format

QUICK = ('--runs', '1')

RECORDS, BATCH, EPOCHS, EPSILON, DELTA = 20_000, 400, 12, 2.0, 1e-5
NOISE, MIN_DELTA = 20.0, 0.01


def stop(values: Sequence[float]) -> int:
  """Returns the epoch after which the rule stops, from one on."""
  best = values[0]
  for epoch, value in enumerate(values[1:], 2):
    if value < best + MIN_DELTA:
      return epoch
    best = value
  return len(values)


def run(images: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
  """Trains through all epochs; returns where the rule stops and both epsilons."""
  import tensorflow as tf  # pylint: disable=import-outside-toplevel

  from tfcactus import keras as private  # pylint: disable=import-outside-toplevel
  training, held_out = private.Split(0.2).sides(images, labels)
  validation = private.PrivateValidation(
      held_out, noise=tfcactus.Gaussian(NOISE), releases=EPOCHS)
  plan = tfcactus.PrivacyPlan.for_training(
      num_examples=training.num_examples, batch_size=BATCH, epochs=EPOCHS,
      target_epsilon=EPSILON, delta=DELTA, l2_norm_clip=1.0, releases=[validation])
  model = private.privatize(tf.keras.Sequential([
      tf.keras.layers.Input((784,)), tf.keras.layers.Dense(10)]), plan)
  model.compile(tf.keras.optimizers.SGD(1.0),
                tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  exact: list[float] = []
  x, y = held_out.rows(np.arange(held_out.num_examples))[:2]

  def score(epoch: int, logs: Any) -> None:
    """Keeps the exact accuracy of the validation side."""
    del epoch, logs
    exact.append(float(np.mean(np.argmax(model(x), 1) == y)))

  noisy = model.fit(
      private.PoissonBatches(training, batch_size=BATCH), epochs=EPOCHS, verbose=0,
      callbacks=[validation, tf.keras.callbacks.LambdaCallback(on_epoch_end=score)],
      ).history['val_private_accuracy']
  sides = model.guarantee().sides
  return {'noisy': stop(noisy), 'exact': stop(exact),
          'epsilon': [side.upper for side in sides],
          'accuracy': [exact[stop(noisy) - 1], exact[stop(exact) - 1]]}


def show(runs: list[dict[str, Any]]) -> None:
  """Writes the table from the results."""
  apart = [abs(each['noisy'] - each['exact']) for each in runs]
  train, held_out = np.max([each['epsilon'] for each in runs], axis=0)
  noisy, exact = np.mean([each['accuracy'] for each in runs], axis=0)
  _results.show('early_stopping', _results.markdown(
      ['runs', 'same epoch', 'within one epoch', 'epsilon of training people',
       'of validation people', 'accuracy at the stop', 'at the stop without noise'],
      [[str(len(runs)), str(apart.count(0)), str(sum(each <= 1 for each in apart)),
        _format.upper(train), _format.upper(held_out), f'{noisy:.4f}',
        f'{exact:.4f}']]))


def main() -> None:
  """Trains, writes results and the table."""
  parser = _results.parser('early_stopping', __doc__)
  parser.add_argument('--runs', type=int, default=50, help='number of runs')
  parser.add_argument('--show', action='store_true',
                      help='train nothing; write the table')
  args = parser.parse_args()
  runs = _results.load('early_stopping', [])
  if not args.show:
    from training import datasets  # pylint: disable=import-outside-toplevel
    images, labels = datasets.mnist().train
    images = images[:RECORDS].reshape(RECORDS, -1).astype(np.float32)
    images /= max(1.0, images.max())
    runs = [run(images, labels[:RECORDS]) for _ in range(args.runs)]
    _results.save('early_stopping', runs)
  show(runs)


if __name__ == '__main__':
  main()
