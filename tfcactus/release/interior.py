"""Interior points of an ordered domain, and quantiles, by search in a dyadic tree.

An answer of rank error w is a j with g(j) > -w and g(j - 1) < w for the `Balance` g.
docs/soundness_releases.md has the function f = (g + w) / 2w and both methods.

Source: section 5.3 of Bun, Dwork, Rothblum and Steinke (STOC 2018), which gives no
constants; those here are accounted exactly and tested by counting.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable

import numpy as np
from scipy import optimize

from tfcactus import _checks, accounting, noise as noise_lib
from tfcactus.randomness import exponentials, SystemRandom
from tfcactus.release import _records, noise_sources
from tfcactus.release.result import Release, repeated

METHODS = ('binary-search', 'recursion')


def interior_point(records: _records.Records, *, num_values: int,
                   noise: noise_lib.ScalarNoise,
                   fraction: float = 0.5, rank_error: float | None = None,
                   method: str = 'binary-search', seed: int | None = None
                   ) -> Release:
  """Releases a value of the domain 1..num_values that splits the data.

  Other arguments are as for `quantile`.

  Args:
    records: Integers in [1, num_values]: an array or an iterable of batches. With no
      records any answer is right.
    num_values: Size of the domain, up to 2^62.

  Returns:
    Release whose value is an int. It lies between the least and the largest record if
    its rank error is below both `fraction` and 1 - `fraction` times the number of
    records. `error(beta)` bounds the rank error; for 'recursion' it is infinite where
    `rank_error` is not proved to hold with probability 1 - beta.

  Raises:
    ValueError: if an argument is out of range.
  """
  size = _checks.integer('num_values', num_values, 2)
  fraction = _checks.real('fraction', fraction)
  value = interior_draw(
      _records.vector(records), size, noise=noise, rng=noise_sources.generator(seed),
      fraction=fraction, method=method, rank_error=rank_error)
  if method == 'binary-search':
    error = lambda beta: planned_error(noise, size, fraction, beta, method)
  else:
    width = _width(noise, size, rank_error)
    error = lambda beta: (width if _recursion_failure(
        noise, size, width) <= beta else math.inf)
  return Release(
      value=int(value), event=repeated(
          accounting.noise_event(noise), num_queries(size, method)),
      mechanism=f'the {fraction:g}-quantile among {size} values by {method} '
      f'with {noise.name} noise', seeded=seed is not None,
      error_kind='rank error', error_bound=error)


def interior_draw(records: np.ndarray, size: int, *, noise: noise_lib.ScalarNoise,
                  rng: SystemRandom, method: str, fraction: float = 0.5,
                  rank_error: float | None = None) -> int:
  """Returns the answer of `interior_point`, without its event.

  `records` are integers in [1, size] of shape (n,); a domain of one value will do.
  """
  if size > 2**62:  # Indices of nodes have to fit into an int64.
    raise ValueError(f'Expected num_values <= 2^62, got num_values={size}.')
  _checks.choice('method', method, METHODS)
  noise_sources.spread_noise(noise)
  balance = Balance.of(records, fraction, size)
  if method == 'binary-search':
    if rank_error is not None:
      raise ValueError(
          "Expected rank_error with method='recursion' only, got "
          f'rank_error={rank_error!r}; binary search has no such parameter.')
    return int(binary_search_draws(balance, noise, rng, 1)[0])
  width = _width(noise, size, rank_error)
  return int(recursion_draws(balance, width, noise, rng, 1)[0])


def _width(noise: noise_lib.ScalarNoise, size: int, rank_error: float | None) -> float:
  """Returns the given rank error, or the one that is exceeded with probability 0.05."""
  if rank_error is not None:
    return _checks.positive('rank_error', rank_error)
  return planned_error(noise, size, 0.5, 0.05, 'recursion')


@dataclasses.dataclass(frozen=True)
class Balance:
  """The balance g(j) = (1 - q) #{records <= j} - q #{records > j}, a function of j."""

  records: np.ndarray  # Sorted int64 values in [1, size].
  fraction: float  # Fraction q of the quantile, in (0, 1).
  size: int  # Number of values in the domain.

  @classmethod
  def of(cls, records: np.ndarray, fraction: float, size: int) -> Balance:
    """Returns the balance of unsorted records; ValueError unless in 1, ..., size."""
    if not 0 < fraction < 1:
      raise ValueError(f'Expected fraction in (0, 1), got fraction={fraction!r}.')
    if records.dtype.kind == 'f' and records.size:
      if size > 2**53:
        raise ValueError(
            f'Expected integer records for num_values={size}, got floats, which '
            'do not hold them exactly.')
      if np.any(records != np.rint(records)):
        raise ValueError('Expected integer records, got fractions.')
    records = np.sort(records)
    if records.size and not 1 <= records[0] <= records[-1] <= size:
      raise ValueError(
          f'Expected records in [1, {size}], got others; clip them first, one by one.')
    return cls(records.astype(np.int64), fraction, size)

  @property
  def sensitivity(self) -> float:
    """The largest change of g by one added or removed record."""
    return max(self.fraction, 1 - self.fraction)

  def __call__(self, j: np.ndarray) -> np.ndarray:
    """Returns the balance g at values j, an array of any shape."""
    below = np.searchsorted(self.records, j, side='right')
    return below - self.fraction * self.records.size

  def clipped(self, j: np.ndarray, width: float) -> np.ndarray:
    """Returns g(j) + width, clipped to [0, 2 width]; the ends for j <= 0 or > size."""
    inner = np.clip(self(j) + width, 0, 2 * width)
    return np.where(j <= 0, 0.0, np.where(j > self.size, 2 * width, inner))


