"""Measures private searches for hyperparameters on MNIST.

    python -m benchmarks.private_search                  # paired searches, minutes
    python -m benchmarks.private_search --part mnist     # scattering features, hours
    python -m benchmarks.private_search --show           # the tables of the saved runs

Searches in results/private_search.json are not repeated.

Part `digits` pairs searches within equal epsilon. The runs of one have the noise that
the account of this library allows, the runs of the other that which the account of
Papernot and Steinke allows. Both draw the same settings and the same number of runs,
and start from the same weights; batches and noise are independent. The winner of each
is compared on test images, which no run sees.

Part `mnist` searches the learning rate, clipping norm, epochs and bands of a linear
model on scattering features, by the noisy accuracy of a secret tenth of the images.
Everything is within epsilon 1.

Source of the other account: Papernot and Steinke, "Hyperparameter Tuning with Renyi
Differential Privacy" (ICLR 2022), Theorem 2.
"""

from __future__ import annotations

from collections.abc import Iterator
import copy
import dataclasses
import math
import os
import time
from typing import Any
from unittest import mock

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import dp_accounting
from dp_accounting import rdp
import numpy as np
from scipy import optimize

from benchmarks import _results
import tfcactus
from tfcactus import _format, accounting
from tfcactus.accounting import run_laws

QUICK = ('--searches', '1', '--mean', '1.5')

DELTA = 1e-5
EPSILON, RECORDS, BATCH, EPOCHS, MEAN = 1.0, 1000, 100, 5, 10.0
"""Total epsilon, and the training of each run, of part `digits`."""

RUNS = accounting.PoissonRuns(3, at_least_one=True)
"""Number of runs of part `mnist`, of which each takes minutes."""

VALIDATION_NOISE, HELD_OUT = 25.0, 0.1
"""Noise of the accuracy, in half answers, and share of the images that it reads."""

_ORDERS = np.concatenate([np.arange(11, 200) / 10, np.arange(20.0, 513.0)])


def renyi_epsilon(event: dp_accounting.DpEvent, runs: run_laws.NegativeBinomialRuns,
                  delta: float) -> float:
  """Returns epsilon of the best of a secret number of runs by Papernot and Steinke.

  `event` is that of one run. Theorem 2 is evaluated at all pairs of orders.
  """
  one = rdp.RdpAccountant(_ORDERS).compose(event).rdp
  constant = (1 + runs.eta) * np.min(
      (1 - 1 / _ORDERS) * one - math.log(runs.gamma) / _ORDERS)
  best = one + constant + math.log(runs.expected) / (_ORDERS - 1)
  # Conversion of Canonne, Kamath and Steinke (2020), Proposition 12.
  return float(np.min(best + np.log1p(-1 / _ORDERS) - (
      math.log(delta) + np.log(_ORDERS)) / (_ORDERS - 1)))


def renyi_noise(plan: tfcactus.PrivacyPlan, runs: run_laws.NegativeBinomialRuns
                ) -> float:
  """Returns the least noise multiplier of runs within EPSILON, by that account."""
  return float(optimize.brentq(lambda noise: renyi_epsilon(
      dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(
          plan.sampling_prob, dp_accounting.GaussianDpEvent(noise)), plan.steps),
      runs, DELTA) - EPSILON, 1.0, 20.0, xtol=1e-4))


def winner(search: Any, x: Any, y: Any = None, seed: int | None = None) -> Any:
  """Returns the winner of a search; a seed repeats settings and the number of runs."""
  from tfcactus.keras import tuning  # pylint: disable=import-outside-toplevel
  stream = tuning.KeyStream(seed, 'paired searches')
  with mock.patch.object(tuning, 'KeyStream', lambda: stream):
    return search.search(x, y)


def accuracy(model: Any, x: np.ndarray, y: np.ndarray) -> float:
  """Returns the accuracy of a linear model."""
  kernel, bias = model.inner.get_weights()
  return float(np.mean(np.argmax(x.reshape(len(x), -1) @ kernel + bias, 1) == y))


