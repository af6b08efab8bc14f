"""Elementary functions that numpy does not offer with full accuracy."""

from __future__ import annotations

import math

import numpy as np


def log1p(z: np.ndarray) -> np.ndarray:
  """log(1 + z) of complex z, with the digits of small |z| kept.

  The logarithm of zero is -690: finite, so that multiples of it are too.
  """
  real, imag = z.real, z.imag
  square = real * (2 + real) + imag * imag
  size = np.where(
      square > -0.5, 0.5 * np.log1p(np.maximum(square, -0.5)),
      np.log(np.maximum(np.hypot(1 + real, imag), 1e-300)))
  return size + 1j * np.arctan2(imag, 1 + real)


def log(z: np.ndarray) -> np.ndarray:
  """log of complex z, -690 for zero."""
  return np.log(np.where(z == 0, 1e-300, z))


def log_mass(mass: np.ndarray) -> np.ndarray:
  """log of real masses, -inf for zero."""
  with np.errstate(divide='ignore'):
    return np.log(mass)


def expm1(z: np.ndarray) -> np.ndarray:
  """exp(z) - 1 of complex z, with the digits of small |z| kept."""
  grown = np.expm1(z.real)
  half = np.sin(0.5 * z.imag)
  return grown * np.cos(z.imag) - 2 * half * half + 1j * (
      (grown + 1) * np.sin(z.imag))


def expm1_i(x: np.ndarray) -> np.ndarray:
  """exp(i x) - 1 of real x."""
  half = np.sin(0.5 * x)
  value = np.empty(x.shape, np.complex128)
  value.real = -2 * half * half
  value.imag = np.sin(x)
  return value


def log_mixture(prob: float, z: np.ndarray) -> np.ndarray:
  """log(1 - prob + prob e^z) of z up to 700, to a few ulps.

  Near zero by log1p, which keeps the digits of small ones; of small mixtures, where its
  argument next to minus one has lost them, the logarithm of a sum of positive terms.

  Args:
    prob: In (0, 1).
    z: Any shape.
  """
  near = np.log1p(prob * np.expm1(z))
  if prob <= 0.5:
    return near
  mixed = (1 - prob) + prob * np.exp(np.minimum(z, 0.0))
  return np.where(mixed < 0.5, np.log(mixed), near)


def log_sum(exponent: np.ndarray) -> np.ndarray:
  """log of the sum of exp over the last axis."""
  peak = np.max(exponent, axis=-1)
  return peak + np.log(np.sum(np.exp(exponent - peak[..., None]), axis=-1))


BLOCK = 32
"""Terms that are added up in any order, before blocks of them are."""

EPS = float(np.finfo(np.float64).eps)
"""Twice the largest relative error of one rounded operation."""


def sum_roundoff(terms: int) -> float:
  """Bound on the error of a sum of products, over the sum of their moduli.

  Of `pairwise` numpy sums and of `product`. A complex dot product of n terms is
  within sqrt(2) n EPS in whatever order it is taken (Higham, "Accuracy and
  Stability of Numerical Algorithms", sections 3.1 and 3.6); that of a block is
  46 EPS, and adding up the blocks takes the rest.
  """
  return (48 + 0.5 * terms / BLOCK) * EPS


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """a @ b, with the inner sums taken in short blocks to keep their digits."""
  total = a[..., :BLOCK] @ b[:BLOCK]
  for start in range(BLOCK, b.shape[0], BLOCK):
    total += a[..., start:start + BLOCK] @ b[start:start + BLOCK]
  return total


def log_phi_table(loss: np.ndarray, weight: np.ndarray, spacing: float,
                  count: int) -> np.ndarray:
  """log sum(weight exp(i t loss)) at t = spacing * (0..count-1).

  phi - 1 is summed, not phi, so that a million steps keep their digits; the
  points being uniform, exponentials factorise into two short lists.

  Args:
    loss: Shape (n,).
    weight: Shape (n,), summing to one.
    spacing: Distance of the points.
    count: How many points.
  """
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
  """sum(weight exp(i t loss)) at t = start + spacing * (0..count-1).

  Args:
    loss: Shape (n,).
    weight: Shape (n,), of any sum.
    spacing: Distance of the points.
    count: How many points.
    start: The first point.
  """
  short = max(int(math.sqrt(count)), 1)
  coarse = -(-count // short)
  fine = np.exp(1j * np.multiply.outer(spacing * np.arange(short), loss))
  wide = np.exp(1j * np.multiply.outer(
      start + spacing * short * np.arange(coarse), loss))
  return product(wide * weight, fine.T).ravel()[:count]


def log_expm1(x: float | np.ndarray) -> float | np.ndarray:
  """log(e^x - 1) for x > 0."""
  return x + np.log(-np.expm1(-x))


def log_kernel(order: float | np.ndarray) -> float | np.ndarray:
  """log of max over x of exp(-order x) (1 - e^-x), for order > 0."""
  return order * np.log(order) - (1 + order) * np.log1p(order)


def log_complement(p: float) -> float:
  """log(1 - p), -inf where p is one."""
  return math.log1p(-p) if p < 1 else -math.inf
