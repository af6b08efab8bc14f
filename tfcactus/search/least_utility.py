"""Search for the (epsilon, delta)-private bounded noise of least utility (error).

A design minimises delta at a given utility. This search varies the utility until the
accountant's upper bound on delta is the requested one.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable

from scipy import optimize

from tfcactus import _checks, _format, design
from tfcactus.design.solvers import convex_program
from tfcactus.noise import tiling
from tfcactus.search import truncated

MARGIN = 1e-9
"""Relative excess over delta with which a linear program's float bound is a proof."""

_SCALES = 24
"""Number of steps in the first scan over widths of truncated Gaussians."""


@dataclasses.dataclass(frozen=True)
class LeastUtility:
  """Bounded noise within (epsilon, delta), and a lower bound on its utility (error).

  Attributes:
    found: The noise and its account: `found.delta.upper` is at most `delta`, and
      `found.utility` is what the search minimised.
    delta: The requested delta.
    lower_bound: No table of the same grid that never increases with |z| has a
      smaller utility within (epsilon, delta): proved by linear programs. None
      after several releases, where nothing is proved.
  """

  found: truncated.TruncatedNoise
  delta: float
  lower_bound: float | None

  @property
  def utility(self) -> float:
    """E|Z| (norm 1) or sqrt(E Z^2) (norm 2) of the noise, in sensitivities."""
    return self.found.utility

  @property
  def statement(self) -> str:
    """The proved statement, in words."""
    if self.lower_bound is None:
      return ('Not proved to be the least: after several releases no lower bound is '
              'known.')
    return ('No table of this grid that never increases with |z| has a utility below '
            f'{_format.lower(self.lower_bound)} within (epsilon, delta).')


def least_utility(range: float, *, delta: float,  # pylint: disable=redefined-builtin
                  epsilon: float, steps: int = 1, sampling_prob: float = 1.0,
                  norm: int = 2, bins: int | None = None,
                  method: str = 'direct', tolerance: float = 1e-3) -> LeastUtility:
  """Searches for the noise of least utility (error) that is (epsilon, delta)-private.

  Args:
    range: Bound on |noise|, in units of sensitivity; above one half.
    delta: Bound on the delta of all releases together, at `epsilon`.
    epsilon: The epsilon at which delta is bounded.
    steps: Number of releases composed.
    sampling_prob: Poisson sampling probability of a release.
    norm: Norm of the utility: 1 (E|Z|) or 2 (sqrt(E Z^2)).
    bins: Cells per unit of sensitivity; None for about 400 on each side.
    method: 'direct', 'lp' (one release) or 'ma'; see `tfcactus.design.Truncated`.
    tolerance: Relative distance of the utilities at which the search stops.

  Returns:
    The best table seen, a truncated Gaussian or a design. After one release its
    utility is within the tolerance of the least one, and `lower_bound` shows it.

  Raises:
    ValueError: if an argument is out of range, or noise in this range does not
      reach delta.

  Source: Definition 12 of Sommer et al., "Learning Numeric Optimal Differentially
  Private Truncated Additive Mechanisms" (2021), which asks for this noise; the paper
  itself balances utility and delta by a weight.
  """
  delta = _checks.delta(delta)
  tolerance = _checks.positive('tolerance', tolerance)
  _checks.non_negative('epsilon', epsilon)
  own_bins, cells = tiling.check_range(range, bins)
  least, most = tiling.utility_limits(cells, own_bins, tiling.check_norm(norm))
  ask: dict[str, Any] = {'epsilon': epsilon, 'steps': steps,
                         'sampling_prob': sampling_prob, 'norm': norm}

  def designed(utility: float) -> truncated.TruncatedNoise | None:
    try:
      return truncated.truncated_noise(range, utility=utility, bins=bins,
                                       method=method, **ask)
    except convex_program.SolverError:
      return None

  best = _gaussian(range, bins, delta, ask) or designed(most * (1 - MARGIN))
  if best is None or best.delta.upper > delta:
    raise ValueError(_unreached(best, range, delta))
  best, proved = _narrowed(designed, best, least, delta, tolerance)
  return LeastUtility(best, delta, None if steps > 1 else proved)


def _unreached(best: truncated.TruncatedNoise | None, reach: float, delta: float
               ) -> str:
  found = 'none' if best is None else _format.upper(best.delta.upper)
  return (f'Expected a delta that noise in [-{reach:g}, {reach:g}] reaches at that '
          f'epsilon, got delta={delta!r}, where the least found is {found}; widen the '
          'range, or ask for less.')


def _narrowed(designed: Callable[[float], truncated.TruncatedNoise | None],
              best: truncated.TruncatedNoise, low: float, delta: float,
              tolerance: float) -> tuple[truncated.TruncatedNoise, float]:
  """Returns the best noise seen, and the largest utility that is proved too small."""
  proved, share = low, 0.8
  while best.utility > low * (1 + tolerance):
    # Steps grow at first: designs are seldom far below the Gaussian.
    middle = max(share * best.utility, math.sqrt(low * best.utility))
    if not low < middle < best.utility:
      break  # No float lies between.
    found = designed(middle)
    if found is not None and found.delta.upper <= delta:
      if found.utility >= best.utility:
        break
      best, share = found, share * share
      continue
    low, share = middle, 0.0
    if found is not None and found.certified and (
        found.noise.info['lower_bound'] > delta * (1 + MARGIN)):
      proved = middle
  return best, proved


def _gaussian(reach: float, bins: int | None, delta: float, ask: dict[str, Any]
              ) -> truncated.TruncatedNoise | None:
  """Returns the narrowest truncated Gaussian within delta, or None."""
  def account(log_scale: float) -> truncated.TruncatedNoise:
    table = design.TruncatedGaussian(
        reach, scale=math.exp(log_scale), bins=bins).solve()
    return truncated.account(table, method='truncated Gaussian', **ask)

  low, high = math.log(0.05), math.log(4 * reach)
  # delta decreases with the width until truncation at the range dominates.
  points = [low + (high - low) * i / _SCALES for i in range(_SCALES + 1)]
  before = None
  for point in points:
    found = account(point)
    if found.delta.upper <= delta:
      break
    before = point
  else:
    return None
  if before is None:
    return found
  scale = optimize.bisect(
      lambda x: 1.0 if account(x).delta.upper > delta else -1.0, before, point,
      xtol=1e-3)
  near = account(scale + 1e-3)
  return near if near.delta.upper <= delta else found
