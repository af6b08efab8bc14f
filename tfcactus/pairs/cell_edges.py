"""Edges of the cells that bracket the loss of two distributions: all are sound.

Half of the cells lie where chords over them cost most. The other half is spread evenly
over losses, so that rare losses keep their digits too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

import numpy as np

TAIL = 1e-40
"""Mass of either distribution outside all cells."""

PILOT = 200
"""Number of quantiles of each tail at which the first cells end."""

SHARE = 0.5
"""Share of the cells that is spread over losses."""

WIDEST = 1.0
"""Largest change of the loss on a cell that counts in spreading cells."""

Tails = Callable[[np.ndarray], 'tuple[np.ndarray, np.ndarray]']
"""P(X <= x) and P(X > x) of a distribution."""


def segments(laws: Sequence[Tails], loss: Callable[[np.ndarray], np.ndarray],
             breaks: np.ndarray, cells: int) -> list[np.ndarray]:
  """Returns increasing cell edges for each interval between breaks, `cells` in all.

  `loss` is log p - log q, infinite or nan anywhere. The first array begins and the last
  ends where hardly any mass is beyond.
  """
  edges = np.unique(np.concatenate(
      [breaks, *(_quantiles(tails) for tails in laws)]))
  for count in (cells // 8, cells):
    edges = _refined(edges, laws, loss, count)
  places = [0, *np.searchsorted(edges, breaks), edges.size - 1]
  return [edges[a:b + 1] for a, b in zip(places[:-1], places[1:]) if a < b]


def _quantiles(tails: Tails) -> np.ndarray:
  """Returns quantiles of both tails, evenly spaced in log probability."""
  log_mass = np.linspace(np.log(TAIL), np.log(0.5), PILOT)
  found = []
  for which, sign in ((0, 1), (1, -1)):
    # Bisect on a scale that reaches every float; sinh(709) is the largest.
    low, high = np.full(PILOT, -709.0), np.full(PILOT, 709.0)
    for _ in range(90):
      middle = 0.5 * (low + high)
      with np.errstate(divide='ignore'):
        more = sign * (np.log(tails(np.sinh(middle))[which]) - log_mass) > 0
      low, high = np.where(more, low, middle), np.where(more, middle, high)
    found.append(np.sinh(high if sign > 0 else low))
  return np.concatenate(found)


def _refined(edges: np.ndarray, laws: Sequence[Tails],
             loss: Callable[[np.ndarray], np.ndarray], count: int) -> np.ndarray:
  """Returns the cells cut into equal parts, about `count` in all."""
  mass = np.zeros(edges.size - 1)
  for tails in laws:
    below, above = tails(edges)
    mass += np.where(below[1:] < 0.5, np.diff(below), -np.diff(above))
  with np.errstate(invalid='ignore'):
    move = np.abs(np.diff(loss(edges)))
  move = np.minimum(np.nan_to_num(move, nan=0.0, posinf=WIDEST), WIDEST)
  # A chord over a loss w of mass m costs about m w^2 / 8.
  cost = np.cbrt(np.maximum(mass, 0.0) * move**2)
  parts = np.zeros(mass.size)
  for share, weight in ((1 - SHARE, cost), (SHARE, move)):
    if np.sum(weight) > 0:
      parts += share * count * weight / np.sum(weight)
  number = np.maximum(np.ceil(parts), 1).astype(np.int64)
  first = np.repeat(edges[:-1], number)
  step = np.arange(first.size) - np.repeat(np.cumsum(number) - number, number)
  width = np.repeat(np.diff(edges) / number, number)
  return np.unique(np.append(first + step * width, edges[-1]))
