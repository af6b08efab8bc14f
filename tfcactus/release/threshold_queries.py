"""Threshold queries: how many records are at most j, for every j at once."""

from __future__ import annotations

from typing import Any
from typing import Optional

import numpy as np

from tfcactus import _checks
from tfcactus import noise as noise_lib
from tfcactus import privacy
from tfcactus.release import _noise
from tfcactus.release import query
from tfcactus.release.result import Release
from tfcactus.release.result import repeated


def thresholds(records: Any, *, num_values: int, noise: noise_lib.Noise,
               outside: str = 'refuse', seed: Optional[int] = None) -> Release:
  """Releases noisy counts of records <= j, for all j in 0..num_values - 1.

  Every count is a sum of at most log2(num_values) + 1 noisy counts of a dyadic
  tree, of which a record is in one per level.

  Args:
    records: Integers in [0, num_values), one per record: an array or an
      iterable of batches. May be empty.
    num_values: Size of the domain: public.
    noise: Log-concave scalar noise, in units of one record.
    outside: As for `histogram`.
    seed: For repeatable experiments; None draws from the system.

  Returns:
    Release whose value has shape (num_values,), int64.

  Source: Dwork, Naor, Pitassi and Rothblum, "Differential Privacy under
  Continual Observation" (STOC 2010), for the tree.
  """
  counts = query.exact_counts(records, num_bins=num_values, outside=outside)
  _noise.spread_noise(noise, whole=True)
  value = threshold_draws(counts, noise, _noise.generator(seed), 1)[0]
  levels = num_levels(counts.size)
  return Release(
      value=value, event=repeated(privacy.noise_event(noise), levels),
      mechanism=f'{counts.size} threshold queries from a tree of {levels} '
      f'levels with {noise.name} noise', seeded=seed is not None,
      error_kind='largest error of a count', error_bound=lambda beta: (
          _noise.sum_error(noise, levels, counts.size, beta) + 0.5 * levels))


def num_levels(num_values: int) -> int:
  """Levels of the tree: how many noisy counts a record is in, at most."""
  return _checks.integer('num_values', num_values, 1).bit_length()


def threshold_draws(counts: np.ndarray, noise: noise_lib.Noise, rng: Any,
                    runs: int) -> np.ndarray:
  """`runs` independent answers to all threshold queries.

  Args:
    counts: Shape (k,), how many records have each value.
    noise: In units of one record.
    rng: A generator.
    runs: How many.

  Returns:
    Shape (runs, k), int64.
  """
  size = counts.size
  upto = np.arange(1, size + 1)
  running = np.append(0, np.cumsum(counts))
  answer = np.zeros((runs, size), np.int64)
  for level in range(num_levels(size)):
    # The prefix of length c is made of one node for each bit of c.
    node = upto >> level
    used = np.flatnonzero(node & 1)
    last = np.unique(node[used])
    exact = running[last << level] - running[(last - 1) << level]
    noisy = exact + _noise.on_lattice(
        noise.sample(rng, (runs, last.size)), 1.0)
    answer[:, used] += noisy[:, np.searchsorted(last, node[used])]
  return answer
