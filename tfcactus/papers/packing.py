"""Lower bounds on records and errors that truncated CDP implies (packing arguments).

Source: section 6 of Bun, Dwork, Rothblum and Steinke (STOC 2018).
"""

from __future__ import annotations

import math

from tfcactus import _checks
from tfcactus.accounting import truncated_cdp


def mutual_information(guarantee: truncated_cdp.TCDP, num_records: int) -> float:
  """Returns an upper bound on the mutual information of answer and data, in nats.

  The bound is the smaller of rho n^2 (group privacy, n < omega) and the divergence of
  Proposition 9, which Theorem 26 relaxes in its last step. `guarantee` is for one
  replaced record; the n records may have any distribution.
  """
  guarantee = truncated_cdp.check_guarantee(guarantee)
  n = _checks.integer('num_records', num_records, 1)
  squared = guarantee.rho * n * n if n < guarantee.omega else math.inf
  if math.isinf(guarantee.omega):
    return squared
  return min(squared, guarantee.large_group(n).divergence)


def printed_mutual_information(guarantee: truncated_cdp.TCDP, num_records: int
                               ) -> float:
  """Returns Theorem 26 as printed: e^(n / (omega - 1)) omega^2 rho; inf for zCDP."""
  guarantee = truncated_cdp.check_guarantee(guarantee)
  n = _checks.integer('num_records', num_records, 1)
  if math.isinf(guarantee.omega):
    return math.inf
  exponent = n / (guarantee.omega - 1)
  growth = math.exp(exponent) if exponent < 700 else math.inf
  return growth * guarantee.omega**2 * guarantee.rho


def fewest_records(guarantee: truncated_cdp.TCDP, num_bins: float) -> int:
  """Returns the least number n of records of a histogram that is not ruled out.

  With fewer records, under (rho, omega)-tCDP for one replaced record, some data have a
  largest count error of n / 2 or more with probability above one half. Otherwise the
  largest count would identify n copies of a random value with probability one half. By
  Fano's inequality the answer would then hold log(num_bins / 4) / 2 nats, more than
  `mutual_information` allows. `num_bins` is the size of the domain, above four; it may
  be too large for an integer.
  """
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

  Fewer records are not enough; a negative result says nothing. Needs a finite omega
  and rho > 0.
  """
  guarantee = truncated_cdp.check_guarantee(guarantee)
  if math.isinf(guarantee.omega) or guarantee.rho == 0:
    raise ValueError(
        'Expected a finite omega and rho > 0, of which Corollary 27 speaks, got '
        f'{guarantee}; fewest_records holds for all.')
  return (guarantee.omega - 1) * math.log(
      math.log(_bins(num_bins) / 4) / (2 * guarantee.omega**2 * guarantee.rho))


def _bins(num_bins: float) -> float:
  """Returns `num_bins` as a float; ValueError unless above four."""
  size = _checks.real('num_bins', num_bins)
  if size <= 4:
    raise ValueError(f'Expected num_bins > 4, got num_bins={num_bins!r}.')
  return size
