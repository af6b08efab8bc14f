"""Workloads, whose error strategies minimise, and the best number of bands for one.

A workload is a linear map from releases to weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import math
from typing import Any, Callable, TypeVar

import numpy as np

from tfcactus import _checks

_MOST = 512
"""Most bands: more take minutes to solve, and as many vectors to keep."""

_FARTHEST = 0.05
"""Largest relative change of the number of batches in an epoch to a multiple of bands;
a change of half a batch is always allowed."""

_Plan = TypeVar('_Plan')


@dataclasses.dataclass(frozen=True)
class Workload:
  """Weights after each step, as linear functions of the released sums.

  The default, prefix sums, is SGD at a constant learning rate.

  Attributes:
    learning_rates: One per step, or () for a constant one. Only their ratios matter.
    momentum: In [0, 1): a step moves the weights by its rate times m, where m =
      momentum * m + the released sum of the step.

  Raises:
    ValueError: if a number is out of range.
  """

  learning_rates: Sequence[float] = ()
  momentum: float = 0.0

  def __post_init__(self) -> None:
    rates = () if np.size(self.learning_rates) == 0 else tuple(
        _checks.vector('learning_rates', self.learning_rates).tolist())
    if rates and not 0 <= min(rates) <= max(rates) != 0:
      raise ValueError(
          'Expected learning_rates of at least zero, and not all of them zero, got '
          f'{self.learning_rates!r}.')
    object.__setattr__(self, 'learning_rates', rates)
    momentum = _checks.non_negative('momentum', self.momentum)
    if momentum >= 1:
      raise ValueError(f'Expected momentum below 1, got momentum={self.momentum!r}.')
    object.__setattr__(self, 'momentum', momentum)

  def rates(self, steps: int) -> np.ndarray:
    """Returns the learning rates of `steps` steps, with a root mean square of one.

    Raises ValueError if the workload has another number of steps.
    """
    if not self.learning_rates:
      return np.ones(steps)
    if len(self.learning_rates) != steps:
      raise ValueError(
          f'Expected one of learning_rates for each of {steps} steps, got '
          f'{len(self.learning_rates)}.')
    # Scaled exactly, so that no square overflows or underflows.
    rates = np.ldexp(self.learning_rates, -math.frexp(max(self.learning_rates))[1])
    return rates / np.sqrt(np.mean(rates * rates))

  def moved(self, column: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Returns how far releases `column` have moved weights after each step, (n,)."""
    return np.cumsum(rates * self.with_momentum(column))

  def with_momentum(self, series: np.ndarray) -> np.ndarray:
    """Returns the m of each step (see `momentum`), given each release, shape (n,)."""
    if not self.momentum:
      return series
    return quotient(series, np.array([1.0, -self.momentum]))


PREFIX_SUMS = Workload()
"""The workload of plain SGD at a constant rate."""


def quotient(series: np.ndarray, divisor: np.ndarray) -> np.ndarray:
  """Returns the power series `series` / `divisor`, from order zero, (len(series),)."""
  # scipy.signal takes long to import.
  from scipy import signal  # pylint: disable=import-outside-toplevel
  return signal.lfilter([1.0], divisor, series)


def total_error(plan: Any, workload: Workload = PREFIX_SUMS) -> float:
  """Returns `Strategy.error` of a `PrivacyPlan`, times its noise multiplier."""
  return plan.noise.noise_multiplier * plan.correlation.error(plan.steps, workload)


def numbers_of_bands(num_batches: float) -> Iterator[int]:
  """Yields numbers of bands to try, from one on.

  `num_batches` is the unrounded number of batches of an epoch. Numbers fit if they have
  a multiple close to it. Each is 1.3 to 1.8 times the last one if such a number fits,
  else it is the next one that fits. The last is close to `num_batches`, or 512.
  """
  # With as many bands as batches of an epoch, each example takes part at one fixed step
  # of each epoch.
  whole = min(max(round(num_batches), 1), _MOST)

  def off(bands: int) -> float:
    """Returns how far `num_batches` is from the closest multiple of `bands`."""
    return abs(bands * max(round(num_batches / bands), 1) - num_batches)

  most_off, bands = max(_FARTHEST * num_batches, 0.5), 1
  yield bands
  fitting = [each for each in range(2, whole + 1) if off(each) <= most_off]
  while fitting := [each for each in fitting if each >= 1.3 * bands]:
    near = [each for each in fitting if each <= 1.8 * bands]
    # Take the number that divides best, and the smallest of equally good ones; if none
    # is near, the next one.
    bands = min(near, key=off) if near else fitting[0]
    if bands < whole < 1.3 * bands and whole in fitting:
      bands = whole  # Not both, as they are nearly alike.
    yield bands


def least_error(numbers: Iterable[int], plan_of: Callable[[int], _Plan],
                error_of: Callable[[_Plan], float] = total_error
               ) -> tuple[_Plan, list[_Plan]]:
  """Returns the plan of least error, and all plans made, of increasing bands.

  `plan_of` makes the plan of a number of bands, all of them at the same epsilon.
  """
  # As the number of bands grows, the error first falls and then rises. The search ends
  # after three numbers of bands in a row without a smaller error.
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
