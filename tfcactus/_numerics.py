"""Accurate elementary functions that numpy lacks, and bounds on rounding errors."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

LEAST = 5e-324
"""The least float, and a bound on the rounding of products that are below 1e-308."""


def log1p(z: np.ndarray) -> np.ndarray:
  """Returns log(1 + z) of complex z, accurate near 0; -690 (log 1e-300) at -1."""
  # Finite at -1: an infinite real part would make products with complex numbers NaN.
  real, imag = z.real, z.imag
  # `square` is |1 + z|^2 - 1: its log1p keeps digits near z = 0. Near z = -1, `square`
  # is near -1 and has lost digits; there |1 + z| itself has them.
  square = real * (2 + real) + imag * imag
  size = np.where(
      square > -0.5, 0.5 * np.log1p(np.maximum(square, -0.5)),
      np.log(np.maximum(np.hypot(1 + real, imag), 1e-300)))
  return size + 1j * np.arctan2(imag, 1 + real)


def log(z: np.ndarray) -> np.ndarray:
  """Returns log(z) of complex z; -690 (log 1e-300) at zero, finite as in `log1p`."""
  return np.log(np.where(z == 0, 1e-300, z))


def log_mass(mass: np.ndarray) -> np.ndarray:
  """Returns log of real masses; -inf at zero."""
  with np.errstate(divide='ignore'):
    return np.log(mass)


def raised_exp(x: np.ndarray) -> np.ndarray:
  """Returns e^x for an upper bound: never zero, except at -inf."""
  return np.maximum(np.exp(x), np.where(x == -np.inf, 0.0, LEAST))


def expm1(z: np.ndarray) -> np.ndarray:
  """Returns exp(z) - 1 of complex z, accurate for small |z|."""
  grown = np.expm1(z.real)
  half = np.sin(0.5 * z.imag)  # cos(y) - 1 = -2 sin(y / 2)^2, where nothing cancels.
  return grown * np.cos(z.imag) - 2 * half * half + 1j * ((grown + 1) * np.sin(z.imag))


def expm1_i(x: np.ndarray) -> np.ndarray:
  """Returns exp(i x) - 1 of real x, accurate for small |x|."""
  half = np.sin(0.5 * x)
  value = np.empty(x.shape, np.complex128)
  value.real = -2 * half * half
  value.imag = np.sin(x)
  return value


def log_mixture(prob: float, z: np.ndarray) -> np.ndarray:
  """Returns log(1 - prob + prob e^z), prob in (0, 1], to a few ulps."""
  # log1p keeps the digits of results near zero. Where the mixture is below 1/2, the
  # argument of log1p may be near -1 and have lost digits; the logarithm of the mixture,
  # a sum of positive terms, has them there.
  near = np.log1p(prob * np.expm1(np.minimum(z, 700.0)))
  if np.max(z, initial=0.0) > 700:  # e^z may overflow.
    with np.errstate(divide='ignore'):
      near = np.where(z > 700, np.logaddexp(np.log1p(-prob), np.log(prob) + z), near)
  if prob <= 0.5:
    return near
  mixed = (1 - prob) + prob * np.exp(np.minimum(z, 0.0))
  return np.where(mixed < 0.5, np.log(mixed), near)


def log_sum(exponent: np.ndarray) -> np.ndarray:
  """Returns log of the sum of exp over the last axis; needs an entry above -inf."""
  peak = np.max(exponent, axis=-1)
  return peak + np.log(np.sum(np.exp(exponent - peak[..., None]), axis=-1))


def exact_sum(a: np.ndarray, b: float | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns (a + b rounded, its rounding error), whose exact sum is a + b."""
  # Knuth, "The Art of Computer Programming", section 4.2.2, theorem B.
  total = a + b
  part = total - a
  return total, (a - (total - part)) + (b - part)


BLOCK = 32
"""Number of terms in a block of a sum: numpy adds up the terms of each block in any
order, and `product` then adds up the blocks."""

