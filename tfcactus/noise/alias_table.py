"""Exact draws of whole numbers with given probabilities, by an alias table."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tfcactus.randomness import KeyStream

COLUMNS = 2**16
"""Columns of a table, and so the largest number of probabilities."""

BITS = 128
"""Probabilities are multiples of 2^-`BITS`."""

_FINE = 64  # Bits of a limit that `Table.fine` holds.


class Table(NamedTuple):
  """An alias table of `COLUMNS` equally likely columns (Walker 1977, Vose 1991).

  A uniform number u below 2^112 takes number j of column j if u < 2^64 `coarse` +
  `fine`, else the column's `other` number.

  Attributes:
    packed: uint64, shape (columns,): `coarse` in the leading 48 bits, `other` in the
      last 16.
    fine: uint64, shape (columns,).
  """

  packed: np.ndarray
  fine: np.ndarray


def table(masses: list[int]) -> Table:
  """Returns the table of 0, 1, ... with these masses, which it keeps exactly.

  Masses are in units of 2^-128 and add up to one; there are at most `COLUMNS`.
  """
  left = masses + [0] * (COLUMNS - len(masses))
  column = 2**BITS // COLUMNS
  limits, others = [column] * COLUMNS, list(range(COLUMNS))
  small = [j for j, mass in enumerate(left) if mass < column]
  large = [j for j, mass in enumerate(left) if mass >= column]
  # Vose's method: a large number fills up the column of a small one.
  while small:
    j = small.pop()
    limits[j], others[j] = left[j], large[-1]
    left[large[-1]] -= column - left[j]
    if left[large[-1]] < column:
      small.append(large.pop())
  # Numbers that are left over have exactly the mass of a column, and are its `other`
  # too: their limit may be cut to one below a full column.
  return Table(
      np.array([min(limit >> _FINE, 2**48 - 1) << 16 | other
                for limit, other in zip(limits, others)], np.uint64),
      np.array([2**64 - 1 if limit == column else limit & (2**64 - 1)
                for limit in limits], np.uint64))


def draw(stream: KeyStream, count: int, alias: Table) -> np.ndarray:
  """Returns `count` independent draws of the table's numbers, int64, shape (count,)."""
  packed, fine = alias
  low = np.uint64(COLUMNS - 1)
  # A word is the leading 48 bits of u, then the column. The result is
  # np.where(take_other, other, column), computed in place to save time.
  words = stream.words(count)
  column = words & low
  # All indices are valid: mode 'clip' only makes take() skip its check.
  chosen = packed.take(column.view(np.int64), mode='clip')
  take_other = words >= chosen
  # Now the last 16 bits of `chosen` are other ^ column. The leading 48 are zero where
  # those of u equal `coarse`; there 64 further bits of u decide.
  chosen ^= words
  ties = np.flatnonzero(chosen <= low)
  if ties.size:
    take_other[ties] = stream.words(ties.size) >= fine[column[ties].view(np.int64)]
  chosen &= low
  chosen *= take_other
  column ^= chosen  # column ^ (other ^ column) is other.
  return column.view(np.int64)
