"""Several Laplace releases of one scale: a finite sum, in integer arithmetic.

The derivation, with the names h_k, W_k and the bound on the error, is in
docs/soundness_formulas.md, "Laplace releases". n is the number of releases, a the
largest loss of one: shift over scale.

Source: the moments are from Table 2 of Zhu, Dong and Wang (AISTATS 2022).
"""

from __future__ import annotations

from collections.abc import Iterable
import dataclasses
import fractions
import functools
import itertools
import math

from tfcactus._numerics import EPS
from tfcactus.accounting.bounds import Bounds, first_end, IntractableError, root

QUICK_COUNT = 128
"""Most releases where a contour is fast too. Affects speed only."""

MAX_COUNT = 300
"""Most releases where no contour is fast: the cost is cubic. Affects speed only."""

DECAYED = -40.0
"""If the atoms bring log |phi| below this, a contour is fast."""

MAX_LOSS = 2000.0
"""Largest total loss: larger ones need many digits of e^-h_0. Affects speed only."""

BITS = 110
"""Number of binary digits at first. Affects speed only."""

MAX_BITS = 1200
"""Most binary digits, since deltas are floats. Affects speed only."""

GOOD = fractions.Fraction(1, 1 << 60)
"""Relative error of delta that needs no more digits."""


@dataclasses.dataclass(frozen=True)
class LaplaceSum:
  """`count` Laplace releases of largest loss `top` each: shift over scale, rounded."""

  top: float
  count: int

  @classmethod
  def of(cls, top: float, count: int) -> LaplaceSum:
    """Returns the method; raises IntractableError if it would take too long."""
    # log of the mass of one release's two atoms, to which |phi| falls.
    atoms = math.log1p(math.exp(-top)) - math.log(2)
    decays = count * atoms < DECAYED
    if count > (QUICK_COUNT if decays else MAX_COUNT) or top * count > MAX_LOSS:
      raise IntractableError
    return cls(top, count)

  @property
  def neighbours(self) -> tuple[float, float]:
    """Floats around the exact largest loss; releases with a larger one dominate."""
    return math.nextafter(self.top, 0.0), math.nextafter(self.top, math.inf)

  def delta(self, epsilon: float) -> Bounds:
    """Returns bounds on delta at `epsilon` >= 0."""
    below, above = (float(_delta(top, self.count, epsilon)[side])
                    for side, top in enumerate(self.neighbours))
    low, high = math.nextafter(below, 0.0), above
    if above > 0:
      high = min(math.nextafter(above, 1.0), 1.0)
    return Bounds(low, min(max(below, 0.5 * (low + high)), high), high)

  def epsilon(self, delta: float) -> Bounds:
    """Returns bounds on the least epsilon >= 0 at `delta` in (0, 1)."""
    return _epsilon(self, delta)


@functools.lru_cache(maxsize=64)
def _epsilon(law: LaplaceSum, delta: float) -> Bounds:
  """Returns bounds on epsilon; cached because both directions cost the same."""
  low, high = law.neighbours
  if _delta(high, law.count, 0.0)[1] <= delta:
    return Bounds(0.0, 0.0, 0.0)
  half = 0.5 * law.top * law.count
  near = root(
      lambda x: float(_delta(law.top, law.count, x)[0]), delta, near=half, width=half)
  move = 4 * EPS * (near + law.top)
  lower = first_end(near, -move, lambda x: _delta(low, law.count, x)[0] >= delta)
  upper = first_end(near, move, lambda x: _delta(high, law.count, x)[1] <= delta)
  return Bounds(lower, min(max(near, lower), upper), upper)


def _delta(top: float, count: int, epsilon: float
           ) -> tuple[fractions.Fraction, fractions.Fraction]:
  """Returns (lower, upper) bounds on delta, for a largest loss of exactly `top`."""
  a, at = fractions.Fraction(top), fractions.Fraction(epsilon)
  if a * count <= at:
    return fractions.Fraction(0), fractions.Fraction(0)
  bits = BITS
  low, high = _rational(a, count, at, bits)
  while high - low > low * GOOD and bits < MAX_BITS:
    bits = 2 * bits if low <= 0 else bits + 64
    low, high = _rational(a, count, at, bits)
  return low, min(high, fractions.Fraction(1))


def _rational(a: fractions.Fraction, count: int, at: fractions.Fraction, bits: int
              ) -> tuple[fractions.Fraction, fractions.Fraction]:
  """Returns (lower, upper) bounds on delta at epsilon `at`, for `count` releases.

  They are computed with at least `bits` binary digits.
  """
  bits = max(bits, *((x / 2).denominator.bit_length() for x in (a, at)))
  # Integers: h_k in units of 2^-bits.
  top, largest = (int(x * (1 << bits - 1)) for x in (a, count * a - at))
  # `growth` is e^h_0 rounded down, `rising` has the sums over j of W_0. For i from
  # e^2 h_0 on, h_0^i / i! <= e^-i: what is left out is below a unit per coefficient.
  # 37 / 5 is above e^2.
  terms = max(count, math.ceil(fractions.Fraction(37 * largest, 5 << bits)), bits)
  growth = _horner(itertools.repeat(1, terms + 1), terms, largest, bits)
  rising = [0, *itertools.accumulate(math.comb(count - 1, j) for j in range(count))]
  total = _horner(itertools.chain(
      itertools.repeat(rising[-1], terms - count), reversed(rising)),
                  terms, largest, bits)
  for k, row in enumerate(_polynomials(count), 1):
    h = largest - 2 * k * top
    if h <= 0:
      break
    total += math.comb(count, k) * _horner(
        itertools.chain(row, (0,)), count - 1, h, bits)
  # e^h_0 is at most `most`, with two units more for rounding and the terms left out.
  most = fractions.Fraction(growth + 2, (1 << bits) - 2)
  error = (most * (1 << count + 1)) + (1 << count)
  low = fractions.Fraction(max(total, 0), 1 << bits + count - 1) / most
  return low, fractions.Fraction(1, growth << count - 1) * (total + error)


def _horner(coefficients: Iterable[int], degree: int, h: int, bits: int) -> int:
  """Returns the sum of coefficients h^i / i! from i = degree to 0, rounded down."""
  # `h` >= 0 and the result are in units of 2^-bits; coefficients are integers.
  total = 0
  for i, coefficient in zip(range(degree, -1, -1), coefficients):
    total = (total * h >> bits) // (i + 1) + (coefficient << bits)
  return total


@functools.lru_cache(maxsize=8)
def _polynomials(count: int) -> list[list[int]]:
  """Returns coefficients of (w + 1)^(n - k - 1) (w - 1)^(k - 1) for 0 < k < n / 2.

  n is `count`. There is a list for each k, with the coefficient of w^0 first.
  """
  rows: list[list[int]] = []
  row = [math.comb(count - 2, m) for m in range(count - 1)] if count > 2 else []
  for _ in range((count - 1) // 2):
    rows.append(row)
    # Multiply by (w - 1) / (w + 1) = 1 - 2 / (w + 1).
    quotient = [0]
    for coefficient in row[:0:-1]:
      quotient.append(coefficient - quotient[-1])
    row = [one - 2 * other for one, other in zip(row, quotient[::-1])]
  return rows
