"""Bounded noise for the figures of paper 001: densities, delta and utility."""

from __future__ import annotations

import functools
import math
from typing import Any, Callable

import numpy as np
from scipy import optimize

from benchmarks import _results
from tfcactus import design
from tfcactus.noise import scalar_table
from tfcactus.search import truncated

EPSILON = 0.3

COLOURS = (_results.BLUE, _results.VERMILION, _results.GREEN, _results.PURPLE,
           _results.ORANGE, _results.SKY)

EPOCHS, BUCKETS = 5000, 2048
"""Epochs and privacy buckets of noise learned for pictures. The paper takes 15,000
epochs (100,000 with 'ma') and 1000 buckets."""


def density(table: scalar_table.ScalarTable) -> tuple[np.ndarray, np.ndarray]:
  """Returns the centres of all cells and the density at these centres."""
  x = (np.arange(table.log_density.size) + 0.5) / table.bins
  y = np.exp(table.log_density)
  return np.append(-x[::-1], x), np.append(y[::-1], y)


def delta(table: scalar_table.ScalarTable, **ask: Any) -> float:
  """Returns the accountant's upper bound on delta, by default at `EPSILON`."""
  return truncated.account(table, epsilon=ask.pop('epsilon', EPSILON),
                           **ask).delta.upper


def utility(table: scalar_table.ScalarTable, norm: int) -> float:
  """Returns E|Z| for norm 1, and sqrt(E Z^2) for norm 2."""
  return table.moment(norm)**(1 / norm)


@functools.cache
def learned(**kwargs: Any) -> scalar_table.ScalarTable:
  """Returns noise learned by gradient descent; one request is solved only once."""
  from tfcactus.learned import learned_noise  # pylint: disable=import-outside-toplevel
  settings = {'epsilon': EPSILON, 'progress': False, 'epochs': EPOCHS,
              'buckets': BUCKETS, **kwargs}
  return learned_noise.LearnedNoise(**settings).solve()


def trained(epochs: int, **kwargs: Any) -> scalar_table.ScalarTable:
  """Returns the noise of the last epoch; `learned` returns that of the best epoch."""
  from tfcactus.learned import (
    learned_noise,  # pylint: disable=import-outside-toplevel
    training,  # pylint: disable=import-outside-toplevel
  )
  run = training.Training(learned_noise.LearnedNoise(
      epsilon=EPSILON, progress=False, buckets=BUCKETS, **kwargs))
  run.run(epochs)
  return run.table()


def divergence(first: scalar_table.ScalarTable, second: scalar_table.ScalarTable
               ) -> float:
  """Returns KL(first || second); both tables have the same cells, `second` all."""
  p, q = (np.exp(table.log_density) / table.bins for table in (first, second))
  return float(2 * np.sum(p * (np.log(p) - np.log(q[:p.size]))))


def gaussian_of_delta(reach: float, bins: int, wanted: float, ask: dict[str, Any]
                      ) -> scalar_table.ScalarTable | None:
  """Returns the narrowest truncated Gaussian with delta at most `wanted`, or None."""
  def excess(log_scale: float) -> float:
    table = design.TruncatedGaussian(
        reach, scale=math.exp(log_scale), bins=bins).solve()
    return math.log(delta(table, **ask) / wanted)

  grid = np.linspace(math.log(0.2), math.log(2 * reach), 25)
  below = next((i for i, x in enumerate(grid) if excess(x) <= 0), None)
  if below is None or below == 0:
    return None
  scale = math.exp(optimize.brentq(excess, grid[below - 1], grid[below],
                                   xtol=1e-4))
  return design.TruncatedGaussian(reach, scale=scale, bins=bins).solve()


def draw(name: str, text: str, figures: dict[str, Callable[[Any], dict]]) -> None:
  """Draws the figures that the command line names, and saves their results.

  Args:
    name: Name of the benchmark and of its results, which keep other figures' results.
    text: Docstring of the benchmark, for its help.
    figures: Functions that draw a figure with pyplot, by number of the figure.
  """
  parser = _results.parser(name, text)
  parser.add_argument('figures', nargs='*', metavar='FIGURE',
                      help=f'out of {", ".join(figures)}; default all')
  wanted = parser.parse_args().figures
  unknown = [number for number in wanted if number not in figures]
  if unknown:
    parser.error(f'expected figures of {", ".join(figures)}, got {unknown}')
  pyplot = _results.pyplot()
  for number in wanted or figures:
    found = figures[number](pyplot)
    print(number, found['claims'], flush=True)
    _results.save(name, {**_results.load(name, {}), f'figure {number}': found})
