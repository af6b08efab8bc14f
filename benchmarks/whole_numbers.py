"""Measures the noise, the accuracy and the epsilon of training in whole numbers.

    python -m benchmarks.whole_numbers --draws 1000000000 --runs 10

Counts certain outputs: whole numbers that are released for one sum, and that no draw
can yield for a sum that differs by one clipping norm. It also bounds their probability,
by the probabilities of the table that all draws are made of, and tests the law of the
draws. It computes epsilon of jax_privacy's example of secure noise at that example's
own noise. With --runs it trains the tutorial CNN on MNIST as often, privately in floats
and in whole numbers, to compare the accuracies. With --rounds it measures steps of that
CNN with noise correlated over 16 steps, in floats and in whole numbers by turns.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from typing import TYPE_CHECKING

import dp_accounting
import numpy as np
from scipy import stats

from benchmarks import _processes, _results
import tfcactus
from tfcactus import _format, correlated
from tfcactus.noise import discrete_gaussian
from tfcactus.randomness import SystemRandom

if TYPE_CHECKING:
  from training import datasets

QUICK = ('--draws', '1000000')

SIGMAS = (0.5, 1.0, 2.0)
CELLS = 1000
"""Equally likely cells of the normal law, in a test of the law of draws."""

AT_ONCE = 2**21

EXAMPLE = {'num_examples': 10_000, 'weights': 101, 'steps': 500,
           'sampling_prob': 0.1, 'epsilon': 1.0, 'delta': 1e-5}
"""Setting of `examples/secure_noise_example.py` of jax_privacy at commit 8967688c: 100
features and a bias. Its integers are discrete Gaussian noise beside rounded gradients.
It calibrates noise by dp_accounting's RDP accountant, which takes the discrete Gaussian
of a Poisson sample to be a Gaussian (`ZCDpEvent`, dp_accounting at commit b5b0286e)."""


def largest() -> int:
  """Returns the largest number of the table that can be drawn."""
  masses = discrete_gaussian.probabilities()
  return max(k for k, mass in enumerate(masses) if mass) - len(masses) // 2


def reach() -> int:
  """Returns a bound up to which all whole numbers, in absolute value, can be drawn."""
  # z = 2^20 x2 + 2^10 x1 + x0: nearest multiples leave |x1| and |x0| below 2^10.
  return largest() << 20


def moved(sigma: float) -> int:
  """Returns by how many whole numbers a sum moves that moves by a clipping norm."""
  return round(discrete_gaussian.SCALE / sigma)


def chance(sigma: float) -> float:
  """Returns a bound on the probability that one draw is a certain output."""
  # Certain: beyond `reach` of the other sum, so x2 beyond `largest` less the move.
  masses = discrete_gaussian.probabilities()
  first = largest() - (moved(sigma) >> 20) - 2
  return 2 * sum(masses[len(masses) // 2 + first:]) / 2**128


def drawn(draws: int) -> dict:
  """Returns what `draws` draws show, and the CPU time of drawing alone."""
  discrete_gaussian.table()  # Made once, before times are taken.
  rng, limit = SystemRandom(), reach()
  edges = discrete_gaussian.SCALE * stats.norm.ppf(np.linspace(0, 1, CELLS + 1)[1:-1])
  certain = dict.fromkeys(SIGMAS, 0)
  cells, low, seconds = np.zeros(CELLS, np.int64), np.zeros(256, np.int64), 0.0
  for start in range(0, draws, AT_ONCE):
    begin = time.process_time()
    z = discrete_gaussian.draw(rng, min(AT_ONCE, draws - start))
    seconds += time.process_time() - begin
    furthest = max(-int(z.min()), int(z.max()))
    for sigma in SIGMAS:
      if furthest + moved(sigma) > limit:  # Rare: look at all.
        certain[sigma] += int(np.sum(np.abs(z) + moved(sigma) > limit))
    cells += np.bincount(np.searchsorted(edges, z), minlength=CELLS)
    low += np.bincount(z & 255, minlength=256)
  return {
      'draws': draws, 'nanoseconds': 1e9 * seconds / draws,
      'certain': [certain[sigma] for sigma in SIGMAS],
      'chance': [chance(sigma) for sigma in SIGMAS],
      'law': float(stats.chisquare(cells).pvalue),
      'low_bits': float(stats.chisquare(low).pvalue)}


def beside_jax_privacy() -> dict:
  """Returns noise and epsilon of jax_privacy's example, and epsilon by this library."""
  event = lambda noise: dp_accounting.SelfComposedDpEvent(
      dp_accounting.PoissonSampledDpEvent(
          EXAMPLE['sampling_prob'], dp_accounting.GaussianDpEvent(noise)),
      EXAMPLE['steps'])
  noise = dp_accounting.calibrate_dp_mechanism(
      dp_accounting.rdp.RdpAccountant, event, EXAMPLE['epsilon'], EXAMPLE['delta'])
  renyi = dp_accounting.rdp.RdpAccountant().compose(event(noise))
  plan = tfcactus.PrivacyPlan(
      noise=tfcactus.Gaussian(noise), l2_norm_clip=1.0, arithmetic='integer',
      num_examples=EXAMPLE['num_examples'], dim=EXAMPLE['weights'],
      **{key: EXAMPLE[key] for key in ('steps', 'sampling_prob', 'delta')})
  return {'noise_multiplier': noise, 'renyi': renyi.get_epsilon(EXAMPLE['delta']),
          'epsilon': plan.guarantee().upper}


