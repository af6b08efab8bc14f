"""Theorems (no accountant) on sinh-normal noise in terms of truncated CDP.

`tfcactus.noise.sinh_normal` is the law of the noise and accounts for the noise exactly:
`delta` and `epsilon` of one release, and `renyi_divergence` below `renyi_limit`. All
four are importable from here too.

Source: section 4 of Bun, Dwork, Rothblum and Steinke (STOC 2018).
"""

from __future__ import annotations

import math

from tfcactus import _checks
from tfcactus.accounting import truncated_cdp
from tfcactus.noise.sinh_normal import (
  delta,
  epsilon,
  renyi_divergence,
  renyi_limit,
  SinhNormal,
)

__all__ = ['delta', 'epsilon', 'histogram_error', 'histogram_noise',
           'renyi_divergence', 'renyi_limit', 'sinh_normal_bound']


def sinh_normal_bound(noise: SinhNormal) -> truncated_cdp.TCDP:
  """Returns the guarantee of Theorem 17, an order of magnitude loose.

  Raises:
    ValueError: if the hypothesis 1 < 1/sqrt(rho) <= A fails for
      rho = 1 / (2 sigma^2), or if A <= 8, for which the theorem says nothing.
  """
  rho = 0.5 / noise.sigma**2
  if noise.bend <= 8:
    raise ValueError(
        'Expected bend > 8, since Theorem 17 says nothing below (its omega '
        f'would be {noise.bend / 8:.4g}), got {noise!r}; account the noise '
        'exactly.')
  if not 1 < 1 / math.sqrt(rho) <= noise.bend:
    raise ValueError(
        'Expected 1 < sqrt(2) sigma <= bend, the hypothesis of Theorem 17, got '
        f'{noise!r}; account the noise exactly.')
  return truncated_cdp.TCDP(16 * rho, noise.bend / 8)


def histogram_noise(rho: float, omega: float) -> SinhNormal:
  """Returns the noise of Corollary 18 for a histogram under (rho, omega)-tCDP.

  Args:
    rho: In (0, 1).
    omega: At least 1 / sqrt(2 rho), which the proof needs and the printed
      hypothesis (1 / (8 sqrt rho)) does not give. For smaller omega the
      divergence is computed, and refused if it exceeds the claim.

  Returns:
    Noise for each count; a replaced record changes two counts by one.

  Raises:
    ValueError: if the claim is false at these parameters.
  """
  rho, omega = _checks.positive('rho', rho), truncated_cdp.check_omega(omega)
  noise = SinhNormal(4 / math.sqrt(rho), 8 * omega)
  if rho < 1 and omega >= 1 / math.sqrt(2 * rho):
    return noise
  limit = renyi_limit(noise)
  if omega < limit:
    needed = 2 * truncated_cdp.certificate(
        lambda order: renyi_divergence(noise, order), omega,
        orders=300).rho
    if needed <= rho:
      return noise
  else:
    needed = math.inf
  raise ValueError(
      f'Expected omega >= 1 / sqrt(2 rho) = {1 / math.sqrt(2 * rho):.6g}, got '
      f'omega={omega!r}: Corollary 18 is false there, its noise needs '
      f'rho={needed:.6g} and claims rho={rho!r}. Raise omega.')


def histogram_error(rho: float, omega: float, *, num_bins: int,
                    beta: float) -> float:
  """Returns Corollary 18's bound on the largest error of all counts.

  The guarantee is (rho, omega)-tCDP, `num_bins` is the size of the domain, and the
  error is larger with probability at most `beta`.
  """
  histogram_noise(rho, omega)
  num_bins = _checks.integer('num_bins', num_bins, 1)
  log_ratio = math.log(num_bins / _checks.delta(beta, 'beta'))
  return 8 * omega * math.asinh(math.sqrt(log_ratio / (2 * omega**2 * rho)))