def build(shape: tuple[int, ...], rate: Any) -> Any:
  """Returns a compiled linear model of ten classes."""
  import tensorflow as tf  # pylint: disable=import-outside-toplevel
  model = tf.keras.Sequential([
      tf.keras.layers.Input(shape), tf.keras.layers.Flatten(),
      tf.keras.layers.Dense(10)])
  model.compile(tf.keras.optimizers.SGD(rate),
                tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  return model


def small(images: np.ndarray) -> np.ndarray:
  """Returns images of 7 x 7 means of pixels in [0, 1], shape (images, 49)."""
  return images.reshape(-1, 7, 4, 7, 4).mean((2, 4)).reshape(-1, 49).astype(np.float32)


def paired(searches: int, mean: float, found: list[dict[str, Any]]
           ) -> Iterator[dict[str, Any]]:
  """Adds pairs of searches to `found`, and yields each.

  A pair has test accuracies, noise multipliers, settings and the number of runs.
  """
  from tfcactus import keras as private  # pylint: disable=import-outside-toplevel
  from training import datasets  # pylint: disable=import-outside-toplevel
  data, runs = datasets.mnist(), run_laws.LogarithmicRuns(mean)
  x, test = small(data.train[0]), (small(data.test[0]), data.test[1])
  order = np.random.default_rng(0).permutation(len(x))[:2 * RECORDS * searches]
  done: list[float] = []

  def score(model: Any) -> float:
    """Returns the accuracy on public images of this pair of searches, and keeps it."""
    done.append(accuracy(model, x[public], data.train[1][public]))
    return done[-1]

  search = private.tuning.PrivateSearch(
      lambda hp: build((49,), hp.Float('rate', 1.0, 4.0, sampling='log')),
      lambda hp: {'num_examples': RECORDS, 'batch_size': BATCH, 'epochs': EPOCHS,
                  'l2_norm_clip': hp.Float('clip', 0.25, 1.0, sampling='log')},
      target_epsilon=EPSILON, delta=DELTA, runs=runs, validation=score)
  [(key, plan)] = search.plans.items()
  other = copy.copy(search)
  other.plans = {key: dataclasses.replace(
      plan, noise=tfcactus.Gaussian(renyi_noise(plan, runs)))}
  for seed in range(len(found), searches):
    own, public = order.reshape(searches, 2, RECORDS)[seed]
    row: dict[str, Any] = {'accuracy': [], 'noise': [], 'values': []}
    for each in (search, other):
      done.clear()
      # A copy: each pair counts as if it were the only one.
      best = winner(copy.copy(each), x[own], data.train[1][own], seed)
      row['accuracy'].append(accuracy(best.model, *test))
      row['noise'].append(each.plans[key].noise.noise_multiplier)
      row['values'].append(best.values)
    found.append({**row, 'runs': len(done) - 1})  # One was the rehearsal.
    yield found[-1]


def scattering(searches: int, found: list[dict[str, Any]]
               ) -> Iterator[dict[str, Any]]:
  """Adds searches on scattering features to `found`, and yields each."""
  import tensorflow as tf  # pylint: disable=import-outside-toplevel

  from benchmarks import recipes  # pylint: disable=import-outside-toplevel
  from tfcactus import keras as private  # pylint: disable=import-outside-toplevel
  data = recipes.images('scattering')
  while len(found) < searches:
    start = time.time()
    sides = private.Split(HELD_OUT).sides(*data.train)
    records = sides.training.num_examples
    validation = private.PrivateValidation(
        sides.validation, noise=tfcactus.Gaussian(VALIDATION_NOISE), releases=2,
        every=10, num_examples=round(HELD_OUT * len(data.train[1])))

    def plan(hp: Any, records: int = records) -> dict[str, Any]:
      """Returns the arguments of a run's plan."""
      return {'num_examples': records, 'batch_size': 1000,
              'epochs': hp.Choice('epochs', [10, 20]),
              'l2_norm_clip': hp.Float('clip', 0.5, 2.0, sampling='log'),
              'correlation': tfcactus.correlated.BandedStrategy(
                  hp.Choice('bands', [1, 3]))}

    def model(hp: Any, records: int = records) -> Any:
      """Returns a linear model; the learning rate falls by a cosine."""
      return build(data.train[0].shape[1:], tf.keras.optimizers.schedules.CosineDecay(
          hp.Float('rate', 1.0, 4.0, sampling='log'),
          plan(hp)['epochs'] * -(-records // 1000), alpha=0.05))

    search = private.tuning.PrivateSearch(
        model, plan, target_epsilon=EPSILON, delta=DELTA, runs=RUNS,
        validation=validation, objective='val_private_accuracy')
    best = search.search(sides.training)
    found.append({
        'accuracy': accuracy(best.model, *data.test), 'score': best.score,
        'epsilon': [side.upper for side in search.guarantee.sides],
        'values': best.values, 'seconds': time.time() - start})
    yield found[-1]


def show(found: dict[str, list[dict[str, Any]]]) -> None:
  """Writes the tables from the results."""
  pairs = found.get('digits', [])
  if pairs:
    ours, theirs = np.transpose([each['accuracy'] for each in pairs])
    noise = np.mean([each['noise'] for each in pairs], axis=0)
    _results.show('private_search', _results.markdown(
        ['pairs', 'runs in a search', 'noise multiplier, here',
         'Papernot and Steinke', 'mean test accuracy, here', 'Papernot and Steinke',
         'here above in'],
        [[str(len(pairs)), f'{np.mean([each["runs"] for each in pairs]):.1f}',
          *(f'{each:.3f}' for each in noise), f'{np.mean(ours):.4f}',
          f'{np.mean(theirs):.4f}', str(int(np.sum(ours > theirs)))]]))
  if found.get('mnist'):
    _results.show('private_search_mnist', _results.markdown(
        ['search', 'epsilon of training people', 'of validation people', 'rate',
         'clipping norm', 'epochs', 'bands', 'noisy accuracy', 'test accuracy'],
        [[str(i), *map(_format.upper, each['epsilon']), *(
            f'{each["values"][name]:.3g}' for name in ('rate', 'clip', 'epochs',
                                                       'bands')),
          f'{each["score"]:.4f}', f'{each["accuracy"]:.4f}']
         for i, each in enumerate(found['mnist'], 1)]))


def main() -> None:
  """Searches, writes results and the tables."""
  parser = _results.parser('private_search', __doc__)
  parser.add_argument('--part', choices=('digits', 'mnist'), default='digits')
  parser.add_argument('--searches', type=int, default=None,
                      help='number of searches, or of pairs; default 20, mnist 3')
  parser.add_argument('--mean', type=float, default=MEAN,
                      help='digits: mean number of runs of a search')
  parser.add_argument('--show', action='store_true',
                      help='train nothing; write the tables')
  args = parser.parse_args()
  found = _results.load('private_search', {})
  if not args.show:
    known = found.setdefault(args.part, [])
    for row in (paired(args.searches or 20, args.mean, known)
                if args.part == 'digits' else scattering(args.searches or 3, known)):
      print(row, flush=True)
      _results.save('private_search', found)
  show(found)


if __name__ == '__main__':
  main()
