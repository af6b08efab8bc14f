"""Types (no accountant): bounds on a number, and methods that find such bounds."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Bounds(NamedTuple):
  """Bounds lower <= truth <= upper; `estimate` is the best single number."""

  lower: float
  estimate: float
  upper: float


class Method(Protocol):
  """A method of accounting; raises `IntractableError` if bounds cost too much."""

  def epsilon(self, delta: float) -> Bounds:
    """Returns bounds on the least epsilon >= 0 at `delta` in (0, 1)."""

  def delta(self, epsilon: float) -> Bounds:
    """Returns bounds on the least delta at `epsilon` >= 0."""


class IntractableError(Exception):
  """Raised if a method has no bounds at acceptable cost; callers try another one."""
