"""Accurate elementary functions that numpy lacks."""

from __future__ import annotations

import math

import numpy as np
from scipy import special


def log1p(z: np.ndarray) -> np.ndarray:
  """Returns log(1 + z) of complex z, accurate near 0; -690 (log 1e-300) at -1."""
  real, imag = z.real, z.imag
  square = real * (2 + real) + imag * imag  # |1 + z|^2 - 1.
  size = np.where(
      square > -0.5, 0.5 * np.log1p(np.maximum(square, -0.5)),
      np.log(np.maximum(np.hypot(1 + real, imag), 1e-300)))
  return size + 1j * np.arctan2(imag, 1 + real)


def log(z: np.ndarray) -> np.ndarray:
  """Returns log(z) of complex z; -690 (log 1e-300) at zero."""
  return np.log(np.where(z == 0, 1e-300, z))


def log_mass(mass: np.ndarray) -> np.ndarray:
  """Returns log of real masses; -inf at zero."""
  with np.errstate(divide='ignore'):
    return np.log(mass)


def expm1(z: np.ndarray) -> np.ndarray:
  """Returns exp(z) - 1 of complex z, accurate for small |z|."""
  grown = np.expm1(z.real)
  half = np.sin(0.5 * z.imag)
  return grown * np.cos(z.imag) - 2 * half * half + 1j * ((grown + 1) * np.sin(z.imag))


def expm1_i(x: np.ndarray) -> np.ndarray:
  """Returns exp(i x) - 1 of real x, accurate for small |x|."""
  half = np.sin(0.5 * x)
  value = np.empty(x.shape, np.complex128)
  value.real = -2 * half * half
  value.imag = np.sin(x)
  return value


def log_mixture(prob: float, z: np.ndarray) -> np.ndarray:
  """Returns log(1 - prob + prob e^z), prob in (0, 1), z <= 700, to a few ulps."""
  # log1p keeps the digits of results near zero. Where the mixture is below 1/2, the
  # argument of log1p is near -1 and has lost digits; there the function takes the
  # logarithm of a sum of positive terms.
  near = np.log1p(prob * np.expm1(z))
  if prob <= 0.5:
    return near
  mixed = (1 - prob) + prob * np.exp(np.minimum(z, 0.0))
  return np.where(mixed < 0.5, np.log(mixed), near)


def log_sum(exponent: np.ndarray) -> np.ndarray:
  """Returns log of the sum of exp over the last axis (log-sum-exp)."""
  peak = np.max(exponent, axis=-1)
  return peak + np.log(np.sum(np.exp(exponent - peak[..., None]), axis=-1))


BLOCK = 32
"""Number of terms in a block of a sum: numpy adds up the terms of each block in any
order, and `product` then adds up the blocks."""

EPS = float(np.finfo(np.float64).eps)
"""Twice the largest relative error of one rounded operation."""


def sum_roundoff(terms: int) -> float:
  """Bounds the error of a sum of products, relative to the sum of their moduli."""
  # Holds for numpy's pairwise sums and for `product`. A complex dot product of n terms
  # is within sqrt(2) n EPS in any order of summation (Higham, "Accuracy and Stability
  # of Numerical Algorithms", sections 3.1 and 3.6). For a block that is 46 EPS; the
  # other terms bound the sum over blocks.
  return (48 + 0.5 * terms / BLOCK) * EPS


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """Returns a @ b; sums over the inner axis in blocks of `BLOCK` to keep digits."""
  total = a[..., :BLOCK] @ b[:BLOCK]
  for start in range(BLOCK, b.shape[0], BLOCK):
    total += a[..., start:start + BLOCK] @ b[start:start + BLOCK]
  return total


def log_phi_table(loss: np.ndarray, weight: np.ndarray, spacing: float,
                  count: int) -> np.ndarray:
  """Returns log sum(weight exp(i t loss)) at t = spacing * (0..count-1)."""
  # `weight` sums to one. The function sums phi - 1 instead of phi, so that a million
  # steps keep their digits. The points are uniform, so the exponentials factorise into
  # two lists of about sqrt(count) points.
  short = max(int(math.sqrt(count)), 1)
  coarse = -(-count // short)
  fine = expm1_i(np.multiply.outer(spacing * np.arange(short), loss))
  wide = expm1_i(np.multiply.outer(spacing * short * np.arange(coarse), loss))
  weighted = wide * weight
  # e^(i(x+y)) - 1 = (e^ix - 1)(e^iy - 1) + (e^ix - 1) + (e^iy - 1).
  table = product(weighted, fine.T)
  table += np.sum(weighted, axis=1)[:, None]
  table += np.sum(fine * weight, axis=1)[None, :]
  return log1p(table.ravel()[:count])


def phi_table(loss: np.ndarray, weight: np.ndarray, spacing: float, count: int,
              start: float = 0.0) -> np.ndarray:
  """Returns sum(weight exp(i t loss)) at t = start + spacing * (0..count-1)."""
  short = max(int(math.sqrt(count)), 1)
  coarse = -(-count // short)
  fine = np.exp(1j * np.multiply.outer(spacing * np.arange(short), loss))
  wide = np.exp(1j * np.multiply.outer(
      start + spacing * short * np.arange(coarse), loss))
  return product(wide * weight, fine.T).ravel()[:count]


def log_expm1(x: float | np.ndarray) -> float | np.ndarray:
  """Returns log(e^x - 1) for x > 0."""
  return x + np.log(-np.expm1(-x))


def log_kernel(order: float | np.ndarray) -> float | np.ndarray:
  """Returns log of the maximum over x of exp(-order x) (1 - e^-x), for order > 0.

  By Chernoff, delta(epsilon) <= M(order) exp(-order epsilon) times this maximum.
  """
  return order * np.log(order) - (1 + order) * np.log1p(order)


def log_binomial(k: np.ndarray, trials: int, prob: float) -> np.ndarray:
  """Returns log P(K = k) of a binomial K, for k in [0, trials]; -inf if impossible."""
  left = trials - k
  return (special.gammaln(trials + 1) - special.gammaln(k + 1) -
          special.gammaln(left + 1) + special.xlogy(k, prob) +
          special.xlog1py(left, -prob))
