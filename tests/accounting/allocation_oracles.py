"""delta of one random allocation by direct quadrature, and independent epsilons.

A mean of T lognormals exceeds a number where the last of them exceeds what the others
leave: an option price of Black and Scholes in closed form, integrated over T - 1
normals, on both sides of where nothing is left, by the double exponential rule.
"""

from __future__ import annotations

import numpy as np
from scipy import special

SPECTRAL = (
    # (sigma, batches, epochs, epsilon by removal, by addition), at delta 1e-5: sums of
    # lognormals added up in log space on splines of degree 7, at two resolutions that
    # agree to all digits.
    (1.0, 10, 1, 2.1888479989, 1.3648722116),
    (1.0, 60, 5, 1.6240836330, 1.3682763697),
    (1.2, 60, 20, 2.3770757189, 2.2874298267),
    (2.0, 15, 20, 2.5147623046, 2.4865460839),
    (1.3, 8, 5, 3.0473657308, 2.7515102018),
    (0.5644, 234, 20, 7.5985669749, 4.6624667832),
    (0.4902, 234, 5, 7.3201790397, 2.7286719423),
    (1.8624, 15, 20, 2.7572940260, 2.7180914331),
    (1.0938, 59, 20, 2.8065196165, 2.6528469889),
    (0.7594, 234, 20, 2.8673224742, 2.3919093118),
)

QUADRATURE = (
    # The same for two batches and one epoch, by 30-digit quadrature with mpmath.
    (1.0, 2, 1, 3.697385212540391, 3.079732588485752),
    (2.0, 2, 1, 1.461945332117498, 1.380546813055099),
    (0.7, 2, 1, 5.960655363633831, 4.747500496358656),
)


def delta(mu, bins, direction, epsilon):
  """Returns delta of one epoch of few batches.

  Args:
    mu: Sensitivity over standard deviation.
    bins: 1, 2 or 3.
    direction: 'remove' or 'add'.
    epsilon: At least zero.
  """
  ratio = np.exp(epsilon)
  if direction == 'remove':
    return _price(_call, mu, bins, bins * ratio) / bins
  return _price(_put, mu, bins, bins / ratio) * ratio / bins


def _price(option, mu, bins, strike):
  """Returns the mean of an option on a sum of lognormals of mean one."""
  if bins == 1:
    return float(option(mu, np.array([strike]))[0])
  end = (np.log(strike) + 0.5 * mu * mu) / mu if strike > 0 else -12.0
  total = 0.0
  for low, high in ((-12.0, end), (end, 12.0 + bins * mu)):
    y, weight = _nodes(low, high)
    left = strike - np.exp(mu * y - 0.5 * mu * mu)
    weight = weight * np.exp(-0.5 * y * y) / np.sqrt(2 * np.pi)
    values = option(mu, left) if bins == 2 else [
        _price(option, mu, bins - 1, each) for each in left]
    total += float(weight @ values)
  return total


def _nodes(low, high, step=0.04):
  """Returns the nodes and weights of the double exponential rule on an interval."""
  if high <= low:
    return np.zeros(0), np.zeros(0)
  s = np.arange(-3.6, 3.6, step)
  place = 0.5 * np.pi * np.sinh(s)
  weight = 0.5 * np.pi * np.cosh(s) / np.cosh(place)**2 * step
  return low + (high - low) / (1 + np.exp(-2 * place)), 0.5 * (high - low) * weight


def _call(mu, strike):
  """Returns E[(X - strike)^+] for a lognormal of mean one."""
  inside = strike > 0
  high = -np.log(np.where(inside, strike, 1.0)) / mu + 0.5 * mu
  return np.where(inside, special.ndtr(high) - strike * special.ndtr(high - mu),
                  1 - strike)


def _put(mu, strike):
  """Returns E[(strike - X)^+] for a lognormal of mean one."""
  inside = strike > 0
  high = -np.log(np.where(inside, strike, 1.0)) / mu + 0.5 * mu
  return np.where(inside, strike * special.ndtr(mu - high) - special.ndtr(-high), 0.0)
