"""Exact dominating pairs of scalar tables, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tfcactus.pairs import envelope as envelope_lib
from tfcactus.pairs.dominating_pair import DominatingPair, PairBounds

if TYPE_CHECKING:
  from tfcactus.noise.scalar_table import ScalarTable


def shifted(table: ScalarTable, cells: int) -> DominatingPair:
  """Returns the exact pair of a scalar table against its shift by whole cells.

  `table.bins` cells are one sensitivity.
  """
  log_p, log_q = log_masses(table, (0, cells))
  return log_mass_pair(log_p, log_q)


def log_masses(table: ScalarTable, shifts: Sequence[int]) -> np.ndarray:
  """Returns log masses of a scalar table at `shifts` in cells, on common outcomes.

  The shape is (shifts, outcomes), and values are exact but for rounding. The first and
  the last outcome are whole tails, on which ratios of two shifts are constant.
  """
  last = table.log_density.size - 1
  ratio = table.log_tail_ratio
  # With an edge at zero, cells -1, -2, ... mirror cells 0, 1, ...
  first = -last - 1 if table.edge_at_zero else -last
  index = np.arange(first + min(shifts), last + max(shifts) + 1)

  def log_mass(i):
    i = np.where(i < 0, first + last - i, i)
    beyond = np.maximum(i - last, 0)
    with np.errstate(invalid='ignore'):
      tail = np.where(beyond > 0, beyond * ratio, 0.0)
    return table.log_density[np.minimum(i, last)] + tail - np.log(table.bins)

  masses = np.stack([log_mass(index - shift) for shift in shifts])
  if np.isfinite(ratio):
    masses[:, [0, -1]] -= np.log(-np.expm1(ratio))
  return masses


def log_mass_pair(log_p: np.ndarray, log_q: np.ndarray) -> DominatingPair:
  """Returns the pair of two laws on common outcomes, from their log masses."""
  total = np.sum(np.exp(log_p))
  both = np.isfinite(log_p) & np.isfinite(log_q)
  p, q = np.exp(log_p) / total, np.exp(log_q) / total
  return DominatingPair(
      log_p[both] - log_q[both], p[both], q[both],
      float(np.sum(p[np.isneginf(log_q)])),
      float(np.sum(q[np.isneginf(log_p)])))


def largest(table: ScalarTable, cells: int) -> PairBounds:
  """Returns bounds on the largest privacy profile over the shifts 1..cells.

  If a density is not monotone, no single shift dominates all smaller ones, not even
  the full shift. The maximum of the profiles does, and has a dominating pair. Shifts
  between whole cells lie below their whole neighbours, since H is convex in the
  mixture.

  Source: Corollary 25 of Zhu et al. (2022).
  """
  return envelope_lib.envelope_of([
      PairBounds.exact(shifted(table, k)) for k in range(1, cells + 1)])


def mixture(table: ScalarTable, prob: float, shifts: tuple[int, int, int]
            ) -> DominatingPair:
  """Returns the exact pair of mixtures at (w, u) and (w, v); see `pairs.overlap`.

  `shifts` are w, u and v in cells; u and v have the share `prob`. `table` is monotone,
  so that the worst record lies on one line.
  """
  without, one, other = log_masses(table, shifts)
  log_out, log_in = np.log1p(-prob), np.log(prob)
  return log_mass_pair(
      np.logaddexp(log_out + without, log_in + one),
      np.logaddexp(log_out + without, log_in + other))
