"""Figures 2b, 2c and 2d of paper 000: the published account beside what holds.

    python -m benchmarks.cactus_figures
    python -m benchmarks.cactus_figures --quick

Paper 000 is "Cactus Mechanisms" (Alghamdi et al., ISIT 2022). It trains on MNIST with
the scalar cactus drawn for each weight, and accounts for that by the moments accountant
of the noise against itself, shifted by the sensitivity. That is an account of a number
that changes by no less than the sensitivity or not at all: for a number, smaller shifts
cost more, since the cactus is not monotone; for a vector, a change spread over its
entries costs many times as much. Both are computed here. Writes
results/cactus_figures.json and two pictures; --quick trains nothing and takes the
accuracies that were measured before.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import functools
import json
import math
from typing import Any

import dp_accounting
import numpy as np

from benchmarks import _results
import tfcactus
from tfcactus import _format, accounting
from tfcactus.noise import library, scalar_table

LONG = 'it trains four models for fifteen epochs'
QUICK = ('--quick',)

BUDGET, SIGMA = 0.1, math.sqrt(0.1)
"""C and sigma of Figures 2b to 2d; Figures 2c and 2d are at a sampling probability of
250 / 60000 and delta 1e-5, Figure 2b unsampled and at delta 1e-3."""
PROB, DELTA, DELTA_2B = 250 / 60000, 1e-5, 1e-3

STEPS = (1, 10, 60, 120, 240, 480, 960, 1800, 2700, 3600, 5400, 7200)
STEPS_2B = (1, 2, 3, 5, 8, 12, 20, 30, 45, 65, 100)
TABLE_STEPS = (240, 3600, 7200)
WEIGHTS = 26_010
"""Of the tutorial's network."""
INTEGER_ORDERS = tuple(map(float, range(2, 34)))
"""Of Abadi et al. (2016); the paper does not say which it takes."""
EPOCHS, SEEDS = 15, (1, 2)

STATEMENT = (
    'NOT a guarantee for training: the published account takes the noise of one '
    'weight, and of it the full shift only')


def published(noise: Any, steps: int, prob: float, delta: float, *,
              orders: tuple[float, ...] | None = None) -> float:
  """The moments accountant of one coordinate at the full shift.

  Args:
    noise: The Gaussian, of which this is an upper bound, or a scalar table, of which
      it is none.
    steps: How often it is released.
    prob: With which an example is in a step.
    delta: Of the claim.
    orders: Renyi orders; None for those of `RenyiAccountant`.
  """
  event = accounting.noise_event(noise)
  if isinstance(noise, tfcactus.ScalarTable):
    event = accounting.DominatingPairDpEvent(
        scalar_table.shifted_pair(noise, noise.bins))
  settings = {} if orders is None else {'orders': orders}
  return accounting.RenyiAccountant(conversion='moments', **settings).compose(
      dp_accounting.PoissonSampledDpEvent(prob, event), steps).get_epsilon(delta)


def proved(noise: Any, steps: int, prob: float, delta: float) -> float:
  """The exact account: of any vector for the Gaussian, of a number for a table."""
  return accounting.PhiAccountant().compose(dp_accounting.PoissonSampledDpEvent(
      prob, accounting.noise_event(noise)), steps).get_epsilon(delta)


