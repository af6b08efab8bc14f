"""Truncated noise of least delta at a utility, or of least utility at a delta.

A design minimises its own estimate of the composed delta at a given utility. The
reported delta comes from the accountant, which reads the frozen table.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any, Callable

import dp_accounting
from scipy import optimize

from tfcactus import _checks, _format, accounting, design, noise as noise_lib
from tfcactus.design.solvers import convex_program
from tfcactus.design.truncated import CERTIFIED_GAP
from tfcactus.noise import tiling

MARGIN = 1e-9
"""Relative distance from the least and the largest utility, which are rounded."""

_SCALES = 24
"""Number of steps in the first scan over widths of truncated Gaussians."""


@dataclasses.dataclass(frozen=True)
class TruncatedNoise:
  """A bounded noise table and its account.

  Attributes:
    noise: The table; its `info` says how it was found.
    delta: Bounds on delta at `epsilon`, the larger of adding and removing one
      record. The full shift is accounted if the density never increases with |z|,
      else the envelope of all shifts up to it. Publish `delta.upper`.
    epsilon: The epsilon at which delta was evaluated.
    steps: Number of releases composed.
    sampling_prob: Poisson sampling probability of a release.
    utility: E|Z| (norm 1) or sqrt(E Z^2) (norm 2) of the table.
    omega: Upper bound on the probability that some release distinguishes the
      neighbours with certainty; part of delta.
    method: How the noise was found.
    certified: Whether no table of the same grid within the utility that never
      increases with |z| has a delta smaller by more than one part in 10^4, at
      this epsilon, number of steps and sampling (proved).
    statement: What was proved, in words.
    seconds: Wall time of the design.
  """

  noise: noise_lib.ScalarTable
  delta: accounting.Bounds
  epsilon: float
  steps: int
  sampling_prob: float
  utility: float
  omega: float
  method: str
  certified: bool
  statement: str
  seconds: float


def truncated_noise(range: float, *, utility: float,  # pylint: disable=redefined-builtin
                    epsilon: float, steps: int = 1, sampling_prob: float = 1.0,
                    norm: int = 2, bins: int | None = None,
                    method: str = 'direct', **options: Any) -> TruncatedNoise:
  """Designs bounded noise for a scalar query and accounts for it.

  All arguments, `options` too, are those of `tfcactus.design.Truncated`.

  Raises:
    ValueError: if an argument is out of range.
    SolverError: if a linear program fails or is not proved to be at its optimum.
  """
  request = design.Truncated(
      range, utility, epsilon, steps=steps, sampling_prob=sampling_prob,
      norm=norm, bins=bins, method=method, **options)
  begun = time.perf_counter()
  table = request.solve()
  return account(table, epsilon=epsilon, steps=steps,
                 sampling_prob=sampling_prob, norm=norm, method=method,
                 seconds=time.perf_counter() - begun)


def account(noise: noise_lib.ScalarTable, *, epsilon: float, steps: int = 1,
            sampling_prob: float = 1.0, norm: int = 2, method: str = 'given',
            seconds: float = 0.0) -> TruncatedNoise:
  """Returns a given scalar table with its account for `steps` releases.

  `method` tells how the table was found, in `seconds` of wall time. Other arguments are
  those of `tfcactus.design.Truncated`; ValueError if one is out of range.
  """
  if not isinstance(noise, noise_lib.ScalarTable):
    raise ValueError(f'Expected noise to be a ScalarTable, got {noise!r}.')
  epsilon = _checks.non_negative('epsilon', epsilon)
  steps = _checks.count('steps', steps)
  sampling_prob = _checks.sampling_prob(sampling_prob)
  event = accounting.noise_event(noise)
  if sampling_prob < 1:
    event = dp_accounting.PoissonSampledDpEvent(sampling_prob, event)
  accountant = accounting.PhiAccountant()
  accountant.compose(event, steps)
  # Upper bounds on the mass of infinite losses, of which the largest counts.
  omega = max(part.p_inf[1] for part in accountant.compositions().values())
  # The duality gap proves the table optimal for what its design was asked.
  info = noise.info
  told, gap = info.get('parameters') or {}, info.get('gap')
  asked = {'epsilon': epsilon, 'steps': steps, 'sampling_prob': sampling_prob,
           'norm': norm}
  certified = (info.get('solver') == 'linear program' and noise.monotone and
               gap is not None and gap <= CERTIFIED_GAP and
               all(told.get(name) == value for name, value in asked.items()))
  return TruncatedNoise(
      noise, accountant.delta_bounds(epsilon), epsilon, steps, sampling_prob,
      noise.moment(norm)**(1 / norm), max(omega, 0.0), method, certified,
      str(info.get('statement', 'Nothing is known of how it was found.')), seconds)


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

  found: TruncatedNoise
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

  Other arguments are those of `tfcactus.design.Truncated`.

  Args:
    delta: Bound on the delta of all releases together, at `epsilon`.
    epsilon: The epsilon at which delta is bounded.
    tolerance: Relative distance of the utilities at which the search stops.

  Returns:
    The best table seen, a truncated Gaussian or a design. After one release, by
    'direct' or 'lp', its utility is within the tolerance of `lower_bound`, unless a
    solver failed or delta is too small for a proof (about 1e-9).

  Raises:
    ValueError: if an argument is out of range, or no noise found reaches delta.

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

  def designed(utility: float) -> TruncatedNoise | None:
    """Returns noise designed for this utility; None if the solver failed."""
    try:
      return truncated_noise(range, utility=utility, bins=bins, method=method, **ask)
    except convex_program.SolverError:
      return None

  # Where no Gaussian keeps to delta, noise of nearly the largest utility may.
  best = _gaussian(range, bins, delta, ask) or designed(most * (1 - MARGIN))
  if best is None or best.delta.upper > delta:
    found = 'none' if best is None else _format.upper(best.delta.upper)
    raise ValueError(
        f'Expected a delta that noise in [-{range:g}, {range:g}] reaches at that '
        f'epsilon, got delta={delta!r}, where the least found is {found}; widen the '
        'range, or ask for less.')
  best, proved = _narrowed(designed, best, least, delta, tolerance)
  return LeastUtility(best, delta, None if steps > 1 else proved)


def _narrowed(designed: Callable[[float], TruncatedNoise | None],
              best: TruncatedNoise, low: float, delta: float,
              tolerance: float) -> tuple[TruncatedNoise, float]:
  """Returns (noise of least utility, largest utility proved too small for `delta`)."""
  # `designed` maps a utility to noise or None; `low` is too small, `best` meets delta.
  proved, share = low * (1 - MARGIN), 0.8
  while best.utility > low * (1 + tolerance):
    # The first steps are small and grow, since few designs are far below the Gaussian.
    # After the first failure the steps bisect.
    middle = max(share * best.utility, math.sqrt(low * best.utility))
    if not low < middle < best.utility:
      break  # No float lies between.
    found = designed(middle)
    if found is not None and found.delta.upper <= delta:
      if found.utility >= best.utility:
        break  # The design gains nothing from here on.
      best, share = found, share * share
      continue
    low, share = middle, 0.0
    if found is not None and found.certified and (
        found.noise.info['lower_bound'] > delta):
      proved = middle
  return best, proved


def _gaussian(reach: float, bins: int | None, delta: float, ask: dict[str, Any]
              ) -> TruncatedNoise | None:
  """Returns a narrow truncated Gaussian within this delta; None if none was found."""
  def of_scale(log_scale: float) -> TruncatedNoise:
    """Returns the truncated Gaussian of scale exp(log_scale) with its account."""
    table = design.TruncatedGaussian(
        reach, scale=math.exp(log_scale), bins=bins).solve()
    return account(table, method='truncated Gaussian', **ask)

  # Scales from next to no noise to nearly uniform noise. delta decreases with the scale
  # until truncation at the range dominates. The least scale is found to one in 1000.
  low, high = math.log(0.05), math.log(4 * reach)
  too_small = None
  for log_scale in (low + (high - low) * i / _SCALES for i in range(_SCALES + 1)):
    found = of_scale(log_scale)
    if found.delta.upper <= delta:
      break
    too_small = log_scale
  else:
    return None
  if too_small is None:
    return found
  log_scale = optimize.bisect(
      lambda x: 1.0 if of_scale(x).delta.upper > delta else -1.0, too_small, log_scale,
      xtol=1e-3)
  near = of_scale(log_scale + 1e-3)  # Past the root, by the tolerance.
  return near if near.delta.upper <= delta else found
