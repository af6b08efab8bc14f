"""Threshold queries: for every j, the number of records that are at most j.

Source: Dwork, Naor, Pitassi and Rothblum, "Differential Privacy under Continual
Observation" (STOC 2010), for the tree; Bun, Nissim, Stemmer and Vadhan (FOCS 2015), as
used in section 5.3 of Bun, Dwork, Rothblum and Steinke (STOC 2018), for thresholds by
interior points.
"""

from __future__ import annotations

from typing import Callable, NamedTuple

import numpy as np

from tfcactus import _checks, accounting, noise as noise_lib
from tfcactus.randomness import SystemRandom
from tfcactus.release import _records, additive_noise, interior, noise_sources
from tfcactus.release.result import Release, repeated

_DEEPEST = 20
"""Most rounds of a sketch: 2^depth parts are counted."""


def thresholds(records: _records.Records, *, num_values: int,
               noise: noise_lib.ScalarNoise,
               outside: str = 'refuse', seed: int | None = None) -> Release:
  """Releases noisy cumulative counts: of records <= j, for j in 0..num_values - 1.

  Every count is a sum of at most log2(num_values) + 1 noisy counts of a dyadic tree.
  Arguments are as for `histogram`, with `num_values` in place of `num_bins`.

  Returns:
    Release whose value has shape (num_values,), int64.
  """
  counts = additive_noise.exact_counts(
      records, num_bins=num_values, outside=outside, name='num_values')
  noise_sources.spread_noise(noise, whole=True)
  value = threshold_draws(counts, noise, noise_sources.generator(seed), 1)[0]
  levels = num_levels(counts.size)
  return Release(
      value=value, event=repeated(accounting.noise_event(noise), levels),
      mechanism=f'{counts.size} threshold queries from a tree of {levels} '
      f'levels with {noise.name} noise', seeded=seed is not None,
      error_kind='largest error of a count', error_bound=lambda beta: (
          # Rounding moves each noisy count by at most 1/2.
          noise_sources.sum_error(noise, levels, counts.size, beta) + 0.5 * levels))


class ThresholdSketch(NamedTuple):
  """Cumulative counts at a few values of a domain.

  Attributes:
    points: Shape (m,), int64, increasing values.
    counts: Shape (m + 1,), int64: noisy numbers of records <= points[i]; the last is
      that of all records.
  """

  points: np.ndarray
  counts: np.ndarray


def threshold_sketch(records: _records.Records, *, num_values: int, depth: int,
                     noise: noise_lib.ScalarNoise, method: str = 'binary-search',
                     rank_error: float | None = None,
                     seed: int | None = None) -> Release:
  """Releases a few values of a huge domain and how many records are at most each.

  The domain is split at an interior point, and each part again, in `depth` rounds; a
  record is in one part of each round. The parts are then counted as by `thresholds`.

  Args:
    records: Integers in [1, num_values], one per record: an array or an iterable of
      batches. May be empty.
    num_values: Size of the domain, up to 2^62: public.
    depth: Rounds, at least one: at most 2^depth - 1 values are named.
    noise: Log-concave closed-form noise, in units of one record.
    method: How interior points are found, as for `interior_point`.
    rank_error: As for `quantile`.
    seed: For repeatable experiments; None draws from the system.

  Returns:
    Release whose value is a `ThresholdSketch`; its `error(beta)` bounds the error of
    all counts at the named points. Between two points the true count lies between the
    true counts at both.
  """
  depth = _checks.integer('depth', depth, 1)
  if depth > _DEEPEST:
    raise ValueError(
        f'Expected depth <= {_DEEPEST}, got depth={depth}: 2^depth parts are counted.')
  size = _checks.integer('num_values', num_values, 2)
  x = interior.Balance.of(_records.vector(records), 0.5, size).records
  rng = noise_sources.generator(seed)
  points = _splits(x, size, depth, lambda part, length: interior.interior_draw(
      part, length, noise=noise, rng=rng, method=method, rank_error=rank_error))
  # Records in (previous point, point], then the rest. Integers are compared, which is
  # exact beyond 2^53 too.
  counts = np.diff(np.searchsorted(x, points, side='right'), prepend=0, append=x.size)
  parts = 2**depth
  counts = np.append(counts, np.zeros(parts - counts.size, np.int64))
  value = threshold_draws(counts, noise, rng, 1)[0]
  levels = num_levels(parts)
  cost = depth * interior.num_queries(size, method) + levels
  return Release(
      value=ThresholdSketch(points, np.append(
          value[:points.size], value[parts - 1])),
      event=repeated(accounting.noise_event(noise), cost),
      mechanism=f'threshold counts at up to {parts - 1} interior points by '
      f'{method} with {noise.name} noise', seeded=seed is not None,
      error_kind='largest error of a count at a named value',
      error_bound=lambda beta: (
          noise_sources.sum_error(noise, levels, parts, beta) + 0.5 * levels))


def _splits(x: np.ndarray, size: int, depth: int,
            draw: Callable[[np.ndarray, int], int]) -> np.ndarray:
  """Splits 1..size in `depth` rounds at points that `draw(records, length)` returns."""
  # The result is int64, increasing, below `size`: at most 2^depth - 1 points.
  points = np.zeros(0, np.int64)
  for _ in range(depth):
    edges = np.concatenate([[0], points, [size]])
    splits = [low + draw(x[(x > low) & (x <= high)] - low, int(high - low))
              for low, high in zip(edges[:-1], edges[1:])]
    points = np.setdiff1d(np.append(points, splits), [size])
  return points


def num_levels(num_values: int) -> int:
  """Returns the levels of a dyadic tree; a record is in at most one count of each."""
  return _checks.integer('num_values', num_values, 1).bit_length()


def threshold_draws(counts: np.ndarray, noise: noise_lib.ScalarNoise, rng: SystemRandom,
                    runs: int) -> np.ndarray:
  """Returns noisy cumulative sums, int64 (runs, k), of exact `counts` of shape (k,)."""
  size = counts.size
  lengths = np.arange(1, size + 1)
  running = np.append(0, np.cumsum(counts))
  answer = np.zeros((runs, size), np.int64)
  for level in range(num_levels(size)):
    # The prefix of length c is a union of nodes: if bit `level` of c is set, the node
    # of 2^level counts that ends at c with its lower bits cleared is one of them.
    end = lengths >> level  # In nodes of this level.
    prefixes = np.flatnonzero(end & 1)
    nodes = np.unique(end[prefixes])
    exact = running[nodes << level] - running[(nodes - 1) << level]
    noisy = exact + noise_sources.drawn_steps(noise, rng, (runs, nodes.size))
    answer[:, prefixes] += noisy[:, np.searchsorted(nodes, end[prefixes])]
  return answer