def num_queries(size: int, method: str) -> int:
  """Returns how many releases of the noise an interior point of `size` values costs."""
  if method == 'binary-search':
    return _halvings(size)
  # A binary search over the levels, a noisy maximum, and a comparison of two ends.
  return _halvings(size.bit_length() + 1) + 2


def planned_error(noise: noise_lib.ScalarNoise, size: int, fraction: float,
                  beta: float, method: str) -> float:
  """Returns the rank error, in records, exceeded with probability at most beta.

  The recursion's holds for every `fraction`.
  """
  scale = max(fraction, 1 - fraction)
  if method == 'binary-search':
    tail = -math.expm1(math.log1p(-_checks.delta(beta, 'beta')) / _halvings(size))
    # If |balance| >= w > 0, a comparison errs only if its noise exceeds w on one side.
    return scale * max(float(noise_sources.upper_quantile(noise, tail)), 0.0)
  excess = lambda log_width: _recursion_failure(noise, size, math.exp(log_width)) - beta
  # Brackets the log of the width at which the failure is `beta`.
  low = high = math.log(10 * noise.std)
  while excess(high) > 0:
    high += 1.0
  while excess(low) <= 0:
    low -= 1.0
  # Moved up by more than the tolerance of the root.
  return math.exp(optimize.brentq(excess, low, high, xtol=1e-9) + 1e-8)


def _recursion_failure(noise: noise_lib.ScalarNoise, size: int, width: float) -> float:
  """Returns an upper bound on P(rank error of the recursion > `width`)."""
  # A comparison of levels or of the ends of a node errs only if its noise, at
  # sensitivity one, exceeds width/5. The noisy maximum errs only if the noise of
  # another node exceeds that of the best node by 2 width/5, both at sensitivity two.
  above = lambda z: float(noise.cdf(-z))
  compare = (_halvings(size.bit_length() + 1) + 1) * above(0.2 * width)
  # A union bound: the best node's noise exceeds a part of the margin, or the noise of
  # one of the other nodes exceeds the rest of it.
  share = optimize.minimize_scalar(
      lambda log_split: above(0.2 * width * math.exp(log_split)) + min(
          1.0, (size + 1) * above(0.2 * width * -math.expm1(log_split))),
      bounds=(-12, -1e-6), method='bounded')
  return min(compare + share.fun, 1.0)


def _halvings(outcomes: int) -> int:
  """Returns ceil(log2(outcomes)), the comparisons that determine one outcome."""
  return (outcomes - 1).bit_length()


