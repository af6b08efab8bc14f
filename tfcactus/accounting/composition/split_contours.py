"""Contours for compositions whose epsilon comes from a few rare large losses.

No single tilt serves them. So the composition is split by its largest loss into
measures, each with a tilt of its own (docs/soundness_formulas.md, "Contours"). To
`contour.Contour` a measure is a loss like any other (`gaussian_parts.RareLoss`). The
upper bound counts measures that have no contour because they are negligible.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import math

import numpy as np

from tfcactus.accounting.bounds import Bounds, crossing, IntractableError
from tfcactus.accounting.composition import contour, inversion
from tfcactus.accounting.composition.inversion import Saddles
from tfcactus.accounting.composition.losses.gaussian_parts import (
  Groups,
  PartLoss,
  RareLoss,
)

SHARES = (0.1, 0.3, 0.2, 0.06, 0.03)
"""First levels to try in turn, as shares of epsilon minus the least total loss."""

MAX_GUESSES = 8
"""Largest number of guesses of epsilon."""

LADDER = 8.0
"""Ratio of a level to the one before."""

TOP = 0.5
"""Largest level after the first. Losses beyond it grow slowly enough with the output
for one tilt."""

MAX_RISE = 1e3
"""Epsilon is sought up to this far above the largest epsilon of a single measure."""

LOG_OMITTED = -34.0
"""Log of the share of delta below which a measure is bounded, not computed."""

CHECK_NODES, CHECK_SPACING = 6, 3
"""Number of nodes of a table, from zero on, at which the parts are checked to add up to
the whole, and their distance, in nodes."""


@dataclasses.dataclass(frozen=True)
class SplitContours:
  """A composition of subsampled Gaussians by removal; IntractableError for others."""

  groups: Groups

  @contour.one_thread
  def epsilon(self, delta: float) -> Bounds:
    """Returns bounds on epsilon; raises IntractableError if all splits are too hard."""
    log_delta = math.log(delta)
    near = self._near(log_delta)
    for share in SHARES:
      with contextlib.suppress(IntractableError):
        split = _Split.of(self.groups, share, near, log_delta=log_delta)
        if near == 0:
          profile = split.profile(0.0, log_delta)
          split.check(profile)
          if profile.delta_bounds(0.0).upper <= delta:
            return Bounds(0.0, 0.0, 0.0)
        profile, found = inversion.solved(
            functools.partial(split.profile, log_delta=log_delta), delta,
            split.epsilon_at(log_delta))
        split.check(profile)
        return profile.bracket(delta, found)
    raise IntractableError

  @contour.one_thread
  def delta(self, epsilon: float) -> Bounds:
    """Returns bounds on delta; raises IntractableError if all splits are too hard."""
    for share in SHARES:
      with contextlib.suppress(IntractableError):
        split = _Split.of(self.groups, share, epsilon, epsilon=epsilon)
        profile = split.profile(epsilon, split.log_delta_at(epsilon))
        split.check(profile)
        return profile.delta_bounds(epsilon)
    raise IntractableError

  def _near(self, log_delta: float) -> float:
    """Returns a rough epsilon at exp(`log_delta`), the guess that splits start from."""
    near = contour.Contour(self.groups).saddles(log_delta=log_delta).epsilon_at(
        log_delta)
    for _ in range(MAX_GUESSES):
      before = near
      near = max(_Split.of(self.groups, SHARES[0], near, log_delta=log_delta
                           ).epsilon_at(log_delta), 0.0)
      # The estimates fall from guess to guess while the guess is far too large.
      if 0.7 * before <= near:
        break
    return near


@dataclasses.dataclass(frozen=True)
class _Split:
  """A composition as a sum of measures, with the saddle points of each measure."""

  # For each level, the composition of the steps' losses below it; then of all.
  sums: Sequence[contour.Contour]
  # The measures. The first n of them add up to element n - 1 of `sums`.
  parts: Sequence[contour.Contour]
  saddles: Sequence[Saddles]

  @classmethod
  def of(cls, groups: Groups, share: float, near: float, **target: float) -> _Split:
    """Splits a composition at levels of a step's loss; `near` is a guess of epsilon."""
    # Levels count from a step's least loss. The first one is `share` times the distance
    # from the least total loss to `near`; each further one is `LADDER` times the last,
    # up to `TOP`. `target` is epsilon= or log_delta=, as for `Contour.saddles`. Raises
    # IntractableError unless all losses are by removal from a sample.
    if any(loss.direction != 'remove' or loss.sampling_prob == 1 for loss, _ in groups):
      raise IntractableError
    least = math.fsum(count * math.log1p(-loss.sampling_prob) for loss, count in groups)
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
    """Returns the saddle points' estimate of log delta."""
    return float(np.logaddexp.reduce([
        part.log_delta_at(epsilon) for part in self.saddles]))

  def epsilon_at(self, log_delta: float) -> float:
    """Returns the saddle points' estimate of epsilon."""
    low = max(part.epsilon_at(log_delta) for part in self.saddles)
    width = max(1e-3 * abs(low), 1e-12)
    high = crossing(
        lambda x: self.log_delta_at(x) <= log_delta, low, low + width,
        tolerance=1e-12 * width, limit=low + MAX_RISE)[1]
    if math.isinf(high):
      raise IntractableError
    return high

  def profile(self, epsilon: float, log_delta: float) -> inversion.Profile:
    """Returns the profile near `epsilon`: a table or a Chernoff bound per measure."""
    # A rough log delta decides which measures are negligible.
    tables, indices, left_out = [], [], []
    for index, (part, saddles) in enumerate(zip(self.parts, self.saddles)):
      log_chernoff, order = saddles.chernoff(epsilon, part.steps)
      if log_chernoff <= log_delta + LOG_OMITTED:
        left_out.append((part.log_moment(order), order, part.steps))
      else:
        tables.append(part.table(saddles, epsilon, log_delta))
        indices.append(index)
    return inversion.Profile(tables, lambda x: sum(
        math.exp(min(inversion.log_chernoff(moment, order, x, steps), 700.0))
        for moment, order, steps in left_out), indices)

  def check(self, profile: inversion.Profile) -> None:
    """Raises IntractableError unless the parts add up to the whole within errors."""
    # Compares moments and phi at some nodes at each tilt used. Parts up to a level add
    # up to the composition of all losses up to it, computed directly. The first part is
    # the first sum by definition, and is checked together with the second part.
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
