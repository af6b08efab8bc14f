"""Which strategy is worth its price: the one of least total error at one epsilon."""

from __future__ import annotations

import math
from typing import Any
from typing import Callable
from typing import Iterable
from typing import Iterator
from typing import List
from typing import Protocol
from typing import Tuple
from typing import TypeVar

from tfcactus.correlated.workload import PREFIX_SUMS
from tfcactus.correlated.workload import Workload

_MOST = 512
"""Bands: beyond, solving takes minutes, and as many vectors are kept."""

_FARTHEST = 0.05
"""By which share the batches of an epoch may differ from those asked for."""


class Priced(Protocol):
  """What is read of a `PrivacyPlan`."""

  @property
  def noise(self) -> Any:
    """Of a noise multiplier."""

  @property
  def correlation(self) -> Any:
    """A `Strategy`."""

  @property
  def steps(self) -> int:
    """Steps planned."""


_Plan = TypeVar('_Plan', bound=Priced)


def total_error(plan: Priced, workload: Workload = PREFIX_SUMS) -> float:
  """What noise adds to the weights, at a clip norm and a learning rate of one.

  The root mean square over steps of the standard deviation of a coordinate, of sums.
  """
  return plan.noise.noise_multiplier * plan.correlation.error(plan.steps, workload)


def numbers_of_bands(num_batches: float) -> Iterator[int]:
  """Numbers of bands to try, ascending, each some 1.3 to 1.8 times the one before.

  Each of them has a multiple close to the batches of an epoch; the last is about that
  number itself, of which each example takes part at one place in each epoch, or 512.

  Args:
    num_batches: Batches of an epoch asked for, not rounded.
  """
  whole = min(max(round(num_batches), 1), _MOST)

  def off(bands: int) -> float:
    """By how much the batches of an epoch would differ."""
    return abs(bands * max(round(num_batches / bands), 1) - num_batches)

  bands = 1
  while bands < whole:
    yield bands
    # Those that divide it best; of equally good ones the smallest.
    nearby = range(max(bands + 1, math.ceil(1.3 * bands)),
                   min(max(bands + 1, math.floor(1.8 * bands)), whole) + 1)
    bands = min(nearby, key=off, default=whole)
    if off(bands) > max(_FARTHEST * num_batches, 0.5):
      bands = whole
  if off(whole) <= max(_FARTHEST * num_batches, 0.5):
    yield whole


def least_error(numbers: Iterable[int], plan_of: Callable[[int], _Plan],
                error_of: Callable[[_Plan], float] = total_error
               ) -> Tuple[_Plan, List[_Plan]]:
  """The plan of least total error, and all that were looked at.

  The error falls in the number of bands and then rises: three worse ones end it.

  Args:
    numbers: Of bands, ascending, the first of them one.
    plan_of: Returns the plan of a number of bands, at one epsilon.
    error_of: What is to be least; `total_error` by default.
  """
  seen: List[_Plan] = []
  best, least, worse = None, math.inf, 0
  for bands in numbers:
    seen.append(plan_of(bands))
    error = error_of(seen[-1])
    if error < least:
      best, least, worse = seen[-1], error, 0
    else:
      worse += 1
    if worse == 3:
      break
  assert best is not None, 'One band is always tried.'
  return best, seen