def accuracy(arithmetic: str, data: datasets.Dataset, run: int) -> float:
  """Returns the test accuracy of the tutorial CNN after two epochs within epsilon 2."""
  import tensorflow as tf

  from tfcactus import keras as private
  from training import networks
  tf.keras.utils.set_random_seed(run)  # For weights: samples and noise have no seed.
  plan = tfcactus.PrivacyPlan.for_training(
      target_epsilon=2.0, delta=1e-5, num_examples=data.train[1].size, batch_size=250,
      epochs=2, l2_norm_clip=1.0, arithmetic=arithmetic, dim=26_010)
  model = private.privatize(networks.cnn('tanh'), plan)
  model.compile(
      tf.keras.optimizers.SGD(
          tf.keras.optimizers.schedules.CosineDecay(2.0, plan.steps, alpha=0.05)),
      tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      metrics=['accuracy'])
  model.fit(private.PoissonBatches(*data.train, batch_size=250), epochs=2, verbose=0)
  return model.evaluate(*data.test, verbose=0)[1]


def accuracies(runs: int) -> dict[str, list[float]]:
  """Returns the accuracies of `runs` trainings on MNIST in each arithmetic."""
  from training import datasets
  data = datasets.mnist()
  found: dict[str, list[float]] = {'float': [], 'integer': []}
  for run in range(runs):
    for arithmetic, made in found.items():
      made.append(accuracy(arithmetic, data, run))
      print(f'run {run}, {arithmetic}: accuracy {made[-1]:.4f}', flush=True)
  return found


def correlated_steps(rounds: int) -> dict[str, dict[str, float]]:
  """Returns epsilons, and CPU time in whole numbers over that in floats, of a step.

  By strategy, for noise correlated over 16 steps and batches of 250. The model is the
  tutorial CNN.
  """
  import tensorflow as tf

  from tfcactus import keras as private
  from training import networks
  rng = np.random.default_rng(0)
  data = rng.random((12_000, 28, 28, 1), np.float32), rng.integers(0, 10, 12_000)
  found = {}
  for request in (correlated.BandedStrategy(16), correlated.BlockedStrategy(16)):
    plan = tfcactus.PrivacyPlan(
        noise=tfcactus.Gaussian(1.3), l2_norm_clip=1.5, num_examples=60_000,
        sampling_prob=1 / 240, steps=1200, delta=1e-5, dim=26_010, correlation=request)
    plans = {mode: dataclasses.replace(plan, arithmetic=mode)
             for mode in ('float', 'integer')}
    runs = {}
    for mode, each in plans.items():
      each = dataclasses.replace(each, num_examples=12_000, sampling_prob=1 / 48)
      model = private.privatize(networks.cnn('tanh'), each)
      model.compile('sgd', tf.keras.losses.SparseCategoricalCrossentropy(
          from_logits=True))
      batches = private.CyclicBatches(*data, plan=each)
      runs[mode] = functools.partial(model.fit, batches, verbose=0)
      runs[mode]()
    seconds = _processes.by_turns(runs, rounds)
    found[plan.strategy.kind] = {
        'ratio': statistics.median(
            a / b for a, b in zip(seconds['integer'], seconds['float'])),
        **{mode: each.guarantee().upper for mode, each in plans.items()}}
  return found


