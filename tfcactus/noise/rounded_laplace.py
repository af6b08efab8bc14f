"""Exact draws of whole numbers: a Laplace variable of one fixed scale, rounded.

Let X have the Laplace law of scale b = `SCALE`. The whole part G of 2 |X| is geometric:
P(G >= n) = q^n with q = e^(-1 / 2b). |X| rounds to (G + 1) // 2. Binary digits of G
are independent: digit j is one with probability q^(2^j) / (1 + q^(2^j)).
Proof: docs/soundness_releases.md.
"""

from __future__ import annotations

import functools

import numpy as np

from tfcactus.randomness import KeyStream, SystemRandom

_BITS = 31

SCALE = 2**_BITS
"""Scale of the Laplace law that is rounded."""

_DIGITS = _BITS + 8
"""Digits of G that are drawn. G is larger with probability e^-128."""

DISTANCE = 1.2e-37
"""Bound on the total variation distance of one draw: 2^-128 for each of 39 digits, and
e^-128 for larger numbers."""

LARGEST = 2**(_DIGITS - 1)
"""Bound on the absolute value of a draw."""

_PRECISION = 400
"""Bits after the binary point in which q^(-2^j) is computed."""


@functools.cache
def probabilities() -> list[int]:
  """Returns the probabilities that digits of G are one, as multiples of 2^-128.

  They are rounded down.
  """
  one = 1 << _PRECISION
  # 1 / q = e^(2^-(_BITS + 1)) by its series, whose 16th term is below 2^-500.
  term = power = one
  for number in range(1, 17):
    term = (term >> (_BITS + 1)) // number
    power += term
  chances = []
  for _ in range(_DIGITS):  # The relative error of the power doubles with each digit.
    chances.append((one << 128) // (one + power))
    power = power * power >> _PRECISION
  return chances


def draw(rng: SystemRandom, count: int) -> np.ndarray:
  """Returns `count` independent draws of a rounded Laplace of scale `SCALE`, int64."""
  return rng.filled(count, np.int64, _draw)


def _draw(stream: KeyStream, count: int) -> np.ndarray:
  """Returns `count` independent rounded Laplace draws from one key stream, int64."""
  number = np.zeros(count, np.int64)  # First G, then |X| rounded.
  for digit, chance in enumerate(probabilities()):
    high, low = np.uint64(chance >> 64), np.uint64(chance & (2**64 - 1))
    words = stream.words(count)
    one = words < high
    ties = np.flatnonzero(words == high)
    if ties.size:  # 64 further bits decide.
      one[ties] = stream.words(ties.size) < low
    number += one.astype(np.int64) << digit
  number += 1
  number >>= 1
  return np.where(stream.words(count) >> np.uint64(63), number, -number)
