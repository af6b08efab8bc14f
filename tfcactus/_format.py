"""Formats bounds as text: upper bounds are rounded up, lower bounds down.

The number read back from the text is then still a bound. Rounding to nearest would
print half of all guarantees tighter than proved.
"""

from __future__ import annotations

import decimal

DIGITS = 6
"""Default limit on significant digits."""


def upper(value: float, digits: int = DIGITS) -> str:
  """Returns `value` as text, rounded up to at most `digits` >= 1 significant digits."""
  # Deltas are rounded up too: a guarantee holds at every larger delta.
  return _rounded(value, digits, decimal.ROUND_CEILING)


def lower(value: float, digits: int = DIGITS) -> str:
  """Returns `value` as text, rounded down; `digits` as for `upper`."""
  return _rounded(value, digits, decimal.ROUND_FLOOR)


def complement(beta: float) -> str:
  """Returns 1 - beta as text, rounded down; below one also for the least beta > 0."""
  return lower(min(1 - beta, 1 - 2.0**-53))


def _rounded(value: float, digits: int, rounding: str) -> str:
  """Returns `value` as text of at most `digits` digits, in a rounding of `decimal`."""
  # repr reads back as the same float, so a short number keeps its text. A larger
  # decimal never reads back as a smaller float, so the rounded one stays a bound.
  context = decimal.Context(prec=digits, rounding=rounding)
  number = float(context.create_decimal(repr(float(value))))
  return repr(number + 0.0).removesuffix('.0')  # -0.0 + 0.0 is 0.0.
