"""Statements on truncated CDP that neither training nor accounting needs.

They are lower bounds on records and errors (section 6 of the paper), upper bounds on
P(Z > loss) for the privacy loss Z under each definition of privacy (section 1.3), with
`loss` of any shape, sinh-normal noise in terms of truncated CDP (section 4), and
divergences of subsampled releases. Those of approximate definitions are derived here.
Source: Bun, Dwork, Rothblum and Steinke (STOC 2018).
"""

from __future__ import annotations

import math
from typing import Callable

import numpy as np
import numpy.typing as npt
from scipy import special

from tfcactus import _checks, _numerics
from tfcactus.accounting import truncated_cdp
from tfcactus.noise.sinh_normal import renyi_divergence, renyi_limit, SinhNormal

_GAPS = np.geomspace(1e-3, 30, 200)
"""Distances of loss and epsilon to try; each gives a bound. Affects tightness only."""


def mutual_information(guarantee: truncated_cdp.TCDP, num_records: int) -> float:
  """Bounds the mutual information of answer and data from above, in nats, or by inf."""
  # The smaller of rho n^2 (group privacy, n < omega) and the divergence of Proposition
  # 9, which Theorem 26 relaxes in its last step, for any distribution of n records.
  guarantee = truncated_cdp.check_guarantee(guarantee)
  n = _checks.integer('num_records', num_records, 1, truncated_cdp.MOST)
  squared = guarantee.rho * n * n if n < guarantee.omega else math.inf
  if math.isinf(guarantee.omega):
    return squared
  return min(squared, guarantee.large_group(n).divergence)


def printed_mutual_information(guarantee: truncated_cdp.TCDP, num_records: int
                               ) -> float:
  """Returns Theorem 26's bound on mutual information, in nats, as it is printed.

  It is e^(n / (omega - 1)) omega^2 rho for n records, inf beyond e^700 and for zCDP.
  """
  guarantee = truncated_cdp.check_guarantee(guarantee)
  n = _checks.integer('num_records', num_records, 1, truncated_cdp.MOST)
  omega = guarantee.omega
  if math.isinf(omega) or n / (omega - 1) > 700:
    return math.inf
  return math.exp(n / (omega - 1)) * omega * omega * guarantee.rho


def fewest_records(guarantee: truncated_cdp.TCDP, num_bins: float) -> int:
  """Returns the least number n of records that is not ruled out for a histogram.

  With fewer, some data have a largest count error of n / 2 or more with probability
  above one half. Raises ValueError unless num_bins > 4, or if n is above 2^60.
  """
  # Else, by Fano's inequality, the largest count would tell log(num_bins / 4) / 2 nats,
  # more than `mutual_information` allows.
  guarantee = truncated_cdp.check_guarantee(guarantee)
  needed = 0.5 * math.log(_bins(num_bins) / 4)
  low, high = 0, 1  # Invariant: `low` is ruled out.
  while mutual_information(guarantee, high) < needed:
    low, high = high, 2 * high
    if high > 1 << 60:
      raise ValueError(
          f'Expected a rho that lets an answer tell something, got {guarantee}, under '
          'which 2^60 records are too few.')
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (middle, high) if mutual_information(guarantee, middle) < needed else (
        low, middle)
  return high


def printed_fewest_records(guarantee: truncated_cdp.TCDP, num_bins: float) -> float:
  """Returns Corollary 27: (omega - 1) log(log(num_bins / 4) / (2 omega^2 rho)).

  A histogram needs at least so many records, for errors as in `fewest_records`. A
  negative result says nothing. Raises ValueError unless omega is finite, rho > 0 and
  num_bins > 4.
  """
  guarantee = truncated_cdp.check_guarantee(guarantee)
  if math.isinf(guarantee.omega) or guarantee.rho == 0:
    raise ValueError(
        'Expected a finite omega and rho > 0, of which Corollary 27 speaks, got '
        f'{guarantee}; fewest_records holds for all.')
  return (guarantee.omega - 1) * (math.log(math.log(_bins(num_bins) / 4) / (
      2 * guarantee.rho)) - 2 * math.log(guarantee.omega))