EPS = float(np.finfo(np.float64).eps)
"""Twice the largest relative error of one rounded operation."""


def sum_roundoff(terms: int) -> float:
  """Returns a bound on the error of a sum of products, over the sum of their moduli."""
  # Holds for numpy's pairwise sums and for `product`. A complex dot product of n terms
  # is within sqrt(2) n EPS in any order of summation (Higham, "Accuracy and Stability
  # of Numerical Algorithms", sections 3.1 and 3.6): 46 EPS for a block. Adding up the
  # blocks costs EPS / 2 for each of them; 2 EPS are room.
  return (48 + 0.5 * terms / BLOCK) * EPS


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """Returns a @ b; sums over the inner axis in blocks of `BLOCK` to keep digits."""
  total = a[..., :BLOCK] @ b[:BLOCK]
  for start in range(BLOCK, b.shape[0], BLOCK):
    total += a[..., start:start + BLOCK] @ b[start:start + BLOCK]
  return total


def log_phi_table(loss: np.ndarray, weight: np.ndarray, spacing: float,
                  count: int) -> np.ndarray:
  """Returns log sum(weight exp(i t loss)) at t = spacing * (0..count-1), (count,)."""
  # `weight` sums to one. Write phi for the sum of weight exp(i t loss). The function
  # sums phi - 1, so that the log keeps its digits when a million steps multiply it. The
  # points are uniform: each t is one of about sqrt(count) coarse points plus one of
  # about sqrt(count) fine ones, and exp(i t loss) the product of two exponentials.
  num_fine = max(int(math.sqrt(count)), 1)
  num_coarse = -(-count // num_fine)
  fine = expm1_i(np.multiply.outer(spacing * np.arange(num_fine), loss))
  coarse = expm1_i(np.multiply.outer(spacing * num_fine * np.arange(num_coarse), loss))
  weighted = coarse * weight
  # e^(i(x+y)) - 1 = (e^ix - 1)(e^iy - 1) + (e^ix - 1) + (e^iy - 1).
  table = product(weighted, fine.T)
  table += np.sum(weighted, axis=1)[:, None]
  table += np.sum(fine * weight, axis=1)[None, :]
  return log1p(table.ravel()[:count])


def phi_table(loss: np.ndarray, weight: np.ndarray, spacing: float, count: int,
              start: float = 0.0) -> np.ndarray:
  """Returns sum(weight exp(i t loss)) at t = start + spacing * (0..count-1)."""
  # Coarse and fine points are as in `log_phi_table`; the result has shape (count,).
  num_fine = max(int(math.sqrt(count)), 1)
  num_coarse = -(-count // num_fine)
  fine = np.exp(1j * np.multiply.outer(spacing * np.arange(num_fine), loss))
  coarse = np.exp(1j * np.multiply.outer(
      start + spacing * num_fine * np.arange(num_coarse), loss))
  return product(coarse * weight, fine.T).ravel()[:count]


def log_expm1(x: float | np.ndarray) -> float | np.ndarray:
  """Returns log(e^x - 1) for x > 0."""
  return x + np.log(-np.expm1(-x))


def log_kernel(order: float | np.ndarray) -> float | np.ndarray:
  """Returns log of the maximum over x of exp(-order x) (1 - e^-x), for order > 0.

  By Chernoff, delta(epsilon) <= M exp(-order epsilon) times this maximum, where M is
  the mean of exp(order loss) over P.
  """
  # Within a few ulps: both terms have one sign.
  return -(order * np.log1p(1 / order) + np.log1p(order))


def log_binomial(k: np.ndarray, trials: int, prob: float) -> np.ndarray:
  """Returns log P(K = k) of a binomial K, for k in [0, trials]; -inf if impossible."""
  left = trials - k
  return (special.gammaln(trials + 1) - special.gammaln(k + 1) -
          special.gammaln(left + 1) + special.xlogy(k, prob) +
          special.xlog1py(left, -prob))
