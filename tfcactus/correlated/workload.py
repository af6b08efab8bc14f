"""Workloads: linear maps from releases to weights, whose error strategies minimise."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

import numpy as np

from tfcactus import _checks


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
    if np.ndim(self.learning_rates) != 1:
      raise ValueError(
          'Expected learning_rates of each step, or () for a constant one, got '
          f'{self.learning_rates!r}.')
    if len(self.learning_rates):
      rates = _checks.vector('learning_rates', self.learning_rates)
      if not (np.all(rates >= 0) and rates.max() > 0):
        raise ValueError(
            'Expected learning_rates of at least zero, and not all of them zero, got '
            f'{self.learning_rates!r}.')
      object.__setattr__(self, 'learning_rates', tuple(rates.tolist()))
    else:
      object.__setattr__(self, 'learning_rates', ())
    momentum = _checks.non_negative('momentum', self.momentum)
    if momentum >= 1:
      raise ValueError(f'Expected momentum below 1, got momentum={self.momentum!r}.')
    object.__setattr__(self, 'momentum', momentum)

  def rates(self, steps: int) -> np.ndarray:
    """Returns the learning rates of `steps` steps, with a root mean square of one.

    Raises:
      ValueError: if the workload has another number of steps.
    """
    if not self.learning_rates:
      return np.ones(steps)
    if len(self.learning_rates) != steps:
      raise ValueError(
          f'Expected one of learning_rates for each of {steps} steps, got '
          f'{len(self.learning_rates)}.')
    rates = np.array(self.learning_rates)
    return rates / np.sqrt(np.mean(rates * rates))

  def moved(self, column: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Returns the displacement of the weights after each step, shape (n,).

    Args:
      column: The release of each step, shape (n,).
      rates: Learning rates of these steps, shape (n,).
    """
    return np.cumsum(rates * self.with_momentum(column))

  def with_momentum(self, series: np.ndarray) -> np.ndarray:
    """Returns the m of each step (see `momentum`) for one release per step, (n,)."""
    if not self.momentum:
      return series
    return quotient(series, np.array([1.0, -self.momentum]))


PREFIX_SUMS = Workload()
"""The workload of plain SGD at a constant rate."""


def quotient(series: np.ndarray, divisor: np.ndarray) -> np.ndarray:
  """Returns the power series `series` / `divisor`, from order zero, to len(series)."""
  # scipy.signal takes long to import.
  from scipy import signal  # pylint: disable=import-outside-toplevel
  return signal.lfilter([1.0], divisor, series)