def _bins(num_bins: float) -> float:
  """Returns `num_bins` as a float; ValueError unless above four."""
  size = _checks.real('num_bins', num_bins)
  if size <= 4:
    raise ValueError(f'Expected num_bins > 4, got num_bins={num_bins!r}.')
  return size


def pure_dp(epsilon: float, loss: npt.ArrayLike) -> np.ndarray:
  """Returns the bound under epsilon-DP: no loss exceeds epsilon."""
  epsilon = _checks.non_negative('epsilon', epsilon)
  return np.where(_checks.numbers_of('loss', loss) >= epsilon, 0.0, 1.0)


def truncated_cdp_tail(guarantee: truncated_cdp.TCDP, loss: npt.ArrayLike
                       ) -> np.ndarray:
  """Returns the bound under truncated CDP: subgaussian, then subexponential."""
  # With t = loss - rho it is exp(-t^2 / (4 rho)) for t in [0, 2 rho (omega - 1)] and
  # exp((omega - 1)^2 rho - (omega - 1) t) beyond. omega = inf is zCDP.
  guarantee = truncated_cdp.check_guarantee(guarantee)
  loss = _checks.numbers_of('loss', loss)
  if guarantee.rho == 0:
    return np.where(loss >= 0, 0.0, 1.0)
  rho, omega = guarantee.rho, guarantee.omega
  with np.errstate(over='ignore', invalid='ignore'):
    order = (loss + rho) / (2 * rho)
    near = -(loss - rho)**2 / (4 * rho)
    far = (omega - 1) * (rho * omega - loss)
    exponent = np.where((order < omega) | np.isinf(omega), near, far)
  return np.where(order > 1, _numerics.raised_exp(np.minimum(exponent, 0.0)), 1.0)


def renyi_dp(order: float, divergence: float, loss: npt.ArrayLike) -> np.ndarray:
  """Returns the bound under (order, divergence)-RDP: subexponential; order > 1."""
  order = truncated_cdp.check_omega(order)
  divergence = _checks.non_negative('divergence', divergence)
  if np.isinf(order):
    return pure_dp(divergence, loss)
  gap = divergence - _checks.numbers_of('loss', loss)
  return _numerics.raised_exp(np.minimum((order - 1) * gap, 0.0))


def approximate_dp(epsilon: float, delta: float, loss: npt.ArrayLike) -> np.ndarray:
  """Returns the bound under (epsilon, delta)-DP; never below delta."""
  # Let A be the event that the loss exceeds epsilon + s. Then Q(A) <= e^-(epsilon + s)
  # P(A), hence P(A) (1 - e^-s) <= delta.
  epsilon, delta = _checks.non_negative('epsilon', epsilon), _checks.delta(delta)
  gap = _checks.numbers_of('loss', loss) - epsilon
  with np.errstate(divide='ignore'):
    bound = delta / -np.expm1(-np.maximum(gap, 0.0))
  return np.minimum(bound, 1.0)


def approximate_zcdp(rho: float, delta: float, loss: npt.ArrayLike) -> np.ndarray:
  """Returns the bound under delta-approximate rho-zCDP: subgaussian plus delta.

  Source: Bun and Steinke, "Concentrated Differential Privacy" (TCC 2016), section 8 for
  the definition.
  """
  # Let E be events of probability at least 1 - delta, given which the laws satisfy
  # rho-zCDP. P(A) - e^x Q(A) <= delta + P_E(A) - e^x (1 - delta) Q_E(A), so the privacy
  # profile is at most delta + the tail of zCDP at x + log(1 - delta). For every s > 0,
  # P(Z > x + s) <= profile(x) / (1 - e^-s).
  guarantee = truncated_cdp.TCDP(rho)
  delta = _checks.delta(delta)
  at = _checks.numbers_of('loss', loss)[..., np.newaxis] - _GAPS
  profile = delta + truncated_cdp_tail(guarantee, at + np.log1p(-delta))
  return np.minimum(np.min(profile / -np.expm1(-_GAPS), axis=-1), 1.0)


