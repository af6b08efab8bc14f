"""Redraws Figures 2b, 2c and 2d of paper 000 with the published and the exact epsilon.

    python -m benchmarks.cactus_figures
    python -m benchmarks.cactus_figures --quick

Paper 000 is "Cactus Mechanisms" (Alghamdi et al., ISIT 2022). It trains on MNIST with
scalar cactus noise drawn for each weight. Its account is the moments accountant of the
noise against the noise shifted by the sensitivity. This account is valid only for a
number that changes by exactly the sensitivity or not at all. For a number that may
change by less, smaller shifts cost more, since the cactus density is not monotone. For
a vector, a change that is spread over its entries costs many times as much. All three
are computed here. Writes results/cactus_figures.json and two pictures. --quick does not
train; it takes the accuracies of the saved results.
"""

from __future__ import annotations

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
"""C and sigma of Figures 2b to 2d. Figures 2c and 2d have sampling probability
250 / 60000 and delta 1e-5; Figure 2b has no sampling, and delta 1e-3."""
PROB, DELTA, DELTA_2B = 250 / 60000, 1e-5, 1e-3

STEPS = (1, 10, 60, 120, 240, 480, 960, 1800, 2700, 3600, 5400, 7200)
STEPS_2B = (1, 2, 3, 5, 8, 12, 20, 30, 45, 65, 100)
TABLE_STEPS = (240, 3600, 7200)
WEIGHTS = 26_010
"""Number of weights of the tutorial CNN."""
INTEGER_ORDERS = tuple(map(float, range(2, 34)))
"""Renyi orders of Abadi et al. (2016); paper 000 does not state its orders."""
EPOCHS, SEEDS = 15, (1, 2)

STATEMENT = (
    'NOT a guarantee for training: the published account takes the noise of one '
    'weight, and of it the full shift only')


def published(noise: Any, steps: int, prob: float, delta: float, *,
              orders: tuple[float, ...] | None = None) -> float:
  """Returns epsilon by the moments accountant of one coordinate at the full shift.

  Args:
    noise: For the Gaussian the result is an upper bound, for a scalar table it is not.
    steps: Number of releases.
    prob: Sampling probability.
    delta: The delta of the claim.
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
  """Returns the exact epsilon: for any vector with the Gaussian, else for a number."""
  return accounting.PhiAccountant().compose(dp_accounting.PoissonSampledDpEvent(
      prob, accounting.noise_event(noise)), steps).get_epsilon(delta)


def spread_tests(table: tfcactus.ScalarTable) -> Iterator[accounting.DominatingPair]:
  """Yields pairs of Bernoulli laws that bound the privacy of a vector from below.

  The noise is drawn independently for `WEIGHTS` weights. Two neighbours differ by some
  number of cells in as many weights as a change of norm one allows. A test compares the
  sum of the losses of these weights with a threshold t. Chernoff bounds on its error
  rates follow from the losses of one weight. Error rates above those of a test are
  attained by another test, so that the two neighbours attain each pair.
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
  """Returns a lower bound on epsilon at `DELTA` of cactus noise on a vector."""
  return max(accounting.PhiAccountant().compose(dp_accounting.PoissonSampledDpEvent(
      PROB, accounting.DominatingPairDpEvent(pair)), steps).epsilon_bounds(DELTA).lower
             for pair in _tests())


def cactus() -> tfcactus.ScalarTable:
  """Returns the cactus on the paper's grid: n = 200, N = 1600, r = .9."""
  return library.get('cactus-paper-budget0.1')


def accounts() -> list[dict[str, float]]:
  """Returns epsilon by all accounts of Figure 2c."""
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
  """Returns epsilon by all accounts of Figure 2b, which releases a number."""
  gaussian = tfcactus.Gaussian(SIGMA)
  return [{'steps': steps, 'published_cactus': published(cactus(), steps, 1, DELTA_2B),
           'published_gaussian': published(gaussian, steps, 1, DELTA_2B),
           'number_cactus': proved(cactus(), steps, 1, DELTA_2B),
           'number_gaussian': proved(gaussian, steps, 1, DELTA_2B)}
          for steps in STEPS_2B]


def trained(mechanism: str, seed: int) -> list[float]:
  """Trains as training/mnist.py does; returns the test accuracy after each epoch."""
  from training import mnist, optimizers  # pylint: disable=import-outside-toplevel
  args = mnist.parse(
      ['--mechanism', mechanism, '--noise-multiplier', repr(SIGMA), '--epochs',
       str(EPOCHS), '--dataset', 'mnist', '--seed', str(seed), '--accounting',
       'proven' if mechanism == 'gaussian' else 'scalar-unproven'])
  data = mnist.load_data(args)
  way = optimizers.Way(args, mnist.make_plan(args, data.train[1].size))
  mnist.tf.keras.utils.set_random_seed(seed)
  history = way.compiled(mnist.build_model(args)).fit(
      way.batches(*data.train), epochs=EPOCHS, validation_data=data.test, verbose=0)
  return history.history['val_accuracy']


def training(quick: bool) -> dict[str, list[list[float]]]:
  """Returns accuracies by mechanism, seed and epoch; the saved ones if `quick`."""
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
  """Draws Figures 2b and 2c."""
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
  """Draws Figure 2d: accuracy against the epsilon of each account."""
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
  """Writes both tables from the results."""
  up, down = (functools.partial(way, digits=4) for way in (
      _format.upper, _format.lower))
  _results.show('cactus_figures', _results.markdown(
      ['steps', 'cactus, published', 'cactus, published, integer orders',
       'cactus, a number', 'cactus, a vector', 'Gaussian, published',
       'Gaussian, published, integer orders', 'Gaussian, a vector'],
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
  """Makes all measurements; writes the results, the pictures and the tables."""
  parser = _results.parser('cactus_figures', __doc__)
  parser.add_argument('--quick', action='store_true',
                      help='do not train; take the accuracies of the saved results')
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
