"""Where cells are put on which the loss of two laws is bracketed: any place is sound.

Half of the cells goes where chords over them cost most, the other half evenly over
losses, so that rare ones keep their digits too.
"""

from __future__ import annotations

from typing import Callable
from typing import Sequence

import numpy as np

TAIL = 1e-40
"""Mass of either law outside of all cells."""

PILOT = 200
"""Quantiles of each tail of each law that the first cells end at."""

SHARE = 0.5
"""Share of the cells that is spread over losses."""

WIDEST = 1.0
"""A loss changes by this much on a cell, as far as spreading cells goes."""

Tails = Callable[[np.ndarray], 'tuple[np.ndarray, np.ndarray]']
"""P(X <= x) and P(X > x) of a law."""


def segments(laws: Sequence[Tails], loss: Callable[[np.ndarray], np.ndarray],
             breaks: np.ndarray, cells: int) -> list[np.ndarray]:
  """Ends of cells, increasing, for each interval between breaks.

  Args:
    laws: Of P and of Q.
    loss: log p - log q at points; infinite or nan anywhere.
    breaks: Shape (breaks,), increasing.
    cells: About how many.

  Returns:
    One array for each interval; the first begins and the last ends where there is
    hardly any mass beyond.
  """
  edges = np.unique(np.concatenate(
      [breaks, *(_quantiles(tails) for tails in laws)]))
  for count in (cells // 8, cells):
    edges = _refined(edges, laws, loss, count)
  places = [0, *np.searchsorted(edges, breaks), edges.size - 1]
  return [edges[a:b + 1] for a, b in zip(places[:-1], places[1:]) if a < b]


def _quantiles(tails: Tails) -> np.ndarray:
  """Points between which there is no much larger share of a tail than of others."""
  log_mass = np.linspace(np.log(TAIL), np.log(0.5), PILOT)
  found = []
  for which, sign in ((0, 1), (1, -1)):
    # On a scale that reaches every float; sinh(709) is the largest.
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
  """Cells cut into equal parts, in all about `count`."""
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
