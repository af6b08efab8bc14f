"""A number with what is known of it."""

from __future__ import annotations

from typing import NamedTuple
from typing import Protocol


class Bounds(NamedTuple):
  """lower <= truth <= upper; `estimate` is the best single number for it."""

  lower: float
  estimate: float
  upper: float


class Method(Protocol):
  """A way of accounting for a composition.

  Both raise `IntractableError` where it has no bounds at a fair price.
  """

  def epsilon(self, delta: float) -> Bounds:
    """Bounds on the least epsilon >= 0 at `delta` in (0, 1)."""

  def delta(self, epsilon: float) -> Bounds:
    """Bounds on the least delta at `epsilon` >= 0."""


class IntractableError(Exception):
  """The method at hand has no bounds at a fair price; another has to answer."""
