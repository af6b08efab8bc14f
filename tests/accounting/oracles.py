"""Exact deltas of Gaussians and of products of discrete laws."""

import functools

import mpmath
import numpy as np
from scipy import stats


def gaussian_delta(mu, epsilon):
  """Returns delta of a Gaussian whose sensitivity is `mu` standard deviations."""
  return stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * stats.norm.cdf(
      -mu / 2 - epsilon / mu)


def precise_gaussian_delta(mu, epsilon):
  """Returns what `gaussian_delta` does, with the digits that mpmath works with."""
  mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
  return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(
      -mu / 2 - epsilon / mu)


def product_masses(laws):
  """Returns the masses of all sequences of outcomes, one of each law's masses."""
  return functools.reduce(np.multiply.outer, laws).ravel()


def product_delta(pairs, epsilon):
  """Returns delta of releases with masses (p, q), summed over all sequences."""
  p, q = (product_masses(laws) for laws in zip(*pairs))
  return float(np.sum(np.maximum(p - np.exp(epsilon) * q, 0.0)))
