"""Measures epsilon and accuracy of random allocation (balls-in-bins) against Poisson.

    python -m benchmarks.allocation             # epsilon
    python -m benchmarks.allocation --training  # accuracy on MNIST
    python -m benchmarks.allocation --peer      # PLD_accounting, if installed

With random allocation each example is in exactly one batch of an epoch. The noise
multiplier of a row is the one with which Poisson samples have the epsilon of the
column. Measured are the epsilon of random allocation with this noise, the width of its
bounds and their CPU time, and the noise multiplier with which random allocation has the
epsilon of the column.
"""

from __future__ import annotations

import itertools
import os
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import dp_accounting
import numpy as np

from benchmarks import _mnist, _results
from tfcactus import _format, accounting
from tfcactus.accounting import calibration

BATCHES, EPOCHS, EPSILONS, DELTA = (15, 59, 240), (1, 5, 20), (0.5, 1, 3, 8), 1e-5
SEEDS = (1, 2, 3)
PEER_CASES = ((1.0, 60, 5), (2.0, 15, 20), (0.7, 59, 1))
"""Noise multiplier, batches per epoch, and epochs."""


def allocation(sigma: float, batches: int, epochs: int) -> accounting.PhiAccountant:
  """Returns an accountant that has composed epochs of random allocation."""
  return accounting.PhiAccountant().compose(accounting.RandomAllocationDpEvent(
      batches, dp_accounting.GaussianDpEvent(sigma)), epochs)


def poisson(sigma: float, batches: int, epochs: int) -> accounting.PhiAccountant:
  """Returns an accountant of Poisson samples, in number and expected size as above."""
  return accounting.PhiAccountant().compose(dp_accounting.PoissonSampledDpEvent(
      1 / batches, dp_accounting.GaussianDpEvent(sigma)), batches * epochs)


def cost_at(batches: int, epochs: int, target: float) -> dict:
  """Returns bounds for random allocation with the noise of Poisson at `target`."""
  least = [calibration.calibrate_noise(
      target, lambda sigma, account=account: account(
          sigma, batches, epochs).get_epsilon(DELTA),
      low=0.2, high=100.0, tolerance=1e-6) for account in (poisson, allocation)]
  start = time.process_time()
  # Changed in the last digits, so that no cached result is used.
  bounds = allocation(least[0] * (1 + 1e-12), batches, epochs).epsilon_bounds(DELTA)
  seconds = time.process_time() - start
  return {'batches': batches, 'epochs': epochs, 'poisson_epsilon': target,
          'noise_multiplier': least[0], 'allocation_noise_multiplier': least[1],
          'lower': bounds.lower, 'epsilon': bounds.upper,
          'relative_width': (bounds.upper - bounds.lower) / bounds.upper,
          'seconds': seconds}


def account_tables() -> None:
  """Computes all bounds; writes results/allocation.json and the table."""
  found = [cost_at(*case) for case in itertools.product(BATCHES, EPOCHS, EPSILONS)]
  _results.save('allocation', found)
  show(found)


def show(found: list[dict]) -> None:
  """Writes the table of bounds from the results."""
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
  """Trains on MNIST within epsilon `target`, with the sampling scheme `kind`."""
  run = _mnist.train(['--mechanism', 'gaussian', '--target-epsilon', str(target),
                      '--epochs', str(epochs), '--sampling', kind, '--seed',
                      str(seed), '--verbose', '0', '--dataset', 'mnist'])
  return {'sampling': kind, 'seed': seed, **run.summary,
          'cpu_seconds_per_step': run.cpu_seconds / run.result['steps']}


def used_once() -> bool:
  """Returns whether each of 60,000 examples is in exactly one batch of an epoch."""
  from tfcactus import keras as private  # pylint: disable=import-outside-toplevel
  count = 60_000
  batches = private.AllocatedBatches(
      np.arange(count, dtype=np.float32)[:, None], np.arange(count), batch_size=250)
  seen = np.concatenate([y[weight > 0] for _, y, weight in batches])
  return np.array_equal(np.sort(seen), np.arange(count))


def training_table(target: float, epochs: int) -> None:
  """Trains with both schemes alternately; writes results and table."""
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
  """Prints the bounds and times of PLD_accounting (Feldman and Shenfeld) and ours."""
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
  """Makes the measurement that the command line names."""
  parser = _results.parser('allocation', __doc__)
  parser.add_argument('--training', action='store_true',
                      help='train on MNIST with both sampling schemes')
  parser.add_argument('--peer', action='store_true',
                      help='compare bounds with those of PLD_accounting')
  parser.add_argument('--epsilon', type=float, default=1.0,
                      help='target epsilon of --training')
  parser.add_argument('--epochs', type=int, default=5, help='epochs of --training')
  args = parser.parse_args()
  if args.training:
    training_table(args.epsilon, args.epochs)
  elif args.peer:
    peer_table()
  else:
    account_tables()


if __name__ == '__main__':
  main()
