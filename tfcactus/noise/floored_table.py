"""Exact draws of whole numbers: the noise of a scalar table, rounded down.

A cell of the table is 2^b whole numbers wide (`cell_bits`), and its ends are whole. The
density of the noise is constant on a cell, so that rounding it down gives each whole
number of the cell the same probability. Proof: docs/soundness_releases.md.
"""

from __future__ import annotations

import decimal
import functools
import math

import numpy as np

from tfcactus.noise import alias_table
from tfcactus.noise.scalar_table import ScalarTable
from tfcactus.randomness import KeyStream, SystemRandom

DISTANCE = 2.0**-111
"""Bound on the total variation distance of one draw: 2^-112 for at most 2^16
probabilities, and 2^-113 for the cells that are cut off."""

_LOG_CUT = -79.0
"""Cells are cut off whose log mass together is below it; e^-79 is below 2^-113."""

_REACH = 34
"""Binary logarithm of a bound on the whole numbers in all cells."""

_LARGEST_BINS = 2**16

_DIGITS = 60
"""Decimal digits in which probabilities are computed."""


def cell_bits(table: ScalarTable) -> int:
  """Returns the binary logarithm of the number of whole numbers in a cell, at least 18.

  Raises ValueError if there are more than 2^16 cells to draw, or per sensitivity.
  """
  cells = 2 * (table.log_density.size + _tail_cells(table))
  if cells > alias_table.COLUMNS or table.bins > _LARGEST_BINS:
    raise ValueError(
        "Expected with arithmetic='integer' a table of at most 2^16 cells, and 2^16 "
        f'per sensitivity, got {cells:,} (down to a mass of 2^-113) and '
        f"{table.bins:,} in {table!r}; take fewer bins, or arithmetic='float'.")
  return _REACH - (cells - 1).bit_length()


def _tail_cells(table: ScalarTable) -> int:
  """Returns the number of cells on each side, beyond the last density, to draw from."""
  missing = _LOG_CUT - float(table._log_cell_mass[-1])
  return max(math.ceil(missing / table.log_tail_ratio), 0)


def probabilities(table: ScalarTable) -> list[int]:
  """Returns the probabilities of cells, left to right, as multiples of 2^-128.

  They add up to one. Without `edge_at_zero` there is an odd number of cells, and the
  middle probability is that of cell zero.
  """
  with decimal.localcontext(decimal.Context(prec=_DIGITS)):
    half = [decimal.Decimal(log).exp() for log in table.log_density.tolist()]
    ratio = decimal.Decimal(table.log_tail_ratio).exp()
    for _ in range(_tail_cells(table)):
      half.append(half[-1] * ratio)
    total = 2 * sum(half) - (0 if table.edge_at_zero else half[0])
    side = [int(density * 2**alias_table.BITS / total) for density in half]
  masses = side[:0:-1] + side[:1] * (1 + table.edge_at_zero) + side[1:]
  # Rounded down; a cell in the middle gets the rest, at most 2^16 units.
  masses[len(masses) // 2] += 2**alias_table.BITS - sum(masses)
  return masses


@functools.lru_cache(maxsize=8)
def _alias(table: ScalarTable) -> tuple[alias_table.Table, int]:
  """Returns the alias table of `probabilities`, and the number of cells below zero."""
  masses = probabilities(table)
  return alias_table.table(masses), len(masses) // 2


def draw(table: ScalarTable, rng: SystemRandom, count: int) -> np.ndarray:
  """Returns `count` independent draws, int64, in 2^-b cells; at most 2^33 in size."""
  bits = cell_bits(table)
  alias, below = _alias(table)

  def draw_part(stream: KeyStream, size: int) -> np.ndarray:
    """Returns `size` draws: a cell by its mass, then a whole number in the cell."""
    draws = alias_table.draw(stream, size, alias)
    draws -= below
    draws <<= bits
    draws += (stream.words(size) >> np.uint64(64 - bits)).astype(np.int64)
    if not table.edge_at_zero:  # Cell zero has zero in its middle.
      draws -= 2**(bits - 1)
    return draws

  return rng.filled(count, np.int64, draw_part)
