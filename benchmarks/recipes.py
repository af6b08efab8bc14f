"""Measures the accuracy of the training script's recipes on MNIST.

    python -m benchmarks.recipes                   # all recipes, an hour or two
    python -m benchmarks.recipes --recipe scattering --epsilon 2.93 --seeds 1
    python -m benchmarks.recipes --show            # table of the saved runs

Each run is `python -m training.mnist --recipe NAME --target-epsilon E --seed S`. Runs
in results/recipes.json are not repeated.
"""

from __future__ import annotations

import functools
import statistics
from typing import Any

from benchmarks import _mnist, _results
from tfcactus import _format
from training import datasets, mnist, recipes

LONG = 'it trains twelve models'

EPSILONS, SEEDS = (recipes.TARGET_EPSILON, 1.0), 3


@functools.lru_cache(maxsize=1)
def images(name: str) -> datasets.Dataset:
  """Returns MNIST as the features on which a recipe trains."""
  args = mnist.parse(['--recipe', name, '--dataset', 'mnist'])
  return mnist.seen(args, mnist.load_data(args))


def run(name: str, target: float, seed: int) -> dict[str, Any]:
  """Trains by a recipe within epsilon `target`; returns accuracy, epsilon and time."""
  result, guarantee = _mnist.train(
      ['--recipe', name, '--target-epsilon', str(target), '--seed', str(seed),
       '--dataset', 'mnist', '--verbose', '2'], images(name))[1:3]
  return {'recipe': name, 'target': target, 'seed': seed,
          'accuracy': result['test_accuracy'], 'epsilon': guarantee.upper,
          'steps': result['steps'], 'seconds': result['seconds'],
          'parameters': result['parameters']}


def kept() -> list[dict[str, Any]]:
  """Returns the saved runs whose options are those of the recipes today."""
  found = _results.load('recipes', [])
  return [each for each in found if each['recipe'] in recipes.RECIPES and all(
      each['parameters'][option] == value
      for option, value in [
          *recipes.RECIPES[each['recipe']].items(),
          ('learning_rate', recipes.learning_rate(each['target']))]
      if option in each['parameters'] and value != 'auto')]


def table(found: list[dict[str, Any]]) -> str:
  """Returns a Markdown table of accuracy and time, a row per recipe and epsilon."""
  rows = []
  for name in recipes.RECIPES:
    for target in sorted({each['target'] for each in found}, reverse=True):
      mine = [each for each in found if (each['recipe'], each['target']) == (
          name, target)]
      if mine:
        accuracies = [each['accuracy'] for each in mine]
        rows.append([
            name, _format.upper(max(each['epsilon'] for each in mine)),
            str(mine[0]['steps']), str(mine[0]['parameters']['bands']),
            ', '.join(f'{accuracy:.4f}' for accuracy in accuracies),
            f'{statistics.mean(accuracies):.4f}',
            f'{max(each["seconds"] for each in mine) / 60:.0f}'])
  return _results.markdown(
      ['recipe', 'epsilon', 'steps', 'bands', 'test accuracy by seed', 'mean',
       'minutes of training'], rows)


def main() -> None:
  """Makes the missing runs, and writes the table."""
  parser = _results.parser('recipes', __doc__)
  parser.add_argument('--recipe', choices=recipes.RECIPES, default=None,
                      help='recipe to run; default all')
  parser.add_argument('--epsilon', type=float, default=None,
                      help='target epsilon; default '
                      f'{" and ".join(f"{target:g}" for target in EPSILONS)}')
  parser.add_argument('--seeds', type=int, default=SEEDS,
                      help='number of runs, with seeds from 1 on')
  parser.add_argument('--show', action='store_true',
                      help='train nothing; write the table')
  args = parser.parse_args()
  found = kept()
  for target in () if args.show else (
      EPSILONS if args.epsilon is None else (args.epsilon,)):
    for name in recipes.RECIPES if args.recipe is None else (args.recipe,):
      for seed in range(1, args.seeds + 1):
        if not any((each['recipe'], each['target'], each['seed']) == (
            name, target, seed) for each in found):
          found.append(run(name, target, seed))
          _results.save('recipes', found)
  show(found)


def show(found: list[dict[str, Any]]) -> None:
  """Writes the table from the results."""
  _results.show('recipes', table(found))


if __name__ == '__main__':
  main()
