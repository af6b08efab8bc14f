"""Measures the accuracy of user-level privacy on MNIST dealt to users.

    python -m benchmarks.user_level          # tunes and trains, about an hour
    python -m benchmarks.user_level --show   # the tables of the saved runs

3,000 users have 20 images each. The labels of each user are drawn from a Dirichlet
distribution of concentration 0.3, so that most users have few kinds of digits. All ways
train within epsilon 2 for all rows of any one user. Drawing rows has the account of
groups of 20 rows. Each way has the settings out of `TRIED` that were best on 250 users
held out from training. The final runs use all users and other seeds. Runs in
results/user_level.json are not repeated.
"""

from __future__ import annotations

import functools
import os
from typing import Any

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np

from benchmarks import _results
import tfcactus
from tfcactus import _format
from tfcactus.accounting import calibration

LONG = 'it trains some thirty models'

USERS, EACH, CONCENTRATION, EPSILON, DELTA = 3_000, 20, 0.3, 2.0, 1e-5
SEEDS, HELD_OUT = (1, 2, 3), 250
WAYS = ('users, correlated noise', 'users, independent noise', 'rows, groups of 20')
MODELS = {'CNN': 'straightened', 'linear': 'scattering'}
"""Features that a model sees, by model; final runs train the first one."""
TRIED = {
    'CNN': dict.fromkeys(WAYS, [
        (3_000, 5, 1.0), (3_000, 5, 2.0), (3_000, 5, 4.0), (3_000, 10, 1.0),
        (3_000, 10, 2.0)]),
    'linear': {WAYS[0]: [(3_000, 10, 1.0), (3_000, 10, 2.0), (3_000, 10, 4.0)],
               WAYS[1]: [(3_000, 10, 2.0), (3_000, 10, 4.0)],
               WAYS[2]: [(3_000, 5, 1.0), (3_000, 10, 0.5), (3_000, 10, 1.0),
                         (3_000, 10, 2.0), (3_000, 20, 1.0), (10_000, 10, 1.0)]}}
"""Rows in a step, epochs and learning rates, by model and way."""


def dealt(labels: np.ndarray, seed: int = 0) -> np.ndarray:
  """Returns rows of each user, shape (USERS, EACH), each row of one user."""
  rng = np.random.default_rng(seed)
  piles = [list(rng.permutation(np.flatnonzero(labels == digit)))
           for digit in range(10)]
  rows = []
  for _ in range(USERS):
    prob = rng.dirichlet(np.full(10, CONCENTRATION))
    for _ in range(EACH):
      left = prob * [len(pile) > 0 for pile in piles] + 1e-12 * np.array(
          [len(pile) for pile in piles])
      rows.append(piles[rng.choice(10, p=left / left.sum())].pop())
  return np.reshape(rows, (USERS, EACH))


@functools.lru_cache(maxsize=1)
def data(model: str) -> tuple[Any, Any, np.ndarray]:
  """Returns images and labels to train and test on, and the rows of users."""
  from training import datasets, features  # pylint: disable=import-outside-toplevel
  images, transform = datasets.mnist(), features.FEATURES[MODELS[model]]
  train, test = ((transform(x), y) for x, y in (images.train, images.test))
  return train, test, dealt(train[1])


@functools.cache
def plan_of(way: str, users: int, batch: int, epochs: int) -> tfcactus.PrivacyPlan:
  """Returns the plan of a way to train, within EPSILON for a user; `batch` is rows."""
  terms = dict(epochs=epochs, delta=DELTA, l2_norm_clip=1.0)
  if way != WAYS[2]:
    return tfcactus.PrivacyPlan.for_training(
        unit='user', num_units=users, batch_size=batch // EACH,
        target_epsilon=EPSILON, correlation='auto' if way == WAYS[0] else None, **terms)

  def plan(multiplier: float) -> tfcactus.PrivacyPlan:
    return tfcactus.PrivacyPlan.for_training(
        num_examples=users * EACH, batch_size=batch,
        noise=tfcactus.Gaussian(multiplier), **terms)

  return plan(calibration.calibrate_noise(
      EPSILON, lambda multiplier: plan(multiplier).guarantee(rows_of_one=EACH).upper,
      low=1.0, tolerance=1e-4))


