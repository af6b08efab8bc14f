"""Private quantiles of real data: interior points on a public grid."""

from __future__ import annotations

import dataclasses
import math
from typing import Any
from typing import Optional

import numpy as np

from tfcactus import _checks
from tfcactus import noise as noise_lib
from tfcactus.release import _data
from tfcactus.release import interior
from tfcactus.release.result import Release


def quantile(records: Any, fraction: float, *, low: float, high: float,
             noise: noise_lib.Noise, resolution: Optional[float] = None,
             rank_error: Optional[float] = None, method: str = 'binary-search',
             seed: Optional[int] = None) -> Release:
  """Releases a value whose rank is near a fraction of the number of records.

  Args:
    records: Numbers, one per record: an array or an iterable of batches.
    fraction: In (0, 1); 0.5 is the median.
    low: Least value of the domain: public. Smaller records count as `low`.
    high: Largest value of the domain. Larger records count as `high`.
    noise: Log-concave scalar noise, in units of one record.
    resolution: Spacing of the answers; None is 1 for integers, and else a
      millionth of the range.
    rank_error: For 'recursion', the error w that it is built for; None for the
      least that is exceeded with probability 0.05. Not used by
      'binary-search'.
    method: 'binary-search', or 'recursion', which asks fewer questions of a
      large domain and needs a larger margin for each: below 2^62 values it
      costs more for the same error.
    seed: For repeatable experiments; None draws from the system.

  Returns:
    Release; its `error(beta)` bounds how many records lie between the answer
    and the quantile, with probability 1 - beta.

  Raises:
    ValueError: if an argument is out of range.
  """
  x = _data.vector(records)
  size = num_values(x, low=low, high=high, resolution=resolution)
  whole, spacing = _spacing(x, low, high, resolution)
  index = np.rint((np.clip(x, low, high) - low) / spacing)
  index = np.minimum(index.astype(np.int64), size - 1) + 1
  release = interior.interior_point(
      index, num_values=size, fraction=fraction, noise=noise,
      rank_error=rank_error, method=method, seed=seed)
  value = low + spacing * (release.value - 1)
  if whole:
    value = int(round(value))
  return dataclasses.replace(release, value=value)


def num_values(records: Any, *, low: float, high: float,
               resolution: Optional[float] = None) -> int:
  """How many answers `quantile` chooses among; it looks at the type only.

  Args:
    records: As for `quantile`.
    low: As for `quantile`.
    high: As for `quantile`.
    resolution: As for `quantile`.
  """
  _, spacing = _spacing(_data.vector(records), low, high, resolution)
  return int(math.floor((high - low) / spacing + 1e-9)) + 1


def _spacing(x: np.ndarray, low: float, high: float,
             resolution: Optional[float]) -> tuple[bool, float]:
  """Whether answers are whole numbers, and how far apart they are."""
  low, high = _checks.real('low', low), _checks.real('high', high)
  if low >= high:
    raise ValueError(f'Expected low < high, got low={low!r} and high={high!r}.')
  whole = x.dtype.kind != 'f' and low == int(low) and high == int(high)
  spacing = _checks.positive('resolution', (
      (1.0 if whole else (high - low) / 1e6) if resolution is None
      else resolution))
  return whole and spacing == int(spacing), spacing
