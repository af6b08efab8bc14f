"""What the figures of paper 001 share: bounded noise, what it costs, how it looks."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from scipy import optimize

from tfcactus import design
from tfcactus.noise import scalar_table
from tfcactus.search import truncated

EPSILON = 0.3

EPOCHS, BUCKETS = 5000, 2048
"""Of noise learned for pictures. The paper has 15,000 (100,000 with 'ma'), and 1000."""


def density(table: scalar_table.ScalarTable) -> tuple[np.ndarray, np.ndarray]:
  """Centres of all cells, and the density there."""
  x = (np.arange(table.log_density.size) + 0.5) / table.bins
  y = np.exp(table.log_density)
  return np.append(-x[::-1], x), np.append(y[::-1], y)


def delta(table: scalar_table.ScalarTable, **ask: Any) -> float:
  """The accountant's upper bound, at EPSILON where no other is asked for."""
  return truncated.account(table, epsilon=ask.pop('epsilon', EPSILON),
                           **ask).delta.upper


@functools.cache
def learned(**kwargs: Any) -> scalar_table.ScalarTable:
  """Noise learned by gradient descent; for the same request the same table."""
  from tfcactus.learned import learned_noise  # pylint: disable=import-outside-toplevel
  settings = {'epsilon': EPSILON, 'progress': False, 'epochs': EPOCHS,
              'buckets': BUCKETS, **kwargs}
  return learned_noise.LearnedNoise(**settings).solve()


def trained(epochs: int, **kwargs: Any) -> scalar_table.ScalarTable:
  """What the last epoch left: `learned` is the best that the accountant saw."""
  from tfcactus.learned import (
    learned_noise,  # pylint: disable=import-outside-toplevel
  )
  run = learned_noise.Training(learned_noise.LearnedNoise(
      epsilon=EPSILON, progress=False, buckets=BUCKETS, **kwargs))
  run.run(epochs)
  return run.table()


def divergence(first: scalar_table.ScalarTable, second: scalar_table.ScalarTable
               ) -> float:
  """KL(first || second) of two tables on the same cells, the second as long."""
  p, q = (np.exp(table.log_density) / table.bins for table in (first, second))
  return float(2 * np.sum(p * (np.log(p) - np.log(q[:p.size]))))


def gaussian_of_delta(reach: float, bins: int, wanted: float, ask: dict[str, Any]
                      ) -> scalar_table.ScalarTable | None:
  """The narrowest truncated Gaussian with at most this delta, or None."""
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
