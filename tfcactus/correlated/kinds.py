"""The kinds of strategies, and checks of the correlation that a plan is given."""

from __future__ import annotations

from typing import Union

from tfcactus.correlated.banded import BandedToeplitz
from tfcactus.correlated.base import Correlation, Strategy
from tfcactus.correlated.blocked import BlockedBidiagonal

KINDS = (BandedToeplitz, BlockedBidiagonal)
"""Strategies that are checked when made: a subclass may draw by another matrix."""

Wanted = Union[Correlation, Strategy, None]
"""The correlation of noise: a request, a strategy, or None for independent noise."""


def check(correlation: object) -> Wanted:
  """Returns `correlation` if it is a request, a strategy or None.

  Raises:
    ValueError: if it is something else.
  """
  if correlation is None or isinstance(correlation, Correlation):
    return correlation
  if isinstance(correlation, Strategy) and type(correlation) in KINDS:
    return correlation
  raise ValueError(
      'Expected correlation to be a request such as '
      'tfcactus.correlated.BandedStrategy(bands=16), a strategy ('
      f'{", ".join(each.__name__ for each in KINDS)}) or None, got {correlation!r}; '
      "'auto' goes with PrivacyPlan.for_training(target_epsilon=...).")


def solved(correlation: object, steps: int) -> Strategy:
  """Returns the strategy that is given, or the solution of a request.

  Args:
    correlation: A request or a strategy.
    steps: Number of steps that the strategy is for.

  Raises:
    ValueError: if the strategy is not of this library, or makes noise grow.
  """
  found = check(correlation)
  if isinstance(found, Correlation):
    found = found.solve(steps)
  if not isinstance(found, Strategy) or type(found) not in KINDS:
    raise ValueError(
        f'Expected {correlation!r} to come to a strategy ('
        f'{", ".join(each.__name__ for each in KINDS)}), got {found!r}.')
  found.check_growth(steps)
  return found