def train(network: str, way: str, batch: int, epochs: int, rate: float, seed: int,
          held_out: bool) -> dict[str, Any]:
  """Trains; tests on users left out if `held_out`, else on the test images."""
  import tensorflow as tf  # pylint: disable=import-outside-toplevel

  from tfcactus import keras as private  # pylint: disable=import-outside-toplevel
  from training import networks  # pylint: disable=import-outside-toplevel
  (x, y), test, rows = data(network)
  if held_out:
    test = tuple(part[rows[-HELD_OUT:].ravel()] for part in (x, y))
    rows = rows[:-HELD_OUT]
  plan = plan_of(way, len(rows), batch, epochs)
  tf.keras.utils.set_random_seed(seed)
  model = private.privatize(networks.build(MODELS[network], 'tanh'), plan, seed=seed)
  model.compile(tf.keras.optimizers.SGD(tf.keras.optimizers.schedules.CosineDecay(
      rate, plan.steps, alpha=0.05)), tf.keras.losses.SparseCategoricalCrossentropy(
          from_logits=True), metrics=['accuracy'])
  given = (x[rows.ravel()], y[rows.ravel()])
  units = {} if way == WAYS[2] else {
      'units': np.repeat(np.arange(len(rows)), EACH), 'examples_per_unit': EACH}
  batches = (private.CyclicBatches(*given, plan=plan, seed=seed, **units)
             if plan.strategy is not None else private.PoissonBatches(
                 *given, plan.sampling_prob, seed=seed, **units))
  model.fit(batches, epochs=epochs, verbose=0)
  cost = model.guarantee(**({'rows_of_one': EACH} if way == WAYS[2] else {}))
  found = {'model': network, 'way': way, 'batch': batch, 'epochs': epochs, 'rate': rate,
           'seed': seed, 'held_out': held_out,
           'accuracy': model.evaluate(*test, verbose=0)[1], 'epsilon': cost.upper,
           'noise_multiplier': plan.noise.noise_multiplier, 'bands': plan.groups}
  print(found, flush=True)
  return found


def settings(run: dict[str, Any]) -> tuple[Any, ...]:
  """Returns model, way, rows in a step, epochs and learning rate of a run."""
  return tuple(run[name] for name in ('model', 'way', 'batch', 'epochs', 'rate'))


def best(runs: list[dict[str, Any]], model: str, way: str) -> tuple[Any, ...]:
  """Returns the settings that were best on held out users."""
  return settings(max((run for run in runs if run['held_out'] and
                       (run['model'], run['way']) == (model, way)),
                      key=lambda run: run['accuracy']))


def show(runs: list[dict[str, Any]]) -> None:
  """Writes the tables from the results."""
  rows = []
  for way in WAYS:
    chosen = best(runs, 'CNN', way)
    mine = [run for run in runs if not run['held_out'] and settings(run) == chosen]
    accuracy = [run['accuracy'] for run in mine]
    one = mine[0]
    rows.append([
        way, str(one['epochs']), f'{one["rate"]:g}', str(one['bands']),
        f'{one["noise_multiplier"]:.4f}',
        _format.upper(max(run['epsilon'] for run in mine)),
        ', '.join(f'{value:.4f}' for value in accuracy), f'{np.mean(accuracy):.4f}'])
  _results.show('user_level', _results.markdown(
      ['what is drawn', 'epochs', 'learning rate', 'bands', 'noise multiplier',
       'epsilon of a user', 'accuracy, by seed', 'mean'], rows))
  tried = [[way, *(', '.join(
      f'{run["accuracy"]:.4f} ({run["batch"]}, {run["epochs"]}, {run["rate"]:g})'
      for run in runs if run['held_out'] and (run['model'], run['way']) == (model, way))
      for model in MODELS)] for way in WAYS]
  _results.show('user_level_tried', _results.markdown(
      ['what is drawn', *MODELS], tried))


def run_once(runs: list[dict[str, Any]], wanted: tuple[Any, ...], seed: int,
             held_out: bool) -> None:
  """Trains with these `settings`, unless a saved run did; saves."""
  if not any((*settings(run), run['seed'], run['held_out']) == (*wanted, seed, held_out)
             for run in runs):
    runs.append(train(*wanted, seed, held_out))
    _results.save('user_level', runs)


def main() -> None:
  """Chooses settings on held out users, trains, writes results and tables."""
  parser = _results.parser('user_level', __doc__)
  parser.add_argument('--show', action='store_true',
                      help='train nothing; write the tables')
  runs = _results.load('user_level', [])
  for model, ways in () if parser.parse_args().show else TRIED.items():
    for way, tried in ways.items():
      for each in tried:
        run_once(runs, (model, way, *each), 0, True)
      for seed in SEEDS if model == 'CNN' else ():
        run_once(runs, best(runs, model, way), seed, False)
  show(runs)


if __name__ == '__main__':
  main()
