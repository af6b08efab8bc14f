"""Which strategies there are, and what a plan may be given."""

from __future__ import annotations

from typing import Union

from tfcactus.correlated.banded import BandedToeplitz
from tfcactus.correlated.base import Correlation
from tfcactus.correlated.base import Strategy
from tfcactus.correlated.blocked import BlockedBidiagonal

KINDS = (BandedToeplitz, BlockedBidiagonal)
"""Those that are checked when they are made: a subclass may draw by another matrix."""

Wanted = Union[Correlation, Strategy, None]
"""How noise is to be correlated: a request, a strategy, or not at all."""


def check(correlation: object) -> Wanted:
  """Returns a correlation that is one, or None.

  Raises:
    ValueError: if it is neither.
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
  """The strategy that is given, or that a request comes to.

  Args:
    correlation: As for `check`, and not None.
    steps: That it is for.

  Raises:
    ValueError: if it is none of this library, or noise grows by it.
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
