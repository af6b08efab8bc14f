"""Compositions whose epsilon comes from a few rare large losses.

With a tiny sampling probability nearly every step loses next to nothing, and
no single tilt serves: phi stays near one for as long as the many small losses
are near each other, or the moments are those of losses far beyond epsilon. So
the composition is split into measures that each have a tilt of their own. With
smooth weights 0 = w_0 <= w_1 <= ... <= w_n = 1 on the outputs of a step and
M_i the moments of its density times w_i, small losses first,

    product of M^k = product of M_1^k + sum over i > 1 of
                     (product of M_i^k - product of M_{i-1}^k).

Each term is a positive measure, has the decay of M_i - M_{i-1}, and is a loss
like any other to `contour.Contour`; or Chernoff's inequality shows that it is
nothing at epsilon.

Source: this library's; the bounds are those of `gaussian.GaussianLoss`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Callable
from typing import Sequence

import numpy as np

from tfcactus import _numerics
from tfcactus.accounting import monotone
from tfcactus.accounting.bounds import Bounds
from tfcactus.accounting.bounds import IntractableError
from tfcactus.accounting.composition import contour
from tfcactus.accounting.composition import inversion
from tfcactus.accounting.composition.losses.gaussian_parts import Groups
from tfcactus.accounting.composition.losses.gaussian_parts import PartLoss
from tfcactus.accounting.composition.losses.gaussian_parts import RareLoss
from tfcactus.accounting.composition.saddles import Saddles

SHARES = (0.1, 0.3, 0.2, 0.06, 0.03)
"""Shares tried of the way from the least loss to epsilon, as the first level."""

MAX_GUESSES = 8
"""Guesses of epsilon at most."""

LADDER = 8.0
"""Ratio of the following levels."""

TOP = 0.5
"""No level is above this: from here losses grow slowly enough."""

MAX_RISE = 1e3
"""An epsilon further than this above that of one measure alone is not looked for."""

LOG_OMITTED = -34.0
"""Log of the share of delta below which a measure is left out."""

OMITTED_SLACK = 1e-6
"""Allowance for rounding in the log of the bound on what is left out, derived as
`saddles.ROUNDOFF`."""

CHECK_NODES = 6
"""At so many nodes of a table the parts are checked to add up to the whole."""

CHECK_SPACING = 3
"""Distance of those nodes in nodes, from the first on, where phi is largest."""


@dataclasses.dataclass(frozen=True)
class SplitContours:
  """A composition of subsampled Gaussians by removal.

  Attributes:
    groups: Pairs (loss, number of steps).
  """

  groups: Groups

  def epsilon(self, delta: float) -> Bounds:
    """Bounds on epsilon at `delta`.

    Raises:
      IntractableError: if no way of splitting the losses gives good bounds.
    """
    log_delta = math.log(delta)

    def attempt(share: float) -> Bounds:
      split = _Split.of(self.groups, share, near, log_delta=log_delta)
      if near == 0:
        profile = split.profile(0.0, log_delta)
        split.check(profile)
        if profile.delta_bounds(0.0).upper <= delta:
          return Bounds(0.0, 0.0, 0.0)
      profile, found = inversion.solved(
          lambda guess: split.profile(guess, log_delta), delta,
          split.epsilon_at(log_delta))
      split.check(profile)
      return profile.bracket(delta, found)

    with contour.one_thread():
      near = self._near(log_delta)
      return _first(attempt)

  def delta(self, epsilon: float) -> Bounds:
    """Bounds on delta at `epsilon` > 0; otherwise as `epsilon`."""
    def attempt(share: float) -> Bounds:
      split = _Split.of(self.groups, share, epsilon, epsilon=epsilon)
      profile = split.profile(epsilon, split.log_delta_at(epsilon))
      split.check(profile)
      return profile.delta_bounds(epsilon)

    with contour.one_thread():
      return _first(attempt)

  def _near(self, log_delta: float) -> float:
    """An epsilon near the one at delta; each split needs one to begin with."""
    near = contour.Contour(self.groups).saddles(log_delta=log_delta).epsilon_at(
        log_delta)
    for _ in range(MAX_GUESSES):
      before = near
      near = max(_Split.of(self.groups, SHARES[0], near, log_delta=log_delta
                           ).epsilon_at(log_delta), 0.0)
      if 0.7 * before <= near:
        break
    return near


def _first(attempt: Callable[[float], Bounds]) -> Bounds:
  """The bounds of the first share of the levels that is not too hard."""
  for share in SHARES:
    try:
      return attempt(share)
    except IntractableError:
      continue
  raise IntractableError


@dataclasses.dataclass(frozen=True)
class _Split:
  """A composition as a sum of measures.

  Attributes:
    sums: What the first one, two and so on of the parts add up to.
    parts: The measures.
    saddles: Saddle points of each.
  """

  sums: Sequence[contour.Contour]
  parts: Sequence[contour.Contour]
  saddles: Sequence[Saddles]

  @classmethod
  def of(cls, groups: Groups, share: float, near: float, **target: float
         ) -> _Split:
    """Splits a composition.

    Args:
      groups: Pairs (loss, number of steps).
      share: The first level is this share of the way to `near`.
      near: Epsilon, roughly.
      **target: Where saddle points are wanted, as for `contour.Contour`.
    """
    if any(loss.direction != 'remove' or loss.sampling_prob == 1
           for loss, _ in groups):
      raise IntractableError
    least = math.fsum(count * math.log1p(-loss.sampling_prob)
                      for loss, count in groups)
    levels = [share * (max(near, 0.0) - least)]
    while levels[-1] * LADDER <= TOP:
      levels.append(levels[-1] * LADDER)
    sums = [contour.Contour(tuple((PartLoss.of(loss, 0.0, high), count)
                                  for loss, count in groups))
            for high in [*levels, math.inf]]
    parts = [sums[0], *(
        contour.Contour(((RareLoss(groups, low, high), 1),))
        for low, high in zip(levels, [*levels[1:], math.inf]))]
    return cls(sums, parts, [part.saddles(**target) for part in parts])

  def log_delta_at(self, epsilon: float) -> float:
    """The saddle points' estimate of log delta."""
    return float(np.logaddexp.reduce([
        part.log_delta_at(epsilon) for part in self.saddles]))

  def epsilon_at(self, log_delta: float) -> float:
    """The saddle points' estimate of epsilon."""
    low = max(part.epsilon_at(log_delta) for part in self.saddles)
    width = max(1e-3 * abs(low), 1e-12)
    high = monotone.crossing(
        lambda x: self.log_delta_at(x) <= log_delta, low, low + width,
        tolerance=1e-12 * width, limit=low + MAX_RISE)[1]
    if math.isinf(high):
      raise IntractableError
    return high

  def profile(self, epsilon: float, log_delta: float) -> _SplitProfile:
    """delta near `epsilon`."""
    tables, indices, left_out = [], [], []
    for index, (part, saddles) in enumerate(zip(self.parts, self.saddles)):
      if saddles.log_chernoff(epsilon) <= log_delta + LOG_OMITTED:
        order = saddles.best_order(epsilon)
        left_out.append((order, part.log_moment(order)))
      else:
        tables.append(part.table(saddles, epsilon, log_delta))
        indices.append(index)
    return _SplitProfile(tables, lambda x: sum(
        math.exp(log_moment - order * x + _numerics.log_kernel(order) +
                 OMITTED_SLACK) for order, log_moment in left_out), indices)

  def check(self, profile: _SplitProfile) -> None:
    """Shows in numbers, at each tilt used, that the parts add up.

    Those up to a level make the composition of all losses up to it, which is
    known by itself; the first is checked with the second.

    Raises:
      IntractableError: if moments, or phi at some nodes, differ by more than
        their errors.
    """
    for table, index in zip(profile.tables, profile.indices):
      parts = self.parts[:max(index, 1) + 1]
      spacing = CHECK_SPACING * table.spacing
      (log_sum, error), *terms = (
          part.transform(table.order, spacing, CHECK_NODES)
          for part in (self.sums[len(parts) - 1], *parts))
      base = log_sum[0].real
      rest = np.exp(log_sum - base)
      allowed = np.expm1(np.minimum(error, 1.0)) * np.abs(rest)
      for log_part, error in terms:
        value = np.exp(log_part - base)
        rest -= value
        allowed += np.expm1(np.minimum(error, 1.0)) * np.abs(value)
      if not np.all(np.abs(rest) <= allowed):
        raise IntractableError


@dataclasses.dataclass(frozen=True)
class _SplitProfile(inversion.Profile):
  """A profile whose tables are those of some parts of a split.

  Attributes:
    indices: Of those parts.
  """

  indices: Sequence[int] = ()
