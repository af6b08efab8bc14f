"""Measures private searches for hyperparameters on MNIST.

    python -m benchmarks.private_search                  # paired searches, a minute
    python -m benchmarks.private_search --part mnist     # scattering, minutes to hours
    python -m benchmarks.private_search --show           # the tables of the saved runs

Searches in results/private_search.json are not repeated.

Part `digits` pairs searches within equal epsilon. The runs of one have the noise that
the account of this library allows, the runs of the other that which the account of
Papernot and Steinke allows. Nothing else differs: both have the same number of runs,
settings and batches, and the same normal variables times another noise multiplier. The
winner of each is compared on test images, which no run sees. A third search, by the
other account, has batches and noise of its own.

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

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import dp_accounting
from dp_accounting import rdp
import numpy as np
from scipy import optimize, special

from benchmarks import _results
import tfcactus
from tfcactus import _format, accounting, randomness
from tfcactus.accounting import run_laws

QUICK = ('--searches', '1', '--mean', '1.5')

DELTA = 1e-5
EPSILON, RECORDS, BATCH, EPOCHS, MEAN = 1.0, 1000, 100, 5, 10.0
"""Total epsilon, and the training of each run, of part `digits`."""

RUNS = accounting.PoissonRuns(2, at_least_one=True)
"""Number of runs of part `mnist`: few, so that each keeps .8 of epsilon."""

VALIDATION_NOISE, HELD_OUT = 15.0, 0.1
"""Noise of the accuracy, in half answers, and share of the images that it reads."""

_Images = tuple[np.ndarray, np.ndarray]
"""Features, (images, features), and labels."""

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
  """Returns images of 7 x 7 means of pixels in [0, 1], and a one; (images, 50)."""
  means = images.reshape(-1, 7, 4, 7, 4).mean((2, 4)).reshape(-1, 49)
  return np.pad(means, ((0, 0), (0, 1)), constant_values=1)


def trained(x: np.ndarray, y: np.ndarray, values: dict[str, float],
            plan: tfcactus.PrivacyPlan, rng: np.random.Generator) -> np.ndarray:
  """Returns weights, (features, 10), of a linear model after private training.

  A loop in NumPy: a run takes milliseconds, a hundredth of those of a graph.
  """
  weights = np.zeros((x.shape[1], 10))
  longest = np.linalg.norm(x, axis=1)
  for _ in range(plan.steps):
    batch = np.flatnonzero(rng.random(len(x)) < plan.sampling_prob)
    outer = special.softmax(x[batch] @ weights, axis=1)
    outer[np.arange(batch.size), y[batch]] -= 1
    norms = np.linalg.norm(outer, axis=1) * longest[batch]
    outer *= np.minimum(1, values['clip'] / np.maximum(norms, 1e-30))[:, None]
    noise = rng.normal(scale=plan.noise.noise_multiplier * values['clip'],
                       size=weights.shape)
    weights -= values['rate'] * (x[batch].T @ outer + noise) / plan.expected_batch_size
  return weights


def settings(hp: Any) -> dict[str, float]:
  """Returns the settings of a run of part `digits`."""
  return {'rate': hp.Float('rate', 1.0, 4.0, sampling='log'),
          'clip': hp.Float('clip', 0.25, 1.0, sampling='log')}


def right(weights: np.ndarray, images: _Images) -> float:
  """Returns the accuracy of weights, (features, 10), on images."""
  return float(np.mean(np.argmax(images[0] @ weights, 1) == images[1]))


def searched(own: _Images, public: _Images, plan: tfcactus.PrivacyPlan,
             runs: run_laws.RunLaw, seed: int, draws: int
             ) -> tuple[np.ndarray, int]:
  """Returns the weights that win a search, and its number of runs.

  The seed makes the number of runs and the settings; with `draws` it makes batches and
  noise too. The score is the accuracy on public images.
  """
  from tfcactus.keras import hyperparameters, tuning  # pylint: disable=import-outside-toplevel
  stream = randomness.KeyStream(seed, 'paired searches')
  rng, done = np.random.default_rng([seed, draws]), []

  def run() -> tuple[float, np.ndarray]:
    """Returns the score and the weights of one run."""
    values = settings(hyperparameters.HyperParameters(
        lambda count: 0, lambda: float(stream.uniforms(1)[0])))
    done.append(trained(*own, values, plan, rng))
    return right(done[-1], public), done[-1]

  return tuning.best_of(runs, run, stream), len(done)


def paired(searches: int, mean: float, found: list[dict[str, Any]]
           ) -> Iterator[dict[str, Any]]:
  """Adds pairs of searches to `found`, and yields each.

  A pair has noise multipliers, the number of runs and test accuracies: by the account
  here, by the other one with the same draws, and by the other one with other draws.
  """
  from tfcactus.keras import tuning  # pylint: disable=import-outside-toplevel
  from training import datasets  # pylint: disable=import-outside-toplevel
  data, runs = datasets.mnist(), run_laws.LogarithmicRuns(mean)
  x, test = small(data.train[0]), (small(data.test[0]), data.test[1])
  [plan] = tuning.PrivateSearch(
      settings, lambda hp: {
          'num_examples': RECORDS, 'batch_size': BATCH, 'epochs': EPOCHS,
          'l2_norm_clip': settings(hp)['clip']}, validation=lambda model: 0.0,
      target_epsilon=EPSILON, delta=DELTA, runs=runs).plans.values()
  other = dataclasses.replace(plan, noise=tfcactus.Gaussian(renyi_noise(plan, runs)))
  for seed in range(len(found), searches):
    own, public = ((x[part], data.train[1][part]) for part in np.random.default_rng(
        seed).permutation(len(x))[:2 * RECORDS].reshape(2, RECORDS))
    best, count = zip(*(searched(own, public, each, runs, seed, draws)
                        for each, draws in ((plan, 0), (other, 0), (other, 1))))
    found.append({
        'accuracy': [right(each, test) for each in best], 'runs': count[0],
        'noise': [each.noise.noise_multiplier for each in (plan, other)]})
    yield found[-1]


def scattering(searches: int, found: list[dict[str, Any]]
               ) -> Iterator[dict[str, Any]]:
  """Adds searches on scattering features to `found`, and yields each."""
  import tensorflow as tf  # pylint: disable=import-outside-toplevel

  from benchmarks import recipes  # pylint: disable=import-outside-toplevel
  from tfcactus import keras as private  # pylint: disable=import-outside-toplevel
  data = recipes.images('scattering')
  sides = private.Split(HELD_OUT).sides(*data.train)
  records = sides.training.num_examples

  def plan(hp: Any) -> dict[str, Any]:
    """Returns the arguments of a run's plan."""
    return {'num_examples': records, 'batch_size': 1000,
            'epochs': hp.Choice('epochs', [15, 20]),
            'l2_norm_clip': hp.Float('clip', 0.5, 1.4, sampling='log'),
            'correlation': tfcactus.correlated.BandedStrategy(
                hp.Choice('bands', [2, 3]))}

  def model(hp: Any) -> Any:
    """Returns a linear model; the learning rate falls by a cosine."""
    return build(data.train[0].shape[1:], tf.keras.optimizers.schedules.CosineDecay(
        hp.Float('rate', 0.7, 2.8, sampling='log'),
        plan(hp)['epochs'] * -(-records // 1000), alpha=0.05))

  search = private.tuning.PrivateSearch(
      model, plan, target_epsilon=EPSILON, delta=DELTA, runs=RUNS,
      validation=private.PrivateValidation(
          sides.validation, noise=tfcactus.Gaussian(VALIDATION_NOISE), releases=4,
          every=5, num_examples=round(HELD_OUT * len(data.train[1]))),
      objective='val_private_accuracy')
  while len(found) < searches:
    start = time.time()
    # A copy: each search counts as if it were the only one.
    best = copy.copy(search).search(sides.training)
    found.append({
        'accuracy': accuracy(best.model, *data.test), 'score': best.score,
        'epsilon': [side.upper for side in search.guarantee.sides],
        'values': best.values, 'seconds': time.time() - start})
    yield found[-1]


def show(found: dict[str, list[dict[str, Any]]]) -> None:
  """Writes the tables from the results."""
  pairs = found.get('digits', [])
  rows = []
  for count in sorted({min(20, len(pairs)), len(pairs)} - {0}):
    ours, same, others = np.transpose([each['accuracy'] for each in pairs[:count]])
    rows.append([
        str(count), f'{np.mean([each["runs"] for each in pairs[:count]]):.1f}',
        *(f'{each:.3f}' for each in pairs[0]['noise']),
        *(f'{np.mean(each):.4f}' for each in (ours, same)),
        *(str(int(np.sum(ours > each))) for each in (same, others))])
  if rows:
    _results.show('private_search', _results.markdown(
        ['pairs', 'runs in a search', 'noise multiplier, here',
         'Papernot and Steinke', 'mean test accuracy, here', 'Papernot and Steinke',
         'here above in', 'with independent batches and noise'], rows))
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
                      help='number of pairs, or of searches; default 100, mnist 3')
  parser.add_argument('--mean', type=float, default=MEAN,
                      help='digits: mean number of runs of a search')
  parser.add_argument('--show', action='store_true',
                      help='train nothing; write the tables')
  args = parser.parse_args()
  found = _results.load('private_search', {})
  if not args.show:
    known = found.setdefault(args.part, [])
    for row in (paired(args.searches or 100, args.mean, known)
                if args.part == 'digits' else scattering(args.searches or 3, known)):
      print(row, flush=True)
      _results.save('private_search', found)
  show(found)


if __name__ == '__main__':
  main()
