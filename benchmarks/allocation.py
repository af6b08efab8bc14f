"""Each example once an epoch: what random allocation costs, and what it trains.

    python -m benchmarks.allocation             # the account: tables
    python -m benchmarks.allocation --training  # MNIST beside Poisson batches
    python -m benchmarks.allocation --peer      # beside PLD_accounting, if installed

The account: at the noise for which Poisson batches cost the epsilon of the table's
head, what allocation costs, how close its bounds are and how long they take, and how
much less noise makes it cost the same.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import dp_accounting
import numpy as np

from benchmarks import _results
from tfcactus import _format, accounting
from tfcactus.accounting import calibration

BATCHES, EPOCHS, EPSILONS, DELTA = (15, 59, 240), (1, 5, 20), (0.5, 1, 3, 8), 1e-5
SEEDS = (1, 2, 3)
PEER_CASES = ((1.0, 60, 5), (2.0, 15, 20), (0.7, 59, 1))
"""Noise multiplier, batches, epochs."""


def allocation(sigma: float, batches: int, epochs: int) -> accounting.PhiAccountant:
  """An account of so many epochs."""
  return accounting.PhiAccountant().compose(accounting.RandomAllocationDpEvent(
      batches, dp_accounting.GaussianDpEvent(sigma)), epochs)


def poisson(sigma: float, batches: int, epochs: int) -> accounting.PhiAccountant:
  """An account of Poisson batches of the same expected size, and as many."""
  return accounting.PhiAccountant().compose(dp_accounting.PoissonSampledDpEvent(
      1 / batches, dp_accounting.GaussianDpEvent(sigma)), batches * epochs)


def cost_at(batches: int, epochs: int, target: float) -> dict:
  """What allocation costs where Poisson batches cost `target`."""
  least = [calibration.calibrate_noise(
      target, lambda sigma, account=account: account(
          sigma, batches, epochs).get_epsilon(DELTA),
      low=0.2, high=100.0, tolerance=1e-6) for account in (poisson, allocation)]
  start = time.process_time()
  # Another noise multiplier by a hair: nothing of it is kept from before.
  bounds = allocation(least[0] * (1 + 1e-12), batches, epochs).epsilon_bounds(DELTA)
  seconds = time.process_time() - start
  return {'batches': batches, 'epochs': epochs, 'poisson_epsilon': target,
          'noise_multiplier': least[0], 'allocation_noise_multiplier': least[1],
          'lower': bounds.lower, 'epsilon': bounds.upper,
          'relative_width': (bounds.upper - bounds.lower) / bounds.upper,
          'seconds': seconds}


def account_tables() -> None:
  """Computes and shows the tables of the account."""
  found = [cost_at(*case) for case in itertools.product(BATCHES, EPOCHS, EPSILONS)]
  _results.save('allocation', found)
  show(found)


def show(found: list[dict]) -> None:
  """Writes the table of the account, from the results."""
  rows = []
  for batches, epochs in itertools.product(BATCHES, EPOCHS):
    mine = [one for one in found
            if (one['batches'], one['epochs']) == (batches, epochs)]
    saved = [100 * (one['allocation_noise_multiplier'] / one['noise_multiplier'] - 1)
             for one in mine]
    rows.append([
        str(batches), str(epochs),
        *(f'{_format.upper(one["epsilon"], 5)} ({less:+.1f} %)'
          for one, less in zip(mine, saved)),
        f'{max(one["relative_width"] for one in mine):.0e}',
        f'{max(one["seconds"] for one in mine):.2f}'])
  _results.show('allocation', _results.markdown(
      ['batches', 'epochs', *(f'Poisson {target:g}' for target in EPSILONS),
       'relative width', 'seconds'], rows))


def train(kind: str, seed: int, target: float, epochs: int) -> dict:
  """One run on MNIST within an epsilon."""
  from training import mnist  # pylint: disable=import-outside-toplevel
  args = mnist.parse(['--mechanism', 'gaussian', '--target-epsilon', str(target),
                      '--epochs', str(epochs), '--sampling', kind, '--seed',
                      str(seed), '--verbose', '0', '--dataset', 'mnist'])
  data = mnist.datasets.load('mnist', None)
  plan = mnist.make_plan(args, data.train[1].size)
  start = time.process_time()
  result, guarantee = mnist.train(args, data, plan)
  return {'sampling': kind, 'seed': seed, 'epsilon': guarantee.upper,
          'noise_multiplier': plan.noise.noise_multiplier,
          'accuracy': result['test_accuracy'],
          'cpu_seconds_per_step': (time.process_time() - start) / result['steps']}


def used_once() -> bool:
  """Whether each of MNIST's examples is in exactly one batch of an epoch."""
  from tfcactus import keras as private  # pylint: disable=import-outside-toplevel
  count = 60_000
  batches = private.AllocatedBatches(
      np.arange(count, dtype=np.float32)[:, None], np.arange(count), batch_size=250)
  seen = np.concatenate([y[weight > 0] for _, y, weight in batches])
  return np.array_equal(np.sort(seen), np.arange(count))


def training_table(target: float, epochs: int) -> None:
  """Trains with both schemes by turns, and shows the table."""
  runs = [train(kind, seed, target, epochs)
          for seed in SEEDS for kind in ('poisson', 'allocation')]
  _results.save('allocation_training', {
      'epsilon': target, 'epochs': epochs, 'each_used_once': used_once(),
      'runs': runs})
  rows = []
  for kind in ('poisson', 'allocation'):
    mine = [run for run in runs if run['sampling'] == kind]
    accuracy = [run['accuracy'] for run in mine]
    rows.append([
        kind, f'{mine[0]["noise_multiplier"]:.4f}',
        ', '.join(f'{value:.4f}' for value in accuracy), f'{np.mean(accuracy):.4f}',
        f'{1000 * np.median([run["cpu_seconds_per_step"] for run in mine]):.1f}'])
  _results.show('allocation_training', _results.markdown(
      ['batches', 'noise multiplier', 'accuracy, by seed', 'mean', 'CPU ms a step'],
      rows))


def peer_table() -> None:
  """Compares with the bounds of PLD_accounting (Feldman and Shenfeld)."""
  import PLD_accounting as peer  # pylint: disable=import-outside-toplevel
  for sigma, batches, epochs in PEER_CASES:
    start = time.process_time()
    high, low = peer.gaussian_allocation_epsilon_range(
        delta=DELTA, sigma=sigma, num_steps=batches, num_epochs=epochs)
    theirs = time.process_time() - start
    start = time.process_time()
    mine = allocation(sigma, batches, epochs).epsilon_bounds(DELTA)
    print(f'sigma {sigma:g}, {batches} batches, {epochs} epochs: '
          f'PLD_accounting [{low:.6f}, {high:.6f}] in {theirs:.1f} s, here '
          f'[{_format.lower(mine.lower, 10)}, {_format.upper(mine.upper, 10)}] in '
          f'{time.process_time() - start:.2f} s')


def main() -> None:
  """Runs what was asked for."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--training', action='store_true')
  parser.add_argument('--peer', action='store_true')
  parser.add_argument('--epsilon', type=float, default=1.0)
  parser.add_argument('--epochs', type=int, default=5)
  args = parser.parse_args()
  if args.training:
    training_table(args.epsilon, args.epochs)
  elif args.peer:
    peer_table()
  else:
    account_tables()


if __name__ == '__main__':
  main()