def sinh_normal_bound(noise: SinhNormal) -> truncated_cdp.TCDP:
  """Returns the loose guarantee of Theorem 17, with 16 times the rho of normal noise.

  Raises ValueError if its hypothesis 1 < sqrt(2) sigma <= bend fails, or bend <= 8.
  """
  rho = 0.5 / noise.sigma**2
  if noise.bend <= 8:
    raise ValueError(
        'Expected bend > 8, since Theorem 17 says nothing below (its omega would be '
        f'{noise.bend / 8:.4g}), got {noise!r}; account the noise exactly.')
  if not 1 < 1 / math.sqrt(rho) <= noise.bend:
    raise ValueError(
        'Expected 1 < sqrt(2) sigma <= bend, the hypothesis of Theorem 17, got '
        f'{noise!r}; account the noise exactly.')
  return truncated_cdp.TCDP(16 * rho, noise.bend / 8)


def histogram_noise(rho: float, omega: float) -> SinhNormal:
  """Returns the noise of Corollary 18 for a histogram under (rho, omega)-tCDP.

  A replaced record changes two counts by one. The proof needs rho < 1 and omega >= 1 /
  sqrt(2 rho); the printed hypothesis on omega, 1 / (8 sqrt(rho)), is too weak. Where
  they fail, the divergence is computed; ValueError if it exceeds the claim.
  """
  rho, omega = _checks.positive('rho', rho), truncated_cdp.check_omega(omega)
  noise = SinhNormal(4 / math.sqrt(rho), 8 * omega)
  if rho < 1 and omega >= 1 / math.sqrt(2 * rho):
    return noise
  # Divergences are finite below `renyi_limit`. Two counts double them.
  needed = math.inf if omega >= renyi_limit(noise) else 2 * truncated_cdp.certificate(
      lambda order: renyi_divergence(noise, order), omega, orders=300).rho
  if needed <= rho:
    return noise
  raise ValueError(
      f'Expected omega >= 1 / sqrt(2 rho) = {1 / math.sqrt(2 * rho):.6g}, got '
      f'omega={omega!r}: Corollary 18 is false there, its noise needs '
      f'rho={needed:.6g} and claims rho={rho!r}. Raise omega.')


def histogram_error(rho: float, omega: float, *, num_bins: int, beta: float) -> float:
  """Returns Corollary 18's bound on the largest count error, with chance 1 - `beta`.

  Raises ValueError where the corollary is false, as `histogram_noise` does.
  """
  histogram_noise(rho, omega)  # Refuses where the corollary is false.
  log_ratio = math.log(_checks.integer('num_bins', num_bins, 1)) - math.log(
      _checks.delta(beta, 'beta'))
  return 8 * omega * math.asinh(math.sqrt(log_ratio / (2 * omega**2 * rho)))


def subsampled_divergence(divergence: Callable[[int], float], order: int,
                          sampling_prob: float) -> float:
  """Returns D_order(sP + (1-s)Q || Q), given divergence(k) = D_k(P || Q) for k >= 2.

  s is `sampling_prob`; order is an integer >= 2. Upper bounds on divergences give one.
  """
  # Lemma 15 of Bun, Dwork, Rothblum and Steinke (STOC 2018).
  order = _checks.integer('order', order, 2)
  s = _checks.sampling_prob(sampling_prob)
  k = np.arange(2, order + 1)
  log_moment = (k - 1) * np.maximum([divergence(int(i)) for i in k], 0.0)
  # The moment is one plus the mean of e^log_moment - 1 over a binomial k.
  weight = _numerics.log_binomial(k, order, s)
  with np.errstate(divide='ignore', invalid='ignore'):
    terms = np.where(weight > -np.inf, weight + log_moment + np.log(
        -np.expm1(-log_moment)), -np.inf)
  return float(np.logaddexp(0.0, special.logsumexp(terms))) / (order - 1)
