"""Exact draws of whole numbers by a discrete Gaussian law of one fixed scale.

One alias table has the discrete Gaussian of scale s = 2^11, P(k) ~ e^(-k^2 / 2 s^2),
cut at 16 s. With m = 2^10, three of its draws make z = m^2 x2 + m x1 + x0; a fourth
makes the noise 2^10 times finer. docs/soundness_whole_numbers.md proves that a whole
number plus z is within `DISTANCE`, in total variation, of a random rounding of
that number plus Gaussian noise of standard deviation `SCALE`: z reveals no more.
"""

from __future__ import annotations

import functools

import numpy as np

from tfcactus.noise import alias_table
from tfcactus.randomness import KeyStream, SystemRandom

_BITS = 11
"""Binary logarithm of the table's scale."""

_SHIFT = 10
"""Binary logarithm of m."""

VARIANCE = 2**(2 * _BITS) * (2**(4 * _SHIFT) + 2**(2 * _SHIFT) + 1)
"""Variance parameter of the draws' discrete Gaussian law, 2^62 + 2^42 + 2^22."""

SCALE = 2**31 + 2**10
"""Standard deviation of the continuous Gaussian that is accounted for. `VARIANCE` -
`SCALE`^2 = 3 2^20 is the variance of the rounding that makes its draws whole."""

FINE_VARIANCE = VARIANCE + 2**(2 * _BITS + 6 * _SHIFT)
"""Variance parameter of the law of `fine_draw`, 2^82 + 2^62 + 2^42 + 2^22."""

FINE_SCALE = 2**41 + 2**20
"""Standard deviation of the continuous Gaussian that is accounted for in place of
`fine_draw`. `FINE_VARIANCE` - `FINE_SCALE`^2 = 3 2^40 + 2^22 is the variance of the
rounding that makes its draws whole."""

DISTANCE = 1.1e-33
"""Bound on the total variation distance of one draw: 4 2^-112 for four draws of the
table, 3 1.03e-34 for three sums of discrete Gaussians, and less than 1e-999 for the
rounding of the continuous draw."""

LARGEST = 2**15 * (2**(2 * _SHIFT) + 2**_SHIFT + 1)
"""Bound on the absolute value of a draw of `draw`, about 16 `SCALE`."""

_PRECISION = 320
"""Bits after the binary point in which weights e^(-k^2 / 2 s^2) are computed."""


def probabilities() -> list[int]:
  """Returns the probabilities of -2^15, ..., 2^15 - 1 as multiples of 2^-128.

  They add up to one. That of -2^15 is zero, so that the law is symmetric.
  """
  half = alias_table.COLUMNS // 2
  weights = _weights(half)
  total = weights[0] + 2 * sum(weights[1:])
  # Rounded down; zero gets the rest, at most 2^16 units.
  one_side = [(weight << alias_table.BITS) // total for weight in weights]
  one_side[0] = 2**alias_table.BITS - 2 * sum(one_side[1:])
  return [0, *one_side[:0:-1], *one_side]


def _weights(count: int) -> list[int]:
  """Returns e^(-k^2 / 2 s^2) for 0 <= k < count, in units of 2^-`_PRECISION`."""
  # r(0) = e^(-1 / 2 s^2) by its series; w(k + 1) = w(k) r(k), r(k + 1) = r(k) r(0)^2.
  # Rounding down, r(0) and its square are off by some ten units, r(k) by less than
  # 8 k, and w(k) by less than 8 k^2 w(k) < 2^25 units.
  term = total = 1 << _PRECISION
  for number in range(1, 40):
    term = -(term >> (2 * _BITS + 1)) // number
    total += term
  ratio, square = total, total * total >> _PRECISION
  weights = [1 << _PRECISION]
  for _ in range(count - 1):
    weights.append(weights[-1] * ratio >> _PRECISION)
    ratio = ratio * square >> _PRECISION
  return weights


@functools.cache
def table() -> alias_table.Table:
  """Returns the alias table of `probabilities`, which counts numbers from -2^15."""
  return alias_table.table(probabilities())


def draw(rng: SystemRandom, count: int) -> np.ndarray:
  """Returns `count` independent draws z of scale `SCALE`, int64."""
  return rng.filled(count, np.int64, _draw)


def fine_draw(rng: SystemRandom, count: int) -> np.ndarray:
  """Returns `count` independent draws of scale `FINE_SCALE`, int64."""
  return rng.filled(count, np.int64, functools.partial(_draw, terms=4))


def _draw(stream: KeyStream, count: int, terms: int = 3) -> np.ndarray:
  """Returns `count` draws m^2 x2 + m x1 + x0, or m^3 x3 + ... + x0 for 4 `terms`."""
  z = table_draws(stream, count)
  for _ in range(terms - 1):
    z <<= _SHIFT
    z += table_draws(stream, count)
  return z


def table_draws(stream: KeyStream, count: int) -> np.ndarray:
  """Returns `count` independent draws of the table's law, int64."""
  draws = alias_table.draw(stream, count, table())
  draws -= alias_table.COLUMNS // 2
  return draws
