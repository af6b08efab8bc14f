"""Contours for groups of rows: samples with very many rows of a person are set aside.

Samples with many rows of one person are next to impossible, but moments of the loss see
nothing else. They count as samples with fewer rows, at a price in delta of their mass.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses

from tfcactus.accounting.bounds import Bounds
from tfcactus.accounting.composition import contour
from tfcactus.accounting.composition.losses import base
from tfcactus.accounting.composition.losses.grouped import GroupedGaussian

SHARE = 1e-11
"""Mass that is set aside, as a share of delta. Affects speed and width only."""

ROUNDS = 3
"""Rounds of the search for a delta of which the mass is that share."""


@dataclasses.dataclass(frozen=True)
class GroupedContours:
  """A composition of releases, some with several rows of one person."""

  # Pairs (loss of a release, number of steps).
  groups: Sequence[tuple[base.ReleaseLoss, int]]

  def epsilon(self, delta: float) -> Bounds:
    """Returns bounds on epsilon; raises IntractableError if a contour is too hard."""
    whole, aside = self._contour(SHARE * delta)
    low = whole.epsilon(delta)
    high = whole.epsilon(delta - aside) if aside > 0 else low
    return Bounds(low.lower, low.estimate, max(low.upper, high.upper))

  def delta(self, epsilon: float) -> Bounds:
    """Returns bounds on delta; raises IntractableError if a contour is too hard."""
    most = SHARE
    for _ in range(ROUNDS):
      whole, aside = self._contour(most)
      bounds = whole.delta(epsilon)
      if aside <= 1e-9 * bounds.lower:
        break
      most = SHARE * bounds.upper
    return Bounds(bounds.lower, bounds.estimate, min(bounds.upper + aside, 1.0))

  def _contour(self, most: float) -> tuple[contour.Contour, float]:
    """Returns a contour, and a bound on the mass set aside, which is at most `most`."""
    steps = sum(count for _, count in self.groups)
    groups, aside = [], 0.0
    for loss, count in self.groups:
      # Without the rows the output has no such samples: nothing is set aside.
      if isinstance(loss, GroupedGaussian) and loss.direction == 'remove':
        loss, mass = loss.truncated(most / steps)
        aside += count * mass
      groups.append((loss, count))
    return contour.Contour(tuple(groups)), aside