def _search(runs: int, low: int, high: int, halvings: int,
            ask: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
  """Returns the least j in [low, high] with `ask(j)` true, else `high`, (runs,)."""
  # Noisy answers, (runs,), may lead to another j. `ask` is asked `halvings` times.
  first = np.full(runs, low, np.int64)
  last = np.full(runs, high, np.int64)
  for _ in range(halvings):
    middle = first + (last - first) // 2
    yes = ask(middle)
    last = np.where(yes, middle, last)
    first = np.where(yes | (first == last), first, middle + 1)
    first = np.minimum(first, last)
  return last


def binary_search_draws(balance: Balance, noise: noise_lib.ScalarNoise,
                        rng: SystemRandom, runs: int) -> np.ndarray:
  """Returns the answers of `runs` independent binary searches, shape (runs,)."""
  scale = balance.sensitivity
  return _search(
      runs, 1, balance.size, _halvings(balance.size),
      lambda j: noise_sources.noisy(balance(j), scale, noise, rng) > 0)


def recursion_draws(balance: Balance, width: float, noise: noise_lib.ScalarNoise,
                    rng: SystemRandom, runs: int) -> np.ndarray:
  """Returns independent answers of Theorem 25 at rank error `width`, shape (runs,)."""
  levels = balance.size.bit_length()  # Below the root of a tree of size + 1 leaves.
  nodes = [_nodes(balance, width, level) for level in range(levels + 1)]
  largest = np.array([np.max(value) for _, value in nodes])
  # Compares f's largest growth over a node with 3/10, between 1/5 and 2/5 of the
  # theorem. Values here are 2 width times f.
  found = _search(
      runs, 0, levels, _halvings(levels + 1),
      lambda level: noise_sources.noisy(largest[level], 1.0, noise, rng) > 0.6 * width)
  answer = np.empty(runs, np.int64)
  for level in np.unique(found).tolist():
    here = np.flatnonzero(found == level)  # The runs that found this level.
    places, values = nodes[level]
    node = _noisy_maximum(places, values, balance.size, level, noise, rng, here.size)
    first = (node << level) + 1
    last = np.minimum(first + (1 << level) - 1, balance.size + 1)
    # If f(last) < 1, `last` is an answer. If f(last) > 4/5, then f(first) > 0 and
    # `first` is one. The threshold 9/10 leaves 1/10 for the noise on either side.
    end = noise_sources.noisy(balance.clipped(last, width), 1.0, noise, rng)
    answer[here] = np.where(end < 1.8 * width, last, first)
  return np.clip(answer, 1, balance.size)


def _nodes(balance: Balance, width: float, level: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the nodes over which f may grow, and 2 width times f's growth over each."""
  # `balance.clipped(j, width)` is 2 width f(j). Node i of a level covers the increments
  # i 2^level + 1 to (i + 1) 2^level of f, which grows at records and the domain's ends.
  places = np.unique(np.concatenate([
      [1], balance.records, [balance.size + 1]]) - 1 >> level)
  last = np.minimum((places + 1) << level, balance.size + 1)
  return places, (balance.clipped(last, width) -
                  balance.clipped(places << level, width))


def _noisy_maximum(places: np.ndarray, value: np.ndarray, size: int, level: int,
                   noise: noise_lib.ScalarNoise, rng: SystemRandom, runs: int
                   ) -> np.ndarray:
  """Returns the node of a level with the largest noisy value, shape (runs,)."""
  # `places` and `value` are those of `_nodes`; the other nodes have value zero. An
  # added record x changes 2 width f by 0 at j = 0, by -q below x, by 1 - q from x on,
  # and by 0 at j = size + 1 (clipping only reduces this). The values of all nodes
  # change by at most q + 1 + (1 - q) = 2 in total, hence the sensitivity two. The
  # largest noise of all nodes of value zero is drawn at once, from the distribution of
  # their maximum.
  noisy = noise_sources.noisy(
      np.broadcast_to(value, (runs, value.size)), 2.0, noise, rng)
  best = np.argmax(noisy, axis=1)
  chosen = places[best]
  total = (size >> level) + 1
  empty = total - places.size
  if empty > 0:
    # Log of P(Z < top) of one draw Z: its exponential to the power `empty` is uniform.
    log_below = -exponentials(rng, runs) / empty
    top = 2 * np.where(
        log_below < -0.6, noise.quantile(np.exp(np.minimum(log_below, -0.5))),
        noise_sources.upper_quantile(noise, -np.expm1(np.maximum(log_below, -0.7))))
    wins = top > noisy[np.arange(runs), best]
    # A random node not among `places`, of which places[i] - i are below places[i].
    rank = rng.integers(empty, runs)
    missing = rank + np.searchsorted(
        places - np.arange(places.size), rank, side='right')
    chosen = np.where(wins, missing, chosen)
  return chosen


def quantile(records: _records.Records, fraction: float, *, low: float, high: float,
             noise: noise_lib.ScalarNoise, resolution: float | None = None,
             rank_error: float | None = None, method: str = 'binary-search',
             seed: int | None = None) -> Release:
  """Releases a value whose rank is near a fraction of the number of records.

  Args:
    records: Numbers, one per record: an array or an iterable of batches.
    fraction: In (0, 1); 0.5 is the median.
    low: Least value of the domain: public, as are `high` and `resolution`. Smaller
      records count as `low`.
    high: Largest value of the domain. Larger records count as `high`.
    noise: Log-concave closed-form noise, in units of one record.
    resolution: Spacing of the answers; None is a millionth of the range. It sets the
      number of queries, which never depends on the records or their type: pass 1 for a
      domain of whole numbers. Answers are ints if `low` and `resolution` are whole.
    rank_error: For 'recursion', the error w that it is built for; None for the least
      that is proved to be exceeded with probability 0.05 at most. None for
      'binary-search'.
    method: 'binary-search', or 'recursion', which asks fewer queries in a large domain
      with a larger margin each: below 2^62 values it costs more for equal error.
    seed: For repeatable experiments; None draws from the system.

  Returns:
    Release; with probability 1 - beta at most `error(beta)` records, each rounded to an
    answer, lie between the answer and the quantile; as for `interior_point`.

  Raises:
    ValueError: if an argument is out of range.
  """
  grid = _Grid.of(low, high, resolution)
  # One type for all records: the index of each depends on no other record's type.
  x = np.clip(_records.vector(records).astype(np.float64), grid.low, grid.high)
  index = np.rint((x - grid.low) / grid.spacing)
  index = np.minimum(index.astype(np.int64), grid.size - 1) + 1
  release = interior_point(
      index, num_values=grid.size, fraction=fraction, noise=noise,
      rank_error=rank_error, method=method, seed=seed)
  return dataclasses.replace(release, value=grid.value(release.value - 1))


def num_values(*, low: float, high: float, resolution: float | None = None) -> int:
  """Returns the number of possible answers of `quantile`, which determines its cost."""
  return _Grid.of(low, high, resolution).size


@dataclasses.dataclass(frozen=True)
class _Grid:
  """`size` public answers low + i spacing <= high; `whole`: all are whole numbers."""

  low: float
  high: float
  spacing: float
  size: int
  whole: bool

  @classmethod
  def of(cls, low: float, high: float, resolution: float | None) -> _Grid:
    """Returns the grid of `quantile`; raises ValueError if an argument is wrong."""
    low, high = _checks.real('low', low), _checks.real('high', high)
    span = high - low
    if not 0 < span < math.inf:
      raise ValueError(
          f'Expected low < high, a float64 apart, got low={low!r} and high={high!r}.')
    spacing = (span / 1e6 if resolution is None else
               _checks.positive('resolution', resolution))
    if not 1 <= span / spacing <= 2.0**61:
      raise ValueError(
          'Expected resolution from (high - low) / 2^61 to high - low, got '
          f'resolution={spacing!r} for a range of {span!r}.')
    whole = resolution is not None and low.is_integer() and spacing.is_integer()
    # 1e-9: the quotient may be rounded to just below a whole number.
    return cls(low, high, spacing, math.floor(span / spacing + 1e-9) + 1, whole)

  def value(self, index: int) -> Any:
    """Returns the answer of an index in [0, size), an int if the grid is whole."""
    if self.whole:
      return int(self.low) + int(self.spacing) * int(index)
    return min(self.low + self.spacing * int(index), self.high)
