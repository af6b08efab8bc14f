"""Private quantiles of real numbers: interior points on a public grid."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from tfcactus import _checks, noise as noise_lib
from tfcactus.release import _records, interior
from tfcactus.release.result import Release

_DEFAULT_ANSWERS = 1e6
_MOST_ANSWERS = 2.0**61


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
      that is exceeded with probability 0.05. Not used by 'binary-search'.
    method: 'binary-search', or 'recursion', which asks fewer queries in a large domain
      with a larger margin each: below 2^62 values it costs more for equal error.
    seed: For repeatable experiments; None draws from the system.

  Returns:
    Release; with probability 1 - beta at most `error(beta)` records lie between the
    answer and the quantile.

  Raises:
    ValueError: if an argument is out of range.
  """
  grid = _Grid.of(low, high, resolution)
  # One type for all records: the index of each depends on no other record's type.
  x = np.clip(_records.vector(records).astype(np.float64), grid.low, grid.high)
  index = np.rint((x - grid.low) / grid.spacing)
  index = np.minimum(index.astype(np.int64), grid.size - 1) + 1
  release = interior.interior_point(
      index, num_values=grid.size, fraction=fraction, noise=noise,
      rank_error=rank_error, method=method, seed=seed)
  return dataclasses.replace(release, value=grid.value(release.value - 1))


def num_values(*, low: float, high: float, resolution: float | None = None
               ) -> int:
  """Returns the number of possible answers of `quantile`, which determines its cost.

  Args:
    low: As for `quantile`.
    high: As for `quantile`.
    resolution: As for `quantile`.
  """
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
          'Expected low < high, a float64 apart, got '
          f'low={low!r} and high={high!r}.')
    spacing = (span / _DEFAULT_ANSWERS if resolution is None else
               _checks.positive('resolution', resolution))
    if not 1 <= span / spacing <= _MOST_ANSWERS:
      raise ValueError(
          'Expected resolution from (high - low) / 2^61 to high - low, got '
          f'resolution={spacing!r} for a range of {span!r}.')
    whole = resolution is not None and low.is_integer() and spacing.is_integer()
    return cls(low, high, spacing, math.floor(span / spacing + 1e-9) + 1, whole)

  def value(self, index: int) -> Any:
    """Returns the answer of an index in [0, size), an int if the grid is whole."""
    if self.whole:
      return int(self.low) + int(self.spacing) * int(index)
    return self.low + self.spacing * int(index)
