"""Measures error, accuracy and cost of noise correlated over steps (BandMF).

    python -m benchmarks.correlated                        # errors
    python -m benchmarks.correlated --training --epsilon 3 # accuracy on MNIST
    python -m benchmarks.correlated --cost                 # CPU time of a step
    OTHER/bin/python -m benchmarks.correlated --peer       # jax_privacy, if installed

An error is the root mean square over steps of the noise that plain SGD has added to the
weights. It is divided by the error of independent noise on Poisson samples with the
same epsilon. In training each method has the learning rate that was best on 5,000 held
out training images; the final runs use all images and other seeds.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
import statistics

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np

from benchmarks import _mnist, _processes, _results
import tfcactus
from tfcactus import _format, correlated, sampling
from tfcactus.correlated import workload

BATCHES, EPOCHS, EPSILONS, DELTA = (240, 60, 15), (5, 20), (0.5, 1, 3, 8), 1e-5
SIZES, EXAMPLES = (256, 1024, 4096), 60_000
SEEDS, RATES, HELD_OUT = (1, 2, 3), (1.0, 2.0, 4.0, 8.0), 5_000
METHODS = {
    'independent, Poisson': ['--sampling', 'poisson'],
    'correlated, cyclic allocation': ['--sampling', 'allocation', '--bands', 'auto']}


def total_error(batches: int, epochs: int, target: float, bands: int,
                scheme: type) -> float:
  """Returns noise multiplier times error of a banded strategy, at epsilon `target`."""
  plan = tfcactus.PrivacyPlan.for_training(
      batch_size=1, epochs=epochs, num_examples=batches, delta=DELTA, l2_norm_clip=1.0,
      target_epsilon=target, sampling=scheme,
      correlation=correlated.BandedStrategy(bands))
  return workload.total_error(plan)


def least(batches: int, epochs: int, target: float, scheme: type) -> tuple:
  """Returns the least total error and its number of bands, a divisor of `batches`.

  The search ends after three numbers of bands without an improvement.
  """
  worse, best = 0, (np.inf, 0)
  for bands in (b for b in range(1, batches + 1) if batches % b == 0):
    error = total_error(batches, epochs, target, bands, scheme)
    worse = 0 if error < best[0] else worse + 1
    best = min(best, (error, bands))
    if worse == 3:
      break
  return best


def error_table() -> None:
  """Computes errors by batches and epochs; writes results and table."""
  found, rows = [], []
  for batches, epochs in itertools.product(BATCHES, EPOCHS):
    cells = []
    for target in EPSILONS:
      alone = total_error(batches, epochs, target, 1, sampling.CyclicPoissonSampling)
      parts = [least(batches, epochs, target, scheme) for scheme in (
          sampling.CyclicPoissonSampling, sampling.CyclicAllocationSampling)]
      found.append({'batches': batches, 'epochs': epochs, 'epsilon': target,
                    'poisson': parts[0][0] / alone, 'poisson_bands': parts[0][1],
                    'allocation': parts[1][0] / alone, 'allocation_bands': parts[1][1]})
      cells.append(' / '.join(f'{error / alone:.3f} ({bands})'
                              for error, bands in parts))
    rows.append([str(batches), str(epochs), *cells])
  _results.save('correlated', found)
  _results.show('correlated', _results.markdown(
      ['batches', 'epochs', *(f'epsilon {target:g}' for target in EPSILONS)], rows))


def by_visits(size: int, epochs: int, target: float, bands: int) -> float:
  """Returns noise multiplier times error for cyclic Poisson sampling of MNIST.

  Accounts for the visits of one group, so that the number of bands need not divide the
  number of batches.
  """
  steps = epochs * round(EXAMPLES / size)
  found = tfcactus.calibrate_noise_multiplier(
      target, tfcactus.Gaussian, l2_norm_clip=1.0, num_examples=EXAMPLES,
      sampling_prob=min(1.0, bands * size / EXAMPLES), steps=math.ceil(steps / bands),
      delta=DELTA)
  return found.noise_multiplier * correlated.BandedStrategy(bands).solve(steps).error(
      steps)


def size_table() -> None:
  """Computes errors by batch size and epochs; writes results and table."""
  found, rows = [], []
  for size, epochs in itertools.product(SIZES, (*EPOCHS, 40)):
    tried = sorted({*(2**k for k in range(7) if 2**k * size <= EXAMPLES),
                    round(EXAMPLES / size)})
    cells = []
    for target in EPSILONS:
      errors = {bands: by_visits(size, epochs, target, bands) for bands in tried}
      best = min(errors, key=errors.__getitem__)
      found.append({'batch_size': size, 'epochs': epochs, 'epsilon': target,
                    'bands': best, 'error': errors[best] / errors[1]})
      cells.append(f'{errors[best] / errors[1]:.3f} ({best})')
    rows.append([str(size), str(epochs), *cells])
  _results.save('correlated_sizes', found)
  _results.show('correlated_sizes', _results.markdown(
      ['batch size', 'epochs', *(f'epsilon {target:g}' for target in EPSILONS)], rows))


def train(method: str, seed: int, rate: float, target: float, epochs: int,
          held_out: bool) -> dict:
  """Trains on MNIST within epsilon `target`; tests on training images if `held_out`."""
  from training import datasets  # pylint: disable=import-outside-toplevel
  data = datasets.load('mnist', None)
  if held_out:
    data = dataclasses.replace(
        data, train=tuple(part[:-HELD_OUT] for part in data.train),
        test=tuple(part[-HELD_OUT:] for part in data.train))
  run = _mnist.train([
      '--mechanism', 'gaussian', '--target-epsilon', str(target), '--epochs',
      str(epochs), '--learning-rate', str(rate), '--seed', str(seed), '--verbose', '0',
      '--dataset', 'mnist', *METHODS[method]], data)
  found = {'method': method, 'seed': seed, 'learning_rate': rate,
           'bands': run.plan.groups, **run.summary, 'held_out': held_out,
           'cpu_seconds': run.cpu_seconds}
  print(found, flush=True)
  return found


def training_table(target: float, epochs: int) -> None:
  """Chooses learning rates on held out images, trains, writes results and table."""
  runs, rows = [], []
  for method in METHODS:
    tried = [train(method, 0, rate, target, epochs, True) for rate in RATES]
    best = max(tried, key=lambda run: run['accuracy'])['learning_rate']
    mine = [train(method, seed, best, target, epochs, False) for seed in SEEDS]
    runs += tried + mine
    rows.append([
        method, str(mine[0]['bands']), f'{mine[0]["noise_multiplier"]:.4f}',
        f'{best:g}', ', '.join(f'{run["accuracy"]:.4f}' for run in mine),
        f'{np.mean([run["accuracy"] for run in mine]):.4f}'])
  name = f'correlated_training_epsilon{target:g}'
  _results.save(name, {'epsilon': target, 'epochs': epochs, 'runs': runs})
  table = _results.markdown(
      ['noise, batches', 'bands', 'noise multiplier', 'learning rate',
       'accuracy, by seed', 'mean'], rows)
  if target == 3:
    _results.show('correlated_training_3', table)
  elif target == 1:
    _results.show('correlated_training_1', table)
  else:
    print(table)


def cost_table() -> None:
  """Measures CPU time of a step of the tutorial CNN, kinds of noise alternating."""
  from tfcactus import keras as private  # pylint: disable=import-outside-toplevel
  from training import networks  # pylint: disable=import-outside-toplevel
  rng = np.random.default_rng(0)
  x = rng.normal(size=(6_000, 28, 28, 1)).astype(np.float32)
  y = rng.integers(0, 10, 6_000)
  kinds = {'independent': correlated.BandedStrategy(1),
           '30 bands': correlated.BandedStrategy(30),
           '60 bands': correlated.BandedStrategy(60),
           '30 bands, blocked': correlated.BlockedStrategy(30)}
  runs, made = {}, {}
  for kind, request in kinds.items():
    plan = tfcactus.PrivacyPlan(
        noise=tfcactus.Gaussian(1.0), l2_norm_clip=1.0, num_examples=6_000,
        sampling_prob=1 / 60, steps=6_000, delta=DELTA, correlation=request)
    model = private.privatize(networks.cnn('tanh'), plan)
    model.compile('sgd', networks.tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True))
    batches = private.CyclicBatches(x, y, plan=plan)
    model.fit(batches, verbose=0)
    runs[kind] = functools.partial(model.fit, batches, epochs=3, verbose=0)
    made[kind] = model, plan.strategy
  times = {kind: [each / 180 for each in seconds]
           for kind, seconds in _processes.by_turns(runs, 9).items()}
  alone = times['independent']
  rows, found = [], {}
  for kind, (model, strategy) in made.items():
    ratio = statistics.median(a / b for a, b in zip(times[kind], alone))
    found[kind] = {'ms': 1e3 * statistics.median(times[kind]), 'ratio': ratio,
                   'buffers': strategy.buffers}
    size = sum(int(np.prod(v.shape)) for v in model.inner.trainable_variables)
    rows.append([kind, f'{found[kind]["ms"]:.2f}', f'{ratio:.3f}',
                 f'{strategy.buffers * size * 8 / 1e6:.2f}'])
  _results.save('correlated_cost', found)
  _results.show('correlated_cost', _results.markdown(
      ['noise', 'CPU ms a step', 'over independent noise', 'kept, MB'], rows))


PEER_CASES = ((1200, 240, 16, 1.2), (1200, 240, 30, 1.5), (4800, 240, 16, 1.2))
"""Steps, batches per epoch, bands, and noise multiplier."""


def peer_table() -> None:
  """Compares errors and epsilons with those of BandMF in jax_privacy."""
  # pylint: disable=import-outside-toplevel
  import jax
  jax.config.update('jax_enable_x64', True)
  import dp_accounting
  from jax_privacy.experimental import accounting as peer
  from jax_privacy.matrix_factorization import toeplitz
  rows = []
  for steps, batches, bands, multiplier in PEER_CASES:
    theirs = toeplitz.optimize_banded_toeplitz(steps, bands)
    error = float(np.sqrt(np.mean(toeplitz.per_query_error(
        strategy_coef=theirs, n=steps)) * np.sum(theirs**2)))
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(peer.amplified_bandmf_event(
        multiplier, steps, num_bands=bands, sampling_prob=bands / batches))
    plan = tfcactus.PrivacyPlan(
        noise=tfcactus.Gaussian(multiplier), l2_norm_clip=1.0, num_examples=batches,
        sampling_prob=1 / batches, steps=steps, delta=DELTA,
        correlation=correlated.BandedStrategy(bands))
    poisson, allocated = (plan.guarantee(sampling=scheme) for scheme in (
        sampling.CyclicPoissonSampling, sampling.CyclicAllocationSampling))
    rows.append([
        str(steps), str(bands), f'{multiplier:g}', f'{error:.8f}',
        f'{plan.strategy.error(steps):.8f}',
        _format.upper(accountant.get_epsilon(DELTA), 8),
        _format.upper(poisson.upper, 11), _format.upper(allocated.upper, 11)])
  _results.show('correlated_peer', _results.markdown(
      ['steps', 'bands', 'noise multiplier', 'error, jax_privacy', 'error, here',
       'epsilon, jax_privacy', 'cyclic Poisson, here', 'cyclic allocation, here'],
      rows))


def main() -> None:
  """Makes the measurement that the command line names."""
  parser = _results.parser('correlated', __doc__)
  parser.add_argument('--training', action='store_true',
                      help='train on MNIST with and without correlated noise')
  parser.add_argument('--cost', action='store_true',
                      help='measure CPU time and memory of the noise of a step')
  parser.add_argument('--peer', action='store_true',
                      help='compare with BandMF in jax_privacy')
  parser.add_argument('--epsilon', type=float, default=3.0,
                      help='target epsilon of --training')
  parser.add_argument('--epochs', type=int, default=5, help='epochs of --training')
  args = parser.parse_args()
  if args.training:
    training_table(args.epsilon, args.epochs)
  elif args.cost:
    cost_table()
  elif args.peer:
    peer_table()
  else:
    error_table()
    size_table()


if __name__ == '__main__':
  main()