def spread_tests(table: tfcactus.ScalarTable) -> Iterator[accounting.DominatingPair]:
  """Pairs that independent draws for `WEIGHTS` weights do not keep below.

  A change by so many cells in each of so many weights that its norm is at most one, and
  a test of it: whether the sum of the losses is above t. Its error rates are bounded by
  Chernoff's method from the losses of one weight; worse rates than a test's own are
  those of a test too, so each pair is attained by two neighbours.
  """
  power = np.geomspace(1e-3, 4, 400)
  for cells in (1, 2, 4, 10, 20, 50, 100, 200):
    weights = min((table.bins // cells)**2, WEIGHTS)
    pair = scalar_table.shifted_pair(table, cells)
    tilt = np.exp(np.multiply.outer(power, pair.loss))
    under_p, under_q = weights * np.log(1 / tilt @ pair.p), weights * np.log(
        tilt @ pair.q)
    mean = weights * float(pair.p @ pair.loss)
    for t in np.linspace(0.02, 1.5, 75) * mean:
      missed = min(math.exp(np.min(power * t + under_p)), 1.0)
      false = min(math.exp(np.min(under_q - power * t)), 1.0)
      if missed < 0.9 and 1e-250 < false < 1 - missed:
        # P is the law without the example, Q the one with it.
        yield accounting.DominatingPair.from_masses([false, 1 - false],
                                                    [1 - missed, missed])


@functools.lru_cache(maxsize=1)
def _tests() -> tuple[accounting.DominatingPair, ...]:
  return tuple(spread_tests(cactus()))


def attained(steps: int) -> float:
  """An epsilon that the cactus on a vector does not keep within, at `DELTA`."""
  return max(accounting.PhiAccountant().compose(dp_accounting.PoissonSampledDpEvent(
      PROB, accounting.DominatingPairDpEvent(pair)), steps).epsilon_bounds(DELTA).lower
             for pair in _tests())


def cactus() -> tfcactus.ScalarTable:
  """The paper's own grid: n = 200, N = 1600, r = .9."""
  return library.get('cactus-paper-budget0.1')


def accounts() -> list[dict[str, float]]:
  """All accounts of Figure 2c."""
  gaussian = tfcactus.Gaussian(SIGMA)
  rows = []
  for steps in STEPS:
    rows.append({
        'steps': steps, 'published_cactus': published(cactus(), steps, PROB, DELTA),
        'published_cactus_integer_orders': published(
            cactus(), steps, PROB, DELTA, orders=INTEGER_ORDERS),
        'published_gaussian': published(gaussian, steps, PROB, DELTA),
        'published_gaussian_integer_orders': published(
            gaussian, steps, PROB, DELTA, orders=INTEGER_ORDERS),
        'number_cactus': proved(cactus(), steps, PROB, DELTA),
        'vector_gaussian': proved(gaussian, steps, PROB, DELTA),
        'vector_cactus_at_least': attained(steps)})
    print(rows[-1], flush=True)
  return rows


def unsampled_accounts() -> list[dict[str, float]]:
  """All accounts of Figure 2b, which is of a number."""
  gaussian = tfcactus.Gaussian(SIGMA)
  return [{'steps': steps, 'published_cactus': published(cactus(), steps, 1, DELTA_2B),
           'published_gaussian': published(gaussian, steps, 1, DELTA_2B),
           'number_cactus': proved(cactus(), steps, 1, DELTA_2B),
           'number_gaussian': proved(gaussian, steps, 1, DELTA_2B)}
          for steps in STEPS_2B]


def trained(mechanism: str, seed: int) -> list[float]:
  """Accuracy on MNIST's test images after each epoch of training/mnist.py's run."""
  from training import mnist  # pylint: disable=import-outside-toplevel
  args = mnist.parse(
      ['--mechanism', mechanism, '--noise-multiplier', repr(SIGMA), '--epochs',
       str(EPOCHS), '--dataset', 'mnist', '--seed', str(seed), '--accounting',
       'proven' if mechanism == 'gaussian' else 'scalar-unproven'])
  data = mnist.load_data(args)
  plan = mnist.make_plan(args, data.train[1].size)
  mnist.tf.keras.utils.set_random_seed(seed)
  history = mnist.make_private_model(args, plan).fit(
      mnist.make_batches(args, data, plan), epochs=EPOCHS, validation_data=data.test,
      verbose=0)
  return history.history['val_accuracy']


def training(quick: bool) -> dict[str, list[list[float]]]:
  """Accuracies by mechanism, seed and epoch."""
  if quick:
    saved = _results.KEPT / 'cactus_figures.json'
    return json.loads(saved.read_text(encoding='utf-8'))['accuracy']
  found: dict[str, list[list[float]]] = {'cactus': [], 'gaussian': []}
  for seed in SEEDS:
    for mechanism, runs in found.items():
      runs.append(trained(mechanism, seed))
      print(mechanism, seed, runs[-1], flush=True)
  return found


LINES = {
    'published_gaussian': ('Gaussian, published: moments', _results.GRAY, ':'),
    'published_cactus': ('cactus, published: moments, full shift', _results.SKY, ':'),
    'number_gaussian': ('Gaussian, exact', _results.BLACK, '-'),
    'vector_gaussian': ('Gaussian, exact: vectors too', _results.BLACK, '-'),
    'number_cactus': ('cactus, exact for a number: all shifts', _results.BLUE, '-.'),
    'vector_cactus_at_least': ('cactus on 26,010 weights: at least',
                               _results.VERMILION, '--')}


def draw_accounts(pyplot: Any, unsampled: list, sampled: list) -> None:
  """Figures 2b and 2c."""
  figure, axes = pyplot.subplots(1, 2, figsize=(9.6, 5.6))
  for axis, rows in zip(axes, (unsampled, sampled)):
    for key, (label, color, style) in LINES.items():
      if key in rows[0]:
        axis.plot([row['steps'] for row in rows], [row[key] for row in rows], style,
                  color=color, label=label, linewidth=2)
    axis.set(xlabel='releases' if rows is unsampled else 'steps', yscale='log')
  axes[0].set(ylabel='epsilon at delta 1e-3', title='Figure 2b: a number, unsampled')
  axes[1].set(ylabel='epsilon at delta 1e-5', ylim=(0.5, 9000),
              title='Figure 2c: steps of training, q = 250/60000')
  axes[0].legend(loc='lower right', fontsize=8.5)
  axes[1].legend(loc='upper left', fontsize=8.5)
  figure.suptitle("Paper 000: the cactus' published epsilon (dotted, blue) does not "
                  'hold for a vector')
  _results.save_captioned(
      figure, axes, 'paper000_figure2bc',
      'C = .1, n = 200, N = 1600, r = .9; the Gaussian has the same variance. '
      f'{STATEMENT}. Two neighbours whose gradients differ by norm one, spread over '
      'many weights, attain at least the dashed line; the Gaussian keeps to its solid '
      'one whatever the dimension.')


def draw_accuracy(pyplot: Any, rows: dict[str, list], accuracy: dict) -> None:
  """Figure 2d, once more for each account."""
  figure, axis = pyplot.subplots(figsize=(9.6, 5.2))
  for mechanism, keys in (
      ('cactus', ('published_cactus', 'vector_cactus_at_least')),
      ('gaussian', ('published_gaussian', 'vector_gaussian'))):
    mean = 100 * np.mean(accuracy[mechanism], axis=0)
    for key in keys:
      label, color, style = LINES[key]
      axis.plot(rows[key], mean, style + 'o', color=color, label=label, linewidth=2,
                markersize=4)
  axis.set(xscale='log', xlabel='epsilon at delta 1e-5, by each account',
           ylabel='test accuracy, %', ylim=(90, 97.8),
           title='Paper 000, Figure 2d: the same accuracy; only the Gaussian has an '
           'epsilon')
  ticks = (5, 10, 20, 50, 100, 200, 400)
  axis.set_xticks(ticks, list(map(str, ticks)))
  axis.minorticks_off()
  axis.legend(loc='lower right', fontsize=9)
  last = {name: 100 * np.mean([run[-1] for run in runs])
          for name, runs in accuracy.items()}
  _results.save_captioned(
      figure, [axis], 'paper000_figure2d',
      f'{STATEMENT} (dotted, blue). Models learn equally well from noise of equal '
      f'variance: after {EPOCHS} epochs {last["cactus"]:.1f} % with the cactus, '
      f'{last["gaussian"]:.1f} % with the Gaussian. A point is an epoch of 240 steps; '
      f'means over seeds {" and ".join(map(str, SEEDS))} of training/mnist.py.')


def show(found: dict[str, Any]) -> None:
  """Writes both tables of benchmarks/README.md, from the results."""
  up, down = (functools.partial(way, digits=4) for way in (
      _format.upper, _format.lower))
  _results.show('cactus_figures', _results.markdown(
      ['steps', 'cactus, published', 'at integer orders', 'a number', 'a vector',
       'Gaussian, published', 'at integer orders', 'a vector'],
      [[str(row['steps']), up(row['published_cactus']),
        up(row['published_cactus_integer_orders']), up(row['number_cactus']),
        f'over {down(row["vector_cactus_at_least"])}', up(row['published_gaussian']),
        up(row['published_gaussian_integer_orders']), up(row['vector_gaussian'])]
       for row in found['figure_2c'] if row['steps'] in TABLE_STEPS]))
  _results.show('cactus_training', _results.markdown(
      ['noise', 'epochs', 'test accuracy by seed'],
      [[name, str(EPOCHS), ', '.join(f'{run[-1]:.4f}' for run in runs)]
       for name, runs in found['accuracy'].items()]))


def main() -> None:
  """Accounts, trains, draws, and writes results/cactus_figures.json."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--quick', action='store_true',
                      help='take the accuracies that were measured before')
  quick = parser.parse_args().quick
  result: dict[str, Any] = {
      'statement': STATEMENT, 'accuracy': training(quick),
      'table': cactus().digest, 'figure_2b': unsampled_accounts(),
      'figure_2c': accounts()}
  result['figure_2d'] = {
      key: [account(240 * (epoch + 1)) for epoch in range(EPOCHS)]
      for key, account in (
          ('published_cactus', lambda k: published(cactus(), k, PROB, DELTA)),
          ('vector_cactus_at_least', attained),
          ('published_gaussian', lambda k: published(
              tfcactus.Gaussian(SIGMA), k, PROB, DELTA)),
          ('vector_gaussian', lambda k: proved(
              tfcactus.Gaussian(SIGMA), k, PROB, DELTA)))}
  _results.save('cactus_figures', result)
  pyplot = _results.pyplot()
  draw_accounts(pyplot, result['figure_2b'], result['figure_2c'])
  draw_accuracy(pyplot, result['figure_2d'], result['accuracy'])
  show(result)


if __name__ == '__main__':
  main()