def main():
  """Measures and compares; writes results/whole_numbers.json and the tables."""
  parser = _results.parser('whole_numbers', __doc__)
  parser.add_argument('--draws', type=int, default=10_000_000,
                      help='number of draws; 0 keeps the saved ones; '
                      'default: %(default)s')
  parser.add_argument('--runs', type=int, default=0,
                      help='trainings in each arithmetic; 0, the default, keeps the '
                      'saved ones')
  parser.add_argument('--rounds', type=int, default=0,
                      help='epochs in each arithmetic with correlated noise; 0, the '
                      'default, keeps the saved times')
  args = parser.parse_args()
  kept = _results.load('whole_numbers', {})
  _results.save('whole_numbers', {
      'drawn': drawn(args.draws) if args.draws else kept['drawn'],
      'example': beside_jax_privacy(),
      'accuracies': accuracies(args.runs) if args.runs else kept.get('accuracies'),
      'correlated': (correlated_steps(args.rounds) if args.rounds else
                     kept.get('correlated'))})
  show(_results.load('whole_numbers'))


def show(found: dict) -> None:
  """Writes the tables from the results."""
  seen, example = found['drawn'], found['example']
  _results.show('whole_numbers_drawn', _results.markdown(
      ['noise multiplier', f'certain outputs in {seen["draws"]:,} draws',
       'probability of one in a draw, at most'],
      [[f'{sigma:g}', f'{count:,}', f'{chance_:.1e}'] for sigma, count, chance_ in zip(
          SIGMAS, seen['certain'], seen['chance'])]))
  _results.show('whole_numbers_law', _results.markdown(
      ['draws', 'measured'],
      [['CPU time of a draw', f'{seen["nanoseconds"]:.0f} ns'],
       [f'p-value of {CELLS:,} cells of the normal law', f'{seen["law"]:.2g}'],
       ['p-value of the last eight bits', f'{seen["low_bits"]:.2g}']]))
  saved = 100 * (1 - example['epsilon'] / example['renyi'])
  _results.show('whole_numbers_example', _results.markdown(
      ['noise multiplier', 'epsilon by RDP, as in the example',
       "epsilon by arithmetic='integer'", 'lower by'],
      [[f'{example["noise_multiplier"]:.4f}', f'{example["renyi"]:.4f}',
        _format.upper(example['epsilon'], 6),
        f'{saved:.1f} %']]))
  if found.get('accuracies'):
    _results.show('whole_numbers_accuracy', _results.markdown(
        ['arithmetic', 'runs', 'mean accuracy', 'standard error'],
        [[name, str(len(each)), f'{np.mean(each):.4f}',
          f'{np.std(each, ddof=1) / len(each)**0.5:.4f}']
         for name, each in found['accuracies'].items()]))
  if found.get('correlated'):
    _results.show('whole_numbers_correlated', _results.markdown(
        ['strategy', 'epsilon in floats', 'in whole numbers', 'higher by',
         'CPU time of a step, over that in floats'],
        [[kind, *(_format.upper(each[mode], 11) for mode in ('float', 'integer')),
          f'{each["integer"] / each["float"] - 1:.1e}', f'{each["ratio"]:.3f}']
         for kind, each in found['correlated'].items()]))


if __name__ == '__main__':
  main()
