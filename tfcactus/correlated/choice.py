"""Choice of a strategy: the number of bands of least total error at one epsilon."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import math
from typing import Any, Callable, Protocol, TypeVar

from tfcactus.correlated.workload import PREFIX_SUMS, Workload

_MOST = 512
"""Most bands: more take minutes to solve, and as many vectors to keep."""

_FARTHEST = 0.05
"""Largest relative change of the number of batches in an epoch."""


class Priced(Protocol):
  """Protocol of the attributes of a `PrivacyPlan` that are read here."""

  @property
  def noise(self) -> Any:
    """Noise with a `noise_multiplier`."""

  @property
  def correlation(self) -> Any:
    """The plan's `Strategy`."""

  @property
  def steps(self) -> int:
    """Number of steps planned."""


_Plan = TypeVar('_Plan', bound=Priced)


def total_error(plan: Priced, workload: Workload = PREFIX_SUMS) -> float:
  """Returns the noise in the weights at a clipping norm and learning rate of one."""
  # It is the standard deviation of one weight after a step, as root mean square over
  # the planned steps, for gradients summed over a batch.
  return plan.noise.noise_multiplier * plan.correlation.error(plan.steps, workload)


def numbers_of_bands(num_batches: float) -> Iterator[int]:
  """Yields numbers of bands to try, ascending by factors of about 1.3 to 1.8."""
  # Each has a multiple close to `num_batches`, the unrounded number of batches of an
  # epoch. With as many bands as batches of an epoch, each example takes part at one
  # fixed step of each epoch.
  whole = min(max(round(num_batches), 1), _MOST)

  def off(bands: int) -> float:
    """Returns the change of the number of batches to a multiple of `bands`."""
    return abs(bands * max(round(num_batches / bands), 1) - num_batches)

  bands = 1
  while bands < whole:
    yield bands
    # Take the number that divides best, and the smallest of equally good ones.
    nearby = range(max(bands + 1, math.ceil(1.3 * bands)),
                   min(max(bands + 1, math.floor(1.8 * bands)), whole) + 1)
    bands = min(nearby, key=off, default=whole)
    if off(bands) > max(_FARTHEST * num_batches, 0.5):
      bands = whole
  if off(whole) <= max(_FARTHEST * num_batches, 0.5):
    yield whole


def least_error(numbers: Iterable[int], plan_of: Callable[[int], _Plan],
                error_of: Callable[[_Plan], float] = total_error
               ) -> tuple[_Plan, list[_Plan]]:
  """Returns the plan of least total error, and all plans that were made."""
  # As the number of bands grows, the error first falls and then rises. The search ends
  # after three numbers of bands in a row without a smaller error. All plans that
  # `plan_of` makes have equal epsilon.
  seen: list[_Plan] = []
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
