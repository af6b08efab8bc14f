"""What truncated CDP rules out: lower bounds on records and errors.

Source: section 6 of Bun, Dwork, Rothblum and Steinke (STOC 2018), called "the paper"
below.
"""

from __future__ import annotations

import math

from tfcactus import _checks
from tfcactus.accounting import truncated_cdp


def mutual_information(guarantee: truncated_cdp.TCDP, num_records: int) -> float:
  """A bound on what an answer tells of the whole data, in nats.

  The least of rho n^2, where groups of n are protected (n < omega), and of the
  divergence of Proposition 9, which Theorem 26 makes larger in its last step.

  Args:
    guarantee: (rho, omega) of the mechanism for one replaced record.
    num_records: n; the data may have any law.
  """
  guarantee = truncated_cdp.check_guarantee(guarantee)
  n = _checks.integer('num_records', num_records, 1)
  squared = guarantee.rho * n * n if n < guarantee.omega else math.inf
  if math.isinf(guarantee.omega):
    return squared
  return min(squared, guarantee.large_group(n).divergence)


def printed_mutual_information(guarantee: truncated_cdp.TCDP, num_records: int
                               ) -> float:
  """Theorem 26 as printed: e^(n / (omega - 1)) omega^2 rho; inf for zCDP.

  Args:
    guarantee: As for `mutual_information`.
    num_records: As for `mutual_information`.
  """
  guarantee = truncated_cdp.check_guarantee(guarantee)
  n = _checks.integer('num_records', num_records, 1)
  if math.isinf(guarantee.omega):
    return math.inf
  exponent = n / (guarantee.omega - 1)
  growth = math.exp(exponent) if exponent < 700 else math.inf
  return growth * guarantee.omega**2 * guarantee.rho


def fewest_records(guarantee: truncated_cdp.TCDP, num_bins: float) -> int:
  """The fewest records with which a histogram of (rho, omega)-tCDP may be right.

  With fewer, the largest error of a count is n / 2 or more with probability above one
  half for some data: n copies of a random value would else be told, by the largest
  count, with probability one half, and by Fano's inequality the answer would hold
  log(num_bins / 4) / 2 nats of it, more than `mutual_information` allows.

  Args:
    guarantee: (rho, omega) of the mechanism for one replaced record.
    num_bins: Size of the domain, above four; may be too large for a whole number.

  Returns:
    The least n that is not ruled out.
  """
  guarantee = truncated_cdp.check_guarantee(guarantee)
  needed = 0.5 * math.log(_bins(num_bins) / 4)
  low, high = 0, 1  # `low` is ruled out.
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
  """Corollary 27: (omega - 1) log(log(num_bins / 4) / (2 omega^2 rho)).

  Args:
    guarantee: As for `fewest_records`; with a finite omega.
    num_bins: As for `fewest_records`.

  Returns:
    No fewer records are enough; it may be negative, and then says nothing.
  """
  guarantee = truncated_cdp.check_guarantee(guarantee)
  if math.isinf(guarantee.omega) or guarantee.rho == 0:
    raise ValueError(
        'Expected a finite omega and rho > 0, of which Corollary 27 speaks, got '
        f'{guarantee}; fewest_records holds for all.')
  return (guarantee.omega - 1) * math.log(
      math.log(_bins(num_bins) / 4) / (2 * guarantee.omega**2 * guarantee.rho))


def _bins(num_bins: float) -> float:
  size = _checks.real('num_bins', num_bins)
  if size <= 4:
    raise ValueError(f'Expected num_bins > 4, got num_bins={num_bins!r}.')
  return size
