"""Bounds as text: an upper bound is rounded up, a lower bound down.

What is read back from the text is then still a bound. Rounded to nearest, half
of all printed guarantees would claim more than was proved.
"""

from __future__ import annotations

import decimal

DIGITS = 6
"""Significant digits at most, unless asked for otherwise."""


def upper(value: float, digits: int = DIGITS) -> str:
  """The shortest text of at most `digits` digits that reads back >= `value`.

  Also right for what a bound is stated at: a guarantee at delta holds at every
  larger one.

  Args:
    value: An upper bound.
    digits: Significant digits, at least one.
  """
  return _rounded(value, digits, decimal.ROUND_CEILING)


def lower(value: float, digits: int = DIGITS) -> str:
  """The shortest text of at most `digits` digits that reads back <= `value`.

  Args:
    value: A lower bound.
    digits: Significant digits, at least one.
  """
  return _rounded(value, digits, decimal.ROUND_FLOOR)


def _rounded(value: float, digits: int, rounding: str) -> str:
  # repr reads back as the very float, so that a short one is kept as it is, and
  # what is rounded in decimals stays on its side, since reading is monotone.
  context = decimal.Context(prec=digits, rounding=rounding)
  number = float(context.create_decimal(repr(float(value))))
  return repr(number + 0.0).removesuffix('.0')
