"""Measures how often early stopping on noisy validation stops as without noise.

    python -m benchmarks.private_validation           # 50 runs, some minutes
    python -m benchmarks.private_validation --show    # the saved result

Each run trains a linear model on the MNIST images at 7 x 7 pixels, a secret coin
holding out one in five, within epsilon 2 for both sides. The noise of the validation
is the least within that epsilon. The rule (stop after `PATIENCE` epochs whose
accuracy is not above the best by `MIN_DELTA`) reads the noisy accuracies, and the exact
accuracies of the same run.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np

from benchmarks import _results
import tfcactus
from tfcactus.accounting import calibration

QUICK = ('--runs', '2')
EPOCHS, BATCH, RATE, EPSILON, DELTA = 12, 1920, 8.0, 2.0, 1e-6
PATIENCE, MIN_DELTA = 2, 0.01


def stop(accuracies: list[float]) -> int:
  """Returns the number of epochs after which the rule stops."""
  best, wait = -np.inf, 0
  for epoch, accuracy in enumerate(accuracies, 1):
    if accuracy - MIN_DELTA > best:
      best, wait = accuracy, 0
    else:
      wait += 1
      if wait >= PATIENCE:
        return epoch
  return len(accuracies)


def noise() -> tfcactus.Gaussian:
  """Returns the least noise of the validation within EPSILON."""
  def epsilon(multiplier: float) -> float:
    return tfcactus.accounting.PhiAccountant().compose(
        tfcactus.accounting.noise_event(tfcactus.Gaussian(multiplier)), EPOCHS + 1
        ).get_epsilon(DELTA)
  return tfcactus.Gaussian(calibration.calibrate_noise(
      EPSILON, epsilon, low=1.0, high=1e3, tolerance=1e-3))


def run(images: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
  """Returns noisy and exact accuracies of a run, and the epsilon of both sides."""
  import tensorflow as tf  # pylint: disable=import-outside-toplevel

  from tfcactus import keras as private  # pylint: disable=import-outside-toplevel
  training, held = private.Split(0.2).sides(images, labels)
  validation = private.PrivateValidation(held, noise=noise(), releases=EPOCHS)
  plan = tfcactus.PrivacyPlan.for_training(
      batch_size=BATCH, epochs=EPOCHS, num_examples=training.num_examples, delta=DELTA,
      l2_norm_clip=1.0, target_epsilon=EPSILON, releases=[validation])
  model = private.privatize(tf.keras.Sequential([
      tf.keras.layers.Input(images.shape[1:]),
      tf.keras.layers.Dense(10, kernel_initializer='zeros')]), plan)
  model.compile(tf.keras.optimizers.SGD(RATE),
                tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  x, y = held.rows(np.arange(held.num_examples))
  exact: list[float] = []
  history = model.fit(
      private.PoissonBatches(training, batch_size=BATCH), epochs=EPOCHS, verbose=0,
      callbacks=[validation, tf.keras.callbacks.LambdaCallback(
          on_epoch_end=lambda epoch, logs: exact.append(float(np.mean(
              np.argmax(model.inner(x), 1) == y))))]).history
  sides = model.guarantee().sides
  return {'noisy': history['val_private_accuracy'], 'exact': exact,
          'epsilon': [side.upper for side in sides],
          'standard_error': history['val_private_accuracy_error'][0]}


def summary(result: dict[str, Any]) -> str:
  """Returns the result in words."""
  runs = result['runs']
  off = np.array([abs(stop(each['noisy']) - stop(each['exact'])) for each in runs])
  epsilons = np.max([each['epsilon'] for each in runs], axis=0)
  return (
      f'{len(runs)} runs: the noisy rule stops in the epoch of the noiseless rule in '
      f'{np.sum(off == 0)}, within one epoch of it in {np.sum(off <= 1)}. Epsilon is '
      f'at most {epsilons[0]:.4f} on the training side and {epsilons[1]:.4f} on the '
      f'validation side; the noisy accuracy has a standard error of '
      f'{np.mean([each["standard_error"] for each in runs]):.4f}; epochs of the '
      f'noiseless rule: {sorted({stop(each["exact"]) for each in runs})}.')


def main() -> None:
  parser = _results.parser('private_validation', __doc__ or '')
  parser.add_argument('--runs', type=int, default=50)
  parser.add_argument('--show', action='store_true')
  args = parser.parse_args()
  if not args.show:
    from training import datasets  # pylint: disable=import-outside-toplevel
    x, y = datasets.mnist().train
    x = np.asarray(x, np.float32).reshape(-1, 28, 28)
    x = x / x.max()
    x = x.reshape(-1, 7, 4, 7, 4).mean((2, 4)).reshape(-1, 49)
    runs = [run(x, np.asarray(y)) for _ in range(args.runs)]
    _results.save('private_validation', {'runs': runs})
  print(summary(_results.load('private_validation')))


if __name__ == '__main__':
  main()
